"""The hook protocol of Claude Code: what a hook reads and writes, and which of our tools is which of theirs.

A hook of Claude Code is a program. It reads one JSON object, :class:`HookInput`, and answers with an exit code and one
JSON object, :class:`HookOutput`. Both directions use this module: their scripts in our loop, and our hooks in theirs.
Fields are added every month, so unknown fields are ignored in inputs and outputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from ..._base.text import did_you_mean
from ..._kernel.errors import RegistrationError
from ..coding_agents.codecs.base import renamed
from ..coding_agents.codecs.claude import CODEC

Permission = Literal["allow", "deny", "ask", "defer"]

PERMISSIONS: tuple[Permission, ...] = ("deny", "defer", "ask", "allow")
"""The decisions about a tool call. If hooks decide differently, the first one in this list counts."""

EVENTS = frozenset(CODEC.events) | CODEC.ignored
"""The events of Claude Code."""

CONTEXT_FROM_TEXT = frozenset(("SessionStart", "UserPromptExpansion", "UserPromptSubmit"))
"""The events at which plain text on stdout is added to the context."""


class BatchCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call in the input of ``PostToolBatch``. Its response is text."""

    tool_name: str
    tool_input: dict[str, Any] = {}
    tool_use_id: str = ""
    tool_response: Any = None


