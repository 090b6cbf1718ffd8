"""Who calls: a key, or somebody at this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from ..base.frozen import EMPTY, Frozen

Right = Literal["read", "run", "approve", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)
"""What a caller may do: look at runs, start and cancel them, decide about calls; ``admin``: with everybody's."""

LOCAL = "local"
"""The id of a caller at this machine, where no key is needed."""


class Caller(Frozen, frozen=True):
    """Who sends a request. ``metadata`` is what hooks are told of it."""

    id: str
    name: str
    scopes: frozenset[str]
    metadata: Mapping[str, Any] = EMPTY

    def may(self, *scopes: str) -> bool:
        """Whether it has one of these rights."""
        return not self.scopes.isdisjoint(scopes)

    @property
    def owner(self) -> str | None:
        """Whose runs it sees: its own; ``None`` for everybody's."""
        return None if "admin" in self.scopes else self.id
