"""Facts: what happened in runs, one row for each fire with hooks, model call, tool call, approval, error and run.

Everything that people ask about runs is answered from these rows, or from sums of them: statistics, lists of what was
prevented, figures of hooks. ``refused`` is computed by the dispatcher and never derived again. Facts have names,
numbers and times, and the redacted beginning of reasons: no texts, arguments or results.

Facts are deleted with their run. Their sums by day (``rollups``) stay, except those with reasons. A view of a month
reads sums only, so it takes as long with a million runs as with ten. Sums of all callers have rows of their own, so
that a view of everybody does not depend on the number of callers.

A transaction with facts does not change these rows, because there are many of them: for each key, those of three
lengths of time, of its caller and of everyone. It adds one row to ``new_sums``, and each ``ROLL_AFTER``-th transaction
moves what is there into ``rollups``. Readers add the rows that have not been moved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from .._base.frozen import plain, scrub
from .._kernel.points import ON_TOKEN
from .sql import Connection, Database, PerDialect, Statement, insert, like_pattern, storable, storable_value

REASON = 200
"""Maximum number of characters of a reason."""
NAME = 200
"""Maximum number of characters of a name or an id."""
MINUTES, HOUR, DAY = 300, 3600, 86400
LENGTHS = (MINUTES, HOUR, DAY)
"""The lengths of the time slots of sums, in seconds."""
HOURS_KEPT = 40 * DAY
"""Seconds after which sums of an hour are deleted: those of its day stay."""
_KEPT = {MINUTES: 2 * HOUR, HOUR: HOURS_KEPT}
"""Seconds after which sums are deleted, by the length of their slots."""
ROLL_AFTER = 64
"""Number of transactions after which new sums are added to those of their time slots."""
_LARGEST = 2**63 - 1
DENIED = "denied"
"""The verb of a person who denied a call."""

_TABLE = """CREATE TABLE facts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL,
    kind TEXT NOT NULL, parent_run_id TEXT NOT NULL, root_run_id TEXT NOT NULL,
    agent TEXT NOT NULL, asked TEXT NOT NULL, owner TEXT NOT NULL, point TEXT NOT NULL, call_id TEXT NOT NULL,
    tool TEXT NOT NULL, model TEXT NOT NULL, hook TEXT NOT NULL, phase TEXT NOT NULL, verb TEXT NOT NULL,
    refused INTEGER NOT NULL, reason TEXT NOT NULL, outcome TEXT NOT NULL, source TEXT NOT NULL, place TEXT NOT NULL,
    fatal INTEGER NOT NULL, hop INTEGER NOT NULL, attempt INTEGER NOT NULL, purpose TEXT NOT NULL,
    provider TEXT NOT NULL, organization_id TEXT NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, cost REAL, duration REAL, rules TEXT NOT NULL,
    gates TEXT NOT NULL
)"""
SCHEMA: tuple[Statement, ...] = (
    _TABLE,
    "CREATE INDEX facts_by_run ON facts (run_id, at, id)",
    "CREATE INDEX facts_by_root ON facts (root_run_id, at, id)",
    "CREATE INDEX facts_by_time ON facts (at)",
    "CREATE INDEX refused_facts ON facts (at, id) WHERE refused = 1",
    "CREATE INDEX facts_by_model ON facts (model, root_run_id, run_id) WHERE kind = 'model'",
    """CREATE TABLE rollups (
        length INTEGER NOT NULL, everyone INTEGER NOT NULL, owner TEXT NOT NULL, began INTEGER NOT NULL,
        agent TEXT NOT NULL, asked TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, point TEXT NOT NULL,
        verb TEXT NOT NULL, tool TEXT NOT NULL, reason TEXT NOT NULL, took INTEGER NOT NULL, count INTEGER NOT NULL,
        seconds REAL NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL, cost REAL NOT NULL, unpriced INTEGER NOT NULL, fatal INTEGER NOT NULL,
        last REAL NOT NULL, process TEXT NOT NULL,
        PRIMARY KEY (length, everyone, owner, began, agent, asked, kind, name, point, verb, tool, reason, took, process)
    ) WITHOUT ROWID""",
)

FILTERED: tuple[Statement, ...] = (
    "ALTER TABLE facts ADD COLUMN several INTEGER NOT NULL DEFAULT 0",
    "UPDATE facts SET several = 1 WHERE verb != '' AND gates LIKE '%],[%'",
    "CREATE INDEX facts_with_several ON facts (root_run_id) WHERE several = 1",
    "CREATE INDEX facts_by_tool ON facts (tool, root_run_id) WHERE tool != ''",
    "CREATE INDEX facts_by_verb ON facts (verb, root_run_id, kind) WHERE verb != ''",
    "CREATE INDEX facts_by_hook ON facts (hook, root_run_id, verb, kind) WHERE hook != ''",
    "CREATE INDEX shadow_facts ON facts (hook, root_run_id) WHERE kind = 'shadow'",
    "CREATE INDEX refused_with_several ON facts (at, id) WHERE refused = 1 AND several = 1",
    *(
        f"CREATE INDEX refused_by_{name} ON facts ({name}, at, id) WHERE refused = 1"
        for name in ("owner", "asked", "tool", "hook", "verb")
    ),
    "CREATE INDEX refusal_rollups ON rollups (began) WHERE kind = 'refusal'",
    PerDialect("", "CREATE INDEX unmerged_rollups ON rollups (began) WHERE process != ''"),
)
"""Indexes for the filters of lists, and for sums to delete. ``several`` says that more than one hook did something."""
NEW_SUMS: tuple[Statement, ...] = (
    "CREATE TABLE new_sums (id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL)",
    PerDialect("", "DROP INDEX unmerged_rollups"),
)
"""The sums of transactions that are not in ``rollups`` yet, as JSON: a row of keys and numbers for each key."""


class Gate(NamedTuple):
    """A call of a hook in a fire: its duration in microseconds, and its result.

    The verb ``cont`` let everything pass, and ``failed`` raised an error. ``refused`` says whether it prevented
    something.
    """

    hook: str
    phase: str
    verb: str = "cont"
    microseconds: int = 0
    reason: str = ""
    refused: bool = False

    def with_reason(self, reason: str) -> Gate:
        """Return the same call with another reason."""
        return self._replace(reason=reason)


class ObservedRun(msgspec.Struct, frozen=True, gc=False):
    """The run that facts are about.

    ``root_run_id`` is the outermost run, ``asked`` its agent, and ``owner`` the caller who started it; empty without a
    server. ``rules`` is the digest of the rules in force.
    """

    run_id: str
    agent: str = ""
    parent_run_id: str = ""
    root_run_id: str = ""
    asked: str = ""
    owner: str = ""
    rules: str = ""


class RunFact(msgspec.Struct, frozen=True, gc=False):
    """Something that happened in a run.

    The kinds: ``fire`` is a fire of a point with hooks, and ``model`` a model call; both have ``gates``, the calls
    of hooks, and the verb, hook and reason of the call that decided. ``tool`` is an attempt of a tool call,
    ``approval`` a decision about one, ``shadow`` a decision of a hook in shadow mode, which has no effect,
    ``error`` a failure, and ``run`` a run that ended; its ``at`` is when it began, its ``call_id`` the tool call
    that started it, and its ``reason`` the message of its stop signal. ``gap`` says that ``seq`` records could not be
    stored, and why; it belongs to no run.
    ``outcome`` is the finish reason of a model call, the outcome of a tool call, the decision, the type of an
    error, or the status of a run. ``source`` is what answered in place of a model (``model`` if it did), who
    decided, or what failed.
    """

    run: ObservedRun
    at: float
    kind: str
    seq: int = 0
    point: str = ""
    call_id: str = ""
    tool: str = ""
    model: str = ""
    hook: str = ""
    phase: str = ""
    verb: str = ""
    refused: bool = False
    reason: str = ""
    outcome: str = ""
    source: str = ""
    place: str = ""
    fatal: bool = False
    hop: int = 0
    attempt: int = 0
    purpose: str = ""
    provider: str = ""
    organization_id: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    duration: float | None = None
    gates: tuple[Gate, ...] = ()

    @property
    def decisions(self) -> list[Gate]:
        """The calls of hooks that did something. Facts of earlier versions have the one that decided."""
        if self.kind == "fire" and not self.gates:
            took = int((self.duration or 0.0) * 1e6)
            return [Gate(self.hook, self.phase, self.verb, took, self.reason, self.refused)]
        return [gate for gate in self.gates if gate.verb != "cont" or gate.reason]


def deciding_gate(gates: Sequence[Gate]) -> Gate | None:
    """Return the call that decided a fire: the first that prevented something, or else the last that did something."""
    found = None
    for gate in gates:
        if gate.refused:
            return gate
        if gate.verb != "cont" or gate.reason:
            found = gate
    return found


# Sums.


KEY = ("agent", "asked", "kind", "name", "point", "verb", "tool", "reason", "took")
"""What facts are counted by, besides the caller and the time.

