"""Tables, labelled facts and JSON on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


WIDE = 200
"""Columns for output that goes to a file or a pipe."""

STATES = {
    "accepted": "green", "done": "green", "on": "green", "running": "cyan", "verifying": "magenta", "review": "blue",
    "needs_revision": "yellow", "proposed": "yellow", "broken": "red", "missing": "red", "cancelled": "dim",
    "off": "dim", "rejected": "dim", "pending": "yellow", "approved": "green", "edited": "green", "denied": "red",
    "active": "green", "expired": "dim", "revoked": "dim",
}  # fmt: skip
"""The colours of what things can be, the same in all tables."""


def console() -> Console:
    """Stdout, for people; wide where it is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, soft_wrap=False)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", keep: Sequence[str] = (),
    right: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print rows under their headings; the columns in ``keep`` are not broken into lines, those in ``right`` neither.

    What is in ``right`` are numbers, which end below one another.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        kept, justify = column in keep or column in right, "right" if column in right else "left"
        made.add_column(column, no_wrap=kept, overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in row))
    show(Text(f"\n{title}", style="bold") if title else None, made)


def state(name: str) -> Text:
    """What a thing is, in its colour."""
    from rich.text import Text

    return Text(name, style=STATES.get(name, ""))


def problems(lines: Sequence[str]) -> None:
    """Print what is wrong, below a table; nothing if all is well."""
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        made.add_row(Text("✗", style="red"), Text(printable(line, keep="")))
    if lines:
        show(Text(), made)


def facts(title: str, items: Iterable[tuple[str, ...]], *, width: int = 0) -> None:
    """Print what is known of one thing: labels with a text each, and below it what is less important.

    The column of the labels has this ``width`` at least, so that several things look alike.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True, min_width=width + 2)
    for label, text, *more in items:
        made.add_row(Text(f"  {printable(label, keep='')}", style="bold" if more else "dim"), Text(printable(text)))
        for line in more:
            made.add_row("", Text(printable(line), style="dim"))
    show(Text(printable(title), style="bold"), made)


def named(title: str, items: Iterable[tuple[str, str, str]], width: int) -> None:
    """Print names with a text each, and below it where the thing is: neither names nor places are broken."""
    from rich.text import Text

    lines = []
    for name, text, place in items:
        lines.append(Text.assemble((f"  {printable(name):<{width}}", "bold"), f"  {printable(text)}"))
        lines.append(Text(f"    {printable(place)}", style="dim"))
    show(Text(title, style="bold"), *lines, soft_wrap=True)


def show(*parts: Any, soft_wrap: bool = False) -> None:
    """Print these, without the blanks that rich puts at the end of lines."""
    out = console()
    with out.capture() as shown:
        for part in parts:
            if part is not None:
                out.print(part, soft_wrap=soft_wrap)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in shown.get().splitlines()))


def nearby(place: str) -> str:
    """A path, with or without a line, as short as it can be told: from the working folder, the library's or home."""
    path, colon, line = place.rpartition(":")
    if not colon or not line.isdigit():
        path, colon, line = place, "", ""
    for folder, shown in ((Path.cwd(), ""), (Path(__file__).parents[2], ""), (Path.home(), "~/")):
        if Path(path).is_relative_to(folder):
            return f"{shown}{Path(path).relative_to(folder)}{colon}{line}"
    return place


def when(at: float) -> str:
    """A time as short as it can be told: of today without the date, of another year without the hour."""
    moment, now = time.localtime(at), time.localtime()
    if moment[:3] == now[:3]:
        return time.strftime("%H:%M:%S", moment)
    return time.strftime("%d %b %H:%M" if moment[0] == now[0] else "%d %b %Y", moment)


def write_json(value: Any) -> None:
    """A value as indented JSON on stdout."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
