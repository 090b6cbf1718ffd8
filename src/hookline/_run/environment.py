"""The environment of a run: clock, random numbers, ids, and the boundary for its calls (DESIGN 6.11)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._base.frozen import plain
from .._base.workers import after_fork_in_child
from ..tools._tool import jsonable
from .boundary import DIRECT, Boundary

if TYPE_CHECKING:
    from random import Random


class Environment:
    """The clock, random numbers, ids and boundary of a run. Private to the engine.

    Hooks read them as ``ctx.clock``, ``ctx.random`` and ``ctx.new_id``. Only a hook with a method
    ``instrument(engine, start)``, such as the recorder of tapes, can replace them.
    """

    __slots__ = ("_random", "boundary", "clock", "new_id", "real")

    def __init__(
        self,
        clock: Any,
        new_id: Callable[[str], str],
        random: Random | None = None,
        boundary: Boundary = DIRECT,
    ) -> None:
        self.clock = clock
        self.new_id = new_id
        self.boundary = boundary
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
        copy.real = self.real
        return copy

    def detached(self) -> Environment:
        """Return the environment without the tape and the journal, which end with the outermost run.

        In a replay it is the same, because a replay calls no model and no tool.
        """
        if self.boundary.is_replay:
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

        return await self.boundary.once(name, value)


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
