"""TicketBoard: changes are atomic and recorded, and only one of two competitors gets a ticket."""

import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline.stores import StoreError, TicketBoard, TicketError, tickets
from hookline.stores.tickets import COLUMNS, ticket_number
from tests.environment import with_source
from tests.properties import examples

ENV = with_source()


@pytest.fixture
def board(tmp_path):
    made = TicketBoard(tmp_path / "board.db")
    yield made
    made.close()


@pytest.fixture
def advance(monkeypatch):
    """Advance the clock of the board."""
    clock = SimpleNamespace(ahead=0.0)
    real = tickets.time.time
    monkeypatch.setattr(tickets, "time", SimpleNamespace(time=lambda: real() + clock.ahead))
    return lambda seconds: setattr(clock, "ahead", clock.ahead + seconds)


def changes_of(board, id):
    return [entry.what for entry in board.history(id)]


def check_history(board, id):
    """Check that the history has no gaps, and that each step starts where the last one ended."""
    ticket, entries = board.get(id), board.history(id)
    assert [entry.seq for entry in entries] == list(range(1, ticket.changes + 1))
    assert [entry.from_column for entry in entries] == ["", *(entry.to_column for entry in entries[:-1])]
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    assert ticket.column == entries[-1].to_column


def completed(board, id, by):
    return board.accept(id, board.hold(id, "did it", by=by), by=by)


# Life cycle of a ticket.


def test_the_pulse_differs_after_every_change_and_when_a_hold_expires(board, advance):
    seen = [board.pulse()]
    made = board.create("Write it", by="ada")
    seen.append(board.pulse())
    board.comment(made.id, "soon", by="ada")
    seen.append(board.pulse())
    board.start(made.id, by="bob")
    seen.append(board.pulse())
    board.hold(made.id, "did it", by="bob")
    seen.append(board.pulse())
    assert board.pulse() == seen[-1]
    advance(board.hold_seconds + 1)
    seen.append(board.pulse())
    assert all(a != b for a, b in zip(seen, seen[1:], strict=False))


def test_a_ticket_goes_from_todo_to_done_with_a_complete_history(board):
    made = board.create(
        "Write  the\nguide", by="person:ann", criteria=["it runs", " "], description="a\nb", run_id="r1"
    )
    assert (made.id, made.title, made.column, made.tier) == ("T-1", "Write the guide", "todo", "auto")
    assert (made.criteria, made.description, made.assignee, made.created_by) == (("it runs",), "a\nb", "", "person:ann")
    assert board.start("T-1", by="bob", run_id="r2").assignee == "bob"
    hold = board.hold("T-1", "wrote it", by="bob")
    assert (board.get("T-1").column, board.get("T-1").summary) == ("verifying", "wrote it")
    assert board.reject("T-1", hold, "it does not run", by="hook:judge").reason == "it does not run"
    board.comment("T-1", "I see", by="bob")
    assert board.start("T-1", by="bob").column == "running"
    done = completed(board, "T-1", "bob")
    assert (done.column, done.reason, done.assignee) == ("done", "", "bob")
    told = [(e.by, e.what, e.from_column, e.to_column, e.text) for e in board.history("T-1")]
    assert told == [
        ("person:ann", "created", "", "todo", ""),
        ("bob", "started", "todo", "running", ""),
        ("bob", "completing", "running", "verifying", "wrote it"),
        ("hook:judge", "rejected", "verifying", "needs_revision", "it does not run"),
        ("bob", "commented", "needs_revision", "needs_revision", "I see"),
        ("bob", "started", "needs_revision", "running", ""),
        ("bob", "completing", "running", "verifying", "did it"),
        ("bob", "accepted", "verifying", "done", ""),
    ]
    assert [e.run_id for e in board.history("T-1")][:2] == ["r1", "r2"]
    check_history(board, "T-1")


