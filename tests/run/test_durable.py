"""Durable runs in one process: a crash is a journal that ends after some commit (DESIGN 6.17).

``Crashes`` records what each commit wrote, and what had happened in the world by then. Recovery then starts from every
one of these beginnings. Processes that are really killed are in ``tests/stores/test_durable_processes.py``.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from hookline import Agent, AgentContext, Budget, HookResult, Limits, Message, Session, guard, hook, observer, tool
from hookline._base.attachment import Attachment
from hookline._kernel.scope import CURRENT
from hookline._run import waiters
from hookline._run.journal import JOURNAL_FORMAT, Append, format_of
from hookline.errors import (
    HooklineError,
    JournalFormatError,
    LeaseLostError,
    RecoveryError,
    RunFailedError,
    RunHeldError,
    RunSuspendedError,
    RunWaitingError,
)
from hookline.events import Event, TextDelta
from hookline.hooks import ApprovalsHook, ObservabilityHook
from hookline.models import ModelResponse
from hookline.payloads import AgentResult, ToolCall, Usage
from hookline.points import AFTER_LLM, BEFORE_TOOL
from hookline.stores import ApprovalStore, RunStore, StoreError, run_stats
from hookline.tape import TapeHook, replay
from hookline.teams import Team
from hookline.testing import ScriptedModel, call, reply
from tests import handoff_scene
from tests.durable_scene import EachFifth, World, make_agent
from tests.journals import set_format
from tests.waiting import wait_until


class Crashes:
    """Records every commit of a run, and makes worlds that end after one of them.

    Args:
        world: the world of the run.
    """

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.store = RunStore(world.folder / "runs.db", **options)
        self.commits: list[tuple[Any, ...]] = []
        self._noted: list[dict[str, bytes]] = []
        self._start: tuple[Any, ...] = ()
        journal = self.store.journal
        append, claim = journal.append, journal.claim

        def recorded_claim(*args: Any) -> Any:
            self._start = args
            return claim(*args)

        def recorded(write: Append) -> None:
            append(write)
            self.commits.append((write.seq, write.entries, write.events))
            files = [file for file in world.folder.iterdir() if not file.name.startswith("runs.db")]
            self._noted.append({file.name: content for file in files if (content := _content(file)) is not None})

        journal.append, journal.claim = recorded, recorded_claim  # type: ignore[method-assign]

    def worlds(self, *, each_entry: bool = False, step: int = 1) -> Iterator[tuple[World, RunStore]]:
        """Make the worlds after each commit but the last one, each with its store, which no process holds.

        Args:
            each_entry: a crash is possible after each entry: the commits are split as finely as possible.
            step: make only every so many of them, and the last one.
        """
        commits: list[tuple[Any, dict[str, bytes]]] = []
        for (seq, entries, events), noted in zip(self.commits, self._noted, strict=True):
            parts = list(_split(entries, list(events))) if each_entry else [(entries, events)]
            first = seq
            for part, told in parts:
                commits.append(((first, part, told), noted))
                first += len(part)
        with TemporaryDirectory() as place, closing(RunStore(Path(place) / "runs.db")) as told:
            epoch, done = told.journal.claim(*self._start).epoch, 0
            for number in sorted({*range(0, len(commits), step), len(commits) - 1}):
                for args, _ in commits[done:number]:
                    told.journal.append(Append(self._start[0], epoch, *args))
                done = number
                folder = self.world.folder.parent / f"{self.world.folder.name}-{number}"
                folder.mkdir()
                for name, content in commits[number - 1][1].items() if number else ():
                    (folder / name).write_bytes(content)
                (folder / "runs.db").write_bytes(_content(Path(told.path)) or b"")
                store = RunStore(folder / "runs.db")
                written = sum(len(args[1]) for args, _ in commits[:number])
                store.journal.append(Append(self._start[0], epoch, written + 1, status="interrupted"))
                yield World(folder, self.world.pace), store
                store.close()


def _content(file: Path) -> bytes | None:
    """Return the content of a file while others write; ``None`` for the files beside a database, which come and go."""
    if file.name.endswith(("-journal", "-wal", "-shm")):
        return None
    if file.suffix != ".db":
        with suppress(FileNotFoundError):  # a file that replaces another one
            return file.read_bytes()
        return None
    with closing(sqlite3.connect(file, timeout=60)) as db:
        db.execute("BEGIN")
        (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # waits until nobody writes
        return db.serialize() if tables else b""


def _split(entries: list[bytes], events: list[Any]) -> Iterator[tuple[list[bytes], list[Any]]]:
    """Split a commit into its entries, each with the events that were stored with it."""
    for index, data in enumerate(entries):
        _, kind, key, _ = msgspec.json.decode(data)
        told: list[Any] = []
        if kind in ("event", "text"):
            tag = f'"type":"{key.split()[0]}"'.encode() if key else b'"type":"text_delta"'
            while events and not (told and tag in told[-1][3]):
                told.append(events.pop(0))
        yield [data], (told + events if index == len(entries) - 1 else told)


def committed(store: RunStore) -> tuple[list[str], list[str]]:
    """Return the keys of the intents and of the answers in a journal."""
    rows = [msgspec.json.decode(entry) for entry in entries_of(store)]
    return [r[0] + r[2] for r in rows if r[1] == "asked"], [r[0] + r[2] for r in rows if r[1] == "answered"]


def check_transcript(result: AgentResult[Any]) -> None:
    """Check that each call has exactly one result, after it and in call order."""
    waiting: list[str] = []
    for message in result.messages:
        if message.role == "tool":
            assert message.call_id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in message.tool_calls]
    assert not waiting


def numbers(store: RunStore, run_id: str) -> list[int]:
    return [event.seq for event in store.events(run_id, limit=100_000)]


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_continues_from_every_commit_with_the_same_verdicts_and_without_repeating_a_committed_call(
    tmp_path: Path, step: int
) -> None:
    (tmp_path / "world").mkdir()
    crashes = Crashes(World(tmp_path / "world", pace=0.004))
    make_agent(crashes.world).run("go", durable=crashes.store, run_id="r")
    assert len(crashes.commits) > 8  # what is decided at the same moment shares a commit
    for world, store in crashes.worlds(step=step):
        seen = store.events("r", limit=100_000)
        asked, answered = committed(store)
        result = make_agent(world).run("go", durable=store, run_id="r")
        assert result.status == "completed"
        check_transcript(result)
        in_flight = len(asked) - len(answered)
        keys = Counter(line[0] for line in world.lines("ran"))
        assert keys.total() - len(keys) <= in_flight
        told = [m.content.split()[-1] for m in result.messages if m.role == "tool" and " under " in m.content]
        assert set(told) <= keys.keys()
        # Readers see what they saw, and then the rest.
        events = store.events("r", limit=100_000)
        assert events[: len(seen)] == seen
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert events[-1].type == "run_finished"
        # All calls of the tree were judged in the same order, so exactly each fifth is blocked.
        decisions = [event for event in events if event.type in ("hook_executed", "subagent_event")]
        assert sum(b"each_fifth" in event.data and b"block" in event.data for event in decisions) == 13 // 5
        # Observers are called for each call, and again only around the crash.
        ledger = Counter(tuple(line[:3]) for line in world.lines("ledger"))
        assert len(ledger) == 13
        assert ledger.total() - len(ledger) <= 3


# One promise each.


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    store = RunStore(tmp_path / "runs.db")
    yield store
    store.close()


@pytest.fixture
def crashes(tmp_path: Path) -> Crashes:
    (tmp_path / "world").mkdir()
    return Crashes(World(tmp_path / "world"))


def interrupt(store: RunStore, run_id: str = "r") -> None:
    """End the lease of a run, as if its process had ended long ago."""
    with store.db.transaction(write=True) as db:
        db.execute("UPDATE durable_runs SET lease = 0 WHERE run_id = ?", (run_id,))


class Killed(BaseException):
    """Stands for the end of the process: nothing of the run is written after it."""


def test_a_store_that_fails_under_a_run_in_a_thread_of_a_hook_is_the_error_of_the_outermost_run(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook blocks the event loop, so the journal is written in the thread of the nested run, and fails there."""
    helper = Agent("helper", llm=ScriptedModel([call("note"), reply("done")]), tools=[tool(name="note")(lambda: "x")])

    @hook("on_run_end")
    def starts(ctx: Any, result: Any) -> None:
        monkeypatch.setattr(store.journal, "append", _refuse)
        context = contextvars.copy_context()

        def run() -> None:
            with suppress(HooklineError):
                context.run(asyncio.run, helper.arun("go"))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    starts.inherit = False  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="the process has ended"):
        Agent("a", llm=ScriptedModel(["done"]), hooks=[starts]).run("go", durable=store, run_id="r")


