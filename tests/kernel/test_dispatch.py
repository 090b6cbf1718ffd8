"""One fire of one point: settlement and failure (DESIGN 4.2, 4.3, 5.1)."""

import asyncio
import contextvars
import itertools
import logging
import threading
import time

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    HookError,
    HookRegistry,
    HookResult,
    Message,
    ToolCallRequest,
)
from hookline._kernel import dispatch
from hookline._kernel.dispatch import Firing
from hookline._kernel.fire_observers import FireEvents, FireObservers
from hookline._kernel.scope import CURRENT, BaseContext, Scope, running_hooks
from hookline.errors import CallRefusedError, HookTimeoutError
from hookline.events import HookExecuted, JudgedBeforeRewrite, MergeLost, PointFired, RetryIgnored
from hookline.payloads import AgentState, ErrorInfo, PromptParts, RunStart, StopSignal
from hookline.points import INBOUND_CLAIM, POINTS, Point
from hookline.testing import sample
from tests.cases import each_case

CALL = ToolCallRequest("1", "read", {"path": "a"})
PASS, REWRITE = None, "rewrite"
R = HookResult


class Hurry:
    """The cancellation of a scope, whose deadline a test may set."""

    def __init__(self):
        self.deadline, self.hurried = None, 0

    def is_cancelled(self):
        return asyncio.current_task().cancelling() > 0

    def start_grace_period(self):
        self.hurried += 1


class Quiet(Scope):
    """A scope without consumers of events."""

    def __init__(self):
        super().__init__(BaseContext())
        self.ctx._scope = self
        self.cancellation = Hurry()


class Listening(Quiet):
    """A scope that records the events."""

    def __init__(self, *, every_fire=True, every_call=False):
        super().__init__()
        self.has_consumers, self.events = True, []
        self.emit = lambda kind, /, **fields: self.events.append(kind(**fields))
        self.fire_observers = FireObservers(FireEvents(self.emit, every_fire=every_fire, every_call=every_call))

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


class Fire:
    """Fires one point with hooks made of what they return, and notes who was called.

    A hook is ``(phase, result)``, called a, b, c...; a result may be a function of (ctx, payload),
    an exception to raise, or ``"rewrite"`` to append its name to the path.
    """

    def __init__(
        self,
        point,
        *hooks,
        validate=None,
        start="rewrite",
        no_retry="",
        scope=None,
        is_async=False,
        payload=None,
        **options,
    ):
        self.point, self.called, self.seen = point, [], {}
        self.validate, self.start, self.no_retry = validate, start, no_retry
        self.scope = scope or Listening()
        self.payload = payload if payload is not None else CALL if point == BEFORE_TOOL else sample(point)
        self.registry = HookRegistry()
        for name, (phase, result, *own) in zip("abcdefgh", hooks, strict=False):
            made = self._hook(name, result, phase, is_async)
            given = {"name": name, "phase": phase, **options, **(own[0] if own else {})}
            self.registry.register(made, points=point, **given)

    def _hook(self, name, result, phase, is_async):
        def say(ctx, payload):
            self.called.append(name)
            self.seen[name] = payload
            if isinstance(result, BaseException):
                raise result
            if result == REWRITE:
                return payload.replace(arguments={"path": payload.arguments["path"] + name})
            return result(ctx, payload) if callable(result) else result

        async def say_later(ctx, payload):
            await asyncio.sleep(0)
            return say(ctx, payload)

        return say_later if is_async else say

    async def __call__(self):
        """Run the phases as the loop does: rewriters, validation, guards, observers."""
        firing = Firing(self.registry.stack.chain(self.point), self.point, self.payload, self.scope, self.no_retry)
        token = CURRENT.set(self.scope)
        try:
            if self.start == "rewrite":
                await firing.rewrite()
            if self.validate is not None and firing.is_open:
                firing.payload, problem = self.validate(firing.payload)
                if problem is not None:
                    firing.mark_invalid(problem)
            if self.start != "observe":
                await firing.guard()
            verdict = await firing.conclude()
        finally:
            CURRENT.reset(token)
        if firing.error is not None:
            raise firing.error
        return verdict

    async def at_once(self):
        """Run all phases at once, as the loop does at most points; a chain of only rewriters takes the fast path."""
        chain = self.registry.stack.chain(self.point)
        token = CURRENT.set(self.scope)
        try:
            verdict, firing = await dispatch.fire(chain, self.point, self.payload, self.scope, self.no_retry)
        finally:
            CURRENT.reset(token)
        if firing is not None and firing.error is not None:
            raise firing.error
        return verdict


def rewriter(result, **options):
    return "rewrite", result, options


def guard(result, **options):
    return "guard", result, options


def observer(result=None, **options):
    return "observe", result, options


# Settlement. Each row: the hooks in order, who is called, the verb, its value, the hook.

SETTLEMENT = {
    "nobody says anything": ([rewriter(PASS), guard(PASS), observer()], "abc", "cont", None, ""),
    "a rewriter's block skips all deciders": (
        [rewriter(R.block("no")), rewriter(REWRITE), guard(PASS), observer()],
        "ad",
        "block",
        "no",
        "a",
    ),
    "a rewriter's end skips all deciders": (
        [rewriter(R.end("bye")), rewriter(REWRITE), guard(R.block("no")), observer()],
        "ad",
        "end",
        "bye",
        "a",
    ),
    "a guard's block skips the guards left": (
        [rewriter(PASS), guard(R.block("no")), guard(R.end("bye")), observer()],
        "abd",
        "block",
        "no",
        "b",
    ),
    "a guard's end skips the guards left": (
        [guard(R.end("bye")), guard(R.block("no")), observer()],
        "ac",
        "end",
        "bye",
        "a",
    ),
    "a rewriter's answer skips the rewriters left": (
        [rewriter(PASS), rewriter(R.answer(1)), rewriter(REWRITE)],
        "ab",
        "answer",
        None,
        "b",
    ),
    "a rewriter's answer skips rewriters, guards still judge": (
        [rewriter(R.answer(1)), rewriter(REWRITE), guard(PASS), observer()],
        "acd",
        "answer",
        None,
        "a",
    ),
    "a guard's block beats a rewriter's answer": (
        [rewriter(R.answer(1)), guard(R.block("no")), observer()],
        "abc",
        "block",
        "no",
        "b",
    ),
    "a guard's end beats a rewriter's answer": ([rewriter(R.answer(1)), guard(R.end("bye"))], "ab", "end", "bye", "b"),
    "a guard's answer skips nobody": ([guard(R.answer(1)), guard(PASS), observer()], "abc", "answer", None, "a"),
    "a later guard's block beats a guard's answer": (
        [guard(R.answer(1)), guard(R.block("no"))],
        "ab",
        "block",
        "no",
        "b",
    ),
    "of several answers the first counts": (
        [rewriter(R.answer(1)), guard(R.answer(2)), guard(R.answer(3))],
        "abc",
        "answer",
        None,
        "a",
    ),
    "a rewriter's ask skips nobody": (
        [rewriter(R.ask("?")), rewriter(REWRITE), guard(PASS), observer()],
        "abcd",
        "ask",
        None,
        "a",
    ),
    "a guard's ask skips nobody": ([guard(R.ask("?")), guard(PASS), observer()], "abc", "ask", None, "a"),
    "block beats ask": ([rewriter(R.ask("?")), guard(R.block("no"))], "ab", "block", "no", "b"),
    "end beats ask": ([guard(R.ask("?")), guard(R.end("bye"))], "ab", "end", "bye", "b"),
    "asked and answered is asked first": ([rewriter(R.ask("?")), guard(R.answer(1))], "ab", "ask", None, "a"),
    "answered and then asked is asked first": ([rewriter(R.answer(1)), guard(R.ask("?"))], "ab", "ask", None, "b"),
    "stop never settles": ([rewriter(R.stop("s")), rewriter(PASS), guard(PASS), observer()], "abcd", "stop", None, "a"),
    "a guard's stop never settles": ([guard(R.stop("s")), guard(R.block("no"))], "ab", "block", "no", "b"),
    "answer beats stop": ([rewriter(R.stop("s")), rewriter(R.answer(1))], "ab", "answer", None, "b"),
    "replace is the weakest": ([rewriter(REWRITE), rewriter(R.stop("s"))], "ab", "stop", None, "b"),
    "replace alone": ([rewriter(REWRITE), rewriter(PASS), guard(PASS)], "abc", "replace", None, "a"),
    "the first block of two rewriters holds": (
        [rewriter(R.block("one")), rewriter(R.block("two"))],
        "a",
        "block",
        "one",
        "a",
    ),
}


