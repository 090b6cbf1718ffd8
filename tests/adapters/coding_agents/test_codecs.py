"""Each coding agent gets the decisions of hooks in the form that it obeys."""

import json

import pytest

from hookline import AFTER_TOOL, BEFORE_TOOL, HookResult, guard, hook
from hookline._kernel.registry import HookRegistry
from hookline.adapters.coding_agents.codecs import codec_of
from hookline.adapters.coding_agents.judge import Judge
from hookline.adapters.coding_agents.options import AGENTS
from hookline.adapters.coding_agents.rules import Rules
from hookline.hooks import PathGuard, SensitiveDataHook
from hookline.points import APPROVAL_REQUESTED, ON_RUN_END, ON_RUN_START, ON_STOP

from . import scripted
from .scripted import CLAUDE, COPILOT, CURSOR, SESSION, call_event, prompt_event, result_event, shell_event, stop_event


def file_event(agent, path):
    """A file that is written."""
    tool, name, text = {
        "claude": ("Write", "file_path", "content"),
        "copilot": ("Write", "path", "file_text"),
        "cursor": ("Write", "path", "content"),
        "gemini": ("write_file", "file_path", "content"),
        "opencode": ("write", "filePath", "content"),
        "qwen": ("write_file", "file_path", "content"),
    }.get(agent, ("apply_patch", "command", ""))
    patch = f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch\n"
    return call_event(agent, tool, {name: path, text: "x"} if text else {name: patch})


@hook(BEFORE_TOOL, tools="shell")
def rewrite(ctx, request):
    if "original" in request.arguments["command"]:
        return request.replace(arguments={**request.arguments, "command": "touch copy"})


@guard(BEFORE_TOOL, tools="shell")
def judge(ctx, request):
    command = request.arguments["command"]
    if "blocked" in command:
        return HookResult.block("Not this one.")
    if "asked" in command:
        return HookResult.ask("May it run?")
    if "broken" in command:
        raise RuntimeError("password=hunter2")


@hook(APPROVAL_REQUESTED)
def approver(ctx, request):
    return HookResult.approve() if "approved" in str(request.call.arguments) else None


@hook(AFTER_TOOL)
def redact(ctx, result):
    if "broken" in result.text:
        raise RuntimeError("password=hunter2")
    return result.with_text(result.text.replace("secret", "[hidden]")) if "secret" in result.text else None


@hook(ON_RUN_START)
def prompts(ctx, start):
    return HookResult.end("No homework here.") if "homework" in start.task else None


@hook(ON_STOP)
def again(ctx, stopping):
    return HookResult.keep_going("The tests fail.")


HOOKS = (rewrite, judge, approver, redact, prompts, again)


class Host(scripted.Host):
    """An agent under these hooks."""

    def __init__(self, agent, *hooks):
        super().__init__(agent, Judge(Rules(HookRegistry(hooks or HOOKS)), codec_of(agent)))


@pytest.fixture(params=AGENTS)
def host(request):
    return Host(request.param)


REWRITES = ("claude", "codex", "copilot", "cursor", "gemini", "opencode")


async def test_a_call_that_no_hook_touches_runs_as_it_is(host):
    event = shell_event(host.agent, "ls")
    assert await host.call(event) == ("runs", event.get("tool_input", event.get("args")))


async def test_a_block_denies_with_the_reason(host):
    outcome, reason = await host.call(shell_event(host.agent, "touch blocked"))
    assert outcome == "denied"
    assert "Not this one." in reason


async def test_a_question_is_never_lost(host):
    outcome, reason = await host.call(shell_event(host.agent, "touch asked"))
    assert outcome == ("asks" if host.agent == "claude" else "denied")
    assert "May it run?" in reason
    assert (await host.call(shell_event(host.agent, "touch asked approved")))[0] == "runs"


async def test_a_changed_call_runs_changed_or_not_at_all(host):
    outcome, given = await host.call(shell_event(host.agent, "touch original"))
    if host.agent in REWRITES and host.agent != "claude":
        assert outcome == "runs"
        assert given["command"] == "touch copy"
    else:
        assert outcome == ("asks" if host.agent == "claude" else "denied")


async def test_a_broken_guard_denies_and_tells_no_secret(host):
    outcome, reason = await host.call(shell_event(host.agent, "touch broken"))
    assert outcome == "denied"
    assert "hook 'judge' failed" in reason
    if host.agent != "claude":  # whose user reads the exception
        assert "hunter2" not in host.raw


async def test_a_redacted_result_takes_the_place_of_the_result(host):
    assert await host.read(result_event(host.agent, "plain")) == "plain"
    text = str(await host.read(result_event(host.agent, "the secret key")))
    assert "[hidden] key" in text
    assert "secret" not in text


