"""A batch of tool calls: DESIGN 4.2, 4.5, 4.6 and 5.2."""

import asyncio
import threading
import time

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    RunFailedError,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.events import (
    ApprovalDecided,
    RetryIgnored,
    Signalled,
    ToolEnded,
    ToolProgressed,
    ToolSettled,
    ToolStarted,
)
from hookline.payloads import ErrorInfo, ToolCall, Usage
from hookline.points import APPROVAL_DECIDED, TOOL_END_WITH_PATH
from hookline.testing import EventLog, scripted_agent


@tool
def add(a: int, b: int = 10) -> int:
    """Add two numbers."""
    return a + b


ADD = call("add", a=1, b=2)


def results(result):
    return [(m.content, m.is_error) for m in result.messages if m.role == "tool"]


# Order


def test_all_calls_are_judged_before_any_of_them_runs_and_settled_in_call_order():
    seen = []

    @tool
    async def slow(n: int, wait: float) -> int:
        """Wait."""
        await asyncio.sleep(wait)
        seen.append(("ran", n))
        return n

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        seen.append(("judged", request.arguments["n"]))

    @observer(AFTER_TOOL)
    def settle(ctx, result):
        seen.append(("settled", result.result))

    batch = [call("slow", n=1, wait=0.03), call("slow", n=2, wait=0.0)]
    result = scripted_agent([batch, reply("x")], tools=[slow], hooks=[judge, settle]).run("x")
    assert seen == [("judged", 1), ("judged", 2), ("ran", 2), ("ran", 1), ("settled", 1), ("settled", 2)]
    assert [content for content, _ in results(result)] == ["1", "2"]


def test_calls_run_concurrently_up_to_the_cap():
    running, peak = 0, 0

    @tool
    async def work() -> str:
        """Work."""
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.01)
        running -= 1
        return "ok"

    batch = [call("work") for _ in range(6)]
    scripted_agent([batch, reply("x")], tools=[work], max_parallel_tools=3).run("x")
    assert peak == 3


def test_sync_tools_run_in_threads_side_by_side():
    barrier = threading.Barrier(2, timeout=60)

    @tool
    def meet() -> str:
        """Wait for the other one."""
        barrier.wait()
        return str(threading.get_ident())

    result = scripted_agent([[call("meet"), call("meet")], reply("x")], tools=[meet]).run("x")
    threads = {content for content, error in results(result)}
    assert len(threads) == 2
    assert str(threading.get_ident()) not in threads


# Judging


def test_guards_judge_the_validated_arguments_and_the_tool_gets_exactly_those():
    seen, got = [], []

    @tool
    def take(n: int, tags: list[str] | None = None, note: str = "none") -> str:
        """Take."""
        got.append((n, tags, note))
        if tags:
            tags.append("mine")
        return "ok"

    @hook(BEFORE_TOOL)
    def rewrite(ctx, request):
        return request.replace(arguments={**request.arguments, "tags": ["a"]})

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        seen.append(dict(request.arguments))

    agent = scripted_agent([call("take", n="7"), reply("x")], tools=[take], hooks=[judge, rewrite])
    agent.run("x")
    assert seen == [{"n": 7, "tags": ["a"], "note": "none"}]
    assert got == [(7, ["a", "mine"], "none")]  # the tool changed its own copy
    assert agent.model.requests[1].messages[1].tool_calls[0].arguments == {"n": "7"}


def test_invalid_arguments_skip_the_guards_and_still_reach_observers_and_after_tool():
    seen = []

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        seen.append("guard")

    @observer(BEFORE_TOOL)
    def watch(ctx, request, verdict):
        seen.append(str(verdict.action))

    @hook(AFTER_TOOL)
    def after(ctx, result):
        seen.append(result.outcome)

    agent = scripted_agent([call("add", ctiy=1), reply("x")], tools=[add], hooks=[judge, watch, after])
    result = agent.run("x")
    assert seen == ["invalid", "error"]
    assert results(result) == [("Invalid arguments for add: a: field required; you sent: ctiy", True)]


@pytest.mark.parametrize("verb", [HookResult.answer("served"), HookResult.ask("sure?")])
@pytest.mark.parametrize("bad", [call("nope"), call("add", a="x")])
def test_unknown_tools_and_invalid_arguments_are_errors_even_when_answered_or_asked(verb, bad):
    @hook(BEFORE_TOOL)
    def say(ctx, request):
        return verb

    result = scripted_agent([bad, reply("x")], tools=[add], hooks=[say]).run("x")
    assert result.steps[0].outcomes == ("error",)


def test_a_blocked_call_is_recorded_in_errors_without_firing_on_error():
    seen = []

    @hook(ON_ERROR)
    def watch(ctx, failure):
        seen.append(failure)

    @guard(BEFORE_TOOL)
    def block(ctx, request):
        return HookResult.block("Files stay.")

    result = scripted_agent([ADD, reply("x")], tools=[add], hooks=[watch, block]).run("x")
    assert results(result) == [("Files stay.", True)]
    assert [(e.type, e.message, e.source) for e in result.errors] == [("Blocked", "Files stay.", "block")]
    assert seen == []


