"""List hooks in the order in which they run, for ``hookline hooks``, the HTTP API and the console."""

from __future__ import annotations

import msgspec

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


def hook_order(stack: HookStack) -> list[HookPlace]:
    """Return a row for each hook at each point, in the order in which they run.

    The first layer of the stack is that of the agent.

    Example::

        for place in hook_order(agent.hooks.stack):
            print(place.point, place.hook)
    """
    own = {id(entry.hook) for layer in stack.layers[:1] for entry in layer}
    return [
        HookPlace(
            point=str(point),
            hook=entry.name,
            phase=entry.phase,
            priority=entry.priority,
            on_failure=entry.on_failure,
            tools=entry.tools,
            layer="agent" if id(entry.hook) in own else "run",
            plugin=entry.plugin or "",
            source=source_location(entry.hook.hook if isinstance(entry.hook, Shadow) else entry.hook),
        )
        for point in POINTS
        for entry in stack.entries(point)
    ]