@each_case("is_async", [False, True])
@each_case("every_call", [False, True])
@pytest.mark.parametrize(("hooks", "called", "verb", "value", "hook"), SETTLEMENT.values(), ids=SETTLEMENT)
async def test_settlement(hooks, called, verb, value, hook, is_async, every_call):
    fire = Fire(BEFORE_TOOL, *hooks, is_async=is_async, scope=Listening(every_call=every_call))
    verdict = await fire()
    assert "".join(fire.called) == called
    assert (verdict.action, verdict.value, verdict.hook) == (verb, value, hook)


@each_case(("hooks", "called", "verb", "value", "hook"), SETTLEMENT.values())
async def test_settlement_is_the_same_when_there_are_no_listeners(hooks, called, verb, value, hook):
    for is_async, at_once in itertools.product((False, True), repeat=2):
        fire = Fire(BEFORE_TOOL, *hooks, is_async=is_async, scope=Quiet())
        verdict = await (fire.at_once() if at_once else fire())
        assert "".join(fire.called) == called
        assert (verdict.action, verdict.value, verdict.hook) == (verb, value, hook)


@pytest.mark.parametrize("phase", ["rewrite", "guard"])
async def test_retry_settles_and_skips_the_remaining_deciders(phase):
    fire = Fire(AFTER_LLM, (phase, R.retry("again", reason="bad")), (phase, R.end("bye")), observer())
    verdict = await fire()
    assert "".join(fire.called) == "ac"
    assert (verdict.action, verdict.value, verdict.reason) == ("retry", "again", "bad")


async def test_every_question_is_kept_with_its_hook_and_reason():
    verdict = await Fire(
        BEFORE_TOOL, rewriter(R.ask("one?", reason="r")), guard(R.ask("two?")), guard(R.ask("three?"))
    )()
    assert [(q.text, q.hook, q.reason) for q in verdict.asks] == [
        ("one?", "a", "r"),
        ("two?", "b", ""),
        ("three?", "c", ""),
    ]


async def test_the_first_answer_is_served_and_named():
    verdict = await Fire(BEFORE_TOOL, rewriter(R.answer({"n": 1}, reason="cached")), guard(R.answer({"n": 2})))()
    assert (verdict.answer.value, verdict.answer.hook, verdict.answer.reason) == ({"n": 1}, "a", "cached")


async def test_a_call_asked_and_answered_keeps_both():
    verdict = await Fire(BEFORE_TOOL, rewriter(R.answer(1)), guard(R.ask("?")))()
    assert verdict.action == "ask"
    assert verdict.answer.value == 1
    assert verdict.asks[0].text == "?"


@pytest.mark.parametrize("settling", [R.block("no"), R.end("bye"), R.answer(1), R.ask("?")])
async def test_stop_signals_are_kept_with_every_other_verb(settling):
    verdict = await Fire(BEFORE_TOOL, rewriter(R.stop("one")), rewriter(R.stop("two", "cost_limit")), guard(settling))()
    assert verdict.signals == (StopSignal("stop_requested", "one", "a"), StopSignal("cost_limit", "two", "b"))
    assert verdict.action == settling.action


async def test_each_rewriter_sees_what_the_one_before_left():
    fire = Fire(BEFORE_TOOL, rewriter(REWRITE), rewriter(PASS), rewriter(REWRITE), guard(PASS), observer())
    verdict = await fire()
    assert [fire.seen[name].arguments["path"] for name in "abcde"] == ["a", "aa", "aa", "aac", "aac"]
    assert verdict.payload.arguments == {"path": "aac"}
    assert fire.payload.arguments == {"path": "a"}


async def test_only_the_first_keep_going_is_used_and_it_skips_no_hook():
    fire = Fire(ON_STOP, rewriter(R.keep_going("one")), rewriter(R.keep_going("two")), guard(PASS), observer())
    verdict = await fire()
    assert "".join(fire.called) == "abcd"
    assert (verdict.action, verdict.value, verdict.hook) == ("keep_going", "one", "a")


# Validation between rewrite and guard


def validated(request):
    if request.arguments.get("path") == "bad":
        return request, "path: not that one"
    return request.replace(arguments={**request.arguments, "checked": True}), None


async def test_guards_judge_the_validated_arguments_and_rewriters_do_not_see_them():
    fire = Fire(BEFORE_TOOL, rewriter(REWRITE), guard(PASS), observer(), validate=validated)
    verdict = await fire()
    assert fire.seen["a"].arguments == {"path": "a"}
    assert fire.seen["b"].arguments == fire.seen["c"].arguments == {"path": "aa", "checked": True}
    assert verdict.payload.arguments == {"path": "aa", "checked": True}


@pytest.mark.parametrize("before", [PASS, R.answer(1), R.ask("?"), R.stop("s")])
async def test_invalid_arguments_skip_guards_but_not_observers(before):
    fire = Fire(
        BEFORE_TOOL,
        rewriter(before),
        guard(PASS),
        observer(),
        payload=CALL.replace(arguments={"path": "bad"}),
        validate=validated,
    )
    verdict = await fire()
    assert "".join(fire.called) == "ac"
    assert (verdict.action, verdict.value) == ("invalid", "path: not that one")
    assert (verdict.hook, verdict.reason) == ("", "")


@pytest.mark.parametrize("settled", [R.block("no"), R.end("bye")])
async def test_a_settled_call_is_not_validated(settled):
    fire = Fire(BEFORE_TOOL, rewriter(settled), payload=CALL.replace(arguments={"path": "bad"}), validate=validated)
    assert (await fire()).action == settled.action


async def test_a_fire_can_start_at_the_guards():
    fire = Fire(BEFORE_TOOL, rewriter(R.block("no")), guard(PASS), observer(), validate=validated, start="guard")
    verdict = await fire()
    assert "".join(fire.called) == "bc"
    assert verdict.payload.arguments == {"path": "a", "checked": True}