def test_a_block_without_a_message_names_tool_and_hook():
    @guard(BEFORE_TOOL)
    def no(ctx, request):
        return HookResult.block()

    result = scripted_agent([ADD, reply("x")], tools=[add], hooks=[no]).run("x")
    assert results(result) == [("Tool 'add' was blocked by hook 'no'.", True)]


def test_an_answer_is_served_in_place_of_the_tool_and_judged_by_guards_first():
    @hook(BEFORE_TOOL)
    def cache(ctx, request):
        return HookResult.answer({"cached": True})

    @guard(BEFORE_TOOL)
    def block_two(ctx, request):
        return HookResult.block("no") if request.arguments["a"] == 2 else None

    batch = [ADD, call("add", a=2)]
    result = scripted_agent([batch, reply("x")], tools=[add], hooks=[cache, block_two]).run("x")
    assert result.steps[0].outcomes == ("answered", "blocked")
    assert results(result) == [('{"cached":true}', False), ("no", True)]


def test_a_rewrite_can_send_the_call_to_another_tool_which_guards_then_judge():
    @tool
    def safe_add(a: int, b: int) -> str:
        """Add safely."""
        return "safe"

    @hook(BEFORE_TOOL, tools="add")
    def redirect(ctx, request):
        return request.replace(name="safe_add")

    seen = []

    @guard(BEFORE_TOOL, tools="safe_*")
    def judge(ctx, request):
        seen.append(request.name)

    result = scripted_agent([ADD, reply("x")], tools=[add, safe_add], hooks=[redirect, judge]).run("x")
    assert results(result) == [("safe", False)]
    assert seen == ["safe_add"]


def test_a_closed_failure_while_judging_runs_no_call_of_the_batch():
    ran, settled = [], []

    @tool
    def touch(n: int) -> str:
        """Touch."""
        ran.append(n)
        return "ok"

    @guard(BEFORE_TOOL)
    def broken(ctx, request):
        if request.arguments["n"] == 2:
            raise RuntimeError("guard down")

    @observer(AFTER_TOOL)
    def after(ctx, result):
        settled.append((result.arguments["n"], result.outcome))

    batch = [call("touch", n=n) for n in (1, 2, 3)]
    with pytest.raises(RunFailedError, match="guard down") as caught:
        scripted_agent([batch], tools=[touch], hooks=[broken, after]).run("x")
    assert ran == []
    assert settled == [(1, "cancelled"), (2, "cancelled"), (3, "cancelled")]
    assert len(results(caught.value.result)) == 3


def test_on_failure_block_blocks_that_call_and_the_run_continues():
    @guard(BEFORE_TOOL, on_failure="block")
    def shaky(ctx, request):
        if request.arguments["a"] == 1:
            raise RuntimeError("hm")

    batch = [ADD, call("add", a=2)]
    result = scripted_agent([batch, reply("x")], tools=[add], hooks=[shaky]).run("x")
    assert result.status == "completed"
    assert result.steps[0].outcomes == ("blocked", "ok")
    assert any(error.where == "hook" and not error.fatal for error in result.errors)


# Approvals


def approver(answer):
    @hook(APPROVAL_REQUESTED, name="boss")
    def decide(ctx, request):
        return answer(request) if callable(answer) else answer

    return decide


@guard(BEFORE_TOOL)
def careful(ctx, request):
    return HookResult.ask(f"Add {request.arguments['a']}?")


def run_asked(answer, *hooks, turns=None, tools=(add,)):
    decisions = []

    @observer(APPROVAL_DECIDED)
    def decided(ctx, decision):
        decisions.append((decision.decision, decision.by, decision.message))

    hooks = [careful, decided, *hooks, *([approver(answer)] if answer is not None else [])]
    return scripted_agent(turns or [ADD, reply("x")], tools=tools, hooks=hooks).run("x"), decisions


def test_an_approved_call_runs():
    result, decisions = run_asked(HookResult.approve(by="ann"))
    assert results(result) == [("3", False)]
    assert decisions == [("approved", "ann", "")]


def test_a_denied_call_is_blocked_with_the_message():
    result, decisions = run_asked(HookResult.deny("Too risky."))
    assert results(result) == [("Too risky.", True)]
    assert result.steps[0].outcomes == ("blocked",)
    assert decisions == [("denied", "boss", "Too risky.")]


def test_unclaimed_means_deny():
    result, decisions = run_asked(None)
    assert result.steps[0].outcomes == ("blocked",)
    assert decisions == [("denied", "", "Nobody approved this call.")]


def test_an_approver_that_fails_denies_and_the_run_continues():
    def broken(request):
        raise RuntimeError("phone dead")

    result, decisions = run_asked(broken)
    assert result.status == "completed"
    assert result.steps[0].outcomes == ("blocked",)
    assert decisions == [("denied", "boss", "The approval failed.")]
    assert results(result) == [("The approval failed.", True)]


