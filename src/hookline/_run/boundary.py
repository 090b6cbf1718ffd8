"""The boundary of a run: everything that the run takes from outside goes through it (DESIGN 6.11).

The loop, the batch and the model call know only this class. A tape that is recorded, a tape that is replayed and a
journal are subclasses, so the core has no branch on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from .._base.tasks import with_timeout
from .._kernel.events import Event
from .._kernel.hook import HookEntry
from .._kernel.payloads import ApprovalRequest, ModelRequest, RunStart, ToolCallRequest
from .._kernel.results import Verdict
from .._kernel.scope import HookBoundary
from .._kernel.values import Ids, Message, ModelResponse, StopSignal, Usage
from ..models.attachments import ANY_TYPE, check_attachments
from ..models.protocol import Model
from ..tools._tool import CheckedArguments, Tool
from .events import Sink
from .halt import halt_signal
from .lanes import LANE, Lane, in_lane
from .replay_values import RequestDigests, price_key

T = TypeVar("T")

CANCELLATION = "cancellation"
"""The name of the wakeup after a part of the run has handled a cancellation."""


def wakeup_after(hook: HookEntry) -> str:
    """Return the name of the wakeup after a hook."""
    return f"{hook.point} {hook.name}"


class Boundary(HookBoundary):
    """Makes all calls of a run to models, tools and approvers, and reads its clock, random numbers and ids.

    This class makes the actual calls. A subclass also records them, or answers them from a recording. Nested runs have
    the boundary of their outer run. The engine of a run imports this module, so it is ``Any`` here.
    """

    is_replay = False
    """Whether calls are answered from a tape, and no other calls are made."""
    is_durable = False
    """Whether the run has a journal."""
    continues = False
    """Whether an earlier process began the run."""
    digests: RequestDigests
    """The digests of requests and texts, if the boundary is not direct."""

    # The life of a run.

    def execute(self, engine: Any, start: RunStart, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Execute a run: ``work()``. The boundary of the run may change meanwhile, when an instrument is entered."""
        return work()

    def watch(self, engine: Any, work: Awaitable[T]) -> Awaitable[T]:
        """Return ``work``, with what the boundary does when the task of the run is cancelled."""
        return work

    def journal_of(self, engine: Any) -> Any:
        """Return the durable run whose outermost run this is, or ``None``."""
        return None

    def hand_off(self, run_id: str, agent: str, task: str) -> None:
        """Note that another agent continues the conversation after this run."""

    def sinks_of(self, ids: Ids) -> tuple[Sink, ...]:
        """Return the sinks that the boundary adds to a run."""
        return ()

    def put_record(self, database: Any, record: Any) -> bool:
        """Store a record about the run with its journal, if that is in this database. Return whether it will be."""
        return False

    def is_new(self, event: Event) -> bool:
        """Return whether an event was not delivered before."""
        return True

    def is_repeating(self) -> bool:
        """Return whether the current task repeats what an earlier process did."""
        return False

    # Calls.

    def model(self, model: Model) -> Model:
        """Return a model whose calls pass the boundary."""
        return model if self.is_direct else BoundaryModel(self, model)

    def complete(
        self, model: Model, request: ModelRequest, call: Callable[[], Awaitable[ModelResponse]]
    ) -> Awaitable[ModelResponse]:
        """Return the reply of a model: that of ``call()``."""
        return call()

    def stream(
        self, model: Model, request: ModelRequest, call: Callable[[], AsyncIterator[str | ModelResponse]]
    ) -> AsyncIterator[str | ModelResponse]:
        """Yield the pieces of a reply, and then the reply: those of ``call()``."""
        return call()

    def streams(self, model: Model) -> bool:
        """Whether a model can stream."""
        return hasattr(model, "stream")

    def counted(self, model: Model, key: str, count: Callable[[], Any], estimate: Callable[[], Any]) -> Any:
        """Return a number that a model computes: a token count or a price.

        Args:
            model: the model.
            key: what is counted.
            count: returns the number.
            estimate: returns a number without the model.
        """
        return count()

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> CheckedArguments | str:
        """Return the result of ``tool.validate(arguments)``."""
        return tool.validate(arguments)

    def was_changed(self, request: ToolCallRequest, changed: bool, *, after_approvals: bool) -> bool:
        """Return whether a hook changed the arguments of a call in place after they were validated.

        This is checked before and after the approvers are asked.
        """
        return changed

    def call_tool(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Awaitable[Any]:
        """Return the result of ``tool.call(values, ctx)``, within the timeout of the tool.

        Raises:
            StillRunningError: the tool exceeded its timeout.
        """
        lane = LANE.get()
        if lane is not None:
            return _call_in(lane if tool.runs_agents else lane.of_tool(), tool, values, ctx)
        work = tool.call(values, ctx)
        return work if tool.timeout is None else with_timeout(tool.timeout, work)

    def approve(
        self,
        asked: ApprovalRequest,
        ask: Callable[[], Awaitable[Verdict]],
        report: Callable[..., Awaitable[Verdict | None]],
    ) -> Awaitable[Verdict]:
        """Return the verdict of the approvers. ``ask()`` calls them; ``report(error)`` reports a failure."""
        return ask()

    def once(self, name: str, read: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        """Return the result of ``read()``, which a hook read with ``ctx.once``."""
        return read()

    async def wake_up(self, name: str, *, waited: bool = True) -> None:
        """Continue after the run has awaited work of its own: concurrent calls, a nested run, or its turn to begin.

        A recording says where this was among all that happened, because hooks with shared state depend on it. A replay
        waits for that place. Calls and hooks do this themselves.

        Args:
            name: what was awaited. In a part of the run, concurrent awaits have different names.
            waited: whether something else could happen meanwhile.
        """

    # The stop switch.

    def find_halt(self, engine: Any) -> StopSignal | None:
        """Return the signal that stops a run at a checkpoint because it is halted; ``None`` if it is not."""
        for switch in engine.services.halts:
            if (halt := switch.latest()) is not None:
                return halt_signal(halt)
        return None

    async def wait_while_halted(self, engine: Any) -> None:
        """Wait before a call if the run is halted and can go on later. Other runs stop at their next checkpoint."""

    # Readings and timers, after :func:`~hookline._run.sources.install_sources`.

    def read(self, kind: str, real: Callable[[], Any]) -> Any:
        """Return a value of a kind: ``time``, ``monotonic``, ``random``, ``bits`` or ``id``.

        ``real()`` reads the actual one.
        """
        return real()

    def set_timer(self, clock: Any, seconds: float, callback: Callable[[], object]) -> Any:
        """Set a timer, with ``clock.call_later`` if the clock has that method. The returned object has ``cancel()``."""
        later = getattr(clock, "call_later", None) or asyncio.get_running_loop().call_later
        return later(seconds, callback)

    # Input from outside.

    def signalled(self, engine: Any, signal: StopSignal) -> None:
        """Handle a stop signal that was set in a run."""

    def steer(self, engine: Any, message: Message) -> bool:
        """Add a message to a run before its next model call. Return false if there will be none in this process."""
        engine.steered.append(message)
        engine.boundary.steered(engine.ids.run_id, message)
        return True

    def steered(self, run_id: str, message: Message) -> None:
        """Handle a message that was added to a run."""


class BoundaryModel:
    """A model whose calls pass a boundary.

    Args:
        boundary: the boundary.
        model: the actual model, which a replay knows by its name only.
    """

    attachment_types = ANY_TYPE  # the model's own types are checked in the call, so that a refusal is recorded too

    def __init__(self, boundary: Boundary, model: Model) -> None:
        self._boundary, self._model = boundary, model
        self.name, self.provider = model.name, model.provider
        if boundary.streams(model):
            self.stream = self._stream
        if boundary.is_replay or hasattr(model, "price"):
            self.price = self._price
        if boundary.is_replay or hasattr(model, "count_request"):
            self.count_request = self._count_request

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole reply."""
        return await self._boundary.complete(self._model, request, lambda: self._completed(request))

    async def _completed(self, request: ModelRequest) -> ModelResponse:
        check_attachments(self._model, request.messages)
        return await self._model.complete(request)

    def _stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        return self._boundary.stream(self._model, request, lambda: self._streamed(request))

    async def _streamed(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        check_attachments(self._model, request.messages)
        pieces = self._model.stream(request)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await close_stream(pieces)

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Return the number of tokens of a text or of messages."""
        key = self._boundary.digests.count_key(content)
        count, estimate = partial(self._model.count_tokens, content), partial(estimate_tokens, content)
        return int(self._boundary.counted(self._model, key, count, estimate))

    def _count_request(self, request: ModelRequest) -> int:
        model: Any = self._model
        key, estimate = self._boundary.digests.request_key(request), partial(self.count_tokens, request.messages)
        return int(self._boundary.counted(model, key, lambda: model.count_request(request), estimate))

    def _price(self, usage: Usage) -> float | None:
        model: Any = self._model
        key = price_key(usage)
        price: float | None = self._boundary.counted(model, key, lambda: model.price(usage), lambda: None)
        return price


async def _call_in(lane: Lane, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Any:
    """Call a tool in a lane."""
    with in_lane(lane):
        return await with_timeout(tool.timeout, tool.call(values, ctx))


async def close_stream(pieces: AsyncIterator[Any]) -> None:
    """Close the stream of a model, which may be any async iterator."""
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


def estimate_tokens(content: str | Sequence[Message]) -> int:
    """Return about the number of tokens of a text or of messages."""
    texts = [content] if isinstance(content, str) else [message.content for message in content]
    return sum(len(text) // 4 + 1 for text in texts)


DIRECT = Boundary()
"""The boundary of a run that nothing records or repeats."""
