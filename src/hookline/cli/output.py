"""Replies, tables, labelled facts and JSON on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base.text import escape_invisible
from ..explain.words import tone_of
from .hook_line import TONES
from .terminal import can_move_cursor
from .text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


PIPE_WIDTH = 200
"""Width in columns of output that goes to a file or a pipe."""

STATE_STYLES = {
    "changed": "yellow",
    "verifying": "magenta",
    "review": "magenta",
    "needs_revision": "yellow",
    "proposed": "magenta",
    "broken": "red",
    "missing": "red",
    "off": "dim",
    "rejected": "dim",
    "revoked": "dim",
}
"""Colours of states of plugins, tickets, skills and keys. Those of runs, calls and approvals are in ``words.py``."""


def console() -> Console:
    """Return a console for stdout, as wide as the terminal or ``PIPE_WIDTH``."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False)


def print_reply(reply: str) -> None:
    """Print the reply of a run: as Markdown on a terminal, unchanged elsewhere."""
    if not reply:
        return
    if can_move_cursor(sys.stdout.isatty()):
        from rich.console import Console

        from .rendering import MarkdownReply  # takes a tenth of a second to import

        Console(highlight=False).print(MarkdownReply(reply))
    else:
        sys.stdout.write(f"{printable(reply) if sys.stdout.isatty() else reply}\n")
        sys.stdout.flush()


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str = "",
    keep: Sequence[str] = (),
    right: Sequence[str] = (),
) -> None:
    """Print rows under their headings.

    Args:
        columns: the headings.
        rows: the cells of each row.
        title: a title above the table.
        keep: headings of columns that are not wrapped.
        right: headings of columns with numbers: not wrapped, and aligned to the right.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        kept, justify = column in keep or column in right, "right" if column in right else "left"
        made.add_column(column, no_wrap=kept, overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in row))
    print_parts(Text(f"\n{title}", style="bold") if title else None, made)


def state_text(name: str) -> Text:
    """Return the name of a state in its colour."""
    from rich.text import Text

    return Text(printable(name, keep=""), style=state_style(name))


def state_style(name: str) -> str:
    """Return the colour of a state."""
    tone = tone_of(name, "")
    return TONES[tone] if tone else STATE_STYLES.get(name, "")


def print_problems(lines: Sequence[str]) -> None:
    """Print a list of problems, if there are any."""
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        made.add_row(Text("✗", style="red"), Text(printable(line, keep="")))
    if lines:
        print_parts(Text(), made)


def print_facts(title: str, items: Iterable[tuple[str, ...]], *, width: int = 0) -> None:
    """Print labelled facts about one thing.

    Args:
        title: the thing.
        items: tuples of a label, a text, and less important lines below it.
        width: the minimum width of the labels, so that several lists align.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True, min_width=width + 2)
    for label, text, *more in items:
        made.add_row(Text(f"  {printable(label, keep='')}", style="bold" if more else "dim"), Text(printable(text)))
        for line in more:
            made.add_row("", Text(printable(line), style="dim"))
    print_parts(Text(printable(title), style="bold"), made)


def print_locations(title: str, items: Iterable[tuple[str, str, str]], width: int) -> None:
    """Print names with a text each, and their locations below. Neither names nor locations are wrapped."""
    from rich.text import Text

    lines = []
    for name, text, place in items:
        lines.append(Text.assemble((f"  {printable(name):<{width}}", "bold"), f"  {printable(text)}"))
        lines.append(Text(f"    {printable(place)}", style="dim"))
    print_parts(Text(title, style="bold"), *lines, soft_wrap=True)


def print_parts(*parts: Any, soft_wrap: bool = False) -> None:
    """Print Rich renderables without the spaces that Rich puts at the end of lines."""
    out = console()
    with out.capture() as shown:
        for part in parts:
            if part is not None:
                out.print(part, soft_wrap=soft_wrap)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in shown.get().splitlines()))


def short_path(place: str) -> str:
    """Shorten a path, with or without ``:LINE``: relative to the working folder, to the library or to home."""
    path, colon, line = place.rpartition(":")
    if not colon or not line.isdigit():
        path, colon, line = place, "", ""
    for folder, shown in ((Path.cwd(), ""), (Path(__file__).parents[2], ""), (Path.home(), "~/")):
        if Path(path).is_relative_to(folder):
            return f"{shown}{Path(path).relative_to(folder)}{colon}{line}"
    return place


def time_text(at: float) -> str:
    """Return a local time in short form: without the date if today, without the hour if in another year.

    0 stands for an unknown time, as in an imported log without times.
    """
    if not at:
        return "unknown"
    try:
        moment, now = time.localtime(at), time.localtime()
    except (OverflowError, ValueError, OSError):  # a number in a damaged file that is no time
        return "unknown"
    if moment[:3] == now[:3]:
        return time.strftime("%H:%M:%S", moment)
    return time.strftime("%d %b %H:%M" if moment[0] == now[0] else "%d %b %Y", moment)


def write_json(value: Any) -> None:
    """Print a value as indented JSON to stdout. No text in it can move the cursor or hide other text."""
    import msgspec

    sys.stdout.write(escape_invisible(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n")


def value_text(value: Any) -> str:
    """Return a value in a form close to TOML, with each item of a list on its own line."""
    if value is None:
        return "none"
    if isinstance(value, list) and value:
        return "\n".join(item if isinstance(item, str) else _inline(item) for item in value)
    return value if isinstance(value, str) else _inline(value)


def _inline(value: Any) -> str:
    """Return a value in TOML, with spaces at which a table can wrap it."""
    if isinstance(value, dict) and value:
        return f"{{ {', '.join(f'{name} = {_inline(item)}' for name, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    import msgspec

    return msgspec.json.encode(value).decode()