async def test_a_result_that_cannot_be_judged_is_withheld(host):
    text = str(await host.read(result_event(host.agent, "broken")))
    assert "withheld" in text
    assert "hunter2" not in text


async def test_a_prompt_is_blocked(host):
    found, blocked = await host.send(prompt_event(host.agent, "Do my homework."))
    assert blocked or found.get("decision") == "block" or found.get("continue") is False or "deny" in found
    assert "No homework here." in host.raw
    assert await host.send(prompt_event(host.agent, "Hello.")) == ({}, None)


async def test_a_run_is_kept_going_where_the_agent_can(host):
    await host.send(stop_event(host.agent))
    assert ("The tests fail." in host.raw) == (host.agent != "opencode")


async def test_what_stops_a_run_after_a_call_reaches_the_agent(host):
    @hook(AFTER_TOOL)
    def enough(ctx, result):
        return HookResult.stop("Enough of this.")

    found = str(await Host(host.agent, enough).read(result_event(host.agent, "plain")))
    assert "Enough of this." in found or host.agent == "claude"  # which stops


async def test_the_reason_of_a_guard_comes_before_what_the_agent_cannot_do():
    @guard(BEFORE_TOOL)
    def no_copies(ctx, request):
        return HookResult.block("No copies.") if "copy" in request.arguments["command"] else None

    outcome, reason = await Host("qwen", rewrite, no_copies).call(shell_event("qwen", "touch original"))
    assert (outcome, reason) == ("denied", "Hookline: No copies.\n")


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_path_guard_sees_the_file_that_is_written(agent, tmp_path):
    host = Host(agent, PathGuard(tmp_path, write=True))
    event = file_event(agent, str(tmp_path / "notes.txt"))
    event["cwd"] = str(tmp_path)
    assert (await host.call(event))[0] == "runs"
    assert (await host.call({**event, **file_event(agent, "/etc/passwd"), "cwd": str(tmp_path)}))[0] == "denied"


@pytest.mark.parametrize("agent", [each for each in AGENTS if not codec_of(each).knows_all_tools])
async def test_a_tool_that_no_guard_knows_is_denied_and_the_reason_says_what_to_do(agent):
    outcome, reason = await Host(agent).call({**shell_event(agent, "ls"), "tool_name": "frobnicate"})
    assert outcome == "denied"
    assert "--tool frobnicate=NAME" in reason


@pytest.mark.parametrize(
    ("agent", "tool"),
    [
        ("codex", "multi_agent_v1wait_agent"),
        ("copilot", "read_agent"),
        ("gemini", "complete_task"),
        ("qwen", "agent"),
        ("qwen", "list_agents"),
    ],
)
async def test_the_tools_around_subagents_are_known(agent, tool):
    event = {**shell_event(agent, ""), "tool_name": tool, "tool_input": {"prompt": "Help."}}
    assert (await Host(agent).call(event))[0] == "runs"


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"nonsense", b'{"hook_event_name": "Nonsense", "session_id": "s"}', b"[" * 100_000]
)
async def test_what_is_not_understood_is_denied(agent, data):
    answer = await Host(agent).judge.answer("cli\0\0", data)
    assert (answer.code, answer.stdout) == (2, b"")
    assert answer.stderr.startswith(b"Hookline: the input is not an event of ")


async def test_a_redacted_result_keeps_its_shape():
    host = Host("claude", SensitiveDataHook())
    event = result_event("claude", {"stdout": "mail ada@example.com", "stderr": "", "interrupted": False})
    shown = await host.read(event)
    assert shown.keys() == {"stdout", "stderr", "interrupted"}
    assert shown["stdout"].startswith("mail [")
    assert "ada@" not in json.dumps(shown)


async def test_an_expanded_prompt_is_judged_like_a_typed_one():
    host = Host("claude")
    event = {**CLAUDE, "hook_event_name": "UserPromptExpansion", "prompt": "Do my homework.", "command_name": "x"}
    assert (await host.send(event))[0]["decision"] == "block"


async def test_cursor_asks_its_user_about_commands_and_ignores_a_question_about_an_mcp_tool():
    @guard(BEFORE_TOOL)
    def asks(ctx, request):
        return HookResult.ask("May it run?")

    host = Host("cursor", asks)
    found, _ = await host.send({**CURSOR, "hook_event_name": "beforeShellExecution", "command": "ls"})
    assert found == {"permission": "ask", "user_message": "May it run?"}
    fields = {"tool_name": "search", "tool_input": "{}"}
    found, _ = await host.send({**CURSOR, "hook_event_name": "beforeMCPExecution", **fields})
    assert found["permission"] == "deny"


