"""Values, payloads and events as JSON; the rules of state= (DESIGN 6.1)."""

from functools import reduce
from operator import or_

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    BEFORE_TOOL,
    AgentResult,
    Event,
    Message,
    ModelReply,
    ModelRequest,
    ToolCallRequest,
    ToolCallResult,
)
from hookline._base.frozen import FrozenDict, History
from hookline._kernel import payloads, values
from hookline._kernel.payloads import ApprovalAnswer, Compaction, PromptBuild
from hookline._run.termination import signal_rank
from hookline.events import PointFired
from hookline.hooks import HookAction
from hookline.models import ModelResponse
from hookline.payloads import AgentState, ErrorInfo, Frozen, Ids, Step, StopSignal, ToolCall, ToolSpec, Usage
from hookline.points import POINTS
from hookline.testing import _sample_of, sample
from tests.cases import each_case

IDS = Ids("run", "task", "corr", "session", "agent", "parent")
CALL = ToolCall("c1", "read", {"path": "a", "deep": [{"x": None}]})
ASKED = Message("assistant", "let me see", (CALL,))
RESULT = Message("tool", "text", call_id="c1", name="read")
HI = Message("user", "hi")
STEP = Step(1, "text", ("read",), ("ok",), Usage(1, 2, 3), "stop", 0.5)
STATE = AgentState(
    [HI, ASKED, RESULT],
    {"a": [1]},
    "be kind",
    {"type": "object"},
    [STEP],
    Usage(1, 2, 3),
    (StopSignal("completed", "done", "h"),),
    (ErrorInfo("tool", "ValueError", "no", "read", "c1", True),),
    IDS,
)
REQUEST = ModelRequest(
    (HI,), (ToolSpec("read", "Reads.", {"type": "object"}),), "m", 1, 2, "judge", {"a": 1}, "auto", {"t": 0.5}, IDS
)

FULL = [
    STATE,
    ASKED,
    RESULT,
    CALL,
    ToolCall("c2", "read", "not json"),
    ToolCallRequest("c1", "read", {"a": [1, {"b": None}]}, 2, 3, "raw", IDS),
    ToolCallResult("c1", "read", {"a": 1}, {"rows": [1, 2]}, "no", "error", 0.25, 1, 2, IDS),
    ToolCallResult("c1", "read", result=[1, "a", None]),
    Usage(1, 2, 3),
    STEP,
    StopSignal("cost_limit", "too dear", "h"),
    AgentResult("hi", "stopped", StopSignal(), "h", "t", [STEP], Usage(1), None, 2, ("a", "b"), 1, [HI], (), 1.5, IDS),
    REQUEST,
    ModelReply("text", (CALL,), 1, 2, "step", Usage(1), 0.5, "stop", "m", "p", "o", 0.5, REQUEST, "judge", IDS),
    ModelResponse("text", (CALL,), Usage(1, 2), "length", None, "m", "p", "o"),
    PromptBuild((HI, ASKED), "p", IDS),
    Compaction((HI, ASKED), "full", IDS),
    ApprovalAnswer(edit={"a": [1]}, by="ann"),
]


def classes(module, base):
    return [
        c
        for c in vars(module).values()
        if isinstance(c, type) and issubclass(c, base) and c.__module__ == module.__name__
    ]


def subclasses(base):
    for cls in base.__subclasses__():
        yield cls
        yield from subclasses(cls)


def example(cls):
    """Create an instance with a value in every field of a simple type."""
    simple = {str: "x", int: 3, float: 0.5, bool: True}
    given = {f.name: simple[f.type] for f in msgspec.structs.fields(cls) if f.type in simple}
    return _sample_of(cls).replace(given)


EVENTS = sorted((c for c in subclasses(Event) if c.__module__.startswith("hookline.")), key=lambda c: c.__name__)


@each_case("value", FULL)
def test_a_value_survives_json(value):
    again = type(value).from_json(value.to_json())
    assert again == value
    assert again.to_json() == value.to_json()


@each_case("cls", [*classes(payloads, Frozen), *classes(values, Frozen)])
def test_every_payload_and_value_class_survives_json(cls):
    value = example(cls)
    assert cls.from_json(value.to_json()) == value


@each_case("point", POINTS.values())
def test_the_payload_of_every_point_survives_json(point):
    payload = sample(point)
    assert type(payload).from_json(payload.to_json()) == payload


@each_case("cls", EVENTS)
def test_every_event_class_survives_json_and_names_its_type(cls):
    event = example(cls)
    assert cls.from_json(event.to_json()) == event
    assert event.payload["type"] == msgspec.inspect.type_info(cls).tag
    assert event.payload["seq"] == 3


