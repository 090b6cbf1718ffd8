"""A run inside a run: its hooks, plugin filter and events (DESIGN 7.10)."""

from hookline import Agent, AgentContext, HookResult, ScriptedModel, call, guard, observer, tool
from hookline.run.events import RunFinished, RunStarted, SubagentEvent


def nested(child, **options):
    @tool
    async def ask_other(ctx: AgentContext, task: str) -> str:
        """Ask another agent."""
        return (await child.arun(task, ctx=ctx, **options)).reply

    return ask_other


@tool
def wipe() -> str:
    """Wipe."""
    return "wiped"


def family(hooks=(), child_hooks=(), **options):
    child = Agent("child", llm=ScriptedModel([call("wipe"), "child done"]), tools=[wipe], hooks=child_hooks)
    return Agent(
        "parent",
        llm=ScriptedModel([call("ask_other", task="go"), "done"]),
        tools=[nested(child, **options)],
        hooks=hooks,
    )


@guard("before_tool", tools="wipe")
def no_wiping(ctx, payload):
    return HookResult.block("never")


def test_the_parents_guards_hold_in_the_child():
    seen = []

    @observer("after_tool")
    def see(ctx, payload):
        seen.append((ctx.agent_name, payload.name, payload.outcome))

    family([no_wiping, see]).run("x")
    assert seen == [("child", "wipe", "blocked"), ("parent", "ask_other", "ok")]


def test_a_caller_may_say_otherwise():
    seen = []

    @observer("after_tool")
    def see(ctx, payload):
        seen.append(payload.outcome)

    family([no_wiping], [see], inherit=False).run("x")
    assert seen == ["ok"]


def test_a_hook_that_both_have_is_called_once():
    calls = []

    @observer("before_tool", tools="wipe")
    def count(ctx, payload):
        calls.append(ctx.agent_name)

    family([count], [count]).run("x")
    assert calls == ["child"]


def test_the_events_of_the_whole_tree_are_in_one_stream_without_gaps():
    log = []
    family().run("x", sinks=[log.append])
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    inner = [event for event in log if isinstance(event, SubagentEvent)]
    assert isinstance(inner[0].event, RunStarted)
    assert isinstance(inner[-1].event, RunFinished)
    top = log[0].ids
    assert {event.ids.parent_run_id for event in inner} == {top.run_id}
    assert {event.ids.agent for event in inner} == {"child"}
