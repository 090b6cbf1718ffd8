"""``hookline tickets``: what people in charge see and do."""

import json

import pytest

from hookline.cli import tickets as command
from hookline.cli.app import run_app
from hookline.cli.errors import report_error
from hookline.stores import TicketBoard

EVIL = "evil\x1b[2J\u202ename"


@pytest.fixture
def tickets(capsys, monkeypatch, tmp_path):
    """Run a command on the board of this folder: its exit code, what it wrote, what it complained about."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOKLINE_TICKETS", "board.db")
    monkeypatch.setenv("LOGNAME", "ann")
    monkeypatch.setenv("COLUMNS", "100")

    def run(*args):
        try:
            code = run_app(["tickets", *args])
        except Exception as error:
            code = report_error(error, args)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def board(tmp_path):
    made = TicketBoard(tmp_path / "board.db")
    yield made
    made.close()


def test_a_person_creates_shows_lists_and_moves_tickets(tickets, board):
    given = (
        "--criterion",
        "it runs",
        "-c",
        "it is short",
        "-d",
        "More\nof it",
        "--assignee",
        "bob",
        "--tier",
        "review",
    )
    assert tickets("create", "Write it", *given) == (0, "created T-1: Write it\n", "")
    ticket = board.get("T-1")
    assert (ticket.criteria, ticket.assignee, ticket.tier) == (("it runs", "it is short"), "bob", "review")
    assert ticket.created_by == "person:ann"
    code, out, _ = tickets("list")
    assert (code, " ".join(out.split())) == (0, "ticket column tier assignee title T-1 todo review bob Write it")
    assert tickets("move", "T-1", "running", "--from", "todo") == (0, "T-1: todo → running (bob)\n", "")
    assert tickets("move", "t-1", "needs_revision", "--reason", "too long")[0] == 0
    code, out, _ = tickets("show", "1")
    for words in (
        "T-1  needs_revision  Write it",
        "assignee bob · tier review · created by person:ann",
        "More\nof it",
        "  1. it runs\n  2. it is short",
        "Rejected\ntoo long",
        "running → needs_revision  too long",
    ):
        assert words in out
    assert board.history("T-1")[-1].by == "person:ann"


def test_the_board_shows_each_column_and_limits_the_cards(tickets, board):
    for n in range(12):
        board.create(f"Job {n} with a title that is longer than a column of the board could ever be wide", by="ann")
    board.start("T-1", by="bob")
    board.start("T-2", by="bob")
    board.hold("T-2", "s", by="bob")
    board.move("T-3", "cancelled", by="ann")
    code, out, _ = tickets("board")
    assert code == 0
    assert out.startswith("12 tickets in board.db, 1 cancelled\n")
    assert out.splitlines()[2].split() == ["todo", "running", "done"]
    assert out.splitlines()[3].split() == ["9", "2", "0"]
    assert "+ 1 more" in out
    assert "bob · in verification" in out


def test_a_title_that_is_too_long_for_its_card_ends_with_a_whole_word(tickets, board):
    board.create(" ".join(["elephants"] * 20), by="ann")
    _, out, _ = tickets("board")
    card = [word for line in out.splitlines()[5:] for word in line.split()]
    assert card == ["T-1", *["elephants"] * (len(card) - 2), "…"]


def test_a_board_on_which_all_is_done_says_so(tickets, board):
    board.create("x", by="ann")
    board.move("T-1", "done", by="ann")
    assert tickets("list")[1] == "No open tickets (--column all shows all).\n"


@pytest.mark.slow
def test_lists_are_chosen_paged_and_given_as_json(tickets, board):
    for n in range(5):
        board.create(f"job {n}", by="ann", assignee="bob" if n % 2 else "")
    board.move("T-1", "done", by="ann")

    def ids(*args):
        return [row["id"] for row in json.loads(tickets("list", "--json", *args)[1])]

    assert ids() == ["T-2", "T-3", "T-4", "T-5"]
    assert ids("--column", "all") == ["T-1", "T-2", "T-3", "T-4", "T-5"]
    assert ids("--column", "done", "--column", "todo", "-n", "2", "--page", "2") == ["T-3", "T-4"]
    assert ids("--assignee", "bob") == ["T-2", "T-4"]
    assert ids("JOB", "t-4") == ["T-4"]
    assert tickets("list", "-n", "3")[1].endswith("and 1 more: --page 2 shows the next\n")
    assert tickets("list", "nothing")[1] == "No tickets match.\n"
    assert tickets("list", "--page", "9")[1] == "No more tickets.\n"
    told = json.loads(tickets("show", "T-1", "--json")[1])
    assert (told["ticket"]["column"], [entry["seq"] for entry in told["history"]]) == ("done", [1, 2])
    assert json.loads(tickets("create", "y", "--json")[1])["id"] == "T-6"
    assert json.loads(tickets("move", "T-6", "done", "--json")[1])["column"] == "done"


def test_without_a_board_the_output_explains_how_to_create_one(tickets, board, monkeypatch, tmp_path):
    for name in ("list", "board"):
        code, out, _ = tickets(name)
        assert (code, out.splitlines()[0]) == (0, "No board in board.db yet.")
        assert 'hookline tickets create "Write the guide"' in out
    assert tickets("list", "--json") == (0, "[]\n", "")
    code, _, problem = tickets("move", "T-1", "done")
    assert (code, problem) == (
        2,
        f"error: no board in {tmp_path / 'board.db'} yet: hookline tickets create TITLE creates it\n",
    )
    assert not (tmp_path / "board.db").exists()
    assert board.count() == 0
    assert tickets("board")[1].startswith("No tickets in board.db.\n")
    monkeypatch.delenv("HOOKLINE_TICKETS")
    code, _, problem = tickets("list")
    assert code == 2
    assert 'add tickets = "tickets.db" to hookline.toml, or --tickets FILE.db' in problem
    assert tickets("list", "--tickets", "board.db")[0] == 0


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("show", "T-7"), "there is no ticket T-7"),
        (("show", "x"), "'x' is not a ticket id: ids look like T-1"),
        (("move", "T-1", "dne"), "'dne' is not a column to move to: give one of todo"),
        (("move", "T-1", "verifying"), "'verifying' is not a column to move to"),
        (("move", "T-1", "running"), "T-1 has no assignee: name one to run it"),
        (("move", "T-1", "needs_revision"), "T-1 needs a reason for the revision"),
        (("move", "T-1", "todo"), "T-1 is already todo: created by ann"),
        (("move", "T-1", "done", "--from", "review"), "T-1 is todo, not review"),
        (("create", " "), "the title is empty"),
        (("create", "x", "--tier", "none"), "'none' is not a tier"),
        (("list", "--column", "dne"), "'dne' is not a column"),
    ],
)
def test_mistakes_are_reported_and_change_nothing(tickets, board, args, problem):
    board.create("x", by="ann")
    code, out, told = tickets(*args)
    assert (code, out) == (2, "")
    assert problem in told
    assert (board.count(), len(board.history("T-1"))) == (1, 1)


def test_a_file_of_another_program_is_reported_and_left_unchanged(tickets, tmp_path):
    (tmp_path / "board.db").write_bytes(b"this is no database" * 100)
    code, _, problem = tickets("create", "x")
    assert code == 2
    assert "is not a SQLite database" in problem
    assert (tmp_path / "board.db").read_bytes() == b"this is no database" * 100


def test_control_characters_in_tickets_are_escaped(tickets, board):
    board.create(EVIL, by=EVIL, description=EVIL, criteria=[EVIL], assignee=EVIL)
    board.comment("T-1", EVIL, by=EVIL)
    for args in (("list",), ("board",), ("show", "T-1"), ("create", EVIL), ("move", "T-1", "done")):
        code, out, _ = tickets(*args)
        assert code == 0
        assert not {"\x1b", "\u202e"} & set(out)


def test_a_user_without_a_name_is_recorded_as_unknown(monkeypatch):
    def nobody():
        raise OSError("no such user")

    monkeypatch.setattr(command, "getuser", nobody)
    assert command.current_user() == "person:unknown"
