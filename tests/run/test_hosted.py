"""Runs that a host executes and asks about, moment by moment: they have what every run has."""

import asyncio

import pytest

from hookline import (
    BEFORE_TOOL,
    HookError,
    HookResult,
    Limits,
    Session,
    guard,
    hook,
    observer,
)
from hookline._kernel.payloads import Compaction
from hookline._kernel.values import ToolCall
from hookline._run.hosted import HostedAgent
from hookline.events import (
    ApprovalAsked,
    ApprovalDecided,
    HookExecuted,
    PointFired,
    RunFinished,
    RunStarted,
    SubagentEvent,
    TaskTaken,
    ToolEnded,
    ToolSettled,
    ToolStarted,
)
from hookline.hooks import Compactor, ContextCompactionHook, ToolCallsLimitHook
from hookline.points import (
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_COMPACTION,
    BEFORE_PROMPT_BUILD,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    SESSION_START,
)


class Host:
    """A host with these hooks, and the events of its runs."""

    def __init__(self, *hooks, **options):
        self.events = []
        self.agent = HostedAgent("host", hooks=hooks, sinks=[self.events.append], **options)

    async def start(self, task="Tidy up.", **options):
        return await self.agent.host(task, **options)

    def told(self, *kinds):
        return [event for event in self.events if isinstance(event, kinds)]

    def ended(self):
        """The calls that have ended, each with its outcome."""
        return [(event.call_id, event.outcome) for event in self.told(ToolEnded)]


def shell(command, id="c1"):
    return ToolCall(id, "shell", {"command": command})


@guard(BEFORE_TOOL, tools="shell")
def judge(ctx, request):
    command = request.arguments["command"]
    if "blocked" in command:
        return HookResult.block("Not this one.")
    if "broken" in command:
        raise RuntimeError("no idea")
    if "end" in command:
        return HookResult.end("That is enough.")
    if "stop" in command:
        return HookResult.stop("No more.")
    return HookResult.ask("May it run?") if "asked" in command else None


@hook(BEFORE_TOOL, tools="shell")
def rewrite(ctx, request):
    if "changed" in request.arguments["command"]:
        return request.replace(arguments={"command": "ls"})


@hook(AFTER_TOOL, tools="shell")
def redact(ctx, result):
    if "secret" in str(result.result):
        return result.replace(result="(redacted)")
    return HookResult.retry("Once more.") if result.result == "half" else None


async def test_a_run_of_a_host_has_the_events_and_the_transcript_of_every_run():
    host = Host(judge, rewrite, redact)
    run = await host.start(session=Session("s1"))
    judged = await run.judge_call(shell("changed"))
    assert (judged.outcome, dict(judged.request.arguments)) == ("allowed", {"command": "ls"})
    settled = await run.settle_call("c1", "the secret", seconds=1.5)
    assert settled.result.result == "(redacted)"
    refused = await run.judge_call(shell("blocked", "c2"))
    assert (refused.outcome, refused.result.error, refused.by) == ("refused", "Not this one.", "judge")
    assert await run.end("Done.") is None
    names = [type(event).__name__ for event in host.events if not isinstance(event, (HookExecuted, PointFired))]
    assert names == [
        *("RunStarted", "TaskTaken", "ToolStarted", "ToolEnded", "ToolSettled", "Failed", "ToolEnded"),
        *("ToolSettled", "Signalled", "RunFinished"),
    ]
    assert host.ended() == [("c1", "ok"), ("c2", "blocked")]
    assert [event.text for event in host.told(ToolSettled)] == ["(redacted)", "Not this one."]
    assert 1.5 <= host.told(ToolEnded)[0].duration < 2
    result = run.result
    assert (result.status, result.reply, result.tool_calls, result.task) == ("completed", "Done.", 2, "Tidy up.")
    assert [message.role for message in result.messages] == ["user", *("assistant", "tool") * 2, "assistant"]


async def test_the_hooks_of_the_start_judge_the_task_and_only_the_first_run_of_a_session_starts_it():
    fired = []

    @hook(ON_RUN_START)
    def change(ctx, start):
        return start.replace(task=start.task.upper()) if start.task != "no" else HookResult.end("Not today.")

    @hook(BEFORE_PROMPT_BUILD)
    def prompt(ctx, build):
        return HookResult.merge(append_system="Be brief.")

    @observer(SESSION_START, ON_RUN_START)
    def watch(ctx, payload):
        fired.append(type(payload).__name__)

    host, session = Host(change, prompt, watch), Session("s1")
    run = await host.start("go", session=session)
    assert (run.task, run.system_prompt) == ("GO", "Be brief.")
    await run.end("Done.")
    await (await host.start("go", session=session)).end()
    assert fired == ["SessionStart", "RunStart", "RunStart"]
    ended = await host.start("no", session=session)
    assert ended.done
    assert (ended.result.status, ended.result.reply) == ("ended", "Not today.")
    later = await host.start("later", goes_on=True)
    assert not later.done
    assert len(fired) == 4
    await later.end()