@pytest.mark.parametrize("start", ["guard", "observe"])
async def test_a_fire_that_starts_later_calls_no_async_rewriter_either(start):
    for scope in (Quiet(), Listening()):
        fire = Fire(AFTER_LLM, rewriter(R.end("bye")), observer(), start=start, is_async=True, scope=scope)
        assert (await fire()).action == "cont"
        assert fire.called == ["b"]


async def test_an_unchanged_payload_stays_the_same_object():
    for hooks in ((), (rewriter(PASS),)):
        fire = Fire(AFTER_LLM, *hooks, no_retry="why", scope=Quiet())
        assert (await fire()).payload is fire.payload


async def test_a_fire_can_start_at_the_observers():
    fire = Fire(AFTER_LLM, rewriter(R.end("bye")), guard(R.end("bye")), observer(), start="observe")
    assert (await fire()).action == "cont"
    assert fire.called == ["c"]


# Observers


@pytest.mark.parametrize(
    "decider",
    [rewriter(R.block("no")), guard(R.end("bye")), rewriter(R.answer(1)), rewriter(REWRITE), guard(R.ask("?"))],
)
async def test_observers_get_the_final_payload_and_the_verdict(decider):
    seen = []
    fire = Fire(BEFORE_TOOL, decider)

    def watch(ctx, payload, verdict):
        seen.append((payload, verdict.action, verdict.payload))

    async def watch_async(point, ctx, payload, verdict):
        seen.append((payload, verdict.action, verdict.payload))

    for made in (watch, watch_async):
        fire.registry.on(BEFORE_TOOL, made, phase="observe")
    verdict = await fire()
    assert seen == [(verdict.payload, verdict.action, verdict.payload)] * 2


async def test_observers_are_called_after_a_closed_failure_and_see_it():
    seen = []
    fire = Fire(BEFORE_TOOL, guard(ValueError("oh no")), guard(PASS))
    fire.registry.on(BEFORE_TOOL, lambda ctx, call, verdict: seen.append(verdict), phase="observe")
    with pytest.raises(HookError):
        await fire()
    assert fire.called == ["a"]
    (verdict,) = seen
    assert (verdict.action, verdict.hook) == ("failed", "a")
    assert verdict.error is not None
    assert "oh no" in verdict.reason


async def test_async_observers_run_concurrently():
    barrier = asyncio.Barrier(3)

    async def meet(ctx, payload):
        async with asyncio.timeout(60):
            await barrier.wait()

    registry = HookRegistry()
    for _ in range(3):
        registry.on(BEFORE_TOOL, meet, phase="observe", on_failure="closed")
    assert (await registry.fire(BEFORE_TOOL, CALL)).action == "cont"


async def test_a_failing_observer_does_not_keep_the_others_from_being_called():
    for is_async in (False, True):
        fire = Fire(
            BEFORE_TOOL, observer(ValueError("x")), observer(), observer(R.block("no")), observer(), is_async=is_async
        )
        verdict = await fire()
        assert "".join(fire.called) == "abcd"
        assert verdict.action == "cont"
        assert len(verdict.failures) == 2


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()], ids=repr)
async def test_an_observer_that_cancels_or_closes_itself_fails_alone(error, is_async):
    for others in ([], [observer()]):
        fire = Fire(BEFORE_TOOL, observer(error), *others, is_async=is_async)
        verdict = await fire()
        assert "".join(fire.called) == "ab"[: 1 + len(others)]
        assert [(f.type, f.source) for f in verdict.failures] == [(type(error).__name__, "a")]


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_observer_that_fails_closed_fails_the_point_after_all_were_called(is_async):
    fire = Fire(BEFORE_TOOL, observer(ValueError("x"), on_failure="closed"), observer(), is_async=is_async)
    with pytest.raises(HookError, match="hook 'a' failed at before_tool: ValueError: x"):
        await fire()
    assert "".join(fire.called) == "ab"


async def test_what_an_observer_does_to_its_verdict_changes_nothing():
    def meddle(ctx, payload, verdict):
        with pytest.raises((AttributeError, TypeError)):
            verdict.action = "cont"
        with pytest.raises(TypeError):
            verdict.answer.value["a"].append(1)
        with pytest.raises(TypeError):
            payload.arguments["path"] = "x"

    fire = Fire(BEFORE_TOOL, rewriter(R.answer({"a": []})))
    fire.registry.on(BEFORE_TOOL, meddle, phase="observe", on_failure="closed")
    assert (await fire()).answer.value == {"a": []}


# Events


async def test_there_is_one_record_per_fire_and_one_per_hook_with_a_result():
    fire = Fire(BEFORE_TOOL, rewriter(PASS), rewriter(REWRITE), guard(R.block("no", reason="rule 1")), observer())
    await fire()
    (fired,) = fire.scope.of(PointFired)
    assert (fired.point, fired.verb, fired.hook, fired.reason) == ("before_tool", "block", "c", "rule 1")
    assert [(e.hook, e.phase, e.verb, e.reason) for e in fire.scope.of(HookExecuted)] == [
        ("b", "rewrite", "replace", ""),
        ("c", "guard", "block", "rule 1"),
    ]


async def test_a_consumer_can_ask_for_a_record_of_every_call():
    for is_async in (False, True):
        hooks = [rewriter(PASS), rewriter(REWRITE), guard(PASS), observer()]
        fire = Fire(BEFORE_TOOL, *hooks, scope=Listening(every_call=True), is_async=is_async)
        await fire()
        assert [(e.hook, e.verb) for e in fire.scope.of(HookExecuted)] == [
            ("a", "cont"),
            ("b", "replace"),
            ("c", "cont"),
            ("d", "cont"),
        ]
        assert {(e.reason, e.error) for e in fire.scope.of(HookExecuted)} == {("", None)}


async def test_a_failure_is_recorded_with_its_error_and_logged(caplog):
    fire = Fire(BEFORE_TOOL, rewriter(ValueError("oh no")), on_failure="open")
    with caplog.at_level(logging.WARNING, "hookline"):
        verdict = await fire()
    (executed,) = fire.scope.of(HookExecuted)
    assert (executed.hook, executed.verb) == ("a", "failed")
    assert "ValueError: oh no" in executed.error
    assert "hook 'a' failed at before_tool: ValueError: oh no" in caplog.text
    assert len(verdict.failures) == 1


async def test_a_record_has_the_duration_only_if_every_call_is_requested():
    for is_async in (False, True):
        hooks = [rewriter(REWRITE), guard(PASS), observer(), rewriter(ValueError("x"), on_failure="open")]
        fire = Fire(BEFORE_TOOL, *hooks, is_async=is_async)
        await fire()
        assert [(e.call_id, e.duration) for e in fire.scope.of(HookExecuted)] == [("1", None)] * 2
        fire = Fire(BEFORE_TOOL, *hooks, is_async=is_async, scope=Listening(every_call=True))
        await fire()
        executed = fire.scope.of(HookExecuted)
        assert [e.call_id for e in executed] == ["1"] * 4
        assert all(0 <= e.duration < 60 for e in executed)
    fire = Fire(ON_PROGRESS, observer(ValueError("x")), payload=sample(ON_PROGRESS, call_id="c7"))
    await fire()
    assert [(e.call_id, e.phase) for e in fire.scope.of(HookExecuted)] == [("c7", "observe")]
    fire = Fire(BEFORE_STEP, rewriter(R.stop("s", reason="r")))
    await fire()
    assert [(e.call_id, e.point, e.verb, e.reason, e.error) for e in fire.scope.of(HookExecuted)] == [
        ("", "before_step", "stop", "r", None),
    ]


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_time_of_a_hook_is_its_own(is_async, monkeypatch):
    clock = itertools.count(100)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    hooks = [rewriter(PASS), rewriter(REWRITE), guard(PASS), guard(R.ask("?")), observer(), observer()]
    fire = Fire(BEFORE_TOOL, *hooks, is_async=is_async, scope=Listening(every_call=True))
    await fire()
    times = [e.duration for e in fire.scope.of(HookExecuted)]
    assert times[:4] == [1.0] * 4  # started, ended: nothing else read the clock
    assert times[4:] == ([2.0, 2.0] if is_async else [1.0, 1.0])  # async observers wait concurrently


