"""The hooks of a gateway, as its adapter uses them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._base.files import is_below, user_folder
from ..._kernel.payloads import ToolCallRequest
from ..._kernel.points import (
    AFTER_TOOL,
    APPROVAL_DECIDED,
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    SESSION_START,
    TOOL_END_WITH_PATH,
)
from ..._kernel.registry import HookRegistry, HookStack
from ..._kernel.results import HookResult
from ..._run.budget import Limits
from ...config.errors import ConfigError
from .._foreign import AdapterOptions
from .._rules import load_rules
from .catalog import APPROVE_TOOLS
from .gateway import ClientApprover, Gateway, PinGuard, Request
from .run import SUPPORT, GatewayAdapter

if TYPE_CHECKING:
    from contextlib import ExitStack

NAME = "mcp-gateway"
FIRED = frozenset(
    {
        *(SESSION_START, ON_RUN_START, BEFORE_TOOL, APPROVAL_REQUESTED, APPROVAL_DECIDED, AFTER_TOOL),
        *(TOOL_END_WITH_PATH, ON_PROGRESS, ON_ERROR, ON_STOP, ON_RUN_END),
    }
)
"""The points that a gateway has a moment for."""


class KeepRules:
    """Asks before a call that names the rules, or Hookline's own data, such as the pins, if no guard blocks it.

    What the tools of a server do with a path is unknown, so it asks about these files only, and not about all that
    may make other programs run code.
    """

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100
    name = "keep-rules"

    def __init__(self, files: Iterable[Path]) -> None:
        self._kept = [os.path.realpath(each) for each in (*files, user_folder("data"))]

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Ask if a path of the call is one of these files."""
        tool = ctx.tool_registry.get(request.name)
        if tool is None:
            return None
        for path in tool.paths(request.arguments):
            target = os.path.realpath(os.path.join(tool.folder, os.path.expanduser(path.removeprefix("file://"))))
            if any(is_below(target, kept) for kept in self._kept):
                return HookResult.ask(f"{path:.200} decides what this session may do. Run {request.name} with it?")
        return None


class Guards:
    """The hooks of a gateway, and the calls that they judge now.

    Args:
        registry: the hooks.
        options: those of every adapter.
    """

    def __init__(
        self,
        registry: HookRegistry,
        options: AdapterOptions,
        files: Iterable[Path] = (),
        trusted: ExitStack | None = None,
    ) -> None:
        self.calls: dict[str, tuple[Gateway, Request | None]] = {}
        self._trusted = trusted
        self._registry = registry
        for hook in (PinGuard(self.calls), KeepRules(files), ClientApprover(self.calls)):
            registry.register(hook)
        given: AdapterOptions = {"name": NAME, **options}
        given["effects"] = {**given.get("effects", {}), APPROVE_TOOLS: ()}
        limits = given.pop("limits", None) or Limits()
        self.adapter = GatewayAdapter(SUPPORT, [registry], given, limits)
        self.adapter.agent.max_attachment = None

    @classmethod
    def load(cls, references: Sequence[str], *, runs: Any = None, options: AdapterOptions | None = None) -> Guards:
        """Load RULES as the commands take them.

        Args:
            references: the rules.
            runs: the list of runs; by default, that of the configuration file among the rules, or else of the folder.
            options: more options.

        Raises:
            HooklineError: they cannot be loaded.
        """
        from ...stores.paths import default_runs_path

        rules = load_rules(references)
        given: AdapterOptions = {"limits": rules.limits, **(options or {})}
        if len(rules.halts) > 1:
            raise ConfigError("give one configuration file: the runs of a gateway obey one stop switch")
        if rules.halts:
            given["halts"] = rules.halts[0]
        if runs is None and not rules.configured:
            given["runs"] = default_runs_path(Path.cwd())
        elif runs:
            given["runs"] = runs
        return cls(rules.registry, given, rules.files, rules.trusted)

    def stack(self) -> HookStack:
        """Return the hooks as they are now."""
        return self.adapter.hooks.stack

    def not_called(self) -> list[str]:
        """Return the hooks at points for which a gateway has no moment."""
        stack = self._registry.stack
        found: dict[str, list[str]] = {}
        for point in sorted(stack.points - FIRED):
            for entry in stack.entries(point):
                found.setdefault(entry.name, []).append(str(point))
        return [f"{name} at {', '.join(points)}" for name, points in found.items()]
