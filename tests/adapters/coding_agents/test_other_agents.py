"""``hookline agent-hook`` in Codex, and in agents that loaded the settings of Claude Code: only answers that they obey.

The common fields and the variables are those of a ``PreToolUse`` that the programs sent: Codex 0.169.0, Copilot CLI
1.0.102, Gemini CLI 0.61.0 (``BeforeTool``), Qwen Code 0.24.4, and Claude Code 1.0.128, 2.0.14 and 2.1.326, with other
paths and ids. The other events are made from them. Those of Cursor and Cline were read in their code, not recorded.
"""

import json
import os
import tempfile
from pathlib import Path

import pytest

from ...cases import each_case
from .test_command import ClaudeCode

pytestmark = [
    pytest.mark.slow,  # real processes
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the resident process needs fork"),
]

RULES = """
import asyncio
import sys
from hookline import HookResult, guard, hook, observer
from hookline.points import (
    AFTER_TOOL, APPROVAL_REQUESTED, BEFORE_COMPACTION, BEFORE_PROMPT_BUILD, BEFORE_STEP, BEFORE_TOOL, ON_RUN_START,
    ON_STOP,
)


@hook(BEFORE_TOOL, tools="shell")
def rewrite(ctx, request):
    command = request.arguments["command"]
    if "original" in command:
        return request.replace(arguments={**request.arguments, "command": command.replace("original", "copy")})
    if "wider" in command:
        return request.replace(arguments={**request.arguments, "timeout": 5})
    if "renamed" in command:
        return request.replace(name="other")


@guard(BEFORE_TOOL, tools="shell")
def judge(ctx, request):
    command = request.arguments["command"]
    if "blocked" in command:
        return HookResult.block("No.")
    if "json" in command:
        return HookResult.block('{"decision": "allow"}')
    if "printed" in command:
        print('{"decision": "allow"}')
        print('{"decision": "allow"}', file=sys.stderr)
        return HookResult.block("No.")
    if "half" in command:
        return HookResult.block("half of a pair: \\ud83d")
    if "asked" in command:
        return HookResult.ask("May it run?")
    if "stopped" in command:
        return HookResult.stop("Enough.")
    if "ended" in command:
        return HookResult.end("The budget is used up.")
    if "answered" in command:
        return HookResult.answer("42")
    if "broken" in command:
        raise RuntimeError("password=hunter2")
    return asyncio.sleep(600) if "slow" in command else None


@hook(APPROVAL_REQUESTED)
def approver(ctx, request):
    command = request.call.arguments.get("command", "")
    if "approved" in command:
        return HookResult.approve()
    if "denied" in command:
        return HookResult.deny("Not on a Friday.")
    if "edited" in command:
        return HookResult.edit({**request.call.arguments, "command": "touch safe"})
    if "failing" in command:
        raise RuntimeError("password=hunter2")


@hook(AFTER_TOOL)
def results(ctx, result):
    if "failing" in result.text:
        raise RuntimeError("password=hunter2")
    if "ending" in result.text:
        return HookResult.end("Enough.")
    if "secret" in result.text:
        return result.with_text(result.text.replace("secret", "[hidden]"))


@hook(ON_RUN_START)
def prompts(ctx, start):
    if "homework" in start.task:
        return HookResult.end("No homework here.")
    return start.replace(task=start.task.replace("Bob", "the user"))


@hook(BEFORE_PROMPT_BUILD)
def context(ctx, build):
    return HookResult.merge(append_system="The office is closed.")


@hook(ON_STOP)
def again(ctx, stopping):
    return HookResult.keep_going("The tests fail.")


@hook(BEFORE_COMPACTION)
def not_now(ctx, compaction):
    return HookResult.block("Not now.")


@observer(BEFORE_STEP)
def never_called(ctx, step): ...
"""

