"""DESIGN 6.4: the context is read-only. A hook or a tool cannot change the run through it.

The tests use every public attribute of the context from ``dir()``, so new attributes are covered automatically.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    Agent,
    AgentContext,
    AgentResult,
    Event,
    Message,
    ScriptedModel,
    call,
    hook,
    observer,
    tool,
)
from hookline._kernel.errors import HooklineError
from hookline._kernel.scope import scope_of
from hookline._run.context import context_for_call
from hookline.payloads import AgentState, ErrorInfo, StopSignal, Usage
from hookline.testing import sample
from tests.cases import each_case

NAMES = sorted(name for name in dir(AgentContext) if not name.startswith("_"))

EXCEPTIONS = {
    "llm": "asking the model is what it is for, and its calls are counted",
    "interrupt": "it holds the switch that cancels the run",
}
"""Attributes that change a run, by contract."""

POINTS_TRIED = (
    ON_RUN_START,
    BEFORE_STEP,
    BEFORE_LLM,
    AFTER_LLM,
    BEFORE_TOOL,
    AFTER_TOOL,
    AFTER_STEP,
    ON_STOP,
    ON_RUN_END,
)


class Mine(Event, frozen=True):
    """An event of a hook."""

    text: str = ""


BY_NAME: dict[str, Any] = {"point": BEFORE_STEP, "payload": sample(BEFORE_STEP), "kind": Mine, "budget": None}
BY_TYPE: dict[str, Any] = {
    "Message": Message("user", "hi"),
    "StopSignal": StopSignal("stop_requested", "now"),
    "Usage": Usage(100, 100),
    "ErrorInfo": ErrorInfo("hook", "ValueError", "no"),
    "AgentState": AgentState(messages=[Message("user", "other")]),
    "Event": Mine,
    "Callable": lambda *a, **k: None,
    "float": 0.5,
    "int": 1,
    "bool": True,
}


def plausible(parameter: inspect.Parameter) -> Any:
    """Return a value for a parameter by its name, else by its annotation, else a text."""
    if parameter.name in BY_NAME:
        return BY_NAME[parameter.name]
    annotation = str(parameter.annotation)
    return next((value for name, value in BY_TYPE.items() if name in annotation), "a text")


def call_it(function: Callable[..., Any]) -> Any:
    """Call it with plausible arguments, which it may reject."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        value = plausible(parameter)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.VAR_POSITIONAL):
            given.append(value)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
    with suppress(Exception):
        return function(*given, **named)
    return None


REPLACEMENTS = (None, (), {}, "other", 7, lambda *a, **k: None)


def meddle(ctx: Any, name: str) -> Any:
    """Assign it, delete it, and call it if possible."""
    for value in REPLACEMENTS:
        with suppress(AttributeError, TypeError):
            setattr(ctx, name, value)
    with suppress(AttributeError, TypeError):
        delattr(ctx, name)
    try:
        value = getattr(ctx, name)
    except HooklineError:  # as for the key of a call in a hook
        return None
    return call_it(value) if callable(value) and name not in EXCEPTIONS else None


async def meddle_and_wait(ctx: Any, name: str) -> None:
    made = meddle(ctx, name)
    if inspect.isawaitable(made):
        with suppress(Exception):
            await made


def add(a: int, b: int) -> int:
    return a + b


async def play(*hooks: Any, tools: tuple[Any, ...] = ()) -> tuple[AgentResult, list[Any]]:
    """Return two steps with three calls; the last one gets the context."""
    model = ScriptedModel([[call("add", a=1, b=2), call("add", a=2, b=2), call("look")], "a reply"])
    signals: list[Any] = []

    @observer(ON_RUN_END, priority=-1000)
    def last(ctx: Any, result: Any) -> None:
        signals.append((ctx.state.signals, ctx.state.usage, len(ctx.state.steps), dict(ctx.state.metadata)))

    agent = Agent("a", instructions="Be brief.", llm=model, tools=[add, *(tools or [plain_look])], hooks=[*hooks, last])
    result = await agent.arun("a task", metadata={"user": "ann"})
    return result, [*signals, [request.messages for request in model.requests]]


@tool(name="look")
async def plain_look(ctx: AgentContext) -> str:
    """Look."""
    return "seen"


