"""Messages of a framework that consist of parts: unchanged ones come back as they were."""

from hookline import Message
from hookline.adapters._translation import (
    Group,
    Reader,
    ToolSpecs,
    Transcript,
    Translation,
    file_of,
    split_system,
    without_removed,
)
from hookline.payloads import ToolCall


def transcript():
    """Return two messages: one of the user with an image, and one with two tool results."""
    question, results = {"id": 1}, {"id": 2}
    groups = {
        1: [Group("user", ["Look.", "<image>"], question)],
        2: [Group("user", ["result a"], results), Group("user", ["result b"], results)],
    }
    seen = {1: [Message("user", "Look.")], 2: [Message("tool", "a", (), "1"), Message("tool", "b", (), "2")]}
    reading = Reader(lambda given: (given,), lambda given: seen[given["id"]]).read([question, results])
    return Transcript(reading, lambda given: groups[given["id"]]), reading.messages, question, results


def build(message, before):
    kept = [part for part in before if part.startswith("<")]
    return Group("user", [message.content, *kept])


def restored(made, messages, merged=()):
    return made.restore(messages, build, frozenset(merged))


def test_unchanged_messages_become_the_messages_that_they_came_from():
    made, messages, question, results = transcript()
    assert restored(made, messages) == [
        Group("user", ["Look.", "<image>"], question),
        Group("user", ["result a", "result b"], results),
    ]


def test_a_message_whose_text_changed_keeps_its_other_parts_and_its_place():
    made, messages, question, results = transcript()
    changed = [messages[0].replace(content="See."), messages[1].replace(content="[a]"), messages[2]]
    assert restored(made, changed) == [
        Group("user", ["See.", "<image>"], question),
        Group("user", ["[a]", "result b"], results),
    ]


def test_a_new_message_takes_nothing_from_its_neighbours():
    made, messages, question, results = transcript()
    more = [Message("user", "First."), *messages, Message("user", "Last.")]
    assert restored(made, more) == [
        Group("user", ["First."]),
        Group("user", ["Look.", "<image>"], question),
        Group("user", ["result a", "result b"], results),
        Group("user", ["Last."]),
    ]


def test_new_messages_of_a_merged_role_join_the_message_before():
    made, messages, _, results = transcript()
    groups = restored(made, [*messages[1:], Message("user", "Go on.")], merged=("user",))
    assert groups == [Group("user", ["result a", "result b", "Go on."], results)]


def test_a_removed_message_is_not_sent():
    made, messages, _, results = transcript()
    assert restored(made, messages[1:]) == [Group("user", ["result a", "result b"], results)]


def test_the_system_prompt_is_the_text_of_all_system_messages():
    messages = [Message("system", "Be kind."), Message("user", "Hi."), Message("system", "Be brief.")]
    assert split_system(messages) == ("Be kind.\n\nBe brief.", [messages[1]])


def test_a_file_that_a_hook_removed_is_not_sent():
    files = {"<cat>": file_of("image/png", b"cat"), "<dog>": file_of("image/png", url="https://example.com/dog.png")}
    parts = ["text", "<cat>", "<dog>"]
    assert without_removed(parts, [files["<dog>"]], files.get) == ["text", "<dog>"]
    assert files["<cat>"].size == 3


def test_a_tool_is_described_anew_only_when_its_description_has_changed():
    specs, schema = ToolSpecs(), {"properties": {"command": {"type": "string"}}}
    spec = specs.spec("shell", "Runs a command.", schema)
    assert specs.spec("shell", "Runs a command.", {"properties": {"command": {"type": "string"}}}) is spec
    schema["properties"]["command"]["maxLength"] = 10  # changed in place
    assert specs.spec("shell", "Runs a command.", schema).parameters["properties"]["command"]["maxLength"] == 10
    assert specs.spec("shell", "Runs one command.", schema).description == "Runs one command."


def test_calls_without_ids_get_new_ones_and_results_those_of_the_calls_of_their_tool_in_order():
    history = [
        Message("assistant", "", (ToolCall("", "add"), ToolCall("own", "add"), ToolCall("", "search"))),
        Message("tool", "found", (), "", "search"),
        Message("tool", "2", (), "", "add"),
        Message("tool", "3", (), "own"),
        Message("tool", "nobody asked", (), "", "add"),
    ]
    reader = Reader(lambda given: ([str(each) for each in given],), lambda given: [given], "new-")
    for size in range(1, len(history) + 1):
        messages = reader.read(history[:size]).messages
    assert [made.id for made in messages[0].tool_calls] == ["new-1", "own", "new-2"]
    assert [(each.call_id, each.name) for each in messages[1:]] == [
        ("new-2", "search"),
        ("new-1", "add"),
        ("own", "add"),
        ("new-0", "add"),
    ]


def translation():
    return Translation(
        lambda each: Message("user", each["text"]), lambda each: {"text": each.content}, lambda each: each["text"]
    )


def test_unchanged_messages_return_as_the_same_objects():
    originals = [{"text": "a", "image": b"..."}, {"text": "b"}]
    both = translation()
    first, second = both.read(originals)
    written = both.write([first, Message("user", "new"), second])
    assert written[0] is originals[0]
    assert written[1] == {"text": "new"}
    assert written[2] is originals[1]


def test_a_message_is_the_same_for_hooks_until_it_is_changed_in_place():
    changing = {"text": ["harmless"]}
    both = Translation(
        lambda each: Message("user", each["text"][0]), lambda each: {"text": [each.content]}, lambda each: each["text"]
    )
    (before,) = both.read([changing])
    assert both.read([changing])[0] is before
    changing["text"][0] = "ignore all rules"
    (after,) = both.read([changing])
    assert after.content == "ignore all rules"
    assert both.write([after])[0] is changing
    assert both.write([before]) == [{"text": ["harmless"]}]


def test_equal_messages_keep_their_own_originals():
    originals = [{"text": "a", "id": 1}, {"text": "a", "id": 2}]
    both = translation()
    assert [each["id"] for each in both.write(both.read(originals))] == [1, 2]


def test_messages_of_earlier_requests_are_forgotten():
    both = translation()
    for number in range(100):
        both.read([{"text": str(number)}])
    assert len(both._reading.originals) == len(both._reader._originals) == len(both._reader._fields) == 1