def test_an_edited_call_is_validated_and_judged_again_by_the_guards():
    seen = []

    @guard(BEFORE_TOOL)
    def no_big_numbers(ctx, request):
        seen.append(request.arguments["a"])
        return HookResult.block("too big") if request.arguments["a"] > 100 else None

    result, decisions = run_asked(HookResult.edit({"a": "5"}), no_big_numbers)
    assert results(result) == [("15", False)]
    assert seen == [1, 5]
    assert decisions[0][0] == "edited"
    result, _ = run_asked(HookResult.edit({"a": 500}), no_big_numbers)
    assert results(result) == [("too big", True)]
    result, _ = run_asked(HookResult.edit({"wrong": 1}), no_big_numbers)
    assert result.steps[0].outcomes == ("error",)


def test_a_call_asked_and_answered_is_asked_first_and_an_edit_drops_the_answer():
    @hook(BEFORE_TOOL)
    def cache(ctx, request):
        return HookResult.answer("from cache") if request.arguments["a"] == 1 else None

    assert results(run_asked(HookResult.approve(), cache)[0]) == [("from cache", False)]
    assert results(run_asked(HookResult.deny("no"), cache)[0]) == [("no", True)]
    assert results(run_asked(HookResult.edit({"a": 2}), cache)[0]) == [("12", False)]


def test_a_call_is_sent_to_the_approvers_once_with_all_questions_and_its_digest():
    requests = []

    @guard(BEFORE_TOOL)
    def also(ctx, request):
        return HookResult.ask("Really?", reason="money")

    def answer(request):
        requests.append(request)
        return HookResult.approve()

    run_asked(answer, also)
    (request,) = requests
    assert [(q.text, q.hook, q.reason) for q in request.questions] == [
        ("Add 1?", "careful", ""),
        ("Really?", "also", "money"),
    ]
    assert request.digest == request.call.digest
    assert len(request.digest) == 64


def test_a_question_is_kept_after_its_hook_was_removed():
    @guard(BEFORE_TOOL)
    def ask_once(ctx, request):
        agent.hooks.unregister(ask_once)
        return HookResult.ask("ok?")

    agent = scripted_agent([ADD, reply("x")], tools=[add], hooks=[ask_once])
    assert agent.run("x").steps[0].outcomes == ("blocked",)


def test_asked_calls_of_a_batch_wait_at_the_same_time():
    waiting = []

    async def answer(request):
        waiting.append(request.call.id)
        while len(waiting) < 2:
            await asyncio.sleep(0.001)
        return HookResult.approve()

    result, _ = run_asked(answer, turns=[[ADD, ADD], reply("x")])
    assert result.steps[0].outcomes == ("ok", "ok")


# Executing


def test_a_tool_that_raises_gives_an_error_result_and_fires_on_error():
    seen = []

    @tool
    def bad() -> str:
        """Fail."""
        raise KeyError("missing")

    @observer(ON_ERROR)
    def watch(ctx, failure):
        seen.append((failure.where, failure.fatal, failure.errors[0].type, failure.errors[0].source))

    result = scripted_agent([call("bad"), reply("x")], tools=[bad], hooks=[watch]).run("x")
    assert results(result) == [("KeyError: 'missing'", True)]
    assert seen == [("tool", False, "KeyError", "bad")]


def test_a_tool_with_a_timeout_becomes_an_error():
    @tool(timeout=0.02)
    async def forever() -> str:
        """Hang."""
        await asyncio.sleep(10)
        return "never"

    @tool(timeout=0.02)
    def stuck() -> str:
        """Hang in a thread."""
        time.sleep(0.15)
        return "late"

    result = scripted_agent([[call("forever"), call("stuck")], reply("x")], tools=[forever, stuck]).run("x")
    assert results(result) == [("TimeoutError: no result after 0.02 s", True)] * 2


def test_progress_comes_in_order_between_start_and_end():
    seen = []

    @tool
    def work(ctx) -> str:
        """Work in a thread."""
        for i in (1, 2, 3):
            ctx.progress(i / 3, f"part {i}")
        return "done"

    @observer(ON_PROGRESS)
    async def watch(ctx, progress):
        await asyncio.sleep(0)
        seen.append((progress.phase, progress.message, progress.outcome))

    scripted_agent([call("work"), reply("x")], tools=[work], hooks=[watch]).run("x")
    assert seen[:-1] == [
        ("tool_start", "work started", None),
        ("progress", "work: part 1 (33%)", None),
        ("progress", "work: part 2 (67%)", None),
        ("progress", "work: part 3 (100%)", None),
    ]
    assert (seen[-1][0], seen[-1][2]) == ("tool_end", "ok")
    assert seen[-1][1].startswith("work finished in ")


def test_a_progress_fraction_outside_zero_to_one_is_the_tools_error():
    @tool
    def work(ctx) -> str:
        """Work."""
        ctx.progress(3)
        return "done"

    result = scripted_agent([call("work"), reply("x")], tools=[work]).run("x")
    assert results(result) == [("ValueError: fraction must be between 0 and 1, not 3", True)]


