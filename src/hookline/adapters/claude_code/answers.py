"""What a hook answered: its exit code, its JSON and its text, read by the rules of Claude Code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ..._base.frozen import freeze
from ..._base.text import closest_match, error_text
from ..coding_agents.codecs.base import MAX_TEXT
from ..coding_agents.options import BLOCKED
from .errors import ClaudeHookError
from .processes import Ran
from .protocol import (
    CONTEXT_FROM_TEXT,
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
_GUARDED = frozenset(
    ("PermissionRequest", "PostToolBatch", "PostToolUse", "PreCompact", "PreToolUse", "UserPromptSubmit")
)
"""The events at which a hook can prevent something."""
_PERMISSION = "hookSpecificOutput.permissionDecision"
_DECIDING: dict[str, tuple[str, tuple[Any, ...]]] = {
    "continue": ("continue", (True,)),
    "decision": ("decision", ("allow", "approve")),
    "hookspecificoutput": ("hookSpecificOutput", ()),
    "permissiondecision": (_PERMISSION, ("allow", "approve")),
    "updatedinput": ("hookSpecificOutput.updatedInput", ()),
    "updatedtooloutput": ("hookSpecificOutput.updatedToolOutput", ()),
    "behavior": ("hookSpecificOutput.decision.behavior", ("allow",)),
    "permission": (_PERMISSION, ("allow", "approve")),
    **dict.fromkeys(("ok", "allow", "allowed", "approve", "approved"), (_PERMISSION, (True,))),
    **dict.fromkeys(("cancel", "block", "blocked", "deny", "denied"), (_PERMISSION, (False,))),
}
"""Fields that decide, or would in other agents, in lower case and without ``_``.

