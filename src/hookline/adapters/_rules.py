"""RULES of a command line: hooks from files, modules, configuration files, and by the names of built-in hooks.

The commands that protect another program (``agent-hook``, ``mcp-gateway``) take the same RULES.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .._kernel.registry import HookRegistry
from ..config.errors import ConfigError
from ..config.loading import load_hooks
from ..config.settings import Settings
from ..config.sources import load
from ..config.trust import TrustStore, check_trust, project_files, reference_files, trust_variable, trusted_files
from ..plugins.trust import only_trusted

if TYPE_CHECKING:
    from ..stores.runs import RunStore


class LoadedRules(msgspec.Struct):
    """Hooks, the files that they come from, and the settings of the configuration files among these."""

    registry: HookRegistry
    files: list[Path] = []
    trusted: ExitStack = msgspec.field(default_factory=ExitStack)
    """Keeps the check of imported modules active."""
    settings: list[Settings] = []

    @property
    def projects(self) -> list[RunStore]:
        """The stores of runs of the configuration files: their stop switches apply, and the first lists the runs."""
        from ..config.factory import KEEP_DAYS
        from ..stores.runs import RunStore

        return [RunStore(each.runs, keep_days=KEEP_DAYS) for each in self.settings if each.runs is not None]


def load_rules(references: Sequence[str]) -> LoadedRules:
    """Load hooks from files, modules, configuration files and by the names of built-in hooks.

    Raises:
        HooklineError: a hook cannot be loaded, or a configuration file is not trusted.
    """
    rules = LoadedRules(HookRegistry())
    for reference in references:
        if reference.endswith(".toml"):
            rules.files.append(Path(reference))
            rules.settings.append(_load_configuration(Path(reference), rules.registry, rules.trusted))
            continue
        rules.files += reference_files([reference], Path.cwd())
        hooks, plugins = load_hooks([reference], Path.cwd())
        for hook in hooks:
            hook.register(rules.registry)
        for plugin in plugins:
            for each in plugin.hooks:
                rules.registry.register(each, plugin=plugin.name)
    if references and not len(rules.registry):
        raise ConfigError(f"{', '.join(references)}: there are no hooks, so nothing would be protected")
    return rules


def _load_configuration(path: Path, registry: HookRegistry, trusted: ExitStack) -> Settings:
    """Add the hooks of a configuration file to a registry, and return its settings."""
    from ..config.factory import build_hooks, build_plugins

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
    return config.settings