@pytest.mark.parametrize("by", ["tool", "hook"])
def test_a_detached_run_that_begins_while_the_end_of_its_outer_run_is_stored_is_executed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """It began in another event loop, so it would write to the journal before that of the outer run knows the end."""
    prepared, stored, ended = threading.Event(), threading.Event(), threading.Event()
    helper = Agent("helper", llm=ScriptedModel([call("note"), reply("done")]), tools=[tool(name="note")(lambda: "x")])
    replies, threads = list[str](), list[threading.Thread]()

    def leave(ctx: AgentContext) -> None:
        async def detached() -> None:
            run = helper.start("go", ctx=ctx.detached())
            prepared.set()
            stored.wait(20)  # the run begins after that
            replies.append((await run.result()).reply)

        def in_thread() -> None:
            try:
                asyncio.run(detached())
            finally:
                ended.set()

        threads.append(threading.Thread(target=in_thread))
        threads[0].start()
        assert prepared.wait(20)

    @tool
    def leave_a_run(ctx: AgentContext) -> str:
        """Start a detached run."""
        if by == "tool":
            leave(ctx)
        return "left"

    @hook("after_tool", tools="leave_a_run")
    async def after(ctx: Any, result: Any) -> None:
        loops.append(asyncio.get_running_loop())
        if by == "hook":
            leave(ctx)

    loops = list[asyncio.AbstractEventLoop]()
    append = store.journal.append

    def append_and_wait(write: Append) -> None:
        append(write)
        if write.status == "completed":
            loops[0].call_soon_threadsafe(ended.wait, 20)
            stored.set()

    monkeypatch.setattr(store.journal, "append", append_and_wait)
    agent = Agent("a", llm=ScriptedModel([call("leave_a_run"), reply("fine")]), tools=[leave_a_run], hooks=[after])
    assert agent.run("go", durable=store, run_id="r").reply == "fine"
    threads[0].join(20)
    assert replies == ["done"]


@pytest.mark.parametrize("by", ["tool", "hook"])
async def test_a_detached_run_ends_here_when_its_outer_run_is_suspended(store: RunStore, by: str) -> None:
    left = list[Any]()

    @tool
    async def note() -> str:
        """Note something."""
        run.suspend()
        return "noted"

    helper = Agent("helper", llm=ScriptedModel([call("note"), reply("done")]), tools=[note])

    async def leave(ctx: AgentContext) -> None:
        left.append(helper.start("go", ctx=ctx.detached()))
        await left[0].result()

    @tool
    async def work(ctx: AgentContext) -> str:
        """Work."""
        if by == "tool":
            await leave(ctx)
        return "did it"

    @guard("before_tool", tools="work")
    async def judge(ctx: Any, request: Any) -> None:
        if by == "hook":
            await leave(ctx)

    agent = Agent("a", llm=ScriptedModel([call("work"), reply("fine")]), tools=[work], hooks=[judge])
    run = agent.start("go", durable=store, run_id="r")
    with pytest.raises(RunSuspendedError):
        await run.result()
    with pytest.raises(RunSuspendedError):
        await asyncio.wait_for(left[0].result(), 20)


def killed_in_tool(world: World, **options: Any) -> Any:
    """Return a tool in which the process ends at the first call."""

    @tool(name="pay", **options)
    async def pay(n: int, ctx: Any) -> str:
        """Pay."""
        world.note("ran", ctx.call_key, n)
        if len(world.lines("ran")) == 1:
            await asyncio.Event().wait()
        return "paid"

    return pay


def run_until_tool(agent: Agent, store: RunStore, world: World) -> None:
    """Start a run and let its process end while its tool runs."""

    async def execute() -> None:
        run = asyncio.ensure_future(agent.arun("go", durable=store, run_id="r"))
        await wait_until(lambda: world.lines("ran"))
        journal = store.journal
        journal.append, append = _refuse, journal.append  # type: ignore[method-assign]
        run.cancel()
        with pytest.raises((asyncio.CancelledError, StoreError)):
            await run
        journal.append = append  # type: ignore[method-assign]

    asyncio.run(execute())
    interrupt(store)


def _refuse(*args: Any, **named: Any) -> None:
    raise StoreError("the process has ended")


def payer(world: World, model: ScriptedModel, hooks: Any = (), **options: Any) -> Agent:
    return Agent("payer", llm=model, tools=[killed_in_tool(world, **options)], hooks=hooks)


def script() -> ScriptedModel:
    return ScriptedModel([call("pay", n=5), reply("done")])


def contents(store: RunStore) -> list[Any]:
    """Return everything that is stored about durable runs."""
    return [store.db.execute(f"SELECT * FROM {name}") for name in ("durable_runs", "journal", "events")]


def test_the_facts_of_a_resumed_run_have_each_call_and_each_verdict_once(tmp_path: Path, store: RunStore) -> None:
    world, recorder = World(tmp_path), ObservabilityHook(tmp_path / "facts.db")

    @hook(BEFORE_TOOL)
    def rounded(ctx: Any, request: Any) -> HookResult:
        return HookResult.replace(request.replace(arguments={"n": 5}), reason="rounded")

    @hook(AFTER_LLM)
    def politely(ctx: Any, answer: Any) -> HookResult | None:
        return HookResult.cont(reason="fine") if answer.tool_calls else None

    silent = guard(BEFORE_TOOL, name="silent")(lambda ctx, request: None)
    hooks, model = [recorder, rounded, politely, silent], script()
    run_until_tool(payer(world, model, hooks), store, world)
    result = payer(world, model, hooks).run("go", durable=store, run_id="r")
    assert (result.status, recorder.flush(10)) == ("completed", True)
    facts = [fact for fact in recorder.store.facts("r") if fact.kind in ("model", "fire", "tool", "run")]
    assert [(fact.kind, fact.point, fact.verb or fact.outcome) for fact in facts if fact.kind != "run"] == [
        ("model", "after_llm", "cont"),
        ("fire", "before_tool", "replace"),
        ("tool", "", "ok"),
        ("model", "after_llm", "cont"),
    ]
    assert [verdict.reason for verdict in recorder.store.verdicts("r")] == ["fine", "rounded"]
    totals = run_stats(recorder.store).totals
    assert (totals.runs, totals.model_calls, totals.tool_calls) == (1, 2, 1)
    recorder.store.close()


def test_a_run_whose_journal_has_another_format_is_refused_and_not_changed(tmp_path: Path, store: RunStore) -> None:
    world = World(tmp_path)
    run_until_tool(payer(world, script()), store, world)
    for format in (1, JOURNAL_FORMAT + 1):
        set_format(store, format)
        before = contents(store)
        with pytest.raises(JournalFormatError) as refused:
            payer(world, ScriptedModel([])).run("go", durable=store, run_id="r")
        assert str(refused.value) == (
            f"run r cannot be continued: its journal has format {format}, and this version of Hookline reads only "
            "format 3. Continue it with the version of Hookline that began it, or start its task again as a new run; "
            "the run is unchanged"
        )
        assert contents(store) == before
    set_format(store, JOURNAL_FORMAT)
    assert payer(world, script()).run("go", durable=store, run_id="r").reply == "done"
    assert len(world.lines("ran")) == 2


def test_the_result_of_a_run_that_has_ended_is_returned_whatever_the_format_of_its_journal(store: RunStore) -> None:
    agent = Agent("a", llm=ScriptedModel([reply("done")]))
    agent.run("go", durable=store, run_id="r")
    set_format(store, 1)
    before = contents(store)
    assert agent.run("go", durable=store, run_id="r").reply == "done"
    assert contents(store) == before


def test_a_run_that_has_not_begun_has_no_journal_that_could_have_another_format(store: RunStore) -> None:
    agent = Agent("a", llm=ScriptedModel([reply("done")], loop=True))
    agent.run("go", durable=store, run_id="r")
    set_format(store, 1)
    with store.db.transaction(write=True) as db:  # as an earlier version left a run that follows after a handoff
        db.execute("UPDATE durable_runs SET status = 'new', epoch = 0, result = NULL")
        db.execute("DELETE FROM journal")
        db.execute("DELETE FROM events")
    assert agent.run("go", durable=store, run_id="r").reply == "done"
    begun = store.journal.get("r")
    assert begun is not None
    assert (begun.epoch, format_of(begun.start)) == (1, JOURNAL_FORMAT)


def test_a_call_in_flight_is_made_again_with_the_same_key(tmp_path: Path, store: RunStore) -> None:
    world = World(tmp_path)
    run_until_tool(payer(world, script()), store, world)
    result = payer(world, script()).run("go", durable=store, run_id="r")
    assert result.reply == "done"
    keys = [line[0] for line in world.lines("ran")]
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_call_in_flight_that_is_not_repeatable_gets_an_error_that_says_that_its_outcome_is_unknown(
    tmp_path: Path, store: RunStore
) -> None:
    world = World(tmp_path)
    run_until_tool(payer(world, script(), repeatable=False), store, world)
    result = payer(world, script(), repeatable=False).run("go", durable=store, run_id="r")
    assert len(world.lines("ran")) == 1
    (told,) = [message for message in result.messages if message.role == "tool"]
    assert told.is_error
    assert told.content.startswith("The outcome of this call is unknown")
    assert store.journal.get("r").status == "completed"


