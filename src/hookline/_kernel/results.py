"""What a hook says (``HookResult``) and what a point concludes (``Verdict``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from .._base.frozen import Frozen, freeze
from .errors import InvalidResultError
from .payloads import ApprovalAnswer, ApprovalRequest, Question, ToolCallRequest
from .state import AgentState
from .values import STOP_KINDS, ErrorInfo, ModelResponse, StopSignal

if TYPE_CHECKING:
    from .points import Point


class HookAction(StrEnum):
    """What a hook says, by its verb. ``INVALID`` and ``FAILED`` are conclusions of a point, not verbs."""

    CONTINUE = "cont"
    MODIFY = "replace"
    BLOCK = "block"
    ANSWER = "answer"
    ASK = "ask"
    RETRY = "retry"
    STOP = "stop"
    KEEP_GOING = "keep_going"
    END_TURN = "end"
    MERGE = "merge"
    CLAIM = "claim"
    INVALID = "invalid"
    FAILED = "failed"


SETTLING = frozenset((HookAction.BLOCK, HookAction.END_TURN, HookAction.RETRY))
_TEXT = SETTLING | {HookAction.ASK, HookAction.STOP, HookAction.KEEP_GOING}


class HookResult(msgspec.Struct, frozen=True):
    """What a hook returns. Make one with a verb; every verb takes ``reason=`` and ``state=``."""

    action: HookAction = HookAction.CONTINUE
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
                    f"{self.action!r} is no verb; use HookResult.block(...) and the like"
                ) from None
        if self.action in _TEXT and not isinstance(self.value, str):
            raise InvalidResultError(f"HookResult.{self.action}: expected text, got {type(self.value).__name__}")
        if self.action is HookAction.STOP and self.kind not in STOP_KINDS:
            raise InvalidResultError(f"stop kind {self.kind!r}: expected one of {', '.join(STOP_KINDS)}")

    @classmethod
    def cont(cls, *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Let it pass, as ``None`` does."""
        return cls(HookAction.CONTINUE, None, reason, state)

    @classmethod
    def replace(cls, payload: Any, *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Go on with this payload, or with a mapping of the fields to change."""
        return cls(HookAction.MODIFY, payload, reason, state)

    @classmethod
    def block(cls, message: str = "", *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """The tool does not run; the model gets ``message`` as an error result, or else which hook blocked it."""
        return cls(HookAction.BLOCK, message, reason, state)

    @classmethod
    def answer(cls, value: Any, *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Serve this tool result or model response instead."""
        return cls(HookAction.ANSWER, value, reason, state)

    @classmethod
    def ask(cls, question: str, *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """The call needs approval."""
        return cls(HookAction.ASK, question, reason, state)

    @classmethod
    def retry(cls, note: str = "", *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Do it once more; a model is also given ``note``."""
        return cls(HookAction.RETRY, note, reason, state)

    @classmethod
    def stop(
        cls, message: str = "", kind: str = "stop_requested", *, reason: str = "", state: AgentState | None = None
    ) -> HookResult:
        """Record a stop signal; it takes effect at the next checkpoint (DESIGN 4.7)."""
        return cls(HookAction.STOP, message, reason, state, kind)

    @classmethod
    def keep_going(cls, note: str = "", *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """Do not stop yet; ``note`` goes to the model as a user message."""
        return cls(HookAction.KEEP_GOING, note, reason, state)

    @classmethod
    def end(cls, reply: str = "", *, reason: str = "", state: AgentState | None = None) -> HookResult:
        """End the run now, with this reply."""
        return cls(HookAction.END_TURN, reply, reason, state)

    @classmethod
    def merge(cls, *, reason: str = "", state: AgentState | None = None, **fields: Any) -> HookResult:
        """Give result fields at a merge point."""
        return cls(HookAction.MERGE, fields, reason, state)

    @classmethod
    def claim(cls, *, reason: str = "", state: AgentState | None = None, **fields: Any) -> HookResult:
        """Claim at a claim point: no handler after this one is asked."""
        return cls(HookAction.CLAIM, fields, reason, state)

    @classmethod
    def approve(cls, *, by: str = "", reason: str = "") -> HookResult:
        """At ``approval_requested``: let the call run."""
        return cls.claim(approve=True, by=by, reason=reason)

    @classmethod
    def deny(cls, message: str = "", *, by: str = "", reason: str = "") -> HookResult:
        """At ``approval_requested``: the call is blocked; the model gets ``message``, or else who denied it."""
        return cls.claim(deny=message, by=by, reason=reason)

    @classmethod
    def edit(cls, arguments: Mapping[str, Any], *, by: str = "", reason: str = "") -> HookResult:
        """At ``approval_requested``: run it with these arguments, if the guards let them pass."""
        return cls.claim(edit=dict(arguments), by=by, reason=reason)


class HookAnswer(msgspec.Struct, frozen=True):
    """A value served in place of a tool or a model, and the hook that served it."""

    value: Any
    hook: str
    reason: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """What a point concluded.

    ``action`` is the verb that holds; ``payload`` what leaves the point; ``value`` the block
    message, reply, note, merged fields or claim. ``error`` is the closed failure, ``failures`` the others.
    """

    payload: Any
    action: HookAction = HookAction.CONTINUE
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
        """At a claim point: whether somebody claimed."""
        return self.action is HookAction.CLAIM


def parse_result(result: object, point: Point[Any], payload: Frozen, hook: str, phase: str) -> HookResult:
    """A hook's return value as a checked ``HookResult``, its replacement payload already accepted.

    Raises:
        InvalidResultError: it names the hook, the point, and what is allowed there.
    """
    where = f"hook {hook!r} at {point}"
    if not isinstance(result, HookResult):
        result = _bare(result, point, payload, where)
    verb, allowed = result.action, _allowed(point, phase)
    if verb is not HookAction.CONTINUE and verb not in allowed:
        raise InvalidResultError(
            f"{where}: {str(verb)!r} is not allowed here; allowed: {', '.join(allowed) or 'nothing'}"
        )
    if verb is not HookAction.CONTINUE and (why := payload.refuses(verb)):
        raise InvalidResultError(f"{where}: {str(verb)!r} is {why}")
    try:
        if verb is HookAction.MODIFY:
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
        raise InvalidResultError(f"{where}: {error}") from error
    return result


def _subject(payload: Frozen) -> str:
    """What a block or a denial without a message is about: the model is told, and so are people."""
    call = payload.call if isinstance(payload, ApprovalRequest) else payload
    return f"Tool {call.name!r}" if isinstance(call, ToolCallRequest) else type(payload).__name__


def _allowed(point: Point[Any], phase: str) -> list[str]:
    if phase == "observe":
        return []
    if point.model != "pipeline":
        return [point.model]
    return sorted(point.verbs - {"replace"} if phase == "guard" else point.verbs)


def _bare(result: object, point: Point[Any], payload: Frozen, where: str) -> HookResult:
    """The shorthands: a payload alone, a mapping of fields, a claim mapping, Ethos' tool results."""
    if point.model == "pipeline":
        if isinstance(result, Mapping) and point == "before_tool" and result and result.keys() <= {"args", "error"}:
            if result.get("error") is not None:
                return HookResult.block(result["error"])
            given = result.get("args")
            return HookResult() if given is None else HookResult.replace({"arguments": given})
        if type(result) is type(payload) or isinstance(result, Mapping):
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
    raise InvalidResultError(f"{where} returned {type(result).__name__} ({result!r:.80}); expected None or {wanted}")


def _fields(point: Point[Any], given: Mapping[str, Any]) -> Any:
    """Checked fields: a mapping at merge points, the result value itself at claim points."""
    if point.result is None:
        return freeze({name: value for name, value in given.items() if point.model == "claim" or value is not None})
    checked = point.result().replace(given)
    if isinstance(checked, ApprovalAnswer) and (
        checked.approve + (checked.deny is not None) + (checked.edit is not None) != 1
    ):
        raise TypeError("an approval is exactly one of approve=True, deny=message, edit=arguments")
    if point.model == "claim":
        return checked
    return {name: getattr(checked, name) for name in given if getattr(checked, name) is not None}


def _answer(point: Point[Any], value: Any) -> Any:
    if point == "before_tool":
        return freeze(value)
    if isinstance(value, str):
        return ModelResponse(content=value)
    if not isinstance(value, (Mapping, ModelResponse)):
        raise TypeError(f"an answer here is text or a ModelResponse, not {type(value).__name__}")
    return ModelResponse.of(value)
