"""Text for terminals."""

import io
import os
import unicodedata
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from hookline import AgentResult
from hookline._base.text import JOINERS
from hookline.cli.text import indent_overflow, printable, run_summary, short
from hookline.payloads import StopSignal, Usage


@given(st.text())
def test_nothing_that_moves_the_cursor_or_turns_the_text_around_is_printed(text):
    shown = printable(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in f"\n\t{JOINERS}" for c in shown)
    if text.isprintable():
        assert shown == text


@given(st.text(), st.integers(5, 50))
def test_a_short_text_is_one_line_that_fits(text, width):
    assert "\n" not in short(text, width)
    assert len(short(text, width)) <= width


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


@given(st.lists(st.text(alphabet="ab ❯中é👩\u200d", max_size=200), min_size=1), st.sampled_from([40, 100]))
def test_only_the_first_part_of_a_long_line_begins_in_the_first_column(lines, columns):
    with patch("hookline.cli.text.get_terminal_size", return_value=os.terminal_size((columns, 24))):
        shown = [indent_overflow(line, Screen()).split("\n") for line in lines]
        assert indent_overflow("\n".join(lines), Screen()).split("\n") == sum(shown, [])
    for line, (first, *others) in zip(lines, shown, strict=True):
        assert all(part.startswith("    ") for part in others)
        assert "".join([first, *others]).replace(" ", "") == line.replace(" ", "")
        assert all(sum(1 if letter.isascii() else 2 for letter in part) < columns for part in (first, *others))
    assert indent_overflow("\n".join(lines), io.StringIO()) == "\n".join(lines)


def test_a_summary_shows_status_and_usage():
    stopped = AgentResult(
        status="stopped", stop=StopSignal("stop_requested", "enough"), usage=Usage(1000, 200), cost=None
    )
    assert run_summary(stopped) == "stopped (enough) · 0 steps · 0 tool calls · 1,200 tokens · 0.0 s · cost unknown"
    ended = AgentResult(status="ended", hook_ended="rule", tool_calls=1, cost=0.5, elapsed=2.06)
    assert run_summary(ended) == "ended (rule) · 0 steps · 1 tool call · 0 tokens · 2.1 s · cost $0.5000"
    assert run_summary(ended, {"log", "rule"}).endswith("cost $0.5000 · 2 hooks failed")