``kind`` is that of the facts, ``hook`` for calls of hooks, or ``refusal``. ``name`` is the model, tool, hook, or the
source of an error. ``verb`` is a verb, outcome, decision, status, or the type of an error, whose ``point`` is its
place. ``took`` is the class of a duration.
"""


class Sums(msgspec.Struct):
    """The sums of facts with one key. ``last`` is the Unix time of the last of them."""

    count: int = 0
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    fatal: int = 0
    last: float = 0.0

    def add(self, other: Sums) -> None:
        """Add other sums."""
        self.count += other.count
        self.seconds += other.seconds
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.cost += other.cost
        self.unpriced += other.unpriced
        self.fatal += other.fatal
        self.last = max(self.last, other.last)


UNKNOWN = -1
"""The class of a duration that was not measured."""
_PER_OCTAVE = 4
_MAX_CLASS = 4 * 32


def class_of(seconds: float | None) -> int:
    """Return the class of a duration, four of them between a value and its double."""
    if seconds is None:
        return UNKNOWN
    if not seconds > 1e-6:
        return 0
    return min(math.floor(math.log2(min(seconds, 1e12) * 1e6) * _PER_OCTAVE), _MAX_CLASS)


_CLASS_OF = [class_of(n / 1e6) for n in range(1024)]
"""The classes of short durations, by microseconds."""


def _class_of_microseconds(duration: int) -> int:
    return _CLASS_OF[duration] if duration < len(_CLASS_OF) else class_of(duration / 1e6)


def percentile(classes: dict[int, int], percent: int) -> float | None:
    """Return the middle of the class in which the percentile is, with an error of at most 10 %."""
    known = sorted((each, count) for each, count in classes.items() if each != UNKNOWN)
    wanted, seen = -(-sum(count for _, count in known) * percent // 100), 0
    for each, count in known:
        seen += count
        if seen >= wanted:
            return float(2 ** ((each + 0.5) / _PER_OCTAVE) / 1e6)
    return None


class Tally(dict[tuple[Any, ...], Sums]):
    """Sums of facts by caller, the beginning of a slot of five minutes, and ``KEY``."""

    def count(self, fact: RunFact) -> None:
        """Count a fact."""
        run, kind, at = fact.run, fact.kind, fact.at
        whose = run.owner, int(at // MINUTES) * MINUTES, run.agent, run.asked
        if fact.gates:
            for gate in fact.gates:
                took = gate.microseconds
                self._count_call(whose, fact, gate.hook, gate.verb, took / 1e6, _class_of_microseconds(took))
                if gate.refused:
                    self._count_refusal(whose, fact, gate.hook, gate.verb, gate.reason)
        elif kind == "fire":  # recorded by an earlier version
            self._count_call(whose, fact, fact.hook, fact.verb, fact.duration or 0.0, class_of(fact.duration))
            if fact.refused:
                self._count_refusal(whose, fact, fact.hook, fact.verb, fact.reason)
        if kind != "fire" and (kind != "model" or fact.source == "model"):
            self._count_end(whose, fact)

    def _count_end(self, whose: tuple[Any, ...], fact: RunFact) -> None:
        kind, duration, at = fact.kind, fact.duration, fact.at
        seconds = duration or 0.0
        if kind == "shadow":
            self._note((*whose, kind, fact.hook, fact.point, fact.verb, "", "", UNKNOWN), at, seconds)
        elif kind == "model":
            sums = self._note((*whose, kind, fact.model, "", "", "", "", class_of(duration)), at, seconds)
            sums.input_tokens += fact.input_tokens
            sums.output_tokens += fact.output_tokens
            sums.cached_tokens += fact.cached_tokens
            if fact.cost is None:
                sums.unpriced += 1
            elif math.isfinite(fact.cost):
                sums.cost += fact.cost
        elif kind == "tool":
            took = class_of(duration) if duration else UNKNOWN
            self._note((*whose, kind, fact.tool, "", fact.outcome, "", "", took), at, seconds)
        elif kind == "approval":
            self._note((*whose, kind, fact.tool, "", fact.outcome, "", "", class_of(duration)), at, seconds)
            if fact.refused:
                self._count_refusal(whose, fact, fact.source, fact.verb, "")
        elif kind == "error":
            sums = self._note((*whose, kind, fact.source, fact.place, fact.outcome, "", "", UNKNOWN), at, seconds)
            sums.fatal += fact.fatal
        else:
            outcome, count = (fact.outcome, 1) if kind == "run" else ("", fact.seq if kind == "gap" else 1)
            ended = at + seconds
            self._note((*whose, kind, "", "", outcome, "", "", class_of(duration)), ended, seconds, count)

    def _count_call(
        self, whose: tuple[Any, ...], fact: RunFact, hook: str, verb: str, seconds: float, took: int
    ) -> None:
        self._note((*whose, "hook", hook, fact.point, verb, "", "", took), fact.at, seconds)

    def _count_refusal(self, whose: tuple[Any, ...], fact: RunFact, hook: str, verb: str, reason: str) -> None:
        reason = "" if verb == "failed" else reason  # errors differ in details, and would be counted one by one
        self._note((*whose, "refusal", hook, fact.point, verb, fact.tool, reason, UNKNOWN), fact.at)

    def _note(self, key: tuple[Any, ...], at: float, seconds: float = 0.0, count: int = 1) -> Sums:
        """Count something at a Unix time, and return its sums."""
        sums = self.get(key)
        if sums is None:
            sums = self[key] = Sums(last=at)
        sums.count += count
        sums.seconds += seconds
        sums.last = max(sums.last, at)
        return sums

    def add(self, key: tuple[Any, ...], sums: Sums) -> None:
        """Add sums to those of a key."""
        known = self.get(key)
        if known is None:
            self[key] = sums
        else:
            known.add(sums)


# Writing.

_COLUMNS = (
    *("run_id", "seq", "at", "kind", "parent_run_id", "root_run_id", "agent", "asked", "owner"),
    *RunFact.__struct_fields__[4:-1],
    *("rules", "gates"),
)
_WRITTEN = (*_COLUMNS, "several")
_KEYS = ("length", "everyone", "owner", "began", *KEY)
_NUMBERS = Sums.__struct_fields__[:-1]
_ADDED = ", ".join(f"{name} = rollups.{name} + excluded.{name}" for name in _NUMBERS)
_LAST = "last = CASE WHEN excluded.last > rollups.last THEN excluded.last ELSE rollups.last END"
_ON_CONFLICT = f"ON CONFLICT ({', '.join(_KEYS)}, process) DO UPDATE SET {_ADDED}, {_LAST}"
_SUM_COLUMNS = (*_KEYS, *Sums.__struct_fields__, "process")
_OWNERS = """WITH RECURSIVE owners (owner) AS (
    SELECT min(owner) FROM rollups WHERE length = :length AND everyone = 0
    UNION ALL SELECT (SELECT min(r.owner) FROM rollups r
        WHERE r.length = :length AND r.everyone = 0 AND r.owner > owners.owner) FROM owners WHERE owner IS NOT NULL
) SELECT owner FROM owners WHERE owner IS NOT NULL"""
"""The callers with sums of a length. Each one takes one look at the index, however many sums it has."""
_OWNERS_AT_ONCE = 200
_encode = msgspec.json.Encoder().encode
_decode_sums = msgspec.json.Decoder(list[list[Any]]).decode


class FactWriter:
    """Writes facts and their sums: the only code that does. Reasons are redacted before they are stored.

    Args:
        db: the database.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._redact: Any = None

    def write(self, db: Connection, facts: Iterable[RunFact]) -> None:
        """Store facts and their sums inside a transaction.

        The fires of a run at which every hook let everything pass share one row of kind ``fires``, because they are
        most of the facts. Fires that only observers heard, and pieces of text that hooks let pass or changed, are
        counted and not stored.
        """
        rows, tally, silent = list[tuple[Any, ...]](), Tally(), dict[int, list[RunFact]]()
        for fact in facts:
            clean = self._redacted(fact) if fact.hook or fact.reason else fact
            tally.count(clean)
            if fact.kind != "fire" or not fact.gates or (fact.hook and (fact.point != ON_TOKEN or _is_decision(clean))):
                rows.append(_row(clean))
            elif not fact.hook and fact.point != ON_TOKEN and _has_gates(fact):
                silent.setdefault(id(fact.run), []).append(fact)
        rows += map(_silent_row, silent.values())
        insert(db, "facts", _WRITTEN, rows)
        if tally:
            added = db.execute("INSERT INTO new_sums (data) VALUES (?) RETURNING id", (_packed_sums(tally),))
            if added.fetchone()[0] % ROLL_AFTER == 0:
                self._roll_up(db)

    def _roll_up(self, db: Connection) -> int:
        """Add new sums to those of their time slots, inside a transaction. Return the number of rows of new sums."""
        # On PostgreSQL, the rows that another process is moving are left to it.
        which = f"SELECT id FROM new_sums ORDER BY id LIMIT ?{' FOR UPDATE SKIP LOCKED' if self._db.is_shared else ''}"
        moved = db.execute(f"DELETE FROM new_sums WHERE id IN ({which}) RETURNING data", (4 * ROLL_AFTER,)).fetchall()
        add_sums(db, _unpacked_sums(moved))
        return len(moved)

    def roll_up(self) -> Iterator[int]:
        """Add all new sums to those of their time slots. Yield 0 after each transaction."""
        moved = 1
        while moved:
            with self._db.transaction(write=True, lock=None) as db:
                moved = self._roll_up(db)
            yield 0

    def tidy(self) -> Iterator[int]:
        """Roll up new sums, and delete short slots that are old. Yield 0 after each transaction."""
        yield from self.roll_up()
        now = time.time()
        for length, kept in _KEPT.items():
            with self._db.transaction() as db:
                owners = [owner for (owner,) in db.execute(_OWNERS, {"length": length}).fetchall()]
            parts = (owners[first : first + _OWNERS_AT_ONCE] for first in range(0, len(owners), _OWNERS_AT_ONCE))
            for everyone, names in ((1, [""]), *((0, part) for part in parts)):
                marks = ",".join("?" * len(names))
                statement = f"""DELETE FROM rollups
                    WHERE length = ? AND everyone = ? AND owner IN ({marks}) AND began < ?"""
                with self._db.transaction(write=True, lock="rollups") as db:
                    db.execute(statement, (length, everyone, *names, int(now - kept)))
                yield 0

    def _redacted(self, fact: RunFact) -> RunFact:
        """Return a fact whose reasons are redacted and shortened."""
        gates = tuple(gate._replace(reason=self._clean(gate.reason)) if gate.reason else gate for gate in fact.gates)
        return msgspec.structs.replace(fact, reason=self._clean(fact.reason), gates=gates)

    def _clean(self, reason: str) -> str:
        if not reason:
            return ""
        if self._redact is None:
            from ..records.redaction import Redaction

            self._redact = Redaction(max_text=REASON)
        found = self._redact.look_up(reason)
        return (reason if found is None else str(found[0]))[:REASON]


