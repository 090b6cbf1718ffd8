"""ApprovalsHook: calls wait in a file for a decision."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Agent, HookResult, Limits, RegistrationError, Session, call, get_model, guard, hook, reply, tool
from hookline._base.frozen import digest
from hookline.events import ApprovalDecided, ApprovalPending, Failed
from hookline.hooks import ApprovalsHook, AuditLogHook, PlanModeHook
from hookline.stores import ApprovalStore, DecisionRefusedError, StoreError
from hookline.stores.approvals import ApprovalStore as Store
from hookline.teams import Team
from hookline.testing import EventLog, scripted_agent
from tests.environment import with_source
from tests.properties import examples

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path):
    made = ApprovalStore(tmp_path / "approvals.db")
    yield made
    made.close()


def agent_of(turns, *hooks, ran, **options):
    @tool
    async def deploy(env: str = "test") -> str:
        """Deploy."""
        ran.append({"env": env})
        return f"deployed to {env}"

    return scripted_agent(turns, tools=[deploy], hooks=[PlanModeHook(["deploy"]), *hooks], **options)


async def waiting(store, number=1):
    """The calls that wait, once there are so many."""
    async with asyncio.timeout(60):
        while len(rows := store.rows(status="pending")) < number:
            await asyncio.sleep(0.005)
    return rows


async def outcome(store, act, *others, turns=None, **options):
    """Apply ``act`` to the waiting row; return the calls that ran, the tool message, the decision and the status."""
    ran, log = [], EventLog()
    agent = agent_of(
        turns or [call("deploy", env="a"), reply("x")], ApprovalsHook(store, **options), *others, ran=ran, sinks=[log]
    )
    running = asyncio.create_task(agent.arun("go"))
    if act is not None:
        (row,) = await waiting(store)
        act(row)
    result = await asyncio.wait_for(running, 60)
    (decided,) = log.of(ApprovalDecided)
    return ran, result.messages[2].content, (decided.decision, decided.by), store.rows(limit=1)[0].status


def decide_with(store, decision, **more):
    return lambda row: store.decide(row.id, decision=decision, digest=row.digest, by="ann", **more)


# Decisions.


async def test_an_approved_call_runs(store):
    observed = await outcome(store, decide_with(store, "approve"))
    assert observed == ([{"env": "a"}], "deployed to a", ("approved", "ann"), "approved")


async def test_an_event_has_the_id_of_the_waiting_approval(store):
    log = EventLog()
    turns = [call("deploy", env="a"), reply("x"), call("deploy", env="a"), reply("x")]
    agent = agent_of(turns, ApprovalsHook(store), ran=[], sinks=[log])
    session = Session("s")
    running = asyncio.create_task(agent.arun("go", session=session))
    (row,) = await waiting(store)
    decide_with(store, "approve", remember="session")(row)
    await asyncio.wait_for(running, 60)
    await agent.arun("again", session=session)  # the remembered approval applies: nothing waits
    (event,) = log.of(ApprovalPending)
    assert (event.approval, event.call_id, event.expires) == (row.id, row.call_id, row.expires)


async def test_a_remembered_approval_answers_no_question_of_another_guard_with_the_same_name(store):
    def asking(about):
        @guard("before_tool")
        def careful(ctx, request):
            return HookResult.ask(f"Is {about} right?") if request.arguments["env"] == about else None

        return careful

    ran = []
    turns = [call("deploy", env=env) for env in ("test", "test", "prod")]
    guards = [asking("test"), asking("prod")]

    @tool
    def deploy(env: str) -> str:
        """Deploy."""
        ran.append(env)
        return "ok"

    agent = scripted_agent([*turns, "done"], tools=[deploy], hooks=[*guards, ApprovalsHook(store)])
    running = asyncio.create_task(agent.arun("go"))
    (row,) = await waiting(store)
    decide_with(store, "approve", remember="always", pattern={"env": "*"})(row)
    (other,) = await waiting(store)
    assert (row.hooks, other.hooks, ran) == (("careful (1)",), ("careful (2)",), ["test", "test"])
    decide_with(store, "deny")(other)
    await asyncio.wait_for(running, 60)
    assert ran == ["test", "test"]


async def test_a_remembered_approval_answers_no_question_of_a_guard_that_comes_before_one_of_the_same_name(store):
    def asking():
        @guard("before_tool")
        def careful(ctx, request):
            return HookResult.ask("May it?")

        return careful

    @tool
    def deploy(env: str) -> str:
        """Deploy."""
        return "ok"

    def agent_with(*guards):
        return scripted_agent([call("deploy", env="a"), "done"], tools=[deploy], hooks=[*guards, ApprovalsHook(store)])

    own = asking()
    running = asyncio.create_task(agent_with(own).arun("go"))
    (row,) = await waiting(store)
    decide_with(store, "approve", remember="always")(row)
    await asyncio.wait_for(running, 60)
    running = asyncio.create_task(agent_with(asking(), own).arun("go"))
    (other,) = await waiting(store)
    assert (row.hooks, other.hooks) == (("careful",), ("careful (1)", "careful (2)"))
    decide_with(store, "deny")(other)
    await asyncio.wait_for(running, 60)


async def test_a_denied_call_does_not_run_and_the_model_gets_the_reason(store):
    observed = await outcome(store, decide_with(store, "deny", message="Use the other one."))
    assert observed == ([], "Use the other one.", ("denied", "ann"), "denied")
    assert (await outcome(store, decide_with(store, "deny")))[1] == "This call was denied."


async def test_an_edited_call_runs_with_the_new_arguments_if_the_guards_allow_it(store):
    observed = await outcome(store, decide_with(store, "edit", arguments={"env": "b"}))
    assert observed == ([{"env": "b"}], "deployed to b", ("edited", "ann"), "edited")

    @guard("before_tool")
    def never_b(ctx, request):
        return HookResult.block("Not b.") if request.arguments.get("env") == "b" else None

    observed = await outcome(store, decide_with(store, "edit", arguments={"env": "b"}), never_b)
    assert observed[:3] == ([], "Not b.", ("edited", "ann"))
    observed = await outcome(store, decide_with(store, "edit", arguments={"wrong": 1}))
    assert observed[0] == []


async def test_a_call_without_a_decision_in_time_is_denied(store):
    observed = await outcome(store, None, seconds=0.05)
    told = "Nobody approved this call within 0.05 s. It needs an approval: plan mode."
    assert observed == ([], told, ("denied", "expired"), "expired")


@pytest.mark.parametrize(("jump", "seconds"), [(7200, 3600), (-7200, 0.3)])
async def test_a_call_expires_by_the_wall_clock_and_by_the_monotonic_clock(store, monkeypatch, jump, seconds):
    monkeypatch.setattr("hookline.hooks.approvals.CLOCK_INTERVAL", 0.01)
    real = time.time

    def sleep(row):
        monkeypatch.setattr(time, "time", lambda: real() + jump)

    ran, message, decided, status = await outcome(store, sleep, seconds=seconds)
    assert (ran, decided, status) == ([], ("denied", "expired"), "expired")


async def test_a_remembered_approval_applies_at_once_and_is_named(store):
    ran, log, session = [], EventLog(), Session("s")
    agent = agent_of(
        [call("deploy", env="a"), reply("x"), [call("deploy", env="a"), call("deploy", env="b")], reply("y")],
        ApprovalsHook(store),
        ran=ran,
        sinks=[log],
    )
    running = asyncio.create_task(agent.arun("go", session=session))
    (row,) = await waiting(store)
    decide_with(store, "approve", remember="session")(row)
    await running
    running = asyncio.create_task(agent.arun("go", session=session))
    (other,) = await waiting(store)
    assert other.arguments == {"env": "b"}
    decide_with(store, "deny")(other)
    await running
    (grant,) = store.grants()
    observed = {(event.decision, event.by) for event in log.of(ApprovalDecided)}
    assert observed == {("approved", "ann"), ("approved", f"grant {grant.id} of ann"), ("denied", "ann")}
    assert [done["env"] for done in ran] == ["a", "a"]


async def test_all_calls_of_a_batch_wait_at_once(store):
    ran = []
    turns = [[call("deploy", env=str(n)) for n in range(5)], reply("x")]
    running = asyncio.create_task(agent_of(turns, ApprovalsHook(store), ran=ran).arun("go"))
    rows = await waiting(store, 5)
    decide_with(store, "approve", remember="session", pattern={"env": "[0-3]"})(rows[-1])
    (last,) = await waiting(store)
    assert last.arguments == {"env": "4"}
    decide_with(store, "deny")(last)
    await running
    assert sorted(done["env"] for done in ran) == ["0", "1", "2", "3"]


async def test_an_approver_of_the_user_comes_first_and_no_file_is_created(tmp_path):
    @hook("approval_requested")
    def mine(ctx, request):
        return HookResult.approve(by="me")

    ran = []
    approvals = ApprovalsHook(tmp_path / "sub" / "a.db")
    await agent_of([call("deploy"), reply("x")], approvals, mine, ran=ran).arun("go")
    await scripted_agent(["x"], hooks=[approvals]).arun("nothing is asked")
    assert (len(ran), (tmp_path / "sub").exists()) == (1, False)


async def test_a_call_of_a_subagent_names_both_runs(store):
    approvals, ran = ApprovalsHook(store, owner="o"), []
    team = Team()
    inner = agent_of([call("deploy", env="a"), reply("deployed")], ran=ran, name="inner")
    outer = scripted_agent([call("delegate", to="inner", task="go"), reply("x")], name="outer", tools=[team])
    team.add(outer)
    team.add(inner)
    run = outer.start("go", hooks=[approvals])
    approvals.root_id = run.id
    (row,) = await waiting(store)
    assert (row.agent, row.root_id, row.owner) == ("inner", run.id, "o")
    assert row.run_id != run.id
    assert [found.id for found in store.rows(root_id=run.id, owner="o")] == [row.id]
    decide_with(store, "approve")(row)
    await run.result()
    assert len(ran) == 1


# Cancelled runs.


async def test_a_cancelled_run_leaves_no_pending_approval(store):
    ran, log, notified = [], EventLog(), asyncio.get_running_loop().create_future()

    async def notify(row):
        notified.set_result(row)

    run = agent_of([call("deploy"), reply("x")], ApprovalsHook(store, notify=notify), ran=ran, sinks=[log]).start("go")
    row = await asyncio.wait_for(notified, 60)
    run.cancel("no longer wanted")
    assert (await run.result()).status == "cancelled"
    assert store.find(row.id).status == "cancelled"
    assert [event.decision for event in log.of(ApprovalDecided)] == ["cancelled"]
    with pytest.raises(DecisionRefusedError, match="its run has ended"):
        decide_with(store, "approve")(row)
    assert ran == []


async def test_a_run_cancelled_while_it_asks_leaves_no_pending_approval(store, monkeypatch):
    began, go_on, asked = threading.Event(), threading.Event(), Store.ask

    def slow(self, *args, **more):
        began.set()
        assert go_on.wait(60)
        return asked(self, *args, **more)

    monkeypatch.setattr(Store, "ask", slow)
    run = agent_of([call("deploy"), reply("x")], ApprovalsHook(store), ran=[]).start("go")
    async with asyncio.timeout(60):
        while not began.is_set():
            await asyncio.sleep(0.005)
        run.cancel()
        await run.result()
        go_on.set()
        while [row.status for row in store.rows()] != ["cancelled"]:
            await asyncio.sleep(0.005)


async def test_other_runs_go_on_while_a_call_waits(store):
    running = asyncio.create_task(outcome(store, decide_with(store, "approve")))
    assert (await scripted_agent(["hello"]).arun("go")).reply == "hello"
    assert (await running)[0]


# Files that cannot be used.


async def failing(store, break_it, caplog):
    ran, log = [], EventLog()
    agent = agent_of([call("deploy"), reply("x")], ApprovalsHook(store), ran=ran, sinks=[log])
    running = asyncio.create_task(agent.arun("go"))
    if break_it is not None:
        await waiting(store)
        break_it()
    result = await asyncio.wait_for(running, 60)
    assert (ran, result.status) == ([], "completed")
    assert result.messages[2].content == "The approval failed."
    assert [(event.decision, event.by) for event in log.of(ApprovalDecided)] == [("denied", "approvals")]
    assert "is denied, because the approval store cannot be used" in caplog.text
    return [event.error.message for event in log.of(Failed) if event.error.type == "StoreError"][0]


async def test_a_file_that_cannot_be_created_denies_the_call(tmp_path, caplog):
    assert "cannot be opened" in await failing(ApprovalStore(tmp_path), None, caplog)


async def test_a_file_that_is_deleted_meanwhile_denies_the_call(store, caplog):
    def delete():
        for name in ("", "-wal", "-shm"):
            Path(f"{store.path}{name}").unlink(missing_ok=True)

    assert "deleted or replaced" in await failing(store, delete, caplog)


async def test_a_file_that_is_damaged_meanwhile_denies_the_call(store, caplog):
    def damage():
        new = Path(f"{store.path}.new")
        new.write_text("not a database, but long enough to look like one" * 100)
        new.replace(store.path)

    assert "is not a SQLite database" in await failing(store, damage, caplog)


async def test_a_file_that_is_read_only_or_locked_denies_the_call(store, caplog, monkeypatch):
    def refuse(self, *args, **more):
        raise StoreError("another program held the lock for more than 5 s")

    monkeypatch.setattr(Store, "ask", refuse)
    assert "held the lock" in await failing(store, None, caplog)


async def test_a_decision_about_another_call_does_not_count(store, caplog):
    def swap():
        (row,) = store.rows(status="pending")
        with store.db.transaction(write=True) as db:
            db.execute("UPDATE approvals SET digest = 'other', arguments = '{}'")
        decide_with(store, "approve")(store.find(row.id))

    assert "is for a different call" in await failing(store, swap, caplog)


# Notifications.


async def test_the_notifier_may_decide_and_is_cancelled_when_another_decides(store):
    notified, left = [], []

    async def decide(row):
        notified.append(row.id)
        decide_with(store, "approve")(row)

    assert (await outcome(store, None, notify=decide))[2] == ("approved", "ann")

    async def think(row):
        notified.append(row.id)
        try:
            await asyncio.Event().wait()
        finally:
            left.append(row.id)

    await outcome(store, decide_with(store, "deny"), notify=think)
    assert (len(notified), left) == (2, notified[1:])


async def test_a_notifier_that_fails_is_logged_and_the_call_keeps_waiting(store, caplog):
    async def fail(row):
        raise ConnectionError("no signal")

    assert (await outcome(store, decide_with(store, "approve"), notify=fail))[2] == ("approved", "ann")
    assert "no signal" in caplog.text


# Audit.


async def test_the_audit_log_says_who_decided_what_and_why(store, tmp_path):
    path = tmp_path / "audit.jsonl"
    audit = AuditLogHook(path, content=True)
    await outcome(store, decide_with(store, "deny", message="Use the other one."), audit)
    await outcome(store, decide_with(store, "approve", remember="always"), audit)
    await outcome(store, None, audit)
    await outcome(store, None, audit, seconds=0.05, turns=[call("deploy", env="b"), reply("x")])
    audit.flush(60)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    decided = [line for line in lines if line["type"] == "approval"]
    (grant,) = store.grants()
    assert [(line["decision"], line["by"]) for line in decided] == [
        ("denied", "ann"),
        ("approved", "ann"),
        ("approved", f"grant {grant.id} of ann"),
        ("denied", "expired"),
    ]
    assert decided[0]["message"] == "Use the other one."
    assert "message" not in decided[1]
    rows = store.rows()[::-1]
    assert [line["digest"] for line in decided] == [row.digest for row in rows]
    reasons = [line["reason"] for line in lines if line["type"] == "verdict" and line["hook"] == "approvals"]
    assert reasons == [f"approval {row.id}" + ", remembered: always" * (row.remember == "always") for row in rows]


# Concurrency.

STEPS = st.lists(
    st.tuples(st.sampled_from(["approve", "deny", "edit", "session", "always", "cancel"]), st.integers(0, 2)),
    max_size=4,
)


@given(st.lists(STEPS, min_size=2, max_size=3), st.sampled_from([3600.0, 0.02]))
@settings(max_examples=examples(20))
def test_each_call_gets_one_decision_and_runs_as_decided(plans, seconds):
    ran, seen, won, log = [], [], [], EventLog()
    store = ApprovalStore(":memory:")

    @guard("before_tool")
    def see(ctx, request):
        seen.append(digest([request.name, request.arguments]))

    turns = [[call("deploy", env=str(n)) for n in range(3)], reply("x")]
    run = agent_of(turns, see, ApprovalsHook(store, seconds=seconds), ran=ran, sinks=[log]).start("go")
    end = time.monotonic() + 60
    while len(rows := store.rows()) < 3 and not run.done and time.monotonic() < end:
        time.sleep(0.001)
    rows = sorted(rows, key=lambda row: row.arguments["env"])
    together = threading.Barrier(len(plans))

    def act(who, plan):
        together.wait(60)
        for step, number in plan:
            if step == "cancel":
                run.cancel()
                continue
            row, more = rows[number % len(rows)], {}
            if step == "edit":
                more["arguments"] = {"env": f"edited by {who}"}
            elif step in ("session", "always"):
                more |= {"remember": step, "pattern": {"env": "[01]"}}
            decision = step if step in ("deny", "edit") else "approve"
            with suppress(DecisionRefusedError):
                won.append(store.decide(row.id, decision=decision, digest=row.digest, by=str(who), **more))

    threads = [threading.Thread(target=act, args=(n, plan)) for n, plan in enumerate(plans)] if rows else []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for row in store.rows(status="pending"):
        with suppress(DecisionRefusedError):
            store.decide(row.id, decision="deny", digest=row.digest, by="last")
    cancelled = run.wait(60).status == "cancelled"
    final = {row.id: row for row in store.rows()}
    assert len({row.id for row in won}) == len(won)  # no two callers won the same decision
    for row in won:
        assert final[row.id] == row
    decided = {event.call_id: event.decision for event in log.of(ApprovalDecided)}
    assert len(log.of(ApprovalDecided)) == len(decided)
    if not cancelled:
        means = {"expired": "denied"}
        assert decided == {row.call_id: means.get(row.status, row.status) for row in final.values()}
    allowed = [row.digest for row in final.values() if row.status == "approved"]
    allowed += [digest([row.tool, row.edit]) for row in final.values() if row.status == "edited"]
    done = [digest(["deploy", one]) for one in ran]
    assert set(done) <= set(allowed) & set(seen)
    assert len(done) <= len(allowed)
    assert cancelled or len(done) == len(allowed)
    store.close()


# Another program, and a real model.


@pytest.mark.slow
async def test_a_call_of_another_program_can_be_decided_here(store):
    code = """