def test_a_closed_failure_at_on_progress_fails_the_run_and_cancels_what_runs():
    finished = []

    @tool
    async def quick(ctx) -> str:
        """Report, then work on."""
        ctx.progress(0.5, "half")
        await asyncio.sleep(5)
        finished.append("quick")
        return "x"

    @tool
    async def slow() -> str:
        """Work."""
        await asyncio.sleep(5)
        finished.append("slow")
        return "x"

    @observer(ON_PROGRESS, on_failure="closed")
    def meter(ctx, progress):
        if progress.phase == "progress":
            raise RuntimeError("meter broke")

    for batch in ([call("quick")], [call("quick"), call("slow")]):
        with pytest.raises(RunFailedError, match="meter broke") as caught:
            scripted_agent([batch], tools=[quick, slow], hooks=[meter]).run("x")
        assert {m.content for m in caught.value.result.messages if m.role == "tool"} == {
            "Cancelled: the call did not finish."
        }
    assert finished == []


def test_every_attempt_has_one_end_with_its_outcome_and_a_start_if_it_runs():
    @guard(BEFORE_TOOL)
    def some(ctx, request):
        return {1: HookResult.block("no"), 2: HookResult.answer(0)}.get(request.arguments["a"])

    log = EventLog()
    batch = [call("add", a=n) for n in (1, 2, 3)] + [call("nope")]
    scripted_agent([batch, reply("x")], tools=[add], hooks=[some], sinks=[log]).run("x")
    assert [(e.call_id, e.attempt) for e in log.of(ToolStarted)] == [("call_0_2", 1)]
    assert sorted((e.call_id, e.attempt, e.outcome) for e in log.of(ToolEnded)) == [
        ("call_0_0", 1, "blocked"),
        ("call_0_1", 1, "answered"),
        ("call_0_2", 1, "ok"),
        ("call_0_3", 1, "error"),
    ]
    assert [e.outcome for e in log.of(ToolSettled)] == ["blocked", "answered", "ok", "error"]


# Settling


def test_after_tool_changes_what_the_model_and_the_transcript_see():
    @hook(AFTER_TOOL)
    def shorten(ctx, result):
        return result.replace(result="short")

    agent = scripted_agent([ADD, reply("x")], tools=[add], hooks=[shorten])
    result = agent.run("x")
    assert results(result) == [("short", False)]
    assert agent.model.requests[1].messages[-1].content == "short"


def test_a_closed_failure_at_after_tool_withholds_that_output_only():
    @hook(AFTER_TOOL)
    def redact(ctx, result):
        if result.arguments["a"] == 1:
            raise RuntimeError("cannot redact")

    batch = [ADD, call("add", a=5, b=5)]
    with pytest.raises(RunFailedError, match="cannot redact") as caught:
        scripted_agent([batch], tools=[add], hooks=[redact]).run("x")
    assert results(caught.value.result) == [("The result was withheld: its hooks did not finish.", True), ("10", False)]


def test_an_end_at_after_tool_lets_the_other_calls_settle_and_the_first_end_wins():
    seen = []

    @hook(AFTER_TOOL)
    def end(ctx, result):
        seen.append(result.result)
        return HookResult.end(f"enough {result.result}")

    result = scripted_agent([[ADD, call("add", a=2, b=2)]], tools=[add], hooks=[end]).run("x")
    assert seen == [3, 4]
    assert (result.status, result.reply) == ("ended", "enough 3")
    assert results(result) == [("3", False), ("4", False)]


def test_retry_takes_the_models_own_call_through_all_again_before_the_next_settles():
    seen, tries = [], []

    @tool
    def flaky(n: int) -> str:
        """Fail once."""
        tries.append(n)
        if tries.count(n) == 1:
            raise ValueError("once")
        return f"ok {n}"

    @hook(BEFORE_TOOL)
    def before(ctx, request):
        seen.append(("before", request.arguments["n"], request.attempt))
        return request.replace(arguments={"n": request.arguments["n"] + 10})

    @hook(AFTER_TOOL)
    def again(ctx, result):
        seen.append(("after", result.arguments["n"], result.attempt))
        return HookResult.retry() if result.error else None

    batch = [call("flaky", n=1), call("flaky", n=2)]
    result = scripted_agent([batch, reply("x")], tools=[flaky], hooks=[before, again]).run("x")
    assert seen == [
        ("before", 1, 1),
        ("before", 2, 1),
        ("after", 11, 1),
        ("before", 1, 2),
        ("after", 11, 2),
        ("after", 12, 1),
        ("before", 2, 2),
        ("after", 12, 2),
    ]
    assert results(result) == [("ok 11", False), ("ok 12", False)]


def test_a_tool_call_is_retried_at_most_twice_and_the_limit_stops_the_run():
    tries = []

    @tool
    def bad() -> str:
        """Fail."""
        tries.append(1)
        raise ValueError("always")

    @hook(AFTER_TOOL, priority=1)
    def again(ctx, result):
        return HookResult.retry()

    @hook(AFTER_TOOL)
    def later(ctx, result):
        return result.replace(error=f"attempt {result.attempt}")

    log = EventLog()
    result = scripted_agent([call("bad"), reply("x")], tools=[bad], hooks=[again, later], sinks=[log]).run("x")
    assert len(tries) == 3
    assert results(result) == [("attempt 3", True)]  # the remaining hooks were called
    assert (result.status, result.stop.kind) == ("stopped", "retry_limit")
    assert [e.why for e in log.of(RetryIgnored)] == ["retry_limit"]


