"""The digest of the rules in force: the same in records, facts, the audit log and explanations."""

import json

import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, observer, reply, tool
from hookline.explain import explain
from hookline.hooks import AuditLogHook, EgressGuard, ObservabilityHook
from hookline.records import RecordHook, read_runs
from hookline.records.rules import rules_of
from hookline.stores import RunStore


@tool(effects=["network"])
def fetch(url: str) -> str:
    """Fetch a page."""
    return "page"


def judge(*hooks):
    """Return the digest of the rules of an agent with these hooks."""
    return rules_of(Agent("a", llm=ScriptedModel([]), hooks=hooks).hooks.stack)


def idle(ctx, request):
    return None


def test_code_arguments_and_options_are_part_of_the_rules():
    @guard(BEFORE_TOOL)
    def first(ctx, request):
        return HookResult.block("no")

    @guard(BEFORE_TOOL)
    def second(ctx, request):
        return None

    assert judge(EgressGuard(["a.com"])) == judge(EgressGuard(["a.com"])) != judge(EgressGuard(["b.com"]))
    assert judge(first) != judge(second)
    assert judge(guard(BEFORE_TOOL, tools="x")(lambda ctx, request: None)) != judge(
        guard(BEFORE_TOOL)(lambda ctx, request: None)
    )
    assert judge(first, second) != judge(second, first)


def test_hooks_that_only_observe_are_no_rules():
    @observer(BEFORE_TOOL)
    def watch(ctx, request):
        pass

    assert judge(watch) == judge() == ""
    assert judge(EgressGuard(["a.com"]), watch) == judge(EgressGuard(["a.com"]))


def test_what_a_hook_remembers_is_not_part_of_the_rules():
    class Counting:
        points = frozenset({BEFORE_TOOL})
        phase = "guard"

        def __init__(self):
            self.count = 0

        def __call__(self, point, ctx, request):
            self.count += 1

    hook = Counting()
    before = judge(hook)
    hook.count = 7
    assert judge(hook) == before == judge(Counting())


def test_a_hook_that_cannot_be_described_does_not_stop_the_run(tmp_path):
    class Odd:
        points = frozenset({BEFORE_TOOL})
        phase = "guard"

        def __init__(self, given=None):
            self.given = Broken()

        def __call__(self, point, ctx, request):
            return None

    class Broken:
        @property
        def __struct_fields__(self):
            raise RuntimeError("not now")

    agent = Agent("a", llm=ScriptedModel([reply("done")]), hooks=[Odd(), ObservabilityHook(tmp_path / "runs.db")])
    assert agent.run("x").reply == "done"
    assert rules_of(agent.hooks.stack) == "unknown"


@pytest.fixture
def judged(tmp_path):
    """Run an agent whose call is blocked, with a record, facts and an audit log."""
    observed = ObservabilityHook(tmp_path / "runs.db")
    audit = AuditLogHook(tmp_path / "audit.jsonl")
    hooks = [EgressGuard(["a.com"]), RecordHook(tmp_path / "records"), observed, audit]
    model = ScriptedModel([call("fetch", url="https://evil.net/x"), reply("done")])
    agent = Agent("a", llm=model, tools=[fetch], hooks=hooks)
    assert agent.run("x").reply == "done"
    observed.flush()
    audit.flush()
    return tmp_path, rules_of(agent.hooks.stack)


def test_every_door_names_the_same_rules(judged):
    folder, rules = judged
    (run,) = read_runs(folder / "records")
    assert explain(run).rules == run.info.rules == rules
    facts = RunStore(folder / "runs.db").db.execute("SELECT DISTINCT rules FROM facts")
    assert facts == [(rules,)]
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert {line["rules"] for line in lines if line["type"] in ("run_start", "verdict")} == {rules}


def test_a_hook_that_joins_a_run_changes_its_rules(tmp_path):
    agent = Agent(
        "a", llm=ScriptedModel([call("fetch", url="x"), call("fetch", url="y"), reply("done")]), tools=[fetch]
    )
    observed, audit = ObservabilityHook(tmp_path / "runs.db"), AuditLogHook(tmp_path / "audit.jsonl")
    agent.hooks.register(observed)
    agent.hooks.register(audit)

    @guard(BEFORE_TOOL)
    def late(ctx, request):
        return HookResult.block("late")

    @guard(BEFORE_TOOL)
    def early(ctx, request):
        if request.arguments["url"] == "x":
            agent.hooks.register(late)
        return HookResult.block("early")

    agent.hooks.register(early)
    agent.run("x")
    observed.flush()
    audit.flush()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    first, *_, last = [line["rules"] for line in lines if line["type"] == "verdict"]
    assert first != last == rules_of(agent.hooks.stack)
    facts = RunStore(tmp_path / "runs.db").db.execute("SELECT rules FROM facts WHERE kind = 'fire' ORDER BY seq")
    assert [facts[0][0], facts[-1][0]] == [first, last]
