"""Who calls: a key, or somebody at this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._base.frozen import EMPTY, Frozen
from ..stores.keys import RIGHTS, Right

__all__ = ["ANYBODY", "LOCAL", "RIGHTS", "Caller", "Right"]

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


ANYBODY = Caller("", "", frozenset())
"""Who asks for what is open to everybody."""