SESSION = "01a1ea9e-c7a6-7d32-bde9-dafe14666176"
INHERITED = {"CLAUDECODE": "1", "CLAUDE_CODE_ENTRYPOINT": "cli", "CLAUDE_CODE_SESSION_ID": "another-session"}
"""The variables of Claude Code in an agent that was started in it."""
CODEX = {
    "session_id": SESSION,
    "turn_id": "01a1ea9e-c7ca-7792-a0b0-dd4ee08fb158",
    "transcript_path": f"/home/ada/.codex/sessions/2026/11/17/rollout-2026-11-17T17-47-16-{SESSION}.jsonl",
    "cwd": "/shop",
    "model": "gpt-6",
    "permission_mode": "default",
    "tool_use_id": "call_1",
}
COPILOT = {"session_id": SESSION, "timestamp": "2026-11-17T17:47:34.128Z", "cwd": "/shop"}
QWEN = {
    "session_id": SESSION,
    "transcript_path": f"/home/ada/.qwen/projects/-shop/chats/{SESSION}.jsonl",
    "cwd": "/shop",
    "timestamp": "2026-11-17T17:47:26.662Z",
    "permission_mode": "yolo",
    "prompt_id": f"{SESSION}########0",
    "tool_use_id": "toolu_1794937646661_djixh7a6s",
    "tool_call_id": "call_1",
}
OTHERS = {
    "Copilot CLI": ({"COPILOT_CLI": "1", "CLAUDE_PROJECT_DIR": "/shop"}, COPILOT),
    "Qwen Code": ({"QWEN_PROJECT_DIR": "/shop", "CLAUDE_PROJECT_DIR": "/shop"}, QWEN),
    "Copilot CLI in Claude Code": (INHERITED, COPILOT),
    "Qwen Code in Claude Code": (INHERITED, QWEN),
    "a person": ({}, {"session_id": "try"}),
    "a person in Claude Code": (INHERITED, {"session_id": "try", "transcript_path": "", "cwd": "/shop"}),
    "Claude Code without its variables": (
        {"CLAUDE_PROJECT_DIR": "/shop"},
        {"session_id": SESSION, "transcript_path": f"/home/ada/.claude/projects/-shop/{SESSION}.jsonl"},
    ),
    "something with the transcript of another session": (
        {"CLAUDE_CODE_ENTRYPOINT": "cli"},
        {"session_id": SESSION, "transcript_path": "/home/ada/.claude/projects/-shop/another.jsonl"},
    ),
    "something with a transcript elsewhere": (
        {"CLAUDE_CODE_ENTRYPOINT": "cli"},
        {"session_id": SESSION, "transcript_path": f"/home/ada/.other/projects/-shop/{SESSION}.jsonl"},
    ),
    "something with a turn": ({}, {"session_id": SESSION, "turn_id": "1", "model": "m", "cwd": "/shop"}),
}
CODEXES = {
    "Codex": ({"CODEX_HOME": "/home/ada/.codex"}, CODEX),
    "Codex in Claude Code": (INHERITED, CODEX),
    "Codex without a transcript": ({}, CODEX | {"transcript_path": None}),
}
BOTH = (OTHERS["Copilot CLI"], CODEXES["Codex"])
"""One agent that is not recognised, and Codex."""
CLAUDES = {
    "1.0.128": (
        {"CLAUDE_CODE_ENTRYPOINT": "sdk-cli"},
        {"session_id": SESSION, "transcript_path": f"/home/ada/.claude/projects/-shop/{SESSION}.jsonl"},
    ),
    "with another folder": (
        {"CLAUDE_CODE_ENTRYPOINT": "cli", "CLAUDE_CONFIG_DIR": "/data/claude/"},
        {"session_id": SESSION, "transcript_path": f"/data/claude/projects/-shop/{SESSION}.jsonl"},
    ),
    "on Windows": (
        {"CLAUDE_CODE_ENTRYPOINT": "cli"},
        {"session_id": SESSION, "transcript_path": rf"C:\Users\Ada\.claude\projects\C--shop\{SESSION}.jsonl"},
    ),
    "2.1.326": (
        {"CLAUDE_CODE_ENTRYPOINT": "cli", "CLAUDE_CODE_SESSION_ID": SESSION},
        {"session_id": SESSION, "transcript_path": f"/elsewhere/{SESSION}.jsonl"},
    ),
}


