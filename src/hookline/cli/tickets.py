"""``hookline tickets``: a board of tickets."""

from __future__ import annotations

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
from .options import AsJson, with_settings
from .output import console, print_parts, print_table, short_path, state_style, state_text, time_text, write_json
from .text import counted, printable, short

if TYPE_CHECKING:
    from ..stores.tickets import TicketBoard, TicketRow


EPILOG = """
The setting tickets names the file of the board. With a board, hookline run and chat give the model tools
to work on tickets.

Examples:
  hookline tickets create "Write the guide" --criterion "It has an example"
  hookline run "Do the next ticket." --tickets tickets.db
  hookline tickets board
  hookline tickets move T-1 done
  hookline tickets move T-2 needs_revision --reason "The example does not run."
"""

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the ticket, such as T-1.")]
PAGE = 50


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group, rich_markup_mode=None, help="Create, list and move tickets on a board.", epilog=EPILOG
    )
    commands: dict[str, Callable[..., int]] = {
        "list": list_tickets,
        "board": board,
        "show": show_one,
        "create": create,
        "move": move,
    }
    for name, function in commands.items():
        group.command(name, cls=Command)(with_settings("tickets", "debug")(function))
    app.add_typer(group, name="tickets")


def list_tickets(
    config: Configuration,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORDS", help="Only tickets that contain all these words.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="Only this column; all includes done tickets. Repeatable."),
    ] = None,
    assignee: Annotated[str | None, typer.Option(metavar="NAME", help="Only tickets of this assignee.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most N tickets.")] = PAGE,
    page: Annotated[int, typer.Option(metavar="N", min=1, help="Show page N.")] = 1,
    json: AsJson = False,
) -> int:
    """List open tickets, oldest first."""
    from ..stores.tickets import COLUMNS, OPEN_COLUMNS

    path, board = _board_path(config), _open_board(config)
    text, columns = " ".join(words or ()), COLUMNS if "all" in (column or ()) else tuple(column or OPEN_COLUMNS)
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
        filtered = bool(words or column or assignee is not None)
        show_list(rows, total, limit * (page - 1), page, filtered=filtered)
    return 0


def board(config: Configuration) -> int:
    """Show the board, column by column."""
    from ..stores.tickets import COLUMNS

    board = _open_board(config)
    counts = {} if board is None else board.counts()
    if board is None or not sum(counts.values()):
        show_nothing(_board_path(config), empty=board is not None)
        return 0
    cards = {
        column: board.list([column], limit=MAX_CARDS, newest=column in ("done", "cancelled")) for column in COLUMNS
    }
    show_board(cards, counts, board.path)
    return 0


def show_one(config: Configuration, id: Id, json: AsJson = False) -> int:
    """Show a ticket and its history."""
    board = _require_board(config)
    ticket, history = board.get(id), board.history(id)
    if json:
        write_json({"ticket": ticket, "history": history})
    else:
        show_ticket(ticket, history)
    return 0


def create(
    config: Configuration,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="The work to do, in a few words.")],
    description: Annotated[str, typer.Option("--description", "-d", metavar="TEXT", help="A longer description.")] = "",
    criterion: Annotated[
        list[str] | None,
        typer.Option(
            "--criterion", "-c", metavar="TEXT", help="A condition that must hold when the ticket is done. Repeatable."
        ),
    ] = None,
    assignee: Annotated[str, typer.Option(metavar="NAME", help="The assignee. [default: anybody]")] = "",
    tier: Annotated[
        str,
        typer.Option(
            metavar="TIER",
            help="auto; review: another person must accept the result; ask: starting and completing need approval. "
            "[default: auto]",
        ),
    ] = "auto",
    json: AsJson = False,
) -> int:
    """Create a ticket."""
    from ..stores.tickets import TicketBoard

    made = TicketBoard(_board_path(config)).create(
        title, by=current_user(), description=description, criteria=criterion or (), assignee=assignee, tier=tier
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
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="The reason.")] = "",
    assignee: Annotated[str | None, typer.Option(metavar="NAME", help="The new assignee; '' for nobody.")] = None,
    expected: Annotated[
        str | None, typer.Option("--from", metavar="COLUMN", help="Move it only if it is in this column.")
    ] = None,
    json: AsJson = False,
) -> int:
    """Move a ticket to another column, or change its assignee."""
    board = _require_board(config)
    before = board.get(id).column
    moved = board.move(id, column, by=current_user(), reason=reason, assignee=assignee, expected=expected)
    if json:
        write_json(moved)
    else:
        owner = f" ({moved.assignee})" if moved.assignee else ""
        typer.echo(printable(f"{moved.id}: {before} → {moved.column}{owner}", keep=""))
    return 0


def current_user() -> str:
    """Return the user's name for the history of tickets."""
    try:
        return f"person:{getuser()}"
    except (KeyError, OSError, ImportError):  # the system has no name for this user
        return "person:unknown"


def _board_path(config: Configuration) -> str:
    if not config.settings.tickets:
        raise ConfigError('no ticket board is set: add tickets = "tickets.db" to hookline.toml, or --tickets FILE.db')
    return config.settings.tickets


def _open_board(config: Configuration) -> TicketBoard | None:
    """Open the board; ``None`` if its file does not exist."""
    from ..stores.tickets import TicketBoard

    path = _board_path(config)
    board = TicketBoard(path)
    return board if board.exists() else None


def _require_board(config: Configuration) -> TicketBoard:
    board = _open_board(config)
    if board is None:
        raise ConfigError(f"no board in {_board_path(config)} yet: hookline tickets create TITLE creates it")
    return board


