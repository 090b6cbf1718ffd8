"""Texts that show a call to the people who approve it."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline._kernel.payloads import Question
from hookline.channels.approvals import PendingApproval, full_code, one_line, render_line, render_request, short_code
from hookline.stores.approvals import ApprovalRow

TEXTS = st.text(max_size=400) | st.text(" `\\\n\u202eab", max_size=900)
VALUES = st.recursive(TEXTS | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=4))


def row_of(arguments=None, **fields):
    now = time.time()
    values = {
        "id": "appr_1",
        "run_id": "r",
        "root_id": "r",
        "call_id": "c",
        "attempt": 1,
        "tool": "write",
        "arguments": arguments or {},
        "questions": (Question("May it?", "guard", "it is new"),),
        "digest": "d",
        "agent": "bot",
        "session_id": "s",
        "owner": "channel:x",
        "correlation_id": "m",
        "asked": now,
        "expires": now + 60,
        "status": "pending",
        "decided": None,
        "by": "",
        "message": "",
        "edit": None,
        "remember": "once",
    }
    return ApprovalRow(**values | fields)


def pending(arguments=None, *, decidable=True, **fields):
    return PendingApproval("key", row_of(arguments, **fields), "A7K2", decidable)


def blocks(texts):
    """The contents of the code blocks in the texts."""
    found = []
    for text in texts:
        if "\n```\n" in text:
            found.append(text.split("\n```\n", 1)[1].rpartition("\n```")[0])
    return found


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES, max_size=5), st.integers(150, 5000) | st.none(), st.booleans())
def test_arguments_are_shown_exactly_when_they_are_split(arguments, limit, wide):
    def length(text):
        return len(text.encode("utf-16-le", "surrogatepass")) // 2 if wide else len(text)

    texts, complete = render_request(pending(arguments), limit=limit, length=length)
    assert complete
    assert json.loads("".join(blocks(texts))) == arguments
    if limit is not None:
        assert all(length(text) <= limit for text in texts[1:-1])
    assert all(c.isprintable() or c == "\n" for text in texts for c in text)
    assert sum(line == "```" for text in texts for line in text.split("\n")) == 2 * len(blocks(texts))


@given(st.text(), st.text(), st.text())
def test_text_from_a_model_cannot_start_a_new_line(tool, text, reason):
    row = {"tool": tool, "agent": text, "questions": (Question(text, tool, reason),)}
    (message,), _ = render_request(pending({"a": text}, **row))
    lines = message.split("\n")
    assert lines[0].startswith("A7K2: ")
    fences = [number for number, line in enumerate(lines) if line == "```"]
    assert fences[0] == 1
    assert len(fences) == 2
    assert all(line[0] in "{ }" for line in lines[2 : fences[1]])  # JSON, on several lines if it is long
    assert len(lines) == fences[1] + 4
    assert "`" not in one_line(text)


def test_hidden_and_very_long_arguments_are_not_shown():
    texts, complete = render_request(pending({"path": "plans"}, decidable=False), hide_arguments=True)
    assert "plans" not in "".join(texts)
    assert not complete
    texts, complete = render_request(pending({"path": "plans" * 10_000}))
    assert "plans" not in "".join(texts)
    assert "50," in texts[0]
    assert not complete
    assert "plans" not in render_line(pending({"path": "plans"}), hide_arguments=True)


def test_a_list_marks_arguments_that_it_cuts():
    assert "(cut; the request above has all of it)" in render_line(pending({"a": "b" * 500}), hide_arguments=False)


@pytest.mark.parametrize("others", [0, 1, 40])
def test_pending_calls_of_a_conversation_have_different_codes(others):
    known = [PendingApproval("key", row_of(id=f"appr_{number}"), "", True) for number in range(others)]
    codes = set()
    for number, other in enumerate(known):
        codes.add(short_code("key", other.row.id, known[:number]))
    assert len(codes) == others
    assert full_code("key", "appr_1") != full_code("another", "appr_1")


def test_a_code_is_longer_if_its_beginning_is_taken(monkeypatch):
    monkeypatch.setattr("hookline.channels.approvals.full_code", lambda key, id: "AAAAAA" + id)
    assert short_code("key", "B", [PendingApproval("key", row_of(id="C"), "", True)]) == "AAAAAAB"
