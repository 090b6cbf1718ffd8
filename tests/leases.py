"""Leases in tests: those of processes that a test has killed."""

from hookline.stores.runs import RunStore


def expire_lease(path, pid):
    """Let the lease of an ended process expire at once. On SQLite there is none: a process that has ended is gone."""
    store = RunStore(path)
    if store.db.is_shared:
        with store.db.leases._db.transaction(write=True) as db:
            assert db.execute("DELETE FROM leases WHERE pid = ?", (pid,)).rowcount == 1
    store.close()
