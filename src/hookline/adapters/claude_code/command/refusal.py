"""The answer of ``hookline claude-hook`` to an event that cannot be judged: it does not happen.

This must work whatever is broken, and fast, so the module needs nothing but the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .hosts import CLAUDE_CODE, CODEX, detect
from .options import BLOCKED

if TYPE_CHECKING:
    from .hosts import Host

_MAX_TEXT = 10_000
_KEPT = frozenset(("type", "filePath", "file_path", "media_type", "mimeType"))
"""Fields that say what a response is."""


class CommandOutput(NamedTuple):
    """What the command prints, and its exit code."""

    stdout: bytes = b""
    stderr: bytes = b""
    code: int = 0


def denial(host: Host, event: str, reason: str) -> CommandOutput:
    """Return the answer that prevents an event in another agent than Claude Code.

    All of them obey exit code 2 with a reason on stderr and nothing on stdout. The first word is there because Gemini
    CLI reads JSON on stderr as an answer, and others ignore exit code 2 without a reason.
    """
    text = f"Hookline: {reason.strip() or 'a hook does not allow this.'}"
    if host == CODEX and event == "PreCompact":  # where Codex ignores exit code 2
        import json

        return CommandOutput(json.dumps({"continue": False, "stopReason": text}).encode())
    return CommandOutput(b"", text.encode(errors="backslashreplace") + b"\n", BLOCKED)


def refusal(variables: str, data: bytes, problem: str, details: str = "") -> CommandOutput:
    """Return the answer to an event that cannot be judged.

    A call is denied, a prompt and a compaction are blocked, and a result is withheld. Where there is nothing to
    prevent, the user is told: a session that must stop, for example, may stop.

    Args:
        variables: what the environment says about the agent, for :func:`~.hosts.detect`.
        data: the event, which may be anything.
        problem: what went wrong, for the model.
        details: more about it, only for the user, because an exception may contain secrets.
    """
    import json

    problem, details = problem[: _MAX_TEXT // 2], details[: _MAX_TEXT // 2]
    given: Any = None
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        pass
    host = detect(variables, given)
    event, response = "", None
    if isinstance(given, dict):
        event, response = str(given.get("hook_event_name")), given.get("tool_response")
    message, notice = f"Hookline: {problem}, so this is not allowed.", f"Hookline: {details or problem}"
    if host != CLAUDE_CODE:
        if event in ("Stop", "SubagentStop", "SessionStart", "SessionEnd"):
            return CommandOutput(stderr=f"Hookline: {problem}\n".encode(errors="backslashreplace"))
        return denial(host, event, f"{problem}, so this is not allowed.")
    output: dict[str, Any] = {"systemMessage": notice}
    code = 0
    if event == "PreToolUse":
        code = BLOCKED
        output["hookSpecificOutput"] = {
            "hookEventName": event,
            "permissionDecision": "deny",
            "permissionDecisionReason": message,
        }
    elif event == "PostToolUse":
        message = f"Hookline: {problem}, so the result is withheld."
        output |= {"decision": "block", "reason": message}
        output["hookSpecificOutput"] = {
            "hookEventName": event,
            "updatedToolOutput": with_text(response, message),
        }
    elif event in ("UserPromptSubmit", "PreCompact"):
        code = BLOCKED
        output |= {"decision": "block", "reason": notice}
    elif event in ("PermissionRequest", "Stop", "SubagentStop", "SessionStart", "SessionEnd", "PostToolUseFailure"):
        message = notice
    else:  # perhaps an event that should have been blocked
        return CommandOutput(b"", message.encode(errors="backslashreplace") + b"\n", BLOCKED)
    # Versions that do not understand the JSON still obey the exit code.
    return CommandOutput(json.dumps(output).encode(), message.encode(errors="backslashreplace") + b"\n", code)


def with_text(response: Any, content: Any) -> Any:
    """Return a tool's response with another content, in its own shape, because Claude Code rejects other shapes.

    If the new content is text, it takes the place of the longest text in the response, and all others are emptied.
    """
    if not isinstance(content, str) or isinstance(response, str):
        return content
    try:
        places = list(_texts(response, ()))
        if not places:
            return content
        main = max(places, key=lambda place: len(place[1]))[0]
        return _filled(response, (), main, content)
    except RecursionError:  # nested so deeply, perhaps to get past the hooks
        return content


def _texts(value: Any, place: tuple[Any, ...]) -> Any:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in _KEPT:
                yield from _texts(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*place, index))


def _filled(value: Any, place: tuple[Any, ...], main: tuple[Any, ...], text: str) -> Any:
    if isinstance(value, str):
        return text if place == main else ""
    if isinstance(value, dict):
        return {key: item if key in _KEPT else _filled(item, (*place, key), main, text) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, (*place, index), main, text) for index, item in enumerate(value)]
    return value