def test_a_ticket_in_review_is_done_when_someone_else_accepts_it(board):
    board.create("x", by="ann", tier="review")
    board.start("T-1", by="person:bob")
    assert completed(board, "T-1", "person:bob").column == "review"
    with pytest.raises(TicketError, match="person:bob did the work on T-1: someone else must accept it"):
        board.move("T-1", "done", by="person:bob")
    assert board.move("T-1", "done", by="person:ann").column == "done"


def test_a_released_ticket_has_no_assignee(board):
    board.create("x", by="ann", assignee="bob")
    with pytest.raises(TicketError, match="T-1 is assigned to bob"):
        board.start("T-1", by="eve")
    with pytest.raises(TicketError, match="only its assignee can release it"):
        board.release("T-1", by="eve")
    board.start("T-1", by="bob")
    assert board.release("T-1", "no time", by="bob").assignee == ""
    assert board.history("T-1")[-1].assignee == "bob"
    assert board.start("T-1", by="eve").assignee == "eve"


def test_move_reaches_every_column_and_requires_reasons(board):
    board.create("x", by="ann")
    for column, options, problem in (
        ("verifying", {}, "'verifying' is not a column to move to"),
        ("nowhere", {}, "'nowhere' is not a column to move to: give one of todo, running"),
        ("running", {}, "T-1 has no assignee: name one to run it"),
        ("needs_revision", {}, "T-1 needs a reason for the revision"),
        ("todo", {}, "T-1 is already todo: created by ann"),
        ("done", {"expected": "running"}, "T-1 is todo, not running: created by ann"),
    ):
        with pytest.raises(TicketError, match=problem):
            board.move("T-1", column, by="person:ann", **options)
    assert changes_of(board, "T-1") == ["created"]
    assert board.move("T-1", "todo", by="person:ann", assignee="bob").assignee == "bob"
    assert board.move("T-1", "running", by="person:ann", expected="todo").assignee == "bob"
    assert board.move("T-1", "needs_revision", by="person:ann", reason="not good").reason == "not good"
    assert board.move("T-1", "done", by="person:ann").reason == ""
    assert board.move("T-1", "todo", by="person:ann", reason="once more").assignee == ""
    assert board.move("T-1", "cancelled", by="person:ann").column == "cancelled"
    check_history(board, "T-1")


def test_a_ticket_that_is_not_running_cannot_be_completed_and_the_error_says_why(board):
    board.create("x", by="ann")
    with pytest.raises(TicketError, match="T-1 is not started: start it first"):
        board.hold("T-1", "s", by="bob")
    board.start("T-1", by="bob", run_id="r1")
    with pytest.raises(TicketError, match="T-1 is assigned to bob: only the assignee can complete it"):
        board.hold("T-1", "s", by="eve")
    with pytest.raises(TicketError, match="the summary is empty"):
        board.hold("T-1", " ", by="bob")
    with pytest.raises(TicketError, match="T-1 is already yours: continue with it"):
        board.start("T-1", by="bob", run_id="r1")
    with pytest.raises(TicketError, match="started by bob .* ago: if that was you, continue with it"):
        board.start("T-1", by="bob", run_id="r2")
    with pytest.raises(TicketError, match="T-1 is running, started by bob .* ago: choose another ticket"):
        board.start("T-1", by="eve")
    completed(board, "T-1", "bob")
    with pytest.raises(TicketError, match="T-1 is done, accepted by bob"):
        board.hold("T-1", "s", by="bob")
    assert changes_of(board, "T-1").count("accepted") == 1


# Competition for a ticket.