async def test_the_time_of_an_observer_that_fails_is_its_own(monkeypatch):
    clock = itertools.count(100)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    hooks = [observer(ValueError("x")), observer(), observer()]
    fire = Fire(BEFORE_TOOL, *hooks, is_async=True, scope=Listening(every_call=True))
    await fire()
    assert [e.duration for e in fire.scope.of(HookExecuted)] == [3.0, 3.0, 3.0]  # all start, then each ends


async def test_a_fire_is_recorded_only_if_a_consumer_wants_it():
    scope = Listening(every_fire=False)
    fire = Fire(BEFORE_TOOL, rewriter(PASS), rewriter(REWRITE), guard(R.ask("?")), observer(), scope=scope)
    await fire()
    assert scope.of(PointFired) == []
    assert [e.hook for e in scope.of(HookExecuted)] == ["b", "c"]  # only consumers of this type


async def test_a_fire_without_changes_is_recorded_too():
    for hooks in ((), (rewriter(PASS),), (guard(PASS), observer())):
        for is_async in (False, True):
            fire = Fire(BEFORE_TOOL, *hooks, is_async=is_async)
            await fire()
            (fired,) = fire.scope.of(PointFired)
            assert (fired.point, fired.verb, fired.hook, fired.reason) == ("before_tool", "cont", "", "")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_fire_in_one_go_is_recorded_like_any_other(is_async):
    for hooks in ((rewriter(PASS), rewriter(PASS)), (rewriter(PASS), guard(PASS))):
        fire = Fire(BEFORE_TOOL, *hooks, is_async=is_async)
        await fire.at_once()
        assert [(e.point, e.verb) for e in fire.scope.of(PointFired)] == [("before_tool", "cont")]
        scope = Listening(every_fire=False, every_call=True)
        fire = Fire(BEFORE_TOOL, *hooks, is_async=is_async, scope=scope)
        await fire.at_once()
        assert [(e.hook, e.verb) for e in fire.scope.of(HookExecuted)] == [("a", "cont"), ("b", "cont")]


async def test_an_open_failure_is_reported_as_data():
    fire = Fire(BEFORE_TOOL, rewriter(ValueError("oh no"), on_failure="open"), observer(KeyError("k")))
    verdict = await fire()
    first, second = verdict.failures
    assert first == ErrorInfo("hook", "ValueError", "hook 'a' failed at before_tool: ValueError: oh no", "a")
    assert (second.type, second.source, second.fatal) == ("KeyError", "b", False)
    assert verdict.error is None


async def test_of_two_closed_failures_the_first_is_raised_and_the_other_kept(caplog):
    fire = Fire(ON_RUN_END, rewriter(ValueError("one")), rewriter(KeyError("two")))
    with pytest.raises(HookError) as caught:
        await fire()
    verdict = caught.value.verdict
    assert (verdict.action, verdict.value, verdict.hook, verdict.reason) == ("failed", None, "a", str(caught.value))
    assert verdict.error == ErrorInfo("hook", "ValueError", str(caught.value), "a", fatal=True)
    assert [(f.type, f.source, f.fatal) for f in verdict.failures] == [("KeyError", "b", True)]
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("hookline", "WARNING")
    assert record.getMessage() == "hook 'b' failed at on_run_end: KeyError: 'two' (on_failure=closed)"
    assert record.exc_info[1].args == ("two",)


async def test_a_failure_that_blocks_is_reported():
    verdict = await Fire(BEFORE_TOOL, guard(ValueError("oh no"), on_failure="block"), guard(R.end("bye")))()
    assert verdict.value == "Blocked: the hook 'a' failed."
    assert (verdict.action, verdict.hook, verdict.reason) == ("block", "a", "the hook failed")


async def test_observers_see_a_refused_model_call_as_the_error():
    seen = []
    fire = Fire(BEFORE_TOOL, rewriter(CallRefusedError("over budget", status="stopped", hook="b")))
    fire.registry.on(BEFORE_TOOL, lambda ctx, call, verdict: seen.append(verdict), phase="observe")
    with pytest.raises(CallRefusedError) as caught:
        await fire()
    (verdict,) = seen
    assert (verdict.action, verdict.hook, verdict.reason) == ("failed", "b", "over budget")
    assert verdict.error == ErrorInfo("hook", "CallRefusedError", "over budget", "b", fatal=True)
    assert caught.value.verdict == verdict
    assert fire.scope.of(HookExecuted) == []


async def test_the_first_refused_model_call_at_the_end_of_a_run_is_the_one_raised():
    one, two = CallRefusedError("one", status="stopped"), CallRefusedError("two", status="stopped")
    fire = Fire(ON_RUN_END, rewriter(one), rewriter(two), rewriter({"reply": "c"}), observer())
    with pytest.raises(CallRefusedError) as caught:
        await fire()
    assert caught.value is one
    assert "".join(fire.called) == "abcd"
    assert fire.seen["d"].reply == "c"


async def test_the_verdict_names_the_deciding_hook_and_its_reason():
    for hooks, hook, reason in (
        ([rewriter(R.ask("one?", reason="r1")), guard(R.ask("two?", reason="r2"))], "a", "r1"),
        ([rewriter(PASS), rewriter(R.answer(1, reason="r1")), guard(R.answer(2, reason="r2"))], "b", "r1"),
        ([rewriter(R.stop("one", reason="r1")), guard(R.stop("two", reason="r2"))], "a", "r1"),
        ([rewriter(R.stop("one")), guard(R.stop("two", reason="r2"))], "a", ""),
        ([rewriter(R.replace({}, reason="r1")), rewriter(R.replace({}, reason="r2"))], "b", "r2"),
        ([rewriter(R.replace({}, reason="r1")), rewriter(REWRITE)], "b", ""),
        ([rewriter(R.block("no", reason="r1"))], "a", "r1"),
    ):
        verdict = await Fire(BEFORE_TOOL, *hooks)()
        assert (verdict.hook, verdict.reason) == (hook, reason)
    verdict = await Fire(ON_STOP, rewriter(R.keep_going("more", reason="r1")))()
    assert (verdict.value, verdict.hook, verdict.reason) == ("more", "a", "r1")
    merging = [R.merge(append_system="x", reason="r1"), R.merge(append_system="y", prepend_system="z", reason="r2")]
    verdict = await Fire(BEFORE_PROMPT_BUILD, *map(rewriter, merging))()
    assert (verdict.value.append_system, verdict.hook, verdict.reason) == ("x", "a", "r1")


