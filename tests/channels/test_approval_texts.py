"""How calls that wait for approval are put to people."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline._kernel.payloads import Question
from hookline.channels.approvals import short_code
from hookline.stores.approvals import ApprovalRow

TEXTS = st.text(max_size=400) | st.text(" `\\\n\u202eab", max_size=900)
VALUES = st.recursive(TEXTS | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=4))


def row_of(arguments=None, **fields):
    now = time.time()
    values = {
        "id": "appr_1", "run_id": "r", "root_id": "r", "call_id": "c", "attempt": 1, "tool": "write",
        "arguments": arguments or {}, "questions": (Question("May it?", "guard", "it is new"),), "digest": "d",
        "agent": "bot", "session_id": "s", "owner": "channel:x", "correlation_id": "m", "asked": now,
        "expires": now + 60, "status": "pending", "decided": None, "by": "", "message": "", "edit": None,
        "remember": "once",
    }  # fmt: skip
    return ApprovalRow(**values | fields)


def question_of(arguments=None, *, answerable=True, **fields):
    return Open("key", row_of(arguments, **fields), "A7K2", answerable)


def blocks(texts):
    """What stands in the blocks of code."""
    found = []
    for text in texts:
        if "\n```\n" in text:
            found.append(text.split("\n```\n", 1)[1].rpartition("\n```")[0])
    return found


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES, max_size=5), st.integers(150, 5000) | st.none(), st.booleans())
def test_arguments_are_there_exactly_however_they_are_split(arguments, limit, wide):
    def length(text):
        return len(text.encode("utf-16-le", "surrogatepass")) // 2 if wide else len(text)

    texts, whole = shown(question_of(arguments), limit=limit, length=length)
    assert whole
    assert json.loads("".join(blocks(texts))) == arguments
    if limit is not None:
        assert all(length(text) <= limit for text in texts[1:-1])
    assert all(c.isprintable() or c == "\n" for text in texts for c in text)
    assert sum(line == "```" for text in texts for line in text.split("\n")) == 2 * len(blocks(texts))


@given(st.text(), st.text(), st.text())
def test_nothing_that_a_model_says_begins_a_line_of_its_own(tool, text, reason):
    row = {"tool": tool, "agent": text, "questions": (Question(text, tool, reason),)}
    (message,), _ = shown(question_of({"a": text}, **row))
    lines = message.split("\n")
    assert lines[0].startswith("A7K2: ")
    fences = [place for place, line in enumerate(lines) if line == "```"]
    assert fences[0] == 1
    assert len(fences) == 2
    assert all(line[0] in "{ }" for line in lines[2 : fences[1]])  # JSON, on several lines if it is long
    assert len(lines) == fences[1] + 4
    assert "`" not in plain(text)


def test_a_secret_call_and_one_that_is_too_long_show_no_arguments():
    texts, whole = shown(question_of({"path": "plans"}, answerable=False), secret=True)
    assert "plans" not in "".join(texts)
    assert not whole
    texts, whole = shown(question_of({"path": "plans" * 10_000}))
    assert "plans" not in "".join(texts)
    assert "50," in texts[0]
    assert not whole
    assert "plans" not in listed(question_of({"path": "plans"}), secret=True)


def test_a_list_says_where_it_cuts():
    assert "(cut: it is in the question, above)" in listed(question_of({"a": "b" * 500}), secret=False)


@pytest.mark.parametrize("others", [0, 1, 40])
def test_codes_of_calls_that_wait_together_differ(others):
    known = [Open("key", row_of(id=f"appr_{number}"), "", True) for number in range(others)]
    codes = set()
    for number, other in enumerate(known):
        codes.add(short_code("key", other.row.id, known[:number]))
    assert len(codes) == others
    assert code_of("key", "appr_1") != code_of("another", "appr_1")


def test_a_code_grows_until_it_is_the_only_one(monkeypatch):
    monkeypatch.setattr("hookline.channels.approvals.full_code", lambda key, id: "AAAAAA" + id)
    assert short_code("key", "B", [Open("key", row_of(id="C"), "", True)]) == "AAAAAAB"
