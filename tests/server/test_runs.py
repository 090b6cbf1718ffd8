"""The run service, which every API uses."""

import asyncio
import json
import math
import os
import subprocess
import sys
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import BEFORE_TOOL, ON_RUN_START, Agent, HookResult, Limits, ScriptedModel, call, guard, hook, reply, tool
from hookline._kernel.values import Message
from hookline._run.events import AllEventsExcept
from hookline.events import PointFired
from hookline.hooks import ObservabilityHook, SensitiveDataHook
from hookline.records import RecordHook
from hookline.server import live_run
from hookline.server import live_run as live_module
from hookline.server.concurrency import RunSlots
from hookline.server.errors import BusyError, ConflictError, UnavailableError, UnknownAgentError, UnknownRunError
from hookline.stores import run_stats
from hookline.stores.errors import StoreError
from hookline.stores.runs import RunRecord, RunStore
from hookline.teams import Team
from tests.properties import examples

from ..waiting import wait_until
from .rig import ADMIN, ME, OTHER, Blocker, make, read_all, service_at, serving


def always(turn):
    return ScriptedModel([turn], loop=True)


def asking(*tools, **options):
    @guard(BEFORE_TOOL)
    def ask(ctx, payload):
        return HookResult.ask(f"May {payload.name} run?")

    return make([call("delete", path="a.txt"), reply("gone")], tools=list(tools), hooks=[ask], **options)


# Runs


async def test_a_run_is_stored_before_start_returns_and_its_events_have_no_gaps(tmp_path):
    async with serving(tmp_path) as service:
        run = await service.start(ME, "hello", task_id="t-7", correlation_id="c-9")
        assert RunStore(tmp_path / "runs.db").get(run.id).task == "hello"
        events = await read_all(service, run.id)
        over = await service.get(run.id, ME)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["type"], events[1]["type"], events[-2]["type"], events[-1]["type"]) == (
        "run_accepted",
        "run_started",
        "run_finished",
        "run_closed",
    )
    assert {event["run_id"] for event in events} == {run.id}
    assert events[1]["ids"] | {"session_id": "", "agent": ""} == {
        "run_id": run.id,
        "task_id": "t-7",
        "correlation_id": "c-9",
        "session_id": "",
        "agent": "",
        "parent_run_id": "",
    }
    assert (over.status, over.reply, over.last_seq) == ("completed", "done", len(events))
    assert (events[-1]["status"], events[-1]["reply"]) == ("completed", "done")


@pytest.mark.parametrize(
    ("turns", "options", "status", "reason"),
    [
        ([reply("fine")], {}, "completed", ""),
        ([ConnectionError("no line")], {}, "failed", ""),
        ([call("nothing"), reply("x")], {"limits": Limits(steps=1)}, "stopped", "steps_limit"),
    ],
)
async def test_the_record_says_how_a_run_ended(tmp_path, turns, options, status, reason):
    async with serving(tmp_path, make(turns, **options)) as service:
        run = await service.start(ME, "x")
        run = await service.wait(run.id, ME)
        events = await read_all(service, run.id)
    assert (run.status, events[-1]["status"]) == (status, status)
    assert run.reason.startswith(reason)
    assert ("no line" in run.error) is (status == "failed")


async def test_a_run_ended_by_a_guard_names_the_guard_as_the_reason(tmp_path):
    @guard(ON_RUN_START)
    def no(ctx, payload):
        return HookResult.end("Not here.", reason="policy")

    async with serving(tmp_path, make(hooks=[no])) as service:
        run = await service.wait((await service.start(ME, "x")).id, ME)
    assert (run.status, run.reply, run.reason) == ("ended", "Not here.", "policy")


async def test_a_run_whose_agent_fails_to_start_is_closed_as_failed(tmp_path):
    class Broken:
        name, hooks = "helper", ()

        def start(self, task, **options):
            raise ZeroDivisionError("secret details")

    async with serving(tmp_path, Broken()) as service:
        run = await service.start(ME, "x")
        events = await read_all(service, run.id)
    assert [event["type"] for event in events] == ["run_accepted", "run_closed"]
    assert (events[-1]["status"], events[-1]["error"]) == (
        "failed",
        "the run failed with an internal error: ZeroDivisionError",
    )


