"""State that several agents share, and can wait for."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from .._base.frozen import freeze

Watcher = Callable[[str, Any], object]

log = logging.getLogger("hookline")


class Blackboard:
    """Keys and frozen JSON values that agents, hooks and tools share. Safe from any thread.

    Watchers are told of each change after it was made, of the changes of one key in their order. Where another
    thread is just telling about a key, it tells of this change too, and nobody waits.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._watching: dict[object, tuple[str, Watcher]] = {}
        self._untold: dict[str, deque[tuple[Any, list[object]]]] = {}
        self._telling: set[str] = set()
        self._updating = 0

    def __repr__(self) -> str:
        return f"Blackboard({len(self._values)} keys)"

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, frozen."""
        with self._lock:
            return self._values.get(key, default)

    def set(self, key: str, value: Any) -> None:
        """Give a key a value.

        Raises:
            TypeError: a value that is not JSON, or a key that is not text.
        """
        if not isinstance(key, str):
            raise TypeError(f"a key is text, not {type(key).__name__}")
        frozen = freeze(value)
        with self._lock:
            self._values[key] = frozen
            self._changed(key, frozen)
        self._tell()

    def update(self, key: str, fn: Callable[[Any], Any]) -> Any:
        """Give a key the value that ``fn`` makes of the present one (``None`` if there is none); nobody comes between.

        Everybody else waits for ``fn``: keep it short. If it raises, the key keeps its value.

        Raises:
            TypeError: ``fn`` gave a value that is not JSON.
        """
        try:
            with self._lock:
                self._updating += 1
                try:
                    value = freeze(fn(self._values.get(key)))
                    self.set(key, value)
                finally:
                    self._updating -= 1
        finally:
            self._tell()  # also what ``fn`` changed itself before it failed
        return value

    def delete(self, key: str) -> bool:
        """Forget a key; whether there was one. Watchers are given ``None``."""
        with self._lock:
            if key not in self._values:
                return False
            del self._values[key]
            self._changed(key, None)
        self._tell()
        return True

    def snapshot(self) -> Mapping[str, Any]:
        """All keys and values as they are at this moment."""
        with self._lock:
            found: Mapping[str, Any] = freeze(self._values)
            return found

    def watch(self, pattern: str, watcher: Watcher) -> Callable[[], None]:
        """Call ``watcher(key, value)`` after each change of a key that fits the glob; the closure ends that.

        It is called in the thread of a writer. One that fails is logged.

        Raises:
            TypeError: a watcher that cannot be called, or is async.
        """
        if not callable(watcher) or inspect.iscoroutinefunction(watcher):
            raise TypeError("a watcher is a plain function of key and value; to wait, use changed()")
        mark = object()
        with self._lock:
            self._watching[mark] = pattern, watcher

        def unsubscribe() -> None:
            with self._lock:
                self._watching.pop(mark, None)

        return unsubscribe

    async def changed(self, pattern: str, timeout: float | None = None) -> tuple[str, Any]:
        """Wait for the next change of a key that fits the glob, and give the key and its value.

        Args:
            pattern: a glob.
            timeout: seconds.

        Raises:
            TimeoutError: nothing changed for so long.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[str, Any]] = loop.create_future()

        def settle(key: str, value: Any) -> None:
            if not future.done():
                future.set_result((key, value))

        def told(key: str, value: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, key, value)

        unsubscribe = self.watch(pattern, told)
        try:
            async with asyncio.timeout(timeout):
                return await future
        finally:
            unsubscribe()

    def _changed(self, key: str, value: Any) -> None:
        watchers = [mark for mark, (pattern, _) in self._watching.items() if fnmatchcase(key, pattern)]
        if watchers:
            self._untold.setdefault(key, deque()).append((value, watchers))

    def _tell(self) -> None:
        """Tell of all changes that nobody is telling of, outside the lock."""
        while True:
            with self._lock:
                if self._updating:  # by this thread: it tells when it is done
                    return
                key = next((key for key in self._untold if key not in self._telling), None)
                if key is None:
                    return
                self._telling.add(key)
                changes = self._untold[key]
                value, marks = changes.popleft()
                if not changes:
                    del self._untold[key]
            try:
                for mark in marks:
                    self._call(mark, key, value)
            finally:
                with self._lock:
                    self._telling.discard(key)

    def _call(self, mark: object, key: str, value: Any) -> None:
        with self._lock:
            _, watcher = self._watching.get(mark, ("", None))
        if watcher is None:
            return
        try:
            watcher(key, value)
        except Exception:
            log.exception("a watcher of %r failed", key)