def test_a_retry_of_a_blocked_call_is_reported_and_ignored():
    @guard(BEFORE_TOOL)
    def block(ctx, request):
        return HookResult.block("no")

    @hook(AFTER_TOOL)
    def again(ctx, result):
        return HookResult.retry()

    log = EventLog()
    result = scripted_agent([ADD, reply("x")], tools=[add], hooks=[block, again], sinks=[log]).run("x")
    assert result.status == "completed"
    assert [e.why for e in log.of(RetryIgnored)] == ["the call was blocked"]


# Paths


def test_tool_end_with_path_fires_for_each_path_the_arguments_named():
    import os
    from pathlib import Path

    seen = []

    @tool
    def copy(source: Path, file_path: str, others: list[Path], text: str) -> str:
        """Copy."""
        return "ok"

    @observer(TOOL_END_WITH_PATH)
    def watch(ctx, payload):
        seen.append((payload.tool, payload.file_path, payload.working_dir))

    made = call("copy", source="a.txt", file_path="b.txt", others=["c", "d"], text="not/a/path")
    scripted_agent([made, reply("x")], tools=[copy], hooks=[watch]).run("x")
    assert seen == [("copy", name, os.getcwd()) for name in ("a.txt", "b.txt", "c", "d")]


def test_a_blocked_call_touched_no_path():
    seen = []

    @tool
    def read(path: str) -> str:
        """Read."""
        return "x"

    @guard(BEFORE_TOOL)
    def block(ctx, request):
        return HookResult.block("no")

    scripted_agent(
        [call("read", path="a"), reply("x")], tools=[read], hooks=[block, observer(TOOL_END_WITH_PATH)(seen_path(seen))]
    ).run("x")
    assert seen == []


def seen_path(seen):
    def watch(ctx, payload):
        seen.append(payload.file_path)

    return watch


# Whatever happens to a batch


def reported(turns, hooks=(), tools=(add,), **options):
    """A run: its result, the payloads of ``on_progress`` and ``after_tool``, and the events."""
    progress, settled, log = [], [], EventLog()

    @observer(ON_PROGRESS)
    def watch(ctx, payload):
        progress.append((payload.phase, payload.call_id, payload.outcome))

    @observer(AFTER_TOOL)
    def settle(ctx, done):
        settled.append((done.id, done.outcome))

    agent = scripted_agent(turns, tools=list(tools), hooks=[*hooks, watch, settle], sinks=[log])
    try:
        result = agent.run("x", **options)
    except RunFailedError as failed:
        result = failed.result
    return result, progress, settled, log


TWO = [ADD, call("add", a=5)]
IDS = ("call_0_0", "call_0_1")


@pytest.mark.parametrize("how", ["end", "raise"])
def test_the_end_of_a_run_during_judging_cancels_all_calls_even_blocked_ones(how):
    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        if request.id == IDS[0]:
            return HookResult.block("no")
        if how == "raise":
            raise ValueError("broken")
        return HookResult.end("over")

    result, progress, settled, log = reported([TWO], [judge])
    assert result.status == {"end": "ended", "raise": "failed"}[how]
    assert settled == [(IDS[0], "cancelled"), (IDS[1], "cancelled")]
    assert progress == [("tool_end", each, "cancelled") for each in IDS]
    assert [(e.call_id, e.outcome) for e in log.of(ToolSettled)] == settled
    assert [m.is_error for m in result.messages if m.role == "tool"] == [True, True]


def test_a_call_that_was_judged_keeps_its_outcome_when_the_run_is_stopped_and_the_others_are_cancelled():
    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        return HookResult.block("no") if request.id == IDS[0] else HookResult.stop("enough")

    result, progress, settled, _ = reported([TWO], [judge])
    assert (result.status, result.stop.message) == ("stopped", "enough")
    assert settled == [(IDS[0], "blocked"), (IDS[1], "cancelled")]
    assert progress == [("tool_end", IDS[0], "blocked"), ("tool_end", IDS[1], "cancelled")]


def test_the_end_of_a_blocked_call_is_reported_before_the_others_start():
    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        return HookResult.block("no") if request.id == IDS[1] else None

    _, progress, settled, _ = reported([TWO, reply("x")], [judge])
    assert progress == [
        ("tool_end", IDS[1], "blocked"),
        ("tool_start", IDS[0], None),
        ("tool_end", IDS[0], "ok"),
    ]
    assert settled == [(IDS[0], "ok"), (IDS[1], "blocked")]


def test_invalid_calls_are_reported_at_on_error_with_their_id():
    failures = []

    @observer(ON_ERROR)
    def watch(ctx, failure):
        failures.append(failure)

    for hooks in ([watch], [watch, guard(BEFORE_TOOL)(lambda ctx, request: None)]):
        failures.clear()
        result, _, settled, _ = reported([[call("nope"), call("add", a="x")], reply("x")], hooks)
        assert settled == [(IDS[0], "error"), (IDS[1], "error")]
        texts = [m.content for m in result.messages if m.role == "tool"]
        assert [error for failure in failures for error in failure.errors] == list(result.errors)
        assert [(e.where, e.type, e.source, e.call_id, e.fatal) for e in result.errors] == [
            ("tool", "InvalidCall", "nope", IDS[0], False),
            ("tool", "InvalidCall", "add", IDS[1], False),
        ]
        assert [e.message for e in result.errors] == texts
        assert "nope" in texts[0]


