"""An agent from a personality and the agent that it is made on top of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .._base.text import did_you_mean
from .._kernel.registry import HookRegistry
from .._run.agent import Agent
from ..config.errors import ConfigError
from ..config.loading import load_hooks, load_tools
from ..config.sources import parse
from ..models.protocol import Model
from ..tools.registry import ToolRegistry
from .layers import LayeredRegistry
from .personalities import Personality, read_fields

Models = Callable[[str], Model]
"""Gives the model of a name."""


def make_hooks(base: HookRegistry, personality: Personality, home: Path) -> LayeredRegistry:
    """The hooks of ``base``, live, and the guards of a personality in a layer of their own.

    Raises:
        LoadError: a guard that cannot be loaded.
        ConfigError: a plugin among them.
    """
    hooks, plugins = load_hooks(personality.guards, home)
    if plugins:
        raise ConfigError(
            f"guards: {plugins[0].name} is a plugin: switch it on in the settings, and name it in plugins"
        )
    registry = LayeredRegistry(base)
    for hook in hooks:
        hook.register(registry)
    return registry


def make_agent(
    base: Agent[Any, Any],
    personality: Personality,
    hooks: HookRegistry,
    home: Path,
    models: Models,
    extra: tuple[Any, ...] = (),
) -> Agent[Any, Any]:
    """The agent that a personality is.

    Args:
        base: what it is made on top of.
        personality: what is different.
        hooks: its hooks.
        home: the folder that modules are looked for in.
        models: gives models by name.
        extra: further tools.

    Raises:
        ConfigError: a tool or plugin that is not there.
        LoadError: a tool that cannot be loaded.
        RegistrationError: a model or tool that cannot work.
        AuthError: the model needs a key.
    """
    check_plugins(base, personality)
    agent = Agent(
        personality.id or base.name,
        personality.description,
        base.instructions if personality.instructions is None else personality.instructions,
        llm=base.model if personality.model is None else models(personality.model),
        tools=[*_tools(base, personality, home), *extra],
        hooks=hooks,
        allowed_plugins=_narrower(base.allowed_plugins, personality.plugins),
        limits=base.limits,
        max_steps=personality.max_steps,
        max_parallel_tools=base.max_parallel_tools,
        params={**base.params, **personality.params},
        response_format=base.response_format,
        output_type=base.output_type,
        output_retries=base.output_retries,
        sinks=base.sinks,
    )
    base.share_plugins_with(agent)  # its plugins are not handed to Agent(): their hooks are in the base already
    return agent


def check_plugins(base: Agent[Any, Any], personality: Personality) -> None:
    """See that its plugins are there: hooks that are counted on must not be missing without a word.

    Raises:
        ConfigError: one is not.
    """
    known = {plugin.name for plugin in base.plugins}
    known |= {entry.plugin for layer in base.hooks.stack.layers for entry in layer if entry.plugin is not None}
    for name in personality.plugins or ():
        if name not in known:
            there = f"The plugins that are on: {', '.join(sorted(known))}" if known else "No plugin is on"
            raise ConfigError(f"plugins: {name!r} is not on in the settings.{did_you_mean(name, known)} {there}")


def changed(personality: Personality, changes: Mapping[str, Any], where: str) -> Personality:
    """A personality with other fields; guards are added to its own.

    Raises:
        ConfigError: an unknown field or a wrong value.
    """
    if "delegates" in changes:
        raise ConfigError(f"{where}: delegates are the same in all sessions: change the file")
    folder = Path(personality.file).parent if personality.file else Path.cwd()
    fields = read_fields({name: value for name, value in changes.items() if name != "id"}, folder, where)
    return personality.replace({**fields, "guards": (*personality.guards, *fields.get("guards", ()))})


def _tools(base: Agent[Any, Any], personality: Personality, home: Path) -> list[Any]:
    """The tools of the base that it names, in their order, and the others that it names."""
    wanted = personality.tools
    if wanted is None:
        return list(base.tools)
    chosen: set[str] = set()
    own: list[str] = []
    for item in wanted:
        reference = parse(item)
        if reference.file is not None or reference.name:
            own.append(item)
            continue
        found = [tool.name for tool in base.tools if fnmatchcase(tool.name, item)]
        if not found and item != "*":
            known = [tool.name for tool in base.tools]
            there = f"There are {', '.join(known)}" if known else "There are none"
            raise ConfigError(f"tools: there is no tool {item!r}.{did_you_mean(item, known)} {there}. {_OWN}")
        chosen |= set(found)
        _check_owner(base, personality, item)
    return [*(tool for tool in base.tools if tool.name in chosen), *load_tools(own, home)]


_OWN = "For one of your own, write FILE.py, FILE.py:name or module:name"


def _check_owner(base: Agent[Any, Any], personality: Personality, name: str) -> None:
    """A tool that is named comes with its plugin, or not at all."""
    for plugin in base.plugins if personality.plugins is not None else ():
        if plugin.name not in (personality.plugins or ()) and name in ToolRegistry(plugin.tools):
            raise ConfigError(f"tools: {name!r} belongs to the plugin {plugin.name!r}: name that in plugins too")


def _narrower(base: tuple[str, ...] | None, own: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return base if own is None else own if base is None else tuple(name for name in own if name in base)