MAX_CARDS = 8
"""Maximum number of tickets shown in a column of the board."""
_MAX_WIDTH = 30
_LINES = 3
"""Maximum number of lines for the title of a card."""
_ALWAYS_SHOWN = ("todo", "running", "done")


def show_nothing(path: str, *, empty: bool = False) -> None:
    """Explain how to create the first ticket."""
    where = printable(short_path(path), keep="")
    print_parts(
        Text(f"No tickets in {where}." if empty else f"No board in {where} yet."),
        Text('Create a ticket with: hookline tickets create "Write the guide" --criterion "It has an example"'),
    )


def show_list(rows: Sequence[TicketRow], total: int, passed: int, page: int, *, filtered: bool) -> None:
    """Print a line for each ticket; ``filtered`` says whether the user limited the list."""
    if not rows:
        none = "No tickets match." if filtered else "No open tickets (--column all shows all)."
        print_parts(Text("No more tickets." if total else none))
        return
    tiers = any(row.tier != "auto" for row in rows)
    heads = ("ticket", "column", *(["tier"] * tiers), "assignee", "title")
    lines = [
        (
            row.id,
            state_text(row.column),
            *([row.tier if row.tier != "auto" else ""] * tiers),
            short(row.assignee, 20),
            short(row.title, 200),
        )
        for row in rows
    ]
    print_table(heads, lines, keep=("ticket", "column", "tier", "assignee"))
    left = total - passed - len(rows)
    if left > 0:
        print_parts(Text(f"and {left:,} more: --page {page + 1} shows the next", style="dim"))


def show_board(cards: Mapping[str, Sequence[TicketRow]], counts: Mapping[str, int], path: str) -> None:
    """Print the columns side by side, with a card for each ticket. Tickets in verification count as running."""
    shown = {column: rows for column, rows in cards.items() if column not in ("verifying", "cancelled")}
    shown["running"] = [*cards["running"], *cards["verifying"]][:MAX_CARDS]
    number = {**counts, "running": counts["running"] + counts["verifying"]}
    columns = [column for column in shown if number[column] or column in _ALWAYS_SHOWN]
    width = (console().width - 2 * (len(columns) - 1)) // len(columns)
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        heading = Text.assemble(
            (column.replace("_", " "), f"bold {state_style(column) or 'default'}"),
            (f"\n{number[column]:,}", "dim"),
            ("\n" + "─" * min(width, _MAX_WIDTH), "dim"),
        )
        made.add_column(heading, width=min(width, _MAX_WIDTH), overflow="fold")
    made.add_row(*(_cards(shown[column], number[column], min(width, _MAX_WIDTH)) for column in columns))
    gone = f", {counts['cancelled']:,} cancelled" if counts["cancelled"] else ""
    total = Text.assemble((counted(sum(counts.values()), "ticket"), "bold"), (f" in {short_path(path)}{gone}\n", "dim"))
    print_parts(total, made)


def _cards(tickets: Sequence[TicketRow], number: int, width: int) -> Text:
    cards = [_card(ticket, width) for ticket in tickets]
    if number > len(cards):
        cards.append(Text(f"+ {number - len(cards):,} more", style="dim"))
    return Text("\n\n").join(cards)


def _card(ticket: TicketRow, width: int) -> Text:
    marks = [short(ticket.assignee, 20), "in verification" if ticket.column == "verifying" else ""]
    marks.append(ticket.tier if ticket.tier != "auto" else "")
    below = " · ".join(filter(None, marks))
    title = "\n".join(wrap(_one_line(f"{ticket.id} {ticket.title}"), width, max_lines=_LINES, placeholder=" …"))
    card = Text.assemble(title, (f"\n{below}" if below else "", "dim"))
    card.stylize("bold", 0, len(ticket.id))
    return card


def show_ticket(ticket: TicketRow, history: Sequence[TicketChange]) -> None:
    """Print one ticket and its history."""
    details = [
        f"assignee {ticket.assignee}" if ticket.assignee else "no assignee",
        f"tier {ticket.tier}",
        f"created by {ticket.created_by} {time_text(ticket.created)}",
    ]
    parts: list[Text | None] = [
        Text.assemble((ticket.id, "bold"), "  ", state_text(ticket.column), "  ", (_one_line(ticket.title), "bold")),
        Text(_one_line(" · ".join(details)), style="dim"),
        Text(f"\n{printable(ticket.description)}") if ticket.description else None,
    ]
    if ticket.criteria:
        parts.append(Text("\nCriteria", style="bold"))
        parts += [Text(f"  {number}. {_one_line(text)}") for number, text in enumerate(ticket.criteria, 1)]
    for heading, text in (("Summary of the result", ticket.summary), ("Rejected", ticket.reason)):
        if text:
            parts += [Text(f"\n{heading}", style="bold"), Text(printable(text))]
    print_parts(*parts)
    rows = [
        (time_text(entry.at), _one_line(entry.by), entry.what, _move_text(entry), short(entry.text, 500))
        for entry in history
    ]
    print_table(("when", "who", "did", "column", "comment"), rows, title="History", keep=("when", "did"))


def _move_text(entry: TicketChange) -> Text:
    if entry.from_column == entry.to_column:
        return Text("")
    to = state_text(entry.to_column)
    return Text.assemble(f"{entry.from_column} → ", to) if entry.from_column else to


def _one_line(text: str) -> str:
    return printable(text, keep="")