def test_a_call_whose_arguments_are_no_object_does_not_run_though_its_tool_needs_none():
    ran = []

    @tool
    def ping() -> str:
        """Ping."""
        ran.append(1)
        return "pong"

    garbage = ToolCall("c", "ping", "not json" * 100)
    result, _, settled, _ = reported([garbage, reply("x")], tools=[ping])
    assert (settled, ran) == ([("c", "error")], [])
    assert "not a JSON object" in result.messages[2].content
    assert "not json" in result.messages[2].content
    assert len(result.messages[2].content) < 300

    @hook(BEFORE_TOOL)
    def mend(ctx, request):
        return request.replace(arguments={"a": 1, "b": 2})

    result, _, settled, _ = reported([ToolCall("c", "add", "a=1, b=2"), reply("x")], [mend])
    assert settled == [("c", "ok")]
    assert result.messages[2].content == "3"


def test_an_edited_call_that_is_asked_about_again_counts_as_approved_and_an_answer_holds():
    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("sure?")

    @guard(BEFORE_TOOL)
    def cache(ctx, request):
        return HookResult.answer("known") if request.arguments["a"] == 2 else None

    @hook(APPROVAL_REQUESTED)
    def edit(ctx, payload):
        return HookResult.edit({"a": 2, "b": 2})

    result, _, settled, _ = reported([ADD, reply("x")], [ask, cache, edit])
    assert settled == [(IDS[0], "answered")]
    assert result.messages[2].content == "known"


@pytest.mark.parametrize(("limit", "ran"), [(1, 1), (2, 2)])
def test_calls_over_the_limit_are_cancelled_and_the_signal_is_recorded_once(limit, ran):
    calls = [call("add", a=n) for n in range(4)]
    ctx = AgentContext(budget=Budget(Limits(tool_calls=limit)))
    result, progress, settled, log = reported([calls, reply("x")], ctx=ctx)
    assert [outcome for _, outcome in settled] == ["ok"] * ran + ["cancelled"] * (4 - ran)
    assert (result.status, result.stop.kind) == ("stopped", "tool_calls_limit")
    assert [event.signal.kind for event in log.of(Signalled)] == ["tool_calls_limit"]
    assert ctx.budget.tool_calls == ran
    assert [m.is_error for m in result.messages if m.role == "tool"] == [False] * ran + [True] * (4 - ran)
    assert len(progress) == 4 + ran
    assert result.messages[-1].content == "Cancelled: the tool call limit is reached."


def test_a_blocked_call_does_not_count_against_the_limit():
    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        return HookResult.block("no") if request.id == IDS[0] else None

    ctx = AgentContext(budget=Budget(Limits(tool_calls=5)))
    reported([TWO, reply("x")], [judge], ctx=ctx)
    assert ctx.budget.tool_calls == 1


@pytest.mark.parametrize(
    ("said", "why"),
    [("block", "the call was blocked"), ("answer", "the call was answered"), ("stop", "the run is ending")],
)
def test_an_ignored_retry_is_reported_with_the_reason(said, why):
    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        return {"block": HookResult.block, "answer": HookResult.answer}[said]("x") if said != "stop" else None

    @hook(AFTER_TOOL)
    def again(ctx, done):
        return HookResult.retry()

    @hook(AFTER_TOOL, priority=9)
    def stop(ctx, done):
        return HookResult.stop("enough")

    hooks = [judge, again]
    calls = [ADD]
    if said == "stop":
        hooks, calls = [again, stop], TWO
    *_, log = reported([calls, reply("x")], hooks)
    assert log.of(RetryIgnored)[-1].why == why


async def test_a_call_that_waits_for_approval_is_decided_as_cancelled_when_the_run_is_cancelled():
    decided = []

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("sure?")

    @hook(APPROVAL_REQUESTED)
    async def wait(ctx, payload):
        ctx.interrupt.cancel("bored")
        await asyncio.sleep(30)

    @observer(APPROVAL_DECIDED)
    def watch(ctx, decision):
        decided.append((decision.call_id, decision.decision, decision.by, decision.message))

    log = EventLog()
    result = await scripted_agent([ADD], tools=[add], hooks=[ask, wait, watch], sinks=[log]).arun("x")
    assert result.status == "cancelled"
    assert decided == [(IDS[0], "cancelled", "", "")]
    assert [(e.decision, e.by, e.message) for e in log.of(ApprovalDecided)] == [("cancelled", "", "")]
    assert [e.outcome for e in log.of(ToolEnded)] == ["cancelled"]


def test_the_result_of_a_failed_after_tool_is_withheld_and_the_run_fails():
    @hook(AFTER_TOOL)
    def fail(ctx, done):
        raise ValueError("no")

    result, *_ = reported([ADD], [fail])
    assert result.status == "failed"
    assert "3" not in result.messages[2].content
    assert "withheld" in result.messages[2].content
    assert result.messages[2].is_error


