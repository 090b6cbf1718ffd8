"""Hooks on top of others': a registry in which those of another one hold too, as they are now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._kernel.hook import Entry
from .._kernel.registry import HookRegistry, HookStack


class LayeredRegistry(HookRegistry):
    """A registry with a layer of its own after the hooks of ``base``, which stay live and are not its to take out.

    Args:
        base: the registry below.
        hooks: hooks of the own layer.
    """

    def __init__(self, base: HookRegistry, hooks: Iterable[Any] = ()) -> None:
        self._base = base
        self._own: tuple[Entry, ...] = ()
        self._made: tuple[HookStack, tuple[Entry, ...], HookStack] | None = None
        super().__init__(hooks)

    @property
    def _entries(self) -> tuple[Entry, ...]:
        return (*self._base._entries, *self._own)

    @_entries.setter  # so it can be set, as the attribute of the base class can
    def _entries(self, entries: tuple[Entry, ...]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        below = {id(entry) for entry in self._base._entries}
        self._own = tuple(entry for entry in entries if id(entry) not in below)

    @property
    def stack(self) -> HookStack:
        """The compiled hooks. The same object until something changes, here or below."""
        below, own, made = self._base.stack, self._own, self._made
        if made is None or made[0] is not below or made[1] is not own:
            self._made = made = below, own, HookStack(*below.layers, own) if own else below
        return made[2]

    def copy(self) -> HookRegistry:
        """Another registry on the same base, with the same hooks in its own layer."""
        new = LayeredRegistry(self._base)
        new._own = self._own
        return new
