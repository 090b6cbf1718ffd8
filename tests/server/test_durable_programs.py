"""Durable runs of a program, which no server served, say the same through every door."""

import asyncio

import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.errors import RunWaitingError
from hookline.hooks import ApprovalsHook
from hookline.stores import ApprovalStore, RunStore, run_stats

from .http_rig import api, events_in

HELD = 0.05
RUN = "order:4712"


@tool
def mail(to: str) -> str:
    """Mail a note."""
    return f"Mailed it to {to}."


@guard(BEFORE_TOOL, tools="mail")
def ask(ctx, request):
    return HookResult.ask("Mail this out?", reason="mails leave")


class Office:
    """A program with durable runs in the file of a server. Each start of the program is another agent."""

    def __init__(self, folder, *, observed):
        self.store = RunStore(folder / "runs.db")
        self.approvals = ApprovalStore(folder / "approvals.db")
        self.observed = observed

    async def run(self):
        """Run until the call has to wait, or to the end."""
        agent = Agent(
            "office",
            llm=ScriptedModel([call("mail", to="ann"), reply("the parcel was posted")]),
            tools=[mail],
            hooks=[ask, ApprovalsHook(self.approvals, hold_seconds=0.01)],
            **({"runs": self.store} if self.observed else {}),
        )
        return await agent.arun("send it", durable=self.store, run_id=RUN)

    async def wait(self):
        """Run until the call has to wait; the wait lasts a measurable time."""
        with pytest.raises(RunWaitingError):
            await self.run()
        await asyncio.sleep(HELD)

    def approve(self):
        (row,) = self.approvals.rows(status="pending")
        self.approvals.decide(row.id, decision="approve", digest=row.digest, by="anna")

    def record(self):
        """The run, after everything is written."""
        return self.store.get(RUN)


@pytest.fixture(params=[True, False], ids=["observed", "not observed"])
def office(tmp_path, request):
    return Office(tmp_path, observed=request.param)


async def resumed(office, waits=1):
    """A run that was suspended, approved and ended."""
    for _ in range(waits):
        await office.wait()
    begun = office.record()
    office.approve()
    await office.run()
    return begun


async def test_a_stream_has_all_events_of_a_run_and_ends_with_it(tmp_path, office):
    await resumed(office)
    async with api(tmp_path) as served:
        admin = served.client("admin")
        page = (await admin.get(f"/runs/{RUN}/events", headers={"accept": "application/json"})).json()
        stream = await admin.get(f"/runs/{RUN}/events")
        run = (await admin.get(f"/runs/{RUN}")).json()
        listed = (await admin.get("/runs")).json()["runs"]
        after = await admin.get(f"/runs/{RUN}/events?after={page['last_seq']}")
    assert page["over"]
    assert stream.status_code == 200
    assert events_in(stream.text) == page["events"]
    assert page["events"][-1]["type"] == "run_finished"
    assert run["last_seq"] == listed[0]["last_seq"] == page["last_seq"] == len(page["events"])
    assert after.status_code == 204


async def test_a_run_shows_its_reply_and_is_found_by_it(tmp_path, office):
    await resumed(office)
    async with api(tmp_path) as served:
        admin = served.client("admin")
        run = (await admin.get(f"/runs/{RUN}")).json()
        found = (await admin.get("/runs?text=posted")).json()["runs"]
    assert run["reply"] == "the parcel was posted"
    assert [each["id"] for each in found] == [RUN]
    assert [each.id for each in office.store.runs(text="posted parcel")] == [RUN]


async def test_deleting_the_journal_deletes_the_texts(office):
    await resumed(office)
    assert office.store.journal.delete(RUN)
    run = office.record()
    assert run is None or (run.task, run.reply) == ("", "")
    assert office.store.runs(text="posted") == []


async def test_a_run_began_when_it_first_began(tmp_path):
    office = Office(tmp_path, observed=True)
    begun = await resumed(office, 2)
    run, facts = office.record(), office.store.facts(RUN)
    assert (run.created, run.started) == (begun.created, begun.started)
    assert run.ended - run.started > 2 * HELD
    assert all(fact.at >= run.started for fact in facts)
    (end,) = [fact for fact in facts if fact.kind == "run"]
    assert end.at == run.started


async def test_an_approval_takes_the_time_that_the_call_waited(tmp_path):
    office = Office(tmp_path, observed=True)
    await resumed(office, 2)
    (decided,) = [fact for fact in office.store.facts(RUN) if fact.kind == "approval"]
    assert decided.duration > 2 * HELD


async def test_an_approver_that_is_asked_again_decides_once(tmp_path):
    office = Office(tmp_path, observed=True)
    await resumed(office, 3)
    verdicts = [(each.hook, each.verb) for each in office.store.verdicts(RUN)]
    assert verdicts == [("ask", "ask"), ("approvals", "claim")]
    hooks = {each.hook: each for each in run_stats(office.store).hooks}
    assert (hooks["approvals"].calls, hooks["approvals"].verbs) == (1, {"claim": 1})
    events = [each.data for each in office.store.events(RUN) if each.type == "hook_executed"]
    assert sum(b'"approvals"' in each for each in events) == 1


async def test_statistics_count_a_waiting_run_as_waiting(tmp_path):
    office = Office(tmp_path, observed=True)
    await office.wait()
    assert office.record().status == "waiting"
    assert run_stats(office.store).totals.statuses == {"waiting": 1}
    async with api(tmp_path) as served:
        assert (await served.client("admin").get("/stats")).json()["totals"]["statuses"] == {"waiting": 1}