async def test_calls_in_flight_are_settled_in_any_order():
    host = Host(redact)
    run = await host.start()
    for number in range(5):
        await run.judge_call(shell("ls", f"c{number}"))
    assert [request.id for request in run.in_flight] == ["c0", "c1", "c2", "c3", "c4"]
    for number in (3, 0, 4):
        assert (await run.settle_call(f"c{number}", f"result {number}")).result.result == f"result {number}"
    assert (await run.settle_call("c1", error="No such file.")).result.error == "No such file."
    await run.end("Done.")
    assert host.ended() == [("c3", "ok"), ("c0", "ok"), ("c4", "ok"), ("c1", "error"), ("c2", "cancelled")]
    assert (run.result.reply, run.result.messages[-1].content) == ("Done.", "Done.")
    assert len(host.told(ToolStarted)) == 5


async def test_a_question_that_no_approver_answers_is_put_to_the_user_of_the_host():
    @hook(APPROVAL_REQUESTED)
    def approver(ctx, asked):
        if "edited" in asked.call.arguments["command"]:
            return HookResult.edit({"command": "ls"}, by="anna")
        return None

    host = Host(judge, approver)
    run = await host.start()
    judged = await run.judge_call(shell("asked"), unasked=lambda request, questions: "")
    assert (judged.outcome, judged.questions[0].text) == ("asked", "May it run?")
    assert not host.told(ApprovalDecided, ToolStarted)
    await run.settle_call("c1", "ok", approved_by="user")
    (decided,) = host.told(ApprovalDecided)
    assert (decided.decision, decided.by) == ("approved", "user")
    await run.judge_call(shell("asked", "c2"), unasked=lambda request, questions: "")
    assert (await run.deny_call("c2", "No.", by="user")).error == "No."
    nobody = await run.judge_call(shell("asked", "c3"), unasked=lambda request, questions: "Ask somebody else.")
    assert nobody.result.error == "Ask somebody else."
    edited = await run.judge_call(shell("asked edited", "c4"))
    assert dict(edited.request.arguments) == {"command": "ls"}
    await run.judge_call(shell("asked", "c5"), unasked=lambda request, questions: "")
    await run.end()
    assert [event.decision for event in host.told(ApprovalDecided)] == [
        *("approved", "denied", "denied", "edited", "cancelled"),
    ]
    assert sorted(host.ended()) == [
        *(("c1", "ok"), ("c2", "blocked"), ("c3", "blocked")),
        *(("c4", "cancelled"), ("c5", "cancelled")),
    ]


async def test_a_guard_that_fails_denies_the_call_and_the_run_goes_on():
    host = Host(judge)
    run = await host.start()
    judged = await run.judge_call(shell("broken"))
    assert judged.outcome == "refused"
    assert isinstance(judged.failure, HookError)
    assert (await run.judge_call(shell("ls", "c2"))).outcome == "allowed"
    await run.settle_call("c2", "x")
    await run.end()
    assert run.result.status == "completed"
    assert [(error.source, error.fatal) for error in run.result.errors] == [("judge", False)]


@pytest.mark.parametrize(
    ("command", "reason", "status"), [("end", "That is enough.", "ended"), ("stop", "No more.", "stopped")]
)
async def test_after_an_end_or_a_stop_no_call_is_allowed_and_results_are_still_judged(command, reason, status):
    host = Host(judge, redact)
    run = await host.start()
    await run.judge_call(shell("ls", "c0"))
    judged = await run.judge_call(shell(command))
    assert (judged.outcome, judged.over) == ("refused", reason)
    again = await run.judge_call(shell("ls", "c2"))
    assert (again.outcome, again.over) == ("refused", reason)
    assert (await run.settle_call("c0", "a secret")).result.result == "(redacted)"
    await run.end("Done.")
    assert run.result.status == status


async def test_limits_of_the_agent_and_of_hooks_hold():
    host = Host(limits=Limits(tool_calls=1))
    run = await host.start()
    assert (await run.judge_call(shell("ls"))).outcome == "allowed"
    await run.settle_call("c1", "x")
    judged = await run.judge_call(shell("ls", "c2"))
    assert (judged.outcome, judged.result.outcome) == ("refused", "cancelled")
    assert "Tool call limit reached: 1/1" in judged.over
    await run.end()
    assert run.result.stop.kind == "tool_calls_limit"
    budget = await Host(ToolCallsLimitHook(1)).start()
    await budget.judge_call(shell("ls"))
    assert (await budget.judge_call(shell("ls", "c2"))).outcome == "refused"
    await budget.end()


async def test_a_result_whose_call_was_not_judged_here_is_judged_and_counted_once():
    host = Host(redact)
    run = await host.start(goes_on=True)
    for _ in range(2):  # the host reports it twice
        settled = await run.settle_call(shell("cat", "old"), "a secret")
        assert settled.result.result == "(redacted)"
    assert (await run.settle_call(shell("cat", "older"), "half")).retry == "Once more."
    await run.end()
    assert host.ended() == [("old", "ok"), ("older", "ok")]


