import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.channels.splitting import is_inside_character, split

pieces = st.sampled_from(
    [
        "word ",
        "a",
        "\n",
        "\n\n",
        "End. ",
        "e\u0301",
        "👨‍👩‍👧",
        "🇩🇪",
        "👍🏽",
        "\r\n",
        "한국",
        "\u1112\u1161\u11ab",
        "x" * 30,
        "\t",
    ]
)
plain = st.lists(pieces, max_size=40).map("".join)
lengths = st.sampled_from([len, lambda text: len(text.encode()), lambda text: len(text.encode("utf-16-le")) // 2])


def bare(text):
    return re.sub(r"\s", "", text)


@given(plain, st.integers(30, 80), lengths)
def test_parts_fit_the_limit_and_lose_only_white_space_at_the_cuts(text, limit, length):
    parts = split(text, limit, length)
    assert all(0 < length(part) <= limit for part in parts)
    assert bare("".join(parts)) == bare(text)
    at = 0
    for part in parts:  # nothing but white space is between two parts, and within one nothing changed
        found = text.index(part, at)
        assert not text[at:found].strip()
        at = found + len(part)
    assert not text[at:].strip()


@given(plain, st.integers(30, 80))
def test_a_visible_character_is_not_cut(text, limit):
    at = 0
    for part in split(text, limit)[:-1]:
        at = text.index(part, at) + len(part)
        assert not is_inside_character(text, at) or text[at - 1 : at + 1].isspace()
        assert not unicodedata.combining(text[at])


def test_splitting_does_not_measure_the_whole_text_repeatedly():
    measured = 0

    def length(text):
        nonlocal measured
        measured += len(text)
        return len(text)

    text = "some words and so on. " * 10_000
    assert bare("".join(split(text, 1000, length))) == bare(text)
    assert measured < 50 * len(text)


@given(st.text(max_size=60), st.integers(1, 12))
def test_splitting_terminates_for_every_text_and_limit(text, limit):
    parts = split(text, limit)
    assert all(0 < len(part) <= limit for part in parts)
    assert bare("".join(parts)) == bare(text) or "```" in text or "~~~" in text


@given(st.lists(st.text("abc {}", min_size=1, max_size=30), min_size=1, max_size=20), st.integers(40, 90))
def test_a_cut_code_block_is_closed_and_opened_again(lines, limit):
    code = "\n".join(lines)
    parts = split(f"Look:\n```python\n{code}\n```\nDone.", limit)
    assert all(len(part) <= limit for part in parts)
    assert all(part.count("```") % 2 == 0 for part in parts)
    assert bare("".join(parts)).replace("```", "").replace("python", "") == bare(f"Look:{code}Done.")


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("One.\n\nTwo words.", 12, ["One.", "Two words."]),
        ("First paragraph.\n\nSecond line\nthird", 30, ["First paragraph.", "Second line\nthird"]),
        ("one two three\nfour five", 20, ["one two three", "four five"]),
        ("It is so. And it goes on", 20, ["It is so.", "And it goes on"]),
        ("one two three four", 10, ["one two", "three four"]),
        ("x" * 25, 10, ["x" * 10, "x" * 10, "x" * 5]),
        ("🇩🇪🇫🇷🇮🇹", 3, ["🇩🇪", "🇫🇷", "🇮🇹"]),
        ("short", 10, ["short"]),
        ("  \n ", 10, []),
        ("anything", None, ["anything"]),
    ],
)
def test_cuts_prefer_paragraphs_lines_and_sentences(text, limit, parts):
    assert split(text, limit) == parts
