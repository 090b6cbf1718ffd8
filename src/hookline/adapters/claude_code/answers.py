"""What a hook answered: its exit code, its JSON and its text, read by the rules of Claude Code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ..._base.frozen import freeze
from ..._base.text import error_text
from .errors import ClaudeHookError
from .processes import Ran
from .protocol import (
    BLOCKED,
    CONTEXT_FROM_TEXT,
    MAX_TEXT,
    PERMISSIONS,
    HookOutput,
    Permission,
    PermissionDecision,
    SpecificOutput,
)
from .settings import Handler

_NO_OUTPUT = HookOutput()
_SPACE = " \t\r\n\f\v\ufeff"
"""What JavaScript's ``trim`` removes, such as the byte order mark that PowerShell writes."""
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.S
)
"""An escape in JSON. It has a group if it is one half of a surrogate pair alone."""
_WITHOUT_EFFECT = (
    *("terminal_sequence", "session_title", "watch_paths", "reload_skills", "classifier_context"),
    *("suppress_original_prompt", "updated_permissions"),
)
"""Fields with which a hook asks for what Hookline does not have."""
_FOR_THE_USER = frozenset(("SessionStart", "SubagentStart", "PostCompact", "SessionEnd"))
"""The events at which exit code 2 blocks nothing, and its text is for the user."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one handler. ``failure`` says why there is none, if it counts as one."""

    handler: Handler
    blocked: bool = False
    reason: str = ""
    context: str = ""
    output: HookOutput = _NO_OUTPUT
    failure: str = ""

    @property
    def specific(self) -> SpecificOutput | None:
        """The part of the output that belongs to the event."""
        return self.output.hook_specific_output

    @property
    def without_effect(self) -> list[str]:
        """The names of the fields in the output that have no effect here."""
        parts = (self.output, self.specific, self.specific and self.specific.decision)
        names = {each.name: each.encode_name for part in parts if part for each in msgspec.structs.fields(part)}
        return [names[name] for name in _WITHOUT_EFFECT for part in parts if getattr(part, name, None)]

    @property
    def permission(self) -> Permission | None:
        """The decision about a tool call. ``decision`` is the older way to say it."""
        if self.blocked:
            return "deny"
        if self.specific is not None and self.specific.permission_decision is not None:
            return self.specific.permission_decision
        return "allow" if self.output.decision == "approve" else None


def read_answer(handler: Handler, ran: Ran) -> Answer:
    """Return the answer of a command.

    Raises:
        ClaudeHookError: it failed, and its ``on_failure`` is ``closed``.
    """
    if ran.problem:
        return failed(handler, ran.problem)
    output, problem = _decode(handler.event, ran.stdout)
    errors = ran.stderr.strip()
    if ran.code == BLOCKED:  # even if its JSON says something else
        reason = (output and _reason(output)) or errors or f"Blocked by the hook {handler.label}."
        return Answer(handler=handler, blocked=True, reason=_cut(reason), output=output or _NO_OUTPUT)
    if output is not None:
        return _from_output(handler, output)
    if ran.code != 0:
        how = f"it was ended by signal {-ran.code}" if ran.code < 0 else f"it ended with exit code {ran.code}"
        return failed(handler, f"{how}: {errors.splitlines()[-1][:300]}" if errors else how)
    if problem:
        return failed(handler, problem)
    text = ran.stdout.strip() if handler.event in CONTEXT_FROM_TEXT else ""
    return Answer(handler=handler, context=_cut(text))


def read_reply(handler: Handler, status: int, body: bytes) -> Answer:
    """Return the answer of a URL: only JSON in a response with a status of 200 to 299 decides.

    Raises:
        ClaudeHookError: it failed, and its ``on_failure`` is ``closed``.
    """
    if not 200 <= status < 300:
        return failed(handler, f"it responded with status {status}")
    output, problem = _decode(handler.event, text := body.decode(errors="replace"))
    if output is not None:
        return _from_output(handler, output)
    if not problem and text.strip():  # such as the login page of a proxy
        problem = "its response is not a JSON object"
    return failed(handler, problem) if problem else Answer(handler=handler)


def failed(handler: Handler, problem: str) -> Answer:
    """Return the answer of a handler that failed.

    Raises:
        ClaudeHookError: its ``on_failure`` is ``closed``.
    """
    text = f"The {handler.event} hook {handler.label} failed: {problem}"
    if handler.on_failure == "closed":
        raise ClaudeHookError(f"{text} ({handler.where})")
    return Answer(handler=handler, blocked=handler.on_failure == "block", reason=_cut(text), failure=text)