async def test_a_call_that_is_asked_about_twice_is_judged_twice_and_counts_once():
    seen = []

    @guard(BEFORE_TOOL)
    def count(ctx, request):
        seen.append(request.id)

    host = Host(count, limits=Limits(tool_calls=1))
    run = await host.start()
    assert (await run.judge_call(shell("ls"))).outcome == "allowed"
    assert (await run.judge_call(shell("ls"))).outcome == "allowed"
    assert (await run.judge_call(ToolCall("", "shell", {"command": "ls"}))).outcome == "allowed"
    await run.settle_call("c1", "x")
    await run.end()
    assert seen == ["c1", "c1", "c1"]
    assert host.ended() == [("c1", "ok")]
    assert len(host.told(ToolStarted)) == 1


async def test_ids_that_a_host_uses_again_are_different_calls():
    host = Host()
    run = await host.start()
    for text in ("one", "two"):
        await run.judge_call(shell(text))
        await run.settle_call("c1", text)
    await run.end()
    assert host.ended() == [("c1", "ok"), ("c1_2", "ok")]


async def test_a_hook_keeps_a_run_going_as_often_as_the_host_allows():
    @guard(ON_STOP)
    def more(ctx, stopping):
        return HookResult.keep_going("Run the tests.")

    host = Host(more)
    run = await host.start(max_keep_going=2)
    assert [await run.end("Done.") for _ in range(3)] == ["Run the tests.", "Run the tests.", None]
    assert run.result.status == "completed"


async def test_any_point_can_be_fired_in_the_run():
    @guard(BEFORE_COMPACTION)
    def keep(ctx, compaction):
        ctx.scratch["asked"] = ctx.run_id
        return HookResult.block("Not now.")

    host = Host(keep)
    run = await host.start()
    verdict = await run.fire(BEFORE_COMPACTION, Compaction((), "auto"))
    assert verdict.value == "Not now."
    assert run.ctx.scratch["asked"] == run.id
    assert [event.hook for event in host.told(HookExecuted)] == ["keep"]
    await run.end()


async def test_a_nested_run_is_part_of_the_outer_one():
    host = Host(judge)
    run = await host.start()
    await run.judge_call(ToolCall("c1", "delegate", {"task": "Look."}))
    nested = await host.start("Look.", ctx=run.ctx, goes_on=True, call_id="c1")
    assert (await nested.judge_call(shell("blocked"))).outcome == "refused"
    assert nested.run.ids.parent_run_id == run.id
    await nested.end("Looked.")
    await run.settle_call("c1", "Looked.")
    left = await host.start("Look again.", ctx=run.ctx, goes_on=True)
    await run.end("Done.")
    assert left.done
    assert left.result.status == "cancelled"
    assert {type(event.event) for event in host.told(SubagentEvent)} >= {RunStarted, ToolEnded, RunFinished}


async def test_a_host_that_does_not_wait_for_the_verdict_gets_no_call():
    @guard(BEFORE_TOOL)
    async def slow(ctx, request):
        await asyncio.sleep(60)

    host = Host(slow)
    run = await host.start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run.judge_call(shell("ls"))
    assert run.in_flight == ()
    await run.end()
    assert host.ended() == [("c1", "cancelled")]


async def test_a_run_that_somebody_cancels_ends_and_settles_what_is_open():
    ended = []

    @observer(ON_RUN_END)
    def watch(ctx, result):
        ended.append((result.status, result.tool_calls))

    host = Host(watch, judge)
    run = await host.start()
    await run.judge_call(shell("ls"))
    run.run.cancel("enough")
    await run.run.settled()
    assert ended == [("cancelled", 1)]
    assert host.ended() == [("c1", "cancelled")]
    assert await run.end() is None


async def test_a_message_that_was_steered_keeps_the_run_going():
    host = Host()
    run = await host.start()
    run.run.steer("Look at the tests too.")
    assert await run.end("Done.") == "Look at the tests too."
    assert await run.end("Done now.") is None
    assert [event.task for event in host.told(TaskTaken)] == ["Tidy up."]


async def test_what_is_asked_is_answered_by_an_approver_at_once():
    @hook(APPROVAL_REQUESTED)
    def approver(ctx, asked):
        return HookResult.approve(by="anna")

    host = Host(judge, approver)
    run = await host.start()
    assert (await run.judge_call(shell("asked"))).outcome == "allowed"
    await run.settle_call("c1", "x")
    await run.end()
    assert [event.by for event in host.told(ApprovalDecided)] == ["anna"]
    assert len(host.told(ApprovalAsked)) == 1


async def test_a_hook_that_compacts_leaves_the_conversation_to_the_host():
    """It has no model to count tokens with, and the host keeps the conversation itself."""
    run = await Host(ContextCompactionHook(Compactor(100))).start("Tidy up. " * 10_000)
    assert not run.done
    assert await run.end("Done.") is None
    assert (run.result.status, run.result.errors) == ("completed", ())
