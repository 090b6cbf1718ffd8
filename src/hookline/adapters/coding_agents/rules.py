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
from ...config.errors import ConfigError
from ...config.factory import halts_of, limits_of
from ...config.loading import load_hooks
from ...config.sources import load
from ...config.trust import TrustStore, check_trust, project_files, reference_files, trust_variable, trusted_files
from ...hooks._rules.file import is_rules
from ...hooks.audit_log import AuditLogHook
from ...hooks.observability import ObservabilityHook
from ...plugins.trust import is_installed, only_trusted
from .events import Kind
from .proving import DenyProof
from .searches import ExcludeSecrets

if TYPE_CHECKING:
    from ...config.settings import Settings

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
        registry, trusted, files = HookRegistry(), ExitStack(), []
        halts: list[HaltSwitch] = []
        limits = NO_LIMITS
        for reference in references:
            if reference.endswith(".toml") and not is_rules(Path(reference)):
                files.append(Path(reference))
                settings = _load_configuration(Path(reference), registry, trusted)
                halts += filter(None, [halts_of(settings)])
                limits = limits.stricter(limits_of(settings))
                continue
            files += reference_files([reference], Path.cwd())
            files += [Path(reference)] if reference.endswith(".toml") else []
            hooks, plugins = load_hooks([reference], Path.cwd())
            for hook in hooks:
                hook.register(registry)
            for plugin in plugins:
                for each in plugin.hooks:
                    registry.register(each, plugin=plugin.name)
        if not len(registry):
            raise ConfigError(f"{', '.join(references)}: there are no hooks, so nothing would be protected")
        return cls(registry, files, trusted, halts, limits)

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


def _load_configuration(path: Path, registry: HookRegistry, trusted: ExitStack) -> Settings:
    """Add the hooks of a configuration file to a registry, and return its settings."""
    from ...config.factory import build_hooks, build_plugins, build_recorder

    config = load(file=path)
    if config.file is None:
        raise ConfigError(f"there is no file {path}")
    if not trust_variable(os.environ):
        store, files = TrustStore(), project_files(config)
        check = check_trust(store, config.file.resolve(), config.digest, files)
        if not check.passed:
            raise ConfigError(
                f"{check.path} or its code is not trusted, or has changed: read the files, then run "
                f"'hookline trust {check.path}'"
            )
        trusted.enter_context(only_trusted(trusted_files(store, files)))
    built, plugins = build_hooks(config.settings, config.home, config.file)
    registry.extend(built)
    manager = build_plugins(config.settings, config.home)
    manager.attach(registry)
    for name in config.settings.plugins:
        manager.activate(name)
    for plugin in plugins:
        for each in plugin.hooks:
            registry.register(each, plugin=plugin.name)
    if (recorder := build_recorder(config.settings)) is not None:
        registry.register(recorder)
    return config.settings