def test_a_point_in_an_event_is_its_name():
    event = PointFired(point=BEFORE_TOOL, verb=HookAction.BLOCK)
    again = PointFired.from_json(event.to_json())
    assert again == event
    assert (type(again.point), again.point, again.verb) == (str, "before_tool", "block")
    assert type(event.payload["point"]) is str


@pytest.mark.parametrize("text", ["\ud800", "caf\u00e9 \udcff"])
def test_text_that_is_no_unicode_does_not_break_json(text):
    for value in (Message("user", text), ToolCallResult("1", "t", {text: text}, [text])):
        again = type(value).from_json(value.to_json())
        assert type(again) is type(value)
    with pytest.raises(ValueError, match="lone surrogate"):  # another text would have the same digest
        _ = ToolCallRequest("1", "t", {"a": text}).digest


def test_events_of_different_types_can_be_told_apart_in_json():
    union = msgspec.json.Decoder(type=reduce(or_, EVENTS))
    for cls in EVENTS:
        assert type(union.decode(example(cls).to_json())) is cls
    assert len({msgspec.inspect.type_info(cls).tag for cls in EVENTS}) == len(EVENTS)


def test_event_tags_are_the_class_names_in_snake_case():
    tags = {cls.__name__: msgspec.inspect.type_info(cls).tag for cls in EVENTS}
    assert tags["ToolStarted"] == "tool_started"
    assert tags["JudgedBeforeRewrite"] == "judged_before_rewrite"
    assert tags["Discarded"] == "discarded"


def reachable(value):
    yield value
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from reachable(getattr(value, name))
    elif isinstance(value, dict):
        for part in value.values():
            yield from reachable(part)
    elif isinstance(value, (list, tuple, History)):
        for part in value:
            yield from reachable(part)


MUTABLE_INPUT = {
    "AgentState": lambda: AgentState([HI], {"a": [1]}, response_format={"a": []}, steps=[STEP]),
    "AgentResult": lambda: AgentResult(messages=[HI], steps=[STEP]),
    "ModelRequest": lambda: ModelRequest([HI], response_format={"a": []}, params={"a": []}),
    "PromptBuild": lambda: PromptBuild([HI]),
    "Compaction": lambda: Compaction([HI]),
    "Message": lambda: Message("assistant", "", [CALL]),
    "ModelReply": lambda: ModelReply("", [CALL]),
    "ModelResponse": lambda: ModelResponse("", [CALL]),
    "a request with a list of tools": lambda: ModelRequest([HI], [ToolSpec("t")]),
    "ToolCall": lambda: ToolCall("1", "t", {"a": [1]}),
    "ToolCallRequest": lambda: ToolCallRequest("1", "t", {"a": [1]}),
    "ToolCallResult": lambda: ToolCallResult("1", "t", {"a": [1]}, [{"a": []}]),
    "ToolSpec": lambda: ToolSpec("t", "", {"a": [1]}),
    "ApprovalAnswer": lambda: ApprovalAnswer(edit={"a": [1]}),
}


@pytest.mark.parametrize("make", MUTABLE_INPUT.values(), ids=MUTABLE_INPUT)
def test_nothing_reachable_from_a_value_can_be_changed_in_place(make):
    value = make()
    for version in (value, type(value).from_json(value.to_json()), value.replace(dict(value))):
        for part in reachable(version):
            assert type(part) not in (list, dict, set), f"{type(value).__name__} holds a {type(part).__name__}"


SHARED = {
    "a request": (ModelRequest([HI]).messages, lambda given: ModelRequest(given).messages),
    "a state": (AgentState([HI]).messages, lambda given: AgentState(given).messages),
    "a result": (AgentState([HI]).messages, lambda given: AgentResult(messages=given).messages),
    "steps of a result": (AgentState(steps=[STEP]).steps, lambda given: AgentResult(steps=given).steps),
    "a prompt": (AgentState([HI]).messages, lambda given: PromptBuild(given).history),
    "calls": ((CALL,), lambda given: Message("assistant", "", given).tool_calls),
    "arguments": (CALL.arguments, lambda given: ToolCallRequest("1", "t", given).arguments),
}


@pytest.mark.parametrize(("given_", "kept"), SHARED.values(), ids=SHARED)
def test_immutable_values_are_shared_and_not_copied(given_, kept):
    assert kept(given_) is given_