async def test_a_served_run_makes_no_event_for_each_fire_of_a_point(tmp_path):
    class OtherEvents:
        points = (ON_RUN_START,)
        events = AllEventsExcept(PointFired)

        def __init__(self):
            self.numbers = []

        def __call__(self, point, ctx, payload):
            pass

        def on_event(self, event):
            self.numbers.append(event.seq)

    others = OtherEvents()
    async with serving(tmp_path, make([reply("done")], hooks=[others])) as service:
        run = await service.start(ME, "hello")
        await read_all(service, run.id)
    assert others.numbers == list(range(1, len(others.numbers) + 1))  # a run numbers every event that it makes


async def test_the_last_events_do_not_repeat_the_transcript(tmp_path):
    async with serving(tmp_path) as service:
        run = await service.start(ME, "hello")
        finished = next(event for event in await read_all(service, run.id) if event["type"] == "run_finished")
    assert (finished["result"]["messages"], finished["result"]["steps"]) == ([], [])
    assert finished["result"]["reply"] == "done"


async def test_agents_that_hand_over_are_one_run_for_the_caller(tmp_path):
    class Pair:
        name, hooks = "helper", ()

        def __init__(self):
            self.agents = [make([reply("over to B")], "a"), make([reply("here is B")], "b")]

        def start(self, task, **options):
            return self.agents.pop(0).start(task, **options)

        def follow_up(self, session, result):
            return "go on" if self.agents else None

    async with serving(tmp_path, Pair()) as service:
        run = await service.start(ME, "x")
        events = await read_all(service, run.id)
        run = await service.get(run.id, ME)
    assert [e["type"] for e in events if e["type"].startswith("run_")] == [
        "run_accepted",
        "run_started",
        "run_finished",
        "run_started",
        "run_finished",
        "run_closed",
    ]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (run.reply, run.steps) == ("over to B\n\nhere is B", 2)


