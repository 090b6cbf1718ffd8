"""Attempts to get something past the hooks, or to keep a run from ending, in every loop that is installed here."""

import asyncio
import gc
import itertools
from contextlib import suppress

import pytest

from hookline import HookResult, Limits, guard, hook, observer
from hookline.models import ModelResponse, ScriptedModel, call, reply
from hookline.payloads import ToolCall
from hookline.points import BEFORE_TOOL, ON_RUN_END, ON_RUN_START

from ..waiting import wait_until
from .behaviours import Bench
from .loops import Case, installed

LOOPS = [pytest.param(each, mode, id=f"{each.name}-{mode}") for each in installed() for mode in each.modes]
NOT_BLOCKING = [case for case in LOOPS if case.values[1] != "sync"]  # nothing can interrupt a thread


@pytest.fixture
def run(driver, mode, tmp_path):
    return Bench(driver, mode, tmp_path)


@guard(BEFORE_TOOL)
def no_rm(ctx, request):
    return HookResult.block("No rm.") if "rm" in str(request.arguments) else None


@pytest.mark.parametrize(("driver", "mode"), LOOPS)
async def test_a_tool_that_a_hook_puts_in_place_of_another_runs_or_none_does(run):
    def trash(command: str) -> str:
        """Move to the trash."""
        run.ran.append(f"trash {command}")
        return "moved"

    run.tools.append(trash)

    changed = {"name": "trash"}  # not in the hook, where a framework that cannot do it would see it

    @hook(BEFORE_TOOL)
    def softly(ctx, request):
        return HookResult.replace(changed)

    @guard(BEFORE_TOOL, tools="shell")
    def no_shell(ctx, request):
        return HookResult.block("No shell.")

    await run([call("shell", command="ls"), reply("Done.")], softly, no_shell)
    assert run.ran in (["trash ls"], [])  # never the shell, which the guard did not judge


@pytest.mark.parametrize("ids", [("1", "1"), ("", "")], ids=["equal", "empty"])
@pytest.mark.parametrize(("driver", "mode"), LOOPS)
async def test_calls_with_equal_or_empty_ids_are_judged_one_by_one(run, ids):
    first, second = (
        ToolCall(id, "shell", {"command": command}) for id, command in zip(ids, ("ls", "rm x"), strict=True)
    )
    outcome = await run([ModelResponse(tool_calls=(first, second)), reply("Done.")], no_rm)
    assert "rm x" not in run.ran
    assert (outcome.reply, outcome.status) == ("Done.", "completed")


@pytest.mark.parametrize(("driver", "mode"), LOOPS)
async def test_an_id_that_comes_again_in_a_later_step_is_another_call(run):
    turns = [ModelResponse(tool_calls=(ToolCall("1", "shell", {"command": each}),)) for each in ("ls", "rm x", "pwd")]
    outcome = await run([*turns, reply("Done.")], no_rm)
    assert run.ran == ["ls", "pwd"]
    assert run.seen(3)[-3:] == ["ran ls", "No rm.", "ran pwd"]
    assert outcome.status == "completed"


@pytest.mark.parametrize(("driver", "mode"), LOOPS)
async def test_a_tool_that_raises_a_cancellation_by_itself_only_fails(run):
    def shell(command: str) -> str:
        """Run a command."""
        raise asyncio.CancelledError("a future of the tool's own")

    run.tools[0] = shell
    outcome = await run([call("shell", command="ls"), reply("Done.")])
    assert (outcome.reply, outcome.status) == ("Done.", "completed")


@pytest.mark.parametrize(("driver", "mode"), NOT_BLOCKING)
async def test_a_time_limit_interrupts_a_model_that_never_answers(driver, mode):
    ends = []

    @observer(ON_RUN_END)
    def end(ctx, result):
        ends.append(result.status)

    model = ScriptedModel([reply("Never said.")], delay=3600)
    options = {"limits": Limits(seconds=0.05)}
    async with asyncio.timeout(20):
        outcome = await driver.run(Case(model, [], (end,), options, mode=mode))
    assert (outcome.reply, outcome.status, ends) == ("", "stopped", ["stopped"])


@pytest.mark.parametrize(("driver", "mode"), NOT_BLOCKING)
async def test_a_tool_that_ignores_its_cancellation_does_not_prolong_the_run(run):
    async def shell(command: str) -> str:
        """Run a command."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        return "late"

    run.tools[0] = shell
    async with asyncio.timeout(20):
        outcome = await run([call("shell", command="ls"), reply("Never said.")], limits=Limits(seconds=0.5))
    assert (outcome.reply, outcome.status) == ("", "stopped")
    assert len(run.model.requests) <= 1  # on a slow machine the limit comes before the tool


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # coroutines of OpenAI's SDK
@pytest.mark.parametrize(
    ("driver", "mode"),
    # pydantic-ai loses the task of its capabilities if it is cancelled as that begins.
    [case for case in NOT_BLOCKING if case.values[0].name != "pydantic-ai"],
)
async def test_a_run_ends_once_wherever_the_framework_is_cancelled(driver, mode):
    counts = {"begun": 0, "ended": 0}

    @observer(ON_RUN_START)
    def begin(ctx, start):
        counts["begun"] += 1

    @observer(ON_RUN_END)
    def end(ctx, result):
        counts["ended"] += 1

    async def shell(command: str) -> str:
        """Run a command."""
        await asyncio.sleep(0)
        return f"ran {command}"

    def all_ended():
        if counts["begun"] != counts["ended"]:
            gc.collect()  # some frameworks only drop a run
        return counts["begun"] == counts["ended"]

    for moments in itertools.count(step=3):
        turns = [call("shell", command="ls"), reply("Done and well.")]
        case = Case(ScriptedModel(turns), [shell], (begin, end), {}, mode=mode)
        task = asyncio.create_task(driver.run(case))
        for _ in range(moments):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait([task])
        task = None  # it holds on to the frames of the framework
        await wait_until(all_ended)
    assert task.result().status == "completed"
    assert counts["begun"] == counts["ended"] > 0
