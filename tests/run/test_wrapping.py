"""Context managers of hooks around runs, model calls and tools (DESIGN 4.9)."""

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

from hookline import (
    AFTER_LLM,
    BEFORE_TOOL,
    ON_RUN_END,
    HookResult,
    ModelRequest,
    RunFailedError,
    ToolCallRequest,
    call,
    guard,
    hook,
    tool,
)
from hookline.payloads import RunStart
from hookline.plugins import Plugin
from tests.waiting import until_others_wait

WHERE = ContextVar("where", default="outside")


def named(payload):
    if isinstance(payload, ToolCallRequest):
        return payload.name
    return "model" if isinstance(payload, ModelRequest) else "run"


class Wrapper:
    points = frozenset({ON_RUN_END})
    phase = "observe"

    def __init__(self, name="w"):
        self.name, self.seen = name, []

    def __call__(self, point, ctx, payload):
        pass

    @contextmanager
    def wrap(self, ctx, payload):
        what = named(payload)
        self.seen.append(f"{what} begins")
        token = WHERE.set(what)
        try:
            yield
        except BaseException as error:
            self.seen.append(type(error).__name__)
            raise
        finally:
            WHERE.reset(token)
            self.seen.append(f"{what} is over")


@tool
async def look() -> str:
    """Return the current context variable."""
    return WHERE.get()


@tool
def look_from_a_thread() -> str:
    """Return the current context variable."""
    return WHERE.get()


@tool
async def wait() -> str:
    """Wait."""
    await asyncio.sleep(60)


async def test_wrap_is_entered_and_left_for_the_run_each_model_call_and_each_tool(scripted_agent):
    wrapper = Wrapper()
    await scripted_agent([call("look"), "done"], tools=[look], hooks=[wrapper]).arun("hi")
    assert wrapper.seen == [
        "run begins",
        "model begins",
        "model is over",
        "look begins",
        "look is over",
        "model begins",
        "model is over",
        "run is over",
    ]
    assert WHERE.get() == "outside"


@pytest.mark.parametrize("together", [False, True])
async def test_context_variables_of_wrap_are_visible_in_tools_and_nowhere_else(scripted_agent, together):
    calls = [call("look"), call("look_from_a_thread")]
    turns = [calls, "done"] if together else [*calls, "done"]
    seen = []

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        seen.append(WHERE.get())

    agent = scripted_agent(turns, tools=[look, look_from_a_thread], hooks=[Wrapper(), judge])
    result = await agent.arun("hi")
    assert [m.content for m in result.messages if m.role == "tool"] == ["look", "look_from_a_thread"]
    assert seen == ["run", "run"]
    assert WHERE.get() == "outside"


async def test_wrap_is_not_called_for_a_call_that_does_not_run(scripted_agent):
    wrapper = Wrapper()
    block = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.block("no"))
    await scripted_agent([call("look"), call("nowhere"), "done"], tools=[look], hooks=[wrapper, block]).arun("hi")
    assert "look begins" not in wrapper.seen
    assert "nowhere begins" not in wrapper.seen


async def test_wrap_sees_the_exception_and_cannot_suppress_it(scripted_agent):
    class Swallowing(Wrapper):
        @contextmanager
        def wrap(self, ctx, payload):
            try:
                yield
            except BaseException as error:
                self.seen.append((named(payload), type(error).__name__))

    wrapper = Swallowing()
    with pytest.raises(RunFailedError, match="oh no"):
        await scripted_agent([ValueError("oh no")], hooks=[wrapper]).arun("hi")
    run = scripted_agent([call("wait")], tools=[wait], hooks=[wrapper]).start("hi")
    await until_others_wait()
    run.cancel()
    assert (await run.result()).status == "cancelled"
    assert wrapper.seen == [("model", "ValueError"), ("wait", "CancelledError")]


@pytest.mark.parametrize("where", ["around", "enter", "exit"])
async def test_a_failing_wrap_is_logged_and_affects_nothing_else(scripted_agent, caplog, where):
    class Broken(Wrapper):
        def wrap(self, ctx, payload):
            if where == "around":
                raise ValueError("oh no")
            return self

        def __enter__(self):
            if where == "enter":
                raise ValueError("oh no")

        def __exit__(self, *error):
            raise ValueError("oh no")

    good = Wrapper()
    result = await scripted_agent([call("look"), "done"], tools=[look], hooks=[Broken(), good]).arun("hi")
    assert (result.reply, result.errors) == ("done", ())
    assert good.seen[-1] == "run is over"
    assert "oh no" in caplog.text


