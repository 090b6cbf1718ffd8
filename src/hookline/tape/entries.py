"""What a tape is made of: one entry a line, in the order in which things happened (DESIGN 6.11)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from .._base.errors import PlainError
from .._base.frozen import EMPTY, Frozen, digest, plain
from .._base.text import error_text, snake_case
from .._kernel.errors import ModelError
from .._kernel.payloads import ApprovalAnswer, ModelRequest, ToolCallRequest
from .._kernel.values import ErrorInfo, Ids, Message, ModelResponse, ToolSpec
from .._run.budget import NO_LIMITS, Limits
from ..models.errors import ProviderError

VERSION = 2
"""The version of the format. A reader knows one."""


class Entry(Frozen, frozen=True, tag=snake_case, tag_field="entry", omit_defaults=True):
    """One line of a tape. ``at`` counts seconds from its beginning.

    ``inside`` is the number of the tool call that it happened in, if a tool made it happen: a replay calls no tools,
    so it will not happen there. ``lane`` is the number of the part of the run that it belongs to: parts that go on at
    once, such as the calls of a batch, have lanes of their own, and the entries of one lane have one order.
    """

    at: float = 0.0
    inside: int = 0
    lane: int = 0


class TapeBegan(Entry, frozen=True):
    """The first line. ``time`` and ``monotonic`` are what the clocks showed."""

    version: int = 0
    hookline: str = ""
    time: float = 0.0
    monotonic: float = 0.0


class LaneBegan(Entry, frozen=True):
    """The lane ``parent`` began this lane: a call of a tool, an approval, the progress of a tool or a run inside.

    It is the lane of the run ``run`` or of the attempt ``attempt`` at the call ``call_id`` in it, if it says so.
    """

    parent: int = 0
    run: str = ""
    call_id: str = ""
    attempt: int = 0


class TapedSession(Frozen, frozen=True, omit_defaults=True):
    """The conversation that a run began in; ``fresh`` if it was the first run there."""

    id: str = ""
    key: str = ""
    platform: str = ""
    personality_id: str = ""
    personality_changes: Any = None
    fresh: bool = True


class TapedTool(Frozen, frozen=True, omit_defaults=True):
    """A tool as guards see it: what the model is told, if anything, and what its arguments and results mean."""

    spec: ToolSpec
    offered: bool = True
    folder: str = ""
    timeout: float | None = None
    untrusted: bool = False
    dangerous: bool = False
    paths: tuple[str, ...] = ()


class Ledger(Frozen, frozen=True, omit_defaults=True):
    """A budget that a run counted in besides its own: its limits, and what had been used before."""

    limits: Limits = NO_LIMITS
    input: int = 0
    output: int = 0
    cached: int = 0
    cost: float = 0.0
    priced: bool = True
    tool_calls: int = 0
    elapsed: float | None = None


class RunBegan(Entry, frozen=True):
    """A run, and what it began with. The first one of a tape is the run that is recorded; others are inside it."""

    ids: Ids = Ids()
    task: str = ""
    instructions: str = ""
    response_format: Any = None
    messages: tuple[Message, ...] = ()
    metadata: Any = None
    session: TapedSession = TapedSession()
    tools: tuple[TapedTool, ...] = ()
    model: str = ""
    provider: str = ""
    limits: Limits = NO_LIMITS
    ledgers: tuple[Ledger, ...] = ()
    allowed_plugins: tuple[str, ...] | None = None


class ModelAsked(Entry, frozen=True):
    """A request, as it went to the model. Its messages follow the first ``kept`` of the request before it."""

    number: int = 0
    run: str = ""
    request: ModelRequest = ModelRequest()
    kept: int = 0
    model: str = ""
    provider: str = ""
    digests: Mapping[str, str] = EMPTY


class Raised(Frozen, frozen=True, omit_defaults=True):
    """An error, as far as a run can tell it from others."""

    type: str
    message: str
    family: str = ""
    retry_after: float | None = None

    @classmethod
    def from_error(cls, error: BaseException) -> Raised:
        """What a tape keeps of an error."""
        family = next((name for name, kind in _FAMILIES.items() if isinstance(error, kind)), "")
        return cls(type(error).__name__, error_text(error), family, getattr(error, "retry_after", None))

    def error(self) -> BaseException:
        """An error like it."""
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


class ModelAnswered(Entry, frozen=True):
    """What came back: pieces, if it was streamed, then the response or an error.

    There is neither if it was ``cancelled``, or ``closed``: whoever read the stream wanted no more of it.
    """

    number: int = 0
    pieces: tuple[str, ...] = ()
    response: ModelResponse | None = None
    raised: Raised | None = None
    cancelled: bool = False
    closed: bool = False


class ToolCalled(Entry, frozen=True):
    """A call, as it went to the tool. The tool ``runs_agents``: a replay calls it."""

    number: int = 0
    run: str = ""
    request: ToolCallRequest = ToolCallRequest("", "")
    runs_agents: bool = False


class ToolReported(Entry, frozen=True):
    """How far a tool said it was."""

    number: int = 0
    fraction: float | None = None
    message: str = ""


class ToolAnswered(Entry, frozen=True):
    """What came back from a tool. ``refused``: the error was a hook's word about a model call of the tool."""

    number: int = 0
    value: Any = None
    raised: Raised | None = None
    cancelled: bool = False
    refused: bool = False