def test_a_tool_may_report_from_a_thread_and_after_its_call_has_ended():
    late = []

    @tool
    def work(ctx) -> str:
        """Work in a thread."""
        ctx.progress(0.25, "a quarter")
        late.append(ctx)
        return "done"

    @observer(AFTER_TOOL)
    def too_late(ctx, done):
        late[0].progress(0.5, "too late")

    result, progress, _, log = reported([call("work"), reply("x")], [too_late], tools=[work])
    assert [(e.fraction, e.call_id, e.tool) for e in log.of(ToolProgressed)] == [(0.25, IDS[0], "work")]
    assert [phase for phase, *_ in progress] == ["tool_start", "progress", "tool_end"]
    late[0].progress(0.75)  # the run has ended: ignored
    assert result.status == "completed"


def test_a_denial_without_a_message_has_a_default_message():
    result, decisions = run_asked(HookResult.deny(""))
    message = "Tool 'add' was denied by hook 'boss'."
    assert results(result) == [(message, True)]
    assert decisions == [("denied", "boss", message)]


def test_a_call_that_ran_before_the_limit_was_met_is_not_run_again():
    @hook(AFTER_TOOL)
    def again(ctx, done):
        return HookResult.retry() if done.outcome == "ok" else None

    ctx = AgentContext(budget=Budget(Limits(tool_calls=1)))
    result, _, settled, log = reported([TWO, reply("x")], [again], ctx=ctx)
    assert settled == [(IDS[0], "ok"), (IDS[1], "cancelled")]
    assert [event.why for event in log.of(RetryIgnored)] == ["the run is ending"]


def test_a_cancelled_error_raised_by_a_tool_is_its_error():
    @tool
    async def odd() -> str:
        """Raise CancelledError."""
        raise asyncio.CancelledError

    result, _, settled, _ = reported([call("odd"), reply("x")], tools=[odd])
    assert (result.status, settled) == ("completed", [("call_0_0", "error")])


def test_progress_is_reported_before_the_end_even_without_hooks():
    heard = []

    def sink(event):
        heard.append(type(event))

    sink.events = frozenset((ToolStarted, ToolProgressed, ToolEnded))

    @tool
    async def quick(ctx) -> str:
        """Report and return."""
        ctx.progress(1.0, "there")
        return "ok"

    scripted_agent([call("quick"), reply("x")], tools=[quick], sinks=[sink]).run("x")
    assert heard == [ToolStarted, ToolProgressed, ToolEnded]


@tool
async def fail(n: int) -> str:
    """Fail."""
    raise ValueError(n)


async def test_a_call_whose_failure_fails_the_run_interrupts_the_others():
    broken_off = []

    @tool
    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            broken_off.append("wait")
            raise
        return "late"

    @hook(ON_ERROR, name="broken")
    def broken(ctx, failure):
        raise KeyError("closed")

    with pytest.raises(RunFailedError, match="'broken' failed at on_error"):
        await scripted_agent([[call("wait"), call("fail", n=1)]], tools=[wait, fail], hooks=[broken]).arun("x")
    assert broken_off == ["wait"]


@pytest.mark.parametrize("which", range(0, 8, 2))
def test_of_calls_that_end_and_fail_a_run_at_the_same_moment_the_failure_counts(which):
    @tool
    async def either(n: int, ctx) -> str:
        """Fail, or have the run ended."""
        if n == which:
            raise ValueError(n)
        return (await ctx.llm.complete("?", purpose="end")).content

    @guard(BEFORE_LLM)
    def wall(ctx, request):
        return HookResult.end("over") if request.purpose == "end" else None

    @hook(ON_ERROR, name="broken")
    def broken(ctx, failure):
        raise KeyError("closed")

    calls = [call("either", n=n) for n in range(8)]
    with pytest.raises(RunFailedError, match="'broken' failed at on_error"):
        scripted_agent([calls], tools=[either], hooks=[wall, broken], max_parallel_tools=8).run("x")


async def test_calls_that_ignore_a_cancellation_do_not_block_the_run():
    gate = asyncio.Event()

    @tool
    async def stubborn(ctx) -> str:
        """Ignore cancellations."""
        ctx.interrupt.cancel("bored")
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    agent = scripted_agent([[call("stubborn"), call("stubborn")]], tools=[stubborn])
    result = await asyncio.wait_for(agent.arun("x"), 20)
    gate.set()
    assert (result.status, result.steps[0].outcomes) == ("cancelled", ("cancelled", "cancelled"))


@pytest.mark.parametrize("why", ["signal", "limit"])
def test_the_calls_of_a_stopping_run_are_not_judged(why):
    judged = []

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        judged.append(request.id)

    @hook(AFTER_LLM)
    def stop(ctx, answer):
        if why == "signal":
            return HookResult.stop("enough")
        budget.charge(Usage(50, 50), 0.0)
        return None

    budget = Budget(Limits(tokens=100))
    ctx = AgentContext(budget=budget if why == "limit" else None)
    result, _, settled, _ = reported([TWO, reply("x")], [judge, stop], ctx=ctx)
    assert (result.status, [outcome for _, outcome in settled]) == ("stopped", ["cancelled", "cancelled"])
    assert judged == []


