"""Callers: those for whom a server or a gateway runs agents, and the ``deps`` of their runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from inspect import isawaitable, iscoroutinefunction
from typing import Any

import msgspec

from .._base.frozen import EMPTY, Frozen, freeze
from .._base.text import did_you_mean
from .._base.workers import in_thread
from .._kernel.errors import HooklineError
from .keys import RIGHTS

log = logging.getLogger("hookline")

CALLER = "caller_id"
"""The name in the metadata of a run under which a server puts the id of the caller."""


class Caller(Frozen, frozen=True):
    """The sender of a request.

    Example::

        Caller("ann", scopes={"read", "run"}, metadata={"user_role": "editor"})

    Args:
        id: identifies the caller, who owns the runs that it starts.
        name: a name for people, in views and logs; the id if left out.
        scopes: the rights: ``read``, ``run``, ``approve`` and ``admin``.
        metadata: passed on to the hooks of its runs.

    Raises:
        ValueError: the id is not a text, or there is no such right.
    """

    id: str
    name: str = ""
    scopes: AbstractSet[str] = frozenset()
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise ValueError(f"the id of a caller must be a text, not {self.id!r:.80}: write Caller(str(user.id), ...)")
        if isinstance(self.scopes, str):
            raise ValueError(f"scopes must be a set such as {{'read', 'run'}}, not {self.scopes!r:.80}")
        scopes = frozenset(self.scopes)
        for unknown in scopes.difference(RIGHTS):
            hint = did_you_mean(str(unknown), RIGHTS)
            raise ValueError(f"there is no right {unknown!r:.80}.{hint} Known: {', '.join(RIGHTS)}")
        changed = {"name": self.name or self.id, "scopes": scopes, "metadata": freeze(self.metadata)}
        for field, value in changed.items():
            msgspec.structs.force_setattr(self, field, value)

    def may(self, *scopes: str) -> bool:
        """Return whether the caller has at least one of these rights."""
        return not self.scopes.isdisjoint(scopes)

    @property
    def owner(self) -> str | None:
        """The owner of the runs that the caller can see: itself, or ``None`` for all runs."""
        return None if "admin" in self.scopes else self.id


DepsFactory = Callable[[Caller], Any]
"""Returns the ``deps`` of a run for its caller. It may be a coroutine function; a plain function runs in a thread."""


class DepsError(HooklineError):
    """The function that creates the ``deps`` of runs failed."""


async def create_deps(make: DepsFactory, caller: Caller) -> Any:
    """Return the ``deps`` of a run.

    Raises:
        DepsError: the function failed. Its message is only in the log, because callers see this error.
    """
    try:
        deps = make(caller) if iscoroutinefunction(make) else await in_thread(make, caller)
        return await deps if isawaitable(deps) else deps
    except Exception as error:
        log.exception("the deps of a run of %s could not be created", caller.id or "nobody")
        raise DepsError(f"the deps of this run could not be created ({type(error).__name__})") from error


def user_of(metadata: Mapping[str, Any]) -> str:
    """Return the user of a run: ``user`` in its metadata, else the caller or the sender; empty if it has none."""
    for name in ("user", CALLER):
        if (found := metadata.get(name)) not in (None, ""):
            return str(found)
    channel, sender = metadata.get("channel"), metadata.get("sender")
    return f"{channel}:{sender}" if channel and sender else ""