class Agents(ClaudeCode):
    """Calls the command as an agent with these variables and fields does."""

    variables: dict[str, str] = {}
    fields: dict[str, object] = {}

    def become(self, agent):
        """Be this agent from now on."""
        self.variables, self.fields = agent
        self.agent = "codex" if agent in CODEXES.values() else "claude"
        return self

    def env(self):
        own = {name: value for name, value in os.environ.items() if not name.startswith("CLAUDE")}
        return own | {"CLAUDE_PROJECT_DIR": str(self.folder)} | self.variables | {"XDG_RUNTIME_DIR": str(self.runtime)}

    def tell(self, event, **fields):
        """Send an event; return the exit code, stdout and stderr."""
        fields = {"hook_event_name": event, **self.fields, **fields}
        self.variables = {name: value for name, value in self.variables.items() if name != "CLAUDE_PROJECT_DIR"}
        done = self.call(json.dumps(fields).encode())
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def try_command(self, command, **more):
        """Send a call of Bash."""
        return self.tell("PreToolUse", tool_name="Bash", tool_input={"command": command, **more})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    folder.chmod(0o755)
    (folder / "rules.py").write_text(RULES)
    made = Agents(folder, Path(tempfile.mkdtemp(prefix="hl")), "--timeout", "5")
    yield made
    made.close()


@pytest.fixture
def agent(place):
    """An agent that calls the command, with a resident process."""
    place.options = ("rules.py", "--timeout", "5")
    return place


def denies(answer):
    """Return the reason of a denial that all agents obey."""
    code, stdout, stderr = answer
    assert (code, stdout) == (2, ""), answer
    assert stderr.startswith("Hookline: ")
    assert stderr.strip() != "Hookline:"
    return stderr


DENIED = {
    "touch blocked": "No.",
    "touch asked": "May it run?",
    "touch asked denied": "Not on a Friday.",
    "touch stopped": "Enough.",
    "touch ended": "The budget is used up.",
    "touch answered": "42",
    "touch renamed": "other",
    "touch broken": "hook 'judge' failed",
    "touch slow": "did not answer within",
    "touch json": '{"decision": "allow"}',
    "touch half": "half of a pair: ",
    "touch original asked": "May it run?",
    "touch wider": "changed this call",
}


@each_case(("host", "command"), [(host, command) for host in BOTH for command in DENIED])
def test_whatever_a_guard_does_not_allow_is_denied_in_the_way_that_all_agents_obey(agent, host, command):
    reason = denies(agent.become(host).try_command(command))
    assert DENIED[command] in reason or (command == "touch original asked" and DENIED["touch wider"] in reason)
    assert "hunter2" not in reason


@each_case("host", (OTHERS | CODEXES).values())
def test_a_question_is_a_denial_unless_the_agent_is_known_to_be_claude_code(agent, host):
    assert "This needs an approval" in denies(agent.become(host).try_command("touch asked"))


@each_case("host", BOTH)
def test_an_allowed_call_gets_no_decision(agent, host):
    agent.become(host)
    assert agent.try_command("touch plain") == (0, "", "")
    assert agent.try_command("touch asked approved") == (0, "", "")


def test_a_changed_call_is_denied_where_the_change_may_not_be_applied(agent):
    for mode in ("default", "bypassPermissions"):
        variables, fields = OTHERS["Qwen Code"]
        agent.become((variables, fields | {"permission_mode": mode}))
        assert "changed this call" in denies(agent.try_command("touch original"))
    agent.options = (*agent.options, "--allow-rewritten", "--once")
    assert "changed this call" in denies(agent.try_command("touch original"))


@each_case("host", CODEXES.values())
def test_codex_gets_a_changed_call_in_the_only_form_that_it_applies(agent, host):
    code, stdout, stderr = agent.become(host).try_command("touch original")
    assert (code, stderr) == (0, "")
    assert json.loads(stdout) == {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "allow",
            "updatedInput": {"command": "touch copy"},
        }
    }


