"""The content of a tape, for runs that complete, fail or are cancelled."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from hookline import (
    BEFORE_TOOL,
    ON_RUN_END,
    Agent,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    hook,
    observer,
    reply,
    tool,
)
from hookline.backtest import backtest
from hookline.events import Event, RunFinished, SubagentEvent, TextDelta
from hookline.explain import find_run
from hookline.records import Account, RecordError, read_runs
from hookline.tape import Tape, TapeError, TapeHook, replay
from hookline.tape import format as fmt
from hookline.teams import Team


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def kinds(tape: Tape) -> set[str]:
    return {type(entry).__name__ for entry in tape.entries}


def of(tape: Tape, kind: type[Any]) -> list[Any]:
    return [entry for entry in tape.entries if isinstance(entry, kind)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.tape"


def record(path: Path, *turns: Any, **options: Any) -> Tape:
    agent = Agent(
        "a", "", "be brief", llm=ScriptedModel(turns), tools=options.pop("tools", [add]), limits=Limits(steps=5)
    )
    try:
        agent.run("a task", hooks=[TapeHook(path), *options.pop("hooks", ())], **options)
    except RunFailedError:
        pass
    return Tape.load(path)


def test_a_tape_holds_the_start_and_the_result_of_a_run(path: Path) -> None:
    before = Session("s", [{"role": "user", "content": "before"}], platform="here")
    tape = record(path, call("add", a=1, b="2"), "done", session=before, metadata={"user": "me"})
    began = tape.run
    assert (began.task, began.instructions, began.metadata) == ("a task", "be brief", {"user": "me"})
    assert [message.content for message in began.messages] == ["before"]
    assert (began.session.id, began.session.platform, began.limits.steps) == ("s", "here", 5)
    assert [taped.spec.name for taped in began.tools] == ["add"]
    assert tape.result is not None
    assert (tape.result.status, tape.result.reply) == ("completed", "done")


def test_every_request_is_complete_and_each_message_is_written_once(path: Path) -> None:
    tape = record(path, call("add", a=1, b=2), "done")
    assert [message.content for message in tape.requests[0].messages] == ["be brief", "a task"]
    assert [message.content for message in tape.requests[1].messages] == ["be brief", "a task", "", "3"]
    assert path.read_text().count('"content":"be brief"') == 1


def test_a_tape_holds_tool_calls_results_and_changed_arguments(path: Path) -> None:
    def broken() -> None:
        raise ValueError("no")

    tape = record(path, [call("add", a=1, b="2"), call("broken")], "done", tools=[add, broken])
    assert [(c.request.name, c.request.arguments) for c in of(tape, fmt.ToolCallEntry)][0] == ("add", {"a": 1, "b": 2})
    answers = of(tape, fmt.ToolResultEntry)
    assert {answer.value for answer in answers} == {3, None}
    assert [answer.raised.type for answer in answers if answer.raised] == ["ValueError"]
    assert of(tape, fmt.ValidationEntry)[0].checked == {"a": 1, "b": 2}


def test_only_its_owner_may_read_a_tape(path: Path) -> None:
    path.write_text("another one")
    path.chmod(0o666)
    record(path, "done")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_its_owner_may_list_a_folder_of_tapes(path: Path) -> None:
    record(path.parent / "tapes" / "a.tape", "done")
    assert stat.S_IMODE((path.parent / "tapes").stat().st_mode) == 0o700


def test_a_link_in_the_place_of_a_tape_is_replaced_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    path.symlink_to(tmp_path / "mine")
    record(path, "done")
    assert (tmp_path / "mine").read_text() == "mine"


def test_in_a_folder_each_run_has_its_own_tape(tmp_path: Path) -> None:
    agent = Agent("a", llm=ScriptedModel(["hi"], loop=True), hooks=[TapeHook(tmp_path / "tapes")])

    async def several() -> list[str]:
        results = await asyncio.gather(*(agent.arun(f"task {n}") for n in range(3)))
        return [result.ids.run_id for result in results]

    ids = asyncio.run(several())
    tapes = {id: Tape.load(tmp_path / "tapes" / f"{id}.tape") for id in ids}
    assert {tape.run.task for tape in tapes.values()} == {"task 0", "task 1", "task 2"}
    assert all(tape.run.ids.run_id == id and tape.result for id, tape in tapes.items())


def test_the_tape_of_a_failed_run_is_complete(path: Path) -> None:
    @hook(BEFORE_TOOL)
    def bad(ctx: Any, payload: Any) -> None:
        raise RuntimeError("a fault")

    tape = record(path, call("add", a=1, b=2), hooks=[bad])
    assert tape.result is not None
    assert tape.result.status == "failed"


def test_the_tape_of_a_cancelled_run_is_complete_and_says_who_cancelled(path: Path) -> None:
    async def cancelled() -> None:
        started = asyncio.Event()

        async def wait() -> None:
            started.set()
            await asyncio.sleep(3600)

        run = Agent("a", llm=ScriptedModel([call("wait")]), tools=[wait]).start("go", hooks=[TapeHook(path)])
        await started.wait()
        run.cancel("enough")
        await run.result()

    asyncio.run(cancelled())
    tape = Tape.load(path)
    assert [entry.reason for entry in of(tape, fmt.CancellationEntry)] == ["enough"]
    assert [entry.cancelled for entry in of(tape, fmt.ToolResultEntry)] == [True]
    assert tape.result is not None
    assert tape.result.status == "cancelled"


def test_a_program_that_a_tool_kills_leaves_a_tape_that_ends_with_the_call(path: Path) -> None:
    program = f"""
