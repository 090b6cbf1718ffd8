"""Render lines about events and Markdown of a model for a terminal, the same way in every command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from .._base.text import duration_text
from ..explain.words import SIGNS
from .event_lines import Line
from .hook_line import hook_line, sign, style_of
from .text import printable

INDENT = 2
"""Columns to the left of a reply in a conversation. Only the program writes to the first column, so that no reply can
look like the prompt, whatever characters it consists of."""

_COLOURS = ("cyan", "blue", "green", "bright_cyan", "bright_blue")
"""Colours that tell subagents apart; none is that of a verdict."""

_ICONS = {
    "step": ("─", "bold"),
    "speaker": ("»", "bold"),
    "task": (">", "bold"),
    "call": ("→", "default"),
    "says": ("“", "default"),
    "ok": ("✓", "default"),
    "error": ("✗", "red"),
    "stopped": ("■", "yellow"),
}

_ASCII = {"─": "-", "»": ">>", "→": ">", "“": '"', "✓": "+", "✗": "x", "■": "#", "·": "."}
"""The icons on terminals without Unicode."""

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
"""HTML stays text: Rich would leave it out, and a person must see all that a model wrote."""

_THEME = Theme({"markdown.code": "bold cyan", "markdown.code_block": "cyan"}, inherit=True)
"""Without the black background of Rich, which is a blot on a light terminal."""


class LineRenderer:
    """Renders lines about events: a sign and the colour of the verdict, after the name of the subagent if it has one.

    Example::

        console.print(LineRenderer().render(Line("blocked", "no_secrets blocked the call at before_tool")))

    Args:
        ascii: whether to use ASCII signs only.
    """

    def __init__(self, *, ascii: bool = False) -> None:
        self._colours: dict[str, str] = {}
        self._ascii = ascii

    def colour(self, name: str) -> str:
        """Return the colour of a subagent."""
        return self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])

    def render(self, line: Line) -> Folded:
        """Return one line; a long one wraps below its text."""
        mark, style = self._mark(line)
        row = Table.grid(padding=(0, 1, 0, 0))
        if line.agent:
            row.add_column(no_wrap=True, overflow="ellipsis", max_width=2 * line.depth + 24)
        row.add_column(no_wrap=True, min_width=1)
        row.add_column(overflow="fold")
        who = [Text.assemble("  " * line.depth, (line.agent, self.colour(line.agent)))] if line.agent else []
        text = Text(line.text, style=style)
        if line.took is not None:
            text = Text.assemble(text, (f"  {duration_text(line.took)}", "dim"))
        row.add_row(*who, mark, text)
        return Folded(row, INDENT)

    def _mark(self, line: Line) -> tuple[Text, str]:
        """Return what is before the text of a line, and the style of the text."""
        if line.call:
            return Text.assemble(*hook_line(line.gates, line.call, ascii=self._ascii)), style_of(line.kind).replace(
                "dim", ""
            )
        if line.kind in SIGNS:
            glyph, style = sign(line.kind, ascii=self._ascii)
            return Text(glyph, style=style), style
        icon, style = _ICONS.get(line.kind, ("·", "dim"))
        return Text(_ASCII.get(icon, icon) if self._ascii else icon, style=style), style


class Folded:
    """A renderable whose lines fit also on a terminal that shows the parts of an emoji side by side.

    Rich counts them as one character, as most terminals do. Otherwise the rest would begin in the first column.

    Args:
        content: the renderable.
        indent: the number of columns to the left of the rest of such a line.
    """

    def __init__(self, content: RenderableType, indent: int = 0) -> None:
        self._content, self._indent = content, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._content, options, pad=False):
            for part in _folded(line, options.max_width, self._indent):
                yield from part
                yield Segment.line()


def _folded(line: list[Segment], columns: int, indent: int) -> Iterator[list[Segment]]:
    if all(segment.text.isascii() for segment in line):
        yield line
        return
    part: list[Segment] = []
    used = 0
    for text, style, control in line:
        begin = 0
        for at, letter in enumerate(text):
            width = 1 if letter == _EMOJI_STYLE else cell_len(letter)
            if used + width > columns:
                yield [*part, Segment(text[begin:at], style, control)]
                part, used, begin = [Segment(" " * indent)], indent, at
            used += width
        part.append(Segment(text[begin:], style, control))
    yield part


_EMOJI_STYLE = "\ufe0f"
"""Makes the character before it wider."""


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _LeftHeading}


class MarkdownReply:
    """Text of a model as Markdown that shows everything: HTML, the addresses of links, and line breaks as written.

    Args:
        text: the text.
        indent: the number of columns to the left.
        above: whether to leave a line empty above.
        height: show only this many lines of the end.
    """

    def __init__(self, text: str, *, indent: int = 0, above: bool = False, height: int | None = None) -> None:
        text = printable(text)
        self._markdown = _Markdown("", code_theme="ansi_dark", hyperlinks=False)
        self._markdown.parsed = _PARSER.parse(text)
        for token in self._markdown.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"
        self._indent, self._above, self._height = indent, above, height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(20, options.max_width - self._indent)
        with console.use_theme(_THEME):
            lines = console.render_lines(Folded(self._markdown), options.update(width=width), pad=False)
        while lines and _is_blank(lines[0]):
            del lines[0]
        while lines and _is_blank(lines[-1]):
            del lines[-1]
        if self._above:
            lines.insert(0, [])
        for line in lines if self._height is None else lines[-self._height :]:
            yield Segment(" " * self._indent)
            yield from line
            yield Segment.line()


def _is_blank(line: list[Segment]) -> bool:
    return not any(segment.text.strip() for segment in line)


class ReplyStream:
    """Markdown that arrives in pieces. Blocks are final once another one follows; the last one may still change.

    Example::

        stream = ReplyStream()
        for piece in pieces:
            for block in stream.add(piece):
                console.print(block)
        for block in stream.end():
            console.print(block)
    """

    def __init__(self) -> None:
        self.text = ""
        """Everything that arrived."""
        self._open = ""
        self._printed = False

    def add(self, piece: str) -> list[MarkdownReply]:
        """Add text. Return the blocks that are final now."""
        self.text += piece
        self._open += piece
        if "\n" not in piece:  # a block ends with a line
            return []
        starts = [token.map[0] for token in _PARSER.parse(printable(self._open)) if not token.level and token.map]
        if len(starts) < 2 or not starts[-1]:
            return []
        lines = self._open.split("\n")
        final, self._open = "\n".join(lines[: starts[-1]]), "\n".join(lines[starts[-1] :])
        return [self._block(final)]

    def end(self) -> list[MarkdownReply]:
        """Return the rest, and begin a new reply."""
        rest = [self._block(self._open)] if self._open.strip() else []
        self.text, self._open, self._printed = "", "", False
        return rest

    def open_block(self, height: int) -> MarkdownReply | None:
        """Return the last ``height`` lines of the block that may still change; ``None`` if there is none."""
        text = self._open
        return MarkdownReply(text, indent=INDENT, above=self._printed, height=height) if text.strip() else None

    def _block(self, text: str) -> MarkdownReply:
        above, self._printed = self._printed, True
        return MarkdownReply(text, indent=INDENT, above=above)
