"""``hookline diff``: two recorded runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from .._base.text import duration_text
from ..config.errors import ConfigError
from ..config.sources import Configuration
from ..explain.comparison import Comparison, Pair, RunPart, compare, summary
from ..explain.text_diff import Part
from ..explain.words import gate_of
from .errors import COMPLETED, FAILED
from .explain import diff_text, load_view, word_of, write_page
from .help import Command
from .hook_line import is_ascii, sign, style_of
from .options import AsJson, with_settings
from .output import console, print_parts, time_text, write_json
from .text import counted, printable

EPILOG = """
Examples:
  hookline diff 3f2a91 77bc02
  hookline diff monday.tape tuesday.tape
  hookline diff 3f2a91 last --html diff.html

Each run is an id or its beginning, last, a record or tape, or a folder of them. Times, tokens, costs and
ids are not compared.

Exit codes:
  0    both runs did the same
  1    they differ
  2    invalid input or setup, such as a run that is not recorded
"""

_LIMIT = 1200
"""Number of characters of a text that are shown without ``--full``."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diff", cls=Command, epilog=EPILOG)(with_settings("records", "runs", "database", "debug")(diff))


def diff(
    config: Configuration,
    first: Annotated[
        str, typer.Argument(metavar="A", help="Id of a run or its beginning, last, or a file or folder (its last run).")
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="The other run.")],
    full: Annotated[bool, typer.Option("--full", help="Show the parts that are the same, and whole texts.")] = False,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a web page instead.")] = None,
    json: AsJson = False,
) -> int:
    """Show two recorded runs side by side.

    The first difference is marked.
    """
    left, right = load_view(first, config), load_view(second, config)
    if left.has_texts != right.has_texts:
        complete, names_only = (left, right) if left.has_texts else (right, left)
        raise ConfigError(f"the texts of {names_only.id} are not stored, so it cannot be compared with {complete.id}")
    found = compare(left, right)
    if html is not None:
        from ..explain.page import diff_html

        write_page(html, diff_html(found))
    elif json:
        write_json(_as_json(found))
    else:
        print_parts(*_Printer(found, full=full).parts())
    return COMPLETED if found.same else FAILED


def _as_json(found: Comparison) -> dict[str, Any]:
    return {
        "runs": [found.left.id, found.right.id],
        "same": found.same,
        "first": found.first,
        "summary": summary(found),
        "pairs": [pair for pair in found.pairs if not pair.same],
    }


class _Printer:
    """Turns a comparison into a table of two columns."""

    def __init__(self, found: Comparison, *, full: bool) -> None:
        self.found = found
        self.full = full
        out = console()
        self.width = out.width
        self.coloured = out.color_system is not None and not out.no_color

    def parts(self) -> Iterator[Text | Table]:
        """Yield the summary and the rows."""
        yield Text(printable(summary(self.found), keep=""), style="bold")
        yield self.table([self.heads()])
        same: list[Pair] = []
        for position, pair in enumerate(self.found.pairs):
            if pair.same and not self.full:
                same.append(pair)
                continue
            yield from self.folded(same)
            same = []
            yield from self.pair(pair, first=position == self.found.first)
        yield from self.folded(same)

    def heads(self) -> tuple[Text, Text]:
        def head(run: str, status: str, time: float, elapsed: float) -> Text:
            return Text.assemble(
                (printable(status, keep=""), style_of(status)),
                f" {printable(run, keep='')}\n",
                (f"{time_text(time)} · {duration_text(elapsed)}", "dim"),
            )

        left, right = self.found.left, self.found.right
        return (
            head(left.id, left.status, left.time, left.elapsed),
            head(right.id, right.status, right.time, right.elapsed),
        )

    def table(self, rows: Sequence[tuple[Text, Text]]) -> Table:
        made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False, width=self.width)
        for _ in range(2):
            made.add_column(ratio=1, overflow="fold")
        for row in rows:
            made.add_row(*row)
        return made

    def folded(self, pairs: Sequence[Pair]) -> Iterator[Text]:
        if pairs:
            yield Text(f"\n⋯ {counted(len(pairs), 'part')} the same", style="dim")

    def pair(self, pair: Pair, *, first: bool) -> Iterator[Text | Table]:
        part = pair.left or pair.right
        assert part is not None
        where = part.where or ("Input" if part.kind == "run" else "End")
        title = Text.assemble(f"\n{'  ' * part.depth}", (printable(where, keep=""), "bold"))
        title.append(f"  {printable(part.title, keep='')}")
        if first:
            title.append("  ◀ first difference", style="bold cyan" if self.coloured else "")
        if pair.left is None:
            title.append("  only in the second run", style="green")
        elif pair.right is None:
            title.append("  only in the first run", style="red")
        elif pair.same:
            title.append("  the same", style="dim")
        yield title
        yield self.table(list(self.rows(pair)))

    def rows(self, pair: Pair) -> Iterator[tuple[Text, Text]]:
        """Yield what hooks did, and each text that differs, next to the one of the other run."""
        left, right = pair.left, pair.right
        if (left is not None and left.verbs) or (right is not None and right.verbs):
            yield _verbs(left), _verbs(right)
        changed = {difference.name: difference.parts for difference in pair.differences}
        texts = dict.fromkeys(name for part in (left, right) if part is not None for name in part.texts)
        for name in changed if changed and not self.full else dict.fromkeys((*texts, *changed)):
            yield self.cell(name, left, changed.get(name), "-"), self.cell(name, right, changed.get(name), "+")

    def cell(self, name: str, part: RunPart | None, parts: Sequence[Part] | None, own: str) -> Text:
        if part is None:
            return Text()
        shown = diff_text(
            [each for each in parts or [("=", part.texts.get(name, ""))] if each[0] in ("=", "~", own)],
            coloured=self.coloured,
        )
        if not self.full and len(shown) > _LIMIT:
            shown = Text.assemble(shown[:_LIMIT], " …")
        label = Text(f"{printable(name, keep='')}: ", style="dim")
        return Text.assemble(label, shown) if shown else Text.assemble(label, ("none", "dim"))


def _verbs(part: RunPart | None) -> Text:
    """Return what the hooks did in a part."""
    if part is None:
        return Text()
    found = []
    for verb, hook in part.verbs:
        mark = sign(gate_of(verb), ascii=is_ascii(sys.stdout))
        found.append(Text.assemble(mark, " ", (word_of(verb)[0], style_of(verb)), f" {printable(hook, keep='')}"))
    return Text(", ").join(found)
