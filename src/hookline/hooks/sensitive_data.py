"""SensitiveDataHook: redacts or blocks personal data and secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from .._base.attachment import Attachment
from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelReply, ModelRequest, RunStart, TokenDelta, ToolCallRequest, ToolCallResult
from .._kernel.points import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    ON_TOKEN,
    Point,
)
from .._kernel.results import HookResult
from .._kernel.state import AgentResult
from .._kernel.validation import check_bool, check_names
from .._kernel.values import Message, ToolCall
from .._sensitive.detectors import KINDS
from .._sensitive.redactor import Action, RedactedStream, Redactor
from ..records.redaction import Redaction
from ._support.tools import find_tool

POINTS_BY_LOCATION: Mapping[str, frozenset[Point[Any]]] = {
    "input": frozenset({ON_RUN_START, BEFORE_STEP, ON_RUN_END}),
    "output": frozenset({ON_TOKEN, AFTER_LLM, ON_RUN_END}),
    "arguments": frozenset({AFTER_LLM, BEFORE_TOOL}),
    "results": frozenset({AFTER_TOOL, ON_RUN_END}),
}
"""The values of ``where``, and the points of each."""

replace = msgspec.structs.replace


class _RedactionState(msgspec.Struct):
    """The state of the hook in one run."""

    streams: dict[int, RedactedStream] = {}
    blocked: dict[str, list[str]] = {}
    refused: list[str] = []
    messages: dict[int, tuple[Message, Message, frozenset[str]]] = {}


class SensitiveDataHook:
    """Finds personal data and secrets in tasks, replies, tool calls and results, and redacts or blocks them.

    No transcript, event or output contains the values, even if a reply is streamed: text that may become a value is
    held back. See :class:`Redactor` for the replacements. With ``block``, a value in the task or in a reply ends the
    run with ``reply``; a tool result is withheld, and a call with such arguments does not run and gets an error result.

    **Nothing that is stored about a run contains the values**: rows of runs, events, sessions, facts, records,
    approvals, the audit log and the log lines of a server are cleaned by the same rules, unless ``where`` leaves
    something out. Tapes and journals have to be exact, so they are encrypted instead if the operator gives a key.

    **The contents of attachments are not searched**: of an image, a PDF or another file, only the name is. In a run
    with attachments, the reason of the hook in the events names the files that it did not look into.

    Example:
        >>> hook = SensitiveDataHook(actions={"email": "mask"}, allow=["acme.com"])
        >>> agent = Agent("helper", llm="openai:gpt-5-mini", hooks=[hook])

    Args:
        kinds: the kinds to look for: ``secret``, ``card``, ``iban``, ``email``, ``phone``, ``ip``, ``ssn``.
        action: ``redact``, ``mask``, ``hash`` or ``block``.
        actions: the action for single kinds.
        arguments: the action for arguments of tool calls, or a mapping of kinds to actions. The default is ``block``,
            because a tool would do something else with redacted arguments.
        where: any of ``input`` (tasks), ``output`` (replies), ``arguments`` and ``results`` of tools. With fewer than
            all of them, what is stored is not cleaned any further.
        requests: whether to clean everything that is sent to the model: the system prompt, older messages, and text
            that hooks add.
        extra: further kinds and regular expressions for them, each within one line.
        allow: values, domains and compiled expressions to keep.
        key: a key for ``hash``; by default a random one for this process.
        private_ips: whether addresses of private networks count.
        reply: the reply of a run that is ended.

    Raises:
        RegistrationError: a kind or action is unknown, or an argument is invalid.
        NotInstalledError: a library for a kind of numbers is missing.
    """

    points: frozenset[Point[Any]] = frozenset().union(*POINTS_BY_LOCATION.values(), {BEFORE_LLM})
    phase: ClassVar[Mapping[str, str]] = {BEFORE_STEP: "guard"}
    priority = 50
    holds_text: bool | None = None

    def __init__(
        self,
        kinds: Iterable[str] = KINDS,
        action: Action = "redact",
        *,
        actions: Mapping[str, Action] | None = None,
        arguments: Action | Mapping[str, Action] = "block",
        where: Iterable[str] = tuple(POINTS_BY_LOCATION),
        requests: bool = False,
        extra: Mapping[str, str | re.Pattern[str]] | None = None,
        allow: Iterable[str | re.Pattern[str]] = (),
        key: str | bytes | None = None,
        private_ips: bool = False,
        reply: str = "I cannot continue: this contains sensitive data.",
    ) -> None:
        self.where = frozenset(check_names(where, "where"))
        for name in sorted(self.where - POINTS_BY_LOCATION.keys()):
            known = ", ".join(POINTS_BY_LOCATION)
            raise RegistrationError(
                f"where: there is no {name!r}.{did_you_mean(name, POINTS_BY_LOCATION)} There are {known}"
            )
        self.requests = check_bool(requests, "requests")
        if not isinstance(reply, str):
            raise RegistrationError(f"reply must be text, not {type(reply).__name__}")
        self.reply = reply
        self.redactor = Redactor(
            kinds, action, actions=actions, extra=extra, allow=allow, key=key, private_ips=private_ips
        )
        by_kind = arguments if isinstance(arguments, Mapping) else None
        self.argument_redactor = self.redactor.with_actions(
            "block" if isinstance(arguments, Mapping) else arguments, by_kind
        )
        self.points = frozenset().union(
            *(POINTS_BY_LOCATION[place] for place in self.where), {BEFORE_LLM} if requests else ()
        )
        self.storage_redaction: Redaction | None = None
        """Cleans everything that is stored about a run."""
        if self.where == POINTS_BY_LOCATION.keys():
            self.storage_redaction = Redaction.complete(self.redactor)
        if "output" not in self.where:
            self.holds_text = False  # at after_llm it only changes the arguments of calls
        self._handlers: dict[str, Callable[[Any, Any], HookResult | None]] = {
            ON_RUN_START: self._start,
            BEFORE_STEP: self._step,
            BEFORE_LLM: self._request,
            ON_TOKEN: self._token,
            AFTER_LLM: self._reply,
            BEFORE_TOOL: self._call,
            AFTER_TOOL: self._result,
            ON_RUN_END: self._end,
        }

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Redact or block the sensitive values in a payload."""
        return self._handlers[point](ctx, payload)

    def _state(self, ctx: Any) -> _RedactionState:
        return ctx.own_state(self, _RedactionState)  # type: ignore[no-any-return]

    def _start(self, ctx: Any, start: RunStart) -> HookResult | None:
        task, kinds = self.redactor.clean(start.task)
        attachments, more = self._clean_names(start.attachments)
        kinds |= more
        self._state(ctx).refused = self.redactor.blocked(kinds)
        reason = "; ".join(filter(None, (_found(kinds) if kinds else "", _not_searched(attachments))))
        if not kinds:
            return HookResult.cont(reason=reason) if reason else None
        return HookResult.replace({"task": task, "attachments": attachments}, reason=reason)

    def _clean_names(self, attachments: tuple[Attachment, ...]) -> tuple[tuple[Attachment, ...], frozenset[str]]:
        """Clean the names of attachments. Their contents are not searched."""
        kinds, cleaned = frozenset[str](), []
        for each in attachments:
            name, found = self.redactor.clean(each.name)
            cleaned.append(replace(each, name=name) if found else each)
            kinds |= found
        return tuple(cleaned) if kinds else attachments, kinds

    def _step(self, ctx: Any, step: Any) -> HookResult | None:
        """End a run with a blocked task. At its start, results and events would still have the original task."""
        refused = self._state(ctx).refused
        return HookResult.end(self.reply, reason=_found(refused)) if refused else None

    def _request(self, ctx: Any, request: ModelRequest) -> HookResult | None:
        known, messages, kinds = self._state(ctx).messages, [], set[str]()
        for message in request.messages:
            given, cleaned, found = known.get(id(message), (None, message, frozenset()))
            if given is not message:
                cleaned, found = self._message(message)
                known[id(message)] = message, cleaned, found
            kinds |= found
            messages.append(cleaned)
        refused = self.redactor.blocked(kinds)
        if refused:
            return HookResult.end(self.reply, reason=_found(refused))
        if all(new is old for new, old in zip(messages, request.messages, strict=True)):
            return None
        return HookResult.replace({"messages": tuple(messages)}, reason=_found(kinds))

    def _message(self, message: Message) -> tuple[Message, frozenset[str]]:
        content, kinds = self.redactor.clean(message.content)
        calls = []
        for call in message.tool_calls:
            cleaned, found = _clean_call(self.redactor, call)
            calls.append(cleaned)
            kinds |= found
        return (replace(message, content=content, tool_calls=tuple(calls)), kinds) if kinds else (message, kinds)

    def _token(self, ctx: Any, token: TokenDelta) -> HookResult | None:
        streams = self._state(ctx).streams
        stream = streams.pop(token.generation, None) or self.redactor.stream()
        shown = stream.feed(token.delta) + (stream.finish() if token.final else "")
        if stream.blocked:
            return HookResult.end(self.reply, reason=_found(stream.blocked))
        if not token.final:
            streams[token.generation] = stream
        return HookResult.replace({"delta": shown}) if shown != token.delta else None

    def _reply(self, ctx: Any, reply: ModelReply) -> HookResult | None:
        changed: dict[str, Any] = {}
        found: frozenset[str] = frozenset()
        if "output" in self.where:
            content, found = self.redactor.clean(reply.content)
            if refused := self.redactor.blocked(found):
                return HookResult.replace({"content": self.reply, "tool_calls": ()}, reason=_found(refused))
            changed |= {"content": content} if found else {}
        if "arguments" in self.where and reply.tool_calls:
            cleaned = [self._clean_named(ctx, call) for call in reply.tool_calls]
            for call, kinds in cleaned:
                found |= kinds
                if blocked := self.argument_redactor.blocked(kinds):
                    self._state(ctx).blocked[call.id] = blocked
            if any(kinds for _, kinds in cleaned):
                changed["tool_calls"] = tuple(call for call, _ in cleaned)
        return HookResult.replace(changed, reason=_found(found)) if changed else None

    def _clean_named(self, ctx: Any, call: ToolCall) -> tuple[ToolCall, frozenset[str]]:
        """Clean the arguments of a call, and its name if there is no such tool."""
        cleaned, kinds = _clean_call(self.argument_redactor, call)
        if find_tool(ctx, call.name) is None:
            name, found = self.argument_redactor.clean(call.name)
            cleaned, kinds = (replace(cleaned, name=name), kinds | found) if found else (cleaned, kinds)
        return cleaned, kinds

    def _call(self, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        arguments, kinds = self.argument_redactor.clean_value(request.arguments)
        blocked = self._state(ctx).blocked.get(request.id) or self.argument_redactor.blocked(kinds)
        if blocked:
            kinds_found = ", ".join(blocked)
            message = f"{request.name} did not run: its arguments contain sensitive data ({kinds_found}). Leave it out."
            return HookResult.block(message, reason=_found(blocked))
        return HookResult.replace({"arguments": arguments}, reason=_found(kinds)) if kinds else None

    def _result(self, ctx: Any, result: ToolCallResult) -> HookResult | None:
        value, kinds = self.redactor.clean_value(result.result)
        error, more = (None, frozenset[str]()) if result.error is None else self.redactor.clean(result.error)
        attachments, in_names = self._clean_names(result.attachments)
        kinds |= more | in_names
        unsearched = _not_searched(attachments)
        if not kinds:
            return HookResult.cont(reason=unsearched) if unsearched else None
        if refused := self.redactor.blocked(kinds):
            value, error = None, f"The result was withheld: it contains sensitive data ({', '.join(refused)})."
            attachments = ()
        reason = "; ".join(filter(None, (_found(kinds), unsearched)))
        return HookResult.replace({"result": value, "error": error, "attachments": attachments}, reason=reason)

    def _end(self, ctx: Any, result: AgentResult[Any]) -> HookResult | None:
        """Clean text that is only in the result: messages of errors, and replies of hooks that ended the run."""
        apply, changed = self.redactor.apply, dict[str, Any]()
        if "input" in self.where:
            changed["task"] = apply(result.task)
        if "output" in self.where:
            changed["reply"] = apply(result.reply)
        if "results" in self.where:
            changed["errors"] = tuple(replace(error, message=apply(error.message)) for error in result.errors)
        changed = {name: value for name, value in changed.items() if value != getattr(result, name)}
        return HookResult.replace(changed) if changed else None


def _clean_call(redactor: Redactor, call: ToolCall) -> tuple[ToolCall, frozenset[str]]:
    arguments, kinds = redactor.clean_value(call.arguments)
    raw, more = (None, frozenset[str]()) if call.raw is None else redactor.clean(call.raw)
    kinds |= more
    return (ToolCall(call.id, call.name, arguments, raw), kinds) if kinds else (call, kinds)


def _found(kinds: Iterable[str]) -> str:
    return f"found: {', '.join(sorted(kinds))}"


def _not_searched(attachments: tuple[Attachment, ...]) -> str:
    """Return a reason that names the attachments, whose contents were not searched."""
    return f"not searched: the contents of {', '.join(map(str, attachments))}" if attachments else ""