def summary_of(played: tuple[AgentResult, list[Any]]) -> tuple[Any, ...]:
    result, seen = played
    return result.messages, result.status, result.stop, result.usage, result.errors, result.reply, seen


async def undisturbed() -> tuple[Any, ...]:
    return summary_of(await play())


def test_the_listed_exceptions_exist() -> None:
    assert set(EXCEPTIONS) <= set(NAMES)


def append(self: Any, message: Message) -> None:
    scope_of(self).run_state.append(message)


def set_signals(self: Any, *signals: StopSignal) -> None:
    scope_of(self).run_state.set_signals(signals)


def charge(self: Any, usage: Usage, cost: float | None) -> None:
    scope_of(self).run_state.charge(usage, cost)


@pytest.mark.parametrize("method", [append, set_signals, charge], ids=lambda method: method.__name__)
async def test_the_check_detects_a_method_that_changes_the_run(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = await undisturbed()
    monkeypatch.setattr(AgentContext, method.__name__, method, raising=False)
    nosy = observer(BEFORE_TOOL)(lambda ctx, payload: meddle(ctx, method.__name__))
    assert summary_of(await play(nosy)) != wanted


@each_case("is_async", [False, True])
@each_case("phase", ["rewrite", "guard", "observe"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_hook_cannot_change_the_run_through_its_context(name: str, phase: Any, is_async: bool) -> None:
    tried: list[str] = []

    async def later(point: Any, ctx: Any, payload: Any) -> None:
        tried.append(str(point))
        await meddle_and_wait(ctx, name)

    def at_once(point: Any, ctx: Any, payload: Any) -> None:
        tried.append(str(point))
        made = meddle(ctx, name)
        if inspect.iscoroutine(made):
            made.close()  # a sync hook cannot await it

    nosy = hook(*POINTS_TRIED, phase=phase)(later if is_async else at_once)
    assert summary_of(await play(nosy)) == await undisturbed()
    assert set(tried) == {str(point) for point in POINTS_TRIED}


@each_case("name", NAMES)
async def test_a_tool_cannot_change_the_run_through_its_context(name: str) -> None:
    tried = []

    @tool
    async def look(ctx: AgentContext) -> str:
        """Look."""
        tried.append(name)
        await meddle_and_wait(ctx, name)
        return "seen"

    assert summary_of(await play(tools=(look,))) == await undisturbed()
    assert tried == [name]


@each_case("name", NAMES)
async def test_a_kept_context_does_not_affect_later_runs(name: str) -> None:
    kept = []
    keep = observer(ON_RUN_START)(lambda ctx, start: kept.append(ctx))
    await play(keep)
    (ctx,) = kept
    messages = list(ctx.state.messages)
    await meddle_and_wait(ctx, name)
    assert list(ctx.state.messages) == messages
    assert summary_of(await play()) == await undisturbed()


@each_case("name", [name for name in NAMES if isinstance(getattr(AgentContext, name), property)])
def test_attributes_of_a_context_cannot_be_assigned(name: str) -> None:
    for ctx in (AgentContext(), context_for_call(AgentContext(), print)):  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            setattr(ctx, name, None)
        with pytest.raises(AttributeError):
            delattr(ctx, name)


def test_a_context_accepts_no_new_attributes() -> None:
    with pytest.raises(AttributeError):
        AgentContext().mine = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["append", "open_calls", "set_signals", "charge", "note_cause", "environment", "children"]
)
def test_the_context_has_no_attributes_of_the_loop(name: str) -> None:
    assert not hasattr(AgentContext(), name)


STATE = ("messages", "metadata", "signals", "steps", "errors", "usage", "ids", "system_prompt", "response_format")


@pytest.mark.parametrize("name", STATE)
async def test_the_state_cannot_be_changed_in_place(name: str) -> None:
    def change(ctx: Any, payload: Any) -> None:
        value = getattr(ctx.state, name)
        with pytest.raises(AttributeError):
            setattr(ctx.state, name, ())
        for method in ("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort", "update"):
            with suppress(TypeError, AttributeError, IndexError, KeyError):
                getattr(value, method)()
        with suppress(TypeError, KeyError, IndexError, AttributeError):
            value[0] = value["a"] = 1

    assert summary_of(await play(observer(BEFORE_TOOL, AFTER_LLM)(change))) == await undisturbed()