def test_a_run_whose_call_has_an_unknown_outcome_survives_another_crash(
    tmp_path: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline._run.waiters.STALL_SECONDS", 20.0)
    world = World(tmp_path)

    @tool
    async def wait() -> str:
        """Wait, the first time."""
        world.note("waited")
        if len(world.lines("waited")) == 1:
            await asyncio.Event().wait()
        return "waited"

    def agent() -> Agent:
        model = CountingModel([ToolCall("c", "pay", {"n": 1}), ToolCall("d", "wait", {}), "done"])
        return Agent("payer", llm=model, tools=[killed_in_tool(world, repeatable=False), wait])

    run_until_tool(agent(), store, world)
    killed_by(agent(), store, lambda run: wait_until(lambda: world.lines("waited")))
    assert agent().run("go", durable=store, run_id="r").reply == "done"


def test_a_tool_begins_after_the_decisions_about_it_and_its_intent_are_committed(store: RunStore) -> None:
    stored: list[list[Any]] = []
    append = store.journal.append

    def slow(*args: Any, **named: Any) -> None:
        time.sleep(0.05)
        append(*args, **named)

    store.journal.append = slow  # type: ignore[method-assign]

    @tool
    def look() -> str:
        """Look into the journal, as another process would."""
        other = RunStore(store.path)
        stored.extend(map(msgspec.json.decode, entries_of(other)))
        other.close()
        return "looked"

    @guard("before_tool", name="judge")
    def judge(ctx: Any, request: Any) -> Any:
        return HookResult.cont(reason="fine")

    Agent("a", llm=ScriptedModel([call("look"), reply("done")]), tools=[look], hooks=[judge]).run("go", durable=store)
    assert any(kind == "event" and "before_tool judge: cont (fine)" in key for _, kind, key, _ in stored)
    assert stored[-1][1] == "asked"
    assert stored[-1][2].startswith("tool look ")


def test_a_process_that_lost_the_lease_begins_no_tool_calls_no_hook_and_saves_nothing(
    tmp_path: Path, store: RunStore
) -> None:
    world, session = World(tmp_path), Session("s")
    called = []

    @guard("before_tool")
    def taken_over(ctx: Any, request: Any) -> None:
        interrupt(store)
        store.journal.claim("r", "payer", b"")

    @hook("after_tool", "after_step", "on_stop", "on_run_end")
    def later(ctx: Any, payload: Any) -> None:
        called.append(payload)

    agent = payer(world, script(), hooks=[taken_over, later])
    with pytest.raises(LeaseLostError, match="run r was taken over by another process"):
        agent.run("go", durable=store, run_id="r", session=session)
    assert not world.lines("ran")
    assert not called
    assert not session.messages
    assert store.journal.get("r").epoch == 2


def test_a_paused_process_checks_its_lease_before_a_tool_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path / "runs.db", lease_seconds=0.5)
    world = World(tmp_path)
    renewed = []

    @guard("before_tool")
    def pause(ctx: Any, request: Any) -> None:
        monkeypatch.setattr(store.journal, "renew", lambda *args: renewed.append(args))
        time.sleep(0.6)  # the whole process stands still

    agent = Agent("a", llm=ScriptedModel([call("note"), reply("done")]), tools=[tool(note_of(world))], hooks=[pause])
    agent.run("go", durable=store, run_id="r")
    assert renewed
    assert len(world.lines("ran")) == 1
    store.close()


def note_of(world: World) -> Any:
    async def note() -> str:
        """Note."""
        world.note("ran", "note")
        return "noted"

    return note


def test_recovery_with_another_verdict_stops_before_any_call_and_names_the_hook(
    tmp_path: Path, store: RunStore
) -> None:
    world = World(tmp_path)

    @guard("before_tool", name="rule")
    def allowed(ctx: Any, request: Any) -> Any:
        return HookResult.cont(reason="old rule")

    @guard("before_tool", name="rule")
    def blocked(ctx: Any, request: Any) -> Any:
        return HookResult.block("no", reason="new rule")

    run_until_tool(payer(world, script(), hooks=[allowed]), store, world)
    before = entries_of(store)
    with pytest.raises(
        RecoveryError, match=r"'before_tool rule: cont \(old rule\)', but now it is.*block \(new rule\)"
    ):
        payer(world, ScriptedModel([]), hooks=[blocked]).run("go", durable=store, run_id="r")
    assert len(world.lines("ran")) == 1
    assert entries_of(store) == before
    assert payer(world, script(), hooks=[allowed]).run("go", durable=store, run_id="r").reply == "done"


def test_recovery_that_would_run_a_blocked_tool_stops_at_once(tmp_path: Path, store: RunStore) -> None:
    world = World(tmp_path)

    @guard("before_tool", name="rule")
    def rule(ctx: Any, request: Any) -> Any:
        return HookResult.block("no") if request.arguments["n"] == 1 else None

    model = CountingModel([ToolCall("c", "pay", {"n": 1}), ToolCall("d", "pay", {"n": 2}), "done"])
    killed_by(payer(world, model, [rule]), store, lambda run: wait_until(lambda: world.lines("ran")))
    with pytest.raises(RecoveryError, match=r"'before_tool rule: block', but now it is event tool_started \(pay\)"):
        payer(world, model).run("go", durable=store, run_id="r")
    assert len(world.lines("ran")) == 1


def test_recovery_with_another_request_stops(tmp_path: Path, store: RunStore) -> None:
    world = World(tmp_path)
    run_until_tool(payer(world, script()), store, world)

    @hook("before_llm")
    def other(ctx: Any, request: Any) -> Any:
        return HookResult.replace({"params": {"temperature": 1}})

    with pytest.raises(RecoveryError):
        payer(world, ScriptedModel([]), hooks=[other]).run("go", durable=store, run_id="r")
    assert len(world.lines("ran")) == 1


def entries_of(store: RunStore) -> list[bytes]:
    rows = store.db.execute("SELECT data FROM journal ORDER BY seq")
    return [bytes(entry) for (data,) in rows for entry in msgspec.json.decode(data, type=list[msgspec.Raw])]


def test_observers_and_sinks_are_not_told_again_what_they_were_told(tmp_path: Path, store: RunStore) -> None:
    world = World(tmp_path)
    seen: list[str] = []

    @observer("after_llm")
    def observed(ctx: Any, reply: Any) -> None:
        seen.append(f"reply {reply.hop}")

    run_until_tool(payer(world, script(), hooks=[observed]), store, world)
    told: list[Event] = []
    agent = payer(world, script(), hooks=[observed])
    agent.run("go", durable=store, run_id="r", sinks=[told.append])
    assert seen == ["reply 0", "reply 1"]
    kinds = [type(event).__name__ for event in told]
    assert "RunStarted" not in kinds
    assert kinds.count("ToolEnded") == 1


def test_a_hook_that_also_decides_observes_again_so_that_its_state_is_complete(tmp_path: Path, store: RunStore) -> None:
    world = World(tmp_path)

    class OncePerRun:
        points = ("after_llm", "before_tool")
        phase = {"after_llm": "observe", "before_tool": "guard"}  # noqa: RUF012
        name = "count_replies"

        def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
            replies = ctx.hook_state.setdefault(id(self), [])
            if point == "after_llm":
                replies.append(payload.hop)
                return None
            return HookResult.cont(reason=f"after {len(replies)} replies")

    run_until_tool(payer(world, script(), hooks=[OncePerRun()]), store, world)
    result = payer(world, script(), hooks=[OncePerRun()]).run("go", durable=store, run_id="r")
    assert result.status == "completed"


# Waiting for an approval.


@guard("before_tool", tools="pay", name="asks")
def asks(ctx: Any, request: Any) -> Any:
    return HookResult.ask("Pay?")


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_a_waiting_run_is_suspended_and_taken_up_when_the_decision_is_there(
    tmp_path: Path, store: RunStore, decision: str
) -> None:
    world, approvals = World(tmp_path), ApprovalStore(tmp_path / "approvals.db")
    world.note("ran", "so that the tool does not hang")
    ended = []

    @observer("on_run_end")
    def end(ctx: Any, result: Any) -> None:
        ended.append(result.status)

    def agent(model: ScriptedModel) -> Agent:
        return payer(world, model, hooks=[asks, ApprovalsHook(approvals, hold_seconds=0.01), end])

    with pytest.raises(RunWaitingError, match="run r waits for the approval of pay") as waiting:
        agent(script()).run("go", durable=store, run_id="r")
    assert [request.name for request in waiting.value.calls] == ["pay"]
    stored = store.journal.get("r")
    assert (stored.status, stored.lease) == ("waiting", 0)
    with pytest.raises(RunWaitingError):  # nobody has decided yet
        agent(ScriptedModel([])).run("go", durable=store, run_id="r")
    assert not ended
    (row,) = approvals.rows()
    assert row.status == "pending"
    approvals.decide(row.id, decision=decision, digest=row.digest, by="anna")
    result = agent(script()).run("go", durable=store, run_id="r")
    assert result.reply == "done"
    assert ended == ["completed"]
    assert len(world.lines("ran")) == (2 if decision == "approve" else 1)
    approvals.close()


def test_a_run_is_suspended_only_when_its_other_calls_have_ended(tmp_path: Path, store: RunStore) -> None:
    """A subagent waits for an approval while another call of the batch works."""
    world = World(tmp_path)
    decided = []

    @tool
    async def work() -> str:
        """Work."""
        await asyncio.sleep(0.2)
        world.note("ran", "work")
        return "worked"

    @hook("approval_requested")
    def later(ctx: Any, request: Any) -> Any:
        return HookResult.approve(by="anna") if decided else HookResult.wait()

    @tool
    def pay() -> str:
        """Pay."""
        world.note("ran", "pay")
        return "paid"

    def boss() -> Agent:
        helper = Agent("helper", llm=ScriptedModel([call("pay"), reply("paid it")]), tools=[pay])
        both = [call("work"), call("delegate", to="helper", task="pay")]
        model = ScriptedModel([both, reply("done")])
        return Agent("boss", llm=model, tools=[work, Team([helper])], hooks=[asks, later])

    with pytest.raises(RunWaitingError):
        boss().run("go", durable=store, run_id="r")
    assert [line[0] for line in world.lines("ran")] == ["work"]
    decided.append(True)
    result = boss().run("go", durable=store, run_id="r")
    assert result.reply == "done"
    assert [line[0] for line in world.lines("ran")] == ["work", "pay"]