def test_only_one_of_many_threads_starts_a_ticket(board):
    board.create("x", by="ann")
    got, told, ready = [], [], threading.Barrier(8)

    def take(name):
        ready.wait()
        try:
            got.append(board.start("T-1", by=name).assignee)
        except TicketError as error:
            told.append(str(error))

    threads = [threading.Thread(target=take, args=(f"w{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    assert len(told) == 7
    assert all(f"started by {got[0]}" in text for text in told)
    assert changes_of(board, "T-1") == ["created", "started"]


WORKER = """
import json, sys
from hookline.stores import TicketBoard, TicketError
path, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
board, won, told = TicketBoard(path), [], []
print("ready", flush=True)
sys.stdin.readline()
for n in range(1, number + 1):
    try:
        board.start(f"T-{n}", by=name, run_id=sys.argv[4])
    except TicketError as error:
        told.append(str(error))
    try:
        hold = board.hold(f"T-{n}", "did it", by=name)
        board.accept(f"T-{n}", hold, by=name)
        won.append(n)
    except TicketError as error:
        told.append(str(error))
print(json.dumps([won, told]))
"""


@pytest.mark.parametrize("names", [("ann", "bob"), ("worker", "worker")])
def test_two_processes_share_a_board_and_do_no_ticket_twice(tmp_path, names):
    path, number = tmp_path / "board.db", 15
    board = TicketBoard(path)
    for n in range(number):
        board.create(f"job {n}", by="ann")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([sys.executable, "-c", WORKER, path, name, str(number), f"r{n}"], env=ENV, **pipes)
        for n, name in enumerate(names)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [json.loads(process.communicate()[0]) for process in processes]
    assert sorted(said[0][0] + said[1][0]) == list(range(1, number + 1))
    for n in range(1, number + 1):
        assert changes_of(board, f"T-{n}") == ["created", "started", "completing", "accepted"]
        check_history(board, f"T-{n}")
    assert all("ann" in text or "bob" in text or "worker" in text for _, told in said for text in told)


# Holds.


def test_a_held_ticket_cannot_be_changed_by_others(board):
    board.create("x", by="ann")
    board.start("T-1", by="bob")
    hold = board.hold("T-1", "s", by="bob")
    for attempt in (
        lambda: board.hold("T-1", "s", by="bob"),
        lambda: board.start("T-1", by="bob"),
    ):
        with pytest.raises(TicketError, match="T-1 is being judged, completing by bob"):
            attempt()
    board.comment("T-1", "hurry", by="ann")
    for attempt in (lambda: board.accept("T-1", "other", by="bob"), lambda: board.reject("T-1", "other", "", by="bob")):
        with pytest.raises(TicketError, match="T-1 is verifying now, so nothing was changed"):
            attempt()
    assert not board.release_hold("T-1", "other", "", by="bob")
    assert board.accept("T-1", hold, by="bob").column == "done"
    check_history(board, "T-1")


def test_a_ticket_is_running_again_when_its_hold_expires(board, advance):
    board.create("x", by="ann")
    board.start("T-1", by="bob")
    lost = board.hold("T-1", "s", by="bob")
    advance(599)
    assert board.get("T-1").column == "verifying"
    advance(2)
    assert board.get("T-1").column == "running"
    assert [row.id for row in board.list(["running"])] == ["T-1"]
    assert board.list(["verifying"]) == []
    assert (board.counts()["running"], board.counts()["verifying"], board.count(["running"])) == (1, 0, 1)
    again = board.hold("T-1", "again", by="bob")
    assert changes_of(board, "T-1") == ["created", "started", "completing", "not judged", "completing"]
    with pytest.raises(TicketError, match="nothing was changed: completing by bob"):
        board.accept("T-1", lost, by="bob")
    assert board.accept("T-1", again, by="bob").column == "done"
    check_history(board, "T-1")


def test_a_late_verdict_counts_if_the_ticket_is_unchanged(board, advance):
    board.create("x", by="ann")
    board.start("T-1", by="bob")
    hold = board.hold("T-1", "s", by="bob")
    advance(1000)
    assert board.accept("T-1", hold, by="bob").column == "done"
    check_history(board, "T-1")


def test_a_person_may_move_a_held_ticket_and_the_verdict_is_refused(board):
    board.create("x", by="ann")
    board.start("T-1", by="bob")
    hold = board.hold("T-1", "s", by="bob")
    board.move("T-1", "cancelled", by="person:ann")
    with pytest.raises(TicketError, match="T-1 is cancelled now, so nothing was changed: moved by person:ann"):
        board.accept("T-1", hold, by="bob")
    assert not board.release_hold("T-1", hold, "", by="bob")
    assert board.get("T-1").column == "cancelled"


def test_times_in_the_history_never_decrease(board, advance):
    board.create("x", by="ann")
    advance(-5000)
    board.start("T-1", by="bob")
    check_history(board, "T-1")


# Consistency.

_NAMES = st.sampled_from(["ann", "bob", "eve"])
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "hold", "accept", "reject", "release_hold", "release", "comment", "move", "wait"]),
        _NAMES,
        st.sampled_from(["T-1", "T-2"]),
        st.sampled_from([name for name in COLUMNS if name != "verifying"]),
    ),
    max_size=30,
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_STEPS)
def test_any_sequence_of_changes_keeps_the_board_consistent(steps):
    board = TicketBoard(":memory:", hold_seconds=100)
    ahead, holds = [0.0], {"T-1": "none", "T-2": "none"}
    real = tickets.time
    tickets.time = SimpleNamespace(time=lambda: 1e9 + ahead[0])
    try:
        board.create("a", by="ann")
        board.create("b", by="ann", tier="review")
        for verb, who, id, column in steps:
            before = board.get(id), board.history(id)
            try:
                if verb == "wait":
                    ahead[0] += 60
                    continue
                if verb == "hold":
                    holds[id] = board.hold(id, "s", by=who)
                elif verb in ("accept", "reject", "release_hold"):
                    more = () if verb == "accept" else ("why",)
                    getattr(board, verb)(id, holds[id], *more, by=who)
                elif verb == "move":
                    board.move(id, column, by=who, reason="why")
                else:
                    getattr(board, verb)(id, *(["text"] if verb == "comment" else []), by=who)
            except TicketError:
                entries = board.history(id)
                assert [e for e in entries if e.what != "not judged"] == [
                    e for e in before[1] if e.what != "not judged"
                ]
        ahead[0] += 1000
        for id in ("T-1", "T-2"):
            with pytest.raises(TicketError):
                board.move(id, "verifying", by="ann")
            board.comment(id, "look", by="ann")  # ends an expired hold
            check_history(board, id)
            entries = board.history(id)
            for before, entry in zip(entries, entries[1:], strict=False):
                if entry.what in ("accepted", "rejected", "completed"):
                    assert before.to_column == "verifying"
                if entry.to_column == "running" and entry.what == "started":
                    assert before.to_column in ("todo", "needs_revision")
        assert sum(board.counts().values()) == 2
    finally:
        tickets.time = real
        board.close()


