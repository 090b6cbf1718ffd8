"""List hooks in the order in which they run, for ``hookline hooks``, the HTTP API and the console."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .._kernel.hook import HookEntry
from .._kernel.points import POINTS
from .._kernel.registry import HookStack
from ..hooks.shadow_mode import Shadow
from .loading import source_location


class HookPlace(msgspec.Struct, frozen=True):
    """One hook at one point.

    ``tools`` are the globs of the tools that it is for, all if empty. ``layer`` is ``run`` for a hook that only the run
    has, and otherwise ``agent``. ``source`` is the file and line where the hook is defined.
    """

    point: str
    hook: str
    phase: str
    priority: float
    on_failure: str
    tools: tuple[str, ...] = ()
    layer: str = "agent"
    plugin: str = ""
    source: str = ""


def hook_order(stack: HookStack, added: Iterable[HookEntry] = ()) -> list[HookPlace]:
    """Return a row for each hook at each point, in the order in which they run.

    Example::

        for place in hook_order(agent.hooks.stack):
            print(place.point, place.hook)

    Args:
        stack: the hooks of an agent.
        added: the hooks that its runs have in addition.
    """
    last = tuple(added)
    if last:
        stack = HookStack(*stack.layers, last)
    added_ids = {id(entry.hook) for entry in last}
    return [
        HookPlace(
            point=str(point),
            hook=entry.name,
            phase=entry.phase,
            priority=entry.priority,
            on_failure=entry.on_failure,
            tools=entry.tools,
            layer="run" if id(entry.hook) in added_ids else "agent",
            plugin=entry.plugin or "",
            source=source_location(entry.hook.hook if isinstance(entry.hook, Shadow) else entry.hook),
        )
        for point in POINTS
        for entry in stack.entries(point)
    ]
