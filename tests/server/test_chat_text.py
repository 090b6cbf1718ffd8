"""What an agent says, as one text: what counts, and what a stream brings."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.server.chat.reply import ChatReply
from hookline.stores.runs import StoredEvent


def event(type, **fields):
    return StoredEvent("run_1", 1, type, 0.0, json.dumps({"type": type, "seq": 1, **fields}).encode())


def delta(text, purpose="step"):
    return event("text_delta", text=text, purpose=purpose)


def replied(content, *calls, purpose="step", finish="stop"):
    return event("model_replied", content=content, tool_calls=list(calls), purpose=purpose, finish_reason=finish)


def finished(reply="", status="completed", kind="completed"):
    return event("run_finished", result={"reply": reply, "status": status, "stop": {"kind": kind}, "steps": []})


def closed(status="completed"):
    return event("run_closed", status=status, usage={"input_tokens": 3, "output_tokens": 2})


DISCARDED = event("discarded")
CALL = {"id": "c", "name": "look", "arguments": {}}


def told(events, *, live=True):
    """What a stream brings, and what counts."""
    said = ChatReply(live=live)
    return "".join(map(said.add_event, events)), said


def both(*events):
    streamed, said = told(events)
    settled, other = told(events, live=False)
    assert said.text == other.text == settled
    return streamed, settled


def test_steps_are_apart_and_space_around_them_is_left_out():
    first = [delta("\nLet me"), delta(" look. "), delta("\n"), replied("\nLet me look. \n", CALL)]
    second = [delta(" "), replied(" ", CALL)]
    third = [delta("It"), delta("\n is"), replied("It\n is"), finished("It\n is"), closed()]
    assert both(*first, *second, *third) == ("Let me look.\n\nIt\n is",) * 2


def test_what_is_said_inside_is_not_told():
    inner = event("subagent_event", event={"type": "text_delta", "text": "inner", "purpose": "step"})
    events = [inner, delta("judge", "judge"), replied("judge", purpose="judge"), delta("me"), replied("me")]
    assert both(*events, finished("me")) == ("me", "me")


def test_a_rejected_reply_is_followed_by_the_one_that_counts():
    events = [delta("bad"), DISCARDED, delta("good"), replied("good"), finished("good"), closed()]
    assert both(*events) == ("bad\n\ngood", "good")


@pytest.mark.parametrize(
    ("shown", "content", "streamed"),
    [
        ("secret", "***", "secret\n\n***"),
        ("so far", "so far, and more", "so far, and more"),
        ("", "held back", "held back"),
        ("call it", "", "call it"),
        ("same \n", " same", "same"),
    ],
)
def test_a_reply_that_was_changed_afterwards_is_told_again(shown, content, streamed):
    assert both(delta(shown), replied(content), finished(content)) == (streamed, content.strip())


def test_the_last_word_is_what_the_end_of_the_run_made_of_it():
    events = [delta("one"), replied("one", CALL), delta("two"), replied("two")]
    assert both(*events, finished("***")) == ("one\n\ntwo\n\n***", "one\n\n***")
    assert both(*events, finished("two, signed")) == ("one\n\ntwo, signed",) * 2
    assert both(*events, finished("")) == ("one\n\ntwo", "one")


def test_a_run_without_words_may_end_with_some():
    assert both(replied("", CALL), finished("done")) == ("done", "done")
    assert both(delta("one"), replied("one", CALL), replied("", CALL), finished("", "stopped")) == ("one", "one")


def test_the_reply_of_a_hook_that_ended_the_run_is_the_last():
    assert both(finished("No.", "ended")) == ("No.", "No.")
    assert both(delta("bad"), finished("No.", "ended")) == ("bad\n\nNo.", "No.")
    assert both(delta("a"), replied("a", CALL), delta("b"), finished("No.", "ended")) == ("a\n\nb\n\nNo.", "a\n\nNo.")


def test_text_that_was_not_settled_does_not_count():
    assert both(delta("half of"), finished("", "stopped", "time_limit")) == ("half of", "")


def test_runs_that_follow_a_handoff_are_one_answer():
    first = [event("run_started"), delta("one"), replied("one", CALL), finished("one")]
    second = [event("run_started"), delta("two"), replied("two"), finished("two!"), closed()]
    assert both(*first, *second) == ("one\n\ntwo!",) * 2
    assert both(*first, event("run_started"), finished("one")) == ("one\n\none",) * 2


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([replied("x"), finished("x"), closed()], "stop"),
        ([replied("x", finish="length"), finished("x"), closed()], "length"),
        ([replied("x", finish="content_filter"), finished("x"), closed()], "content_filter"),
        ([replied("x", finish="other"), finished("x"), closed()], "stop"),
        ([finished("", "stopped", "steps_limit"), closed("stopped")], "length"),
        ([finished("", "stopped", "stop_requested"), closed("stopped")], "stop"),
        ([finished("No.", "ended", "stop_requested"), closed("ended")], "content_filter"),
    ],
)
def test_why_there_is_no_more(events, reason):
    said = told(events)[1]
    assert said.finish_reason == reason
    assert said.usage.total_tokens == 5


words = st.text("ab \n", max_size=6)
step = st.tuples(st.lists(st.lists(words, max_size=3), max_size=2), st.lists(words, max_size=3), st.none() | words)


@settings(max_examples=80)
@given(st.lists(step, max_size=4), st.none() | words, st.sampled_from(["completed", "stopped", "ended"]))
def test_a_settled_stream_is_what_counts_and_a_live_one_too_unless_something_was_taken_back(steps, last, status):
    events, taken_back, words = [event("run_started")], False, ""
    for number, (rejected, deltas, content) in enumerate(steps):
        for attempt in rejected:
            events += [*map(delta, attempt), DISCARDED]
            taken_back |= bool("".join(attempt).strip())
        counts = "".join(deltas) if content is None else content
        taken_back |= content is not None and not content.strip().startswith("".join(deltas).strip())
        words = counts.strip() or words
        events += [*map(delta, deltas), replied(counts, *([CALL] * (number + 1 < len(steps))))]
    end = words if last is None else last.strip()
    taken_back |= status != "ended" and not end.startswith(words)
    streamed, settled = both(*events, finished(end, status))
    if not taken_back:
        assert streamed == settled
    assert settled.endswith(end)
    assert settled == settled.strip()