def test_a_change_without_a_history_entry_is_rolled_back(board):
    board.create("x", by="ann")
    if board._db.is_shared:
        refuse = "ALTER TABLE history ADD CONSTRAINT no_room CHECK (false) NOT VALID"
        accept = "ALTER TABLE history DROP CONSTRAINT no_room"
    else:
        refuse = "CREATE TRIGGER full BEFORE INSERT ON history BEGIN SELECT RAISE(ABORT, 'no_room'); END"
        accept = "DROP TRIGGER full"
    with board._db.transaction(write=True) as db:
        db.execute(refuse)
    with pytest.raises(StoreError, match="no_room"):
        board.start("T-1", by="bob")
    with pytest.raises(StoreError, match="no_room"):
        board.create("y", by="bob")
    with board._db.transaction(write=True) as db:
        db.execute(accept)
    assert (board.get("T-1").column, board.count()) == ("todo", 1)
    check_history(board, "T-1")


def test_the_success_ratio_counts_judged_completions(board):
    assert board.success_ratio("bob") is None
    for n in range(4):
        board.create("x", by="ann")
        board.start(f"T-{n + 1}", by="bob")
    board.reject("T-1", board.hold("T-1", "s", by="bob"), "no", by="j")
    board.release_hold("T-2", board.hold("T-2", "s", by="bob"), "the judge broke", by="j")
    assert board.success_ratio("bob") == 0.0
    completed(board, "T-1", "bob")
    completed(board, "T-2", "bob")
    board.comment("T-2", "fine", by="ann")
    assert board.success_ratio("bob") == pytest.approx(2 / 3)
    assert board.success_ratio("ann") is None