def _decode(event: str, text: str) -> tuple[HookOutput | None, str]:
    """Return the JSON that a hook printed, or what is wrong with it. Text that is not JSON is neither."""
    text = text.strip(_SPACE)
    if not text.startswith("{"):
        return None, ""
    try:
        output = msgspec.json.decode(_without_lone_surrogates(text), type=HookOutput)
        _check_depth(output)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return None, f"the JSON that it printed is not valid: {error_text(error)}"
    named = output.hook_specific_output
    if named is not None and named.hook_event_name != event:
        return None, f"its hookSpecificOutput is for {named.hook_event_name!r:.80}"
    return output, ""


def _without_lone_surrogates(text: str) -> str:
    """Return JSON in which halves of surrogate pairs, which JavaScript allows and msgspec does not, are replaced."""
    return _ESCAPE.sub(lambda found: r"\ufffd" if found[1] else found[0], text)


def _check_depth(output: HookOutput) -> None:
    """Raise ``ValueError`` if a new input or result is nested too deeply for a tool call."""
    if (specific := output.hook_specific_output) is not None:
        freeze(specific.updated_input)
        freeze(specific.decision and specific.decision.updated_input)
        for value in (specific.updated_tool_output, specific.updated_mcp_tool_output):
            freeze(None if value is msgspec.UNSET else value)


def _reason(output: HookOutput) -> str:
    specific = output.hook_specific_output
    return output.reason or (specific and specific.permission_decision_reason) or ""


def _from_output(handler: Handler, output: HookOutput) -> Answer:
    specific = output.hook_specific_output
    context = specific.additional_context if specific is not None else ""
    blocked = output.decision == "block"
    reason = _reason(output) or (f"Blocked by the hook {handler.label}." if blocked else "")
    return Answer(handler=handler, blocked=blocked, reason=_cut(reason), context=_cut(context or ""), output=output)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT]


class Answers:
    """The answers of all handlers of one event, in the order of the settings."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.all = tuple(answers)

    def __bool__(self) -> bool:
        return bool(self.all)

    @property
    def stop(self) -> str | None:
        """Why the run must stop, if a hook said ``"continue": false``."""
        for answer in self.all:
            if not answer.output.continue_:
                return _cut(answer.output.stop_reason or "") or f"Stopped by the {answer.handler.event} hook."
        return None

    @property
    def blocked(self) -> str | None:
        """Why a hook blocks, if one does."""
        reasons = [answer.reason for answer in self.all if answer.blocked]
        return "\n".join(reasons) if reasons else None

    @property
    def permission(self) -> tuple[Permission, str] | None:
        """The decision about a tool call that counts, and the reasons for it."""
        for permission in PERMISSIONS:
            found = [answer for answer in self.all if answer.permission == permission]
            if found:
                return permission, "\n".join(filter(None, (answer.reason for answer in found)))
        return None

    @property
    def updated_input(self) -> tuple[Answer, dict[str, Any]] | None:
        """The last new input of a tool, and who gave it."""
        for answer in reversed(self.all):
            if answer.specific is not None and answer.specific.updated_input is not None and not answer.blocked:
                return answer, answer.specific.updated_input
        return None

    @property
    def updated_output(self) -> Any:
        """The last new result of a tool; ``msgspec.UNSET`` without one."""
        for answer in reversed(self.all):
            if answer.specific is not None:
                for value in (answer.specific.updated_tool_output, answer.specific.updated_mcp_tool_output):
                    if value is not msgspec.UNSET and value is not None:
                        return value
        return msgspec.UNSET

    @property
    def decision(self) -> PermissionDecision | None:
        """The decision of ``PermissionRequest``: a denial counts more than a permission."""
        found = [answer.specific.decision for answer in self.all if answer.specific is not None]
        given = [decision for decision in found if decision is not None]
        return next((each for each in given if each.behavior == "deny"), given[0] if given else None)

    @property
    def context(self) -> str:
        """The text for the model."""
        return "\n".join(answer.context for answer in self.all if answer.context)

    @property
    def first_messages(self) -> list[str]:
        """The messages with which ``SessionStart`` hooks begin a conversation, in the name of the user."""
        found = [answer.specific.initial_user_message for answer in self.all if answer.specific is not None]
        return [_cut(text) for text in found if text]

    @property
    def notices(self) -> list[str]:
        """Texts for the user: failures, and messages of the hooks."""
        texts = []
        for answer in self.all:
            if answer.failure:
                texts.append(answer.failure)
            elif answer.blocked and answer.handler.event in _FOR_THE_USER:
                texts.append(f"{answer.handler.event} hook: {answer.reason}")
            if answer.output.system_message:
                texts.append(f"{answer.handler.event} hook: {_cut(answer.output.system_message)}")
        return texts
