"""The environment of a run: clock, random numbers, ids, and the boundary for its calls (DESIGN 6.11)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .._base.frozen import plain
from .._base.workers import after_fork_in_child
from .._kernel.payloads import ApprovalRequest, ToolCallRequest
from .._kernel.results import Verdict
from .._kernel.values import Message
from ..models.protocol import Model
from ..tools._tool import CheckedArguments, Tool, jsonable

if TYPE_CHECKING:
    from random import Random


TOOL_TIMER = "tool with a timeout"
"""The name of the wakeup after a tool whose timeout the run applies itself."""


class Boundary(Protocol):
    """Intercepts all calls of a run to models, tools and approvers, and may answer them itself.

    A recording logs the calls; a replay answers them. Nested runs have the same boundary.
    """

    is_replay: bool
    """Whether calls are answered from a recording."""

    @property
    def times_tools(self) -> bool:
        """Whether it applies the timeouts of tools itself."""
        ...

    def model(self, model: Model) -> Model:
        """Return the model to call instead of this one."""
        ...

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> CheckedArguments | str:
        """Return the result of ``tool.validate(arguments)``."""
        ...

    def call(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Awaitable[Any]:
        """Return the result of ``tool.call(values, ctx)``."""
        ...

    def approve(
        self,
        asked: ApprovalRequest,
        ask: Callable[[], Awaitable[Verdict]],
        report: Callable[..., Awaitable[Verdict | None]],
    ) -> Awaitable[Verdict]:
        """Return the verdict of the approvers. ``ask()`` calls them; ``report(error)`` reports a failure."""
        ...

    def once(self, name: str, read: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        """Return the result of ``read()``, which a hook read with ``ctx.once``."""
        ...

    def wake_up(self, name: str, *, waited: bool = True) -> Awaitable[None]:
        """Wait until the run may continue, after it has awaited work of its own: see :meth:`Environment.wake_up`."""
        ...

    def steered(self, run_id: str, message: Message) -> None:
        """Handle a message that was added to the run with ``run.steer``."""
        ...


class Environment:
    """The clock, random numbers, ids and boundary of a run. Private to the engine.

    Hooks read them as ``ctx.clock``, ``ctx.random`` and ``ctx.new_id``. Only a hook with a method
    ``instrument(engine, start)``, such as the recorder of tapes, can replace them.
    """

    __slots__ = ("_random", "boundary", "clock", "durable", "new_id", "real")

    def __init__(
        self,
        clock: Any,
        new_id: Callable[[str], str],
        random: Random | None = None,
        boundary: Boundary | None = None,
    ) -> None:
        self.clock = clock
        self.new_id = new_id
        self.boundary = boundary
        self.durable: Any = None
        """The ``DurableRun`` that the run is part of, or ``None``."""
        self.real: Environment | None = None
        """The environment before a tape or a journal replaced its clock, random numbers and ids."""
        self._random = random

    @property
    def random(self) -> Random:
        """The random number generator. A seeded one makes runs repeatable."""
        if self._random is None:
            from random import Random

            self._random = Random()
        return self._random

    @random.setter
    def random(self, random: Random) -> None:
        self._random = random

    def name_run(self, run_id: str) -> None:
        """Give the next run this id."""
        given, new_id = [run_id], self.new_id

        def make(prefix: str = "id") -> str:
            return given.pop() if prefix == "run" and given else new_id(prefix)

        self.new_id = make

    def copy(self) -> Environment:
        """Return a copy for a nested run."""
        copy = Environment(self.clock, self.new_id, self._random, self.boundary)
        copy.durable = self.durable
        copy.real = self.real
        return copy

    @property
    def is_replay(self) -> bool:
        """Whether calls are answered from a recording."""
        return self.boundary is not None and self.boundary.is_replay

    def detached(self) -> Environment:
        """Return the environment without the tape and the journal, which end with the outermost run.

        In a replay it is the same, because a replay calls no model and no tool.
        """
        if self.is_replay:
            return self.copy()
        real = self
        while real.real is not None:
            real = real.real
        return Environment(real.clock, real.new_id, real._random)

    async def once(self, name: str, read: Callable[[], Any]) -> Any:
        """Return what a hook reads outside the run, as JSON."""

        async def value() -> Any:
            found = read()
            return plain(jsonable(await found if hasattr(found, "__await__") else found))

        return await (value() if self.boundary is None else self.boundary.once(name, value))

    async def wake_up(self, name: str, *, waited: bool = True) -> None:
        """Continue after the run has awaited work of its own: concurrent calls, a nested run, or its turn to begin.

        A recording says where this was among all that happened, because hooks with shared state depend on it. A replay
        waits for that place. Calls and hooks do this themselves.

        Args:
            name: what was awaited. In a part of the run, concurrent awaits have different names.
            waited: whether something else could happen meanwhile.
        """
        if self.boundary is not None:
            await self.boundary.wake_up(name, waited=waited)

    def model(self, model: Model) -> Model:
        """Return the model to call."""
        return model if self.boundary is None else self.boundary.model(model)


_POOL: list[str] = []
after_fork_in_child(_POOL.clear)


def make_id(prefix: str = "id") -> str:
    """Create an id that cannot be guessed."""
    try:
        return f"{prefix}_{_POOL.pop()}"
    except IndexError:  # read random bytes for many ids at once, which is faster
        fresh = os.urandom(12 * 64).hex()
        _POOL.extend(fresh[i : i + 24] for i in range(24, len(fresh), 24))
        return f"{prefix}_{fresh[:24]}"