def add_sums(db: Connection, tally: Tally) -> None:
    """Add sums to those of their time slots, inside a transaction."""
    added: dict[tuple[Any, ...], Sums] = {}
    for (owner, minutes, *texts), sums in tally.items():
        key = tuple(map(storable_value, texts))
        whose = ((1, ""), (0, storable_value(owner))) if owner else ((1, ""),)
        for length in LENGTHS:
            began = minutes // length * length
            for everyone, name in whose:
                slot = (length, everyone, name, began, *key)
                known = added.get(slot)
                if known is None:
                    added[slot] = msgspec.structs.replace(sums)
                else:
                    known.add(sums)
    # Rows are sorted, so that processes that add to the same ones never wait for each other in a circle.
    rows = [(*slot, *msgspec.structs.astuple(added[slot]), "") for slot in sorted(added)]
    insert(db, "rollups", _SUM_COLUMNS, rows, _ON_CONFLICT)


def _packed_sums(tally: Tally) -> bytes:
    rows = [(*key, *msgspec.structs.astuple(sums)) for key, sums in tally.items()]
    try:
        return _encode(rows)
    except (UnicodeEncodeError, OverflowError):
        return _encode([[storable_value(value) for value in row] for row in rows])


def _unpacked_sums(rows: Iterable[tuple[bytes]]) -> Tally:
    tally = Tally()
    for (data,) in rows:
        for owner, began, *values in _decode_sums(data):
            key = owner, began, *values[: len(KEY)]
            tally.add(key, Sums(*[value or 0 for value in values[len(KEY) :]]))  # JSON has no infinite numbers
    return tally