def test_an_edited_call_is_not_rewritten_again_and_judged_again():
    seen = []

    @hook(BEFORE_TOOL)
    def rewriter(ctx, request):
        seen.append(("rewrite", request.arguments["a"]))

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        seen.append(("guard", request.arguments["a"]))

    hooks = [rewriter, careful, judge, approver(HookResult.edit({"a": 5}))]
    result = scripted_agent([ADD, reply("x")], tools=[add], hooks=hooks).run("x")
    assert results(result) == [("15", False)]
    assert seen == [("rewrite", 1), ("guard", 1), ("guard", 5)]


def test_a_tool_that_exits_the_program_does_so_while_others_run():
    @tool
    async def leave() -> str:
        """Leave."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scripted_agent([[call("leave"), ADD], reply("x")], tools=[leave, add]).run("x")


def test_a_limit_reached_by_tool_calls_is_reported_even_in_the_last_step():
    agent = scripted_agent([TWO, reply("x")], tools=[add], limits=Limits(steps=1))
    result = agent.run("x", ctx=AgentContext(budget=Budget(Limits(tool_calls=1))))
    assert (result.stop.kind, result.steps[0].outcomes) == ("tool_calls_limit", ("ok", "cancelled"))


async def test_the_end_of_a_call_is_reported_though_its_tool_ignored_the_cancellation():
    """A slow hook at on_progress delays the report of an abandoned call while the run ends."""
    log, ready = EventLog(), asyncio.Event()

    @tool
    async def stubborn(ctx) -> str:
        """Ignore a cancellation, and report."""
        try:
            ready.set()
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            ctx.progress(0.5, "still here")
        return "late"

    @tool
    async def fail_the_run(ctx) -> str:
        """End the run through a hook around a model call."""
        await ready.wait()
        await ctx.llm.complete("x")
        return "never"

    @hook(BEFORE_LLM)
    def end(ctx, request):
        return HookResult.end("over") if request.purpose != "step" else None

    @observer(ON_PROGRESS)
    async def slow(ctx, progress):
        await asyncio.sleep(0.01)

    agent = scripted_agent(
        [[call("stubborn"), call("fail_the_run")]], tools=[stubborn, fail_the_run], hooks=[end, slow]
    )
    await agent.arun("x", sinks=[log])
    started = [event.call_id for event in log if isinstance(event, ToolStarted)]
    ended = [event.call_id for event in log if isinstance(event, ToolEnded)]
    assert len(started) == 2
    assert sorted(started) == sorted(ended)


# Arguments that hooks change in place


def test_a_call_whose_arguments_were_changed_in_place_after_they_were_validated_is_blocked():
    @guard(BEFORE_TOOL)
    def change(ctx, request):
        dict.__setitem__(request.arguments, "a", 9)

    result = scripted_agent([ToolCall("c", "add", {"a": 1}), reply("x")], tools=[add], hooks=[change]).run("x")
    said = "Blocked: a hook changed the arguments of this call in place."
    assert results(result) == [(said, True)]
    assert result.errors == (ErrorInfo("tool", "Blocked", said, "", "c"),)


def test_a_rewriter_that_changes_the_arguments_in_place_changes_nothing():
    @hook(BEFORE_TOOL)
    def change(ctx, request):
        dict.__setitem__(request.arguments, "a", 9)

    result = scripted_agent([ADD, reply("x")], tools=[add], hooks=[change]).run("x")
    assert results(result) == [("3", False)]
    assert result.messages[1].tool_calls[0].arguments == {"a": 1, "b": 2}


def test_progress_is_reported_before_the_result_even_if_start_and_end_are_not_wanted():
    reported = []

    class Sink:
        events = frozenset((ToolProgressed, ToolSettled))

        def __call__(self, event):
            reported.append(type(event))

    @tool
    async def work(ctx: AgentContext) -> str:
        """Work."""
        ctx.progress(0.5, "half")
        return "done"

    scripted_agent([call("work"), reply("x")], tools=[work]).run("x", sinks=[Sink()])
    assert reported == [ToolProgressed, ToolSettled]


def test_a_closed_failure_at_tool_end_with_path_fails_the_run_and_the_results_are_recorded():
    @tool
    def read(path: str) -> str:
        """Read."""
        return "text"

    @observer(TOOL_END_WITH_PATH)
    def shaky(ctx, path):
        raise ValueError("first")

    @hook(ON_ERROR)
    def broken(ctx, failure):
        raise OSError("second")

    with pytest.raises(RunFailedError, match="'broken' failed at on_error") as failed:
        scripted_agent([call("read", path="a"), reply("x")], tools=[read], hooks=[shaky, broken]).run("x")
    assert results(failed.value.result) == [("text", False)]


def test_a_thread_may_report_progress_after_the_loop_of_its_run_was_closed():
    contexts = []

    @tool
    async def work(ctx: AgentContext) -> str:
        """Work."""
        contexts.append(ctx)
        return "done"

    asyncio.run(scripted_agent([call("work"), reply("x")], tools=[work]).arun("x"))
    contexts[0].progress(0.5, "late")
