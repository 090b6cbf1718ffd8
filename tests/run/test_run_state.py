"""The state of a run: changes by the loop, and changes by hooks (DESIGN 6.1)."""

import pytest

from hookline import Budget, Message
from hookline._run.state import RunState
from hookline.payloads import ErrorInfo, Ids, Step, StopSignal, ToolCall, Usage

CALLS = Message("assistant", "", (ToolCall("1", "read"), ToolCall("2", "read")))
RESULTS = [Message("tool", "a", (), "1", "read"), Message("tool", "b", (), "2", "read")]


def make(*messages, **options):
    return RunState(Ids("run"), Budget(), messages, **options)


def said(state):
    return [message.content for message in state.messages]


def test_the_view_is_the_same_object_until_something_changes():
    state = make()
    first = state.view()
    assert state.view() is first
    for change in (
        lambda: state.append(Message("user", "x")),
        lambda: state.set_signals((StopSignal("completed"),)),
        lambda: state.add_error(ErrorInfo("tool", "A", "a")),
        lambda: state.finish_step(Step(0)),
        lambda: state.set_system_prompt("p"),
        lambda: state.charge(Usage(1, 1), None),
    ):
        before = state.view()
        change()
        assert state.view() is not before
        assert state.view().version > before.version
    last = state.view()
    assert (len(last.messages), len(last.steps), len(last.errors), last.system_prompt) == (1, 1, 1, "p")
    assert (last.usage, last.signals) == (
        Usage(1, 1),
        (StopSignal("completed"),),
    )


def test_the_usage_of_a_step_adds_up_and_counts_in_the_budget():
    state = make()
    state.charge(Usage(1, 2, 1), 0.5)
    state.charge(Usage(3, 4, 2), None)
    assert state.spent == Usage(4, 6, 3)
    assert (state.budget.usage, state.budget.cost, state.budget.known_cost) == (Usage(4, 6, 3), None, 0.5)
    assert state.view().usage == Usage(4, 6, 3)


def test_messages_that_come_while_calls_are_open_wait_for_the_results():
    state = make(Message("user", "go"))
    state.open_calls(CALLS)
    state.accept(state.view().with_messages(Message("user", "late")))
    assert said(state) == ["go", ""]
    state.close_calls(RESULTS)
    assert said(state) == ["go", "", "a", "b", "late"]


def test_a_returned_state_changes_the_editable_parts():
    state = make(metadata={"a": 0}, system_prompt="base")
    state.accept(state.view().replace(metadata={"a": 1}, system_prompt="other", response_format={"type": "object"}))
    assert (state.metadata, state.system_prompt, state.response_format) == ({"a": 1}, "other", {"type": "object"})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"metadata": {"a": 1}}, {"metadata": {"a": 2}}),
        ({"system_prompt": "one"}, {"system_prompt": "two"}),
        ({"response_format": {"a": 1}}, {"response_format": {"a": 2}}),
        ({"messages": [Message("user", "one")]}, {"messages": [Message("user", "two")]}),
    ],
    ids=["metadata", "system_prompt", "response_format", "messages"],
)
def test_a_part_that_changed_since_it_was_read_is_rejected(first, second):
    state = make()
    read = state.view()
    state.accept(read.replace(**first))
    with pytest.raises(TypeError, match=f"AgentState.{next(iter(first))} was changed since this hook read it"):
        state.accept(read.replace(**second))


def test_another_part_may_be_returned_after_the_state_changed():
    state = make(system_prompt="base")
    read = state.view()
    state.append(Message("user", "meanwhile"))
    state.accept(read.replace(metadata={"a": 1}))
    assert said(state) == ["meanwhile"]
    assert (state.metadata, state.system_prompt) == ({"a": 1}, "base")


def test_removed_messages_stay_removed_after_the_state_changed():
    state = make(Message("user", "go"), Message("user", "too much"))
    read = state.view()
    state.charge(Usage(1, 1), None)
    state.accept(read.replace(messages=read.messages[:1]))
    assert said(state) == ["go"]


def test_returning_the_state_unchanged_changes_nothing():
    state = make(Message("user", "go"))
    read, version = state.view(), state.version
    state.accept(read)
    assert (state.version, said(state)) == (version, ["go"])


def test_hooks_may_not_change_parts_of_the_loop():
    state = make()
    with pytest.raises(TypeError, match="may not change usage"):
        state.accept(state.view().replace(usage=Usage(1)))


def test_a_new_call_may_not_have_the_id_of_an_old_one():
    state = make(Message("user", "go"))
    state.open_calls(CALLS)
    state.close_calls(RESULTS)
    with pytest.raises(TypeError, match="^AgentState.messages: a new call has the id of an old one$"):
        state.accept(state.view().with_messages(CALLS, *RESULTS))
    assert len(state.messages) == 4


def test_finished_calls_are_counted_by_their_outcome():
    state = make()
    for name, ok in (("read", True), ("write", False), ("read", True)):
        state.count_call(name, ok=ok)
    assert (state.calls, state.successful_calls, list(state.tool_names)) == (3, 2, ["read", "write"])


def test_a_system_prompt_that_the_loop_set_since_it_was_read_is_not_overwritten():
    state = make()
    read = state.view()
    state.set_system_prompt("joined")
    with pytest.raises(TypeError, match="AgentState.system_prompt was changed since this hook read it"):
        state.accept(read.with_system_prompt("mine"))
    assert state.system_prompt == "joined"


def test_a_state_may_be_returned_as_a_dict():
    state = make(Message("user", "go"))
    state.accept({"system_prompt": "other"})
    assert (state.system_prompt, said(state)) == ("other", ["go"])
    with pytest.raises(TypeError, match="AgentState"):
        state.accept("other")


@pytest.mark.parametrize("part", ["metadata", "response_format"])
def test_in_place_changes_of_a_returned_state_have_no_effect(part):
    state = make()
    given = state.view().replace({part: {"a": {"b": 1}}})
    state.accept(given)
    dict.__setitem__(getattr(given, part)["a"], "b", 2)
    assert getattr(state, part) == {"a": {"b": 1}}


@pytest.mark.parametrize(
    "change", [{"metadata": {"a": 1}}, {"response_format": {"a": 1}}, {"messages": [Message("user", "one")]}], ids=list
)
def test_two_hooks_that_make_the_same_change_agree(change):
    state = make(Message("user", "go"))
    read = state.view()
    state.accept(read.replace(change))
    version = state.version
    state.accept(read.replace(change))
    assert getattr(state, next(iter(change))) == next(iter(change.values()))
    assert state.version == version