import os, time
from hookline import Agent, ScriptedModel, call
from hookline.tape import TapeHook

def crash() -> None:
    while b'"entry":"tool_call"' not in open({str(path)!r}, "rb").read():
        time.sleep(0.01)
    os._exit(9)

Agent("a", llm=ScriptedModel([call("crash")]), tools=[crash]).run("go", hooks=[TapeHook({str(path)!r})])
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    tape = Tape.load(path)
    assert tape.result is None
    assert not tape.truncated
    assert [answer.response.tool_calls[0].name for answer in of(tape, fmt.ModelReplyEntry)] == ["crash"]
    assert isinstance(tape.entries[-1], fmt.ToolCallEntry)
    assert replay(path).stop_reason == "the tape ends before crash does"


def test_an_incomplete_last_line_is_ignored_and_reported(path: Path) -> None:
    whole = record(path, "done")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b'{"entry":"event"') + 40])
    torn = Tape.load(path)
    assert torn.truncated
    assert not whole.truncated
    assert torn.entries == whole.entries[: len(torn.entries)]
    assert whole.result is not None
    assert torn.result is None


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"turns": []}\n', "is not a tape"),
        (b"\xff\xfe\n", "is not a tape"),
        (b"", "is not a tape"),
        (b'["hookline",{"format":1}]\n', "is a record, not a tape, and cannot be replayed: use hookline backtest"),
        (b'{"entry":"event","version":5}\n', "its first line is not the header of a tape"),
        (b'{"entry":"tape","version":5}\n', "ends before its run starts"),
        (b'{"entry":"tape","version":5}\n{"entry":"unheard"}\n', "is damaged in line 2"),
    ],
)
def test_a_file_that_is_not_a_tape_is_rejected_with_the_reason(path: Path, data: bytes, says: str) -> None:
    path.write_bytes(data)
    with pytest.raises(TapeError, match=says):
        Tape.load(path)
    with pytest.raises(TapeError, match="cannot be read: No such file"):
        Tape.load(path.with_name("other.tape"))


OTHER_VERSIONS = [
    b'{"entry":"tape_began","version":2,',
    b'{"entry":"tape","version":3,',
    b'{"entry":"tape","version":99,',
]
"""The beginnings of tapes of other versions of the format."""


