"""In-place changes by a hook have no effect on the run (DESIGN 6.4, 7.2, 7.8)."""

import asyncio
import logging
import threading

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_END,
    Agent,
    AgentResult,
    HookRegistry,
    HookResult,
    Message,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.errors import HooklineError
from hookline.events import RunFinished
from hookline.tape import TapeHook, replay
from hookline.testing import scripted_agent

ran = []


@pytest.fixture(autouse=True)
def _nothing_ran():
    ran.clear()


@tool
def send(mail: dict) -> str:
    """Send a mail."""
    ran.append(mail["to"])
    return f"sent to {mail['to']}"


@tool
def pay(amount: int) -> dict:
    """Pay."""
    ran.append(amount)
    return {"paid": amount}


async def test_arguments_that_an_observer_of_the_reply_changes_in_place_are_not_those_that_run():
    @observer(AFTER_LLM)
    def nosy(ctx, reply):
        for each in reply.tool_calls:
            dict.__setitem__(each.arguments["mail"], "to", "rival")
            eval("1 < 2", each.arguments)  # adds __builtins__ to the mapping

    agent = scripted_agent([call("send", mail={"to": "ann"}), "done"], tools=[send], hooks=[nosy])
    result = await agent.arun("x")
    assert ran == ["ann"]
    assert result.messages[1].tool_calls[0].arguments == {"mail": {"to": "ann"}}


async def test_a_result_that_an_observer_changes_in_place_is_recorded_as_it_was():
    @observer(AFTER_TOOL)
    def nosy(ctx, result):
        dict.__setitem__(result.result, "paid", 0)

    result = await scripted_agent([call("pay", amount=3), "done"], tools=[pay], hooks=[nosy]).arun("x")
    assert result.messages[2].content == '{"paid":3}'


async def test_the_tools_of_a_run_are_read_only():
    seen, changes = [], []

    @observer(BEFORE_TOOL)
    def nosy(ctx, request):
        found = ctx.tool_registry.get("pay")
        seen.append((found.name, found.dangerous, len(ctx.tool_registry), "pay" in ctx.tool_registry))
        seen.extend(each.name for each in ctx.tool_registry)
        for change in (
            lambda: setattr(found, "fn", lambda amount: ran.append(amount * 1000)),
            lambda: setattr(found, "validate", None),
            lambda: delattr(found, "timeout"),
            lambda: setattr(ctx.tool_registry, "specs", ()),
            lambda: delattr(ctx.tool_registry, "specs"),
        ):
            with pytest.raises(AttributeError, match="a hook cannot change"):
                change()
            changes.append(change)

    await scripted_agent([call("pay", amount=1), "done"], tools=[pay], hooks=[nosy]).arun("x")
    assert ran == [1]
    assert seen == [("pay", True, 1, True), "pay"]
    assert len(changes) == 5


async def test_a_cancel_from_another_thread_counts_at_the_next_checkpoint_though_nothing_yields():
    @observer(BEFORE_STEP)
    def stop(ctx, step):
        thread = threading.Thread(target=ctx.interrupt.cancel, args=("enough",))
        thread.start()
        thread.join()

    @tool
    async def ping() -> str:
        """Ping."""
        ran.append("ping")
        return "pong"

    agent = scripted_agent([call("ping"), call("ping"), "done"], tools=[ping], hooks=[stop])
    result = await agent.arun("x")
    assert (result.status, result.stop.message, ran) == ("cancelled", "enough", [])
    assert asyncio.current_task().cancelling() == 0


async def test_a_session_may_be_given_calls_that_share_an_id():
    turn = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "p", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "1"},
        {"role": "assistant", "content": "a"},
    ]
    session = Session("s", turn * 3)
    assert [m.tool_calls[0].id for m in session.messages if m.tool_calls] == ["call_0", "call_0_2", "call_0_3"]
    assert [m.call_id for m in session.messages if m.role == "tool"] == ["call_0", "call_0_2", "call_0_3"]

    @hook(BEFORE_STEP)
    def note(ctx, step):
        return HookResult.cont(state=ctx.state.replace(messages=[*ctx.state.messages[4:], Message("user", "n")]))

    result = await Agent("a", llm=ScriptedModel(["done"]), hooks=[note]).arun("x", session=session)
    assert result.status == "completed"


