"""State in memory that several agents share and can watch."""

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
    """Share JSON values between agents, hooks and tools. It is thread-safe, and values are frozen.

    Watchers are called after each change, in the order of the changes of a key. If another thread is calling the
    watchers of the key at that moment, that thread calls them for the new change too, so that no writer blocks.

    Example::

        board = Blackboard()
        stop = board.watch("task.*", lambda key, value: print(key, value))
        board.set("task.1", {"done": False})
        stop()
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._watchers: dict[object, tuple[str, Watcher]] = {}
        self._pending: dict[str, deque[tuple[Any, list[object]]]] = {}
        self._notifying: set[str] = set()
        self._updating = 0

    def __repr__(self) -> str:
        return f"Blackboard({len(self._values)} keys)"

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key."""
        with self._lock:
            return self._values.get(key, default)

    def set(self, key: str, value: Any) -> None:
        """Set the value of a key.

        Raises:
            TypeError: the value is not JSON, or the key is not text.
        """
        if not isinstance(key, str):
            raise TypeError(f"a key must be text, not {type(key).__name__}")
        frozen = freeze(value)
        with self._lock:
            self._values[key] = frozen
            self._changed(key, frozen)
        self._notify()

    def update(self, key: str, fn: Callable[[Any], Any]) -> Any:
        """Atomically set a key to the result of ``fn``, which gets the current value, or ``None`` if there is none.

        All other callers block while ``fn`` runs, so it should be fast. If it raises, the key keeps its value.

        Raises:
            TypeError: the result of ``fn`` is not JSON.
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
            self._notify()  # also for changes that ``fn`` made itself before it failed
        return value

    def delete(self, key: str) -> bool:
        """Delete a key; return whether it existed. Watchers get ``None`` as value."""
        with self._lock:
            if key not in self._values:
                return False
            del self._values[key]
            self._changed(key, None)
        self._notify()
        return True

    def snapshot(self) -> Mapping[str, Any]:
        """Return a copy of all keys and values."""
        with self._lock:
            found: Mapping[str, Any] = freeze(self._values)
            return found

    def watch(self, pattern: str, watcher: Watcher) -> Callable[[], None]:
        """Call ``watcher(key, value)`` after each change of a key that matches the glob.

        It is called in the thread of a writer. Its exceptions are logged.

        Returns:
            A function that removes the watcher.

        Raises:
            TypeError: the watcher is not callable, or is async.
        """
        if not callable(watcher) or inspect.iscoroutinefunction(watcher):
            raise TypeError("a watcher must be a plain function of key and value: in async code use changed()")
        mark = object()
        with self._lock:
            self._watchers[mark] = pattern, watcher

        def unsubscribe() -> None:
            with self._lock:
                self._watchers.pop(mark, None)

        return unsubscribe

    async def changed(self, pattern: str, timeout: float | None = None) -> tuple[str, Any]:
        """Wait for the next change of a key that matches the glob; return the key and its value.

        Args:
            pattern: a glob.
            timeout: seconds; ``None`` for no limit.

        Raises:
            TimeoutError: no key changed within ``timeout``.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[str, Any]] = loop.create_future()

        def resolve(key: str, value: Any) -> None:
            if not future.done():
                future.set_result((key, value))

        def on_change(key: str, value: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits for the future
                loop.call_soon_threadsafe(resolve, key, value)

        unsubscribe = self.watch(pattern, on_change)
        try:
            async with asyncio.timeout(timeout):
                return await future
        finally:
            unsubscribe()

    def _changed(self, key: str, value: Any) -> None:
        watchers = [mark for mark, (pattern, _) in self._watchers.items() if fnmatchcase(key, pattern)]
        if watchers:
            self._pending.setdefault(key, deque()).append((value, watchers))

    def _notify(self) -> None:
        """Call the watchers of all changes that no other thread handles, without holding the lock."""
        while True:
            with self._lock:
                if self._updating:  # by this thread, which notifies at the end of the update
                    return
                key = next((key for key in self._pending if key not in self._notifying), None)
                if key is None:
                    return
                self._notifying.add(key)
                changes = self._pending[key]
                value, marks = changes.popleft()
                if not changes:
                    del self._pending[key]
            try:
                for mark in marks:
                    self._call(mark, key, value)
            finally:
                with self._lock:
                    self._notifying.discard(key)

    def _call(self, mark: object, key: str, value: Any) -> None:
        with self._lock:
            _, watcher = self._watchers.get(mark, ("", None))
        if watcher is None:
            return
        try:
            watcher(key, value)
        except Exception:
            log.exception("a watcher of the key %r failed", key)
