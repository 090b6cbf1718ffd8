"""The standard workload, the same for every peer.

``steps`` model calls; each but the last asks for one call of the tool ``add(a=1, b=2)``, the last one
says "done". An adapter in ``peers/`` defines as many of these as its framework supports:

- ``build(spec)``: returns a coroutine function that does this once and returns the number of model calls
- ``HOOKS``, ``TOOLS``: the names of its hook and tool functions, to check that they are called
- ``dispatchers()``: by label, whether it is async, and a function that returns a callable which fires n no-op hooks
"""

from dataclasses import dataclass
from typing import Any

ARGUMENTS = '{"a": 1, "b": 2}'
PROMPT = "Add the numbers."
FINAL = "done"


@dataclass(frozen=True)
class Spec:
    """One measurement: hooks on each main point (none, sync or async), steps, seconds the model sleeps.

    With ``adapter``, the hooks are those of Hookline in the loop of the peer, or there are none but the adapter. With
    ``guard`` as hooks, there is one, on tool calls.
    """

    hooks: str = "none"
    steps: int = 10
    delay: float = 0.0
    n: int = 10
    events: bool = False
    adapter: bool = False

    def count(self) -> int:
        """Return the number of hooks on each main point."""
        return 0 if self.hooks == "none" or self.adapter else self.n

    def hookline_hooks(self) -> list[Any]:
        """Return hooks of Hookline that do nothing, for an adapter."""
        from peers.hookline_ import MAIN, noop

        from hookline import BEFORE_TOOL, guard, hook

        if self.hooks == "guard":
            return [guard(BEFORE_TOOL, name="noop")(noop)]
        return [] if self.hooks == "none" else [hook(*MAIN, name=f"noop{number}")(noop) for number in range(self.n)]
