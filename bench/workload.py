"""The standard workload, the same for every peer.

``steps`` model calls; each but the last asks for one call of the tool ``add(a=1, b=2)``, the last one
says "done". An adapter in ``peers/`` defines as many of these as its framework supports:

- ``build(spec)``: returns a coroutine function that does this once and returns the number of model calls
- ``HOOKS``, ``TOOLS``: the names of its hook and tool functions, to check that they are called
- ``dispatchers()``: by label, whether it is async, and a function that returns a callable which fires n no-op hooks
"""

from dataclasses import dataclass

ARGUMENTS = '{"a": 1, "b": 2}'
PROMPT = "Add the numbers."
FINAL = "done"


@dataclass(frozen=True)
class Spec:
    """One measurement: hooks on each main point (none, sync or async), steps, seconds the model sleeps."""

    hooks: str = "none"
    steps: int = 10
    delay: float = 0.0
    n: int = 10
    events: bool = False

    def count(self) -> int:
        """Return the number of hooks on each main point."""
        return 0 if self.hooks == "none" else self.n
