"""The text of a chat reply: the final reply, and the pieces of a stream."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.server.chat.reply import ChatReply
from hookline.stores.runs import StoredEvent
from tests.properties import examples


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


def streamed_and_reply(events, *, live=True):
    """The streamed text and the final reply."""
    reply_found = ChatReply(live=live)
    return "".join(map(reply_found.add_event, events)), reply_found


def both(*events):
    streamed, reply_found = streamed_and_reply(events)
    settled, other = streamed_and_reply(events, live=False)
    assert reply_found.text == other.text == settled
    return streamed, settled


def test_steps_are_separated_and_stripped_of_white_space():
    first = [delta("\nLet me"), delta(" look. "), delta("\n"), replied("\nLet me look. \n", CALL)]
    second = [delta(" "), replied(" ", CALL)]
    third = [delta("It"), delta("\n is"), replied("It\n is"), finished("It\n is"), closed()]
    assert both(*first, *second, *third) == ("Let me look.\n\nIt\n is",) * 2


def test_texts_of_subagents_and_judges_are_left_out():
    inner = event("subagent_event", event={"type": "text_delta", "text": "inner", "purpose": "step"})
    events = [inner, delta("judge", "judge"), replied("judge", purpose="judge"), delta("me"), replied("me")]
    assert both(*events, finished("me")) == ("me", "me")


def test_a_rejected_reply_is_followed_by_the_valid_one():
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
def test_a_reply_that_a_hook_changes_is_sent_again(shown, content, streamed):
    assert both(delta(shown), replied(content), finished(content)) == (streamed, content.strip())


def test_the_final_reply_replaces_the_last_step():
    events = [delta("one"), replied("one", CALL), delta("two"), replied("two")]
    assert both(*events, finished("***")) == ("one\n\ntwo\n\n***", "one\n\n***")
    assert both(*events, finished("two, signed")) == ("one\n\ntwo, signed",) * 2
    assert both(*events, finished("")) == ("one\n\ntwo", "one")


def test_a_run_without_text_may_end_with_a_reply():
    assert both(replied("", CALL), finished("done")) == ("done", "done")
    assert both(delta("one"), replied("one", CALL), replied("", CALL), finished("", "stopped")) == ("one", "one")


def test_the_reply_of_a_hook_that_ended_the_run_comes_last():
    assert both(finished("No.", "ended")) == ("No.", "No.")
    assert both(delta("bad"), finished("No.", "ended")) == ("bad\n\nNo.", "No.")
    assert both(delta("a"), replied("a", CALL), delta("b"), finished("No.", "ended")) == ("a\n\nb\n\nNo.", "a\n\nNo.")


def test_unsettled_text_is_not_part_of_the_reply():
    assert both(delta("half of"), finished("", "stopped", "time_limit")) == ("half of", "")


def test_runs_after_a_handover_form_one_reply():
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
def test_the_finish_reason_says_why_the_reply_ends(events, reason):
    reply_found = streamed_and_reply(events)[1]
    assert reply_found.finish_reason == reason
    assert reply_found.usage.total_tokens == 5


words = st.text("ab \n", max_size=6)
step = st.tuples(st.lists(st.lists(words, max_size=3), max_size=2), st.lists(words, max_size=3), st.none() | words)


@settings(max_examples=examples(80))
@given(st.lists(step, max_size=4), st.none() | words, st.sampled_from(["completed", "stopped", "ended"]))
def test_streams_add_up_to_the_reply_unless_streamed_text_was_rejected(steps, last, status):
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
