"""What hooks put around a run, a model call and a tool (DESIGN 4.9)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from .events import log

NOTHING: AbstractContextManager[None] = nullcontext()


class Around:
    """The context managers that hooks give for one payload, entered one in another.

    None of them can disturb what it is around: what it raises is logged, and it cannot keep an error from going on.
    """

    __slots__ = ("_ctx", "_entered", "_hooks", "_payload")

    def __init__(self, hooks: Iterable[Any], ctx: Any, payload: Any) -> None:
        self._hooks, self._ctx, self._payload = hooks, ctx, payload
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        for hook in self._hooks:
            try:
                manager = hook.around(self._ctx, self._payload)
                if manager is not None:
                    manager.__enter__()
                    self._entered.append(manager)
            except Exception:  # noqa: BLE001 - it decides nothing
                log.exception("hook %r failed to go around %s", hook, type(self._payload).__name__)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for manager in reversed(self._entered):
            try:
                manager.__exit__(kind, error, trace)
            except Exception:  # noqa: BLE001
                log.exception("%r failed at the end of %s", manager, type(self._payload).__name__)