async def test_the_guards_of_the_agent_that_handed_over_judge_the_calls_after_it(tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("alive")
    wipe = tool(name="wipe")(canary.unlink)

    @guard("before_tool", tools="wipe")
    def no_wiping(ctx, request):
        return HookResult.block("No wiping.")

    class Desk:
        name, hooks = "helper", ()

        def __init__(self, *turns):
            self.team, handoff = Team(), call("handoff", to="writer", message="go on")
            self.start, self.follow_up = self.team.start, self.team.follow_up
            self.team.add(Agent("desk", llm=ScriptedModel([handoff]), tools=[self.team], hooks=[no_wiping]))
            self.team.add(Agent("writer", llm=ScriptedModel([call("wipe"), *turns]), tools=[self.team, wipe]))

    for task in ("x", "go on"):  # the second server loads the session of the first
        async with serving(tmp_path, Desk(reply(f"answer to {task}"))) as service:
            run = await service.wait((await service.start(ME, task, session="talk")).id, ME)
            assert run.reply.endswith(f"answer to {task}")
            assert canary.exists()


# Sessions


async def test_a_session_continues_by_its_name_and_belongs_to_its_caller(tmp_path):
    seen = []
    model = always(lambda request: seen.append([m.content for m in request.messages]) or reply("ok"))
    async with serving(tmp_path, Agent("helper", llm=model)) as service:
        for caller, text in ((ME, "one"), (ME, "two"), (OTHER, "three")):
            await service.wait((await service.start(caller, text, session="talk")).id, caller)
    assert seen == [["one"], ["one", "ok", "two"], ["three"]]


async def test_a_run_with_a_given_history_stores_no_session(tmp_path):
    seen = []
    model = always(lambda request: seen.append([m.content for m in request.messages]) or reply("ok"))
    async with serving(tmp_path, Agent("helper", llm=model)) as service:
        history = [Message("user", "before"), Message("assistant", "yes")]
        await service.wait((await service.start(ME, "now", history=history)).id, ME)
    assert seen == [["before", "yes", "now"]]
    assert not list((tmp_path / "sessions").glob("*.json")) if (tmp_path / "sessions").exists() else True


async def test_runs_of_one_session_run_one_after_another_and_others_do_not_wait(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent()) as service:
        first = await service.start(ME, "1", session="a")
        await wait_until(lambda: blocker.entered == 1)
        second = await service.start(ME, "2", session="a")
        third = await service.start(ME, "3", session="b")
        await wait_until(lambda: blocker.entered == 2)
        assert (await service.get(second.id, ME)).status == "queued"
        blocker.open.set()
        runs = [await service.wait(run.id, ME) for run in (first, second, third)]
    assert [run.status for run in runs] == ["completed"] * 3
    assert runs[0].ended <= runs[1].started


# Ownership


async def test_only_its_owner_and_admins_can_see_a_run(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent()) as service:
        run = await service.start(ME, "x")
        for attempt in (
            lambda: service.get(run.id, OTHER),
            lambda: service.read(run.id, OTHER),
            lambda: service.cancel(run.id, OTHER),
            lambda: service.steer(run.id, OTHER, "hi"),
            lambda: service.wait(run.id, OTHER),
            lambda: service.get("run_none", ME),
        ):
            with pytest.raises(UnknownRunError):
                await attempt()
        assert await service.list(OTHER) == []
        assert (
            [each.id for each in await service.list(ME)] == [each.id for each in await service.list(ADMIN)] == [run.id]
        )
        assert (await service.get(run.id, ADMIN)).id == run.id
        blocker.open.set()


async def test_runs_are_listed_newest_first_in_pages(tmp_path):
    async with serving(tmp_path, make(), make(name="second")) as service:
        ids = [(await service.start(ME, str(n), agent=("helper", "second")[n % 2])).id for n in range(7)]
        first = await service.list(ME, limit=3)
        rest = await service.list(ME, before=first[-1].id, limit=10)
        assert [run.id for run in (*first, *rest)] == ids[::-1]
        assert [run.task for run in await service.list(ME, agent="second")] == ["5", "3", "1"]
    with pytest.raises(UnknownAgentError, match="helper"):
        service.agents.find("helpr")


async def test_a_run_does_not_describe_its_agent_so_that_many_tools_cost_nothing(tmp_path):
    described = []

    class Described(Agent):
        description = property(lambda self: described.append(self.name) or "helps", lambda self, text: None)

    async with serving(tmp_path, Described("helper", llm=always(reply("done")))) as service:
        run = await service.start(ME, "hello")
        assert (await service.wait(run.id, ME)).reply == "done"
        assert described == []
        assert service.agents.find("helper").description == "helps"


# Limits


async def test_runs_that_are_being_stored_count_too(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent(), max_runs=1, max_queued=2, max_runs_per_caller=2) as service:
        starting = [service.start(ME, "a") for _ in range(5)] + [service.start(OTHER, "b") for _ in range(5)]
        outcomes = await asyncio.gather(*starting, return_exceptions=True)
        owners = [outcome.owner for outcome in outcomes if not isinstance(outcome, BusyError)]
        assert len(owners) == 3
        assert max(map(owners.count, owners)) == 2  # requests that come at once have no order


async def test_a_run_beyond_the_limits_is_rejected_and_not_stored(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent(), max_runs=1, max_queued=2, max_runs_per_caller=2) as service:
        await service.start(ME, "1")
        await service.start(ME, "2")
        with pytest.raises(BusyError, match="of your runs"):
            await service.start(ME, "3")
        await service.start(OTHER, "4")
        with pytest.raises(BusyError, match="are queued"):
            await service.start(OTHER, "5")
        assert len(await service.list(ADMIN)) == 3
        await wait_until(lambda: blocker.entered == 1)
        assert service.counts() | {"readers": 0} == {"queued": 2, "running": 1, "waiting": 0, "readers": 0}
        blocker.open.set()
        await wait_until(lambda: blocker.left == 3)


async def test_readers_are_limited_and_closing_one_frees_its_place(tmp_path):
    async with serving(tmp_path, max_streams=2, max_streams_per_caller=1) as service:
        mine, theirs = await service.start(ME, "x"), await service.start(OTHER, "x")
        reader = await service.read(mine.id, ME)
        with pytest.raises(BusyError):
            await service.read(mine.id, ME)
        other = await service.read(theirs.id, OTHER)
        with pytest.raises(BusyError):
            await service.read(mine.id, ADMIN)
        reader.close()
        reader.close()
        (await service.read(mine.id, ADMIN)).close()
        other.close()
        assert service.counts()["readers"] == 0


# Cancel, steer and approve


async def test_the_number_of_unread_messages_of_a_run_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(live_run, "MAX_UNREAD", 2)
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent()) as service:
        run = await service.start(ME, "x")
        await wait_until(lambda: blocker.entered == 1)
        for _ in range(2):
            await service.steer(run.id, ME, "hurry")
        with pytest.raises(BusyError, match="2 messages"):
            await service.steer(run.id, ME, "once more")
        blocker.open.set()
        events = await read_all(service, run.id)
        assert [event["text"] for event in events if event["type"] == "steered"] == ["hurry", "hurry"]


