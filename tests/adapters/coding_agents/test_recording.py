"""The list of runs about calls of coding agents: whatever prevented one, it is one refusal with a reason."""

import json

import pytest

from hookline import BEFORE_TOOL, HookResult, guard, hook
from hookline._kernel.registry import HookRegistry
from hookline.adapters.coding_agents.codecs import codec_of
from hookline.adapters.coding_agents.judge import Judge
from hookline.adapters.coding_agents.rules import Rules
from hookline.hooks import AuditLogHook, ObservabilityHook
from hookline.points import APPROVAL_REQUESTED
from hookline.stores import RunStore, run_stats

OTHER = {"session_id": "try"}
CLAUDE = {"session_id": "try", "transcript_path": "/home/ada/.claude/projects/-shop/try.jsonl"}
VARIABLES = "cli\0\0"


@guard(BEFORE_TOOL, tools="shell")
def judge(ctx, request):
    command = request.arguments["command"]
    if "blocked" in command:
        return HookResult.block("Not this one.")
    return HookResult.ask("May it run?", reason="it is expensive") if "asked" in command else None


@hook(BEFORE_TOOL, tools="shell")
def rewrite(ctx, request):
    if "changed" in request.arguments["command"]:
        return request.replace(arguments={"command": "ls"})


@hook(APPROVAL_REQUESTED)
def approver(ctx, request):
    command = request.call.arguments["command"]
    if "waits" in command:
        return HookResult.wait()
    if "denied" in command:
        return HookResult.deny("Not on a Friday.", by="anna")
    return HookResult.approve(by="anna") if "approved" in command else None


class Agent:
    """A coding agent that sends events to the rules of a project."""

    def __init__(self, folder, fields):
        self.store, registry = RunStore(folder / "runs.db"), HookRegistry()
        self.list = ObservabilityHook(self.store)
        registry.extend([judge, rewrite, approver, self.list])
        self.judge, self.fields = Judge(Rules(registry), codec_of("claude")), fields

    async def call(self, command, tool="Bash"):
        fields = {"hook_event_name": "PreToolUse", "tool_name": tool, "tool_use_id": "call_1", "prompt_id": "prompt_1"}
        event = self.fields | fields | {"tool_input": {"command": command}}
        answer = await self.judge.answer(VARIABLES, json.dumps(event).encode())
        assert self.list.flush(10)
        return answer

    def refused(self):
        """What the list of refusals says, and the reasons of the statistics."""
        facts = [fact for fact in self.store.facts("prompt_1") if fact.refused]
        return [(fact.hook or fact.source, fact.verb, fact.tool, fact.reason[:28]) for fact in facts]


@pytest.mark.parametrize(
    ("tool", "command", "expected"),
    [
        ("Bash", "blocked", ("judge", "block", "shell", "Not this one.")),
        ("Frobnicate", "x", ("agent-hook", "block", "Frobnicate", "No guard knows the tool Frob")),
        ("Bash", "asked", ("", "denied", "shell", "May it run?\nThis needs an ap")),
        ("Bash", "asked denied", ("anna", "denied", "shell", "Not on a Friday.")),
        ("Bash", "asked waits", ("approver", "denied", "shell", "Nobody has approved this cal")),
        ("Bash", "changed", ("agent-hook", "block", "shell", "A hook changed this call, an")),
    ],
)  # fmt: skip
async def test_a_prevented_call_is_one_refusal_with_a_reason(tmp_path, tool, command, expected):
    agent = Agent(tmp_path, OTHER)
    assert (await agent.call(command, tool)).code == 2
    assert agent.refused() == [expected]
    assert [(each.name, each.outcome) for each in agent.store.calls("prompt_1")] == [(expected[2], "blocked")]
    (counted,) = run_stats(agent.store).refusals
    assert (counted.hook, counted.verb, counted.tool) == expected[:3]
    assert [each.id for each in agent.store.runs(verb=expected[1])] == ["prompt_1"]


async def test_an_approver_that_waits_lets_nothing_run_in_claude_code(tmp_path):
    agent = Agent(tmp_path, CLAUDE)
    assert b'"deny"' in (await agent.call("asked waits")).stdout
    assert agent.refused()[0][1] == "denied"


async def test_a_question_to_the_user_of_claude_code_is_no_refusal(tmp_path):
    agent = Agent(tmp_path, CLAUDE)
    assert b'"ask"' in (await agent.call("asked")).stdout
    assert agent.refused() == []


async def test_an_approval_is_recorded_with_the_approver(tmp_path):
    agent = Agent(tmp_path, OTHER)
    assert (await agent.call("asked approved")).code == 0
    (decided,) = [fact for fact in agent.store.facts("prompt_1") if fact.kind == "approval"]
    assert (decided.outcome, decided.source, decided.tool) == ("approved", "anna", "shell")


async def test_the_start_of_a_session_is_no_run(tmp_path):
    agent = Agent(tmp_path, OTHER)
    start = {"session_id": "try", "hook_event_name": "SessionStart", "source": "startup"}
    await agent.judge.answer(VARIABLES, json.dumps(start).encode())
    assert list(agent.store.runs()) == []
    await agent.call("ls")
    assert [each.id for each in agent.store.runs()] == ["prompt_1"]


@pytest.mark.parametrize(
    ("tool", "command", "expected"),
    [
        ("Bash", "blocked", ("verdict", "block")),
        ("Frobnicate", "x", ("verdict", "block")),
        ("Bash", "asked", ("approval", "denied")),
        ("Bash", "asked denied", ("approval", "denied")),
    ],
)
@pytest.mark.parametrize("has_runs", [True, False])
async def test_the_audit_log_has_what_prevented_a_call(tmp_path, tool, command, expected, has_runs):
    agent = Agent(tmp_path, OTHER)
    audit = AuditLogHook(tmp_path / "audit.jsonl")
    agent.judge.rules.registry.register(audit)
    if not has_runs:
        agent.judge.rules.registry.unregister(agent.list)
    await agent.call(command, tool)
    assert audit.flush(10)
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    last = [each for each in records if each["type"] in ("verdict", "approval")][-1]
    assert last["run_id"] == "prompt_1"
    assert (last["type"], last.get("decision") or last.get("verb")) == expected
