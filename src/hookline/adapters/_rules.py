"""RULES of a command line: hooks from files, modules, configuration files, and by the names of built-in hooks.

The commands that protect another program (``agent-hook``, ``mcp-gateway``) take the same RULES.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from .._kernel.registry import HookRegistry
from .._run.budget import NO_LIMITS, Limits
from .._run.halt import HaltSwitch
from ..config.errors import ConfigError
from ..config.factory import halts_of, limits_of
from ..config.loading import load_hooks
from ..config.settings import Settings
from ..config.sources import load
from ..config.trust import TrustStore, check_trust, project_files, reference_files, trust_variable, trusted_files
from ..hooks._rules.file import is_rules
from ..plugins.trust import only_trusted


class LoadedRules(msgspec.Struct):
    """Hooks, the files that they come from, and what the configuration files among these say about runs."""

    registry: HookRegistry
    files: list[Path] = []
    trusted: ExitStack = msgspec.field(default_factory=ExitStack)
    """Keeps the check of imported modules active."""
    halts: list[HaltSwitch] = []
    """The stop switches of the configuration files."""
    limits: Limits = NO_LIMITS
    """The limits of each run that the configuration files set."""
    configured: bool = False
    """Whether there is a configuration file, which says where runs are listed."""


def load_rules(references: Sequence[str]) -> LoadedRules:
    """Load hooks from files, modules, configuration files and by the names of built-in hooks.

    Raises:
        HooklineError: a hook cannot be loaded, or a configuration file is not trusted.
    """
    rules = LoadedRules(HookRegistry())
    for reference in references:
        if reference.endswith(".toml") and not is_rules(Path(reference)):
            rules.files.append(Path(reference))
            rules.configured = True
            settings = _load_configuration(Path(reference), rules.registry, rules.trusted)
            rules.halts += filter(None, [halts_of(settings)])
            rules.limits = rules.limits.stricter(limits_of(settings))
            continue
        rules.files += reference_files([reference], Path.cwd())
        rules.files += [Path(reference)] if reference.endswith(".toml") else []
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
    from ..config.factory import build_hooks, build_plugins, build_recorder

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
