"""Context managers that hooks put around a run, a model call or a tool call (DESIGN 4.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from .events import log

T = TypeVar("T")

_HOOK_ERRORS = (Exception, asyncio.CancelledError, GeneratorExit)
"""Errors that sync code of a hook may raise itself. Here they mean neither a cancellation nor the end of the run."""


async def run_wrapped(hooks: Iterable[Any], ctx: Any, payload: Any, work: Awaitable[T]) -> T:
    """Await ``work`` inside the context managers that ``hook.wrap(ctx, payload)`` returns, the first one outermost.

    A context manager cannot affect the work: its errors are logged, and it cannot suppress an exception.
    """
    entered: list[AbstractContextManager[Any]] = []
    for hook in hooks:
        try:
            manager = hook.wrap(ctx, payload)
            if manager is not None:
                manager.__enter__()
                entered.append(manager)
        except _HOOK_ERRORS:
            log.exception("wrap() of hook %r failed for %s", hook, type(payload).__name__)
    try:
        result = await work
    except BaseException as error:
        _exit_all(entered, payload, error)
        raise
    _exit_all(entered, payload, None)
    return result


def _exit_all(entered: list[AbstractContextManager[Any]], payload: Any, error: BaseException | None) -> None:
    for manager in reversed(entered):
        try:
            manager.__exit__(type(error) if error is not None else None, error, error and error.__traceback__)
        except _HOOK_ERRORS:
            log.exception("leaving %r failed for %s", manager, type(payload).__name__)
