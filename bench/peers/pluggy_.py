"""pluggy: a hook call of n plugins."""

from collections.abc import Callable
from typing import Any

import pluggy

spec_mark, impl_mark = pluggy.HookspecMarker("bench"), pluggy.HookimplMarker("bench")


class Hooks:
    @spec_mark
    def on_event(self, event: Any) -> None: ...


class Plugin:
    @impl_mark
    def on_event(self, event: Any) -> None:
        pass


def dispatchers() -> dict[str, tuple[bool, Callable[[int], Callable[[], Any]]]]:
    def make(n: int) -> Callable[[], Any]:
        manager = pluggy.PluginManager("bench")
        manager.add_hookspecs(Hooks)
        for _ in range(n):
            manager.register(Plugin())
        caller = manager.hook.on_event
        return lambda: caller(event=1)

    return {"pluggy": (False, make)}
