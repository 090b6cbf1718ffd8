"""What hooks put around a run, a model call and a tool (DESIGN 4.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from .events import log

T = TypeVar("T")

_ANYTHING = (Exception, asyncio.CancelledError, GeneratorExit)
"""What sync code of a hook may raise of its own; none of it is a cancellation or an end of the run."""


async def around(hooks: Iterable[Any], ctx: Any, payload: Any, work: Awaitable[T]) -> T:
    """Await ``work`` within the context managers that hooks give for its payload, one in another.

    None of them can disturb it: what it raises is logged, and it cannot keep an error from going on.
    """
    entered: list[AbstractContextManager[Any]] = []
    for hook in hooks:
        try:
            manager = hook.around(ctx, payload)
            if manager is not None:
                manager.__enter__()
                entered.append(manager)
        except _ANYTHING:  # it decides nothing
            log.exception("hook %r failed to go around %s", hook, type(payload).__name__)
    try:
        result = await work
    except BaseException as error:
        _leave(entered, payload, error)
        raise
    _leave(entered, payload, None)
    return result


def _leave(entered: list[AbstractContextManager[Any]], payload: Any, error: BaseException | None) -> None:
    for manager in reversed(entered):
        try:
            manager.__exit__(type(error) if error is not None else None, error, error and error.__traceback__)
        except _ANYTHING:
            log.exception("%r failed at the end of %s", manager, type(payload).__name__)
