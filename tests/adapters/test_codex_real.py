"""``hookline agent-hook`` in the real Codex, with a local server in place of the model.

The program is in ``openai-codex-cli-bin``, which is large: only ``make test-adapters ONLY=codex_real`` installs it.
"""

import http.server
import importlib.util
import json
import os
import subprocess
import sys
import threading

import pytest

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("codex_cli_bin") is None,
        reason="openai-codex-cli-bin is not installed: make test-adapters ONLY=codex_real",
    ),
    pytest.mark.slow,
]

RULES = """
from hookline import HookResult, guard, hook
from hookline.points import AFTER_TOOL, APPROVAL_REQUESTED, BEFORE_TOOL, ON_RUN_START


@hook(BEFORE_TOOL, tools="shell")
def copy_instead(ctx, request):
    command = request.arguments["command"]
    return request.replace(arguments={**request.arguments, "command": command.replace("original", "copy")})


@guard(BEFORE_TOOL, tools="shell")
def judge(ctx, request):
    command = request.arguments["command"]
    if "blocked" in command:
        return HookResult.block("No.")
    if "asked" in command:
        return HookResult.ask("May it run?")
    if "stopped" in command:
        return HookResult.stop("Enough.")
    if "ended" in command:
        return HookResult.end("The budget is used up.")
    if "broken" in command:
        raise RuntimeError("password=hunter2")


@hook(APPROVAL_REQUESTED)
def approver(ctx, request):
    return HookResult.approve() if "approved" in request.call.arguments["command"] else None


@hook(AFTER_TOOL)
def redact(ctx, result):
    return result.replace(result=result.text.replace("TOKEN", "[hidden]")) if "TOKEN" in result.text else None


@hook(ON_RUN_START)
def prompts(ctx, start):
    return HookResult.end("No homework here.") if "homework" in start.task else None
"""


class Server(http.server.ThreadingHTTPServer):
    """Answers like the model: one shell command after the other, then text. It keeps the results that it gets."""

    def __init__(self, commands):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.commands = commands
        self.requests = 0
        self.results: dict[str, str] = {}


class _Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        """Print nothing."""

    def do_GET(self):
        self._send("application/json", b'{"object": "list", "data": [], "models": []}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        server = self.server
        server.requests += 1
        for item in body.get("input", []):
            if item.get("type") == "function_call_output":
                server.results[item["call_id"]] = json.dumps(item["output"])
        done = len(server.results)
        item = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
        }
        if done < len(server.commands):
            item = {
                "type": "function_call",
                "id": f"fc_{done}",
                "call_id": f"call_{done}",
                "name": "exec_command",
                "arguments": json.dumps({"cmd": server.commands[done]}),
                "status": "completed",
            }
        response = {"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        events = (
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response | {"usage": usage}},
        )
        lines = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self._send("text/event-stream", lines.encode())

    def _send(self, kind, data):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def session(tmp_path):
    """Run Codex with rules: it runs these commands, and the model gets these results."""
    from codex_cli_bin import bundled_codex_path

    project, home = tmp_path / "project", tmp_path / "home"
    for folder in (project, home):
        folder.mkdir(mode=0o755)
    (project / "rules.py").write_text(RULES)
    command = f"{sys.executable} -P -m hookline agent-hook --agent codex {project / 'rules.py'} --idle 3"
    handler = [{"hooks": [{"type": "command", "command": command, "timeout": 60}]}]
    events = ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse")
    (home / "hooks.json").write_text(json.dumps({"hooks": dict.fromkeys(events, handler)}))

    def run(prompt, *commands):
        with Server(commands) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            (home / "config.toml").write_text(
                'model = "fake"\nmodel_provider = "fake"\n[model_providers.fake]\nname = "fake"\n'
                f'base_url = "http://127.0.0.1:{server.server_port}/v1"\nwire_api = "responses"\nenv_key = "FAKE_KEY"\n'
            )
            env = os.environ | {"CODEX_HOME": str(home), "FAKE_KEY": "none", "XDG_RUNTIME_DIR": str(home)}
            env.pop("CLAUDE_PROJECT_DIR", None)
            flags = ("--dangerously-bypass-hook-trust", "--dangerously-bypass-approvals-and-sandbox")
            done = subprocess.run(
                [bundled_codex_path(), "exec", *flags, "--skip-git-repo-check", "-C", project, prompt],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
            server.shutdown()
        return done, server

    run.project = project
    return run


def test_guards_deny_ask_stop_rewrite_and_redact_in_a_real_session(session):
    names = ("plain", "blocked", "asked", "asked-approved", "stopped", "ended", "broken", "original")
    done, server = session("Do it.", *(f"touch {name}" for name in names), "printf TOK; printf EN")
    assert done.returncode == 0, done
    made = {path.name for path in session.project.iterdir()} - {"rules.py"}
    assert made == {"plain", "asked-approved", "copy"}
    results = dict(zip((*names, "printed"), (server.results[f"call_{number}"] for number in range(9)), strict=True))
    assert "No." in results["blocked"]
    assert "May it run?" in results["asked"]
    assert "This needs an approval" in results["asked"]
    assert "Enough." in results["stopped"]
    assert "The budget is used up." in results["ended"]
    assert "hook 'judge' failed" in results["broken"]
    assert "hunter2" not in results["broken"]
    assert "[hidden]" in results["printed"]
    assert "TOKEN" not in results["printed"]


def test_a_blocked_prompt_does_not_reach_the_model_of_a_real_session(session):
    _, server = session("Do my homework.", "touch canary")
    assert server.requests == 0
    assert not (session.project / "canary").exists()


def test_broken_rules_stop_a_real_session_at_its_prompt(session):
    (session.project / "rules.py").write_text("broken (")
    _, server = session("Do it.", "touch canary")
    assert server.requests == 0
    assert not (session.project / "canary").exists()