@pytest.mark.parametrize(
    ("tool", "given", "changed", "is_applied"),
    [
        ("Shell", {"command": "ls", "cwd": "/shop"}, {"command": "touch copy"}, True),
        ("Write", {"file_path": "a", "content": "b"}, {"path": "copy"}, True),
        ("Write", {"file_path": "a", "content": "b"}, {"content": "copy"}, False),
        ("Grep", {"pattern": "a", "file_path": "."}, {"text": "copy"}, True),
        ("Grep", {"pattern": "a", "file_path": "."}, {"glob": "!.env"}, False),
        ("MCP:search", {"word": "a"}, {"word": "copy", "limit": 1}, True),
        ("MCP:search", {"word": "a"}, {"word": None}, False),
    ],
)
async def test_cursor_gets_a_change_only_if_it_applies_it(tool, given, changed, is_applied):
    @hook(BEFORE_TOOL)
    def changes(ctx, request):
        arguments = {**request.arguments, **changed}
        return request.replace(arguments={name: value for name, value in arguments.items() if value is not None})

    event = {**CURSOR, "hook_event_name": "preToolUse", "tool_name": tool, "tool_input": given}
    outcome, found = await Host("cursor", changes).call(event)
    assert outcome == ("runs" if is_applied else "denied")
    assert ("copy" in str(found)) == is_applied


@pytest.mark.parametrize(("tool", "more"), [("Grep", {"pattern": "key"}), ("List", {}), ("Read", {}), ("Delete", {})])
async def test_a_path_guard_sees_which_file_cursor_means(tool, more, tmp_path):
    host = Host("cursor", PathGuard(tmp_path, write=True))
    event = {**CURSOR, "hook_event_name": "preToolUse", "tool_name": tool, "cwd": str(tmp_path)}
    assert (await host.call({**event, "tool_input": {"file_path": "/etc", **more}}))[0] == "denied"
    if tool != "Delete":
        (tmp_path / "a").touch()
        assert (await host.call({**event, "tool_input": {"file_path": str(tmp_path / "a"), **more}}))[0] == "runs"


async def test_a_result_of_an_mcp_server_is_replaced_as_text():
    for agent, field in (("gemini", "reason"), ("qwen", "stopReason")):
        event = result_event(agent, "")
        event |= {"tool_name": "mcp__words__lookup", "tool_input": {"word": "heron"}}
        event["tool_response"] = {"llmContent": [{"text": "the secret"}], "returnDisplay": "the secret"}
        assert (await Host(agent).send(event))[0][field] == "the [hidden]"


async def test_in_qwen_code_the_event_after_each_call_is_no_prompt_of_the_user():
    seen = []

    @hook(ON_RUN_START)
    def tasks(ctx, start):
        seen.append(start.task)

    host = Host("qwen", tasks)
    for text in ("Do it.", "", ""):
        await host.send(prompt_event("qwen", text))
    assert seen == ["Do it."]


async def test_a_subagent_of_copilot_cli_belongs_to_the_session_that_started_it():
    ends = []

    @hook(ON_RUN_END)
    def replies(ctx, result):
        ends.append((ctx.session.id, result.output))

    inner = {**COPILOT, "agent_id": "helper", "parent_agent_id": SESSION}
    host = Host("copilot", replies)
    await host.send({**inner, "session_id": "helper", "hook_event_name": "UserPromptSubmit", "prompt": "Help."})
    await host.send({**inner, "session_id": "helper", "hook_event_name": "Stop"})
    await host.send({**inner, "hook_event_name": "SubagentStop", "last_assistant_message": "Helped."})
    assert ends == [(SESSION, "Helped.")]


@pytest.mark.parametrize("agent", ["codex", "copilot", "gemini", "qwen"])
async def test_a_reason_to_go_on_that_comes_back_as_a_prompt_belongs_to_the_same_run(agent):
    host = Host(agent)
    await host.send(prompt_event(agent, "Do it."))
    kept = []
    for _ in range(5):
        found, reason = await host.send(stop_event(agent))
        kept.append(reason or found.get("reason"))
        if kept[-1]:
            await host.send(prompt_event(agent, kept[-1].strip()))
    assert [bool(each) for each in kept] == [True, True, True, False, False]


async def test_codex_gets_no_field_that_it_does_not_know():
    host = Host("codex")
    known = {"hookEventName", "permissionDecision", "updatedInput"}
    found, _ = await host.send(shell_event("codex", "touch original"))
    assert found.keys() == {"hookSpecificOutput"}
    assert found["hookSpecificOutput"].keys() == known