async def test_the_verdict_names_the_hook_that_rejects_a_subagent_before_one_that_changes_it():
    verdict = await Fire(POINTS["subagent_spawning"], rewriter({"prompt": "p"}), rewriter({"error": "no"}))()
    assert (verdict.action, verdict.hook, verdict.value.error, verdict.value.prompt) == ("merge", "b", "no", "p")
    verdict = await Fire(POINTS["subagent_spawning"], rewriter({"error": "no"}), rewriter({"prompt": "p"}))()
    assert verdict.hook == "a"


async def test_a_retry_over_the_limit_is_a_signal_with_a_name():
    verdict = await Fire(AFTER_LLM, rewriter(R.retry("again")), no_retry="retry_limit")()
    assert verdict.signals == (StopSignal("retry_limit", "Retry limit reached.", "a"),)
    fire = Fire(AFTER_LLM, rewriter(R.stop("s")), rewriter(R.retry("again")), no_retry="retry_limit")
    assert [(s.kind, s.hook) for s in (await fire()).signals] == [("stop_requested", "a"), ("retry_limit", "b")]


@pytest.mark.parametrize("point", [BEFORE_PROMPT_BUILD, INBOUND_CLAIM, ON_PROGRESS])
async def test_the_error_about_a_state_that_is_not_allowed_names_hook_and_point(point):
    fire = Fire(point, (None, R.cont(state=AgentState())), on_failure="closed")
    with pytest.raises(HookError, match=rf"hook 'a' at {point}: only rewriters and guards"):
        await fire()


JUDGED = {
    "a judge before a rewriter": ("pr", ("a",), "b"),
    "a judge after it": ("rp", None, None),
    "two judges and two rewriters": ("prpr", ("a", "c"), "d"),
    "rewriters only": ("rr", None, None),
    "judges only": ("pp", None, None),
    "a judge after the last rewriter": ("prp", ("a",), "b"),
}


@pytest.mark.parametrize(("kinds", "hooks", "by"), JUDGED.values(), ids=JUDGED)
async def test_a_rewriter_that_let_pass_what_was_changed_after_it_is_reported(kinds, hooks, by):
    fire = Fire(BEFORE_TOOL, *(rewriter(REWRITE if kind == "r" else PASS) for kind in kinds), guard(PASS))
    await fire()
    reported = [(e.hooks, e.by, e.point) for e in fire.scope.of(JudgedBeforeRewrite)]
    assert reported == ([] if hooks is None else [(hooks, by, "before_tool")])


async def test_early_judges_are_reported_though_a_later_rewriter_settles_the_point():
    hooks = [rewriter(PASS), rewriter(REWRITE), rewriter(R.block("no"))]
    fire = Fire(BEFORE_TOOL, *hooks)
    await fire()
    assert [(e.hooks, e.by) for e in fire.scope.of(JudgedBeforeRewrite)] == [(("a",), "b")]


async def test_early_judges_are_reported_where_nothing_else_is():
    scope = Listening(every_fire=False)
    await Fire(BEFORE_TOOL, rewriter(PASS), rewriter(REWRITE), scope=scope).at_once()
    assert [(e.hooks, e.by) for e in scope.of(JudgedBeforeRewrite)] == [(("a",), "b")]


async def test_early_judges_are_distinguished_even_if_they_share_a_name():
    fire = Fire(BEFORE_TOOL, rewriter(PASS, name="same"), rewriter(REWRITE, name="same"))
    await fire()
    assert [(e.hooks, e.by) for e in fire.scope.of(JudgedBeforeRewrite)] == [(("same",), "same")]


async def test_a_hook_that_was_not_called_for_this_tool_judged_nothing():
    fire = Fire(BEFORE_TOOL, rewriter(PASS, tools="write"), rewriter(REWRITE))
    await fire()
    assert fire.called == ["b"]
    assert fire.scope.of(JudgedBeforeRewrite) == []


async def test_a_hook_that_was_called_for_this_tool_judged_it():
    fire = Fire(BEFORE_TOOL, rewriter(PASS, tools="read"), rewriter(REWRITE))
    await fire()
    assert [(e.hooks, e.by) for e in fire.scope.of(JudgedBeforeRewrite)] == [(("a",), "b")]


# Merge


@pytest.fixture
def own_merge(own_points):
    return Point("test_gather", RunStart, model="merge")


async def test_at_a_merge_point_the_first_non_null_value_per_field_wins():
    fire = Fire(
        BEFORE_PROMPT_BUILD,
        rewriter({"prepend_system": None, "append_system": "a"}),
        rewriter({"prepend_system": "b", "append_system": "b"}),
        rewriter(PASS),
        rewriter(R.merge(prepend_system="d", override_system="d")),
        observer(),
    )
    verdict = await fire()
    assert verdict.value == PromptParts(prepend_system="b", append_system="a", override_system="d")
    assert "".join(fire.called) == "abcde"
    assert [(e.point, e.hook, e.field, e.kept) for e in fire.scope.of(MergeLost)] == [
        ("before_prompt_build", "b", "append_system", "a"),
        ("before_prompt_build", "d", "prepend_system", "b"),
    ]


async def test_at_a_merge_point_highest_priority_wins_and_all_see_the_original():
    fire = Fire(
        BEFORE_PROMPT_BUILD, rewriter({"append_system": "low"}), rewriter({"append_system": "high"}, priority=9)
    )
    verdict = await fire()
    assert fire.called == ["b", "a"]
    assert verdict.value.append_system == "high"
    assert fire.seen["a"] is fire.seen["b"] is fire.payload
    assert verdict.payload is fire.payload


async def test_first_non_null_wins_at_merge_points_of_a_program_too(own_merge):
    fire = Fire(own_merge, rewriter({"x": None, "y": [1]}), rewriter({"x": 1, "y": [2]}))
    verdict = await fire()
    assert verdict.value == {"x": 1, "y": [1]}
    assert [(e.hook, e.field) for e in fire.scope.of(MergeLost)] == [("b", "y")]
    with pytest.raises(TypeError):
        verdict.value["y"].append(3)


async def test_a_merge_of_nothing_is_no_decision():
    verdict = await Fire(BEFORE_PROMPT_BUILD, rewriter({}), rewriter({"append_system": None}))()
    assert verdict.action == "cont"
    assert verdict.value is None


# Claim


async def test_at_a_claim_point_the_first_claim_wins_and_later_handlers_are_not_called():
    fire = Fire(
        INBOUND_CLAIM,
        rewriter(PASS),
        rewriter({"handled": False}),
        rewriter({"handled": True, "by": "c"}),
        rewriter(R.claim(by="d")),
        observer(),
    )
    verdict = await fire()
    assert "".join(fire.called) == "abce"
    assert verdict.handled
    assert (verdict.hook, verdict.value) == ("c", {"by": "c"})


async def test_a_point_without_a_claim_is_not_handled():
    verdict = await Fire(INBOUND_CLAIM, rewriter(PASS), rewriter({"handled": False}))()
    assert not verdict.handled


async def test_a_claim_handler_that_fails_closed_is_not_passed_over():
    fire = Fire(INBOUND_CLAIM, rewriter(ValueError("x")), rewriter(R.claim()))
    with pytest.raises(HookError):
        await fire()
    assert fire.called == ["a"]


# Failure


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


