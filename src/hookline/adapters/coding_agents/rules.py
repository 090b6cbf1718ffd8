"""The hooks that protect a session of a coding agent, and the files that they come from."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._base.own_files import OwnFile, protection_of, register_own_file
from ..._kernel.payloads import ToolCallRequest
from ..._kernel.points import (
    AFTER_TOOL,
    APPROVAL_DECIDED,
    APPROVAL_REQUESTED,
    BEFORE_COMPACTION,
    BEFORE_PROMPT_BUILD,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    SESSION_START,
    TOOL_END_WITH_PATH,
    Point,
)
from ..._kernel.registry import HookRegistry
from ..._kernel.results import HookResult
from ..._run.budget import NO_LIMITS, Limits
from ..._run.halt import Halt, HaltSwitch
from ..._run.hosted import HostedAgent, question_of_host
from ...hooks.audit_log import AuditLogHook
from ...hooks.observability import ObservabilityHook
from ...plugins.trust import is_installed
from .._rules import load_rules
from .events import Kind
from .proving import DenyProof
from .searches import ExcludeSecrets

if TYPE_CHECKING:
    pass

COMMAND = "agent-hook"
"""The name under which this command itself prevents a call."""
FLUSH_SECONDS = 5.0
"""Seconds that the end of the process waits for what hooks record."""
_OF_THE_MODEL = ("steps", "tokens", "cost")
"""Limits of what a coding agent says nothing about."""

POINTS: dict[Kind, tuple[Point[Any], ...]] = {
    "session_start": (SESSION_START,),
    "prompt": (ON_RUN_START, BEFORE_PROMPT_BUILD),
    "before_tool": (BEFORE_TOOL, APPROVAL_REQUESTED, APPROVAL_DECIDED),
    "permission": (APPROVAL_REQUESTED,),
    "after_tool": (AFTER_TOOL, TOOL_END_WITH_PATH, ON_PROGRESS),
    "compaction": (BEFORE_COMPACTION,),
    "stop": (ON_STOP, ON_RUN_END),
}
"""The points that fire at each kind of event. At other events, nothing happens."""

FIRED = frozenset(point for points in POINTS.values() for point in points) | {ON_ERROR}


class Rules:
    """The hooks that protect a session, and the files that they come from."""

    def __init__(
        self,
        registry: HookRegistry,
        files: Iterable[Path] = (),
        trusted: ExitStack | None = None,
        halts: Sequence[HaltSwitch] = (),
        limits: Limits = NO_LIMITS,
    ) -> None:
        self.registry = registry
        self.halts = tuple(halts)
        """The stop switches of the configuration files."""
        self.limits = limits
        """The limits of each run that the configuration files set."""
        self._agents: dict[str, HostedAgent] = {}
        self.trusted = trusted
        """Keeps the check of imported modules active."""
        loaded = [getattr(module, "__file__", None) for module in list(_modules())]
        paths = set(_resolved([*map(os.fspath, files), *filter(None, loaded)]))
        self.files = {path: _stamp(path) for path in sorted(paths) if not is_installed(path)}
        for path in self.files:
            register_own_file(self, OwnFile(path, "a rule of this session, or code that it imports"))
        registry.register(DenyProof())
        registry.register(KeepRules())
        registry.register(ExcludeSecrets(registry))
        registry.register(Objections())

    @classmethod
    def load(cls, references: Sequence[str]) -> Rules:
        """Load hooks from files, modules, configuration files and by the names of built-in hooks.

        Raises:
            HooklineError: a hook cannot be loaded, or a configuration file is not trusted.
        """
        rules = load_rules(references)
        return cls(rules.registry, rules.files, rules.trusted, rules.halts, rules.limits)

    def agent(self, name: str) -> HostedAgent:
        """Return the agent whose runs the prompts of a coding agent are."""
        if name not in self._agents:
            self._agents[name] = HostedAgent(name, hooks=self.registry, limits=Limits(steps=math.inf))
        return self._agents[name]

    async def halt(self) -> Halt | None:
        """Return the halt of the projects of the configuration files, or ``None``."""
        found = [await switch.current_async() for switch in self.halts]
        return next(filter(None, found), None)

    def flush(self) -> None:
        """Wait until the hooks have written what they record."""
        for hook in self.registry:
            if isinstance(hook, (ObservabilityHook, AuditLogHook)):
                hook.flush(FLUSH_SECONDS)

    def changed(self) -> bool:
        """Return whether one of the files was changed since it was loaded."""
        return any(_stamp(path) != stamp for path, stamp in self.files.items())

    def not_called(self) -> list[str]:
        """Return what has no effect: hooks at points without an event, and limits of what the agent does not say."""
        stack = self.registry.stack
        found: dict[str, list[str]] = {}
        for point in sorted(stack.points - FIRED):
            for entry in stack.entries(point):
                found.setdefault(entry.name, []).append(str(point))
        unused = [f"{name} at {', '.join(points)}" for name, points in found.items()]
        limiting: list[Any] = list(stack.limiting)
        for name, limits in [("the configuration", self.limits), *((_name(hook), hook.limits) for hook in limiting)]:
            if unlimited := [field for field in _OF_THE_MODEL if getattr(limits, field) not in (None, math.inf)]:
                unused.append(f"the limit of {' and '.join(unlimited)} of {name}")
        return unused

    def kinds(self) -> list[Kind]:
        """Return the kinds of events that are needed; ``session_start`` tells the user what has no effect.

        They are those at which a hook is called, and all of them if something records or limits the whole run.
        """
        stack = self.registry.stack
        needs_all = stack.listeners or stack.watchers or stack.instruments or stack.limiting
        if needs_all or self.limits != NO_LIMITS:
            return list(POINTS)
        return [kind for kind, fired in POINTS.items() if kind == "session_start" or not stack.points.isdisjoint(fired)]


class Objections:
    """Blocks the calls that no guard can judge, and what the coding agent cannot do with a call.

    It is the last guard, so it judges the call that would be made.
    """

    name = COMMAND
    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = -1000

    async def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Block the call if the question that it is part of has an objection."""
        asked = question_of_host()
        why = None if asked is None else await asked.objection(request)
        return None if why is None else HookResult.block(why)


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


def _resolved(paths: Iterable[str]) -> Iterator[str]:
    """Return the files that these paths lead to. Each folder is resolved once."""
    folders: dict[str, str] = {}
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        found = os.path.join(folders[folder], name)
        yield os.path.realpath(found) if os.path.islink(found) else found


def _stamp(path: str) -> tuple[int, ...]:
    try:
        state = os.stat(path)
    except OSError:
        return ()
    return (state.st_mtime_ns, state.st_size, state.st_ino)


def _modules() -> Iterable[Any]:
    return sys.modules.values()


def _name(hook: Any) -> str:
    return getattr(hook, "name", None) or type(hook).__name__
