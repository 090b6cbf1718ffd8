"""The events that each version of a coding agent really sent get exactly the answers that it obeys.

``make test-agents RECORD=1`` and ``make test-adapters ONLY=claude_real RECORD=1`` write the events. Cursor needs an
account, so its events are those of ``test_codecs.py``, which were read in its code.
"""

import json
from pathlib import Path

import pytest

from hookline import AFTER_TOOL, BEFORE_TOOL, HookResult, guard, hook
from hookline._kernel.registry import HookRegistry
from hookline.adapters.coding_agents.codecs import codec_of
from hookline.adapters.coding_agents.judge import Judge
from hookline.adapters.coding_agents.options import AGENTS
from hookline.adapters.coding_agents.rules import Rules

from ...cases import each_case

FILES = sorted((Path(__file__).parent / "payloads").glob("*.json"))
SHELLS = ("Bash", "bash", "run_shell_command")
REASON = "Not this one."


@guard(BEFORE_TOOL)
def deny(ctx, request):
    return HookResult.block(REASON)


@hook(BEFORE_TOOL, tools="shell")
def rewrite(ctx, request):
    return request.replace(arguments={**request.arguments, "command": "touch copy"})


@hook(AFTER_TOOL)
def redact(ctx, result):
    return result.with_text(result.text.replace("SECRET", "[hidden]")) if "SECRET" in result.text else None


def name_of(event):
    """The agent's name of an event."""
    return event.get("hook_event_name", event.get("event"))


def with_exit_code(text):
    """An answer by exit code 2."""
    return 2, f"Hookline: {text}\n", None


def with_json(value):
    """An answer by JSON."""
    return 0, "", value


def nothing(agent):
    """The answer without a decision."""
    return with_json({} if agent == "opencode" else None)


def denied(agent, event):
    """The answer that denies a call."""
    if agent == "opencode":
        return with_json({"deny": REASON})
    if agent in ("claude", "copilot"):
        decision = {"permissionDecision": "deny", "permissionDecisionReason": REASON}
        return with_json({"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}})
    return with_exit_code(REASON)


def rewritten(agent, event):
    """The answer that changes a command."""
    if agent == "opencode":
        return with_json({"args": {**event["args"], "command": "touch copy"}})
    if agent == "qwen":
        return with_exit_code("A hook changed this call, and this coding agent does not apply the change.")
    changed = {**event["tool_input"], "command": "touch copy"}
    if agent == "gemini":
        return with_json({"hookSpecificOutput": {"hookEventName": "BeforeTool", "tool_input": changed}})
    decision = {"permissionDecision": "allow", "updatedInput": changed}
    if agent == "claude":
        decision |= {"permissionDecision": "ask", "permissionDecisionReason": "A hook of Hookline changed this call."}
    return with_json({"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}})


def redacted(agent, event):
    """The answer that replaces a result."""
    if agent == "opencode":
        return with_json({"output": hidden(event["output"])})
    if agent == "copilot":
        found = event["tool_result"]
        text = hidden(found["text_result_for_llm"])
        return with_json({"modifiedResult": {"resultType": found["result_type"], "textResultForLlm": text}})
    response = event["tool_response"]
    if agent == "claude":
        specific = {"hookEventName": "PostToolUse", "updatedToolOutput": json.loads(hidden(json.dumps(response)))}
        return with_json({"hookSpecificOutput": specific})
    if agent == "codex":
        text = hidden(response if isinstance(response, str) else json.dumps(response))
        return with_exit_code(f"A hook changed this result to:\n{text}".rstrip())
    shown = response["llmContent"]
    text = hidden(shown if isinstance(shown, str) else "".join(part["text"] for part in shown))
    return with_json(
        {"decision": "deny", "reason": text} if agent == "gemini" else {"continue": False, "stopReason": text}
    )


def hidden(text):
    return text.replace("SECRET", "[hidden]")


def expected(rule, agent, event):
    """Return the answer that an event must get."""
    kind = codec_of(agent).events.get(name_of(event))
    tool = event.get("tool_name", event.get("tool"))
    if rule is deny and kind == "before_tool":
        return denied(agent, event)
    if rule is rewrite and kind == "before_tool" and tool in SHELLS:
        return rewritten(agent, event)
    if rule is redact and kind == "after_tool" and "SECRET" in json.dumps(event):
        return redacted(agent, event)
    return nothing(agent)


def cases():
    """Each recorded event."""
    for file in FILES:
        recorded = json.loads(file.read_text())
        for kept in recorded["events"]:
            event = kept["event"]
            yield recorded["agent"], kept["variables"], event


@pytest.mark.parametrize("rule", [deny, rewrite, redact], ids=["deny", "rewrite", "redact"])
@each_case(("agent", "variables", "event"), cases())
async def test_a_recorded_event_gets_the_answer_that_the_agent_obeys(agent, variables, event, rule):
    tools = ("words-lookup=lookup",) if agent == "copilot" else ()  # as in the recorded session
    judge = Judge(Rules(HookRegistry([rule])), codec_of(agent), tools)
    answer = await judge.answer(variables, json.dumps(event).encode())
    found = json.loads(answer.stdout) if answer.stdout else None
    assert (answer.code, answer.stderr.decode(), found) == expected(rule, agent, event)


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent != "cursor"])
def test_each_agent_has_events_of_all_kinds(agent):
    files = [file for file in FILES if file.stem.startswith(f"{agent}-")]
    assert files
    for file in files:
        events = [kept["event"] for kept in json.loads(file.read_text())["events"]]
        kinds = {codec_of(agent).events.get(name_of(event)) for event in events}
        assert {"prompt", "before_tool", "after_tool"} <= kinds
        assert any(event.get("tool_name", event.get("tool")) in SHELLS for event in events)
        assert any("SECRET" in json.dumps(event) for event in events if event.get("tool_input", event.get("args")))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_recorded_events_name_nothing_of_the_machine(file):
    for name in ("/root", "/home/", "/work", "pytest", "/Users"):
        assert name not in file.read_text().replace("/home/ada", "")