class ArgumentsChecked(Entry, frozen=True):
    """Arguments that a tool's validation changed, or found to be wrong."""

    tool: str = ""
    arguments: Any = None
    checked: Any = None
    problem: str = ""


class ApprovalAnswered(Entry, frozen=True):
    """What the approvers said of a call; ``failures`` are those that did not keep them from it."""

    number: int = 0
    run: str = ""
    call_id: str = ""
    attempt: int = 1
    answer: ApprovalAnswer | None = None
    by: str = ""
    failures: tuple[ErrorInfo, ...] = ()
    failed: ErrorInfo | None = None
    cancelled: bool = False


class Counted(Entry, frozen=True):
    """A number that the model gave: tokens, or a price."""

    key: str = ""
    value: float | None = None


class Drawn(Entry, frozen=True):
    """Values of ``ctx.clock``, ``ctx.random`` and ``ctx.new_id`` that were read before the next entry of its lane."""

    values: tuple[tuple[str, Any], ...] = ()


class Happened(Entry, frozen=True):
    """An event of a run."""

    event: Any = None


class SteeredIn(Entry, frozen=True):
    """Somebody put a message into a run."""

    run: str = ""
    text: str = ""


class AlarmRang(Entry, frozen=True):
    """A time limit was reached: the alarm that was set as the ``number``-th of its lane rang."""

    number: int = 0


class CancelledFrom(Entry, frozen=True):
    """Somebody cancelled the run."""

    reason: str = ""


AnyEntry = (
    TapeBegan
    | LaneBegan
    | RunBegan
    | ModelAsked
    | ModelAnswered
    | ToolCalled
    | ToolReported
    | ToolAnswered
    | ArgumentsChecked
    | ApprovalAnswered
    | Counted
    | Drawn
    | Happened
    | SteeredIn
    | AlarmRang
    | CancelledFrom
)

decoder = msgspec.json.Decoder(AnyEntry)


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def without_addresses(text: str) -> str:
    """A text without the addresses of objects, as in ``<object at 0x7f...>``: they differ in every program."""
    return _ADDRESS.sub(" at 0x", text) if " at 0x" in text else text


def digests_of(request: ModelRequest) -> dict[str, str]:
    """What tells a request from another, by part. The model's name is left out: a replay asks none."""
    parts = {
        "messages": [without_addresses(message.to_json().decode()) for message in request.messages],
        "tools": plain(request.tools),
        "settings": [plain(request.response_format), request.tool_choice, plain(request.params)],
    }
    return {name: digest(part)[:16] for name, part in parts.items()}


def ending_of(error: BaseException) -> dict[str, Any]:
    """How a call of a model or a tool ended that raised: cancelled from outside, or by an error of its own."""
    task = asyncio.current_task() if isinstance(error, asyncio.CancelledError) else None
    if isinstance(error, GeneratorExit) or (task is not None and task.cancelling()):
        return {"cancelled": True}
    return {"raised": Raised.from_error(error)}