async def test_a_run_can_be_cancelled_in_every_state(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent(), max_runs=1) as service:
        running = await service.start(ME, "1")
        await wait_until(lambda: blocker.entered == 1)
        queued = await service.start(ME, "2")
        assert (await service.cancel(queued.id, ME, "no need")).status == "cancelled"
        over = await service.cancel(running.id, ME)
        assert (over.status, over.reason, blocker.left) == ("cancelled", "cancelled by me", 0)
        events = await read_all(service, queued.id)
        assert [(e["type"], e.get("reason")) for e in events] == [("run_accepted", None), ("run_closed", "no need")]
        assert (await service.cancel(running.id, ME, "again")).reason == "cancelled by me"


async def test_only_a_running_run_accepts_messages(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent()) as service:
        run = await service.start(ME, "x")
        await wait_until(lambda: blocker.entered == 1)
        await service.steer(run.id, ME, "hurry")
        blocker.open.set()
        events = await read_all(service, run.id)
        assert [event["text"] for event in events if event["type"] == "steered"] == ["hurry"]
        with pytest.raises(ConflictError, match="completed"):
            await service.steer(run.id, ME, "too late")


async def test_a_call_waits_for_approval_and_runs_when_approved(tmp_path):
    deleted = []

    @tool
    def delete(path: str) -> str:
        """Delete."""
        deleted.append(path)
        return "ok"

    async with serving(tmp_path, asking(delete)) as service:
        run = await service.start(ME, "clean up")
        await wait_until(lambda: service.approvals.rows(status="pending"))
        assert (await service.get(run.id, ME)).status == "waiting"
        (row,) = service.approvals.rows(status="pending", root_id=run.id)
        assert (row.tool, row.arguments, row.owner, row.run_id) == ("delete", {"path": "a.txt"}, ME.id, run.id)
        assert deleted == []
        service.approvals.decide(row.id, decision="approve", digest=row.digest, by="test")
        run = await service.wait(run.id, ME)
        events = await read_all(service, run.id)
    assert (run.status, deleted) == ("completed", ["a.txt"])
    assert [e["type"] for e in events if e["type"].startswith("approval")] == [
        "approval_asked",
        "approval_pending",
        "approval_decided",
    ]


async def test_a_waiting_call_is_logged_without_its_arguments(tmp_path, caplog):
    @tool
    def delete(path: str) -> str:
        """Delete."""
        return "ok"

    caplog.set_level("INFO", "hookline")
    async with serving(tmp_path, asking(delete)) as service:
        run = await service.start(ME, "clean up")
        logged = f"{run.id} waits for approval of delete: hookline approvals show "
        await wait_until(lambda: logged in caplog.text)
        (row,) = service.approvals.rows(status="pending", root_id=run.id)
        assert f"{logged}{row.id[5:13]}" in caplog.text
        assert "a.txt" not in caplog.text
        service.approvals.decide(row.id, decision="approve", digest=row.digest, by="test")
        assert (await service.wait(run.id, ME)).status == "completed"


async def test_a_run_that_waits_for_approval_releases_its_slot(tmp_path):
    @tool
    def delete(path: str) -> str:
        """Delete."""
        return "ok"

    blocker = Blocker()
    async with serving(tmp_path, asking(delete), blocker.agent(name="blocker"), max_runs=1) as service:
        asked = await service.start(ME, "clean up")
        await wait_until(lambda: service.approvals.rows(status="pending"))
        (row,) = service.approvals.rows(status="pending")
        await service.start(ME, "1", agent="blocker")
        await wait_until(lambda: blocker.entered == 1)
        await service.start(ME, "2", agent="blocker")
        service.approvals.decide(row.id, decision="approve", digest=row.digest, by="test")
        assert (await service.wait(asked.id, ME)).status == "completed"
        assert service.counts()["queued"] == 1
        blocker.open.set()
        await wait_until(lambda: blocker.left == 2)
        cancelled = await service.start(ME, "clean up")
        await service.cancel(cancelled.id, ME)
        assert (await service.wait((await service.start(ME, "3", agent="blocker")).id, ME)).status == "completed"