def test_lists_are_stored_as_immutable_sequences():
    result = AgentResult(messages=[HI], steps=[STEP])
    assert (result.messages, result.steps) == ((HI,), (STEP,))
    assert type(AgentState([HI]).messages) is type(AgentState(steps=[STEP]).steps) is History
    request = ModelRequest([HI], [ToolSpec("t")], response_format={"a": [1]}, params={"b": 2})
    assert (request.messages, request.tools) == ((HI,), (ToolSpec("t"),))
    assert (request.response_format, request.params) == ({"a": [1]}, {"b": 2})
    assert type(request.response_format) is type(request.params) is FrozenDict
    assert ModelRequest().response_format is None
    assert ToolCallResult("1", "t", result="text").result == "text"
    assert ApprovalAnswer().edit is None


def test_a_call_keeps_the_raw_text_it_was_given():
    assert ToolCall("1", "t", "nope", raw="as sent").raw == "as sent"
    assert ToolCall("1", "t", {"a": 1}, raw="as sent") == ToolCall("1", "t", {"a": 1}, "as sent")


# Values


def test_usage_adds_up_and_counts_input_and_output():
    assert Usage(1, 2, 3) + Usage(10, 20, 30) == Usage(11, 22, 33)
    assert Usage(1, 2, 3).total_tokens == 3


@pytest.mark.parametrize(
    ("given_", "arguments", "raw"),
    [
        ({"a": 1}, {"a": 1}, None),
        ('{"a": [1]}', {"a": [1]}, None),
        ("", {}, None),
        ("  ", {}, None),
        (None, {}, None),
        ("null", {}, None),
        ("[1]", {}, "[1]"),
        ([1], {}, "[1]"),
        ("nope", {}, "nope"),
        ('{"a":', {}, '{"a":'),
        ("3", {}, "3"),
        ("[" * 5000, {}, "[" * 5000),
        ({"a": {1, 2}}, {}, "<dict that is not usable JSON>"),
    ],
)
def test_arguments_are_a_frozen_object_or_the_raw_text(given_, arguments, raw):
    call = ToolCall("1", "t", given_)
    assert (call.arguments, call.raw) == (arguments, raw)
    assert type(call.arguments) is FrozenDict


def test_a_digest_depends_on_name_and_arguments_only():
    one = ToolCallRequest("1", "t", {"a": 1, "b": [2]})
    assert one.digest == ToolCallRequest("2", "t", {"b": [2], "a": 1}, hop=3).digest
    assert len({one.digest, one.replace(name="u").digest, one.replace(arguments={"a": 1}).digest}) == 3
    assert len(one.digest) == 64


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"result": "plain"}, "plain"),
        ({"result": {"a": [1, None]}}, '{"a":[1,null]}'),
        ({"result": None}, "null"),
        ({"result": 10**30}, str(10**30)),
        ({"result": "ignored", "error": "no"}, "no"),
        ({"error": ""}, ""),
    ],
)
def test_the_model_reads_the_error_or_the_result_as_text(fields, text):
    assert ToolCallResult("1", "t", **fields).text == text


def test_stop_signals_rank_as_in_the_design():
    signals = [StopSignal(kind) for kind in ("completed", "error", "stop_requested")]
    assert [signal.kind for signal in sorted(signals, key=signal_rank)] == ["error", "stop_requested", "completed"]
    assert signal_rank(StopSignal("error")) == 0


# AgentState


def test_the_state_makes_changed_copies():
    state = AgentState()
    grown = state.with_messages(HI).with_metadata(a=1).with_metadata(b=[2]).with_system_prompt("be kind")
    assert (list(grown.messages), grown.metadata, grown.system_prompt) == ([HI], {"a": 1, "b": [2]}, "be kind")
    assert state == AgentState()
    assert (state.step_count, state.current_step) == (0, None)
    assert (STATE.step_count, STATE.current_step) == (1, STEP)


@given(st.lists(st.text(), max_size=20))
def test_appending_messages_does_not_copy_the_history(texts):
    state = AgentState().with_messages(HI)
    buffer = state.messages._items
    for text in texts:
        state = state.with_messages(Message("user", text))
    assert state.messages._items is buffer
    assert [m.content for m in state.messages] == ["hi", *texts]