# Input of people and models.


@pytest.mark.parametrize("id", ["T-1", "t-1", " #1 ", "1", 1, "T-001"])
def test_an_id_may_be_written_in_several_ways(board, id):
    board.create("x", by="ann")
    assert board.get(id).id == "T-1"


@pytest.mark.parametrize(
    "id", ["", "T-", "T-0", "x", "T-1; DROP TABLE tickets", True, None, 1.0, "1" * 40, "T--1", "١"]
)
def test_an_invalid_id_is_an_error(board, id):
    with pytest.raises(TicketError, match="is not a ticket id: ids look like T-1"):
        board.get(id)


def test_an_unknown_ticket_is_an_error(board):
    with pytest.raises(TicketError, match=r"^there is no ticket T-7$"):
        board.start("T-7", by="bob")


def test_texts_are_limited_and_cleaned(board):
    made = board.create(
        "a\ud800\0\x1b[2J\u202eb", by="a\nb", description="x\r\ny\tz\x85\x00", criteria=["\ud83d", "\x07"]
    )
    assert (made.title, made.created_by, made.description) == ("a?[2J\u202eb", "a b", "x\ny\tz")
    assert made.criteria == ("?",)
    board.start("T-1", by="bob")
    huge = "x" * 1_000_000
    for attempt in (
        lambda: board.create(huge, by="ann"),
        lambda: board.create("x", by=huge),
        lambda: board.create("x", by="ann", description=huge),
        lambda: board.create("x", by="ann", criteria=[huge]),
        lambda: board.create("x", by="ann", assignee="x" * 101),
        lambda: board.hold("T-1", huge, by="bob"),
        lambda: board.comment("T-1", huge, by="bob"),
        lambda: board.release("T-1", huge, by="bob"),
        lambda: board.move("T-1", "done", by="ann", reason=huge),
    ):
        with pytest.raises(TicketError, match="characters: shorten it to at most"):
            attempt()
    assert changes_of(board, "T-1") == ["created", "started"]
    hold = board.hold("T-1", "s", by="bob")
    rejected = board.reject("T-1", hold, huge + "\ud800", by="j")  # a long reason is cut, not refused
    assert len(rejected.reason) == 20_000
    with pytest.raises(TicketError, match="nothing|no ticket|Did you mean"):
        board.list(["dne"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"title": " \n"}, "the title is empty"),
        ({"title": 3}, "the title must be text, not int"),
        ({"by": ""}, "is empty: give a name"),
        ({"criteria": "one"}, "a list of texts"),
        ({"criteria": [3]}, "the criterion must be text"),
        ({"criteria": ["x"] * 21}, "21 criteria are too many"),
        ({"tier": "full"}, "'full' is not a tier: give one of auto, review, ask"),
    ],
)
def test_an_invalid_ticket_is_not_created(board, options, problem):
    given = {"title": "x", "by": "ann", **options}
    with pytest.raises(TicketError, match=problem):
        board.create(given.pop("title"), **given)
    assert board.count() == 0


# Listing tickets.