class HookInput(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a hook reads: the fields of all events that Hookline has a moment for. An event has only some of them.

    Fields that have their default value are left out when an input is encoded.
    """

    session_id: str
    hook_event_name: str
    transcript_path: str | None = ""
    cwd: str = ""
    prompt_id: str | None = None
    permission_mode: str | None = None
    agent_id: str | None = None
    agent_type: str | None = None

    tool_name: str | None = None
    tool_input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    tool_response: Any = None
    mcp_server: str | None = None
    tool_calls: list[BatchCall] | None = None
    error: str | None = None
    is_interrupt: bool | None = None
    duration_ms: float | None = None
    permission_suggestions: list[Any] | None = None

    prompt: str | None = None
    source: str | None = None
    model: str | None = None
    reason: str | None = None
    stop_hook_active: bool | None = None
    last_assistant_message: str | None = None
    agent_transcript_path: str | None = None
    background_tasks: list[Any] | None = None
    session_crons: list[Any] | None = None

    trigger: str | None = None
    custom_instructions: str | None = None
    compact_summary: str | None = None
    message: str | None = None
    title: str | None = None
    notification_type: str | None = None


def encode(value: Any) -> bytes:
    """Return an input or an output as JSON. Halves of surrogate pairs, which models write, stay as escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


class PermissionDecision(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """``hookSpecificOutput.decision`` of ``PermissionRequest``."""

    behavior: Literal["allow", "deny"]
    updated_input: dict[str, Any] | None = None
    message: str = ""
    interrupt: bool = False
    updated_permissions: Any = None


class SpecificOutput(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    """``hookSpecificOutput``: the part of an answer that depends on the event, which it must name."""

    hook_event_name: str
    additional_context: str | None = None
    permission_decision: Permission | None = None
    permission_decision_reason: str | None = None
    updated_input: dict[str, Any] | None = None
    updated_tool_output: Any = msgspec.UNSET
    updated_mcp_tool_output: Any = msgspec.field(default=msgspec.UNSET, name="updatedMCPToolOutput")
    decision: PermissionDecision | None = None
    initial_user_message: str | None = None
    session_title: Any = None
    suppress_original_prompt: Any = None
    watch_paths: Any = None
    reload_skills: Any = None
    classifier_context: Any = None


class HookOutput(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    """What a hook may print: one JSON object."""

    continue_: bool = msgspec.field(default=True, name="continue")
    stop_reason: str | None = None
    system_message: str | None = None
    suppress_output: Any = None
    terminal_sequence: Any = None
    decision: Literal["approve", "block"] | None = None
    reason: str | None = None
    hook_specific_output: SpecificOutput | None = None
    is_async: bool = msgspec.field(default=False, name="async")
    async_timeout: float | None = None


class ToolNames(msgspec.Struct, frozen=True):
    """One tool under both names.

    ``arguments`` maps Claude Code's names of arguments to ours. Arguments that are not in it have the same name.
    """

    claude: str
    hookline: str
    arguments: Mapping[str, str] = {}


TOOLS = tuple(ToolNames(each.theirs, each.name, each.arguments) for each in CODEC.tools if each.name != each.theirs)
"""The tools that exist in both, or that guards should take for one of ours. Other names stay as they are.

If several of their tools are the same one of ours, the first of them is the name of ours.
"""


class ClaudeToolNames:
    """Translates names and arguments of tool calls in both directions.

    Example::

        tools = ClaudeToolNames({"Bash": "terminal", "Read": {"name": "open", "arguments": {"file_path": "file"}}})
        tools.to_hookline("Bash", {"command": "ls"})     # ("terminal", {"command": "ls"})
        tools.to_claude("open", {"file": "a.txt"})       # ("Read", {"file_path": "a.txt"})

    Args:
        changes: Claude Code's names of tools, each with our name, or with ``name`` and ``arguments`` (Claude Code's
            name of an argument: our name). They are added to :data:`TOOLS`, or replace the entry for the same tool.

    Raises:
        RegistrationError: an entry is not valid.
    """

    def __init__(self, changes: Mapping[str, Any] | None = None) -> None:
        entries = {names.claude: names for names in TOOLS}
        for claude, entry in (changes or {}).items():
            entries[claude] = _parse(claude, entry, entries.get(claude))
        self._by_claude = entries
        self._by_hookline = {names.hookline: names for names in reversed(entries.values())}

    def __iter__(self) -> Iterator[ToolNames]:
        return iter(self._by_claude.values())

    def to_hookline(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return our name of a tool of Claude Code, and the arguments under our names.

        Raises:
            ValueError: an argument is given under both names, so that nobody can say which one counts.
        """
        entry = self._by_claude.get(name)
        return (name, dict(arguments)) if entry is None else (entry.hookline, renamed(arguments, entry.arguments))

    def to_claude(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return Claude Code's name of one of our tools, and the arguments under its names.

        Raises:
            ValueError: an argument is given under both names, so that nobody can say which one counts.
        """
        entry = self._by_hookline.get(name)
        return (name, dict(arguments)) if entry is None else (entry.claude, self.input_of(entry.claude, arguments))

    def input_of(self, claude: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return our arguments as the input of this tool of Claude Code.

        Raises:
            ValueError: an argument is given under both names, so that nobody can say which one counts.
        """
        entry = self._by_claude.get(claude)
        names = {} if entry is None else {ours: theirs for theirs, ours in entry.arguments.items()}
        return renamed(arguments, names)


def _parse(claude: str, entry: Any, usual: ToolNames | None) -> ToolNames:
    if not (isinstance(claude, str) and claude):
        raise RegistrationError(f"tools: {claude!r:.80} is not the name of a tool of Claude Code")
    usual_arguments: Mapping[str, str] = {} if usual is None else usual.arguments
    if isinstance(entry, str) and entry:
        return ToolNames(claude, entry, usual_arguments)
    if not isinstance(entry, Mapping):
        raise RegistrationError(
            f"tools: {claude} must be the name of one of your tools, or a table with name and arguments, not "
            f"{entry!r:.80}"
        )
    for key in entry.keys() - {"name", "arguments"}:
        raise RegistrationError(
            f"tools: {claude} has {key!r:.80}.{did_you_mean(str(key), ('name', 'arguments'))} "
            "There are name and arguments"
        )
    name = entry.get("name", claude if usual is None else usual.hookline)
    arguments = entry.get("arguments", usual_arguments)
    if not (isinstance(name, str) and name):
        raise RegistrationError(f"tools: the name of {claude} must be a text, not {name!r:.80}")
    if not isinstance(arguments, Mapping) or not all(
        isinstance(text, str) and text for pair in arguments.items() for text in pair
    ):
        raise RegistrationError(f"tools: the arguments of {claude} must be a table of names, not {arguments!r:.80}")
    if len(set(arguments.values())) < len(arguments):
        raise RegistrationError(f"tools: two arguments of {claude} have the same name: {dict(arguments)!r:.200}")
    return ToolNames(claude, name, dict(arguments))