def test_two_branches_of_a_state_do_not_interfere():
    base = AgentState().with_messages(HI)
    one, two = base.with_messages(Message("user", "one")), base.with_messages(Message("user", "two"))
    assert [m.content for m in one.messages] == ["hi", "one"]
    assert [m.content for m in two.messages] == ["hi", "two"]
    assert len(base.messages) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": [HI]},
        {"metadata": {"b": 1}},
        {"system_prompt": "other"},
        {"response_format": None},
        {"messages": [HI, ASKED, RESULT, HI], "metadata": {}},
    ],
)
def test_a_hook_may_change_these_fields(changes):
    changed = STATE.replace(changes)
    accepted = STATE.accept(changed)
    assert accepted == changed
    assert STATE.accept(dict(changed)) == changed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", []),
        ("usage", Usage()),
        ("signals", ()),
        ("errors", ()),
        ("ids", Ids()),
    ],
)
def test_a_hook_may_not_change_what_belongs_to_the_loop(field, value):
    with pytest.raises(TypeError, match=f"a hook may not change {field}"):
        STATE.accept(STATE.replace({field: value}))


@pytest.mark.parametrize(
    "messages",
    [
        [HI, ASKED],
        [HI, RESULT],
        [HI, Message("assistant", "let me see"), RESULT],
        [HI, ASKED, RESULT, RESULT],
        [HI, ASKED, ASKED, RESULT],
        [HI, Message("assistant", "", (CALL.replace(id="c2"),)), RESULT],
        [HI, ASKED, RESULT.replace(call_id="c2")],
    ],
    ids=["result gone", "call gone", "call removed from message", "result twice", "call twice", "call id", "result id"],
)
def test_one_half_of_a_call_and_its_result_cannot_be_removed_or_added(messages):
    with pytest.raises(TypeError, match="together"):
        STATE.accept(STATE.replace(messages=messages))


@pytest.mark.parametrize(
    "messages",
    [
        [HI],
        [],
        [HI, ASKED.replace(content="other"), RESULT.replace(content="shorter")],
        [HI, ASKED, RESULT, Message("user", "more")],
        [Message("user", "before"), ASKED, RESULT],
    ],
    ids=["pair gone", "all gone", "pair rewritten", "appended", "first replaced"],
)
def test_whole_pairs_may_be_removed_and_texts_changed(messages):
    assert list(STATE.accept(STATE.replace(messages=messages)).messages) == messages


def test_a_result_cannot_be_moved_before_its_call():
    with pytest.raises(TypeError):
        STATE.accept(STATE.replace(messages=[HI, RESULT, ASKED]))


def test_an_open_call_may_stay_open():
    state = AgentState([HI, ASKED])
    assert len(state.accept(state.with_messages(HI)).messages) == 3
    with pytest.raises(TypeError, match="together"):
        state.accept(state.replace(messages=[HI]))


def test_a_call_that_a_hook_adds_must_come_with_its_result():
    other = ASKED.replace(tool_calls=(CALL.replace(id="c2"),))
    with pytest.raises(
        TypeError, match=r"AgentState.messages: a tool call and its result may only be removed together"
    ):
        STATE.accept(STATE.with_messages(other))
    answered = STATE.with_messages(other, RESULT.replace(call_id="c2"))
    assert STATE.accept(answered) == answered


def test_a_call_that_a_hook_appends_to_messages_the_run_appended_must_come_with_its_result_too():
    grown = STATE.with_messages(HI)
    with pytest.raises(TypeError, match="together"):
        grown.accept(grown.with_messages(ASKED.replace(tool_calls=(CALL.replace(id="c2"),))))


def test_results_come_in_the_order_of_their_calls():
    two = Message("assistant", "", (CALL, CALL.replace(id="c2")))
    first, second = RESULT, RESULT.replace(call_id="c2")
    state = AgentState([HI, two, first, second])
    with pytest.raises(TypeError, match="stay in order"):
        state.accept(state.replace(messages=[HI, two, second, first]))
    with pytest.raises(TypeError, match="together"):
        state.accept(state.replace(messages=[HI, two, first]))
    with pytest.raises(TypeError, match="together"):
        state.accept(state.replace(messages=[HI, two, first, HI, second]))
    same_id_twice = Message("assistant", "", (CALL, CALL))
    with pytest.raises(TypeError, match="together"):
        state.accept(state.replace(messages=[HI, same_id_twice, first, first]))


def test_calls_that_stay_open_are_compared_in_order():
    state = AgentState([ASKED, HI, Message("assistant", "", (CALL.replace(id="c2"), CALL.replace(id="c3")))])
    texts = [m.replace(content="other") for m in state.messages]
    assert [m.content for m in state.accept(state.replace(messages=texts)).messages] == ["other"] * 3
    with pytest.raises(TypeError, match="together"):
        state.accept(state.replace(messages=[state.messages[2], HI, ASKED]))
    with pytest.raises(TypeError, match="together"):
        state.accept(state.replace(messages=[HI, state.messages[2]]))