def _is_decision(fact: RunFact) -> bool:
    """Whether a hook did more with a piece of text than changing it, as a hook that holds text back does."""
    return any(gate.verb not in ("cont", "replace") or gate.reason for gate in fact.gates)


def _has_gates(fact: RunFact) -> bool:
    return any(gate.phase != "observe" for gate in fact.gates)


def _row(fact: RunFact) -> tuple[Any, ...]:
    gates = "" if not fact.gates else _json([_packed(gate) for gate in fact.gates])
    several = len(fact.gates) > 1 and len(fact.decisions) > 1
    return (*_of_run(fact, fact.kind), *msgspec.structs.astuple(fact)[4:-1], fact.run.rules, gates, int(several))


def _silent_row(facts: list[RunFact]) -> tuple[Any, ...]:
    first = facts[0]
    packed = [
        (fact.seq, fact.at, fact.point, fact.call_id, fact.tool, fact.duration, [_packed(gate) for gate in fact.gates])
        for fact in facts
    ]
    return (*_of_run(first, "fires"), *_NOTHING, first.run.rules, _json(packed), 0)


def _of_run(fact: RunFact, kind: str) -> tuple[Any, ...]:
    run = fact.run
    about = run.run_id, fact.seq, fact.at, kind, run.parent_run_id, run.root_run_id or run.run_id
    return (*about, run.agent, run.asked, run.owner)