@pytest.mark.parametrize("header", OTHER_VERSIONS)
def test_a_tape_of_another_version_is_refused_with_what_to_do_wherever_tapes_are_read(
    path: Path, header: bytes
) -> None:
    run_id = record(path, "done").run.ids.run_id
    data = path.read_bytes()
    assert data.startswith(b'{"entry":"tape",')
    path.write_bytes(header + data.partition(b'"version":5,')[2])
    with pytest.raises(TapeError) as refused:
        Tape.load(path)
    says = str(refused.value).removeprefix(f"{path} has ")
    assert says == (
        f"version {header.split(b':')[2][:-1].decode()} of the tape format, and this version of Hookline reads only "
        "version 5: record it again, or use the version of Hookline that wrote it"
    )
    with pytest.raises(TapeError, match=re.escape(says)):
        replay(path, [])
    account = Account()
    assert list(read_runs(path, account=account)) == []
    assert account.skipped == {(str(path), says): 1}
    for name in (str(path), "last", run_id):
        with pytest.raises(RecordError, match=re.escape(says)):
            find_run(name, [path.parent])
    report = backtest([observer(BEFORE_TOOL)(lambda ctx, request: None)], path.parent)
    assert (report.runs, [each.reason for each in report.skipped]) == (0, [says])


def test_a_tape_of_another_version_does_not_hide_other_runs_and_is_noted(path: Path) -> None:
    run_id = record(path.with_name("other.tape"), "first").run.ids.run_id
    record(path, "second")
    path.write_bytes(path.read_bytes().replace(b'"version":5,', b'"version":3,', 1))
    for name in ("last", run_id):
        found = find_run(name, [path.parent])
        assert found.run.id == run_id
        assert [note.partition(": skipped")[0] for note in found.notes] == [str(path)]


@pytest.mark.parametrize("wrong", ["", 3, None])
def test_an_invalid_path_is_rejected(wrong: Any) -> None:
    with pytest.raises(RegistrationError, match="path must be"):
        TapeHook(wrong)


def test_a_file_without_the_suffix_or_a_folder_with_it_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.tape").mkdir()
    with pytest.raises(RegistrationError, match=r"is a file, but its name does not end in .tape"):
        TapeHook(tmp_path / "file")
    with pytest.raises(RegistrationError, match="is a folder"):
        TapeHook(tmp_path / "folder.tape")


@pytest.mark.skipif(os.name != "posix", reason="needs /dev/full")
def test_a_run_goes_on_and_reports_a_tape_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "no").write_text("a file where the folder would be")
    hook = TapeHook(tmp_path / "no" / "run.tape")
    result = Agent("a", llm=ScriptedModel(["done"])).run("a task", hooks=[hook])
    assert result.reply == "done"
    assert ["cannot be written" in error.message for error in result.errors] == [True]


class Odd(Event, frozen=True):
    value: Any = None


def test_a_run_reports_an_event_without_json_form_and_the_tape_ends_before_it(path: Path) -> None:
    @observer(ON_RUN_END)
    def emit(ctx: Any, result: Any) -> None:
        ctx.emit(Odd, value=object())

    result = Agent("a", llm=ScriptedModel(["done"]), hooks=[emit]).run("a task", hooks=[TapeHook(path)])
    assert result.reply == "done"
    assert ["object has no JSON form" in error.message for error in result.errors] == [True]
    tape = Tape.load(path)
    assert of(tape, fmt.ModelReplyEntry)[0].response.content == "done"
    assert tape.result is None


def test_a_text_with_invalid_unicode_does_not_cost_the_other_lines(path: Path) -> None:
    tape = record(path, call("add", a=1, b=2), "caf\ud800", tools=[add])
    assert tape.result is not None
    assert tape.result.reply == "caf?"
    assert len(of(tape, fmt.ToolResultEntry)) == 1


