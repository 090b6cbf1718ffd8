"""The behaviours of hooks that every loop must have: Hookline's own, and those of other frameworks under an adapter.

A behaviour is a function of ``run``, which runs one case and returns its outcome. ``@behaviour`` names the points and
verbs that it needs; if a framework cannot express one of them, attaching the hooks must fail instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hookline import Agent, HookResult, Limits, Message, guard, hook, observer
from hookline.hooks import AuditLogHook
from hookline.models import ScriptedModel, call, reply
from hookline.plugins import Plugin
from hookline.points import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_DECIDED,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    ON_TOKEN,
)
from hookline.records import Account
from hookline.records.reading import read_runs
from hookline.stores import verify_audit
from hookline.tape import Tape, TapeHook

from .loops import Case, LoopDriver, Outcome

Behaviour = Callable[["Bench"], Awaitable[None]]
BEHAVIOURS: dict[str, tuple[Behaviour, tuple[str, ...]]] = {}
"""All behaviours by their sentence, with the points and verbs that each of them needs."""


def behaviour(*needs: str) -> Callable[[Behaviour], Behaviour]:
    """Add a behaviour; its name is the sentence."""

    def add(function: Behaviour) -> Behaviour:
        BEHAVIOURS[function.__name__.replace("_", " ")] = function, needs
        return function

    return add


class Bench:
    """Runs cases in one loop, with two tools that keep a list of their calls."""

    def __init__(self, driver: LoopDriver, mode: str, folder: Path) -> None:
        self.driver, self.mode, self.folder = driver, mode, folder
        self.ran: list[str] = []
        """The commands that the tool ``shell`` really ran."""
        self.model = ScriptedModel()

        def shell(command: str) -> str:
            """Run a command."""
            self.ran.append(command)
            return f"ran {command}"

        def read(path: str) -> str:
            """Read a file."""
            self.ran.append(f"read {path}")
            return "mail ada@example.com"

        self.tools: list[Callable[..., Any]] = [shell, read]

    async def __call__(self, turns: list[Any], *hooks: Any, **options: Any) -> Outcome:
        self.model = ScriptedModel(turns)
        case = Case(self.model, self.tools, hooks, options, mode=self.mode)
        return await self.driver.run(case)

    def seen(self, request: int) -> list[str]:
        """Return the texts that the model got in a request, without empty ones."""
        return [each.content for each in self.model.requests[request].messages if each.content]


SHELL = [call("shell", command="ls"), reply("Done.")]


# Tool calls.


@behaviour("before_tool.block")
async def a_guard_blocks_a_call_and_the_model_reads_the_reason(run: Bench) -> None:
    @guard(BEFORE_TOOL)
    def no_sudo(ctx, request):
        return HookResult.block("No sudo here.") if "sudo" in request.arguments["command"] else None

    outcome = await run([call("shell", command="sudo ls"), reply("I may not.")], no_sudo)
    assert run.ran == []
    assert run.seen(1)[-1] == "No sudo here."
    assert (outcome.reply, outcome.status) == ("I may not.", "completed")


@behaviour("before_tool.replace")
async def a_rewriter_changes_arguments_and_the_tool_gets_them(run: Bench) -> None:
    @hook(BEFORE_TOOL)
    def quiet(ctx, request):
        return HookResult.replace({"arguments": {"command": request.arguments["command"] + " -q"}})

    await run(SHELL, quiet)
    assert run.ran == ["ls -q"]
    assert run.seen(1)[-1] == "ran ls -q"


@behaviour("before_tool.replace", "before_tool.block")
async def a_guard_judges_the_arguments_that_run_after_a_rewrite(run: Bench) -> None:
    judged = []

    @guard(BEFORE_TOOL, priority=100)
    def judge(ctx, request):
        judged.append(request.arguments["command"])
        return HookResult.block("No.") if "rm" in request.arguments["command"] else None

    @hook(BEFORE_TOOL, priority=-100)
    def late(ctx, request):
        return HookResult.replace({"arguments": {"command": "rm -r x"}})

    await run(SHELL, judge, late)
    assert judged == ["rm -r x"]
    assert run.ran == []


@behaviour("before_tool")
async def hooks_are_called_by_phase_and_priority(run: Bench) -> None:
    order = []

    def named(name, decorate):
        @decorate
        def each(ctx, request):
            order.append(name)

        return each

    await run(
        SHELL,
        named("observer", observer(BEFORE_TOOL, priority=9)),
        named("guard", guard(BEFORE_TOOL)),
        named("low", hook(BEFORE_TOOL, priority=1)),
        named("high", hook(BEFORE_TOOL, priority=2)),
    )
    assert order == ["high", "low", "guard", "observer"]


@behaviour("before_tool.block")
async def a_glob_selects_the_tools_that_a_hook_judges(run: Bench) -> None:
    @guard(BEFORE_TOOL, tools="re*")
    def nothing_read(ctx, request):
        return HookResult.block("No reading.")

    await run([[call("shell", command="ls"), call("read", path="a")], reply("Done.")], nothing_read)
    assert run.ran == ["ls"]
    assert "No reading." in run.seen(1)


@behaviour("before_tool")
async def a_failing_guard_fails_closed_and_the_tool_does_not_run(run: Bench) -> None:
    @guard(BEFORE_TOOL)
    def broken(ctx, request):
        raise ValueError("the guard is broken")

    outcome = await run(SHELL, broken)
    assert run.ran == []
    assert outcome.status == "failed"
    assert "the guard is broken" in str(outcome.error)
    assert len(run.model.requests) == 1


@behaviour("before_tool")
async def a_failing_guard_may_block_only_its_call(run: Bench) -> None:
    @guard(BEFORE_TOOL, on_failure="block")
    def broken(ctx, request):
        raise ValueError("the guard is broken")

    outcome = await run(SHELL, broken)
    assert run.ran == []
    assert (outcome.reply, outcome.status) == ("Done.", "completed")


@behaviour("before_tool", "after_llm")
async def a_failing_observer_changes_nothing(run: Bench) -> None:
    @observer(BEFORE_TOOL, AFTER_LLM)
    def broken(ctx, payload):
        raise ValueError("the observer is broken")

    outcome = await run(SHELL, broken)
    assert run.ran == ["ls"]
    assert (outcome.reply, outcome.status) == ("Done.", "completed")
    assert any("the observer is broken" in error.message for error in outcome.result.errors)


@guard(BEFORE_TOOL)
def ask_first(ctx, request):
    return HookResult.ask("May it run?")


@behaviour("before_tool.ask", "approval_requested")
async def an_approved_call_runs(run: Bench) -> None:
    @hook(APPROVAL_REQUESTED)
    def approve(ctx, asked):
        return HookResult.approve(by="ada")

    decided = []

    @observer(APPROVAL_DECIDED)
    def note(ctx, decision):
        decided.append((decision.decision, decision.by))

    await run(SHELL, ask_first, approve, note)
    assert run.ran == ["ls"]
    assert decided == [("approved", "ada")]


@behaviour("before_tool.ask", "approval_requested")
async def a_denied_call_does_not_run_and_the_model_reads_why(run: Bench) -> None:
    @hook(APPROVAL_REQUESTED)
    def deny(ctx, asked):
        return HookResult.deny("Not today.")

    await run(SHELL, ask_first, deny)
    assert run.ran == []
    assert run.seen(1)[-1] == "Not today."


@behaviour("before_tool.ask", "approval_requested")
async def an_edited_call_runs_with_the_edited_arguments_if_guards_allow_them(run: Bench) -> None:
    judged = []

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        judged.append(request.arguments["command"])

    @hook(APPROVAL_REQUESTED)
    def edit(ctx, asked):
        return HookResult.edit({"command": "ls -a"})

    await run(SHELL, ask_first, judge, edit)
    assert run.ran == ["ls -a"]
    assert judged == ["ls", "ls -a"]


@behaviour("before_tool.ask")
async def a_question_that_nobody_answers_denies_the_call(run: Bench) -> None:
    outcome = await run(SHELL, ask_first)
    assert run.ran == []
    assert run.seen(1)[-1] == "Nobody approved this call."
    assert outcome.status == "completed"


@behaviour("before_tool.answer")
async def a_hook_answers_instead_of_the_tool(run: Bench) -> None:
    @hook(BEFORE_TOOL)
    def cached(ctx, request):
        return HookResult.answer("from the cache")

    await run(SHELL, cached)
    assert run.ran == []
    assert run.seen(1)[-1] == "from the cache"


@behaviour("before_tool.end")
async def a_guard_of_a_call_ends_the_run_with_its_reply(run: Bench) -> None:
    @guard(BEFORE_TOOL)
    def enough(ctx, request):
        return HookResult.end("That is enough.")

    outcome = await run(SHELL, enough)
    assert run.ran == []
    assert (outcome.reply, outcome.status) == ("That is enough.", "ended")
    assert len(run.model.requests) == 1


@behaviour("before_tool.stop")
async def a_stop_at_a_call_stops_the_run_before_the_tool(run: Bench) -> None:
    @guard(BEFORE_TOOL)
    def halt(ctx, request):
        return HookResult.stop("Halt.")

    outcome = await run(SHELL, halt)
    assert run.ran == []
    assert outcome.status == "stopped"
    assert len(run.model.requests) == 1


@behaviour("after_tool.replace")
async def the_model_reads_the_result_as_after_tool_redacts_it(run: Bench) -> None:
    @hook(AFTER_TOOL)
    def redact(ctx, result):
        return HookResult.replace({"result": result.result.replace("ada@example.com", "[address]")})

    await run([call("read", path="a"), reply("Done.")], redact)
    assert run.ran == ["read a"]
    assert run.seen(1)[-1] == "mail [address]"


@behaviour("after_tool.retry")
async def a_retry_calls_the_tool_again(run: Bench) -> None:
    @hook(AFTER_TOOL)
    def again(ctx, result):
        return HookResult.retry() if result.attempt == 1 else None

    await run(SHELL, again)
    assert run.ran == ["ls", "ls"]
    assert len(run.model.requests) == 2


@behaviour("after_tool.end")
async def a_hook_ends_the_run_after_a_tool(run: Bench) -> None:
    @hook(AFTER_TOOL)
    def enough(ctx, result):
        return HookResult.end(f"It said: {result.result}")

    outcome = await run(SHELL, enough)
    assert (outcome.reply, outcome.status) == ("It said: ran ls", "ended")
    assert len(run.model.requests) == 1


@behaviour("before_tool.block", "after_tool")
async def each_of_several_calls_is_judged_and_answered(run: Bench) -> None:
    seen = []

    @guard(BEFORE_TOOL)
    def no_b(ctx, request):
        return HookResult.block("Not b.") if request.arguments["command"] == "b" else None

    @observer(AFTER_TOOL)
    def note(ctx, result):
        seen.append(result.outcome)

    calls = [call("shell", command="a"), call("shell", command="b"), call("shell", command="c")]
    await run([calls, reply("Done.")], no_b, note)
    assert sorted(run.ran) == ["a", "c"]
    assert run.seen(1)[-3:] == ["ran a", "Not b.", "ran c"]
    assert sorted(seen) == ["blocked", "ok", "ok"]


# Model calls.


@behaviour("before_llm.replace")
async def the_model_reads_the_messages_as_before_llm_changes_them(run: Bench) -> None:
    @hook(BEFORE_LLM)
    def add(ctx, request):
        return HookResult.replace({"messages": (*request.messages, Message("user", "Be brief."))})

    await run([reply("Hi.")], add)
    assert run.seen(0) == ["You are a helper.", "Go.", "Be brief."]


@behaviour("before_llm.replace")
async def a_tool_that_a_hook_withdraws_cannot_be_called(run: Bench) -> None:
    @hook(BEFORE_LLM)
    def no_shell(ctx, request):
        return HookResult.replace({"tools": tuple(tool for tool in request.tools if tool.name != "shell")})

    await run(SHELL, no_shell)
    assert run.ran == []


@behaviour("before_llm.answer")
async def a_hook_answers_instead_of_the_model(run: Bench) -> None:
    @hook(BEFORE_LLM)
    def cached(ctx, request):
        return HookResult.answer("I know that one.")

    outcome = await run([], cached)
    assert (outcome.reply, outcome.status) == ("I know that one.", "completed")


@behaviour("before_llm.end")
async def a_guard_ends_the_run_before_the_model_is_called(run: Bench) -> None:
    @guard(BEFORE_LLM)
    def closed(ctx, request):
        return HookResult.end("We are closed.")

    outcome = await run([], closed)
    assert (outcome.reply, outcome.status) == ("We are closed.", "ended")


@behaviour("after_llm.replace")
async def the_user_reads_the_reply_as_after_llm_changes_it(run: Bench) -> None:
    @hook(AFTER_LLM)
    def sign(ctx, answer):
        return HookResult.replace({"content": answer.content + " -- the agent"})

    outcome = await run([reply("Hi.")], sign)
    assert outcome.reply == "Hi. -- the agent"


@behaviour("after_llm.replace")
async def a_call_that_after_llm_removes_does_not_run(run: Bench) -> None:
    @hook(AFTER_LLM)
    def only_text(ctx, answer):
        return HookResult.replace({"tool_calls": (), "content": "No tools today."}) if answer.tool_calls else None

    outcome = await run(SHELL, only_text)
    assert run.ran == []
    assert outcome.reply == "No tools today."


@behaviour("after_llm.retry")
async def a_rejected_reply_is_not_shown_and_the_model_is_asked_again(run: Bench) -> None:
    @guard(AFTER_LLM)
    def polite(ctx, answer):
        return HookResult.retry("Be polite.") if "Fool" in answer.content else None

    outcome = await run([reply("Fool!"), reply("My friend.")], polite)
    assert run.seen(1)[-2:] == ["Fool!", "Be polite."]
    assert outcome.reply == "My friend."
    assert "Fool" not in outcome.shown
    assert len(outcome.result.steps) == 1


@behaviour("on_token.replace")
async def a_hook_changes_the_text_while_it_is_streamed(run: Bench) -> None:
    @hook(ON_TOKEN)
    def loud(ctx, token):
        return HookResult.replace({"delta": token.delta.upper()})

    outcome = await run([reply("hello there")], loud)
    assert outcome.error is None
    assert run.mode != "stream" or outcome.shown == "HELLO THERE"


@behaviour("on_error.retry")
async def a_failed_model_call_is_repeated(run: Bench) -> None:
    @hook(ON_ERROR)
    def again(ctx, failure):
        return HookResult.retry() if failure.where == "model" else None

    outcome = await run([ConnectionError("the line is cut"), reply("Hi.")], again)
    assert (outcome.reply, outcome.status) == ("Hi.", "completed")


@behaviour("on_error.answer")
async def a_hook_answers_for_a_model_that_failed(run: Bench) -> None:
    @hook(ON_ERROR)
    def sorry(ctx, failure):
        return HookResult.answer("I cannot think now.")

    outcome = await run([ConnectionError("the line is cut")], sorry)
    assert (outcome.reply, outcome.status) == ("I cannot think now.", "completed")


# The run.


@behaviour("on_run_start.replace")
async def the_model_reads_the_task_as_on_run_start_changes_it(run: Bench) -> None:
    @hook(ON_RUN_START)
    def expand(ctx, start):
        return HookResult.replace({"task": start.task + " Now."})

    await run(SHELL, expand)
    assert run.seen(0) == ["You are a helper.", "Go. Now."]
    assert "Go. Now." in run.seen(1)


@behaviour("before_prompt_build")
async def a_hook_adds_to_the_system_prompt(run: Bench) -> None:
    @hook(BEFORE_PROMPT_BUILD)
    def add(ctx, build):
        return HookResult.merge(append_system="Speak German.")

    await run(SHELL, add)
    assert run.seen(0)[0] == "You are a helper.\n\nSpeak German."
    assert run.seen(1)[0] == "You are a helper.\n\nSpeak German."


@behaviour("on_stop.keep_going")
async def a_hook_keeps_the_run_going(run: Bench) -> None:
    @hook(ON_STOP)
    def more(ctx, stopping):
        return HookResult.keep_going("And the tests?") if len(ctx.state.steps) == 1 else None

    outcome = await run([reply("Done."), reply("The tests pass.")], more)
    assert run.seen(1)[-2:] == ["Done.", "And the tests?"]
    assert (outcome.reply, outcome.status) == ("The tests pass.", "completed")


@behaviour("on_run_end.replace")
async def the_user_reads_the_reply_as_on_run_end_changes_it(run: Bench) -> None:
    @hook(ON_RUN_END)
    def sign(ctx, result):
        return HookResult.replace({"reply": result.reply + " Bye."})

    outcome = await run(SHELL, sign)
    assert outcome.reply == "Done. Bye."


@behaviour()
async def a_limit_stops_the_run(run: Bench) -> None:
    turns = [call("shell", command=str(i)) for i in range(5)]
    outcome = await run(turns, limits=Limits(steps=2))
    assert run.ran == ["0", "1"]
    assert len(run.model.requests) == 2
    assert (outcome.status, outcome.result.stop.kind) == ("stopped", "steps_limit")
    run.ran.clear()
    outcome = await run(turns, limits=Limits(tool_calls=1))
    assert run.ran == ["0"]
    assert (outcome.status, outcome.result.stop.kind) == ("stopped", "tool_calls_limit")


@behaviour("before_tool", "on_run_end")
async def a_cancelled_run_stops_and_its_end_is_observed(run: Bench) -> None:
    ended = []

    @guard(BEFORE_TOOL)
    def cancel(ctx, request):
        ctx.interrupt.cancel("no longer needed")

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append(result.status)

    outcome = await run(SHELL, cancel, note)
    assert run.ran == []
    assert len(run.model.requests) == 1
    assert ended == ["cancelled"]
    assert outcome.status == "cancelled"


@behaviour("before_tool.block")
async def an_agent_inside_a_tool_inherits_the_guards(run: Bench) -> None:
    @guard(BEFORE_TOOL, tools="shell")
    def never(ctx, request):
        return HookResult.block("Never.")

    shell, inner = run.tools[0], ScriptedModel([call("shell", command="rm x"), reply("It was refused.")])

    async def delegate(task: str) -> str:
        """Let another agent do it."""
        return (await Agent("inner", llm=inner, tools=[shell]).arun(task)).reply

    def delegate_and_wait(task: str) -> str:
        """Let another agent do it."""
        return Agent("inner", llm=inner, tools=[shell]).run(task).reply

    run.tools = [delegate_and_wait if run.mode == "sync" else delegate]
    name = run.tools[0].__name__
    await run([call(name, task="Clean up."), reply("Done.")], never)
    assert run.ran == []
    assert inner.requests[1].messages[-1].content == "Never."
    assert run.seen(1)[-1] == "It was refused."


@behaviour("before_step", "after_step")
async def events_tell_the_steps_in_order(run: Bench) -> None:
    steps = []

    @observer(BEFORE_STEP, AFTER_STEP)
    def note(ctx, step):
        steps.append(step.index)

    outcome = await run(SHELL, note)
    kinds = ("RunStarted", "StepStarted", "ModelReplied", "ToolStarted", "ToolEnded", "StepFinished", "RunFinished")
    told = [type(event).__name__ for event in outcome.events if type(event).__name__ in kinds]
    step = ["StepStarted", "ModelReplied"]
    assert told == [
        "RunStarted",
        *step,
        "ToolStarted",
        "ToolEnded",
        "StepFinished",
        *step,
        "StepFinished",
        "RunFinished",
    ]
    assert [event.seq for event in outcome.events] == sorted(event.seq for event in outcome.events)
    assert steps == [0, 0, 1, 1]


@behaviour("before_tool.block")
async def audit_log_tape_and_records_are_written(run: Bench) -> None:
    @guard(BEFORE_TOOL, tools="shell")
    def never(ctx, request):
        return HookResult.block("Never.")

    log, tape, records = run.folder / "audit.jsonl", run.folder / "run.tape", run.folder / "records"
    audit = AuditLogHook(log)
    await run(SHELL, never, audit, TapeHook(tape), record=records)
    assert audit.flush(10)
    assert verify_audit(log).ok
    assert '"blocked"' in log.read_text()
    assert Tape.load(tape).result.status == "completed"
    (recorded,) = read_runs([records], account=Account())
    assert [moment.verdict.verb for moment in recorded.moments if moment.point == BEFORE_TOOL] == ["block"]


@behaviour("before_tool")
async def hooks_share_state_and_metadata_within_a_run(run: Bench) -> None:
    found = []

    @hook(BEFORE_LLM)
    def count(ctx, request):
        ctx.scratch["requests"] = ctx.scratch.get("requests", 0) + 1

    @guard(BEFORE_TOOL)
    def look(ctx, request):
        found.append((ctx.scratch["requests"], ctx.state.metadata["user"], len(ctx.state.messages)))

    await run(SHELL, count, look, metadata={"user": "ada"})
    assert found == [(1, "ada", 2)]


@behaviour("before_tool.block")
async def a_plugin_brings_its_hooks_and_a_filter_leaves_them_out(run: Bench) -> None:
    @guard(BEFORE_TOOL)
    def no_shell(ctx, request):
        return HookResult.block("Not with this plugin.")

    await run(SHELL, plugins=[Plugin("careful", hooks=[no_shell])])
    assert run.ran == []
    await run(SHELL, plugins=[Plugin("careful", hooks=[no_shell])], allowed_plugins=[])
    assert run.ran == ["ls"]
