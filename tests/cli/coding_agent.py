"""A stand-in for a coding agent, which behaves like Qwen Code: it asks a model, and its hooks before a call."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

TOOL = {"type": "function", "function": {"name": "run_shell_command", "parameters": {}}}


def ask(messages):
    body = json.dumps({"messages": messages, "tools": [TOOL]}).encode()
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def judge(arguments):
    """Return why the hooks deny a call, or nothing."""
    settings = json.loads(Path.home().joinpath(".qwen/settings.json").read_text())
    event = {"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "run_shell_command", "cwd": os.getcwd()}
    for group in settings["hooks"]["PreToolUse"]:
        for handler in group["hooks"]:
            data = json.dumps(event | {"tool_input": arguments})
            done = subprocess.run(
                handler["command"], shell=True, input=data, capture_output=True, text=True, check=False
            )
            if done.returncode == 2:
                return done.stderr
    return ""


def main(behaviour):
    if "--version" in sys.argv:
        print("stand-in 1.2.3")
        return 0
    if behaviour == "ends":
        print("variables:", *sorted(name for name in os.environ if "KEY" in name or "TOKEN" in name))
        return 3
    if behaviour == "hangs":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        time.sleep(600)
    messages = [{"role": "user", "content": sys.argv[-1]}]
    while calls := (answer := ask(messages)).get("tool_calls"):
        arguments = json.loads(calls[0]["function"]["arguments"])
        denied = "" if behaviour == "runs" else judge(arguments)
        if not denied:
            subprocess.run(arguments["command"], shell=True, check=False)
        messages += [answer, {"role": "tool", "content": denied or "done"}]
    return 0
