"""Where a run meets the world: time, chance, ids, and what its calls go through (DESIGN 6.11)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .._base.workers import after_fork_in_child
from .._kernel.payloads import ApprovalRequest, ToolCallRequest
from .._kernel.results import Verdict
from ..models.protocol import Model
from ..tools._tool import Checked, Tool

if TYPE_CHECKING:
    from random import Random


class Boundary(Protocol):
    """What stands between a run and the world, if anything does: it sees every call, and may answer it itself.

    A recording writes the calls down; a replay answers them. Runs inside the run have the same one.
    """

    is_replay: bool
    """Whether the calls are answered from a recording: then nothing waits by the clock."""

    def model(self, model: Model) -> Model:
        """The model to ask in the place of this one."""
        ...

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> Checked | str:
        """What ``tool.validate(arguments)`` gives."""
        ...

    def call(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Awaitable[Any]:
        """What ``tool.call(values, ctx)`` gives."""
        ...

    def approve(
        self,
        asked: ApprovalRequest,
        ask: Callable[[], Awaitable[Verdict]],
        report: Callable[..., Awaitable[Verdict | None]],
    ) -> Awaitable[Verdict]:
        """What the approvers say. ``ask()`` asks them; ``report(error)`` puts a failure of theirs to ``on_error``."""
        ...

    def steered(self, run_id: str, text: str) -> None:
        """A message was put into the run, for its next model call."""
        ...


class Environment:
    """The sources that a run reads from, and the boundary that its calls pass. Private to the engine.

    Hooks read ``ctx.clock``, ``ctx.random`` and ``ctx.new_id``. Only a hook with a method
    ``instrument(engine, start)``, such as the one that records tapes, gets to replace them.
    """

    __slots__ = ("_random", "boundary", "clock", "new_id")

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
        self._random = random

    @property
    def random(self) -> Random:
        """Where chance comes from; a seeded one makes runs repeatable."""
        if self._random is None:
            from random import Random

            self._random = Random()
        return self._random

    @random.setter
    def random(self, random: Random) -> None:
        self._random = random

    def copy(self) -> Environment:
        """The same sources and boundary, for a run inside this one."""
        return Environment(self.clock, self.new_id, self._random, self.boundary)

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> Checked | str:
        """Check arguments: what the tool will be called with, or what is wrong with them."""
        return tool.validate(arguments) if self.boundary is None else self.boundary.validate(tool, arguments)

    def call(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Awaitable[Any]:
        """Call a tool."""
        return tool.call(values, ctx) if self.boundary is None else self.boundary.call(request, tool, values, ctx)

    def timeout_of(self, tool: Tool) -> float | None:
        """How long a call of a tool may take; a replay keeps to what the recording says."""
        return None if self.boundary is not None and self.boundary.is_replay else tool.timeout

    def model(self, model: Model) -> Model:
        """The model to ask."""
        return model if self.boundary is None else self.boundary.model(model)


_POOL: list[str] = []
after_fork_in_child(_POOL.clear)


def make_id(prefix: str = "id") -> str:
    """A fresh id that cannot be guessed."""
    try:
        return f"{prefix}_{_POOL.pop()}"
    except IndexError:  # one look at the system's randomness serves many ids
        fresh = os.urandom(12 * 64).hex()
        _POOL.extend(fresh[i : i + 24] for i in range(24, len(fresh), 24))
        return f"{prefix}_{fresh[:24]}"
