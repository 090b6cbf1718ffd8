"""Build an agent from settings: its model, tools, guards, hooks, plugins and limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .._base.text import did_you_mean
from .._kernel.hook import Hook
from .._kernel.registry import HookRegistry
from .._run.agent import Agent
from .._run.budget import Budget, Limits
from .._run.context import AgentContext
from .._run.events import log
from .._run.session import Session
from ..models.protocol import Model
from ..plugins.discovery import is_path
from ..plugins.errors import LoadError, PluginError
from ..plugins.manager import Host, PluginManager
from ..plugins.plugin import Plugin
from ..providers.names import get_model
from .errors import ConfigError
from .loading import load_hooks, load_tools, origin
from .settings import DeclaredHook, Settings
from .sources import FILE, SHARED_FILE, parse, why_not_trusted

if TYPE_CHECKING:
    from ..hooks.observability import ObservabilityHook


NAME = "hookline"
KEEP_DAYS = 365
"""How long the command line keeps what it records of runs."""


def build_agent(
    settings: Settings,
    *,
    home: Path | None = None,
    hooks: Iterable[Hook] = (),
    file: Path | None = None,
    plugins: PluginManager | None = None,
    tell: Callable[[str], object] = log.warning,
) -> Agent:
    """The agent that these settings describe; give its runs a :func:`context` for the limits.

    Args:
        settings: the settings.
        home: the folder that modules named in them are looked for in; the working folder if left out.
        hooks: further hooks, such as an approver.
        file: where the settings' hooks are named, if it is one file; errors tell it.
        plugins: who switches the plugins on; one of :func:`build_plugins` if left out.
        tell: gets what people should know of the plugins.

    Raises:
        ConfigError: the folder does not exist.
        LoadError: hooks, tools or plugins that cannot be loaded.
        RegistrationError: a model, hook, tool or plugin that cannot work.
        NotInstalledError: a package is missing.
        AuthError: the model needs a key.
    """
    home = Path.cwd() if home is None else home
    registry, bundles = build_hooks(settings, home, file)
    registry.extend(hooks)
    agent = Agent(
        NAME, "", settings.instructions, llm=build_model(settings), tools=build_tools(settings, home), hooks=registry,
        plugins=bundles, max_steps=settings.max_steps, params=settings.params,
    )  # fmt: skip
    plugins = build_plugins(settings, home) if plugins is None else plugins
    for note in use_plugins(plugins, agent, settings.plugins):
        tell(note)
    return agent


def build_model(settings: Settings) -> Model:
    """The model that these settings name."""
    options: dict[str, Any] = {"base_url": settings.base_url, "api": settings.api, "context": settings.context}
    return get_model(settings.model, **{name: value for name, value in options.items() if value is not None})


def build_hooks(settings: Settings, home: Path, file: Path | None = None) -> tuple[HookRegistry, list[Plugin]]:
    """The guards that are always there, the hooks that these settings name, and the plugins among them."""
    from ..hooks.path_guard import PathGuard

    try:
        loaded, plugins = load_hooks([_with_skills(hook, settings) for hook in settings.hooks], home)
    except LoadError as error:
        if file is None:
            raise
        raise LoadError(f"{file}: hooks: {error}") from error
    files = [place for hook in loaded if (place := origin(hook.hook).rpartition(":")[0])]
    files += _code_files(settings, home)
    files += [str(plugin.folder) for plugin in build_plugins(settings, home).found() if plugin.folder is not None]
    own: list[Any] = []
    if settings.audit:
        from ..hooks.audit_log import AuditLogHook

        own.append(AuditLogHook(settings.audit))
    if settings.tickets:
        from ..hooks.ticket_rules import TicketRules

        rules = TicketRules(settings.tickets)
        given = [each.hook.board.path for each in loaded if isinstance(each.hook, TicketRules)]
        own += [] if rules.board.path in given else [rules]
    # What controls the agent, tells of it or runs code is not its to change.
    keep = [FILE, SHARED_FILE, ".git", "*.tape", *files]
    own += _skill_hooks(settings, [each.hook for each in loaded])
    if settings.personalities:
        keep += [settings.personalities, os.path.realpath(settings.personalities)]
    keep += [kept for hook in (*own, *(each.hook for each in loaded)) for kept in getattr(hook, "own_files", ())]
    folder, write = folder_of(settings), settings.write
    registry = HookRegistry([PathGuard(folder, write=write, keep=keep), *own])
    if settings.shell:
        from ..hooks.terminal_guard import TerminalGuard

        registry.register(TerminalGuard(folder, writes=write, unknown="ask", keep=keep))
    for hook in loaded:
        hook.register(registry)
    return registry, plugins


def _skill_hooks(settings: Settings, hooks: Iterable[Any]) -> list[Any]:
    """What lists the skills, if there is a folder of them; the first proposal of one of these hooks makes it."""
    if not settings.skills:
        return []
    from ..hooks.skill_evolver import SkillEvolverHook
    from ..hooks.skills import SkillsHook

    if Path(settings.skills).is_file():
        raise ConfigError(f"skills: {settings.skills!r} is a file: name a folder")
    listed = SkillsHook(settings.skills)
    folder = listed.store.folder
    if not (folder.exists() or any(isinstance(h, SkillEvolverHook) and h.store.folder == folder for h in hooks)):
        raise ConfigError(
            f"skills: there is no folder {settings.skills!r}: make it, or let an agent learn skills for it "
            "with --hooks SkillEvolverHook"
        )
    return [listed]


def _with_skills(hook: str | DeclaredHook, settings: Settings) -> str | DeclaredHook:
    """A hook as it is declared; what proposes skills does so in the folder of skills, if it names no other."""
    declared = hook if isinstance(hook, DeclaredHook) else DeclaredHook(hook)
    if declared.use != "SkillEvolverHook" or "folder" in declared.args or not settings.skills:
        return hook
    return msgspec.structs.replace(declared, args={**declared.args, "folder": settings.skills})


def build_keepers(settings: Settings, files: Iterable[str]) -> list[Any]:
    """The guards that keep tools from changing these files, on top of those of :func:`build_hooks`."""
    from ..hooks.path_guard import PathGuard

    folder, write, keep = folder_of(settings), settings.write, list(files)
    found: list[Any] = [PathGuard(folder, write=write, keep=keep)]
    if settings.shell:
        from ..hooks.terminal_guard import TerminalGuard

        found.append(TerminalGuard(folder, writes=write, unknown="ask", keep=keep))
    return found


def code_of(references: Iterable[str], home: Path) -> list[str]:
    """The files and folders that the code of references such as ``FILE.py:name`` and ``module:name`` is in."""
    modules, files = [], []
    for reference in map(parse, references):
        if reference.file is not None:
            files.append(reference.file)
        elif reference.name:
            modules.append(home / reference.module.replace(".", "/"))
    return [*map(str, (*files, *modules)), *(f"{module}.py" for module in modules)]


def _code_files(settings: Settings, home: Path) -> list[str]:
    """The files and folders whose code runs as a tool or as an MCP server."""
    modules, files = [], []
    for target in settings.mcp:
        words = target.split()
        modules += [Path(name.replace(".", "/")).resolve() for mark, name in pairwise(words) if mark == "-m"]
        files += [Path(word).resolve() for word in (word.strip("\"'") for word in words) if Path(word).is_file()]
    return [
        *code_of(settings.tools, home), *map(str, (*files, *modules)), *(f"{module}.py" for module in modules),
    ]  # fmt: skip


def build_recorder(settings: Settings) -> ObservabilityHook | None:
    """What records runs for ``hookline stats``, if that is wanted."""
    if settings.runs is None:
        return None
    from ..hooks.observability import ObservabilityHook

    return ObservabilityHook(settings.runs, keep_days=KEEP_DAYS)


def build_tools(settings: Settings, home: Path) -> list[Any]:
    """The default tools, those for a shell, the web and tickets if wanted, tools named by settings, and MCP servers."""
    tools: list[Any] = []
    if settings.default_tools:
        from .._toolbox.basic import calculator, clock
        from .._toolbox.files import file_tools
        from ..hooks._support.secret_files import SECRET_FILES

        files = file_tools(folder_of(settings), write=settings.write, hide=SECRET_FILES)
        tools += [*files, calculator, clock]
    if settings.shell:
        from .._toolbox.shell import shell_tool

        tools.append(shell_tool(folder_of(settings)))
    tools += load_tools(settings.tools, home)
    if settings.hosts:
        from .._toolbox.web import fetch_tool

        tools.append(fetch_tool(settings.hosts))
    if settings.skills:
        from ..stores.skills import SkillStore

        tools.append(SkillStore(settings.skills))
    if settings.tickets:
        from .._toolbox.tickets import ticket_tools
        from ..stores.tickets import TicketBoard

        tools += ticket_tools(TicketBoard(settings.tickets))
    if settings.mcp:
        from ..tools._mcp import mcp

        tools += [mcp(target) for target in settings.mcp]
    return tools


def folder_of(settings: Settings) -> Path:
    """The folder that file tools may see.

    Raises:
        ConfigError: there is no such folder.
    """
    folder = Path(settings.folder)
    if not folder.is_dir():
        raise ConfigError(f"folder: there is no folder {settings.folder!r}")
    return folder.resolve()


def context(settings: Settings, session: Session | None = None) -> AgentContext:
    """A fresh context: all runs with it together stay within the limits of these settings, each within the steps."""
    limits = Limits(
        steps=settings.max_steps, tokens=settings.max_tokens, seconds=settings.max_seconds, cost=settings.max_cost,
        tool_calls=settings.max_tool_calls,
    )  # fmt: skip
    return AgentContext(session=session, budget=Budget(limits))


def build_plugins(settings: Settings, home: Path | None = None) -> PluginManager:
    """Who switches plugins on and off: those beside the configuration, the installed ones, and those named by path.

    Args:
        settings: the settings.
        home: the folder that ``plugins_folder`` starts at; the working folder if left out.
    """
    home = Path.cwd() if home is None else home
    named = [name for name in settings.plugins if is_path(name)]
    return PluginManager(
        folder=home / settings.plugins_folder, named=named, settings=settings.plugin_settings, trust=why_not_trusted
    )


def use_plugins(manager: PluginManager, host: Host, names: Iterable[str], *, lenient: bool = False) -> list[str]:
    """Plug these plugins into an agent; what people should know about it.

    A plugin may bring the guards that somebody counts on: an agent is not built without one, unless the plugin's own
    manifest says ``required = false``, or a program that must go on asks for it (``lenient``).

    Raises:
        PluginError: one cannot be used; all are off again.
    """
    manager.attach(host)
    notes = []
    for name, problem in manager.activate_all(names).items():
        if not lenient and _is_required(manager, name):
            manager.close()
            manager.detach(host)
            raise PluginError(
                f"{problem}. The agent does not start without it. Fix it, or leave it out: "
                f"'hookline plugins disable {name}', or '--plugin none' for no plugins this time"
            )
        notes.append(f"{problem}. The agent goes on without it")
    known = {found.id for found in manager.found()} if manager.settings else set()
    for name in manager.settings:
        if name not in known:
            notes.append(f"plugin_settings.{name}: there is no plugin {name!r}.{did_you_mean(name, known)}")
    return notes


def _is_required(manager: PluginManager, name: str) -> bool:
    try:
        manifest = manager.find(name).manifest
    except PluginError:
        return True
    return manifest is None or manifest.required