@given(st.lists(st.sampled_from(("come", "leave", "stop", "wait", "go on")), max_size=40), st.integers(1, 3))
async def test_slots_are_never_lost_and_never_granted_beyond_the_limit(moves, most):
    slots, inside, waiting, queue = RunSlots(most), [], [], []

    async def enter():
        await slots.acquire("")
        inside.append(asyncio.current_task())

    for move in moves:
        if move == "come":
            queue.append(asyncio.create_task(enter()))
        elif move == "stop" and queue:
            queue.pop(len(queue) // 2).cancel()
        elif move == "leave" and inside:
            inside.pop()
            slots.release()
        elif move == "wait" and inside:
            waiting.append(inside.pop())
            slots.release()
        elif move == "go on" and waiting:
            inside.append(waiting.pop())
            slots.acquire_now()
        if len(moves) % 2:
            await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    left = sum(not task.done() for task in queue)
    assert left == 0 or len(inside) >= most
    while left:
        inside.pop()
        slots.release()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (now := sum(not task.done() for task in queue)) >= left - 1
        left = now
    for _ in inside:
        slots.release()
    assert slots._free == most


# Read events


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=12))
async def test_a_reader_that_resumes_after_any_event_gets_exactly_the_rest(tmp_path_factory, visits):
    blocker, got = Blocker(), []
    folder = tmp_path_factory.mktemp("served")
    async with serving(folder, blocker.agent()) as service:
        run = await service.start(ME, "x")
        for many, opens in visits:
            if opens:
                blocker.open.set()
            reader = await service.read(run.id, ME, len(got))
            got += [event.seq for event in (await reader.more(0.001) or ())[:many]]
            reader.close()
        blocker.open.set()
        got += [event["seq"] for event in await read_all(service, run.id, after=len(got))]
        assert service.counts()["readers"] == 0
    assert got == list(range(1, RunStore(folder / "runs.db").get(run.id).last_seq + 1))


async def test_a_late_reader_gets_all_events_of_a_long_run_though_few_are_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(live_module, "KEPT_EVENTS", 10)
    model = ScriptedModel([call("nothing")] * 60 + [reply("done")])
    async with serving(tmp_path, Agent("helper", llm=model, limits=Limits(steps=math.inf))) as service:
        run = await service.start(ME, "x")
        live = service._live[run.id]
        slow = await service.read(run.id, ME)
        await wait_until(lambda: live.closed)
        await service._recorder.flushed()
        assert len(live._events) <= 30 < live.record.last_seq
        got = [event.seq async for event in slow]
        slow.close()
    assert got == list(range(1, live.record.last_seq + 1))


async def test_a_reader_can_continue_after_a_timeout(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent()) as service:
        run = await service.start(ME, "x")
        await wait_until(lambda: blocker.entered == 1)
        reader = await service.read(run.id, ME)
        while found := await reader.more(0.05):
            pass
        assert found == ()
        blocker.open.set()
        seqs = [event.seq async for event in reader]
        reader.close()
        assert seqs[-1] == (await service.get(run.id, ME)).last_seq


# Start and stop


async def test_closing_the_service_lets_runs_finish_and_interrupts_the_rest(tmp_path):
    blocker, stuck = Blocker(), Blocker()
    service = service_at(tmp_path, blocker.agent(name="quick"), stuck.agent(name="stuck"), max_runs=2)
    await service.open()
    quick, slow = await service.start(ME, "1", agent="quick"), await service.start(ME, "2", agent="stuck")
    await wait_until(lambda: blocker.entered + stuck.entered == 2)
    queued = await service.start(ME, "3", agent="quick")
    closing = asyncio.create_task(service.close(grace=1))
    await wait_until(lambda: service.problem)
    with pytest.raises(UnavailableError):
        await service.start(ME, "4")
    blocker.open.set()
    await closing
    runs = [RunStore(tmp_path / "runs.db").get(run.id) for run in (quick, slow, queued)]
    assert [run.status for run in runs] == ["completed", "interrupted", "interrupted"]
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("hookline")] == []


