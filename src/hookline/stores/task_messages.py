"""Messages of callers to their runs as they were sent over A2A, stored in the file of the runs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .sql import Database

SCHEMA = (
    """CREATE TABLE task_messages (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, event_seq INTEGER NOT NULL,
        steered INTEGER NOT NULL, data BLOB NOT NULL
    )""",
    "CREATE INDEX task_messages_by_run ON task_messages (run_id, seq)",
)


class TaskMessage(msgspec.Struct, frozen=True):
    """A message to a run.

    ``event_seq`` is the number of the last event before it, 0 for the message that started the run. ``steered`` says
    whether the run got it as a message, and not as a decision about a call. ``data`` is JSON.
    """

    run_id: str
    event_seq: int
    steered: bool
    data: bytes


class TaskMessageStore:
    """Store the messages of tasks. All methods block, and raise ``StoreError`` if the database cannot be used.

    Args:
        db: the database of the runs.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, message: TaskMessage) -> None:
        """Store a message."""
        with self._db.transaction(write=True, lock=None) as db:
            db.execute(
                "INSERT INTO task_messages (run_id, event_seq, steered, data) VALUES (?,?,?,?)",
                (message.run_id, message.event_seq, int(message.steered), message.data),
            )

    def for_runs(self, run_ids: Iterable[str]) -> dict[str, list[TaskMessage]]:
        """Return the messages of runs by run, in the order in which they came."""
        found: dict[str, list[TaskMessage]] = {id: [] for id in run_ids}
        if found:
            query = f"""SELECT run_id, event_seq, steered, data FROM task_messages
                WHERE run_id IN ({",".join("?" * len(found))}) ORDER BY seq"""
            with self._db.transaction() as db:
                for run_id, event_seq, steered, data in db.execute(query, tuple(found)):
                    found[run_id].append(TaskMessage(run_id, event_seq, bool(steered), bytes(data)))
        return found