@each_case("host", CLAUDES.values())
def test_claude_code_is_recognised_and_gets_its_own_answers(agent, host):
    code, stdout, _ = agent.become(host).try_command("touch asked")
    assert (code, json.loads(stdout)["hookSpecificOutput"]["permissionDecision"]) == (0, "ask")
    code, stdout, _ = agent.try_command("touch ended")
    assert (code, json.loads(stdout)["continue"]) == (0, False)


@each_case(
    "data",
    [
        # Gemini CLI
        {
            "session_id": SESSION,
            "transcript_path": "/home/ada/.gemini/tmp/shop/chats/session-2026-11-17T17-47-98c4945e.jsonl",
            "cwd": "/shop",
            "hook_event_name": "BeforeTool",
            "timestamp": "2026-11-17T17:47:38.594Z",
            "tool_name": "run_shell_command",
            "tool_input": {"command": "touch plain", "is_background": False},
        },
        # Copilot CLI in its own dialect
        {
            "sessionId": SESSION,
            "timestamp": 1794937646661,
            "cwd": "/shop",
            "toolName": "bash",
            "toolArgs": {"command": "touch plain"},
        },
        # Cursor
        {
            "conversation_id": "1",
            "generation_id": "2",
            "session_id": SESSION,
            "hook_event_name": "preToolUse",
            "cursor_version": "2.0",
            "workspace_roots": ["/shop"],
            "tool_name": "Shell",
            "tool_input": {"command": "touch plain"},
        },
        {
            "conversation_id": "1",
            "session_id": SESSION,
            "hook_event_name": "beforeShellExecution",
            "cursor_version": "2.0",
            "command": "touch plain",
        },
        # Cline
        {"clineVersion": "3", "hookName": "tool_call", "preToolUse": {"toolName": "execute_command"}},
    ],
)
def test_an_event_in_the_form_of_another_agent_is_denied(agent, data):
    for variables in ({}, INHERITED):
        agent.become((variables, {}))
        done = agent.call(json.dumps(data).encode())
        denies((done.returncode, done.stdout.decode(), done.stderr.decode()))


@each_case(
    ("tool", "given"),
    [
        ("run_shell_command", {"command": "touch plain"}),
        ("apply_patch", {"command": "*** Begin Patch"}),
        ("exec", {"code": "1"}),
        ("mcp_files_read", {"path": "a"}),
        ("bash", {"command": "touch plain"}),
        ("Bash", {"cmd": "touch plain"}),
        ("Bash", {"command": ["touch", "plain"]}),
        ("Read", {"target": "/etc/passwd"}),
        ("Edit", {"input": "*** Begin Patch"}),
    ],
)
def test_a_tool_that_no_guard_knows_is_denied_outside_claude_code(agent, tool, given):
    for host in (OTHERS["Qwen Code"], CODEXES["Codex"]):
        denies(agent.become(host).tell("PreToolUse", tool_name=tool, tool_input=given))
    code, stdout, _ = agent.become(CLAUDES["1.0.128"]).tell("PreToolUse", tool_name="TodoWrite", tool_input={})
    assert (code, stdout) == (0, "")


@each_case("path", [".github/hooks/guard.json", ".codex/config.toml", ".claude/settings.json", "rules.py"])
def test_another_agent_cannot_change_the_settings_that_make_it_ask(agent, path):
    call = {"tool_name": "Write", "tool_input": {"path": str(agent.folder / path), "file_text": "{}"}}
    agent.become(OTHERS["Copilot CLI"])
    assert "decides what this session may do" in denies(agent.tell("PreToolUse", **call))


def test_a_tool_of_another_agent_is_judged_under_the_name_that_an_option_gives_it(agent):
    agent.become(OTHERS["Qwen Code"]).options = ("rules.py", "--once", "--tool", "run_shell_command=shell")
    call = {"tool_name": "run_shell_command", "tool_input": {"command": "touch plain"}}
    assert agent.tell("PreToolUse", **call) == (0, "", "")
    call["tool_input"] = {"command": "touch asked"}
    assert "May it run?" in denies(agent.tell("PreToolUse", **call))