async def test_a_run_of_a_dead_process_is_interrupted_and_gets_a_last_event(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    store = RunStore(tmp_path / "runs.db")
    left = RunRecord(
        "run_left",
        "helper",
        ME.id,
        "s",
        "served-s",
        "t",
        "c",
        "api",
        "task",
        status="waiting",
        created=time.time(),
        host=os.uname().nodename,
        pid=gone.pid,
    )
    store.write([left], [])
    async with serving(tmp_path) as service:
        run = await service.get("run_left", ME)
        assert (run.status, run.reason) == ("interrupted", "its process ended")
        events = await read_all(service, "run_left")
        assert [(e["seq"], e["type"], e["status"]) for e in events] == [(1, "run_closed", "interrupted")]
        store.write([msgspec.structs.replace(left, id="run_later")], [])
        assert (await service.get("run_later", ME)).status == "interrupted"
        assert (await service.cancel("run_later", ME)).status == "interrupted"


async def test_while_the_store_fails_new_runs_are_rejected_and_no_event_is_lost(tmp_path, monkeypatch, caplog):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent()) as service:
        monkeypatch.setattr("hookline.server.live_run.RETRY_SECONDS", 0.01)
        run = await service.start(ME, "x")
        await wait_until(lambda: blocker.entered == 1)
        await service._recorder.flushed()
        real, broken = RunStore.write, [True]

        def write(self, *what):
            if broken:
                raise StoreError("the disk is full")
            real(self, *what)

        monkeypatch.setattr(RunStore, "write", write)
        blocker.open.set()
        await wait_until(lambda: service.problem)
        with pytest.raises(
            UnavailableError, match="cannot be stored$"
        ):  # without the error of the file, which has its path
            await service.start(ME, "y")
        assert "the disk is full" in caplog.text
        events = await read_all(service, run.id)
        broken.clear()
        await wait_until(lambda: not service.problem)
        await service._recorder.flushed()
        stored = [json.loads(event.data) for event in RunStore(tmp_path / "runs.db").events(run.id)]
    assert stored == events
    assert events[-1]["status"] == "completed"


async def test_old_runs_are_deleted_with_their_events(tmp_path):
    async with serving(tmp_path) as service:
        run = await service.wait((await service.start(ME, "x")).id, ME)
        await service._recorder.flushed()
        store = RunStore(tmp_path / "runs.db")
        assert store.prune_served(1) == 0
        long_ago = time.time() - 3 * 24 * 3600
        with store.db.transaction(write=True) as db:
            db.execute("UPDATE runs SET created = ?, ended = ? WHERE run_id = ?", (long_ago, long_ago, run.id))
        assert store.prune_served(1) == 1
        assert (store.runs(served=True), store.events(run.id)) == ([], [])
        kept = store.get(run.id)  # for the statistics
        assert (kept.task, kept.reply, kept.owner, kept.steps) == ("", "", "", 1)
        assert store.prune(1) == 1
        assert (store.get(run.id), store.facts(run.id)) == (None, [])


@pytest.mark.parametrize("durable", [False, True])
async def test_a_search_finds_the_words_of_a_run_and_nothing_that_a_hook_hid(tmp_path, durable):
    turns = [reply("Write to bert.hidden@example.org about the marmalade.")]
    agent = make(turns, hooks=[SensitiveDataHook()])
    async with serving(tmp_path, agent, durable=durable) as service:
        run = await service.wait((await service.start(ME, "Whom do I ask about jam?")).id, ME)
        assert "marmalade" in run.reply
        assert "bert" not in run.reply

        async def found(text, caller=ME):
            return [each.id for each in (await service.search(caller, text=text)).runs]

        assert await found("jam") == await found("MARMALADE jam") == await found("marm*", ADMIN) == [run.id]
        for hidden in ("bert", "hidden", "bert.hidden@example.org", "hid*"):
            assert await found(hidden) == []
        assert await found("jam", OTHER) == []


