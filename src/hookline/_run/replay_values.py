"""Values that a replay and a recovery compare and repeat: digests, errors, answers (DESIGN 6.11, 6.17)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from .._base.attachment import Attachment
from .._base.errors import PlainError
from .._base.frozen import Frozen, History, any_digest
from .._base.text import error_text, without_addresses
from .._kernel.errors import HookError, ModelError
from .._kernel.payloads import ApprovalAnswer, ApprovalRequest, ModelRequest
from .._kernel.points import APPROVAL_REQUESTED
from .._kernel.results import HookAction, Verdict
from .._kernel.values import ErrorInfo, Message, Usage
from ..models.errors import ProviderError
from ..models.protocol import Model
from ..tools._tool import WithAttachments


class ErrorSnapshot(Frozen, frozen=True, omit_defaults=True):
    """The properties of an error that a run can react to."""

    type: str
    message: str
    family: str = ""
    retry_after: float | None = None

    @classmethod
    def from_error(cls, error: BaseException) -> ErrorSnapshot:
        """Return the properties of an error."""
        family = next((name for name, kind in _FAMILIES.items() if isinstance(error, kind)), "")
        return cls(type(error).__name__, error_text(error), family, getattr(error, "retry_after", None))

    def error(self) -> BaseException:
        """Make an error with this type name, message and base class."""
        kind = _FAMILIES.get(self.family, Exception)
        made: BaseException = type(self.type, (kind,), {})(self.message)
        if self.family == "provider":
            made.retry_after = self.retry_after  # type: ignore[attr-defined]
        return made


_FAMILIES: dict[str, type[BaseException]] = {
    "provider": ProviderError,
    "model": ModelError,
    "plain": PlainError,
    "cancelled": asyncio.CancelledError,
}


def outcome_of(error: BaseException) -> dict[str, Any]:
    """Return the entry fields for a call that raised: cancelled from outside, or ended by its own error."""
    task = asyncio.current_task() if isinstance(error, asyncio.CancelledError) else None
    if isinstance(error, GeneratorExit) or (task is not None and task.cancelling()):
        return {"cancelled": True}
    return {"raised": ErrorSnapshot.from_error(error)}


def wrong_reply(model: Model, response: Any) -> ErrorSnapshot:
    """Return the error for a model that returned something else than a ``ModelResponse``."""
    wrong = f"model {model.name!r} returned {type(response).__name__}, not a ModelResponse"
    return ErrorSnapshot("ModelError", wrong, "model")


def tool_result(value: Any, attachments: tuple[Attachment, ...]) -> Any:
    """Return the result of a tool as the tool returned it."""
    return WithAttachments(value, attachments) if attachments else value


def failed_approver(error: HookError) -> ErrorInfo | None:
    """Return the failure of an approver that ended a request for approval; ``None`` if another hook failed."""
    if error.point != APPROVAL_REQUESTED:
        return None
    return ErrorInfo("hook", type(error.cause).__name__, str(error), error.hook)


def approval_verdict(
    asked: ApprovalRequest, answer: ApprovalAnswer | None, by: str, failed: ErrorInfo | None
) -> Verdict:
    """Return the verdict of the approvers again.

    Raises:
        HookError: an approver had failed.
    """
    if failed is not None:
        raise HookError(failed.source, APPROVAL_REQUESTED, ErrorSnapshot(failed.type, failed.message).error())
    return Verdict(asked, HookAction.CONT if answer is None else HookAction.CLAIM, answer, by)


NO_SETTINGS = any_digest((None, None, {}))[:16]


class RequestDigests:
    """Digests of requests to the model: one per part, so that a replay can name the part that differs.

    The name of the model is left out because a replay calls no model. A conversation grows by a few messages from one
    request to the next, so each message is digested once, and the digest of the messages, which is that of their
    digests, is continued where the previous request ended. Threads may use it at the same time: they then compute a
    digest twice.
    """

    def __init__(self) -> None:
        self._messages: dict[int, tuple[Message, bytes]] = {}
        """The digest of each message by its identity; with the message, so that its identity is not reused."""
        self._last: dict[tuple[str, str], tuple[Sequence[Message], Any]] = {}
        """By run and purpose, the messages of the last request and the hash of their digests."""
        self._tools: tuple[Any, str] = (), any_digest(())[:16]
        """The tools of the last request, and their digest."""

    def of(self, request: ModelRequest) -> dict[str, str]:
        """Return the digests of a request."""
        tools = self._tools
        if request.tools is not tools[0]:
            tools = self._tools = request.tools, any_digest(request.tools)[:16]
        settings = request.response_format, request.tool_choice, request.params
        return {
            "messages": self._digest_of_request(request),
            "tools": tools[1],
            "settings": NO_SETTINGS if settings == (None, None, {}) else any_digest(settings)[:16],
        }

    def request_key(self, request: ModelRequest) -> str:
        """Return the key of the token count of a whole request."""
        return "request " + " ".join(self.of(request).values())

    def count_key(self, content: str | Sequence[Message]) -> str:
        """Return the key of the token count of a text or of messages."""
        if isinstance(content, str):
            return any_digest(content)[:16]
        return sha256(self._digests_of(content)).hexdigest()[:16]

    def _digest_of_request(self, request: ModelRequest) -> str:
        key, messages = (request.ids.run_id, request.purpose), request.messages
        before, known = self._last.get(key, ((), None))
        tail = messages.tail_after(before) if type(messages) is History else None
        state = sha256() if tail is None or known is None else known.copy()
        state.update(self._digests_of(messages if tail is None or known is None else tail))
        self._last[key] = messages, state
        return str(state.hexdigest())[:16]

    def _digests_of(self, messages: Sequence[Message]) -> bytes:
        known, found = self._messages, []
        for message in messages:
            pair = known.get(id(message))
            if pair is None:
                data = message.to_json()
                if data.find(b" at 0x") >= 0:
                    data = without_addresses(data.decode()).encode()
                pair = known[id(message)] = message, sha256(data).digest()
            found.append(pair[1])
        return b"".join(found)


def price_key(usage: Usage) -> str:
    """Return the key of a price."""
    return f"price {usage.to_json().decode()}"
