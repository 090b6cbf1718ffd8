"""``hookline agent-hook`` in the real Claude Code, with a local server in place of the model.

The program is part of ``claude-agent-sdk``, which is 160 MB: only ``make test-adapters ONLY=claude_real`` installs it.
"""

import http.server
import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

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


class Server(http.server.ThreadingHTTPServer):
    """Answers like the model: one tool call after the other, then text. It keeps what the model would have read."""

    def __init__(self, calls):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.calls = calls
        self.read: list[str] = []
        """The text of the last message of each request."""


class _Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        """Print nothing."""

    def do_GET(self):
        self._send("application/json", b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
            self._send("application/json", b'{"input_tokens": 1}')
            return
        content, reason = {"type": "text", "text": "Done."}, "end_turn"
        if body.get("tools"):
            messages = body["messages"]
            self.server.read.append(json.dumps(messages[-1]["content"]))
            parts = [part for each in messages if isinstance(each["content"], list) for part in each["content"]]
            done = sum(part.get("type") == "tool_result" for part in parts)
            if done < len(self.server.calls):
                name, arguments = self.server.calls[done]
                content = {"type": "tool_use", "id": f"toolu_{done:04d}", "name": name, "input": arguments}
                reason = "tool_use"
        self._reply(body, content, reason)

    def _reply(self, body, content, reason):
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "usage": usage}
        end = {"stop_reason": reason, "stop_sequence": None}
        if not body.get("stream"):
            self._send("application/json", json.dumps(message | end | {"content": [content]}).encode())
            return
        if reason == "tool_use":
            start, delta = (
                content | {"input": {}},
                {"type": "input_json_delta", "partial_json": json.dumps(content["input"])},
            )
        else:
            start, delta = content | {"text": ""}, {"type": "text_delta", "text": content["text"]}
        events = (
            {"type": "message_start", "message": message | {"content": [], "stop_reason": None, "stop_sequence": None}},
            {"type": "content_block_start", "index": 0, "content_block": start},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": usage},
            {"type": "message_stop"},
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
    """Run Claude Code in a project with rules: it makes these calls, and the model reads these texts."""
    project, home = tmp_path / "project", tmp_path / "home"
    for folder in (project, project / ".claude", home):
        folder.mkdir(mode=0o755)

    def run(rules, *calls):
        (project / "rules.py").write_text(rules)
        program = f"{sys.executable} -P -m hookline agent-hook --agent claude"
        command = f'{program} "$CLAUDE_PROJECT_DIR"/rules.py --idle 3 --allow-rewritten'
        handler = [{"hooks": [{"type": "command", "command": command, "timeout": 30}]}]
        events = ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop")
        (project / ".claude/settings.json").write_text(json.dumps({"hooks": dict.fromkeys(events, handler)}))
        with Server(calls) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            env = os.environ | {
                "ANTHROPIC_API_KEY": "none",
                "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}",
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
            server.shutdown()
        return done, server.read

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