def test_tickets_are_listed_by_column_assignee_and_words_in_pages(board):
    board.create("Öl kaufen", by="ann", description="Beim Händler")
    board.create("buy milk 100%", by="ann", assignee="bob")
    board.create("sell milk", by="ann")
    board.start("T-2", by="bob")

    def ids(*args, **options):
        assert board.count(*args, **{k: v for k, v in options.items() if k in ("assignee", "text")}) >= 0
        return [row.id for row in board.list(*args, **options)]

    assert ids() == ["T-1", "T-2", "T-3"]
    assert ids(newest=True, limit=2) == ["T-3", "T-2"]
    assert ids(limit=1, offset=1) == ["T-2"]
    assert ids(["todo"]) == ["T-1", "T-3"]
    assert ids("todo") == ["T-1", "T-3"]
    assert ids(assignee="bob") == ids(text="BOB") == ["T-2"]
    assert ids(assignee="") == ["T-1", "T-3"]
    assert ids(text="MILK") == ["T-2", "T-3"]
    assert ids(text="milk sell") == ["T-3"]
    assert ids(text="öl HÄNDLER") == ["T-1"]
    assert ids(text="100%") == ["T-2"]
    assert ids(text="t-3") == ["T-3"]
    assert ids(text="'; --\ud800") == []
    assert board.count(["todo"], text="milk") == 1


@pytest.mark.sqlite  # PostgreSQL reads small tables without their indexes
@pytest.mark.parametrize(
    "rows", ["tickets WHERE number = 5", "history WHERE ticket = 5", "history WHERE assignee = 'a'"]
)
def test_tickets_and_their_history_are_found_by_an_index(board, rows):
    board.count()
    with board._db.transaction() as db:
        plan = db.execute(f"EXPLAIN QUERY PLAN SELECT * FROM {rows}").fetchone()[3]
    assert plan.startswith("SEARCH")


@pytest.mark.slow
def test_ten_thousand_tickets_can_be_listed_in_pages_and_counted(board):
    board.count()
    with board._db.transaction(write=True) as db:
        db.execute(
            """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
            INSERT INTO tickets (title, description, criteria, "column", tier, assignee, created_by, created, changed,
            summary, reason, changes) SELECT 'job ' || i, 'some words', '[]',
            CASE i % 4 WHEN 0 THEN 'todo' ELSE 'done' END, 'auto', 'w' || (i % 7), 'ann', 0, 0, '', '', 0
            FROM n ORDER BY i"""
        )
    assert [row.id for row in board.list(["todo"], limit=2, offset=2000)] == ["T-8004", "T-8008"]
    assert board.list(["todo"], limit=2, offset=2500) == []
    assert (board.counts()["done"], board.count(["done"], assignee="w1")) == (7500, 1072)
    assert board.create("next", by="ann").id == "T-10001"


# The file.


@pytest.mark.sqlite
def test_a_file_of_another_store_is_refused(tmp_path):
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as db, db:
        db.execute("CREATE TABLE x (y)")
    db.close()
    with pytest.raises(StoreError, match="but not one of tickets"):
        TicketBoard(other).create("x", by="ann")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "1", True])
def test_hold_seconds_must_be_a_positive_number(seconds):
    with pytest.raises(StoreError, match="hold_seconds must be a positive number"):
        TicketBoard(":memory:", hold_seconds=seconds)


def test_numbers_of_ids_fit_into_sqlite_integers():
    assert ticket_number("T-" + "9" * 18) == 10**18 - 1


@pytest.mark.sqlite
def test_the_guide_describes_the_real_schema(board):
    page = (Path(__file__).parents[2] / "docs/guides/tickets.md").read_text()
    assert f"0x{board._db.schema.application_id:X}" in page
    assert all(f"| `{column}` | " in page for column in COLUMNS)
    with board._db.transaction() as db:
        for table in ("tickets", "history"):
            row = next(line for line in page.splitlines() if line.startswith(f"| `{table}` |"))
            columns = [f"`{column[1]}`" for column in db.execute(f"PRAGMA table_info({table})")]
            assert row == f"| `{table}` | {', '.join(columns)} |"
