"""Journals of other versions of Hookline."""

from __future__ import annotations

import msgspec

from hookline.stores import RunStore


def set_format(store: RunStore, format: int, digest: str = "") -> None:
    """Make the journals of a store look as if a version of Hookline with this format had begun them.

    ``digest`` is the digest of the agent of that version: it differs, because the format is a part of it.
    """
    with store.db.transaction(write=True) as db:
        for run_id, start in db.execute("SELECT run_id, start FROM durable_runs").fetchall():
            head = msgspec.json.decode(start)
            head["format"] = format
            if format == 1:  # that version did not store it
                del head["format"]
            values = msgspec.json.encode(head), digest, run_id
            db.execute("UPDATE durable_runs SET start = ?, digest = ? WHERE run_id = ?", values)