_NOTHING = msgspec.structs.astuple(RunFact(ObservedRun(""), 0.0, "fires"))[4:-1]


def _packed(gate: Gate) -> tuple[Any, ...]:
    return gate if gate.refused else gate[:5] if gate.reason else gate[:4]


def _json(value: Any) -> str:
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:
        return _encode(scrub(plain(value))).decode()


def delete_reasons(database: Database, before: float) -> Iterator[int]:
    """Delete the sums of refusals of days that ended before a Unix time: they have the reasons of hooks.

    Yields 0 after each transaction, which deletes those of one day.
    """
    yield from FactWriter(database).roll_up()
    ((first,),) = database.execute("SELECT min(began) FROM rollups WHERE kind = 'refusal'")
    for day in range(int(before) if first is None else first, int(before), DAY):
        with database.transaction(write=True, lock="rollups") as db:
            statement = "DELETE FROM rollups WHERE kind = 'refusal' AND began < ? AND began + length <= ?"
            db.execute(statement, (day + DAY, int(before)))
        yield 0


# Reading.

_SELECTED = ", ".join((*(f"coalesce(sum({name}), 0)" for name in _NUMBERS), "coalesce(max(last), 0.0)"))
_gates = msgspec.json.Decoder(list[Any])
_FLAGS = ("refused", "fatal")


def facts_of(db: Connection, condition: str, values: Any) -> list[RunFact]:
    """Return the facts that meet a condition, in order."""
    found = [fact for _, fact in read_facts(db, f"{condition} ORDER BY at, id", values)]
    return sorted(found, key=lambda fact: fact.at)


def within(db: Connection, run_id: str) -> tuple[str, list[str]]:
    """Return the condition for the facts of a run and the runs nested in it, and its values.

    A run includes its nested runs, in every list and sum; a nested run can be named by itself.
    """
    if db.execute("SELECT 1 FROM facts WHERE root_run_id = ? LIMIT 1", (run_id,)).fetchone() is not None:
        return "root_run_id = ?", [run_id]
    query = """SELECT DISTINCT run_id, parent_run_id FROM facts
        WHERE root_run_id IN (SELECT root_run_id FROM facts WHERE run_id = ?)"""
    edges = db.execute(query, (run_id,)).fetchall()
    found = {run_id: None}
    while more := [id for id, parent in edges if parent in found and id not in found]:
        found.update(dict.fromkeys(more))
    return f"run_id IN ({','.join('?' * len(found))})", list(found)


def read_facts(db: Connection, condition: str, values: Any) -> Iterator[tuple[int, RunFact]]:
    """Yield the facts that meet a condition, each with the number of its row, in the order that the condition gives."""
    query = f"SELECT id, {', '.join(_COLUMNS)} FROM facts WHERE {condition}"
    runs: dict[tuple[str, ...], ObservedRun] = {}
    for id, run_id, seq, at, kind, parent, root, agent, asked, owner, *rest, rules, gates in db.execute(query, values):
        about = run_id, agent, parent, root, asked, owner, rules
        run = runs.get(about)
        if run is None:
            run = runs[about] = ObservedRun(*about)
        if kind == "fires":
            for number, when, point, call_id, tool, duration, calls in _gates.decode(gates):
                passed = tuple([Gate(*gate) for gate in calls])
                fire = RunFact(
                    run, when, "fire", number, point, call_id, tool, verb="cont", duration=duration, gates=passed
                )
                yield id, fire
            continue
        known = dict(zip(RunFact.__struct_fields__[4:-1], rest, strict=True))
        known.update({name: bool(known[name]) for name in _FLAGS})
        calls = tuple([Gate(*gate) for gate in _gates.decode(gates)]) if gates else ()
        yield id, RunFact(run, at, kind, seq, **known, gates=calls)


_PHASES = ("rewrite", "guard", "observe")