def test_a_run_that_is_not_durable_denies_a_call_that_would_have_to_wait() -> None:
    @hook("approval_requested")
    def later(ctx: Any, request: Any) -> Any:
        return HookResult.wait()

    @tool
    def pay() -> str:
        """Pay."""
        raise AssertionError("nobody approved it")

    result = Agent("a", llm=ScriptedModel([call("pay"), reply("done")]), tools=[pay], hooks=[asks, later]).run("go")
    assert "this run cannot wait" in next(m.content for m in result.messages if m.role == "tool")


# Recovery of what is not a plain call: each run continues from every one of its commits.


def recover_everywhere(
    crashes: Crashes,
    make: Callable[[World], Agent],
    check: Callable[[AgentResult[Any], World], None],
    step: int = 1,
    **options: Any,
) -> None:
    """Run an agent, continue the run from each of its entries, and check all results; or from every ``step``-th."""
    check(make(crashes.world).run("go", durable=crashes.store, run_id="r", **options), crashes.world)
    for world, store in crashes.worlds(each_entry=True, step=step):
        check(make(world).run("go", durable=store, run_id="r", **options), world)
        events = store.events("r", limit=100_000)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))


EACH_ENTRY = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])


class CountingModel:
    """A model that answers by the number of replies in the request, so that any process can continue."""

    name, provider = "counting", "test"

    def __init__(self, replies: list[Any], world: World | None = None) -> None:
        self.replies, self.world = replies, world

    async def complete(self, request: Any) -> ModelResponse:
        number = sum(message.role == "assistant" for message in request.messages)
        if self.world is not None:
            self.world.note("asked", request.purpose, number)
        given = self.replies[number] if request.purpose == "step" else ModelResponse("opinion", usage=Usage(1, 1))
        made = ModelResponse("", (given,)) if isinstance(given, ToolCall) else given
        return made if isinstance(made, ModelResponse) else ModelResponse(str(made))

    def count_tokens(self, content: Any) -> int:
        return 5


def text_of(result: AgentResult[Any]) -> str:
    return "\n".join(message.content for message in result.messages if message.role == "tool")


@tool
async def hang() -> str:
    """Hang."""
    await asyncio.sleep(60)
    return "never"


def test_usage_inside_a_tool_of_a_subagent_counts_for_its_limits_again(crashes: Crashes) -> None:
    def make(world: World) -> Agent:
        expert = Agent("expert", llm=CountingModel([ModelResponse("yes", usage=Usage(90, 10))]))

        @tool
        async def consult() -> str:
            """Ask an expert."""
            return (await expert.arun("go")).reply

        model = CountingModel([ToolCall("c", "consult", {}), "not reached"])
        helper = Agent("helper", llm=model, tools=[consult], limits=Limits(tokens=50))
        asked = CountingModel([ToolCall("c", "delegate", {"to": "helper", "task": "go"}), "done"])
        return Agent("a", llm=asked, tools=[Team([helper])])

    def check(result: AgentResult[Any], world: World) -> None:
        assert (result.reply, result.usage.total_tokens) == ("done", 100)
        assert "limit" in text_of(result)

    recover_everywhere(crashes, make, check)


def delegate_that_hangs(seconds: float) -> Any:
    """Return the tool ``delegate`` with a timeout, for an agent ``helper`` whose tool hangs."""
    helper = Agent("helper", llm=CountingModel([ToolCall("h", "hang", {}), "done"]), tools=[hang])
    (delegate,) = [each for each in Team([helper]).tools() if each.name == "delegate"]
    delegate.timeout = seconds
    return delegate


