"""The boundary of a run: everything that the run takes from outside goes through it (DESIGN 6.11).

The loop, the batch and the model call know only this class. A tape that is recorded, a tape that is replayed and a
journal are subclasses, so the core has no branch on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .._base.tasks import with_timeout
from .._kernel.events import Event
from .._kernel.payloads import ApprovalRequest, RunStart, ToolCallRequest
from .._kernel.results import Verdict
from .._kernel.scope import HookBoundary
from .._kernel.values import Ids, Message
from ..models.protocol import Model
from ..tools._tool import CheckedArguments, Tool

if TYPE_CHECKING:
    from .durable import DurableRun
    from .engine import Engine
    from .events import Sink

T = TypeVar("T")


class Boundary(HookBoundary):
    """Makes all calls of a run to models, tools and approvers, and reads its clock, random numbers and ids.

    This class makes the actual calls. A subclass also records them, or answers them from a recording. Nested runs have
    the boundary of their outer run.
    """

    is_replay = False
    """Whether calls are answered from a tape, and no other calls are made."""
    is_durable = False
    """Whether the run has a journal."""
    continues = False
    """Whether an earlier process began the run."""

    # The life of a run.

    def execute(self, engine: Engine, start: RunStart, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Execute a run: ``work()``. The boundary of the run may change meanwhile, when an instrument is entered."""
        return work()

    def watch(self, engine: Engine, work: Awaitable[T]) -> Awaitable[T]:
        """Return ``work``, with what the boundary does when the task of the run is cancelled."""
        return work

    def journal_of(self, engine: Engine) -> DurableRun | None:
        """Return the durable run whose outermost run this is, or ``None``."""
        return None

    def hand_off(self, run_id: str, agent: str, task: str) -> None:
        """Note that another agent continues the conversation after this run."""

    def sinks_of(self, ids: Ids) -> tuple[Sink, ...]:
        """Return the sinks that the boundary adds to a run."""
        return ()

    is_new: Callable[[Event], bool] | None = None
    """Returns whether an event was not delivered before; ``None`` if all are new."""

    # Calls.

    def model(self, model: Model) -> Model:
        """Return the model to call instead of this one."""
        return model

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> CheckedArguments | str:
        """Return the result of ``tool.validate(arguments)``."""
        return tool.validate(arguments)

    def call_tool(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Awaitable[Any]:
        """Return the result of ``tool.call(values, ctx)``, within the timeout of the tool.

        Raises:
            StillRunningError: the tool exceeded its timeout.
        """
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

    def steer(self, engine: Engine, message: Message) -> bool:
        """Add a message to a run before its next model call. Return false if there will be none in this process."""
        engine.steered.append(message)
        engine.boundary.steered(engine.ids.run_id, message)
        return True

    def steered(self, run_id: str, message: Message) -> None:
        """Handle a message that was added to a run."""


DIRECT = Boundary()
"""The boundary of a run that nothing records or repeats."""