def test_only_appended_messages_are_checked_even_after_an_invalid_history():
    state = AgentState([RESULT, HI])
    grown = state.with_messages(HI)
    assert state.accept(grown) == grown
    with pytest.raises(TypeError, match="^AgentState.messages: a tool call and its result may only .* stay in order$"):
        state.accept(state.replace(messages=[RESULT]))


STEPS = (Step(0), Step(1))


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (
            {"reply": "42.", "steps": STEPS, "tool_calls": 1, "usage": Usage(1200, 34), "cost": 0.01234},
            "completed: 42.\n2 steps, 1 tool call, 1,234 tokens, 0.01234 USD",
        ),
        ({"cost": None}, "completed:\n0 steps, 0 tool calls, 0 tokens, cost unknown"),
        (
            {"status": "stopped", "stop": StopSignal("steps_limit", "5 steps"), "reply": "So far"},
            "stopped (steps_limit): So far\n0 steps, 0 tool calls, 0 tokens, 0 USD",
        ),
        (
            {"status": "ended", "hook_ended": "no", "reply": "a\n\n b"},
            "ended (no): a b\n0 steps, 0 tool calls, 0 tokens, 0 USD",
        ),
        (
            {"status": "failed", "errors": (ErrorInfo("model", "ModelError", "no answer"),)},
            "failed (ModelError: no answer):\n0 steps, 0 tool calls, 0 tokens, 0 USD",
        ),
        (
            {"reply": "ok", "errors": (ErrorInfo("tool", "ValueError", "no"),)},
            "completed: ok\n0 steps, 0 tool calls, 0 tokens, 0 USD",
        ),
        (
            {"reply": "ok", "stop": StopSignal("completed", "done")},
            "completed: ok\n0 steps, 0 tool calls, 0 tokens, 0 USD",
        ),
        ({"status": "failed", "reply": "a"}, "failed: a\n0 steps, 0 tool calls, 0 tokens, 0 USD"),
        ({"status": "ended", "reply": "a"}, "ended: a\n0 steps, 0 tool calls, 0 tokens, 0 USD"),
        ({"status": "stopped", "reply": "a"}, "stopped: a\n0 steps, 0 tool calls, 0 tokens, 0 USD"),
    ],
)
def test_a_result_prints_as_two_short_lines(fields, shown):
    assert str(AgentResult(**fields)) == shown


@pytest.mark.parametrize(("length", "first_line"), [(300, "a" * 300), (301, "a" * 299 + "…")])
def test_the_first_line_of_a_printed_result_has_at_most_300_characters(length, first_line):
    status = "completed: "
    shown = str(AgentResult(reply="a" * (length - len(status)))).partition("\n")[0]
    assert shown == status + first_line[len(status) :]


OUTPUTS = {
    "no output gives the reply": (None, "the reply"),
    "text stays as it is": ("forty-two", "forty-two"),
    "empty text is an output too": ("", ""),
    "a number is written as JSON": (42, "42"),
    "a structure is written as JSON": ({"a": [1, None]}, '{"a":[1,null]}'),
    "a value is written as the JSON of its fields": (Usage(1, 2), '{"input_tokens":1,"output_tokens":2'),
}


@pytest.mark.parametrize(("output", "text"), OUTPUTS.values(), ids=OUTPUTS)
def test_the_output_of_a_result_can_be_had_as_text(output, text):
    shown = AgentResult(reply="the reply", output=output).output_text
    assert shown.startswith(text)
    assert bool(shown) == bool(text)


def test_the_error_about_own_data_in_the_state_suggests_scratch():
    place = "Use ctx.scratch for your own data, or metadata for data that should be saved."
    with pytest.raises(KeyError) as unknown:
        STATE["mesages"]
    assert unknown.value.args == (f"'mesages'. Did you mean 'messages'? {place}",)
    with pytest.raises(TypeError) as refused:
        STATE["mine"] = 1
    change = "AgentState cannot be changed in place; a hook returns state=ctx.state.replace(...)."
    assert str(refused.value) == f"{change} {place}"
    assert STATE["system_prompt"] == "be kind"


def test_a_printed_result_is_short_and_its_repr_is_whole():
    result = AgentResult(reply="word " * 1000, messages=[Message("user", "hidden " * 100)])
    assert len(str(result)) < 400
    assert str(result).count("\n") == 1
    assert "…" in str(result)
    assert "hidden" not in str(result)
    assert "hidden" in repr(result)
    assert "word " * 1000 in repr(result)
