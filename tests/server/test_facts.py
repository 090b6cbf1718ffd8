"""Facts of served runs: what is recorded where, what is not, and what happens if nothing can be recorded."""

import re
import sqlite3
from contextlib import closing

import pytest

from hookline import AFTER_LLM, APPROVAL_REQUESTED, BEFORE_TOOL, HookResult, call, guard, hook, reply, tool
from hookline.hooks import AuditLogHook, MetricsHook, ObservabilityHook, SensitiveDataHook, shadow
from hookline.stores.errors import StoreError
from hookline.stores.run_queries import refusals
from hookline.stores.run_statistics import run_stats
from hookline.stores.runs import RunStore

from ..waiting import wait_until
from .console.rig import console
from .rig import ME, Blocker, make, service_at, serving

SECRET = "sk-ant-api03-Zq8vN2mXw7Lr4Tb9Yc1Kd6Hs3Fj5Gp0Qe"


@tool
def delete(name: str) -> str:
    """Delete a file."""
    return f"{name} is gone"


@guard(BEFORE_TOOL)
def no_deleting(ctx, request):
    return HookResult.block("nothing is deleted")


@guard(BEFORE_TOOL)
def asks(ctx, request):
    return HookResult.ask("May it?")


@hook(APPROVAL_REQUESTED)
def denies(ctx, request):
    return HookResult.deny("not today")


def deleting(*hooks, name="helper", durable=False):
    return make([call("delete", name="a"), reply("done")] * 3, name, tools=[delete], hooks=hooks)


# Other runs in the same database.


async def test_blocked_lists_what_was_refused_without_the_server_too(tmp_path):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    await deleting(recorder, no_deleting, name="program").start("x").result()
    await deleting(recorder, asks, denies, name="terminal").start("x").result()
    recorder.flush()
    async with console(tmp_path) as made, made.logged_in("admin", "read") as admin, made.logged_in("read") as ann:
        page = (await admin.get("/console/blocked")).text
        assert "nothing is deleted" in page
        assert "not today" in page
        assert re.findall('class="ev-a">(\\w+)', page) == ["terminal", "program"]
        assert (
            "No hook and no person has refused anything in the last 24 hours."
            in (await ann.get("/console/blocked")).text
        )
        stats = (await admin.get("/stats")).json()
        assert sum(each["count"] for each in stats["refusals"]) == 2


async def test_a_run_of_a_server_is_counted_once_if_its_agent_records_runs_in_the_same_database(tmp_path):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    other = ObservabilityHook(tmp_path / "other.db")
    async with serving(tmp_path, deleting(recorder, other, no_deleting)) as service:
        await service.wait((await service.start(ME, "x")).id, ME)
        await service.stored()
        recorder.flush()
        other.flush()
        for store in (service.store, other.store):
            stats = run_stats(store)
            assert (stats.totals.runs, stats.totals.model_calls, stats.totals.tool_calls) == (1, 2, 1)
            assert [(each.hook, each.count) for each in stats.refusals] == [("no_deleting", 1)]


async def test_runs_that_end_without_having_begun_are_counted(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent(), max_runs=1) as service:
        first, second = await service.start(ME, "x"), await service.start(ME, "y")
        await wait_until(lambda: blocker.entered == 1)
        await service.cancel(second.id, ME, "changed my mind")
        blocker.open.set()
        await service.wait(first.id, ME)
        await service.stored()
        assert run_stats(service.store).totals.statuses == {"completed": 1, "cancelled": 1}


# Rules.


@pytest.mark.parametrize("durable", [False, True])
async def test_verdicts_have_the_digest_of_the_rules_which_runs_under_the_same_rules_share(tmp_path, durable):
    agents = deleting(no_deleting), deleting(asks, denies, name="other")
    async with serving(tmp_path, *agents, durable=durable) as service:
        found = []
        for name in ("helper", "helper", "other"):
            run = await service.start(ME, "x", agent=name)
            await service.wait(run.id, ME)
            await service.stored()
            (rules,) = {each.rules for each in service.store.verdicts(run.id, 0, 10)}
            found.append(rules)
        assert found[0] == found[1] != found[2]
        assert all(len(each) == 16 for each in found)
        assert [each.rules for each in refusals(service.store, 10)] == found[::-1]