Each has the field to use instead, and the values that prevent nothing.
"""


class HandlerAnswer(msgspec.Struct, frozen=True, kw_only=True):
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


def read_answer(handler: Handler, ran: Ran) -> HandlerAnswer:
    """Return the answer of a command.

    Raises:
        ClaudeHookError: it failed, and its ``on_failure`` is ``closed``.
    """
    if ran.problem:
        return failed(handler, ran.problem)
    output, problem, is_json = _decode(handler.event, ran.stdout)
    errors = ran.stderr.strip()
    if ran.code == BLOCKED:  # even if its JSON says something else
        message = output and output.system_message
        reason = (output and _reason(output)) or errors or message or f"Blocked by the hook {handler.label}."
        return HandlerAnswer(handler=handler, blocked=True, reason=_cut(reason), output=output or _NO_OUTPUT)
    if output is not None:
        return _from_output(handler, output)
    if problem and (is_json or ran.code == 0):
        return not_understood(handler, problem)
    if ran.code != 0:
        how = f"it was ended by signal {-ran.code}" if ran.code < 0 else f"it ended with exit code {ran.code}"
        return failed(handler, f"{how}: {errors.splitlines()[-1][:300]}" if errors else how)
    text = ran.stdout.strip() if handler.event in CONTEXT_FROM_TEXT else ""
    return HandlerAnswer(handler=handler, context=_cut(text))


def read_reply(handler: Handler, status: int, body: bytes) -> HandlerAnswer:
    """Return the answer of a URL: only JSON in a response with a status of 200 to 299 decides.

    Raises:
        ClaudeHookError: it failed, and its ``on_failure`` is ``closed``.
    """
    if not 200 <= status < 300:
        return failed(handler, f"it responded with status {status}")
    output, problem, _ = _decode(handler.event, text := body.decode(errors="replace"))
    if output is not None:
        return _from_output(handler, output)
    if problem:
        return not_understood(handler, problem)
    if text.strip():  # such as the login page of a proxy
        return failed(handler, "its response is not a JSON object")
    return HandlerAnswer(handler=handler)


def failed(handler: Handler, problem: str) -> HandlerAnswer:
    """Return the answer of a handler that failed.

    Raises:
        ClaudeHookError: its ``on_failure`` is ``closed``.
    """
    text = f"The {handler.event} hook {handler.label} failed: {problem}"
    if handler.on_failure == "closed":
        raise ClaudeHookError(f"{text} ({handler.where})")
    return HandlerAnswer(handler=handler, blocked=handler.on_failure == "block", reason=_cut(text), failure=text)


def not_understood(handler: Handler, problem: str) -> HandlerAnswer:
    """Return the answer of a handler that decided something, but not in a way that Hookline understands.

    It may have been a denial. So it blocks where a hook can prevent something, also if failures do not.

    Raises:
        ClaudeHookError: its ``on_failure`` is ``closed``.
    """
    if handler.event not in _GUARDED or handler.background:
        return failed(handler, problem)
    policy = "closed" if handler.on_failure == "closed" else "block"
    answer = failed(msgspec.structs.replace(handler, on_failure=policy), problem)
    if handler.event != "PostToolUse":
        return answer
    withheld = SpecificOutput(hook_event_name=handler.event, updated_tool_output=answer.reason)
    return msgspec.structs.replace(answer, output=HookOutput(hook_specific_output=withheld))


def _decode(event: str, text: str) -> tuple[HookOutput | None, str, bool]:
    """Return the answer that a hook printed, what is wrong with it, and whether it is JSON.

    Text that does not look like an answer is neither an answer nor wrong.
    """
    text = _without_lone_surrogates(text.strip(_SPACE))
    if not text.startswith(("{", "[")):
        return None, "", False
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        problem = f"the JSON that it printed is not valid: {error_text(error)}" if text[0] == "{" else ""
        return None, problem, False
    if isinstance(found, list):
        answers = [each for each in found if isinstance(each, dict) and any(map(_meant, each))]
        return None, "it printed a list instead of a JSON object" if answers else "", True
    try:
        output = msgspec.convert(found, HookOutput)
        _check_depth(output)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return None, f"the JSON that it printed is not valid: {error_text(error)}", True
    named = output.hook_specific_output
    if named is not None and named.hook_event_name != event:
        return None, f"its hookSpecificOutput is for {named.hook_event_name!r:.80}", True
    if problem := _misplaced(event, found):
        return None, f"{problem}. {output.system_message or ''}".strip(), True
    return output, "", True


def _meant(name: str) -> tuple[str, tuple[Any, ...]] | None:
    """Return the entry of the deciding field that a name resembles."""
    close = closest_match(name.replace("_", "").replace("-", "").lower(), _DECIDING, cutoff=0.85)
    return _DECIDING[close] if close else None


def _misplaced(event: str, found: dict[str, Any]) -> str:
    """Return what is wrong with an answer that decides in a field that is not read at this event.

    A permission in such a field is ignored: nothing was to be prevented.
    """
    specific = found.get("hookSpecificOutput") or {}
    for part, kind, prefix in ((found, HookOutput, ""), (specific, SpecificOutput, "hookSpecificOutput.")):
        known = {field.encode_name for field in msgspec.structs.fields(kind)}
        for name, value in part.items():
            meant = None if name in known else _meant(name)
            if meant is not None and value not in (None, *meant[1]):
                return f"it printed {prefix}{name:.80}, which is not a field of an answer: use {meant[0]}"
    ignored = [(found, "decision")] if event == "PermissionRequest" else [(specific, "decision")]
    ignored += [] if event == "PreToolUse" else [(specific, "permissionDecision")]
    for part, name in ignored:
        if part.get(name) not in (None, "allow", "approve", {"behavior": "allow"}):
            return f"it printed the field {name}, which does not decide at {event}"
    return ""


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


def _from_output(handler: Handler, output: HookOutput) -> HandlerAnswer:
    specific = output.hook_specific_output
    context = specific.additional_context if specific is not None else ""
    blocked = output.decision == "block"
    reason = _reason(output)
    if not reason and (blocked or (specific is not None and specific.permission_decision in ("deny", "ask", "defer"))):
        reason = output.system_message or ""  # some hooks, as those of hookify, tell only the user why
    if not reason and blocked:
        reason = f"Blocked by the hook {handler.label}."
    return HandlerAnswer(
        handler=handler, blocked=blocked, reason=_cut(reason), context=_cut(context or ""), output=output
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT]


class Answers:
    """The answers of all handlers of one event, in the order of the settings."""

    def __init__(self, answers: Sequence[HandlerAnswer]) -> None:
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
    def updated_input(self) -> tuple[HandlerAnswer, dict[str, Any]] | None:
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