FAULTS = {
    "raises": ValueError("oh no"),
    "returns nonsense": True,
    "cancels itself": asyncio.CancelledError(),
    "closes itself": GeneratorExit(),
    "raises what has no text": NoText(),
    "uses a wrong verb": R.keep_going(),
}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("phase", ["rewrite", "guard"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
class TestFailurePolicies:
    async def test_closed_stops_the_point_and_raises(self, fault, phase, is_async):
        fire = Fire(BEFORE_TOOL, (phase, fault), (phase, PASS), observer(), is_async=is_async)
        with pytest.raises(HookError) as caught:
            await fire()
        assert "".join(fire.called) == "ac"
        assert (caught.value.hook, caught.value.point) == ("a", "before_tool")
        assert caught.value.cause is fault or not isinstance(fault, BaseException)

    async def test_block_blocks_that_call_and_calls_no_other_hook(self, fault, phase, is_async):
        fire = Fire(BEFORE_TOOL, (phase, fault, {"on_failure": "block"}), (phase, PASS), observer(), is_async=is_async)
        verdict = await fire()
        assert "".join(fire.called) == "ac"
        assert (verdict.action, verdict.hook) == ("block", "a")
        assert verdict.value == "Blocked: the hook 'a' failed."
        assert "hook 'a' failed at before_tool: " in verdict.failures[0].message
        assert len(verdict.failures) == 1

    async def test_open_reports_and_continues(self, fault, phase, is_async):
        fire = Fire(BEFORE_TOOL, (phase, fault, {"on_failure": "open"}), (phase, PASS), observer(), is_async=is_async)
        verdict = await fire()
        assert "".join(fire.called) == "abc"
        assert verdict.action == "cont"
        assert len(verdict.failures) == 1
        assert [e.verb for e in fire.scope.of(HookExecuted)] == ["failed"]


@pytest.mark.parametrize("phase", ["rewrite", "guard"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_failure_among_quiet_async_hooks_is_the_hooks_own(fault, phase):
    quiet = (phase, PASS)
    fire = Fire(BEFORE_TOOL, quiet, quiet, (phase, fault, {"on_failure": "open"}), quiet, observer(), is_async=True)
    assert len((await fire()).failures) == 1
    assert "".join(fire.called) == "abcde"
    fire = Fire(BEFORE_TOOL, quiet, quiet, (phase, fault), quiet, observer(), is_async=True)
    with pytest.raises(HookError) as caught:
        await fire()
    assert caught.value.hook == "c"
    assert "".join(fire.called) == "abce"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("phase", ["rewrite", "guard"])
@pytest.mark.parametrize("on_failure", ["closed", "open", "block"])
async def test_a_refused_model_call_that_leaves_a_hook_ends_the_fire_with_its_own_cause(phase, on_failure, is_async):
    refused = CallRefusedError("over budget", status="stopped")
    hooks = [(phase, refused, {"on_failure": on_failure}), (phase, PASS), observer()]
    fire = Fire(BEFORE_TOOL, *hooks, is_async=is_async)
    with pytest.raises(CallRefusedError) as caught:
        await fire()
    assert caught.value is refused
    assert "".join(fire.called) == "ac"


@pytest.mark.parametrize("is_async", [False, True])
async def test_running_hooks_contains_the_hooks_that_are_running(is_async):
    seen = []
    registry = HookRegistry()

    def sync(ctx, payload):
        seen.append(running_hooks())

    async def later(ctx, payload):
        await asyncio.sleep(0)
        seen.append(running_hooks())

    made = later if is_async else sync
    for phase in ("rewrite", "rewrite", "guard", "observe"):
        registry.on(BEFORE_TOOL, made, phase=phase)
    await registry.fire(BEFORE_TOOL, CALL)
    assert seen == [{id(made)}] * 4
    assert running_hooks() == frozenset()


@pytest.mark.parametrize("phase", ["rewrite", "guard", "observe"])
async def test_running_hooks_contains_the_hooks_of_outer_fires_too(phase):
    seen, registry = [], HookRegistry()

    async def inner(ctx, payload):
        seen.append(running_hooks())

    def inner_sync(ctx, payload):
        seen.append(running_hooks())

    async def outer(ctx, payload):
        await registry.fire(ON_RUN_START, {"task": "hi"})
        seen.append(running_hooks())

    registry.on(BEFORE_TOOL, outer, phase=phase)
    for made in (inner, inner_sync, inner):
        registry.on(ON_RUN_START, made)
    await registry.fire(BEFORE_TOOL, CALL)
    ids = frozenset({id(outer)})
    assert seen == [ids | {id(inner)}, ids | {id(inner_sync)}, ids | {id(inner)}, ids]
    assert running_hooks() == frozenset()


async def test_a_rewriter_that_fails_closed_keeps_guards_from_judging():
    fire = Fire(BEFORE_TOOL, rewriter(ValueError("x")), guard(PASS), observer())
    with pytest.raises(HookError):
        await fire()
    assert "".join(fire.called) == "ac"


async def test_a_later_hooks_verdict_holds_after_an_open_failure():
    fire = Fire(BEFORE_TOOL, rewriter(ValueError("x"), on_failure="open"), rewriter(REWRITE), guard(R.block("no")))
    verdict = await fire()
    assert (verdict.action, verdict.value) == ("block", "no")
    assert verdict.payload.arguments == {"path": "ab"}


async def test_at_on_run_end_a_failure_does_not_skip_later_hooks():
    for is_async in (False, True):
        fire = Fire(
            ON_RUN_END,
            rewriter(ValueError("x")),
            rewriter({"reply": "b"}),
            guard(ValueError("y")),
            guard(PASS),
            observer(),
            is_async=is_async,
        )
        with pytest.raises(HookError, match="hook 'a' failed at on_run_end"):
            await fire()
        assert "".join(fire.called) == "abcde"
        assert fire.seen["e"].reply == "b"


async def test_at_an_observe_point_failures_are_open_by_default():
    verdict = await Fire(ON_PROGRESS, observer(ValueError("x")), observer())()
    assert len(verdict.failures) == 1
    with pytest.raises(HookError):
        await Fire(ON_PROGRESS, observer(ValueError("x"), on_failure="closed"))()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_an_exit_is_no_hook_failure(error):
    async def main():
        await Fire(BEFORE_TOOL, rewriter(error(), on_failure="open"))()

    with pytest.raises(error):
        main().send(None)


@pytest.mark.parametrize("phase", ["rewrite", "guard", "observe"])
@pytest.mark.parametrize("before", [0, 2])
async def test_cancelling_the_caller_is_no_hook_failure(phase, before):
    inside = asyncio.Event()

    async def quiet(ctx, payload): ...

    async def hang(ctx, payload):
        inside.set()
        await asyncio.Event().wait()

    registry = HookRegistry()
    for _ in range(before):
        registry.on(BEFORE_TOOL, quiet, phase=phase)
    registry.on(BEFORE_TOOL, hang, phase=phase, on_failure="open")
    task = asyncio.create_task(registry.fire(BEFORE_TOOL, CALL))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("phase", ["rewrite", "guard"])
async def test_at_the_end_of_a_run_a_cancelled_hook_is_interrupted_and_the_others_still_run(phase):
    inside = asyncio.Event()

    async def hang(ctx, payload):
        inside.set()
        await asyncio.Event().wait()

    fire = Fire(ON_RUN_END, (phase, hang), (phase, PASS), observer())
    task = asyncio.create_task(fire())
    await inside.wait()
    task.cancel()
    verdict = await task
    assert "".join(fire.called) == "abc"
    assert fire.scope.cancellation.hurried == 1
    assert (verdict.action, verdict.failures) == ("cont", ())
    assert fire.scope.of(HookExecuted) == []


@pytest.mark.parametrize("phase", ["rewrite", "guard", "observe"])
async def test_a_hook_that_fails_while_it_is_cancelled_has_failed(phase):
    inside = asyncio.Event()

    async def break_down(ctx, payload):
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("no way to end") from None

    registry = HookRegistry()
    registry.on(ON_RUN_END, break_down, phase=phase, on_failure="closed")
    task = asyncio.create_task(registry.fire(ON_RUN_END, sample(ON_RUN_END)))
    await inside.wait()
    task.cancel()
    with pytest.raises(HookError, match="ValueError: no way to end"):
        await task


@pytest.mark.parametrize("is_async", [False, True])
async def test_at_the_end_of_a_run_a_hook_that_cancels_itself_has_failed(is_async):
    fire = Fire(ON_RUN_END, rewriter(asyncio.CancelledError()), rewriter(PASS), is_async=is_async)
    with pytest.raises(HookError, match="CancelledError"):
        await fire()
    assert "".join(fire.called) == "ab"


def test_an_exit_of_one_of_several_observers_is_an_exit():
    fire = Fire(BEFORE_TOOL, observer(SystemExit(3)), observer(), is_async=True)
    with pytest.raises(SystemExit, match="3"):
        asyncio.run(fire())
    assert sorted(fire.called) == ["a", "b"]


async def test_a_deadline_that_comes_while_hooks_run_holds_for_the_rest():
    async def short(ctx, payload):
        scope.cancellation.deadline = time.monotonic() + 0.02
        return R.cont()

    async def hang(ctx, payload):
        await asyncio.sleep(5)

    scope, registry = Quiet(), HookRegistry()
    registry.on(BEFORE_STEP, short)
    registry.on(BEFORE_STEP, hang)
    with pytest.raises(HookError, match="still running after"):
        await registry.fire(BEFORE_STEP, {"index": 1}, ctx=scope.ctx)


async def test_the_shorter_of_timeout_and_deadline_holds():
    async def hang(ctx, payload):
        await asyncio.sleep(5)

    for timeout, deadline, told in ((0.01, 5, "0.01 s"), (5, -1, "0 s")):
        scope, registry = Quiet(), HookRegistry()
        scope.cancellation.deadline = time.monotonic() + deadline
        registry.on(BEFORE_STEP, hang, timeout=timeout)
        with pytest.raises(HookError, match=f"still running after {told}"):
            await registry.fire(BEFORE_STEP, {"index": 1}, ctx=scope.ctx)


def running(*hooks):
    """Return which of these functions count as running in the current code."""
    return [hook for hook in hooks if id(hook) in running_hooks()]


@pytest.mark.parametrize("every_call", [False, True])
async def test_a_hook_counts_as_running_inside_its_own_call_only(every_call):
    seen = []

    def plain(ctx, call):
        seen.append(running(plain, later))

    async def later(ctx, call):
        await asyncio.sleep(0)
        seen.append(running(plain, later))

    scope = Listening(every_call=every_call)
    for phase in ("rewrite", "guard", "observe"):
        registry = HookRegistry()
        for made in (plain, later, plain):
            registry.on(BEFORE_TOOL, made, phase=phase)
        await registry.fire(BEFORE_TOOL, CALL, ctx=scope.ctx)
        assert running_hooks() == frozenset()
    assert sorted(map(len, seen)) == [1] * len(seen)
    assert [names for names in seen if names == [later]] == [[later]] * 3


async def test_work_that_a_hook_started_is_inside_the_hook_until_the_hook_returns():
    seen, tasks = [], []
    returned = asyncio.Event()

    async def work(hook):
        seen.append(running(hook))
        await returned.wait()
        seen.append(running(hook))

    def plain(ctx, call):
        tasks.append(asyncio.ensure_future(work(plain)))

    async def later(ctx, call):
        tasks.append(asyncio.ensure_future(work(later)))
        await asyncio.sleep(0)

    def promised(ctx, call):
        return asyncio.ensure_future(finish(promised))

    async def finish(hook):
        seen.append(running(hook))

    registry = HookRegistry()
    for made in (plain, later, promised):
        registry.on(BEFORE_TOOL, made)
    await registry.fire(BEFORE_TOOL, CALL)
    returned.set()
    await asyncio.gather(*tasks)
    # The task of the sync hook starts after it returned; that of the async one while it waits.
    assert seen == [[], [later], [promised], [], []]


async def test_a_hook_whose_timeout_is_over_counts_as_running_in_its_thread():
    go_on, seen = threading.Event(), []

    def slow(ctx, call):
        go_on.wait(10)
        seen.append(running(slow))
        done.set()

    done, registry = threading.Event(), HookRegistry()
    registry.on(BEFORE_TOOL, slow, timeout=0.01, on_failure="open")
    await registry.fire(BEFORE_TOOL, CALL)
    assert running_hooks() == frozenset()
    go_on.set()
    assert await asyncio.to_thread(done.wait, 10)
    assert seen == [[slow]]


@pytest.mark.parametrize("last", [PASS, R.block("no"), ValueError("oh no")], ids=["passes", "blocks", "fails"])
async def test_no_hook_counts_as_running_after_a_fire_without_listeners(last):
    seen = []

    def look(ctx, call):
        seen.append(len(running_hooks()))

    fire = Fire(BEFORE_TOOL, rewriter(look), rewriter(look), rewriter(last, on_failure="open"), scope=Quiet())
    await fire.at_once()
    assert (seen, running_hooks()) == ([1, 1], frozenset())


@pytest.mark.parametrize("phase", ["rewrite", "guard"])
def test_a_fire_that_is_closed_calls_no_more_hooks_and_is_no_failure(phase, caplog):
    """Python closes an abandoned coroutine outside the context of its run; it must not await anything then."""
    fire = Fire(BEFORE_TOOL, (phase, PASS), (phase, PASS), is_async=True, on_failure="open")
    firing = Firing(fire.registry.stack.chain(BEFORE_TOOL), BEFORE_TOOL, CALL, fire.scope, "")
    context = contextvars.copy_context()
    context.run(CURRENT.set, fire.scope)
    steps = firing.rewrite() if phase == "rewrite" else firing.guard()
    context.run(steps.send, None)  # the first hook waits
    steps.close()
    assert (fire.called, fire.scope.events, firing.failures) == ([], [], ())
    assert caplog.records == []


async def test_within_a_deadline_a_cancellation_does_not_cut_a_hook_short():
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def finish(ctx, payload):
        inside.set()
        await go_on.wait()
        return R.stop("s")

    scope, registry = Quiet(), HookRegistry()
    scope.cancellation.deadline = time.monotonic() + 5
    registry.on(BEFORE_STEP, finish)
    task = asyncio.create_task(registry.fire(BEFORE_STEP, {"index": 1}, ctx=scope.ctx))
    await inside.wait()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    assert (await task).action == "stop"


# Timeouts


@pytest.mark.parametrize("phase", ["rewrite", "guard", "observe"])
@pytest.mark.parametrize("kind", ["sync", "async", "stubborn"])
@pytest.mark.parametrize("on_failure", ["closed", "open"])
async def test_a_hook_that_runs_past_its_timeout_has_failed(phase, kind, on_failure):
    release = threading.Event()
    later = []

    def sync(ctx, payload):
        release.wait()
        return R.block("too late")

    async def hang(ctx, payload):
        await asyncio.sleep(3600)

    async def stubborn(ctx, payload):
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(3600)
        later.append("went on")
        return R.block("too late")

    registry = HookRegistry()
    made = {"sync": sync, "async": hang, "stubborn": stubborn}[kind]
    registry.on(BEFORE_TOOL, made, phase=phase, timeout=0.02, on_failure=on_failure, name="slow")
    if on_failure == "closed":
        with pytest.raises(
            HookError, match=r"hook 'slow' failed at before_tool: .*still running after 0.02 s"
        ) as caught:
            await registry.fire(BEFORE_TOOL, CALL)
        assert isinstance(caught.value.cause, HookTimeoutError)
    else:
        verdict = await registry.fire(BEFORE_TOOL, CALL)
        assert verdict.action == "cont"
        assert len(verdict.failures) == 1
    release.set()
    await asyncio.sleep(0.01)
    assert later == (["went on"] if kind == "stubborn" else [])


async def test_a_timeout_with_on_failure_block_blocks_the_call():
    async def hang(ctx, payload):
        await asyncio.sleep(5)

    verdict = await fire_one(hang, timeout=0.01, on_failure="block")
    assert verdict.action == "block"
    assert "still running after 0.01 s" in verdict.failures[0].message


async def fire_one(made, **options):
    registry = HookRegistry()
    registry.on(BEFORE_TOOL, made, **options)
    return await registry.fire(BEFORE_TOOL, CALL)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_hook_within_its_timeout_decides(is_async):
    verdict = await Fire(BEFORE_TOOL, guard(R.block("no"), timeout=5), is_async=is_async)()
    assert (verdict.action, verdict.value) == ("block", "no")


async def test_a_hooks_own_timeout_error_is_an_error_of_its_own():
    with pytest.raises(HookError, match="TimeoutError: mine") as caught:
        await Fire(BEFORE_TOOL, guard(TimeoutError("mine"), timeout=5))()
    assert not isinstance(caught.value.cause, HookTimeoutError)


async def test_cancelling_the_caller_reaches_a_hook_with_a_timeout():
    inside, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(ctx, payload):
        inside.set()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    task = asyncio.create_task(fire_one(hang, timeout=5))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        await cancelled.wait()


async def test_a_scopes_deadline_holds_for_hooks_without_a_timeout():
    async def hang(ctx, payload):
        await asyncio.sleep(5)

    scope = Quiet()
    scope.cancellation.deadline = time.monotonic() + 0.02
    registry = HookRegistry()
    registry.on(BEFORE_STEP, lambda ctx, step: R.cont())
    registry.on(BEFORE_STEP, hang)
    with pytest.raises(HookError, match="still running after"):
        await registry.fire(BEFORE_STEP, {"index": 1}, ctx=scope.ctx)


# state=


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_state_applies_before_the_next_hook_runs(is_async):
    seen = []

    def grow(ctx, payload):
        seen.append(len(ctx.state.messages))
        return R.cont(state=ctx.state.with_messages(Message("user", "hi")))

    fire = Fire(BEFORE_TOOL, rewriter(grow), rewriter(grow), guard(grow), is_async=is_async)
    fire.registry.on(BEFORE_TOOL, lambda ctx, payload: seen.append(len(ctx.state.messages)), phase="observe")
    await fire()
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("result", [R.block, R.end])
async def test_a_settling_verb_brings_its_state_along(result):
    def decide(ctx, payload):
        return result("x", state=ctx.state.with_metadata(seen=1))

    fire = Fire(BEFORE_TOOL, guard(decide))
    await fire()
    assert fire.scope.state.metadata == {"seen": 1}


async def test_a_state_cannot_be_changed_in_place():
    def meddle(ctx, payload):
        with pytest.raises(TypeError):
            ctx.state.metadata["a"] = 1
        with pytest.raises(AttributeError):
            ctx.state.system_prompt = "x"
        with pytest.raises(AttributeError):
            ctx.state.messages.append(Message("user", "x"))

    await Fire(BEFORE_TOOL, guard(meddle))()


# Retry over the limit


@pytest.mark.parametrize("why", ["retry_limit", "the call did not run"])
@pytest.mark.parametrize("phase", ["rewrite", "guard"])
async def test_a_retry_that_is_not_honoured_does_not_settle(why, phase):
    fire = Fire(AFTER_TOOL, (phase, R.retry("again")), (phase, R.end("bye")), observer(), no_retry=why)
    verdict = await fire()
    assert "".join(fire.called) == "abc"
    assert (verdict.action, verdict.value) == ("end", "bye")
    assert [(e.point, e.hook, e.why) for e in fire.scope.of(RetryIgnored)] == [("after_tool", "a", why)]
    kinds = [s.kind for s in verdict.signals]
    assert kinds == (["retry_limit"] if why == "retry_limit" else [])


@pytest.mark.parametrize("others", [[], [observer()]], ids=["rewriters alone", "with an observer"])
async def test_a_retry_over_the_limit_is_not_honoured_where_there_are_no_listeners(others):
    fire = Fire(AFTER_LLM, rewriter(R.retry("again")), *others, no_retry="retry_limit", scope=Quiet())
    verdict = await fire.at_once()
    assert (verdict.action, [s.kind for s in verdict.signals]) == ("stop", ["retry_limit"])
    fire.no_retry = ""
    assert (await fire.at_once()).action == "retry"


async def test_a_retry_over_the_limit_alone_changes_nothing_but_the_signals():
    verdict = await Fire(AFTER_LLM, rewriter(R.retry("again")), no_retry="retry_limit")()
    assert verdict.action in ("cont", "stop")
    assert [s.kind for s in verdict.signals] == ["retry_limit"]
    assert verdict.payload == sample(AFTER_LLM)


# All orders of sync and async hooks


@each_case("kinds", list(itertools.product(["sync", "async", "object", "timeout", "tools"], repeat=3)))
async def test_sync_and_async_hooks_mix_in_any_order(kinds):
    calls = []

    class Plain:
        def __init__(self, label):
            self.label = label

        async def __call__(self, point, ctx, payload):
            calls.append(self.label)
            return payload.replace(task=payload.task + self.label)

    def make(label, kind):
        def sync(ctx, payload):
            calls.append(label)
            return payload.replace(task=payload.task + label)

        async def later(ctx, payload):
            await asyncio.sleep(0)
            return sync(ctx, payload)

        return {"sync": sync, "async": later, "object": Plain(label), "timeout": sync, "tools": later}[kind]

    registry = HookRegistry()
    for label, kind in zip("abc", kinds, strict=True):
        registry.on(ON_RUN_START, make(label, kind), timeout=5 if kind == "timeout" else None)
        registry.on(ON_RUN_START, lambda ctx, payload: calls.append("-"))
    verdict = await registry.fire(ON_RUN_START, RunStart(">"))
    assert verdict.payload.task == ">abc"
    assert calls == ["a", "-", "b", "-", "c", "-"]
