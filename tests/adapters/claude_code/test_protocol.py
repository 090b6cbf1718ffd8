"""The names of tools on both sides, and the types of Claude Code's hook protocol."""

import msgspec
import pytest

from hookline.adapters.claude_code.protocol import TOOLS, ClaudeToolNames, HookInput, HookOutput, SpecificOutput
from hookline.errors import RegistrationError


@pytest.mark.parametrize("names", TOOLS, ids=lambda names: names.claude)
def test_a_call_translated_there_and_back_is_the_same_call(names):
    tools = ClaudeToolNames()
    given = dict.fromkeys(names.arguments, "value") | {"description": "other"}
    name, arguments = tools.to_hookline(names.claude, given)
    assert name == names.hookline
    assert set(names.arguments.values()) <= arguments.keys()
    assert tools.input_of(names.claude, arguments) == given


def test_our_tool_has_the_name_of_the_first_of_theirs():
    assert ClaudeToolNames().to_claude("shell", {"command": "ls"}) == ("Bash", {"command": "ls"})
    assert ClaudeToolNames().to_claude("read_file", {"path": "a", "start_line": 2}) == (
        "Read",
        {"file_path": "a", "offset": 2},
    )


def test_a_tool_that_is_in_no_entry_keeps_its_name():
    assert ClaudeToolNames().to_hookline("mcp__db__query", {"path": "a"}) == ("mcp__db__query", {"path": "a"})


def test_entries_can_be_changed_and_added():
    tools = ClaudeToolNames({"Bash": "terminal", "Read": {"arguments": {"file_path": "file"}}, "Fly": {"name": "fly"}})
    assert tools.to_hookline("Bash", {"command": "ls"}) == ("terminal", {"command": "ls"})
    assert tools.to_hookline("Read", {"file_path": "a", "limit": 1}) == ("read_file", {"file": "a", "limit": 1})
    assert tools.to_claude("fly", {}) == ("Fly", {})


def test_an_argument_under_both_names_is_refused_because_nobody_knows_which_one_counts():
    with pytest.raises(ValueError, match="two names"):
        ClaudeToolNames().to_hookline("Read", {"file_path": "a", "path": "/etc/passwd"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"Bash": 1}, "must be the name"),
        ({"Bash": ""}, "must be the name"),
        ({"Bash": {"nmae": "x"}}, "Did you mean 'name'"),
        ({"Bash": {"name": 1}}, "must be a text"),
        ({"Bash": {"arguments": ["command"]}}, "must be a table"),
        ({"Bash": {"arguments": {"a": "x", "b": "x"}}}, "same name"),
    ],
)
def test_a_mistake_in_an_entry_is_explained(changes, why):
    with pytest.raises(RegistrationError, match=why):
        ClaudeToolNames(changes)


def test_unknown_fields_are_ignored_and_fields_without_a_value_are_left_out():
    given = msgspec.json.decode(b'{"session_id": "a", "hook_event_name": "Stop", "new": {}}', type=HookInput)
    assert msgspec.json.encode(given) == b'{"session_id":"a","hook_event_name":"Stop"}'
    output = HookOutput(hook_specific_output=SpecificOutput(hook_event_name="PreToolUse", permission_decision="deny"))
    assert msgspec.to_builtins(output) == {
        "hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny"}
    }
