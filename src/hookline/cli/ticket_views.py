"""Tickets on a screen or as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

from rich.table import Table
from rich.text import Text

from ..stores.tickets import TicketChange, TicketRow
from .screen import STATES, console, nearby, show, state, table, when
from .text import counted, printable, short

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
    facts = [
        f"assignee {ticket.assignee}" if ticket.assignee else "nobody has it",
        f"tier {ticket.tier}",
        f"created by {ticket.created_by} {when(ticket.created)}",
    ]
    parts: list[Text | None] = [
        Text.assemble((ticket.id, "bold"), "  ", state(ticket.column), "  ", (_line(ticket.title), "bold")),
        Text(_line(" · ".join(facts)), style="dim"),
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
