"""The hooks that protect a session of a coding agent, and the files that they come from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._base.own_files import OwnFile, protection_of, register_own_file
from ..._base.workers import in_thread
from ..._kernel.payloads import ToolCallRequest
from ..._kernel.points import (
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_COMPACTION,
    BEFORE_PROMPT_BUILD,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    SESSION_START,
    TOOL_END_WITH_PATH,
    Point,
)
from ..._kernel.registry import HookRegistry
from ..._kernel.results import HookResult
from ..._run.halt import Halt
from ...plugins.trust import is_installed
from .._rules import load_rules
from .events import Kind
from .searches import ExcludeSecrets

if TYPE_CHECKING:
    from ...stores.runs import RunStore

POINTS: dict[Kind, tuple[Point[Any], ...]] = {
    "session_start": (SESSION_START,),
    "prompt": (ON_RUN_START, BEFORE_PROMPT_BUILD),
    "before_tool": (BEFORE_TOOL, APPROVAL_REQUESTED),
    "permission": (APPROVAL_REQUESTED,),
    "after_tool": (AFTER_TOOL, TOOL_END_WITH_PATH),
    "compaction": (BEFORE_COMPACTION,),
    "stop": (ON_STOP, ON_RUN_END),
}
"""The points that fire at each kind of event. At other events, nothing happens."""

FIRED = frozenset(point for points in POINTS.values() for point in points)


class Rules:
    """The hooks that protect a session, and the files that they come from."""

    def __init__(
        self,
        registry: HookRegistry,
        files: Iterable[Path] = (),
        trusted: ExitStack | None = None,
        projects: Sequence[RunStore] = (),
    ) -> None:
        self.registry = registry
        self.projects = tuple(projects)
        """The stores of runs of the configuration files: their stop switches apply, and the first lists the runs."""
        self.trusted = trusted
        """Keeps the check of imported modules active."""
        loaded = [getattr(module, "__file__", None) for module in list(_modules())]
        paths = {str(path.resolve()) for path in files} | {str(Path(name).resolve()) for name in loaded if name}
        self.files = {path: _stamp(path) for path in sorted(paths) if not is_installed(Path(path))}
        for path in self.files:
            register_own_file(self, OwnFile(path, "a rule of this session, or code that it imports"))
        registry.register(KeepRules())
        registry.register(ExcludeSecrets(registry))

    @classmethod
    def load(cls, references: Sequence[str]) -> Rules:
        """Load hooks from files, modules, configuration files and by the names of built-in hooks.

        Raises:
            HooklineError: a hook cannot be loaded, or a configuration file is not trusted.
        """
        rules = load_rules(references)
        return cls(rules.registry, rules.files, rules.trusted, rules.projects)

    async def halt(self) -> Halt | None:
        """Return the halt of the projects of the configuration files, or ``None``."""
        found = [await in_thread(project.halts.current) for project in self.projects]
        return next(filter(None, found), None)

    def changed(self) -> bool:
        """Return whether one of the files was changed since it was loaded."""
        return any(_stamp(path) != stamp for path, stamp in self.files.items())

    def not_called(self) -> list[str]:
        """Return what has no effect: hooks at points without an event, and what hooks do in Hookline's own loop."""
        stack = self.registry.stack
        found: dict[str, list[str]] = {}
        for point in sorted(stack.points - FIRED):
            for entry in stack.entries(point):
                found.setdefault(entry.name, []).append(str(point))
        unused = [f"{name} at {', '.join(points)}" for name, points in found.items()]
        for hooks, what in (
            (stack.limiting, "limits"),
            (stack.instruments, "recording"),
            (stack.wrappers, "context managers"),
            ([each for each in stack.listeners if not getattr(each, "wants_events_outside_runs", False)], "events"),
        ):
            unused += [f"the {what} of {getattr(hook, 'name', None) or type(hook).__name__}" for hook in hooks]
        return unused

    def kinds(self) -> list[Kind]:
        """Return the kinds of events at which a hook is called; ``session_start`` tells the user which are not."""
        points = self.registry.stack.points
        return [kind for kind, fired in POINTS.items() if kind == "session_start" or not points.isdisjoint(fired)]


class KeepRules:
    """Asks before a tool changes the rules, or another file that controls the session, if no guard blocks that."""

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Ask if a path of the call is one of these files."""
        tool = ctx.tool_registry.get(request.name)
        if tool is None or tool.effects == {"execute"} or not tool.may("write"):
            return None
        for path in tool.paths(request.arguments):
            target = os.path.join(tool.folder, os.path.expanduser(path))
            if protection_of(target) is not None:
                return HookResult.ask(f"{path:.200} decides what this session may do. Change it?")
        return None


def _stamp(path: str) -> tuple[int, ...]:
    try:
        state = os.stat(path)
    except OSError:
        return ()
    return (state.st_mtime_ns, state.st_size, state.st_ino)


def _modules() -> Iterable[Any]:
    return sys.modules.values()