def decided_by(hook: str = "", verb: str = "") -> list[tuple[str, list[str]]]:
    """Return conditions, of which one is met if a hook decided something in a fact ``f``, each with its values.

    A fact has columns for the hook that decided it. If several did something, the others are among its gates.

    Args:
        hook: only decisions of this hook, or denials by this person.
        verb: only this verb; ``DENIED`` is that of a person, and ``shadow`` any verb of a hook in shadow mode.
    """
    if verb == "shadow":
        names = [hook, f"shadow({hook})"]
        return [("f.kind = 'shadow' AND f.hook IN (?, ?)", names) if hook else ("f.kind = 'shadow'", [])]
    # Indexes contain only rows whose hook or verb is not empty, and a database must see that these are wanted.
    given = {"f.hook != '' AND f.hook = ?": hook, "f.verb = ?": verb}
    columns = {condition: value for condition, value in given.items() if value}
    decided = " AND ".join(("f.kind != 'shadow' AND f.verb != ''", *columns))
    phases, values = list[str](), list[str]()
    for phase in _PHASES:
        gate = f'{"[" + _json(hook) if hook else ""},"{phase}",'
        phases.append("f.gates LIKE ? ESCAPE '\\'")
        values.append(like_pattern(f"{gate}{_json(verb)}," if verb else gate))
        if not verb:
            phases[-1] += " AND f.gates NOT LIKE ? ESCAPE '\\'"
            values.append(like_pattern(f'{gate}"cont",'))
    among_others = f"f.several = 1 AND f.kind != 'shadow' AND (({') OR ('.join(phases)}))"
    found = [(decided, list(columns.values())), (among_others, values)]
    if hook and verb in ("", DENIED):
        found.append((f"f.verb != '' AND f.verb = '{DENIED}' AND f.kind = 'approval' AND f.source = ?", [hook]))
    return found