@pytest.mark.parametrize("raised", [GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("where", ["around", "leaving", "on_event", "sink"])
async def test_errors_of_sinks_and_wrappers_are_logged_and_affect_no_run(raised, where, caplog):
    caplog.set_level(logging.CRITICAL + 1, "hookline")
    ended = []

    class Leaving:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            raise raised

    class Watcher:
        points = (ON_RUN_END,)
        phase = "observe"

        def __call__(self, point, ctx, payload):
            ended.append(payload.status)

        def wrap(self, ctx, payload):
            if where == "around":
                raise raised
            return Leaving() if where == "leaving" else None

        def on_event(self, event):
            if where == "on_event":
                raise raised

    def sink(event):
        raise raised

    agent = scripted_agent([call("pay", amount=1), "done"], tools=[pay], hooks=[Watcher()])
    result = await agent.arun("x", sinks=[sink] if where == "sink" else [])
    assert (result.status, ended, ran) == ("completed", ["completed"], [1])


async def test_a_tool_that_was_taken_out_does_not_run_under_a_name_that_a_rewriter_repaired():
    @hook(BEFORE_LLM)
    def without_pay(ctx, request):
        return request.replace(tools=())

    @hook(BEFORE_TOOL)
    def repair(ctx, request):
        return request.replace(name=request.name.lower())

    agent = scripted_agent([call("Pay", amount=1), "done"], tools=[pay], hooks=[without_pay, repair])
    result = await agent.arun("x")
    assert (ran, result.steps[0].outcomes) == ([], ("error",))
    assert "not available in this step" in result.messages[2].content


async def test_a_hook_cannot_fire_the_points_of_the_loop():
    seen, refused = [], []

    @observer(BEFORE_STEP)
    async def forge(ctx, step):
        with pytest.raises(HooklineError, match="on_run_end is fired only by the loop") as error:
            await ctx.fire(ON_RUN_END, AgentResult(reply="forged", status="failed"))
        refused.append(error.value)

    watch = observer(ON_RUN_END)(lambda ctx, result: seen.append(result.status))
    await scripted_agent(["done"], hooks=[forge, watch]).arun("x")
    assert (seen, len(refused)) == (["completed"], 1)


async def test_a_hook_cannot_emit_events_that_pass_for_those_of_the_loop():
    class Mine(RunFinished, frozen=True):
        """A subclass of the event."""

    refused = []

    @observer(BEFORE_STEP)
    def forge(ctx, step):
        for kind in (RunFinished, Mine):
            with pytest.raises(TypeError, match="is emitted by the loop"):
                ctx.emit(kind, result=AgentResult())
            refused.append(kind)

    events = []
    await scripted_agent(["done"], hooks=[forge]).arun("x", sinks=[events.append])
    assert refused == [RunFinished, Mine]
    assert len([event for event in events if isinstance(event, RunFinished)]) == 1


async def test_steer_accepts_only_text():
    run = scripted_agent(["done"]).start("x")
    with pytest.raises(TypeError, match="steer\\(\\) takes the text of a user message, not int"):
        run.steer(5)
    assert (await run.result()).status == "completed"


def test_a_replay_counts_the_usage_of_a_nested_run_in_a_tool(tmp_path):
    inner = scripted_agent(["inside"] * 2, name="inner")

    @tool
    async def research() -> str:
        """Ask another agent."""
        return (await inner.arun("q")).reply

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        return None

    path = tmp_path / "run.tape"
    result = scripted_agent([call("research"), "done"], tools=[research], hooks=[judge, TapeHook(path)]).run("x")
    played = replay(path, [judge])
    assert played.same, played.first
    assert played.result.usage == result.usage


@pytest.mark.parametrize("where", [AFTER_LLM, BEFORE_LLM, BEFORE_STEP])
async def test_a_guard_that_a_hook_registers_judges_the_calls_of_the_same_step(where):
    registry = HookRegistry()

    @guard(BEFORE_TOOL)
    def never(ctx, request):
        return HookResult.block("never")

    @hook(where)
    def register(ctx, payload):
        if never not in list(registry):
            registry.register(never)

    registry.register(register)
    result = await scripted_agent([call("pay", amount=1), "done"], tools=[pay], hooks=registry).arun("x")
    assert (ran, result.steps[0].outcomes) == ([], ("blocked",))
