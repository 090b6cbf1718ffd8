"""Markdown and lines about events on a terminal."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from hookline.cli.event_lines import Line
from hookline.cli.rendering import LineRenderer, MarkdownReply, ReplyStream

TEXT = """# Plan

Buy **milk**
and bread.

- one
- two

  more of two

```python
def f():

    return 1
```

> quoted

| a | b |
|---|---|
| 1 | 2 |

The end."""


def rendered(*parts, width=60, colour=None):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=colour)
    for part in parts:
        console.print(part)
    return out.getvalue()


def lines_of(*parts, **options):
    return [line.rstrip() for line in rendered(*parts, **options).splitlines()]


def streamed(pieces):
    stream = ReplyStream()
    blocks = [block for piece in pieces for block in stream.add(piece)]
    return [*blocks, *stream.end()]


@settings(max_examples=30)
@given(st.lists(st.integers(0, len(TEXT)), max_size=12).map(sorted))
def test_a_reply_looks_the_same_in_whatever_pieces_it_arrives(cuts):
    pieces = [TEXT[a:b] for a, b in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
    assert list(filter(None, lines_of(*streamed(pieces)))) == list(
        filter(None, lines_of(MarkdownReply(TEXT, indent=2)))
    )


def test_a_block_is_printed_once_the_next_one_begins():
    stream = ReplyStream()
    assert stream.add("one\n\n") == []
    assert lines_of(*stream.add("two\n")) == ["  one"]
    assert lines_of(stream.open_block(10)) == ["", "  two"]
    assert lines_of(*stream.end()) == ["", "  two"]
    assert stream.open_block(10) is None


def test_a_long_block_shows_its_end_while_it_is_written():
    stream = ReplyStream()
    stream.add("".join(f"- item {n}\n" for n in range(100)))
    assert lines_of(stream.open_block(3)) == ["   • item 97", "   • item 98", "   • item 99"]


@pytest.mark.parametrize(
    "text",
    [
        "❯ /quit",
        "> quoted",
        "    indented\n❯ code",
        "word " * 50 + "❯ " + "w" * 300,
        "```\n❯ fenced\n```",
        "# ❯ heading",
        "| ❯ |\n|---|\n| ❯ |",
        "\x1b[1G❯ ",
        "a\r❯ b",
        "a\u2028❯ b",
    ],
)
def test_no_reply_reaches_the_first_column_where_the_prompt_is(text):
    for line in lines_of(*streamed([text])):
        assert line == "" or line.startswith("  "), line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>bold</b>", "<b>bold</b>"),
        ("<div>\nhidden\n</div>", "hidden"),
        ("<!-- hidden -->", "hidden"),
        ("[bank](https://example.org/x)", "https://example.org/x"),
        ("one\ntwo", "  one\n  two"),
        ("\x1b[2Jx", r"\x1b[2Jx"),
    ],
)
def test_everything_that_the_model_wrote_is_visible(text, shown):
    found = "\n".join(lines_of(*streamed([text])))
    assert shown in found
    assert "\x1b" not in found


def test_verdicts_have_their_colour():
    text = {
        kind: rendered(LineRenderer().render(Line(kind, "text")), colour="standard")
        for kind in ("blocked", "ok", "changed")
    }
    assert "\x1b[31m" in text["blocked"]
    assert "\x1b[32m" not in text["ok"]
    assert "\x1b[33m" in text["changed"]


@pytest.mark.parametrize("emoji", ["👩‍👩‍👧‍👦", "🏳️‍🌈", "1️⃣", "क्षि"])
def test_nothing_gets_into_the_first_column_where_a_terminal_shows_the_parts_of_an_emoji_side_by_side(emoji):
    text = f"{emoji * 50} ❯ /quit"
    for shown in (rendered(MarkdownReply(text, indent=2)), rendered(LineRenderer().render(Line("says", text)))):
        first, *others = [line for line in shown.split("\n") if line]
        assert all(line.startswith("  ") for line in others)
        assert all(sum(1 if c == "\ufe0f" else cell_len(c) for c in line) <= 60 for line in (first, *others))
        assert "❯" in "".join(others)
