"""Workers on one database: takeover after kill -9 and SIGSTOP, suspension at SIGTERM, and hookline worker itself."""

import random
import signal
from collections import Counter

import pytest

from tests.server.fleet import fleet_of
from tests.server.rig import ME
from tests.waiting import wait_until


@pytest.mark.slow
async def test_another_worker_continues_a_run_whose_worker_is_killed(tmp_path, postgres_url):
    async with fleet_of(tmp_path, postgres_url, pace=0.2) as fleet:
        run = await fleet.service.start(ME, "go")
        victim = await fleet.executing(run.id)
        seen = [(event.seq, event.data) for event in fleet.store.events(run.id)]
        await fleet.end(victim)
        run = await fleet.service.wait(run.id, ME, timeout=60)
        made = await fleet.check(run.id)
        assert [(event.seq, event.data) for event in fleet.store.events(run.id)][: len(seen)] == seen
        assert max(made.values()) <= 2
        assert fleet.store.journal.get(run.id).pid != victim.pid


@pytest.mark.slow
async def test_a_paused_worker_loses_its_run_and_begins_no_call_when_it_wakes_up(tmp_path, postgres_url):
    async with fleet_of(tmp_path, postgres_url, pace=0.2) as fleet:
        run = await fleet.service.start(ME, "go")
        victim = await fleet.executing(run.id)
        victim.send_signal(signal.SIGSTOP)
        run = await fleet.service.wait(run.id, ME, timeout=60)
        before = await fleet.check(run.id)
        ledger = len(fleet.world.lines("ledger"))
        victim.send_signal(signal.SIGCONT)
        victim.send_signal(signal.SIGTERM)
        await wait_until(lambda: victim.poll() is not None)
        after = await fleet.check(run.id)
        late = after - before
        assert all(count == 1 for count in late.values())  # at most the calls that were in flight
        assert len(late) <= 3
        assert len(fleet.world.lines("ledger")) == ledger


@pytest.mark.slow
async def test_a_worker_that_gets_sigterm_suspends_its_runs_and_no_call_is_made_twice(tmp_path, postgres_url):
    async with fleet_of(tmp_path, postgres_url, lease=60) as fleet:  # none expires
        runs = [await fleet.service.start(ME, "go") for _ in range(8)]
        await fleet.executing(runs[-1].id)
        await fleet.end(fleet.workers[0], signal.SIGTERM)
        assert fleet.workers[0].returncode == 0, (tmp_path / "output").read_text()[-2000:]
        for run in runs:
            await fleet.service.wait(run.id, ME, timeout=60)
            made = await fleet.check(run.id)
            assert set(made.values()) == {1}
        assert sum(run.epoch > 1 for run in fleet.store.journal.runs(limit=100)) > 0


@pytest.mark.slow
async def test_three_workers_complete_thirty_runs_while_workers_are_killed(tmp_path, postgres_url):
    rng = random.Random(7)
    async with fleet_of(tmp_path, postgres_url, workers=3, pace=0.4) as fleet:
        runs = [await fleet.service.start(ME, "go") for _ in range(30)]
        await fleet.executing(runs[0].id)
        kills = 0
        while kills < 5 and (done := sum(fleet.store.get(run.id).is_over for run in runs)) < len(runs):
            ready = fleet.noted("workers")
            living = [worker for worker in fleet.workers if worker.poll() is None and worker.pid in ready]
            await fleet.end(rng.choice(living))
            kills += 1
            await fleet.add()
            await wait_until(lambda done=done: sum(fleet.store.get(run.id).is_over for run in runs) > done)
        made = Counter()
        for run in runs:
            await fleet.service.wait(run.id, ME, timeout=120)
            made += await fleet.check(run.id)
        repeated = sum(count - 1 for count in made.values())
        assert kills > 1
        assert repeated <= kills * 6 * 4  # the calls in flight: at most four for each of six runs of a killed worker
