"""The client conformance tests of MCP against `hookline.tools.mcp`.

Without an argument, this starts the kit for each scenario. The kit starts it again, with the URL of its server.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

SCENARIOS = {
    "initialize": "opens a session",
    "tools_call": "calls a tool",
    "elicitation-sep1034-client-defaults": "asks a person, who accepts the values that the server proposes",
    "sse-retry": "reconnects when the server has closed a stream",
}
"""The scenarios of the kit without OAuth: `mcp(..., headers=...)` sends what it is given."""


def act_as_client(url: str) -> None:
    """Call every tool of the server in an agent, whose person approves everything."""
    from hookline import Agent, Limits, ScriptedModel, call
    from hookline.tools import mcp

    with mcp(url, name="kit", timeout=20) as server:
        arguments = {"add_numbers": {"a": 5, "b": 3}}
        calls = [call(tool.name, **arguments.get(tool.name, {})) for tool in server.tools()]
        model = ScriptedModel([*calls, "done"])
        Agent("kit", llm=model, tools=[server], approve=lambda ctx, request: True, limits=Limits(steps=9)).run(
            "Use every tool."
        )


def run_kit() -> None:
    """Run each scenario and print the results as JSON."""
    packages = Path(os.environ["KIT_FOLDER"]) / "node_modules"
    kit = packages / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    found = {}
    for scenario, sentence in SCENARIOS.items():
        command = [packages / "node" / "bin" / "node", kit, "client", "--scenario", scenario, "--timeout", "60000"]
        done = subprocess.run(
            [*map(str, command), "--command", f"{sys.executable} {__file__}"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=os.environ["KIT_FOLDER"],
            check=False,
        )
        said = (done.stdout + done.stderr).strip().splitlines()
        found[sentence] = "yes" if done.returncode == 0 else f"no: {' '.join(said[-4:])[-200:]}"
    print(json.dumps(found))


if len(sys.argv) > 1:
    act_as_client(sys.argv[1])
else:
    run_kit()
