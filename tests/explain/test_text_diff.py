"""Differences between texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.explain.text_diff import diff_text, fold

words = st.text(st.sampled_from("ab \n.,-é\u2028"), max_size=40)
texts = st.one_of(words, st.text(max_size=60))


@given(texts, texts)
def test_the_parts_contain_both_texts(old, new):
    parts = diff_text(old, new)
    assert "".join(text for op, text in parts if op in "=-") == old
    assert "".join(text for op, text in parts if op in "=+") == new
    assert all(text for _, text in parts)


@pytest.mark.parametrize(("before", "after"), [(200, 300), (2000, 1900), (0, 3000), (3000, 3000)])
def test_long_texts_are_compared_too(before, after):
    old, new = "word and\n" * before, "word or\n" * after
    parts = diff_text(old, new)
    assert "".join(text for op, text in parts if op in "=-") == old
    assert "".join(text for op, text in parts if op in "=+") == new


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("same", "same", [("=", "same")]),
        ("", "", []),
        ("", "new", [("+", "new")]),
        ("rm -rf /tmp/x", "rm -r /tmp/x", [("=", "rm -"), ("-", "rf"), ("+", "r"), ("=", " /tmp/x")]),
        # Fragments that are equal by chance are part of the change.
        (
            "card 4111-1111-1111-1111.",
            "card [card number].",
            [("=", "card "), ("-", "4111-1111-1111-1111"), ("+", "[card number]"), ("=", ".")],
        ),
    ],
)
def test_a_difference_consists_of_whole_words(old, new, parts):
    assert diff_text(old, new) == parts


def test_a_long_equal_part_is_left_out_and_counted():
    same = "nothing to see here " * 40
    parts = fold(diff_text(f"{same}old {same}", f"{same}new {same}"))
    assert [op for op, _ in parts] == ["~", "=", "-", "+", "=", "~"]
    assert parts[0][1].endswith("equal characters")
    shown = sum(len(text) for op, text in parts if op == "=")
    assert shown < 140
    left_out = sum(int(text.split()[0].replace(",", "")) for op, text in parts if op == "~")
    assert shown + left_out == 2 * len(same) + 1  # the space after the change


def test_a_very_long_change_is_cut_and_counted():
    assert fold([("+", "x" * 5000)], longest=1000) == [("+", "x" * 1000), ("~", "4,000 more characters")]