def first_full_hour(since: float) -> float:
    """Return the beginning of the first hour at or after a Unix time; of its day, if hours are deleted by now."""
    if since < time.time() - HOURS_KEPT + DAY:
        return since // DAY * DAY
    return -(-since // HOUR) * HOUR


class SumFilter(msgspec.Struct, frozen=True):
    """Which sums are wanted.

    Args:
        owner: only those of this caller; ``None`` for everyone's.
        by_caller: with ``owner=None``, the sums of each caller, and not those of runs without one.
        agent: only those of this agent.
        asked: only those of runs of this agent and their subagents.
        kinds: only those of these kinds.
    """

    owner: str | None = None
    by_caller: bool = False
    agent: str | None = None
    asked: str | None = None
    kinds: tuple[str, ...] = ()

    @property
    def _is_of_everyone(self) -> bool:
        return self.owner is None and not self.by_caller

    @property
    def condition(self) -> str:
        """The condition for rows of sums. Its values have the names of the attributes."""
        owner = "" if self.owner is None else " AND owner = :owner"
        conditions = ["everyone = 1 AND owner = ''" if self._is_of_everyone else f"everyone = 0{owner}"]
        conditions += [f"{name} = :{name}" for name in ("agent", "asked") if getattr(self, name) is not None]
        if self.kinds:
            conditions.append("kind IN ({})".format(", ".join(f"'{kind}'" for kind in self.kinds)))
        return " AND ".join(conditions)

    @property
    def values(self) -> dict[str, str]:
        """The values of the condition."""
        return {name: storable(getattr(self, name) or "") for name in ("owner", "agent", "asked")}

    def rows(self, tally: Tally, length: int) -> Iterator[tuple[dict[str, Any], Sums]]:
        """Yield the columns of the sums that meet the condition, as rows of slots with a length have them."""
        owner, agent, asked = (
            None if each is None else storable(each) for each in (self.owner, self.agent, self.asked)
        )
        for (whose, minutes, *key), sums in tally.items():
            columns: dict[str, Any] = dict(zip(KEY, key, strict=True))
            if (
                (self._is_of_everyone or (whose == owner if owner is not None else whose))
                and agent in (None, columns["agent"])
                and asked in (None, columns["asked"])
                and (not self.kinds or columns["kind"] in self.kinds)
            ):
                columns["owner"] = "" if self._is_of_everyone else whose
                columns["began"] = minutes // length * length
                yield columns, sums


def read_sums(
    db: Connection, chosen: SumFilter, columns: Sequence[str], since: float | None, *, hourly: bool = False
) -> dict[tuple[Any, ...], Sums]:
    """Return sums of the time slots from :func:`first_full_hour` on; of all if ``since`` is ``None``.

    Args:
        db: the connection.
        chosen: which sums.
        columns: what to group by.
        since: a Unix time.
        hourly: read hours only, which are deleted after ``HOURS_KEPT`` seconds.

    Returns:
        The sums by the values of the columns.
    """
    first = 0.0 if since is None else first_full_hour(since)
    next_day = math.inf if hourly else -(-first // DAY) * DAY
    # Two queries: with OR, SQLite would look up each row twice.
    return _grouped_sums(db, chosen, columns, ((HOUR, first, next_day), (DAY, next_day, math.inf)))


def slot_sums(
    db: Connection, chosen: SumFilter, columns: Sequence[str], length: int, since: float
) -> dict[tuple[Any, ...], Sums]:
    """Return the sums of the time slots with a length, from a Unix time on. See :func:`read_sums`."""
    return _grouped_sums(db, chosen, columns, ((length, since, math.inf),))


def _grouped_sums(
    db: Connection, chosen: SumFilter, columns: Sequence[str], slots: Iterable[tuple[int, float, float]]
) -> dict[tuple[Any, ...], Sums]:
    """Return the sums of slots, each given as a length, the first beginning, and an end."""
    names = ", ".join(columns)
    query = f"""SELECT {names}, {_SELECTED} FROM rollups
        WHERE length = :length AND {chosen.condition} AND began >= :first AND began < :end GROUP BY {names}"""
    found = dict[tuple[Any, ...], Sums]()

    def add(key: tuple[Any, ...], sums: Sums) -> None:
        known = found.get(key)
        if known is None:
            found[key] = msgspec.structs.replace(sums)
        else:
            known.add(sums)

    new = _unpacked_sums(db.execute("SELECT data FROM new_sums").fetchall())
    for length, first, end in slots:
        if first >= end:
            continue
        # Whole numbers: PostgreSQL would not look up others.
        values = {**chosen.values, "length": length, "first": int(first), "end": int(min(end, _LARGEST))}
        for row in db.execute(query, values):
            add(tuple(row[: len(columns)]), _sums_of(row[len(columns) :]))
        for each, sums in chosen.rows(new, length):
            if first <= each["began"] < end:
                add(tuple(each[name] for name in columns), sums)
    return found


def _sums_of(row: Iterable[Any]) -> Sums:
    count, seconds, read, written, cached, cost, unpriced, fatal, last = row
    tokens = int(read), int(written), int(cached)
    return Sums(int(count), float(seconds), *tokens, float(cost), int(unpriced), int(fatal), last)


# Files of earlier versions.

_CLASSES = (
    "CREATE TABLE duration_classes (low REAL PRIMARY KEY, class INTEGER NOT NULL)",
    f"""INSERT INTO duration_classes WITH RECURSIVE each (low, class) AS (
        SELECT CAST(0.000001 AS REAL), 0 UNION ALL
        SELECT low * {2 ** (1 / _PER_OCTAVE)!r}, class + 1 FROM each WHERE class < {_MAX_CLASS}
    ) SELECT low, class FROM each""",
)
_ROOTS = (
    """CREATE TABLE run_roots (
        run_id TEXT PRIMARY KEY, root_run_id TEXT NOT NULL, owner TEXT NOT NULL, asked TEXT NOT NULL
    )""",
    """INSERT INTO run_roots WITH RECURSIVE tree (run_id, root_run_id, owner, asked) AS (
        SELECT run_id, run_id, owner, agent FROM runs WHERE parent_run_id = ''
            OR parent_run_id NOT IN (SELECT run_id FROM runs)
        UNION ALL SELECT inner_run.run_id, tree.root_run_id, tree.owner, tree.asked FROM runs AS inner_run
            JOIN tree ON inner_run.parent_run_id = tree.run_id WHERE inner_run.parent_run_id != ''
    ) SELECT run_id, root_run_id, owner, asked FROM tree""",
)
_DEFAULTS = {
    **dict.fromkeys(("seq", "refused", "fatal", "hop", "attempt"), "0"),
    **dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens"), "0"),
    **dict.fromkeys(("cost", "duration"), "CAST(NULL AS REAL)"),
}


def _moved(table: str, kind: str, order: str = "old.at", **columns: str) -> str:
    """Return the statement that moves the rows of a table of an earlier version."""
    where = {
        "run_id": "old.run_id",
        "at": "coalesce(old.at, 0.0)",
        "kind": f"'{kind}'",
        "parent_run_id": "coalesce(r.parent_run_id, '')",
        "root_run_id": "coalesce(t.root_run_id, old.run_id)",
        "agent": "coalesce(r.agent, '')",
        "asked": "coalesce(t.asked, '')",
        "owner": "coalesce(t.owner, '')",
    }
    values = {name: _DEFAULTS.get(name, "''") for name in _COLUMNS} | where | columns
    return f"""INSERT INTO facts ({", ".join(values)}) SELECT {", ".join(values.values())} FROM {table} AS old
        LEFT JOIN runs AS r ON r.run_id = old.run_id LEFT JOIN run_roots AS t ON t.run_id = old.run_id
        WHERE old.run_id IS NOT NULL ORDER BY {order}"""


def _text(name: str) -> str:
    return f"coalesce(old.{name}, '')"


def _number(name: str) -> str:
    return f"coalesce(old.{name}, 0)"


_TOOL = (
    "coalesce((SELECT min(c.tool) FROM tool_calls AS c WHERE c.run_id = old.run_id AND c.call_id = old.call_id), '')"
)
_UNOBSERVED = "SELECT run_id FROM runs WHERE observed = 0"
_MOVED = (
    _moved(
        "model_calls",
        "model",
        point="'after_llm'",
        model=_text("model"),
        verb=_text("verdict"),
        outcome=_text("finish_reason"),
        source=_text("source"),
        hop=_number("hop"),
        attempt=_number("attempt"),
        purpose=_text("purpose"),
        provider=_text("provider"),
        organization_id=_text("organization_id"),
        input_tokens=_number("input_tokens"),
        output_tokens=_number("output_tokens"),
        cached_tokens=_number("cached_tokens"),
        cost="old.cost",
        duration="old.duration",
    ),
    _moved(
        "tool_calls",
        "tool",
        call_id=_text("call_id"),
        tool=_text("tool"),
        outcome=_text("outcome"),
        attempt=_number("attempt"),
        duration="old.duration",
    ),
    "CREATE INDEX calls_of_tools ON tool_calls (run_id, call_id)",
    _moved(
        "verdicts",
        "fire",
        order="old.rowid",
        point=_text("point"),
        call_id=_text("call_id"),
        tool=f"CASE WHEN {_text('call_id')} = '' THEN '' ELSE {_TOOL} END",
        hook=_text("hook"),
        phase=_text("phase"),
        verb=_text("verb"),
        refused=_number("refused"),
        reason=_text("reason"),
        duration="old.duration",
    ),
    _moved(
        "approvals",
        "approval",
        point="'approval_requested'",
        call_id=_text("call_id"),
        tool=_text("tool"),
        verb="CASE WHEN old.decision = 'denied' THEN 'denied' ELSE '' END",
        refused="CASE WHEN old.decision = 'denied' THEN 1 ELSE 0 END",
        outcome=_text("decision"),
        source=_text("decided_by"),
        duration="old.waited",
    ),
    *(
        _moved(
            f"(SELECT * FROM events WHERE verb != '' AND {verb} AND run_id IN ({_UNOBSERVED}))",
            kind,
            order="old.run_id, old.seq",
            point="CASE WHEN old.tool = '' THEN '' ELSE 'before_tool' END",
            tool="old.tool",
            hook="old.hook",
            verb="old.verb",
            refused="old.refused",
            outcome=f"'{outcome}'",
        )
        for verb, kind, outcome in (
            ("verb NOT IN ('denied', 'shadow')", "fire", ""),
            ("verb = 'denied'", "approval", "denied"),
        )
    ),
    _moved(
        "errors",
        "error",
        call_id=_text("call_id"),
        outcome=_text("type"),
        source=_text("source"),
        place=_text("place"),
        fatal=_number("fatal"),
    ),
    _moved(
        "(SELECT *, created AS at FROM runs WHERE observed = 1 AND elapsed IS NOT NULL)",
        "run",
        outcome="old.status",
        duration="old.elapsed",
    ),
)


def _summed(kind: str, facts: str, timed: str = "duration", **columns: str) -> Iterator[PerDialect]:
    """Yield the statements that add the facts of earlier versions to the sums."""
    took = f"coalesce((SELECT class FROM duration_classes WHERE low <= {timed} ORDER BY low DESC LIMIT 1), 0)"
    values = dict.fromkeys((*KEY, *_NUMBERS, "process"), "''") | dict.fromkeys(_NUMBERS, "0")
    values |= {"agent": "agent", "asked": "asked", "kind": f"'{kind}'", "count": "count(*)", "last": "max(at)"}
    values |= {"took": f"CASE WHEN {timed} IS NULL THEN -1 ELSE {took} END" if timed else "-1", **columns}
    keys = ", ".join(f"{4 + number}" for number in range(1 + len(KEY)))
    for length in (HOUR, DAY):
        for everyone in (1, 0):
            owner = ("''", "") if everyone else ("owner", "AND owner != ''")
            statement = f"""INSERT INTO rollups ({", ".join(("length", "everyone", "owner", "began", *values))})
                SELECT {length}, {everyone}, {owner[0]}, CAST({{began}} AS INTEGER) * {length},
                {", ".join(values.values())} FROM facts
                WHERE {facts} {owner[1]} GROUP BY {keys if everyone else f"3, {keys}"}"""
            yield PerDialect(
                statement.format(began=f"at / {length}"),
                statement.format(began=f"floor(at / {length})").replace("AS INTEGER", "AS BIGINT"),
            )


_SECONDS = "coalesce(sum(duration), 0.0)"
_SUMMED = (
    *_summed(
        "model",
        "kind = 'model' AND source = 'model'",
        name="model",
        seconds=_SECONDS,
        input_tokens="sum(input_tokens)",
        output_tokens="sum(output_tokens)",
        cached_tokens="sum(cached_tokens)",
        cost="coalesce(sum(cost), 0.0)",
        unpriced="count(*) - count(cost)",
    ),
    *_summed("tool", "kind = 'tool'", "nullif(duration, 0)", name="tool", verb="outcome", seconds=_SECONDS),
    *_summed("hook", "kind = 'fire'", name="hook", point="point", verb="verb", seconds=_SECONDS),
    *_summed(
        "refusal",
        "refused = 1",
        "",
        name="CASE WHEN kind = 'approval' THEN source ELSE hook END",
        point="point",
        verb="verb",
        tool="tool",
        reason="reason",
    ),
    *_summed("approval", "kind = 'approval'", name="tool", verb="outcome", seconds=_SECONDS),
    *_summed("error", "kind = 'error'", "", name="source", point="place", verb="outcome", fatal="sum(fatal)"),
    *_summed("run", "kind = 'run'", verb="outcome", seconds=_SECONDS, last="max(at + coalesce(duration, 0.0))"),
)
UPGRADE: tuple[Statement, ...] = (
    *SCHEMA,
    *_CLASSES,
    *_ROOTS,
    *_MOVED,
    *_SUMMED,
    *(f"DROP TABLE {name}" for name in ("model_calls", "tool_calls", "verdicts", "approvals", "errors")),
    *("DROP TABLE duration_classes", "DROP TABLE run_roots"),
    *(f"DROP TABLE IF EXISTS {name}" for name in ("hook_figures", "model_figures", "run_models")),
    *(f"DROP INDEX {name}" for name in ("events_by_tool", "events_by_verdict", "refusals")),
    *(f"ALTER TABLE events DROP COLUMN {name}" for name in ("tool", "hook", "verb", "refused")),
)
"""The statements that move what earlier versions recorded into these tables."""