import sys
sys.path.insert(0, sys.argv[2])
from test_approvals import *
ran = []
agent_of([call("deploy", env="a"), reply("x")], ApprovalsHook(sys.argv[1]), ran=ran).run("go")
print(ran)
"""
    env = with_source()
    process = subprocess.Popen(
        [sys.executable, "-c", code, store.path, str(Path(__file__).parent)], env=env, text=True, stdout=subprocess.PIPE
    )
    (row,) = await waiting(store)
    decide_with(store, "edit", arguments={"env": "b"})(row)
    assert process.communicate()[0].strip() == "[{'env': 'b'}]"


@pytest.mark.slow
def test_a_call_of_the_embedded_model_waits_and_runs_when_it_is_approved(store):
    pytest.importorskip("xllamacpp")
    minutes_set, answered = [], []

    @tool
    def set_timer(minutes: int) -> str:
        """Set a timer for a number of minutes."""
        minutes_set.append(minutes)
        return "The timer is running."

    def approve():
        end = time.monotonic() + 60
        while not (rows := store.rows(status="pending")) and time.monotonic() < end:
            time.sleep(0.01)
        answered.extend(rows)
        decide_with(store, "approve")(rows[0])

    hooks = [PlanModeHook(["set_timer"]), ApprovalsHook(store)]
    agent = Agent("small", llm=get_model("local"), tools=[set_timer], hooks=hooks, limits=Limits(steps=1))
    thread = threading.Thread(target=approve)
    thread.start()
    result = agent.run("Set a timer for 15 minutes.")
    thread.join(60)
    assert result.steps[0].outcomes == ("ok",)
    assert [row.arguments for row in answered] == [{"minutes": minutes} for minutes in minutes_set]


# Invalid arguments.


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("",), "store must be a SQLite file"),
        ((None,), "store must be a SQLite file"),
        ((ApprovalStore,), "store must be a SQLite file"),
    ],
)
def test_a_store_is_required(args, why):
    with pytest.raises(RegistrationError, match=why):
        ApprovalsHook(*args)


@pytest.mark.parametrize(
    "more", [{"seconds": 0}, {"seconds": "60"}, {"owner": None}, {"root_id": 1}, {"notify": "me"}, {"notify": Agent}]
)
def test_invalid_arguments_are_rejected(more):
    with pytest.raises(RegistrationError, match=next(iter(more))):
        ApprovalsHook(os.path.join(tempfile.gettempdir(), "never-made.db"), **more)
