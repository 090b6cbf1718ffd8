"""Claude Code, and the form of its events, which several other agents use too."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..events import SAME, AgentEvent, Answer, CommandOutput, Fields, Kind
from ..options import BLOCKED
from .base import AgentTool, Codec, cut, denial, json_output, notice_output, prevented

EVENTS: Mapping[str, Kind] = {
    "SessionStart": "session_start",
    "SessionEnd": "session_end",
    "UserPromptSubmit": "prompt",
    "UserPromptExpansion": "prompt",
    "PreToolUse": "before_tool",
    "PermissionRequest": "permission",
    "PostToolUse": "after_tool",
    "PostToolUseFailure": "after_tool",
    "PreCompact": "compaction",
    "Stop": "stop",
    "SubagentStop": "stop",
}
MANAGED = (
    "/Library/Application Support/ClaudeCode/managed-settings.json"
    if sys.platform == "darwin"
    else "/etc/claude-code/managed-settings.json"
)
"""The settings of an organisation."""
_CALLS = ("before_tool", "permission", "after_tool")
_PATH = {"file_path": "path"}

TOOLS = (
    AgentTool("Bash", "shell"),
    AgentTool("PowerShell", "shell"),
    AgentTool("Monitor", "shell"),
    AgentTool("Read", "read_file", {**_PATH, "offset": "start_line", "limit": "max_lines"}),
    AgentTool("Write", "write_file", _PATH),
    AgentTool("Edit", "edit_file", _PATH),
    AgentTool("MultiEdit", "edit_file", _PATH),
    AgentTool("NotebookEdit", "edit_notebook", {"notebook_path": "path"}),
    AgentTool("Glob", "list_files"),
    AgentTool("Grep", "find_text", {"pattern": "text"}, takes_glob=True),
    AgentTool("WebFetch", "fetch"),
    AgentTool("WebSearch", "search_web"),
    AgentTool("Agent", "subagent", {"subagent_type": "to", "prompt": "task"}, "delegate"),
    AgentTool("Task", "subagent"),
)


def read_event(codec: Codec, given: Any) -> AgentEvent:
    """Return an event in the form of Claude Code.

    Raises:
        ValueError: it has another form.
    """
    fields = Fields(given)
    name = fields.text("hook_event_name")
    kind = codec.kind_of(name)
    failed = name == "PostToolUseFailure"
    called: dict[str, Any] = {}
    if kind in _CALLS:
        called = {"tool": fields.text("tool_name", needed=True), "input": fields.object("tool_input")}
    if kind == "after_tool" and not failed:
        called["result"] = given.get("tool_response")
    if kind == "prompt" and fields.text("prompt") == "" and "prompt" not in fields:
        raise ValueError("prompt is missing")
    return AgentEvent(
        kind,
        name,
        fields.text("session_id", needed=True),
        fields.text("cwd"),
        fields.text("prompt_id") or None,
        fields.text("agent_id"),
        **called,
        call_id=fields.text("tool_use_id"),
        error=(fields.text("error") or "The call failed.") if failed else None,
        seconds=fields.number("duration_ms") / 1000,
        prompt=fields.text("prompt"),
        reply=fields.text("last_assistant_message"),
        trigger=fields.text("trigger"),
        asks_nobody=fields.text("permission_mode") == "bypassPermissions",
    )


class ClaudeCode(Codec):
    """Claude Code."""

    name = "claude"
    title = "Claude Code"
    platform = "claude-code"
    events = EVENTS
    ignored = frozenset(
        """
        ConfigChange CwdChanged DirectoryAdded Elicitation ElicitationResult FileChanged InstructionsLoaded
        MessageDisplay Notification PermissionDenied PostCompact PostModelSwitch PostToolBatch PreModelSwitch Setup
        StopFailure SubagentStart TaskCompleted TaskCreated TeammateIdle WorktreeCreate WorktreeRemove
        """.split()  # noqa: SIM905
    )
    tools = TOOLS
    knows_all_tools = True
    can_ask = True
    can_stop = True
    handler = MappingProxyType({"onFailure": "block"})  # in versions that know it, for hooks that cannot be started

    def for_event(self, variables: str, given: Any) -> Codec:
        """Return the codec of agents that are not recognised, if another program has loaded these settings."""
        return self if is_claude_code(variables, given) else OTHER

    def read(self, given: Any) -> AgentEvent:
        """Return an event."""
        return read_event(self, given)

    def applies(self, event: AgentEvent, changed: Mapping[str, Any]) -> bool:
        """Claude Code uses what a hook returns."""
        return True

    def write(self, event: AgentEvent, answer: Answer) -> CommandOutput:
        """Return an answer as JSON."""
        output: dict[str, Any] = {}
        specific: dict[str, Any] = {}
        if answer.stop is not None:
            output |= {"continue": False, "stopReason": cut(answer.stop)}
        if answer.notice:
            output["systemMessage"] = cut(answer.notice)
        match event.kind:
            case "before_tool":
                specific = _decision(answer)
            case "permission":
                specific = _permission(answer)
            case "after_tool":
                if answer.note is not None:
                    output |= {"decision": "block", "reason": cut(answer.note)}
                if answer.result is not SAME:
                    specific = {"updatedToolOutput": answer.result}
            case _:
                reason = answer.deny if answer.deny is not None else answer.go_on
                if reason is not None:
                    output |= {"decision": "block", "reason": cut(reason)}
                if answer.context:
                    specific = {"additionalContext": cut(answer.context)}
        if specific:
            output["hookSpecificOutput"] = {"hookEventName": event.name, **specific}
        return json_output(output) if output else CommandOutput()

    def refuse(self, event: AgentEvent | None, problem: str, details: str) -> CommandOutput:
        """Return the answer to an event that cannot be judged. Versions that do not know the JSON obey the code."""
        if event is None or event.kind == "ignored":
            return denial(f"{problem}, so this is not allowed.")
        notice = f"Hookline: {details or problem}"
        message = f"Hookline: {problem}, so this is not allowed."
        code = 0
        if event.kind == "before_tool":
            code, answer = BLOCKED, Answer(deny=message, notice=notice)
        elif event.kind in ("prompt", "compaction"):
            code, answer = BLOCKED, Answer(deny=notice, notice=notice)
        elif event.kind == "after_tool" and event.error is None:
            found = super().refuse(event, problem, details)
            output = json.loads(found.stdout) | {"systemMessage": notice}
            message = f"Hookline: {problem}, so the result is withheld."
            return CommandOutput(json.dumps(output).encode(), _line(message), 0)
        else:
            answer, message = Answer(notice=notice), notice
        return CommandOutput(self.write(event, answer).stdout, _line(message), code)


class Other(Codec):
    """An agent that has loaded the settings of Claude Code, and is not recognised: it gets what all agents obey."""

    name = "other"
    title = "a coding agent that is not recognised"
    platform = "coding-agent"
    events = EVENTS
    ignored = ClaudeCode.ignored | {"Interrupt"}
    tools = TOOLS

    def read(self, given: Any) -> AgentEvent:
        """Return an event, whose result must be where Claude Code has it."""
        event = read_event(self, given)
        if event.kind == "after_tool" and event.error is None and event.result is None:
            raise ValueError("PostToolUse needs tool_response")
        return event

    def write(self, event: AgentEvent, answer: Answer) -> CommandOutput:
        """Return exit code 2 if anything is prevented."""
        if (reason := prevented(answer)) is not None:
            return denial(reason)
        return notice_output(answer.notice)


def is_claude_code(variables: str, given: Any) -> bool:
    """Return whether Claude Code sent an event.

    A program inherits the variables of the agent that started it: Codex in a terminal of Claude Code has those of
    Claude Code. So variables are no evidence without an event that fits them.

    Args:
        variables: the result of :func:`~..options.environment` where the agent called.
        given: the event, which may be anything.
    """
    if not isinstance(given, dict):
        return False
    entrypoint, session, config = variables.split("\0")
    ident, transcript = given.get("session_id"), given.get("transcript_path")
    if not isinstance(ident, str) or not ident:
        return False
    if ident == session:
        return True
    # Earlier versions set no variable with the id. Others than Claude Code keep their transcripts elsewhere.
    return bool(entrypoint) and isinstance(transcript, str) and _is_transcript(transcript, ident, config)


def _is_transcript(path: str, session: str, config: str) -> bool:
    """Return whether this is where Claude Code keeps the transcript of a session."""
    folder, inner = _parts(path)[:-3], _parts(path)[-3:]
    own = folder[-1:] == [".claude"] or (config != "" and folder == _parts(config.rstrip("/\\")))
    return own and inner[0] == "projects" and inner[-1] == f"{session}.jsonl"


def _parts(path: str) -> list[str]:
    return path.replace("\\", "/").split("/")


def _decision(answer: Answer) -> dict[str, Any]:
    """Return a decision about a call: that of the hooks, or a question to the user."""
    reason = "A hook of Hookline changed this call."
    if answer.deny is not None:
        decision, reason = "deny", answer.deny
    elif answer.ask is not None:
        decision, reason = "ask", answer.ask
    elif answer.changed is not None:
        decision = "allow" if answer.is_free else "ask"
    else:
        return {}
    changed = {} if answer.changed is None else {"updatedInput": answer.changed}
    return {"permissionDecision": decision, "permissionDecisionReason": cut(reason), **changed}


def _permission(answer: Answer) -> dict[str, Any]:
    if answer.deny is not None:
        return {"decision": {"behavior": "deny", "message": cut(answer.deny)}}
    if not answer.allow:
        return {}
    changed = {} if answer.changed is None else {"updatedInput": answer.changed}
    return {"decision": {"behavior": "allow", **changed}}


def _line(text: str) -> bytes:
    return text.encode(errors="backslashreplace") + b"\n"


CODEC = ClaudeCode()
OTHER = Other()
