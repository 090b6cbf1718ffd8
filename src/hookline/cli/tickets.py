"""``hookline tickets``: a board of tickets, for the people in charge."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from getpass import getuser
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.errors import ConfigError
from ..config.sources import Configuration
from .help import Command, Group
from .options import takes_settings

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
    group = typer.Typer(cls=Group, rich_markup_mode=None, help="Look at tickets, make and move them.", epilog=EPILOG)
    commands: dict[str, Callable[..., int]] = {
        "list": list_tickets, "board": show_board, "show": show, "create": create, "move": move,
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
    from . import ticket_views as views
    from .screen import write_json

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
        views.show_nothing(path)
    elif not total and not sum(board.counts().values()):
        views.show_nothing(path, empty=True)
    else:
        chosen = bool(words or column or assignee is not None)
        views.show_list(rows, total, limit * (page - 1), page, chosen=chosen)
    return 0


def show_board(config: Configuration) -> int:
    """Show the board, column by column."""
    from ..stores.tickets import COLUMNS
    from . import ticket_views as views

    board = _board(config)
    counts = {} if board is None else board.counts()
    if board is None or not sum(counts.values()):
        views.show_nothing(_place(config), empty=board is not None)
        return 0
    cards = {
        column: board.list([column], limit=views.CARDS, newest=column in ("done", "cancelled")) for column in COLUMNS
    }
    views.show_board(cards, counts, board.path)
    return 0


def show(config: Configuration, id: Id, json: AsJson = False) -> int:
    """Show a ticket and all that happened to it."""
    from . import ticket_views as views
    from .screen import write_json

    board = _needed(config)
    ticket, history = board.get(id), board.history(id)
    if json:
        write_json({"ticket": ticket, "history": history})
    else:
        views.show_ticket(ticket, history)
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
    from .screen import write_json
    from .text import printable

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
    from .screen import write_json
    from .text import printable

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