async def test_wrap_may_return_none(scripted_agent):
    class Choosy(Wrapper):
        def wrap(self, ctx, payload):
            return super().wrap(ctx, payload) if isinstance(payload, RunStart) else None

    wrapper = Choosy()
    await scripted_agent(["done"], hooks=[wrapper]).arun("hi")
    assert wrapper.seen == ["run begins", "run is over"]


async def test_several_wrappers_are_nested(scripted_agent):
    order = []

    class Noting(Wrapper):
        @contextmanager
        def wrap(self, ctx, payload):
            order.append(f"+{self.name}")
            yield
            order.append(f"-{self.name}")

    await scripted_agent(["done"], hooks=[Noting("a"), Noting("b")]).arun("hi")
    assert order == ["+a", "+b", "+a", "+b", "-b", "-a", "-b", "-a"]


async def test_wrap_of_a_plugin_that_is_not_allowed_is_not_called(scripted_agent):
    wrapper = Wrapper()
    agent = scripted_agent(["a", "b"], plugins=[Plugin("p", [wrapper])])
    await agent.arun("hi", allowed_plugins=[])
    assert wrapper.seen == []
    await agent.arun("hi")
    assert wrapper.seen


async def test_each_attempt_and_each_call_of_the_model_by_a_tool_is_wrapped(scripted_agent):
    @tool
    async def ask(ctx) -> str:
        """Ask."""
        return (await ctx.llm.complete("hm?")).content

    @hook(AFTER_LLM)
    def again(ctx, reply):
        return HookResult.retry("once more") if reply.content == "bad" else None

    wrapper = Wrapper()
    await scripted_agent([call("ask"), "inner", "bad", "done"], tools=[ask], hooks=[wrapper, again]).arun("hi")
    assert wrapper.seen[3:7] == ["ask begins", "model begins", "model is over", "ask is over"]
    assert wrapper.seen.count("model begins") == wrapper.seen.count("model is over") == 4


def test_a_closed_coroutine_exits_its_context_managers(scripted_agent):
    class Noting(Wrapper):
        @contextmanager
        def wrap(self, ctx, payload):
            try:
                yield
            except GeneratorExit:
                self.seen.append(named(payload))
                raise

    wrapper, loop = Noting(), asyncio.new_event_loop()
    task = loop.create_task(scripted_agent([call("wait")], tools=[wait], hooks=[wrapper]).arun("hi"))
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False
    task.get_coro().close()
    loop.close()
    assert wrapper.seen == ["wait", "run"]


async def test_exit_gets_the_exception_and_its_traceback(scripted_agent):
    class Noting(Wrapper):
        def wrap(self, ctx, payload):
            return self if isinstance(payload, ModelRequest) else None

        def __enter__(self):
            pass

        def __exit__(self, kind, error, trace):
            self.seen.append((kind, error, trace))

    wrapper, failure = Noting(), ValueError("oh no")
    with pytest.raises(RunFailedError):
        await scripted_agent([failure], hooks=[wrapper]).arun("hi")
    ((kind, error, trace),) = wrapper.seen
    assert (kind, error) == (ValueError, failure)
    assert trace is not None


@pytest.mark.parametrize("breaks_off", [False, True])
async def test_the_log_names_the_failed_wrapper_and_the_payload(scripted_agent, caplog, breaks_off):
    class Broken(Wrapper):
        def __repr__(self):
            return self.name

        def wrap(self, ctx, payload):
            if not isinstance(payload, ModelRequest):
                return None
            if self.name == "first":
                raise ValueError("oh no")
            return self

        def __enter__(self):
            pass

        def __exit__(self, *error):
            raise ValueError("oh no")

    agent = scripted_agent([OSError("gone") if breaks_off else "done"], hooks=[Broken("first"), Broken("second")])
    if breaks_off:
        with pytest.raises(RunFailedError, match="gone"):
            await agent.arun("hi")
    else:
        await agent.arun("hi")
    assert caplog.messages[:2] == [
        "wrap() of hook first failed for ModelRequest",
        "leaving second failed for ModelRequest",
    ]
