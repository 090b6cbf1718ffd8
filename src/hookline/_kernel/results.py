"""Results of hooks (``HookResult``) and of points (``Verdict``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from .._base.frozen import Frozen, freeze, json_problem
from .errors import InvalidResultError
from .payloads import ApprovalAnswer, ApprovalRequest, Question, ToolCallRequest
from .state import AgentState
from .values import STOP_KINDS, ErrorInfo, ModelResponse, StopSignal

if TYPE_CHECKING:
    from .points import Point


class HookAction(StrEnum):
    """The verbs that a hook may return. ``INVALID`` and ``FAILED`` only occur in verdicts.

    ``CONTINUE``, ``MODIFY`` and ``END_TURN`` are EdgeVox's names of ``CONT``, ``REPLACE`` and ``END``.
    """

    CONT = "cont"
    REPLACE = "replace"
    BLOCK = "block"
    ANSWER = "answer"
    ASK = "ask"
    RETRY = "retry"
    STOP = "stop"
    KEEP_GOING = "keep_going"
    END = "end"
    MERGE = "merge"
    CLAIM = "claim"
    INVALID = "invalid"
    FAILED = "failed"

    CONTINUE = CONT
    MODIFY = REPLACE
    END_TURN = END


SETTLING = frozenset((HookAction.BLOCK, HookAction.END, HookAction.RETRY))
_TEXT = SETTLING | {HookAction.ASK, HookAction.STOP, HookAction.KEEP_GOING}


class HookResult(msgspec.Struct, frozen=True):
    """The return value of a hook. Create it with a verb; every verb takes ``reason=`` and ``state=``.

    Example::

        @guard(BEFORE_TOOL, tools="send_mail")
        def only_colleagues(ctx, request):
            if not request.arguments["to"].endswith("@example.com"):
                return HookResult.block("Mail may only go to example.com.", reason="outside address")
    """

    action: HookAction = HookAction.CONT
    value: Any = None
    reason: str = ""
    state: AgentState | None = None
    kind: str = ""

    def __post_init__(self) -> None:
        if type(self.action) is not HookAction:
            try:
                msgspec.structs.force_setattr(self, "action", HookAction(self.action))
            except ValueError:
                raise InvalidResultError(
                    f"{self.action!r} is not a verb; use a method such as HookResult.block(...)"
                ) from None
        if self.action in _TEXT and not isinstance(self.value, str):
            raise InvalidResultError(f"HookResult.{self.action}: expected text, got {type(self.value).__name__}")
        if self.action is HookAction.STOP and self.kind not in STOP_KINDS:
            raise InvalidResultError(f"stop kind {self.kind!r}: expected one of {', '.join(STOP_KINDS)}")

    @classmethod
    def cont(cls, *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Let the payload pass, like returning ``None``."""
        return cls(HookAction.CONT, None, reason, state)

    @classmethod
    def replace(cls, payload: Any, *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Continue with this payload, or with a mapping of the fields to change."""
        return cls(HookAction.REPLACE, payload, reason, state)

    @classmethod
    def block(cls, message: str = "", *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Do not run the tool. The model gets ``message`` as an error result; by default, the name of the hook."""
        return cls(HookAction.BLOCK, message, reason, state)

    @classmethod
    def answer(cls, value: Any, *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Use this value instead of calling the tool or the model."""
        return cls(HookAction.ANSWER, value, reason, state)

    @classmethod
    def ask(cls, question: str, *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Require approval before the call runs."""
        return cls(HookAction.ASK, question, reason, state)

    @classmethod
    def retry(cls, note: str = "", *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Repeat the call. ``note`` is added to the next request to the model."""
        return cls(HookAction.RETRY, note, reason, state)

    @classmethod
    def stop(
        cls, message: str = "", kind: str = "stop_requested", *, reason: str = "", state: AgentState | None = None
    ) -> HookResult:
        """Set a stop signal; it takes effect at the next checkpoint (DESIGN 4.7)."""
        return cls(HookAction.STOP, message, reason, state, kind)

    @classmethod
    def keep_going(cls, note: str = "", *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Continue the run instead of stopping; ``note`` goes to the model as a user message."""
        return cls(HookAction.KEEP_GOING, note, reason, state)

    @classmethod
    def end(cls, reply: str = "", *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """End the run now with this reply."""
        return cls(HookAction.END, reply, reason, state)

    @classmethod
    def merge(cls, *, reason: str = "", state: AgentState | None = None, **fields: Any) -> HookResult:
        """Return result fields at a merge point."""
        return cls(HookAction.MERGE, fields, reason, state)

    @classmethod
    def claim(cls, *, reason: str = "", state: AgentState | None = None, **fields: Any) -> HookResult:
        """Claim at a claim point: no later handler is called."""
        return cls(HookAction.CLAIM, fields, reason, state)

    @classmethod
    def approve(cls, *, by: str = "", reason: str = "") -> HookResult:
        """At ``approval_requested``: approve the call."""
        return cls.claim(approve=True, by=by, reason=reason)

    @classmethod
    def deny(cls, message: str = "", *, by: str = "", reason: str = "") -> HookResult:
        """At ``approval_requested``: block the call. The model gets ``message``; by default, who denied it."""
        return cls.claim(deny=message, by=by, reason=reason)

    @classmethod
    def edit(cls, arguments: Mapping[str, Any], *, by: str = "", reason: str = "") -> HookResult:
        """At ``approval_requested``: run the call with these arguments, if the guards allow them."""
        return cls.claim(edit=dict(arguments), by=by, reason=reason)

    @classmethod
    def wait(cls, *, reason: str = "") -> HookResult:
        """At ``approval_requested``: the decision comes later. Only a durable run can wait; others deny the call."""
        return cls.claim(wait=True, reason=reason)


class HookAnswer(msgspec.Struct, frozen=True):
    """A value that a hook returned instead of a tool result or a model response."""

    value: Any
    hook: str
    reason: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """The result of firing a point.

    ``action`` is the verb that took effect, ``payload`` the payload after all hooks, and ``value`` the block message,
    reply, note, merged fields or claim. ``error`` is the failure of a hook that fails closed; ``failures`` are all
    other failures.

    Example::

        verdict = await registry.fire(BEFORE_TOOL, request)
        if verdict.action == "block":
            print(verdict.hook, verdict.value)
    """

    payload: Any
    action: HookAction = HookAction.CONT
    value: Any = None
    hook: str = ""
    reason: str = ""
    answer: HookAnswer | None = None
    asks: tuple[Question, ...] = ()
    signals: tuple[StopSignal, ...] = ()
    failures: tuple[ErrorInfo, ...] = ()
    error: ErrorInfo | None = None

    @property
    def handled(self) -> bool:
        """At a claim point: whether a handler claimed the payload."""
        return self.action is HookAction.CLAIM


def parse_result(result: object, point: Point[Any], payload: Frozen, hook: str, phase: str) -> HookResult:
    """Convert the return value of a hook to a checked ``HookResult`` with a validated replacement payload.

    Raises:
        InvalidResultError: the point cannot use the value; the message names the hook, the point and the allowed verbs.
    """
    if not isinstance(result, HookResult):
        result = _bare(result, point, payload, hook)
    verb, allowed = result.action, _allowed(point, phase)
    if verb is not HookAction.CONT and verb not in allowed:
        raise InvalidResultError(
            f"{_where(hook, point)}: {str(verb)!r} is not allowed here; "
            f"allowed: {', '.join(sorted(allowed)) or 'nothing'}"
        )
    if verb is not HookAction.CONT and (why := payload.refuses(verb)):
        raise InvalidResultError(f"{_where(hook, point)}: {str(verb)!r} is {why}")
    try:
        if verb is HookAction.REPLACE:
            return HookResult(verb, payload.accept(result.value), result.reason, result.state)
        if verb in (HookAction.MERGE, HookAction.CLAIM):
            fields = _fields(point, result.value)
            if isinstance(fields, ApprovalAnswer) and fields.deny is not None and not fields.deny.strip():
                fields = fields.replace(deny=f"{_subject(payload)} was denied by {fields.by or f'hook {hook!r}'}.")
            return HookResult(verb, fields, result.reason, result.state)
        if verb is HookAction.BLOCK and not result.value.strip():
            return HookResult(verb, f"{_subject(payload)} was blocked by hook {hook!r}.", result.reason, result.state)
        if verb is HookAction.ANSWER:
            return HookResult(verb, _answer(point, result.value), result.reason, result.state)
    except (TypeError, ValueError) as error:
        raise InvalidResultError(f"{_where(hook, point)}: {error}") from error
    return result


def _where(hook: str, point: Point[Any]) -> str:
    return f"hook {hook!r} at {point}"


def _subject(payload: Frozen) -> str:
    """Name the payload in the default message of a block or a denial, which models and people read."""
    call = payload.call if isinstance(payload, ApprovalRequest) else payload
    return f"Tool {call.name!r}" if isinstance(call, ToolCallRequest) else type(payload).__name__


def _allowed(point: Point[Any], phase: str) -> frozenset[str]:
    if phase == "observe":
        return frozenset()
    if point.model != "pipeline":
        return frozenset((point.model,))
    return point.verbs - {"replace"} if phase == "guard" else point.verbs


def _bare(result: object, point: Point[Any], payload: Frozen, hook: str) -> HookResult:
    """Convert a shorthand: a payload, a mapping of fields, a claim mapping, or a tool result in the style of Ethos."""
    if point.model == "pipeline":
        if type(result) is type(payload):
            return HookResult.replace(result)
        if isinstance(result, Mapping) and point == "before_tool" and result and result.keys() <= {"args", "error"}:
            if result.get("error") is not None:
                return HookResult.block(result["error"])
            given = result.get("args")
            return HookResult() if given is None else HookResult.replace({"arguments": given})
        if isinstance(result, Mapping):
            return HookResult.replace(result)
    elif isinstance(result, Mapping):
        fields = dict(result)
        if point.model == "merge":
            return HookResult(HookAction.MERGE, fields)
        if point.model == "claim" and isinstance(fields.get("handled"), bool):
            why = fields.get("reason")
            claim = HookResult(HookAction.CLAIM, fields, why if isinstance(why, str) else "")
            return claim if fields.pop("handled") else HookResult()
    expected = {"merge": "a mapping of result fields", "claim": 'a mapping with "handled"', "observe": "nothing else"}
    wanted = expected.get(point.model, f"a HookResult or a {type(payload).__name__}")
    raise InvalidResultError(
        f"{_where(hook, point)} returned {type(result).__name__} ({result!r:.80}); expected None or {wanted}"
    )


def _fields(point: Point[Any], given: Mapping[str, Any]) -> Any:
    """Check result fields. Return a mapping at merge points and the result value itself at claim points."""
    if point.result is None:
        return freeze({name: value for name, value in given.items() if point.model == "claim" or value is not None})
    checked = point.result().replace(given)
    if isinstance(checked, ApprovalAnswer) and (
        checked.approve + (checked.deny is not None) + (checked.edit is not None) + checked.wait != 1
    ):
        raise TypeError("an approval must be exactly one of approve=True, deny=message, edit=arguments, wait=True")
    if isinstance(checked, ApprovalAnswer) and (problem := json_problem(checked.edit)):
        raise ValueError(f"edit: {problem}")
    if point.model == "claim":
        return checked
    return {name: getattr(checked, name) for name in given if getattr(checked, name) is not None}


def _answer(point: Point[Any], value: Any) -> Any:
    if point == "before_tool":
        return freeze(value)
    if isinstance(value, str):
        return ModelResponse(content=value)
    if not isinstance(value, (Mapping, ModelResponse)):
        raise TypeError(f"an answer here must be text or a ModelResponse, not {type(value).__name__}")
    return ModelResponse.of(value)
