"""``hookline agent-hook`` in the real Claude Code, with a local server in place of the model.

The program is part of ``claude-agent-sdk``, which is 160 MB: only ``make test-adapters ONLY=claude_real`` installs it.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.adapters.coding_agents import client
from hookline.adapters.coding_agents.codecs import codec_of
from hookline.adapters.coding_agents.protection.hosts import HOSTS, Found
from hookline.adapters.coding_agents.protection.loopback_model import Call, serving
from hookline.adapters.coding_agents.protection.proof import prove
from tests.agents.payloads import IS_RECORDING, save, with_recorder

SDK = importlib.util.find_spec("claude_agent_sdk")
PROGRAM = Path(SDK.submodule_search_locations[0], "_bundled", "claude") if SDK is not None else None

pytestmark = [
    pytest.mark.skipif(
        PROGRAM is None, reason="claude-agent-sdk is not installed: make test-adapters ONLY=claude_real"
    ),
    pytest.mark.slow,
]

SECRET = "AKIA" + "IOSFODNN7EXAMPLQ"
RULES = """
from hookline import HookResult, hook
from hookline.hooks import PathGuard, SensitiveDataHook, TerminalGuard
from hookline.points import AFTER_TOOL, BEFORE_PROMPT_BUILD, BEFORE_TOOL, ON_STOP

hooks = [TerminalGuard(".", allow=["touch made*"]), PathGuard(".", write=True), SensitiveDataHook()]


@hook(BEFORE_TOOL, tools="read_file")
def copy_instead(ctx, request):
    path = request.arguments["path"].replace("original", "copy")
    return request.replace(arguments={**request.arguments, "path": path})


@hook(AFTER_TOOL, tools="shell")
def shorten(ctx, result):
    return result.replace(result="short") if "LONG" in result.text else None


@hook(BEFORE_PROMPT_BUILD)
def add_context(ctx, build):
    return HookResult.merge(append_system="The office is closed today.")


@hook(ON_STOP)
def once_more(ctx, stopping):
    if not ctx.scratch.get("asked"):
        ctx.scratch["asked"] = True
        return HookResult.keep_going("Say it again.")
"""


@pytest.fixture
def session(tmp_path):
    """Run Claude Code in a project with rules: it makes these calls, and the model reads these texts."""
    project, home = tmp_path / "project", tmp_path / "home"
    for folder in (project, project / ".claude", home):
        folder.mkdir(mode=0o755)

    def run(rules, *calls):
        (project / "rules.py").write_text(rules)
        program = f"{sys.executable} -I -S {Path(client.__file__).with_name('entry.py')} agent-hook --agent claude"
        command = f'{program} "$CLAUDE_PROJECT_DIR"/rules.py --idle 3 --allow-rewritten'
        if IS_RECORDING:
            command = with_recorder(command, tmp_path / "recorded")
        handler = [{"hooks": [{"type": "command", "command": command, "timeout": 30}]}]
        events = ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop")
        (project / ".claude/settings.json").write_text(json.dumps({"hooks": dict.fromkeys(events, handler)}))
        with serving({"Do it.": [Call(*call) for call in calls]}) as model:
            env = os.environ | {
                "ANTHROPIC_API_KEY": "none",
                "ANTHROPIC_BASE_URL": model.url,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "HOME": str(home),
                "XDG_RUNTIME_DIR": str(home),
            }
            done = subprocess.run(
                [PROGRAM, "-p", "Do it.", "--model", "claude-sonnet-4-5", "--allowedTools", "Bash", "Read", "Write"],
                cwd=project,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
        if IS_RECORDING and rules == RULES:
            version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.split()[
                0
            ]
            names = {str(project): "/shop", str(home): "/home/ada", SECRET: "SECRET"}
            save("claude", version, tmp_path / "recorded", names)
        asked = [body["messages"][-1]["content"] for body in model.bodies if body.get("tools")]
        return done, [json.dumps(content) for content in asked]

    run.project = project
    return run


def test_guards_block_rewrite_redact_and_keep_a_real_session_going(session):
    project = session.project
    (project / "original.txt").write_text("the original")
    (project / "copy.txt").write_text("the copy")
    (project / "notes.txt").write_text(f"key = {SECRET}")
    done, read = session(
        RULES,
        ("Bash", {"command": "touch canary", "description": "x"}),
        ("Bash", {"command": "touch made", "description": "x"}),
        ("Bash", {"command": "cat notes.txt", "description": "x"}),
        ("Bash", {"command": "echo LONG LONG LONG", "description": "x"}),
        ("Read", {"file_path": str(project / "original.txt")}),
        ("Read", {"file_path": "/etc/passwd"}),
        ("Read", {"file_path": str(project / "notes.txt")}),
    )
    assert done.returncode == 0, done
    first, denied, allowed, command, short, rewritten, outside, file, again = read
    assert "The office is closed today." in first
    assert "Only listed programs run here" in denied
    assert not (project / "canary").exists()
    assert '"is_error": false' in allowed
    assert (project / "made").exists()
    assert "key = [secret]" in command
    assert SECRET not in command
    assert "short" in short
    assert "LONG" not in short
    assert "the copy" in rewritten
    assert "'/etc/passwd' is not allowed" in outside
    assert "key = [secret]" in file
    assert SECRET not in file
    assert "Say it again." in again


def test_broken_rules_stop_a_real_session_at_its_prompt(session):
    done, read = session("broken (", ("Bash", {"command": "touch canary", "description": "x"}))
    assert "the rules cannot be loaded" in done.stdout
    assert read == []
    assert not (session.project / "canary").exists()


def test_hookline_protect_proves_that_a_denial_arrives(tmp_path):
    rules = tmp_path / "rules.py"
    rules.write_text(RULES)
    command = f"{sys.executable} -P -m hookline agent-hook --agent claude {rules}"
    found = Found(HOSTS["claude"], str(PROGRAM), None)
    settings = codec_of("claude").settings(command, ["session_start", "prompt", "before_tool", "after_tool"], 30)
    for project in (False, True):
        assert prove(found, settings, project=project).state == "denied"
    assert prove(found, '{"disableAllHooks": true, ' + settings[1:]).state == "ran"