@each_case("host", BOTH)
def test_a_result_that_a_hook_changes_is_replaced_by_the_reason_of_a_block(agent, host):
    agent.become(host)
    call = {"tool_name": "Bash", "tool_input": {"command": "cat a"}}
    reason = denies(agent.tell("PostToolUse", **call, tool_response="the secret key"))
    assert "the [hidden] key" in reason
    assert "secret" not in reason
    reason = denies(agent.tell("PostToolUse", **call, tool_response={"content": [{"text": "the secret key"}]}))
    assert "secret" not in reason
    assert "Enough." in denies(agent.tell("PostToolUse", **call, tool_response="ending"))
    assert "hunter2" not in denies(agent.tell("PostToolUse", **call, tool_response="failing"))
    assert "tool_response" in denies(agent.tell("PostToolUse", **call, tool_result={"text_result_for_llm": "secret"}))
    assert agent.tell("PostToolUse", **call, tool_response="nothing") == (0, "", "")


@each_case("host", BOTH)
def test_prompts_are_blocked_and_runs_kept_going_in_other_agents(agent, host):
    agent.become(host)
    assert "No homework here." in denies(agent.tell("UserPromptSubmit", prompt="Do my homework."))
    assert "Call the user." in denies(agent.tell("UserPromptSubmit", prompt="Call Bob."))
    assert "The tests fail." in denies(agent.tell("Stop", stop_hook_active=False))


def test_an_agent_that_is_not_recognised_gets_nothing_on_stdout(agent):
    agent.become(OTHERS["Copilot CLI"])
    assert agent.tell("UserPromptSubmit", prompt="Hello") == (0, "", "")
    code, stdout, stderr = agent.tell("SessionStart", source="startup")
    assert (code, stdout) == (0, "")
    assert "never_called" in stderr
    assert "Not now." in denies(agent.tell("PreCompact", trigger="auto"))
    assert agent.tell("Notification", message="hello") == (0, "", "")


@each_case("host", BOTH)
def test_a_permission_request_is_denied_unless_it_is_approved_as_it_is(agent, host):
    def ask(command):
        return agent.tell("PermissionRequest", tool_name="Bash", tool_input={"command": command})

    agent.become(host)
    assert "Not on a Friday." in denies(ask("denied"))
    assert "changed this call" in denies(ask("edited"))
    assert "hunter2" not in denies(ask("failing"))
    assert ask("plain") == (0, "", "")
    code, stdout, _ = ask("approved")
    allowed = {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow"}}
    assert (code, json.loads(stdout or "{}")) == (
        0,
        {"hookSpecificOutput": allowed} if host in CODEXES.values() else {},
    )


def test_codex_gets_context_notes_and_blocked_compactions_in_its_own_form(agent):
    agent.become(CODEXES["Codex"])
    context = {"hookEventName": "UserPromptSubmit", "additionalContext": "The office is closed."}
    code, stdout, stderr = agent.tell("UserPromptSubmit", prompt="Hello")
    assert (code, json.loads(stdout), stderr) == (0, {"hookSpecificOutput": context}, "")
    code, stdout, stderr = agent.tell("PreCompact", trigger="auto")
    assert (code, json.loads(stdout), stderr) == (0, {"continue": False, "stopReason": "Hookline: Not now."}, "")
    assert agent.tell("Interrupt") == (0, "", "")


@each_case("host", BOTH)
def test_rules_that_cannot_be_loaded_deny_in_every_agent_and_let_it_stop(agent, host):
    agent.become(host)
    for options in ((), ("--once",)):
        agent.options = ("missing.py", *options)
        assert "cannot be loaded" in denies(agent.try_command("touch plain"))
        denies(agent.tell("UserPromptSubmit", prompt="Hello"))
        code, stdout, _ = agent.tell("Stop", stop_hook_active=False)
        assert (code, stdout) == (0, "")


@each_case("host", (*BOTH, CLAUDES["1.0.128"]))
def test_the_answers_are_the_same_without_a_resident_process(agent, host):
    agent.become(host)
    commands = ("touch plain", "touch asked", "touch ended", "touch original", "touch broken", "touch printed")
    resident = [agent.try_command(command) for command in commands]
    agent.options = ("rules.py", "--timeout", "5", "--once")
    assert [agent.try_command(command) for command in commands] == resident
