"""DESIGN 7.2: the tool runs exactly the arguments that the last guard saw."""

from __future__ import annotations

import asyncio
import copy
import heapq
from collections import Counter
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator

from hookline import (
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    Agent,
    HookResult,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
)
from hookline._base.frozen import json_problem, thaw
from hookline.events import ToolSettled, ToolStarted
from hookline.hooks import ApprovalsHook
from hookline.payloads import ToolCall
from hookline.stores import ApprovalStore
from hookline.testing import EventLog
from tests.properties import examples

quick = settings(max_examples=examples(120), deadline=None)


class Spot(BaseModel):
    x: int
    y: float = 0.5


class Bench:
    """Three tools that record their arguments, then change them in place."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Any]] = []

    def note(self, name: str, **arguments: Any) -> str:
        self.given.append((name, copy.deepcopy(arguments)))
        return "done"

    def tools(self) -> list[Any]:
        bench = self

        def plain(n: int, s: str = "default", flag: bool = False) -> str:
            return bench.note("plain", n=n, s=s, flag=flag)

        async def nested(items: list[int], names: dict[str, Any] = {"a": [1]}) -> str:  # noqa: B006
            bench.note("nested", items=items, names=names)
            await asyncio.sleep(0)
            items.append(99)
            for value in names.values():
                if isinstance(value, list):
                    value.append(99)
            names["spoilt"] = True
            return "done"

        def typed(spot: Spot, day: date, path: PurePosixPath) -> str:
            bench.note("typed", spot=spot.model_dump(), day=day.isoformat(), path=str(path))
            spot.x = 99
            return "done"

        return [plain, nested, typed]


ARGUMENTS = {
    "plain": st.fixed_dictionaries(
        {"n": st.integers(-5, 5) | st.integers(-5, 5).map(str)},
        optional={"s": st.text(max_size=3), "flag": st.sampled_from([True, "yes", 0])},
    ),
    "nested": st.fixed_dictionaries(
        {"items": st.lists(st.integers(0, 9) | st.just("7"), max_size=3)},
        optional={"names": st.dictionaries(st.text(max_size=2), st.lists(st.integers(), max_size=2), max_size=2)},
    ),
    "typed": st.fixed_dictionaries(
        {
            "spot": st.fixed_dictionaries({"x": st.integers(0, 9)}, optional={"y": st.sampled_from([1, "2.5"])}),
            "day": st.dates().map(str),
            "path": st.sampled_from(["b/c", "./d"]),
        }
    ),
}
targets = st.sampled_from(list(ARGUMENTS)).flatmap(lambda name: st.tuples(st.just(name), ARGUMENTS[name]))
batches = st.lists(targets, min_size=1, max_size=3)


async def judged_and_executed(batch: Any, hooks: Any = ()) -> tuple[Bench, dict[str, Any], EventLog]:
    """Run a batch; return the arguments of the tools, those that the last guard saw, and the events."""
    bench, judged, log = Bench(), {}, EventLog()

    @guard(BEFORE_TOOL, priority=-1000)
    def last_guard(ctx: Any, request: Any) -> None:
        judged[request.id] = request.name, thaw(request.arguments)

    turn = [ToolCall(f"c{i}", name, arguments) for i, (name, arguments) in enumerate(batch)]
    agent = Agent("a", llm=ScriptedModel([turn, "done"]), tools=bench.tools(), hooks=[*hooks, last_guard])
    try:
        await agent.arun("a task", sinks=[log])
    except RunFailedError:
        pass
    return bench, judged, log


def same(executed: Any, judged: Any) -> bool:
    return Counter(map(encode, executed)) == Counter(map(encode, judged))


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


@st.composite
def rewriters(draw: st.DrawFn) -> Any:
    """Create a hook that renames calls or changes their arguments."""
    name, arguments = draw(targets)
    only = draw(st.sampled_from([*ARGUMENTS, "*"]))
    style = draw(st.sampled_from(["payload", "result", "mapping", "args", "in place"]))
    is_async = draw(st.booleans())

    def rewrite(ctx: Any, request: Any) -> Any:
        if style == "args":
            return {"args": {**request.arguments, "n": 4}}
        if style == "in place":
            copied = dict(request)
            copied["arguments"].update(arguments)
            return copied
        changed = {"name": name, "arguments": arguments}
        forms = {"payload": request.replace(changed), "result": HookResult.replace(changed), "mapping": changed}
        return forms[style]

    async def rewrite_later(ctx: Any, request: Any) -> Any:
        await asyncio.sleep(0)
        return rewrite(ctx, request)

    return hook(BEFORE_TOOL, tools=only, priority=draw(st.integers(-3, 3)))(rewrite_later if is_async else rewrite)


@pytest.mark.slow
@quick
@given(batches, st.lists(rewriters(), max_size=4))
def test_a_tool_gets_exactly_what_the_last_guard_saw(batch: Any, hooks: list[Any]) -> None:
    results = {}
    after = observer(AFTER_TOOL)(lambda ctx, result: results.update({result.id: result}))
    bench, judged, log = asyncio.run(judged_and_executed(batch, [*hooks, after]))
    ran = {id: result for id, result in results.items() if result.outcome == "ok"}
    assert same(bench.given, [judged[id] for id in ran])
    assert judged.keys() == ran.keys()
    for result in ran.values():
        assert (result.name, result.arguments) == judged[result.id]
    for event in log.of(ToolStarted):
        if event.call_id in ran:
            assert (event.tool, event.arguments) == judged[event.call_id]


@pytest.mark.slow
@quick
@given(batches, st.lists(rewriters(), max_size=2), targets, st.sampled_from(["approve", "edit", "deny"]))
def test_an_edited_call_is_judged_again(batch: Any, hooks: list[Any], edit: Any, answer: str) -> None:
    asked: dict[str, Any] = {}

    @guard(BEFORE_TOOL, priority=1)
    def ask(ctx: Any, request: Any) -> HookResult | None:
        return HookResult.ask("may it?")

    @hook(APPROVAL_REQUESTED)
    async def approver(ctx: Any, request: Any) -> HookResult:
        asked[request.call.id] = request
        await asyncio.sleep(0)
        return HookResult.edit(edit[1]) if answer == "edit" else getattr(HookResult, answer)()

    results = {}
    after = observer(AFTER_TOOL)(lambda ctx, result: results.update({result.id: result}))
    bench, judged, _ = asyncio.run(judged_and_executed(batch, [*hooks, ask, approver, after]))
    ran = [id for id, result in results.items() if result.outcome == "ok"]
    assert same(bench.given, [judged[id] for id in ran])
    if answer == "deny":
        assert not ran
    if answer == "approve":
        assert [(asked[id].call.name, asked[id].call.arguments) for id in ran] == [judged[id] for id in ran]
    for request in asked.values():
        assert request.digest == request.call.digest


async def test_a_guard_that_blocks_the_edit_prevents_the_call() -> None:
    @guard(BEFORE_TOOL)
    def judge(ctx: Any, request: Any) -> HookResult:
        return HookResult.block("too much") if request.arguments["n"] > 5 else HookResult.ask("?")

    approver = hook(APPROVAL_REQUESTED)(lambda ctx, request: HookResult.edit({"n": 6}))
    bench, _, _ = await judged_and_executed([("plain", {"n": 1})], [judge, approver])
    assert not bench.given


async def test_a_tool_that_changes_its_arguments_affects_nothing_else() -> None:
    seen = []
    watch = observer(BEFORE_TOOL, AFTER_TOOL)(lambda ctx, payload: seen.append(payload))
    batch = [("nested", {"items": [1], "names": {"a": [2]}})] * 2 + [("nested", {"items": [1]})] * 2
    bench, judged, log = await judged_and_executed(batch, [watch])
    wanted = [{"items": [1], "names": {"a": [2]}}] * 2 + [{"items": [1], "names": {"a": [1]}}] * 2
    assert [arguments for _, arguments in bench.given] == wanted
    assert [payload.arguments for payload in seen] == wanted * 2
    assert [event.arguments for event in log.of(ToolStarted)] == wanted
    assert [arguments for _, arguments in judged.values()] == wanted


async def test_a_retried_call_is_judged_and_given_its_arguments_again() -> None:
    @hook(AFTER_TOOL)
    def again(ctx: Any, result: Any) -> HookResult | None:
        return HookResult.retry() if result.attempt == 1 else None

    bench, _, _ = await judged_and_executed([("nested", {"items": [1]})], [again])
    assert bench.given == [("nested", {"items": [1], "names": {"a": [1]}})] * 2


async def test_guards_see_the_coerced_values() -> None:
    typed = {"spot": {"x": "1"}, "day": "2030-01-02", "path": "./a"}
    _, judged, _ = await judged_and_executed([("plain", {"n": "3"}), ("typed", typed)])
    assert judged["c0"] == ("plain", {"n": 3, "s": "default", "flag": False})
    assert judged["c1"] == ("typed", {"spot": {"x": 1, "y": 0.5}, "day": "2030-01-02", "path": "a"})


async def test_guards_see_every_default_that_the_tool_will_use() -> None:
    given_to_tool, judged = [], []

    def save(
        day: date = date(2030, 1, 2), path: PurePosixPath = PurePosixPath("a"), spot: Spot = Spot(x=1), n: int = 3
    ) -> str:
        given_to_tool.append({"day": str(day), "path": str(path), "spot": spot.model_dump(), "n": n})
        return "saved"

    judge = guard(BEFORE_TOOL)(lambda ctx, request: judged.append(request.arguments))
    await Agent("a", llm=ScriptedModel([call("save"), "done"]), tools=[save], hooks=[judge]).arun("a task")
    assert judged == given_to_tool


async def test_a_validator_that_changes_its_value_runs_once() -> None:
    given_to_tool, judged = [], []

    def pay(amount: Annotated[int, BeforeValidator(lambda value: int(value) + 1)]) -> str:
        given_to_tool.append(amount)
        return "paid"

    judge = guard(BEFORE_TOOL)(lambda ctx, request: judged.append(request.arguments["amount"]))
    agent = Agent("a", llm=ScriptedModel([call("pay", amount=1), "done"]), tools=[pay], hooks=[judge])
    await agent.arun("a task")
    assert given_to_tool == judged


async def test_an_invalid_default_is_passed_as_judged() -> None:
    given_to_tool = []

    def find(words: list[str], limit: int = None) -> str:  # type: ignore[assignment]
        given_to_tool.append({"words": words, "limit": limit})
        return "found"

    agent = Agent("a", llm=ScriptedModel([call("find", words=["a"]), "done"]), tools=[find])
    await agent.arun("a task")
    assert given_to_tool == [{"words": ["a"], "limit": None}]


@pytest.mark.parametrize("wrong", ["text", "[1]", {"n": "many"}, {"m": 1}, {}])
async def test_guards_are_not_called_for_invalid_arguments(wrong: Any) -> None:
    bench, judged, _ = await judged_and_executed([("plain", wrong), ("plain", {"n": 1})])
    assert judged.keys() == {"c1"}
    assert [arguments["n"] for _, arguments in bench.given] == [1]


def change_by_eval(arguments: Any) -> None:
    eval("1 < 2", arguments)


# What C code does to a dict without asking its methods. ``eval`` adds ``__builtins__`` to its globals.
CHANGES_BY_C = {
    "eval": change_by_eval,
    "dict.__setitem__": lambda arguments: dict.__setitem__(arguments, "items", [7]),
    "dict.update": lambda arguments: dict.update(arguments, items=[7]),
    "dict.clear": dict.clear,
    "nested": lambda arguments: dict.__setitem__(arguments["names"], "a", True),
}
GIVEN = {"items": [3, 1, 2], "names": {"a": 1}}


@pytest.mark.parametrize("change", CHANGES_BY_C.values(), ids=CHANGES_BY_C)
@pytest.mark.parametrize("phase", [guard, observer])
async def test_a_call_whose_arguments_were_changed_in_place_does_not_run(change: Any, phase: Any) -> None:
    @phase(BEFORE_TOOL, priority=1)
    def spoil(ctx: Any, request: Any) -> None:
        change(request.arguments)

    results: list[Any] = []
    after = observer(AFTER_TOOL)(lambda ctx, result: results.append(result))
    bench, _, _ = await judged_and_executed([("nested", GIVEN)], [spoil, after])
    assert not bench.given
    assert [(result.outcome, result.error) for result in results] == [
        ("blocked", "Blocked: a hook changed the arguments of this call in place.")
    ]


@pytest.mark.parametrize("change", CHANGES_BY_C.values(), ids=CHANGES_BY_C)
async def test_an_approver_cannot_change_the_arguments_in_place(change: Any) -> None:
    ask = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.ask("may it?"))

    @hook(APPROVAL_REQUESTED)
    def approver(ctx: Any, request: Any) -> HookResult:
        change(request.call.arguments)
        return HookResult.approve()

    bench, _, _ = await judged_and_executed([("nested", GIVEN)], [ask, approver])
    assert not bench.given


@pytest.mark.parametrize("change", CHANGES_BY_C.values(), ids=CHANGES_BY_C)
async def test_in_place_changes_by_a_rewriter_do_not_change_the_call(change: Any) -> None:
    bench, judged = Bench(), []

    @hook(BEFORE_TOOL)
    def spoil(ctx: Any, request: Any) -> None:
        change(request.arguments)

    judge = guard(BEFORE_TOOL)(lambda ctx, request: judged.append(request.arguments))
    model = ScriptedModel([ToolCall("c0", "nested", GIVEN), "done"])
    result = await Agent("a", llm=model, tools=bench.tools(), hooks=[spoil, judge]).arun("a task")
    assert judged == [GIVEN]
    assert bench.given == [("nested", GIVEN)]
    assert result.messages[1].tool_calls[0].arguments == GIVEN
    assert model.requests[1].messages[1].tool_calls[0].arguments == GIVEN


@pytest.mark.parametrize("change", [heapq.heapify, heapq.heappop, lambda rows: list.append(rows, 9)])
@pytest.mark.parametrize("phase", [hook, guard])
async def test_c_code_cannot_change_a_list_in_the_arguments(change: Any, phase: Any) -> None:
    refused: list[Any] = []

    @phase(BEFORE_TOOL, priority=1)
    def spoil(ctx: Any, request: Any) -> None:
        with pytest.raises(TypeError) as caught:
            change(request.arguments["items"])
        refused.append(caught.value)

    bench, judged, _ = await judged_and_executed([("nested", GIVEN)], [spoil])
    assert len(refused) == 1
    assert judged == {"c0": ("nested", GIVEN)}
    assert bench.given == [("nested", GIVEN)]


# Values that JSON cannot express: a guard or an approver would see ``null`` or ``?`` where the tool gets the value.

INF, NAN, HALF = float("inf"), float("nan"), "half \ud83d"


class Offer(BaseModel):
    limit: float | None = None
    notes: dict[str, str] = {}


NOT_JSON: dict[str, tuple[dict[str, Any], str]] = {
    "a word for infinity": ({"limit": "inf"}, "limit: Infinity is not a number in JSON"),
    "a word for minus infinity": ({"limit": "-Infinity"}, "limit: -Infinity is not a number in JSON"),
    "a word for not a number": ({"limit": "nan"}, "limit: NaN is not a number in JSON"),
    "infinity": ({"limit": INF}, "limit: Infinity is not a number in JSON"),
    "in a model": ({"offer": {"limit": "inf"}}, "offer.limit: Infinity is not a number in JSON"),
    "in a list": ({"prices": [1, "2", NAN]}, "prices.2: NaN is not a number in JSON"),
    "in any value": ({"extra": {"deep": [INF]}}, "extra.deep.0: Infinity is not a number in JSON"),
    "half a character": ({"text": HALF}, "text: half of a character (a lone surrogate) is not valid Unicode"),
    "half a character in a model": (
        {"offer": {"notes": {"a": HALF}}},
        "offer.notes.a: half of a character (a lone surrogate) is not valid Unicode",
    ),
    "half a character as a key": (
        {"extra": {HALF: 1}},
        "extra.half ?: half of a character (a lone surrogate) is not valid Unicode",
    ),
}


class Desk:
    """A tool that takes many types, behind a guard, an approver and an edit."""

    def __init__(self, arguments: dict[str, Any], edit: dict[str, Any] | None = None, *hooks: Any) -> None:
        self.executed: list[dict[str, Any]] = []
        self.judged: list[Any] = []
        self.asked: list[Any] = []

        def pay(
            limit: float | None = None,
            offer: Offer | None = None,
            prices: list[float] | None = None,
            extra: Any = None,
            text: str = "",
        ) -> str:
            self.executed.append({"limit": limit, "offer": offer, "prices": prices, "extra": extra, "text": text})
            return "paid"

        @guard(BEFORE_TOOL)
        def judge(ctx: Any, request: Any) -> HookResult:
            self.judged.append(request.arguments)
            return HookResult.ask("may it?")

        @hook(APPROVAL_REQUESTED)
        def approver(ctx: Any, request: Any) -> HookResult:
            self.asked.append(request.digest)
            return HookResult.approve() if edit is None else HookResult.edit(edit)

        llm = ScriptedModel([ToolCall("c", "pay", arguments), "done"])
        self.agent = Agent("a", llm=llm, tools=[pay], hooks=[judge, approver, *hooks])

    async def answer(self) -> str:
        """Return what the model reads as the result of its call."""
        result = await self.agent.arun("pay")
        assert result.status == "completed"
        return result.messages[2].content


@pytest.mark.parametrize(("arguments", "problem"), NOT_JSON.values(), ids=NOT_JSON)
async def test_arguments_that_json_cannot_express_are_refused_with_a_message_to_the_model(
    arguments: dict[str, Any], problem: str
) -> None:
    desk = Desk(arguments)
    assert await desk.answer() == f"Invalid arguments for pay: {problem}"
    assert (desk.judged, desk.asked, desk.executed) == ([], [], [])


@pytest.mark.parametrize(("arguments", "problem"), NOT_JSON.values(), ids=NOT_JSON)
async def test_neither_a_rewriter_nor_an_approver_can_put_them_into_a_call(
    arguments: dict[str, Any], problem: str
) -> None:
    rewrite = hook(BEFORE_TOOL)(lambda ctx, request: HookResult.replace({"arguments": arguments}))
    rewritten, edited = Desk({}, None, rewrite), Desk({}, arguments)
    assert await rewritten.answer() == f"Invalid arguments for pay: {problem}"
    # Words are valid JSON, and only the tool's types make them infinite. Other edits are a failure of the approver.
    expected = f"Invalid arguments for pay: {problem}" if json_problem(arguments) is None else "The approval failed."
    assert await edited.answer() == expected
    assert (rewritten.executed, edited.executed) == ([], [])


async def test_a_default_that_json_cannot_express_is_left_to_the_function() -> None:
    seen: list[Any] = []

    def pay(amount: int, limit: float = INF) -> str:
        seen.append((amount, limit))
        return "paid"

    judge = guard(BEFORE_TOOL)(lambda ctx, request: seen.append(request.arguments))
    await Agent("a", llm=ScriptedModel([call("pay", amount=1), "done"]), tools=[pay], hooks=[judge]).arun("pay")
    assert seen == [{"amount": 1}, (1, INF)]


async def test_an_argument_changed_in_place_from_none_to_infinity_is_noticed() -> None:
    change = observer(BEFORE_TOOL)(lambda ctx, request: dict.__setitem__(request.arguments, "limit", INF))
    desk = Desk({"limit": None}, None, change)
    assert await desk.answer() == "Blocked: a hook changed the arguments of this call in place."
    assert desk.executed == []


async def test_a_permission_for_exactly_none_is_not_one_for_infinity(tmp_path: Path) -> None:
    store, executed = ApprovalStore(tmp_path / "approvals.db"), []

    def pay(limit: float | None) -> str:
        executed.append(limit)
        return "paid"

    ask = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.ask("may it?"))

    async def run(limit: Any, decision: str) -> None:
        llm = ScriptedModel([call("pay", limit=limit), "done"])
        agent = Agent("a", llm=llm, tools=[pay], hooks=[ask, ApprovalsHook(store, seconds=30)])
        running = asyncio.ensure_future(agent.arun("pay"))
        while not running.done() and not (rows := store.rows(status="pending")):
            await asyncio.sleep(0.01)
        if not running.done():
            remember: Any = "always" if decision == "approve" else "once"
            store.decide(rows[0].id, decision=decision, digest=rows[0].digest, by="ann", remember=remember)
        await running

    await run(None, "approve")
    for other in ("inf", "-inf", "nan", INF, 0):
        await run(other, "deny")
    await run(None, "deny")
    assert executed == [None, None]


@pytest.mark.parametrize("by_hook", [False, True], ids=["of a tool", "of a hook"])
async def test_a_result_with_infinity_is_not_shown_as_null(by_hook: bool) -> None:
    value, seen = {"a": INF, "rows": [NAN, -INF, None]}, []

    def measure() -> Any:
        return None if by_hook else value

    @hook(AFTER_TOOL)
    def replace(ctx: Any, result: Any) -> Any:
        return result.replace(result=value) if by_hook else None

    log = EventLog()
    agent = Agent("a", llm=ScriptedModel([call("measure"), "done"]), tools=[measure], hooks=[replace])
    see = observer(AFTER_TOOL)(lambda ctx, result: seen.append(result.text))
    result = await agent.arun("measure", sinks=[log], hooks=[see])
    shown = '{"a":"Infinity","rows":["NaN","-Infinity",null]}'
    assert (result.messages[2].content, seen) == (shown, [shown])
    assert [event.text for event in log.of(ToolSettled)] == [shown]
