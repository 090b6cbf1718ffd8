"""``hookline tickets``: a board of tickets."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from getpass import getuser
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..config.errors import ConfigError
from ..config.sources import Configuration
from ..stores.tickets import TicketChange, TicketRow
from .help import Command, Group
from .options import takes_settings
from .output import STATES, console, nearby, show, state, table, when, write_json
from .text import counted, printable, short

if TYPE_CHECKING:
    from ..stores.tickets import TicketBoard, TicketRow


EPILOG = """
The board is the file in the setting tickets. With it, hookline run and chat offer their model tools
to work on tickets, too.

Examples:
  hookline tickets create "Write the guide" --criterion "It has an example"
  hookline run "Do the next ticket." --tickets tickets.db
  hookline tickets board
  hookline tickets move T-1 done
  hookline tickets move T-2 needs_revision --reason "The example does not run."
"""

Id = Annotated[str, typer.Argument(metavar="ID", help="The ticket, such as T-1.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
PAGE = 50


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group, rich_markup_mode=None, help="Create, list and move tickets on a board.", epilog=EPILOG
    )
    commands: dict[str, Callable[..., int]] = {
        "list": list_tickets, "board": board, "show": show_one, "create": create, "move": move,
    }  # fmt: skip
    for name, function in commands.items():
        group.command(name, cls=Command)(takes_settings("tickets", "debug")(function))
    app.add_typer(group, name="tickets")


def list_tickets(
    config: Configuration,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORDS", help="Words that they must hold, all of them.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="Only those in this column; all for done ones too. Repeatable."),
    ] = None,
    assignee: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this assignee.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most N.")] = PAGE,
    page: Annotated[int, typer.Option(metavar="N", min=1, help="Page N of them.")] = 1,
    json: AsJson = False,
) -> int:
    """List the tickets that are not over, the oldest first."""
    from ..stores.tickets import COLUMNS, OPEN

    path, board = _place(config), _board(config)
    text, columns = " ".join(words or ()), COLUMNS if "all" in (column or ()) else tuple(column or OPEN)
    rows: Sequence[TicketRow] = ()
    total = 0
    if board is not None:
        rows = board.list(columns, assignee=assignee, text=text, limit=limit, offset=limit * (page - 1))
        total = board.count(columns, assignee=assignee, text=text)
    if json:
        write_json(rows)
    elif board is None:
        show_nothing(path)
    elif not total and not sum(board.counts().values()):
        show_nothing(path, empty=True)
    else:
        chosen = bool(words or column or assignee is not None)
        show_list(rows, total, limit * (page - 1), page, chosen=chosen)
    return 0


def board(config: Configuration) -> int:
    """Show the board, column by column."""
    from ..stores.tickets import COLUMNS

    board = _board(config)
    counts = {} if board is None else board.counts()
    if board is None or not sum(counts.values()):
        show_nothing(_place(config), empty=board is not None)
        return 0
    cards = {column: board.list([column], limit=CARDS, newest=column in ("done", "cancelled")) for column in COLUMNS}
    show_board(cards, counts, board.path)
    return 0


def show_one(config: Configuration, id: Id, json: AsJson = False) -> int:
    """Show a ticket and all that happened to it."""
    board = _needed(config)
    ticket, history = board.get(id), board.history(id)
    if json:
        write_json({"ticket": ticket, "history": history})
    else:
        show_ticket(ticket, history)
    return 0


def create(
    config: Configuration,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="What is to be done, in a few words.")],
    description: Annotated[str, typer.Option("--description", "-d", metavar="TEXT", help="More about it.")] = "",
    criterion: Annotated[
        list[str] | None,
        typer.Option("--criterion", "-c", metavar="TEXT", help="What must be so when it is done. Repeatable."),
    ] = None,
    assignee: Annotated[str, typer.Option(metavar="NAME", help="Who is to do it; if left out, anybody.")] = "",
    tier: Annotated[
        str,
        typer.Option(
            metavar="TIER",
            help="auto; review: somebody else must accept it; ask: to start and to complete it need approval. "
            "[default: auto]",
        ),
    ] = "auto",
    json: AsJson = False,
) -> int:
    """Make a ticket."""
    from ..stores.tickets import TicketBoard

    made = TicketBoard(_place(config)).create(
        title, by=person(), description=description, criteria=criterion or (), assignee=assignee, tier=tier
    )
    if json:
        write_json(made)
    else:
        typer.echo(f"created {made.id}: {printable(made.title, keep='')}")
    return 0


def move(
    config: Configuration,
    id: Id,
    column: Annotated[
        str,
        typer.Argument(metavar="COLUMN", help="todo, running, needs_revision, review, done or cancelled."),
    ],
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Why.")] = "",
    assignee: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose it is from now on; '' for nobody's.")
    ] = None,
    expected: Annotated[
        str | None, typer.Option("--from", metavar="COLUMN", help="Only if it is in this column.")
    ] = None,
    json: AsJson = False,
) -> int:
    """Move a ticket to another column, or give it to somebody else."""
    board = _needed(config)
    before = board.get(id).column
    moved = board.move(id, column, by=person(), reason=reason, assignee=assignee, expected=expected)
    if json:
        write_json(moved)
    else:
        owner = f" ({moved.assignee})" if moved.assignee else ""
        typer.echo(printable(f"{moved.id}: {before} → {moved.column}{owner}", keep=""))
    return 0


def person() -> str:
    """Who sits here, as histories name them."""
    try:
        return f"person:{getuser()}"
    except (KeyError, OSError, ImportError):  # nobody that the system knows by name
        return "person:unknown"


def _place(config: Configuration) -> str:
    if not config.settings.tickets:
        raise ConfigError('there is no board: add tickets = "tickets.db" to hookline.toml, or give --tickets FILE.db')
    return config.settings.tickets


def _board(config: Configuration) -> TicketBoard | None:
    """The board; ``None`` if nobody has made it."""
    from ..stores.tickets import TicketBoard

    path = _place(config)
    return TicketBoard(path) if os.path.exists(path) else None


def _needed(config: Configuration) -> TicketBoard:
    board = _board(config)
    if board is None:
        raise ConfigError(f"there is no board in {_place(config)} yet: hookline tickets create TITLE makes it")
    return board


CARDS = 8
"""How many tickets of a column the board shows."""
_WIDEST = 30
_LINES = 3
"""How many lines of a card its title has."""
_ALWAYS = ("todo", "running", "done")


def show_nothing(path: str, *, empty: bool = False) -> None:
    """Say how to begin."""
    where = printable(nearby(path), keep="")
    show(
        Text(f"There are no tickets in {where}." if empty else f"There is no board in {where} yet."),
        Text('Begin with: hookline tickets create "What is to be done" --criterion "What must be so then"'),
    )


def show_list(rows: Sequence[TicketRow], total: int, passed: int, page: int, *, chosen: bool) -> None:
    """A line for each ticket; ``chosen`` says that only some were asked for."""
    if not rows:
        none = "No ticket matches that." if chosen else "There are no open tickets: --column all shows the others."
        show(Text("There are no more tickets." if total else none))
        return
    tiers = any(row.tier != "auto" for row in rows)
    heads = ("ticket", "column", *(["tier"] * tiers), "assignee", "title")
    lines = [
        (
            row.id, state(row.column), *([row.tier if row.tier != "auto" else ""] * tiers), short(row.assignee, 20),
            short(row.title, 200),
        )
        for row in rows
    ]  # fmt: skip
    table(heads, lines, keep=("ticket", "column", "tier", "assignee"))
    left = total - passed - len(rows)
    if left > 0:
        show(Text(f"and {left:,} more: --page {page + 1} shows the next", style="dim"))


def show_board(cards: Mapping[str, Sequence[TicketRow]], counts: Mapping[str, int], path: str) -> None:
    """The columns beside one another, a card for each ticket; what is being judged is among the running ones."""
    shown = {column: rows for column, rows in cards.items() if column not in ("verifying", "cancelled")}
    shown["running"] = [*cards["running"], *cards["verifying"]][:CARDS]
    number = {**counts, "running": counts["running"] + counts["verifying"]}
    columns = [column for column in shown if number[column] or column in _ALWAYS]
    width = (console().width - 2 * (len(columns) - 1)) // len(columns)
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        heading = Text.assemble(
            (column.replace("_", " "), f"bold {STATES.get(column, 'default')}"), (f"\n{number[column]:,}", "dim"),
            ("\n" + "─" * min(width, _WIDEST), "dim"),
        )  # fmt: skip
        made.add_column(heading, width=min(width, _WIDEST), overflow="fold")
    made.add_row(*(_cards(shown[column], number[column], min(width, _WIDEST)) for column in columns))
    gone = f", {counts['cancelled']:,} cancelled" if counts["cancelled"] else ""
    total = Text.assemble((counted(sum(counts.values()), "ticket"), "bold"), (f" in {nearby(path)}{gone}\n", "dim"))
    show(total, made)


def _cards(tickets: Sequence[TicketRow], number: int, width: int) -> Text:
    cards = [_card(ticket, width) for ticket in tickets]
    if number > len(cards):
        cards.append(Text(f"+ {number - len(cards):,} more", style="dim"))
    return Text("\n\n").join(cards)


def _card(ticket: TicketRow, width: int) -> Text:
    marks = [short(ticket.assignee, 20), "being judged" if ticket.column == "verifying" else ""]
    marks.append(ticket.tier if ticket.tier != "auto" else "")
    below = " · ".join(filter(None, marks))
    title = "\n".join(wrap(_line(f"{ticket.id} {ticket.title}"), width, max_lines=_LINES, placeholder=" …"))
    told = Text.assemble(title, (f"\n{below}" if below else "", "dim"))
    told.stylize("bold", 0, len(ticket.id))
    return told


def show_ticket(ticket: TicketRow, history: Sequence[TicketChange]) -> None:
    """One ticket: what it says, and its history."""
    details = [
        f"assignee {ticket.assignee}" if ticket.assignee else "nobody has it",
        f"tier {ticket.tier}",
        f"created by {ticket.created_by} {when(ticket.created)}",
    ]
    parts: list[Text | None] = [
        Text.assemble((ticket.id, "bold"), "  ", state(ticket.column), "  ", (_line(ticket.title), "bold")),
        Text(_line(" · ".join(details)), style="dim"),
        Text(f"\n{printable(ticket.description)}") if ticket.description else None,
    ]
    if ticket.criteria:
        parts.append(Text("\nCriteria", style="bold"))
        parts += [Text(f"  {number}. {_line(text)}") for number, text in enumerate(ticket.criteria, 1)]
    for heading, text in (("Said when it was completed", ticket.summary), ("Rejected", ticket.reason)):
        if text:
            parts += [Text(f"\n{heading}", style="bold"), Text(printable(text))]
    show(*parts)
    rows = [(when(entry.at), _line(entry.by), entry.what, _moved(entry), short(entry.text, 500)) for entry in history]
    table(("when", "who", "did", "column", "said"), rows, title="History", keep=("when", "did"))


def _moved(entry: TicketChange) -> Text:
    if entry.from_column == entry.to_column:
        return Text("")
    to = state(entry.to_column)
    return Text.assemble(f"{entry.from_column} → ", to) if entry.from_column else to


def _line(text: str) -> str:
    return printable(text, keep="")
