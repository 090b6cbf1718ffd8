"""Fill a run store with runs that have ended, on SQLite or PostgreSQL.

python bench/stored_runs.py runs.db --runs 1000000
python bench/stored_runs.py 'postgresql://postgres@/postgres' --runs 200000

Rows are those that a worker writes for a durable run with one tool: a run has seven events, five facts and a journal.
One run in 20 failed, one in ten has a blocked call, one in 5,000 called a rare tool, two have a rare word, and three
have a refusal with a rare verb. One owner and one agent have half of the runs each, none of which failed. The first
runs are made here. The database makes the others, as copies of them at a later time. As in a store that has grown, rows
are in the order of time, and the ids of runs are not.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "src"))

from hookline.stores.facts import FactWriter, Gate, ObservedRun, RunFact
from hookline.stores.runs import RunRecord, RunStore, StoredEvent
from hookline.stores.sql import Connection, Database

MADE = 5_000
"""Runs that are made here."""
DAYS = 60
"""The runs began within these last days."""
OWNERS, AGENTS = 1_000, 20
RARE_TOOL, RARE_VERB, RARE_WORD = "rare_tool", "claim", "needle"
WORDS = [f"word{n}" for n in range(20_000)]
EVENTS = (
    "run_accepted",
    "run_started",
    "model_replied",
    "tool_started",
    "tool_finished",
    "model_replied",
    "run_closed",
)
STEPS = 5
"""Rows of a run in the journal."""
TABLES = ("runs", "events", "facts", "durable_runs", "journal", "run_texts")
SUMMED = ("count", "seconds", "input_tokens", "output_tokens", "cached_tokens", "cost", "unpriced", "fatal")
USUAL = {RARE_TOOL: "shell", RARE_VERB: "block", RARE_WORD: "the archive"}
COPIES = 20
"""Copies of the first runs that a transaction makes."""


def run_id(copy: int, number: int) -> str:
    """Return the id of a run. Those of runs that follow each other in time are far apart."""
    return f"run_{number * 0x9E3779B1 & 0xFFFFFFFF:08x}{number:08x}{copy:04x}0000"


def made(numbers: range, hours: float, tool: str, verb: str, word: str) -> Iterator[tuple[RunRecord, Any, Any]]:
    """Yield runs with their events and facts, which began in the first hours."""
    chance, first = random.Random(1), time.time() // 3600 * 3600 - 3600 * (24 * DAYS)
    for place, number in enumerate(numbers):
        id, at = run_id(0, number), first + 3600 * hours * place / len(numbers)
        owner = "key_0" if number % 2 == 0 else f"key_{chance.randrange(1, OWNERS)}"
        agent = "agent_0" if number % 4 < 2 else f"agent_{chance.randrange(1, AGENTS)}"
        status = "failed" if number % 20 == 3 else "cancelled" if number % 33 == 0 else "completed"
        words = " ".join(chance.choices(WORDS, k=12))
        record = RunRecord(
            *(id, agent, owner, "talk", f"served-{id}", id, id, "api", f"Look at part {number} of {word}: {words}."),
            status=status,
            reply=f"Nothing was found there. {words}",
            steps=2,
            tool_calls=1,
            input_tokens=1_000,
            output_tokens=100,
            cost=0.01,
            created=at,
            started=at + 0.1,
            ended=at + 3,
            elapsed=2.9,
            last_seq=7,
            host="durable",
            observed=True,
            origin="server",
        )
        data = b'{"type":"%s","run_id":"%s","seq":%d,"text":"%s"}'
        events = [
            StoredEvent(id, seq, kind, at + seq / 3, data % (kind.encode(), id.encode(), seq, words.encode()))
            for seq, kind in enumerate(EVENTS, 1)
        ]
        about = ObservedRun(id, agent, "", id, agent, owner, "rules")
        yield record, events, list(_facts(about, at, tool, verb if number % 10 == 0 or verb == RARE_VERB else ""))


def _facts(run: ObservedRun, at: float, tool: str, verb: str) -> Iterator[RunFact]:
    for step in (1, 2):
        tokens: dict[str, Any] = {"input_tokens": 500, "output_tokens": 50, "cost": 0.005, "duration": 1.0}
        yield RunFact(run, at + step, "model", model="gpt-5-mini", source="model", outcome="stop", **tokens)
    yield RunFact(run, at + 1.5, "tool", tool=tool, call_id="call_1", outcome="ok", duration=0.1)
    if verb:
        gates = (Gate("no_deleting", "guard", verb, 5, "rule 3", True),)
        where: dict[str, Any] = {"point": "before_tool", "call_id": "call_1", "tool": tool, "reason": "rule 3"}
        decided: dict[str, Any] = {"hook": "no_deleting", "phase": "guard", "verb": verb, "refused": True}
        yield RunFact(run, at + 1.2, "fire", **where, **decided, gates=gates)
    yield RunFact(run, at, "run", outcome="completed", duration=2.9)


def fill(place: str, count: int) -> float:
    """Add runs to the store at a path or an address. Return the seconds that it took."""
    began, store, base = time.perf_counter(), RunStore(place), min(count, MADE)
    if not store.db.is_shared:
        store.db.execute("PRAGMA synchronous = OFF")
        store.db.execute("PRAGMA cache_size = -500000")
    copies, others = count // base, base * 10
    hours = max(1, 24 * DAYS // copies)
    _write(store, made(range(base), hours, "shell", "block", "the archive"))
    with _without_indexes(store.db), _copied(store.db):
        for first in range(1, copies, COPIES):
            _copy(store.db, hours, range(first, min(first + COPIES, copies)))
    rare = {RARE_TOOL: max(1, count // 5_000), RARE_VERB: 3, RARE_WORD: 2}
    for number, (what, wanted) in enumerate(rare.items(), 1):
        tool, verb, word = (what if what == each else usual for each, usual in USUAL.items())
        _write(store, made(range(others * number, others * number + wanted), 24 * DAYS - 1, tool, verb, word))
    _sum_days(store.db)
    if store.db.is_shared:
        with store.db.transaction(write=True) as db:
            db.execute("SET LOCAL statement_timeout = 0")
            db.execute("ANALYZE")
    store.close()
    return time.perf_counter() - began


@contextmanager
def _without_indexes(database: Database) -> Iterator[None]:
    """Drop indexes and triggers inside the block, and create them at its end: that is faster than to maintain them."""
    tables = ", ".join(f"'{each}'" for each in TABLES)
    if database.is_shared:
        query = f"""SELECT 'ALTER TABLE ' || conrelid::regclass || ' DROP CONSTRAINT ' || conname,
            'ALTER TABLE ' || conrelid::regclass || ' ADD CONSTRAINT ' || conname || ' ' || pg_get_constraintdef(oid)
            FROM pg_constraint WHERE conrelid::regclass::text IN ({tables})
            UNION ALL SELECT 'DROP INDEX ' || indexname, indexdef FROM pg_indexes
            WHERE schemaname = current_schema() AND tablename IN ({tables})
            AND indexname NOT IN (SELECT conname FROM pg_constraint)"""
    else:
        query = f"""SELECT 'DROP ' || type || ' ' || name, sql FROM sqlite_master
            WHERE type IN ('index', 'trigger') AND sql IS NOT NULL AND tbl_name IN ({tables})"""
    with database.transaction(write=True) as db:
        dropped = db.execute(query).fetchall()
        for drop, _ in dropped:
            db.execute(drop)
    yield
    for _, create in dropped:
        with database.transaction(write=True) as db:
            if database.is_shared:
                db.execute("SET LOCAL maintenance_work_mem = '1GB'")
                db.execute("SET LOCAL statement_timeout = 0")
            db.execute(create)
    if not database.is_shared:
        database.execute("INSERT INTO run_words (run_words) VALUES ('rebuild')", write=True)


def _write(store: RunStore, runs: Iterator[tuple[RunRecord, Any, Any]]) -> None:
    """Store runs as a server does, with a journal."""
    records, events, facts = [], [], []
    for record, own_events, own_facts in runs:
        records.append(record)
        events += own_events
        facts += own_facts
    store.write(records, events, facts)
    with store.db.transaction(write=True) as db:
        db.executemany(
            "INSERT INTO durable_runs VALUES (?, ?, ?, 1, 0, 'host', 1, NULL, 1, ?, ?, ?, ?, 'digest')",
            [(run.id, run.agent, run.status, run.created, run.ended, b"{}", b"null") for run in records],
        )
        rows = [(run.id, seq, run.task.encode()) for run in records for seq in range(STEPS)]
        db.executemany("INSERT INTO journal VALUES (?, ?, ?)", rows)


@contextmanager
def _copied(database: Database) -> Iterator[None]:
    """Keep what is stored now in tables of their own inside the block."""
    for _ in FactWriter(database).roll_up():
        pass
    with database.transaction(write=True) as db:
        for table in (*TABLES, "rollups"):
            only = "WHERE length = 3600" if table == "rollups" else ""
            db.execute(f"CREATE TABLE copied_{table} AS SELECT * FROM {table} {only}")
    yield
    with database.transaction(write=True) as db:
        for table in (*TABLES, "rollups"):
            db.execute(f"DROP TABLE copied_{table}")


def _copy(database: Database, hours: int, copies: range) -> None:
    """Copy the first runs with everything that is stored about them, under other ids and later."""
    numbers = f"VALUES ({copies.start}) UNION ALL SELECT n + 1 FROM copies WHERE n + 1 < {copies.stop}"
    number, seconds = "lpad(to_hex(n), 4, '0')" if database.is_shared else "printf('%04x', n)", hours * 3600
    with database.transaction(write=True) as db:
        if database.is_shared:
            db.execute("SET LOCAL statement_timeout = 0")
        for table in (*TABLES, "rollups"):
            columns = [each for each in _columns(db, table) if (table, each) != ("facts", "id")]
            values = [
                f"substr({each}, 1, 20) || {number} || substr({each}, 25)"
                if each in ("run_id", "root_run_id")
                else f"{each} + n * {seconds}"
                if each in ("created", "started", "ended", "at", "changed", "began", "last")
                else f"id + n * {seconds * 1024_000_000}"
                if (table, each) == ("run_texts", "id")
                else "''"
                if each == "process"
                else each
                for each in columns
            ]
            db.execute(
                f"""WITH RECURSIVE copies (n) AS ({numbers}) INSERT INTO {table} ({", ".join(columns)})
                SELECT {", ".join(values)} FROM copies CROSS JOIN copied_{table} ORDER BY n"""
            )


def _sum_days(database: Database) -> None:
    """Sum up the hours of each day, as the store does."""
    with database.transaction(write=True) as db:
        if database.is_shared:
            db.execute("SET LOCAL statement_timeout = 0")
        columns = _columns(db, "rollups")
        values = [
            "86400"
            if each == "length"
            else "began / 86400 * 86400"
            if each == "began"
            else "''"
            if each == "process"
            else f"sum({each})"
            if each in SUMMED
            else "max(last)"
            if each == "last"
            else each
            for each in columns
        ]
        db.execute("DELETE FROM rollups WHERE length != 3600")
        keys = ", ".join(str(n) for n, each in enumerate(columns, 1) if each not in (*SUMMED, "last"))
        db.execute(f"INSERT INTO rollups SELECT {', '.join(values)} FROM rollups GROUP BY {keys}")


def _columns(db: Connection, table: str) -> Sequence[str]:
    cursor: Any = db.execute(f"SELECT * FROM {table} LIMIT 0")
    return [column[0] for column in cursor.description]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", help="path of the SQLite file, or address of the PostgreSQL database")
    parser.add_argument("--runs", type=int, default=1_000_000)
    options = parser.parse_args()
    print(f"{options.runs:,} runs in {fill(options.place, options.runs):.0f} s")