async def test_pages_show_the_rules_like_a_commit(tmp_path):
    async with console(tmp_path, deleting(no_deleting)) as made, made.browser() as browser:
        run = (await browser.post("/runs", json={"task": "x", "wait": 30})).json()
        (verdict,) = (await browser.get(f"/runs/{run['id']}/verdicts")).json()["verdicts"]
        page = (await browser.get("/console/blocked")).text
        assert f'<span class="mono soft" title="{verdict["rules"]}">{verdict["rules"][:8]}</span>' in page
        page = (await browser.get(f"/console/runs/{run['id']}")).text
        assert f'rules <b class="mono" title="{verdict["rules"]}">{verdict["rules"][:8]}</b>' in page


# What hooks hid.


def tables_with_the_secret(path):
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name for name in names if SECRET in repr(db.execute(f"SELECT * FROM {name}").fetchall())}


@pytest.mark.sqlite
@pytest.mark.parametrize("durable", [False, True])
async def test_nothing_stores_what_a_hook_hid_except_the_journal_which_hooks_judge_again(tmp_path, durable):
    @tool
    def look(name: str) -> str:
        """Look at a file."""
        return f"the key is {SECRET}"

    turns = [call("look", name="a"), reply(f"The key is {SECRET}.")]
    audit = AuditLogHook(tmp_path / "audit.jsonl", fsync="never", content=True)
    hooks = [SensitiveDataHook(), audit, MetricsHook()]
    async with serving(tmp_path, make(turns, tools=[look], hooks=hooks), durable=durable) as service:
        run = await service.wait((await service.start(ME, "x")).id, ME)
        await service.stored()
        assert run.status == "completed"
        assert {each.hook for each in service.store.verdicts(run.id, 0, 10)} == {"SensitiveDataHook"}
    audit.flush()
    assert SECRET not in (tmp_path / "audit.jsonl").read_text()
    assert tables_with_the_secret(tmp_path / "runs.db") == ({"journal"} if durable else set())


@pytest.mark.sqlite
async def test_secrets_in_the_words_of_hooks_are_in_no_fact_and_not_in_the_audit_log(tmp_path):
    @guard(BEFORE_TOOL)
    def talkative(ctx, request):
        return HookResult.block(f"no: {SECRET}", reason=f"because of {SECRET}")

    @guard(AFTER_LLM, on_failure="open")
    def clumsy(ctx, answer):
        raise OSError(f"could not send {SECRET}")

    trial = guard(BEFORE_TOOL, name="trial", priority=50)(lambda ctx, request: HookResult.block(f"{SECRET}?"))
    audit = AuditLogHook(tmp_path / "audit.jsonl", fsync="never")
    async with serving(tmp_path, deleting(talkative, clumsy, shadow(trial), audit)) as service:
        run = await service.wait((await service.start(ME, "x")).id, ME)
        await service.stored()
        said = service.store.verdicts(run.id, 0, 10)
        assert {each.hook for each in said} == {"talkative", "clumsy", "shadow(trial)"}
        assert "because of" in next(each.reason for each in said if each.hook == "talkative")
    audit.flush()
    assert SECRET not in (tmp_path / "audit.jsonl").read_text()
    assert tables_with_the_secret(tmp_path / "runs.db") == {"events"}, (
        "only the caller sees the words of hooks as they are"
    )


# A store that is down.


@pytest.mark.parametrize("required", [False, True])
async def test_a_run_goes_on_or_fails_while_it_cannot_be_recorded_as_the_setting_says(tmp_path, monkeypatch, required):
    monkeypatch.setattr("hookline.server.live_run.RETRY_SECONDS", 0.01)
    broken, real = [], RunStore.write

    def write(self, *what):
        if broken:
            raise StoreError("the disk is full")
        return real(self, *what)

    @tool
    async def wait() -> str:
        """Wait until runs cannot be stored."""
        broken.append(True)
        await wait_until(lambda: service.problem)
        return "done"

    monkeypatch.setattr(RunStore, "write", write)
    service = service_at(tmp_path, make([call("wait"), reply("done")], tools=[wait]), required=required)
    await service.open()
    try:
        run = await service.start(ME, "x")
        await wait_until(lambda: broken and service._live[run.id].closed)
        broken.clear()
        await wait_until(lambda: not service.problem)
        await service.stored()
        stored = service.store.get(run.id)
        assert stored.status == ("failed" if required else "completed")
        assert ("records of runs cannot be written: the disk is full" in stored.error) is required
        stats = run_stats(service.store)  # what happened meanwhile was kept
        assert (stats.totals.runs, stats.totals.tool_calls) == (1, 1)
    finally:
        await service.close(grace=0)