@EACH_ENTRY
def test_the_timeout_of_a_tool_is_repeated(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        @tool(timeout=0.05)
        async def hang() -> str:
            """Hang."""
            world.note("ran", "hang")
            await asyncio.sleep(60)
            return "never"

        model = CountingModel([ToolCall("c", "hang", {}), "done"])
        return Agent("a", llm=model, tools=[hang, tool(note_of(world))])

    def check(result: AgentResult[Any], world: World) -> None:
        assert result.reply == "done"
        assert "no result after 0.05 s" in text_of(result)

    recover_everywhere(crashes, make, check, step)


@EACH_ENTRY
def test_the_timeout_of_a_subagent_is_repeated(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        model = CountingModel([ToolCall("c", "delegate", {"to": "helper", "task": "hang"}), "done"])
        return Agent("a", llm=model, tools=[delegate_that_hangs(0.05)])

    def check(result: AgentResult[Any], world: World) -> None:
        assert result.reply == "done"
        assert "no result after 0.05 s" in text_of(result)

    recover_everywhere(crashes, make, check, step)


@EACH_ENTRY
def test_the_time_limit_of_a_run_is_repeated_and_counts_only_the_time_of_execution(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        model = CountingModel([ToolCall("c", "note", {}), ToolCall("d", "hang", {}), "done"])
        return Agent("a", llm=model, tools=[hang, tool(note_of(world))], limits=Limits(seconds=0.1))

    def check(result: AgentResult[Any], world: World) -> None:
        assert result.status == "stopped"
        assert result.stop is not None
        assert result.stop.kind == "time_limit"
        check_transcript(result)

    recover_everywhere(crashes, make, check, step)


@EACH_ENTRY
def test_a_cancellation_is_repeated(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        @tool
        async def stop(ctx: Any) -> str:
            """Cancel the run while it works."""
            ctx.interrupt.cancel("enough")
            await asyncio.sleep(60)
            return "never"

        model = CountingModel([ToolCall("c", "note", {}), ToolCall("d", "stop", {}), "done"])
        return Agent("a", llm=model, tools=[stop, tool(note_of(world))])

    def check(result: AgentResult[Any], world: World) -> None:
        assert (result.status, result.stop and result.stop.message) == ("cancelled", "enough")
        check_transcript(result)

    recover_everywhere(crashes, make, check, step)


def deep_agent(seed: int, cancel: Callable[[], None], limits: Limits) -> Agent:
    """Return an agent whose subagent has a subagent that hangs, with a hook that takes another time in each process."""
    pauses = random.Random(seed)

    @hook("before_step", "before_llm", "after_llm", "before_tool", "after_tool", "on_progress", name="note")
    async def note(ctx: Any, payload: Any) -> HookResult:
        await asyncio.sleep(pauses.choice((0, 0, 0.0005, 0.002)))
        return HookResult.cont(reason=f"{ctx.random.random():.6f}")

    @tool
    async def hang() -> None:
        """Hang until the run is cancelled."""
        cancel()
        await asyncio.sleep(60)

    @tool
    async def work(n: int) -> str:
        """Work."""
        await asyncio.sleep(0.001 * n)
        return f"did {n}"

    def agent(name: str, *more: Any, **options: Any) -> Agent:
        inner = [ToolCall(f"{name}1", "delegate", {"to": more[0].name, "task": "go"})] if more else []
        calls = (*(inner or [ToolCall(f"{name}1", "hang", {})]), ToolCall(f"{name}2", "work", {"n": 1}))
        tools = [work, Team(more)] if more else [work, hang]
        return Agent(name, llm=CountingModel([ModelResponse("", calls), "done"]), tools=tools, **options)

    return agent("a", agent("b", agent("c")), hooks=[note], limits=limits)


@pytest.mark.parametrize(
    ("at", "step"), [(55, 29), (60, 29), *(pytest.param(n, 3, marks=pytest.mark.slow) for n in range(20, 80, 7))]
)
@pytest.mark.parametrize("way", ["cancel", "limit"])
def test_an_interruption_inside_subagents_is_repeated_by_a_process_that_is_faster_or_slower(
    crashes: Crashes, way: str, at: int, step: int
) -> None:
    async def execute(store: RunStore, seed: int, *, first: bool = False) -> AgentResult[Any]:
        seen = 0

        def cancel() -> None:
            if way == "cancel":
                run.cancel("enough")

        def watch(event: Event) -> None:
            nonlocal seen
            seen += 1
            if first and seen == at:
                asyncio.get_running_loop().call_soon(cancel)

        limits = Limits(seconds=0.002 * at) if way == "limit" else Limits()
        run = deep_agent(seed, cancel, limits).start("go", durable=store, run_id="r", sinks=[watch])
        return await run.result()

    status = "cancelled" if way == "cancel" else "stopped"
    assert asyncio.run(execute(crashes.store, 0, first=True)).status == status
    for number, (_, store) in enumerate(crashes.worlds(each_entry=True, step=step)):
        result = asyncio.run(execute(store, number + 1))
        assert result.status == status
        check_transcript(result)
        assert numbers(store, "r") == list(range(1, len(numbers(store, "r")) + 1))


@pytest.mark.parametrize("way", ["cancel", "limit"])
def test_a_hook_that_was_interrupted_inside_a_subagent_is_interrupted_again_if_it_is_faster(
    crashes: Crashes, way: str
) -> None:
    async def execute(store: RunStore, *, first: bool) -> AgentResult[Any]:
        waits = asyncio.Event()

        @hook("before_step", name="judge")
        async def judge(ctx: Any, step: Any) -> HookResult | None:
            if ctx.agent_name == "boss":
                return None
            waits.set()
            if first:
                await asyncio.sleep(60)
            return HookResult.cont(reason="fine")

        @hook("on_progress", name="slow")
        async def slow(ctx: Any, progress: Any) -> HookResult | None:
            if progress.tool != "work":
                return None
            if not first:
                await asyncio.sleep(0.02)  # so that the subagent is ahead of what happened before the interruption
            return HookResult.cont(reason="seen")

        @tool
        async def work() -> str:
            """Work."""
            await asyncio.sleep(0.01)
            return "did it"

        calls = ToolCall("c", "delegate", {"to": "helper", "task": "go"}), ToolCall("d", "work", {})
        helper = Agent("helper", llm=CountingModel(["done"]))
        boss = Agent(
            "boss",
            llm=CountingModel([ModelResponse("", calls), "done"]),
            tools=[work, Team([helper])],
            hooks=[judge, slow],
            limits=Limits(seconds=0.3) if way == "limit" else Limits(),
        )
        run = boss.start("go", durable=store, run_id="r")
        if first and way == "cancel":
            await waits.wait()
            await asyncio.sleep(0.05)
            run.cancel("enough")
        return await run.result()

    assert (result := asyncio.run(execute(crashes.store, first=True))).status != "completed"
    entries = [msgspec.json.decode(data)[1] for _, batch, _ in crashes.commits for data in batch]
    cut = entries.index("cancel" if way == "cancel" else "timer") + 1
    after = 0
    for world, store in crashes.worlds(each_entry=True):
        if len(entries_of(store)) < cut:
            continue
        after += 1
        assert asyncio.run(execute(store, first=False)).status == result.status, world.folder
    assert after > 3


@EACH_ENTRY
def test_model_calls_inside_tools_and_observers_are_counted_and_not_repeated_with_their_caller(
    crashes: Crashes, step: int
) -> None:
    def make(world: World) -> Agent:
        @tool
        async def think(ctx: Any) -> str:
            """Ask the model."""
            ctx.progress(0.5, "half way")
            await ctx.llm.complete("What is this?", purpose="tool")
            world.note("ran", "think")
            return "thought"

        @observer("after_tool")
        async def comment(ctx: Any, result: Any) -> None:
            await ctx.llm.complete("And that?", purpose="comment")

        @guard("before_tool", name="judge")
        async def judge(ctx: Any, request: Any) -> Any:
            return HookResult.cont(reason=(await ctx.llm.complete("May it?", purpose="judge")).content)

        model = CountingModel([ToolCall("c", "think", {}), ToolCall("d", "think", {}), "done"], world)
        model.replies = [_with_usage(each) for each in model.replies]
        return Agent("a", llm=model, tools=[think], hooks=[comment, judge])

    def check(result: AgentResult[Any], world: World) -> None:
        assert result.reply == "done"
        assert result.usage.input_tokens >= 3 * 10 + 2 * (1 + 1 + 1)  # more if a call was in flight

    recover_everywhere(crashes, make, check, step)
    assert [line[0] for line in crashes.world.lines("asked")].count("judge") == 2


def _with_usage(given: Any) -> ModelResponse:
    calls = (given,) if isinstance(given, ToolCall) else ()
    return ModelResponse("" if calls else given, calls, usage=Usage(10, 1), cost=0.5)


@EACH_ENTRY
def test_steering_messages_to_a_run_and_to_its_subagent_are_repeated(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        started: dict[str, Any] = {}

        @tool
        async def steer(ctx: Any) -> str:
            """Steer this run from outside."""
            world.note("ran", ctx.agent_name)
            engine = started[ctx.run_id]
            engine.steer(Message("user", f"for {ctx.agent_name}"))
            return "steered"

        class Engines:
            points = ("on_run_start",)
            name = "engines"

            def __call__(self, point: str, ctx: Any, payload: Any) -> None:
                started[ctx.run_id] = CURRENT.get()

        @guard(BEFORE_TOOL)
        async def judge(ctx: Any, request: Any) -> None:
            """Judge a call without awaiting anything, so that the journal has no entry of this hook."""

        helper = Agent("helper", llm=CountingModel([ToolCall("h", "steer", {}), "helped"]), tools=[steer])
        model = CountingModel(
            [ToolCall("c", "delegate", {"to": "helper", "task": "x"}), ToolCall("d", "steer", {}), "done"]
        )
        return Agent("boss", llm=model, tools=[steer, Team([helper])], hooks=[Engines(), judge])

    def check(result: AgentResult[Any], world: World) -> None:
        assert result.reply == "done"
        messages = [m.content for m in result.messages if m.role == "user"]
        ran = [line[0] for line in world.lines("ran")].count("boss")  # twice if it was in flight
        assert messages in (["go", "for boss"], ["go", "for boss", "for boss"][: ran + 1])

    recover_everywhere(crashes, make, check, step)
    steered = [e for e in crashes.store.events("r", limit=1000) if b'"type":"steered"' in e.data]
    assert len(steered) == 2


@EACH_ENTRY
def test_a_blocking_run_inside_an_ordinary_tool_is_part_of_the_tool(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        inner = Agent("inner", llm=CountingModel(["inside"]))

        @tool
        def ask() -> str:
            """Ask another agent."""
            return inner.run("really?").reply

        return Agent("a", llm=CountingModel([ToolCall("c", "ask", {}), "done"]), tools=[ask])

    recover_everywhere(crashes, make, lambda result, world: check_transcript(result), step)


@EACH_ENTRY
def test_a_run_that_a_tool_starts_in_another_thread_is_part_of_the_tool(
    crashes: Crashes, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of a pool has no copy of the context of the tool; the run is given ``ctx``."""
    monkeypatch.setattr(waiters, "STALL_SECONDS", 20.0)

    def make(world: World) -> Agent:
        inner = Agent("inner", llm=CountingModel([_with_usage("inside")], world))

        @tool
        def ask(ctx: AgentContext) -> str:
            """Ask another agent."""
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(lambda: inner.run("really?", ctx=ctx).reply).result()

        return Agent("a", llm=CountingModel([ToolCall("c", "ask", {}), "done"]), tools=[ask])

    def check(result: AgentResult[Any], world: World) -> None:
        assert result.reply == "done"
        assert 10 <= result.usage.input_tokens <= 10 * len(world.lines("asked"))  # more if the call was in flight

    recover_everywhere(crashes, make, check, step)


@EACH_ENTRY
@pytest.mark.filterwarnings("ignore:agent.run.. blocks the event loop")
@pytest.mark.parametrize("door", ["a hook in a worker thread", "a thread of a hook", "a hook that blocks the loop"])
def test_a_run_that_a_hook_starts_in_another_thread_is_continued(
    crashes: Crashes, step: int, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in another event loop, and waits for the commits and the order of the outer run."""
    monkeypatch.setattr(waiters, "STALL_SECONDS", 20.0)

    def make(world: World) -> Agent:
        @tool
        def look() -> str:
            """Look."""
            world.note("ran", "look")
            return "fine"

        def review(ctx: Any) -> HookResult:
            reviewer = Agent("reviewer", llm=CountingModel([ToolCall("l", "look", {}), "fine"]), tools=[look])
            return HookResult.cont(reason=reviewer.run("really?", ctx=ctx).reply)

        @guard("before_tool", timeout=60)
        def in_worker(ctx: Any, request: Any) -> Any:
            return review(ctx) if request.name == "pay" else None

        @guard("before_tool")
        async def in_thread(ctx: Any, request: Any) -> Any:
            return await asyncio.to_thread(review, ctx) if request.name == "pay" else None

        @guard("before_tool")
        def blocking(ctx: Any, request: Any) -> Any:
            return review(ctx) if request.name == "pay" else None

        @tool
        def pay() -> str:
            """Pay."""
            world.note("ran", "pay")
            return "paid"

        doors = {"a hook in a worker thread": in_worker, "a thread of a hook": in_thread}
        hooks = [doors.get(door, blocking)]
        return Agent("a", llm=CountingModel([ToolCall("c", "pay", {}), "done"]), tools=[pay], hooks=hooks)

    def execute(world: World, store: RunStore) -> None:
        result = asyncio.run(make(world).arun("go", durable=store, run_id="r"))
        assert result.reply == "done"
        assert {"look", "pay"} == {line[0] for line in world.lines("ran")}

    execute(crashes.world, crashes.store)
    for world, store in crashes.worlds(each_entry=True, step=step):
        execute(world, store)


@EACH_ENTRY
def test_tool_calls_inside_a_tool_count_in_the_budget_again(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        @tool
        def note() -> str:
            """Note something."""
            return "noted"

        inner = Agent("inner", llm=CountingModel([ToolCall("n", "note", {}), "inside"]), tools=[note])

        @tool
        async def ask() -> str:
            """Ask another agent."""
            return (await inner.arun("really?")).reply

        calls = [ToolCall(id, "ask", {}) for id in "abc"]
        return Agent("a", llm=CountingModel([*calls, "done"]), tools=[ask], limits=Limits(tool_calls=3))

    def check(result: AgentResult[Any], world: World) -> None:
        assert (result.status, result.stop.kind) == ("stopped", "tool_calls_limit")
        assert result.tool_calls <= 2

    recover_everywhere(crashes, make, check, step)


@EACH_ENTRY
def test_attachments_of_the_task_and_of_results_are_in_the_journal(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        @tool
        def picture() -> Any:
            """Draw."""
            return Attachment.of(PNG, media_type="image/png", name="drawn.png")

        class Sees(CountingModel):
            attachment_types = ("image/*",)

            async def complete(self, request: Any) -> ModelResponse:
                data = [a.data for m in request.messages for a in m.attachments]
                assert all(PNG[:8] == each[:8] for each in data)
                return await super().complete(request)

        return Agent("a", llm=Sees([ToolCall("c", "picture", {}), "done"]), tools=[picture])

    recover_everywhere(
        crashes,
        make,
        lambda result, world: check_transcript(result),
        step,
        attachments=[Attachment.of(PNG, name="a.png")],
    )


PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"


# The options.


def test_a_run_that_has_ended_returns_its_result_with_its_typed_output(store: RunStore) -> None:
    agent = Agent("a", llm=ScriptedModel([reply("[1, 2]")]), output_type=list[int])
    assert agent.run("go", durable=store, run_id="r").output == [1, 2]
    again = agent.run("go", durable=store, run_id="r")
    assert (again.output, again.status) == ([1, 2], "completed")


def test_a_run_that_has_failed_raises_its_error_again(store: RunStore) -> None:
    @guard("before_llm", name="broken")
    def broken(ctx: Any, request: Any) -> None:
        raise ValueError("no")

    agent = Agent("a", llm=ScriptedModel([]), hooks=[broken])
    for _ in range(2):
        with pytest.raises(RunFailedError, match="hook 'broken' failed"):
            agent.run("go", durable=store, run_id="r")


async def test_a_run_that_another_task_executes_is_refused(tmp_path: Path, store: RunStore) -> None:
    world = World(tmp_path)
    agent = payer(world, script())
    first = agent.start("go", durable=store, run_id="r")
    await wait_until(lambda: world.lines("ran"))
    with pytest.raises(RunHeldError, match="run r is executed by process"):
        agent.start("go", durable=store, run_id="r")
    first.cancel()
    await first.settled()


@pytest.mark.parametrize(
    ("name", "task", "problem"),
    [("b", "go", "was started by agent 'a', not 'b'"), ("a", "come", "has another task: 'go'")],
)
def test_an_id_belongs_to_one_agent_and_task(store: RunStore, name: str, task: str, problem: str) -> None:
    Agent("a", llm=ScriptedModel([reply("done")])).run("go", durable=store, run_id="r")
    with pytest.raises(HooklineError, match=problem):
        Agent(name, llm=ScriptedModel([])).run(task, durable=store, run_id="r")


@pytest.mark.parametrize("run_id", ["", "a/b", "a b", "x" * 201, 5, "\ud800"])
def test_an_id_that_cannot_be_one_is_refused(store: RunStore, run_id: Any) -> None:
    with pytest.raises(TypeError, match="run_id= takes letters, digits"):
        Agent("a", llm=ScriptedModel([])).run("go", durable=store, run_id=run_id)


def test_an_id_without_a_store_is_refused() -> None:
    with pytest.raises(TypeError, match="run_id= identifies a durable run"):
        Agent("a", llm=ScriptedModel([])).run("go", run_id="r")


def test_a_run_inside_a_durable_run_has_no_journal_of_its_own(store: RunStore) -> None:
    @tool
    def inner() -> str:
        """Run another agent."""
        return Agent("b", llm=ScriptedModel([])).run("go", durable=store).reply

    result = Agent("a", llm=ScriptedModel([call("inner"), reply("done")]), tools=[inner]).run("go", durable=store)
    assert "part of its journal" in text_of(result)


def test_a_key_of_a_call_is_the_same_for_this_attempt_only() -> None:
    keys = []

    @tool
    def work(ctx: Any) -> str:
        """Work."""
        keys.append(ctx.call_key)
        return "worked"

    @hook("after_tool")
    def again(ctx: Any, result: Any) -> Any:
        return HookResult.retry("again") if result.attempt == 1 else None

    Agent("a", llm=ScriptedModel([call("work"), reply("done")]), tools=[work], hooks=[again]).run("go")
    assert len(keys) == len(set(keys)) == 2
    assert all(len(key) == 32 and key.isalnum() for key in keys)


async def test_a_value_is_read_each_time_in_a_run_that_is_not_durable() -> None:
    ctx = AgentContext()
    assert await ctx.once("n", lambda: 5) == 5
    assert not ctx.is_durable
    with pytest.raises(HooklineError, match=r"ctx\.call_key works only with the context of a tool call"):
        _ = ctx.call_key


def test_the_session_of_a_recovered_run_has_the_whole_conversation(tmp_path: Path, store: RunStore) -> None:
    world, session = World(tmp_path), Session("s", [Message("user", "hello"), Message("assistant", "hi")])
    agent = payer(world, CountingModel(["hi", ToolCall("c", "pay", {"n": 5}), "done"]))

    async def execute() -> None:
        run = agent.start("go", durable=store, run_id="r", session=session)
        await wait_until(lambda: world.lines("ran"))
        store.journal.append, append = _refuse, store.journal.append  # type: ignore[method-assign]
        run.cancel()
        await run.settled()
        store.journal.append = append  # type: ignore[method-assign]

    asyncio.run(execute())
    interrupt(store)
    restored = Session("s", [Message("user", "hello"), Message("assistant", "hi")])
    agent.run("go", durable=store, run_id="r", session=restored)
    assert [message.role for message in restored.messages] == ["user", "assistant"] * 2 + ["tool", "assistant"]
    with pytest.raises(HooklineError, match="belongs to session s"):
        agent.run("go", durable=store, run_id="r", session=Session("other"))


def test_a_session_that_was_not_saved_gets_the_messages_of_a_run_that_has_ended(store: RunStore) -> None:
    before = [Message("user", "hello"), Message("assistant", "hi")]
    agent = Agent("a", llm=CountingModel(["hi", "done"]))
    first = Session("s", before)
    agent.run("go", durable=store, run_id="r", session=first)
    restored = Session("s", before)
    for _ in range(2):
        agent.run("go", durable=store, run_id="r", session=restored)
        assert list(restored.messages) == list(first.messages)


@pytest.mark.sqlite
@pytest.mark.parametrize(("synced", "level"), [(False, 1), (True, 2)])
def test_a_synced_store_syncs_each_commit_to_disk(tmp_path: Path, synced: bool, level: int) -> None:
    store = RunStore(tmp_path / "runs.db", synced=synced)
    with store.db.transaction() as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (level,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_ended_runs_are_deleted_with_their_journals_and_events(store: RunStore) -> None:
    agent = Agent("a", llm=ScriptedModel([reply("one"), reply("two")]))
    agent.run("go", durable=store, run_id="one")
    agent.run("go", durable=store, run_id="two")
    assert store.journal.delete("one")
    assert not store.journal.delete("one")
    assert not store.events("one")
    assert [run.run_id for run in store.journal.runs()] == ["two"]
    assert store.journal.prune(days=1) == 0
    with store.db.transaction(write=True) as db:
        db.execute("UPDATE durable_runs SET changed = 0")
    assert store.journal.prune(days=1) == 1
    assert not entries_of(store)


# Budgets.


def test_a_run_that_is_continued_knows_what_its_conversation_had_spent_before(store: RunStore) -> None:
    decisions: list[HookResult] = []

    @guard("before_tool")
    def ask(ctx: Any, request: Any) -> HookResult:
        return HookResult.ask("Pay?")

    @hook("approval_requested")
    def decide(ctx: Any, request: Any) -> HookResult:
        return decisions.pop() if decisions else HookResult.wait()

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    def conversation() -> AgentContext:
        return AgentContext(budget=Budget(Limits(tokens=200, seconds=1000)), session=Session("talk"))

    def clerk(*turns: Any) -> Agent:
        return Agent("clerk", llm=ScriptedModel(list(turns)), tools=[pay], hooks=[ask, decide])

    def says(text: str, tokens: int) -> ModelResponse:
        return ModelResponse(text, usage=Usage(tokens, 0))

    before = conversation()
    clerk(says("hello", 60)).run("Hello.", ctx=before)
    spent = before.budget.elapsed
    asks = ModelResponse(tool_calls=(ToolCall("c", "pay", {}),), usage=Usage(70, 0))
    with pytest.raises(RunWaitingError):
        clerk(asks).run("Pay.", ctx=before, durable=store, run_id="r")
    assert before.budget.tokens == 130
    decisions.append(HookResult.approve())
    now = conversation()  # as another process would make it
    result = clerk(asks, says("done", 20)).run("Pay.", ctx=now, durable=store, run_id="r")
    assert (result.status, now.budget.tokens, now.budget.tool_calls) == ("completed", 150, 1)
    assert now.budget.elapsed > spent


# Handoffs and streams.


def test_a_team_continues_after_a_handoff_in_a_run_of_its_own(tmp_path: Path, store: RunStore) -> None:
    asked: list[str] = []

    class Noted(CountingModel):
        async def complete(self, request: Any) -> ModelResponse:
            asked.append(request.ids.run_id)
            return await super().complete(request)

    def team() -> Team:
        made = Team()
        handoff = ToolCall("c", "handoff", {"to": "expert", "message": "yours"})
        made.add(Agent("clerk", llm=Noted([handoff, "x"]), tools=[made]))
        made.add(Agent("expert", llm=CountingModel(["unused", "it is done"]), tools=[made]))
        return made

    result = team().run("go", durable=store, run_id="r")
    assert result.reply == "it is done"
    assert sorted(run.run_id for run in store.journal.runs()) == ["r", "r+1"]
    assert team().run("go", durable=store, run_id="r").reply == "it is done"  # as another process would
    assert asked == ["r"]


@pytest.mark.parametrize("moment", ["end", "claim", "model"])
def test_a_handoff_is_not_lost_and_its_guards_still_apply_if_the_process_is_killed(tmp_path: Path, moment: str) -> None:
    scene = [sys.executable, handoff_scene.__file__, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path)])}
    killed = subprocess.run([*scene, moment], env=env, check=False)
    assert killed.returncode == -signal.SIGKILL
    store = RunStore(tmp_path / "runs.db")
    assert [store.journal.get(run_id) is not None for run_id in ("r", "r+1")] == [True, moment != "end"]
    session = Session()
    result = handoff_scene.make_team(tmp_path).run("go", durable=store, run_id="r", session=session)
    assert result.reply == "it is done"
    assert not (tmp_path / "wiped").exists()  # a guard of the clerk forbids it
    told = [message.content for message in session.messages if message.role == "tool"]
    assert "No wiping." in told[1]
    assert "handed over too often" in told[2]  # the handoff in the killed process counts
    if moment != "end":  # there, the reply of the model was not committed
        assert (tmp_path / "asked").read_text().split() == ["r"]
    assert session.personality_id == "expert"
    assert handoff_scene.make_team(tmp_path).run("go", durable=store, run_id="r").reply == "it is done"
    store.close()


def test_text_of_a_reply_that_was_in_flight_is_withdrawn(tmp_path: Path, store: RunStore) -> None:
    class Slow:
        name, provider = "slow", "test"

        def __init__(self, hangs: bool) -> None:
            self.hangs = hangs

        async def complete(self, request: Any) -> ModelResponse:
            raise AssertionError("it streams")

        async def stream(self, request: Any) -> Any:
            yield "Hello "
            if self.hangs:
                await asyncio.Event().wait()
            yield "world"
            yield ModelResponse("Hello world")

        def count_tokens(self, content: Any) -> int:
            return 1

    async def execute() -> None:
        shown: list[Event] = []
        run = Agent("a", llm=Slow(True)).start("go", durable=store, run_id="r", sinks=[shown.append])
        await wait_until(lambda: any(isinstance(event, TextDelta) for event in shown))
        await wait_until(lambda: any(event.type == "text_delta" for event in store.events("r")))
        store.journal.append, append = _refuse, store.journal.append  # type: ignore[method-assign]
        run.cancel()
        await run.settled()
        store.journal.append = append  # type: ignore[method-assign]

    asyncio.run(execute())
    interrupt(store)
    Agent("a", llm=Slow(False)).run("go", durable=store, run_id="r", sinks=[lambda event: None])
    texts = [(event.type, msgspec.json.decode(event.data).get("text", "")) for event in store.events("r")]
    assert [each for each in texts if each[0] in ("text_delta", "discarded")] == [
        ("text_delta", "Hello "),
        ("discarded", ""),
        ("text_delta", "Hello "),
        ("text_delta", "world"),
    ]


def killed_by(agent: Agent, store: RunStore, until: Callable[[Any], Any]) -> None:
    """Run an agent until a coroutine returns; then its process ends."""

    async def execute() -> None:
        run = agent.start("go", durable=store, run_id="r")
        await until(run)
        store.journal.append, append = _refuse, store.journal.append  # type: ignore[method-assign]
        run.cancel()
        await run.settled()
        store.journal.append = append  # type: ignore[method-assign]

    asyncio.run(execute())
    interrupt(store)


def test_concurrent_subagents_are_judged_in_the_recorded_order(tmp_path: Path, store: RunStore) -> None:
    """The model of the first one replied last, so its call was the second one, which the guard blocks."""
    world = World(tmp_path)
    second_has_run = asyncio.Event()

    def boss(*, recovers: bool) -> Agent:
        class Ordered(CountingModel):
            async def complete(self, request: Any) -> ModelResponse:
                if not recovers and "first" in request.messages[0].content:
                    await second_has_run.wait()
                return await super().complete(request)

        @tool
        async def write() -> str:
            """Write."""
            second_has_run.set()
            return "written"

        replies = [ToolCall("w", "write", {}), "written"]
        helper = Agent("helper", llm=Ordered(replies), tools=[write])
        calls = [ToolCall(name, "delegate", {"to": "helper", "task": name}) for name in ("first", "second")]
        model = CountingModel([ModelResponse("", tuple(calls)), ToolCall("p", "pay", {"n": 1}), "done"])
        tools = [killed_in_tool(world), Team([helper])]
        return Agent("boss", llm=model, tools=tools, hooks=[EachFifth(each=4)])

    killed_by(boss(recovers=False), store, lambda run: wait_until(lambda: world.lines("ran")))
    assert boss(recovers=True).run("go", durable=store, run_id="r").reply == "done"


def test_a_steering_message_that_came_too_late_for_a_request_is_in_the_next_one(
    tmp_path: Path, store: RunStore
) -> None:
    world = World(tmp_path)
    waiting, steered = asyncio.Event(), asyncio.Event()

    def agent(*, recovers: bool) -> Agent:
        @hook("before_llm")
        async def wait(ctx: Any, request: Any) -> None:
            if request.hop == 0 and not recovers:
                waiting.set()
                await steered.wait()

        calls = [ToolCall("c", "pay", {"n": 1}), ToolCall("d", "pay", {"n": 2})]
        return payer(world, CountingModel([*calls, "done"]), [wait])

    async def until(run: Any) -> None:
        await waiting.wait()
        run.steer("quickly")
        steered.set()
        await wait_until(lambda: world.lines("ran"))

    killed_by(agent(recovers=False), store, until)
    result = agent(recovers=True).run("go", durable=store, run_id="r")
    assert [message.role for message in result.messages][:4] == ["user", "assistant", "tool", "user"]


def test_a_message_that_is_sent_during_recovery_comes_after_those_in_the_journal(
    tmp_path: Path, store: RunStore
) -> None:
    world = World(tmp_path)
    model = CountingModel([ToolCall("c", "pay", {"n": 1}), "done"])
    killed_by(payer(world, model), store, lambda run: wait_until(lambda: world.lines("ran")))

    async def execute() -> AgentResult[Any]:
        run = payer(world, model).start("go", durable=store, run_id="r")
        assert run.steer("more")
        return await run.result()

    messages = asyncio.run(execute()).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user", "assistant"]


def test_a_run_that_is_cancelled_during_its_recovery_ends_cancelled(tmp_path: Path, store: RunStore) -> None:
    world, slow = World(tmp_path), asyncio.Event()
    model = CountingModel([ToolCall("c", "pay", {"n": 1}), "done"])

    @hook("before_llm")
    async def wait(ctx: Any, request: Any) -> None:
        if world.lines("ran"):  # in recovery
            slow.set()
            await asyncio.sleep(60)

    killed_by(payer(world, model, [wait]), store, lambda run: wait_until(lambda: world.lines("ran")))

    async def execute() -> AgentResult[Any]:
        run = payer(world, model, [wait]).start("go", durable=store, run_id="r")
        await slow.wait()
        run.cancel("not needed")
        return await run.result()

    result = asyncio.run(execute())
    assert (result.status, result.stop and result.stop.message) == ("cancelled", "not needed")
    assert len(world.lines("ran")) == 1
    assert store.journal.get("r").status == "cancelled"


def test_a_hook_may_take_longer_in_recovery_than_recovery_waits_for_the_journal(
    tmp_path: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline._run.waiters.STALL_SECONDS", 0.02)
    world, model = World(tmp_path), CountingModel([ToolCall("c", "pay", {"n": 1}), "done"])

    @hook("before_llm", name="slow")
    async def slow(ctx: Any, request: Any) -> None:
        await asyncio.sleep(0.2)

    killed_by(payer(world, model, [slow]), store, lambda run: wait_until(lambda: world.lines("ran")))
    assert payer(world, model, [slow]).run("go", durable=store, run_id="r").reply == "done"


def test_recovery_stops_if_a_part_of_the_run_waits_for_something_that_does_not_happen_again(
    tmp_path: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline._run.waiters.STALL_SECONDS", 0.05)
    world = World(tmp_path)
    tasks = [ToolCall(name, "delegate", {"to": name, "task": "x"}) for name in ("quick", "slow")]

    @hook("before_llm", name="hangs")
    async def hangs(ctx: Any, request: Any) -> None:
        if world.lines("killed") and ctx.agent_name == "quick":
            await asyncio.sleep(60)

    def agent() -> Agent:
        quick = Agent("quick", llm=CountingModel(["ready"]))
        pays = CountingModel([ToolCall("p", "pay", {"n": 1}), "done"])
        slow = Agent("slow", llm=pays, tools=[killed_in_tool(world)])
        model = CountingModel([ModelResponse("", tuple(tasks)), "done"])
        return Agent("boss", llm=model, tools=[Team([quick, slow])], hooks=[hangs])

    killed_by(agent(), store, lambda run: wait_until(lambda: world.lines("ran")))
    world.note("killed")
    with pytest.raises(RecoveryError, match="nothing for 0.05 s"):
        agent().run("go", durable=store, run_id="r")
    assert len(world.lines("ran")) == 1


def test_the_progress_of_a_tool_that_readers_saw_stays_and_goes_on_when_the_tool_is_called_again(
    crashes: Crashes,
) -> None:
    def make(world: World) -> Agent:
        @tool
        async def build(ctx: Any) -> str:
            """Build."""
            world.note("ran", ctx.call_key)
            for part in range(1, 4):
                ctx.progress(part / 4, f"part {part}")
                await asyncio.sleep(0.02)  # so that there are commits in between
            return "built"

        return Agent("a", llm=CountingModel([ToolCall("c", "build", {}), "done"]), tools=[build])

    def shown(store: RunStore) -> list[str]:
        events = [msgspec.json.decode(event.data) for event in store.events("r", limit=1000)]
        return [event["message"] for event in events if event["type"] == "tool_progressed"]

    parts = ["build: part 1 (25%)", "build: part 2 (50%)", "build: part 3 (75%)"]
    assert make(crashes.world).run("go", durable=crashes.store, run_id="r").reply == "done"
    assert shown(crashes.store) == parts
    for world, store in crashes.worlds():
        before, ran = store.events("r", limit=1000), len(world.lines("ran"))
        seen = shown(store)
        assert make(world).run("go", durable=store, run_id="r").reply == "done"
        assert store.events("r", limit=1000)[: len(before)] == before
        assert len({line[0] for line in world.lines("ran")}) == 1  # the same key each time
        again = len(world.lines("ran")) > ran
        assert shown(store) == ([*seen, *parts] if again else parts)


@pytest.mark.filterwarnings("ignore:agent.run.. blocks the event loop")
def test_a_journal_that_cannot_be_written_stops_a_run_that_a_hook_waits_for(
    tmp_path: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, write = World(tmp_path), store.journal.append

    def append(entries: Append) -> None:
        if any(b"tool look" in entry for entry in entries.entries):
            raise HooklineError("the disk is full")
        write(entries)

    monkeypatch.setattr(store.journal, "append", append)

    @tool
    def look() -> str:
        """Look."""
        world.note("ran", "look")
        return "fine"

    @guard("before_tool", tools="pay")
    def blocking(ctx: Any, request: Any) -> HookResult:
        reviewer = Agent("reviewer", llm=CountingModel([ToolCall("l", "look", {}), "fine"]), tools=[look])
        return HookResult.cont(reason=reviewer.run("really?", ctx=ctx).reply)

    @tool
    def pay() -> str:
        """Pay."""
        world.note("ran", "pay")
        return "paid"

    def agent() -> Agent:
        return Agent("a", llm=CountingModel([ToolCall("c", "pay", {}), "done"]), tools=[pay], hooks=[blocking])

    with pytest.raises(HooklineError, match="the disk is full"):
        asyncio.run(agent().arun("go", durable=store, run_id="r"))
    assert world.lines("ran") == []
    monkeypatch.setattr(store.journal, "append", write)
    assert asyncio.run(agent().arun("go", durable=store, run_id="r")).reply == "done"
    assert [line[0] for line in world.lines("ran")] == ["look", "pay"]


def test_a_journal_that_cannot_be_written_stops_the_run_which_can_be_continued(tmp_path: Path, store: RunStore) -> None:
    world, append = World(tmp_path), store.journal.append
    world.note("ran", "so that the tool does not hang")
    model = CountingModel([ToolCall("c", "pay", {"n": 1}), "done"])

    @guard("before_tool")
    def full(ctx: Any, request: Any) -> None:
        store.journal.append = _refuse  # type: ignore[method-assign]

    @guard("before_tool", name="full")
    def empty(ctx: Any, request: Any) -> None:
        return None

    with pytest.raises(StoreError, match="the process has ended"):
        payer(world, model, [full]).run("go", durable=store, run_id="r")
    assert len(world.lines("ran")) == 1
    store.journal.append = append  # type: ignore[method-assign]
    interrupt(store)
    assert payer(world, model, [empty]).run("go", durable=store, run_id="r").reply == "done"


def test_a_durable_run_can_be_on_a_tape_too(tmp_path: Path, store: RunStore) -> None:
    world = World(tmp_path)
    model = CountingModel([ToolCall("c", "pay", {"n": 1}), "done"])
    killed_by(payer(world, model), store, lambda run: wait_until(lambda: world.lines("ran")))
    agent = payer(world, model, [TapeHook(tmp_path / "again.tape")])
    assert agent.run("go", durable=store, run_id="r").reply == "done"
    assert replay(tmp_path / "again.tape", []).result.reply == "done"


async def test_readers_of_a_continued_run_get_its_new_events_and_then_the_error_of_the_suspension(
    tmp_path: Path, store: RunStore
) -> None:
    @hook("approval_requested")
    def later(ctx: Any, request: Any) -> Any:
        return HookResult.wait()

    agent = payer(World(tmp_path), CountingModel([ToolCall("c", "pay", {"n": 1})]), [asks, later])
    kinds = []
    with pytest.raises(RunWaitingError):
        async for event in agent.stream("go", durable=store, run_id="r"):
            kinds.append(type(event).__name__)
    assert "ApprovalAsked" in kinds
    assert "ApprovalDecided" not in kinds


@dataclass
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    "value",
    [
        "\ud800 half a character",
        float("nan"),
        2**70,
        Point(1, 2.5),
        *(
            pytest.param(value, marks=pytest.mark.slow)
            for value in (
                None,
                float("inf"),
                0.1 + 0.2,
                (1, 2),
                {3, 4},
                b"bytes\xff",
                {"a": [1, {"b": None}]},
                {1: "one"},
                datetime(2026, 1, 2, tzinfo=UTC),
                Path("/tmp"),
                object(),
            )
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_of_any_kind_reads_the_same_after_recovery(crashes: Crashes, value: Any) -> None:
    def make(world: World) -> Agent:
        @tool
        def give() -> Any:
            """Return something."""
            return value

        return Agent("a", llm=CountingModel([ToolCall("c\n\ud800/1", "give", {}), "done"]), tools=[give])

    texts = set()

    def check(result: AgentResult[Any], world: World) -> None:
        texts.add(text_of(result).encode(errors="replace").partition(b" at 0x")[0])
        assert result.reply == "done"

    recover_everywhere(crashes, make, check, 5)
    assert len(texts) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_the_result_of_a_tool_is_committed_before_the_run_goes_on(store: RunStore, fails: bool) -> None:
    append, seen = store.journal.append, []

    def slow(*args: Any, **named: Any) -> None:
        time.sleep(0.05)
        append(*args, **named)

    store.journal.append = slow  # type: ignore[method-assign]

    @tool
    def work() -> str:
        """Work."""
        if fails:
            raise ValueError("no")
        return "worked"

    @hook("after_tool")
    def after(ctx: Any, result: Any) -> None:
        seen.append(committed(store)[1][-1])

    Agent("a", llm=ScriptedModel([call("work"), reply("done")]), tools=[work], hooks=[after]).run("go", durable=store)
    assert "tool work " in seen[0]


@EACH_ENTRY
def test_concurrent_calls_of_one_hook_get_their_own_answers_again(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        class Opinions(CountingModel):
            async def complete(self, request: Any) -> ModelResponse:
                await asyncio.sleep(random.uniform(0, 0.003))
                if request.purpose == "judge":
                    return ModelResponse(f"opinion {random.random()}")
                return await super().complete(request)

        @guard("before_tool", name="judges")
        async def judges(ctx: Any, request: Any) -> Any:
            asked = [ctx.llm.complete("May it?", purpose="judge") for _ in range(3)]
            read = [ctx.once("day", random.random) for _ in range(2)]
            replies = [reply.content for reply in await asyncio.gather(*asked)]
            return HookResult.cont(reason=f"{replies} {await asyncio.gather(*read)}")

        return Agent(
            "a", llm=Opinions([ToolCall("c", "note", {}), "done"]), tools=[tool(note_of(world))], hooks=[judges]
        )

    recover_everywhere(crashes, make, lambda result, world: check_transcript(result), step)


def test_text_that_two_killed_processes_had_shown_is_not_compared(tmp_path: Path, store: RunStore) -> None:
    world, streamed = World(tmp_path), list[bool]()

    class Streams(CountingModel):
        hangs = False

        async def stream(self, request: Any) -> Any:
            response = await self.complete(request)
            for _ in range(3):
                yield f"{random.random()} "
            streamed.append(True)
            if self.hangs:
                await asyncio.Event().wait()
            yield response

    @hook("on_token", name="marks")
    def marks(ctx: Any, token: Any) -> Any:
        return HookResult.replace({"delta": token.delta}, reason=f"saw {token.delta}") if token.delta else None

    model = Streams([ToolCall("c", "pay", {"n": 1}), "done"])
    for hangs in (True, True, False):
        model.hangs = hangs
        streamed.clear()
        done = (lambda: streamed) if hangs else (lambda: world.lines("ran"))
        killed_by(payer(world, model, [marks]), store, lambda run, done=done: wait_until(done))
    result = payer(world, model, [marks]).run("go", durable=store, run_id="r", sinks=[lambda event: None])
    assert result.reply == "done"