def test_nested_runs_are_on_the_tape_with_their_own_ids(path: Path) -> None:
    helper = Agent("helper", llm=ScriptedModel([call("add", a=1, b=2), "3"]), tools=[add])
    boss = Agent("boss", llm=ScriptedModel([call("delegate", to="helper", task="sum"), "ok"]), tools=[Team([helper])])
    boss.run("go", hooks=[TapeHook(path)])
    tape = Tape.load(path)
    assert [began.ids.agent for began in of(tape, fmt.RunEntry)] == ["boss", "helper"]
    inner = [event for event in tape.events() if isinstance(event, SubagentEvent)]
    assert any(isinstance(event.event, RunFinished) for event in inner)
    assert len([asked for asked in of(tape, fmt.ModelRequestEntry) if not asked.inside]) == 4
    assert tape.result is not None
    assert tape.result.reply == "ok"


def test_a_tape_holds_outer_budgets_with_their_usage(path: Path) -> None:
    budget = Budget(Limits(tokens=1000, seconds=60))
    ctx = AgentContext(budget=budget)
    Agent("a", llm=ScriptedModel([reply("one two three")])).run("first", ctx=ctx)
    tape = record(path, "done", ctx=ctx)
    (ledger,) = tape.run.budgets
    assert (ledger.limits.tokens, ledger.limits.seconds) == (1000, 60)
    assert ledger.output == 3


def test_a_tape_is_json_lines_with_a_header(path: Path) -> None:
    record(path, "done")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (lines[0]["entry"], lines[0]["version"]) == ("tape", 5)
    assert lines[0]["hookline"]
    assert lines[1]["entry"] == "run"
    assert all(isinstance(line, list) or "entry" in line for line in lines)


def test_what_hooks_see_is_the_same_with_and_without_a_tape(path: Path) -> None:
    def seen_by_hook(*tapes: Any) -> list[Any]:
        seen: list[Any] = []

        @hook(ON_RUN_END)
        def look(ctx: Any, result: Any) -> HookResult | None:
            seen.append((result.reply, result.status, result.tool_calls, [m.content for m in result.messages]))
            return None

        agent = Agent("a", llm=ScriptedModel([call("add", a=1, b="x"), call("add", a=1, b=1), "ok"]), tools=[add])
        agent.run("go", hooks=[look, *tapes])
        return seen

    assert seen_by_hook() == seen_by_hook(TapeHook(path))


def test_the_names_in_the_file_do_not_follow_the_names_of_classes() -> None:
    tags = {str(kind.__struct_config__.tag) for kind in get_args(fmt.AnyEntry)}
    assert tags == {
        "tape",
        "run",
        "model_request",
        "model_reply",
        "tool_call",
        "tool_progress",
        "tool_result",
        "validation",
        "approval",
        "count",
        "once",
        "wakeup",
        "readings",
        "event",
        "steering",
        "timer",
        "cancellation",
        "interruption",
        "hook_interruption",
    }


@pytest.mark.parametrize("watched", [False, True])
def test_a_tape_does_not_change_how_the_model_is_called(path: Path, watched: bool) -> None:
    """Text is streamed only if someone else wants it; then a replay shows it again."""
    called: list[str] = []

    class Model(ScriptedModel):
        async def complete(self, request: Any) -> Any:
            called.append("complete")
            return await super().complete(request)

        async def stream(self, request: Any) -> Any:
            called.append("stream")
            async for piece in super().stream(request):
                yield piece

    helper = Agent("helper", llm=Model(["three"]))
    boss = Agent("boss", llm=Model([call("delegate", to="helper", task="sum"), "all done"]), tools=[Team([helper])])
    seen: list[Any] = []
    sinks = [seen.append] if watched else []
    boss.run("go", hooks=[TapeHook(path)], sinks=sinks)
    assert set(called) == ({"stream"} if watched else {"complete"})
    shown = [event for event in Tape.load(path).events() if isinstance(event, TextDelta)]
    assert [event.text for event in shown] == (["all", " done"] if watched else [])
    called.clear()
    again = replay(path, boss)
    assert (again.same, called) == (True, [])