async def test_a_server_deletes_old_runs_without_a_request(tmp_path):
    store, long_ago = RunStore(tmp_path / "runs.db"), time.time() - 40 * 24 * 3600
    times = {"status": "completed", "created": long_ago, "started": long_ago, "ended": long_ago}
    store.write([RunRecord("run_old", "helper", "me", "", "s", "t", "c", "api", "x", **times)], [])
    async with serving(tmp_path) as service:
        service.start_tidying()
        await wait_until(lambda: store.get("run_old") is None)


async def test_a_caller_cannot_change_its_metadata(tmp_path):
    metadata_seen = []

    @hook(ON_RUN_START, phase="observe")
    def look(ctx, payload):
        metadata_seen.append(dict(ctx.state.metadata))

    async with serving(tmp_path, make(hooks=[look])) as service:
        who = ME.replace(metadata={"user_role": "customer", "caller": "root"})
        await service.wait((await service.start(who, "x", session="talk")).id, who)
    assert metadata_seen[0]["user_role"] == "customer"
    assert (metadata_seen[0]["caller"], metadata_seen[0]["caller_id"], metadata_seen[0]["session"]) == (
        "me",
        "key_me",
        "talk",
    )


# Statistics share the file


@tool
def look() -> str:
    """Look."""
    return "nothing"


async def test_a_served_run_that_the_metrics_hook_also_records_is_one_row(tmp_path):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    agent = make([call("look"), reply("done")], tools=[look], hooks=[recorder])
    async with serving(tmp_path, agent) as service:
        run = await service.wait((await service.start(ME, "the task")).id, ME)
        assert recorder.flush(20)
        (stored,) = recorder.store.runs()
        assert stored == msgspec.structs.replace(run, observed=True)
        assert (stored.status, stored.task, stored.reply, stored.stop) == ("completed", "the task", "done", "completed")
        assert 0 < stored.elapsed <= stored.ended - stored.started
        stats = run_stats(recorder.store)
        assert (stats.totals.runs, stats.totals.model_calls, stats.totals.tool_calls) == (1, 2, 1)
        assert [each.name for each in recorder.store.calls(run.id)] == ["scripted", "look", "scripted"]
        assert [each.id for each in await service.list(ME)] == [run.id]
    recorder.store.close()


async def test_runs_that_were_not_served_are_seen_by_callers_who_see_everything_and_controlled_by_nobody(tmp_path):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    result = await make(hooks=[recorder]).arun("x")
    assert recorder.flush(20)
    id = result.ids.run_id
    open_run = RunRecord("run_open", "a", "", "", "s", "t", "c", "", "", status="running", host="elsewhere", pid=1)
    recorder.store.add([msgspec.structs.replace(open_run, created=time.time(), origin="library")])
    async with serving(tmp_path) as service:
        with pytest.raises(UnknownRunError):
            await service.get(id, ME)
        with pytest.raises(UnknownRunError):
            await service.cancel(id, ME)
        assert (await service.list(ME), await service.count(ME)) == ([], 0)
        found = await service.get(id, ADMIN)
        assert (found.origin, found.owner, found.status) == ("library", "", "completed")
        assert [run.id for run in await service.list(ADMIN)] == ["run_open", id]
        assert await service.count(ADMIN) == 2
        assert (await service.cancel(id, ADMIN)).status == "completed"
        for control in (service.cancel("run_open", ADMIN), service.steer("run_open", ADMIN, "Hurry.")):
            with pytest.raises(ConflictError, match="started by another program \\(library\\): control it there"):
                await control
    recorder.store.close()


# Rules


async def test_all_runs_of_all_callers_have_the_same_rules_and_the_records_describe_them_once(tmp_path):
    @guard(BEFORE_TOOL)
    def no(ctx, request):
        return HookResult.block("no")

    hooks = [no, RecordHook(tmp_path / "records")]
    async with serving(tmp_path, make(hooks=hooks)) as service:
        for caller in (ME, ME, OTHER):
            await read_all(service, (await service.start(caller, "go")).id, caller)
    records = [line for file in (tmp_path / "records").glob("*.moments") for line in file.read_text().splitlines()]
    assert len([line for line in records if line.startswith('["run"')]) == 3
    assert len([line for line in records if line.startswith('["hooks"')]) == 1
