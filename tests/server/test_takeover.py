"""A run whose process has ended is taken over within its lease and a polling interval.

The promise is about these times, and not about the speed of the machine. So the tests do not wait: they move the last
sign of a process into the past, in the database.
"""

import asyncio

import pytest

from hookline.errors import RunHeldError
from hookline.server import durable, postgres_queue
from hookline.server.postgres_queue import PostgresQueue
from hookline.stores.runs import DURABLE, NewRun, QueuedRun, RunRecord, RunStore, StoredEvent

LEASE = 3600.0


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    place = tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    store = RunStore(place, lease_seconds=LEASE)
    yield store
    store.close()


def test_a_run_is_free_when_its_lease_has_expired_and_not_before(store):
    record = RunRecord("run", "helper", "me", "s", "s", "", "", "http", "task", created=1.0, host=DURABLE, last_seq=1)
    store.accept([NewRun(record, StoredEvent("run", 1, "run_accepted", 1.0, b"{}"), b"{}")])
    claim = store.journal.claim("run", "", b"")

    def pass_by(seconds):
        with store.db.transaction(write=True) as db:
            db.execute("UPDATE durable_runs SET lease = lease - ?, changed = changed - ?", (seconds, seconds))

    pass_by(LEASE - 1)
    store.journal.renew("run", claim.epoch)  # the last sign of its process
    pass_by(LEASE - 600)
    assert store.to_execute(begun=True) == []
    with pytest.raises(RunHeldError):
        store.journal.claim("run", "", b"")
    pass_by(600)
    assert [run.run_id for run in store.to_execute(begun=True)] == ["run"]
    assert store.journal.claim("run", "", b"").epoch == claim.epoch + 1
    # Processes look for such runs, and for jobs of processes that have ended, each second.
    assert durable.CHECK_SECONDS == postgres_queue.CHECK_SECONDS == 1.0


async def test_the_job_of_a_process_that_has_ended_is_free_no_later_than_its_run(postgres_url):
    """Its last heartbeat may be up to a third of a lease later than the last renewal of its lease."""
    store = RunStore(postgres_url, lease_seconds=LEASE)
    queue, executing = PostgresQueue(store, 1), asyncio.Event()

    async def execute(run_id):
        executing.set()
        await asyncio.Event().wait()

    await queue.open(execute, [])
    try:
        await queue.put(QueuedRun("run_1", "s", "me"))
        await executing.wait()
        manager = queue._app.job_manager

        async def seen_since(seconds):
            """Make the last heartbeat of all processes this many seconds old, and look for their jobs."""
            queries = queue._app.connector
            await queries.execute_query_async(
                f"UPDATE procrastinate_workers SET last_heartbeat = now() - interval '{seconds} seconds'"
            )
            await queue._retry_stalled()
            return sorted(job.status for job in await manager.list_jobs_async())

        assert await seen_since(LEASE * 2 / 3 - 600) == ["doing"]
        assert await seen_since(LEASE - LEASE / 3) == ["todo"]
    finally:
        await queue.close()
        store.close()
