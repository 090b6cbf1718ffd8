"""Build an agent from settings: its model, tools, guards, hooks, plugins and limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .._base.files import distrust_reason, user_folder
from .._base.own_files import OwnFile, register_own_file
from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from .._kernel.hook import Hook
from .._kernel.registry import HookRegistry
from .._run.agent import Agent
from .._run.budget import Limits
from .._run.context import AgentContext
from .._run.deps import need_of_deps
from .._run.events import log
from .._run.session import Session
from ..hooks._catalog import load_builtin
from ..models.protocol import Model
from ..plugins.discovery import is_path
from ..plugins.errors import LoadError, PluginError
from ..plugins.manager import Host, PluginManager
from ..plugins.plugin import Plugin
from ..plugins.trust import check_file
from ..providers.factory import get_model, use_prices
from ..providers.prices import Price
from ..stores.callers import DepsFactory
from ..stores.paths import is_database_url, is_default_audit_path
from .errors import ConfigError
from .loading import load_function, load_hooks, load_tools
from .settings import DeclaredHook, Settings, parse_table
from .sources import SHARED_FILE, parse_reference
from .trust import command_scripts, reference_files, with_imports

if TYPE_CHECKING:
    from .._run.halt import HaltSwitch
    from ..hooks.observability import ObservabilityHook
    from ..stores.approval_policy import ApprovalPolicy
    from ..stores.approvals import ApprovalStore
    from ..stores.audit.log import AuditLog
    from ..stores.halts import HaltStore
    from ..stores.runs import RunStore


NAME = "hookline"
AUDIT_BYTES = 20_000_000
"""Maximum size of a file of a project's audit log."""
AUDIT_FILES = 9
"""Number of full files of a project's audit log that are kept: about half a million records."""
KEEP_DAYS = 365
"""Days for which the command line keeps recorded runs."""


def build_agent(
    settings: Settings,
    *,
    home: Path | None = None,
    hooks: Iterable[Hook] = (),
    file: Path | None = None,
    plugins: PluginManager | None = None,
    notify: Callable[[str], object] = log.warning,
) -> Agent:
    """Build the agent that settings describe. Its runs need a :func:`make_context` for the limits.

    Args:
        settings: the settings.
        home: the folder in which modules named in the settings are searched; by default, the working folder.
        hooks: additional hooks, such as an approver.
        file: the file that sets ``hooks``, for error messages.
        plugins: the plugin manager; by default, that of :func:`build_plugins`.
        notify: called with each note about plugins.

    Raises:
        ConfigError: the folder does not exist.
        LoadError: hooks, tools or plugins cannot be loaded.
        RegistrationError: a model, hook, tool or plugin is invalid.
        NotInstalledError: a package is missing.
        AuthError: the model needs a key.
    """
    home = Path.cwd() if home is None else home
    registry, bundles = build_hooks(settings, home, file)
    registry.extend(hooks)
    agent = Agent(
        NAME,
        "",
        settings.instructions,
        llm=build_model(settings),
        tools=build_tools(settings, home),
        hooks=registry,
        plugins=bundles,
        limits=Limits(steps=settings.max_steps),
        params=settings.params,
        stream=settings.stream,
        max_attachment=settings.max_attachment,
        suggestions=settings.suggestions,
    )
    plugins = build_plugins(settings, home) if plugins is None else plugins
    for note in use_plugins(plugins, agent, settings.plugins):
        notify(note)
    return agent


def build_model(settings: Settings) -> Model:
    """Build the model that settings name.

    Raises:
        ConfigError: a price has a wrong value.
        HooklineError: any error of ``get_model``.
    """
    options: dict[str, Any] = {
        "base_url": settings.base_url,
        "api": settings.api,
        "context": settings.context,
        "price": _prices(settings).get(settings.model),
    }
    return get_model(settings.model, **{name: value for name, value in options.items() if value is not None})


def _prices(settings: Settings) -> dict[str, Price]:
    return {name: _price(name, table) for name, table in settings.prices.items()}


def _price(model: str, table: Any) -> Price:
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"prices.{model}: expected a table such as {{ input = 0.5, output = 1.5 }}; got {table!r:.80}"
        )
    return parse_table(Price, f"prices.{model}", table)


def build_hooks(settings: Settings, home: Path, file: Path | None = None) -> tuple[HookRegistry, list[Plugin]]:
    """Build the built-in guards and the hooks named in the settings. Return them with the plugins among the hooks."""
    from ..hooks.path_guard import PathGuard

    try:
        with use_prices(_prices(settings)):
            loaded, plugins = load_hooks([_with_defaults(hook, settings) for hook in settings.hooks], home)
    except LoadError as error:
        if file is None:
            raise
        raise LoadError(f"{file}: hooks: {error}") from error
    own: list[Any] = []
    own += _audit_hooks(settings, [each.hook for each in loaded])
    own += _record_hooks(settings, [each.hook for each in loaded])
    own += _tape_hooks(settings)
    own += _claude_hooks(settings, [each.hook for each in loaded])
    if settings.tickets:
        from ..hooks.ticket_rules import TicketRules

        rules = TicketRules(settings.tickets)
        given = [each.hook.board.path for each in loaded if isinstance(each.hook, TicketRules)]
        own += [] if rules.board.path in given else [rules]
    own += _skill_hooks(settings, [each.hook for each in loaded])
    folder, write = work_folder(settings), settings.write
    commands = ["shell"] if settings.shell else []  # judged by the TerminalGuard
    # A table [tool.hookline] would configure the next run. A hook of the user may name its files in own_files.
    protect = [SHARED_FILE, *(kept for each in loaded for kept in getattr(each.hook, "own_files", ()))]
    guard = PathGuard(folder, write=write, protect=protect, commands=commands)
    for used in _own_files(settings, home):
        register_own_file(guard, used)
    registry = HookRegistry([guard, *own])
    if settings.shell:
        from ..hooks.terminal_guard import TerminalGuard

        registry.register(
            TerminalGuard(folder, profile=settings.shell_profile, writes=write, unknown="ask", protect=protect)
        )
    for hook in loaded:
        hook.register(registry)
    return registry, plugins


def audit_path(settings: Settings) -> str | None:
    """Return the path of the audit log that the settings name or declare as a hook; ``None`` without one."""
    declared = [each for each in settings.hooks if isinstance(each, DeclaredHook) and each.use == "AuditLogHook"]
    if declared and (not settings.audit or is_default_audit_path(settings.audit)):
        return next((str(each.args["path"]) for each in declared if each.args.get("path")), None)
    return settings.audit or None


def _audit_hooks(settings: Settings, hooks: Iterable[Any]) -> list[Any]:
    """Return the hook that writes the audit log; none without a log, or if the settings declare a log of their own."""
    if not settings.audit:
        return []
    from ..hooks.audit_log import AuditLogHook

    index = settings.audit_index or None
    if not is_default_audit_path(settings.audit):
        return [AuditLogHook(settings.audit, index=index)]
    if any(isinstance(hook, AuditLogHook) for hook in hooks):
        return []
    return [AuditLogHook(settings.audit, max_bytes=AUDIT_BYTES, keep_files=AUDIT_FILES, index=index)]


def _record_hooks(settings: Settings, hooks: Iterable[Any]) -> list[Any]:
    """Return the hook that records moments, if recording is on and the settings declare none of their own."""
    if not settings.record:
        return []
    from ..records.hook import RecordHook, shared_record_hook

    if any(isinstance(hook, RecordHook) for hook in hooks):
        return []
    if Path(settings.records).is_file():
        raise ConfigError(f"records: {settings.records!r} is a file: name a folder")
    return [shared_record_hook(settings.records)]


def _tape_hooks(settings: Settings) -> list[Any]:
    """Return the hook that records tapes, if the settings name a folder for them."""
    if not settings.tapes:
        return []
    if settings.tapes.endswith(".tape") or Path(settings.tapes).is_file():
        raise ConfigError(f"tapes: {settings.tapes!r} is a file: name a folder, in which each run gets a tape")
    return [load_builtin("TapeHook")(settings.tapes)]


def _claude_hooks(settings: Settings, hooks: Iterable[Any]) -> list[Any]:
    """Return the hook that calls the hooks of Claude Code, if the settings name any."""
    if not settings.claude_hooks:
        return []
    kind = load_builtin("ClaudeHooks")
    try:
        made = kind(settings.claude_hooks, folder=work_folder(settings))
    except RegistrationError as error:
        raise ConfigError(f"claude_hooks: {error}") from error
    for hook in hooks:
        if isinstance(hook, kind) and (twice := set(hook.files) & set(made.files)):
            raise ConfigError(f"claude_hooks: a hook ClaudeHooks reads {twice.pop()} too, so its hooks would run twice")
    return [made]


def _skill_hooks(settings: Settings, hooks: Iterable[Any]) -> list[Any]:
    """Return the hook that offers skills, if they are set. The folder must exist, unless a hook will create it."""
    if not settings.skills:
        return []
    from ..hooks.skill_evolver import SkillEvolverHook
    from ..hooks.skills import SkillsHook
    from ..stores.skills import DatabaseSkillStore

    listed = SkillsHook(settings.skills)
    store = listed.store
    if not isinstance(store, DatabaseSkillStore) and Path(settings.skills).is_file():
        raise ConfigError(f"skills: {settings.skills!r} is a file, not a folder")
    if not (store.exists() or any(isinstance(h, SkillEvolverHook) and h.store.place == store.place for h in hooks)):
        raise ConfigError(
            f"skills: no such folder: {settings.skills!r}. Create it, or let an agent learn skills for it "
            "with --hooks SkillEvolverHook"
        )
    return [listed]


_STORE_ARGUMENTS = {
    "ApprovalsHook": "store",
    "EpisodeLoggerHook": "memory",
    "MemoryInjectionHook": "memory",
    "NotesInjectorHook": "notes",
    "ObservabilityHook": "path",
    "PersistSessionHook": "store",
    "TicketRules": "board",
}
"""Built-in hooks whose store is in the database, if there is one, and the names of the arguments for it."""


def _with_defaults(hook: str | DeclaredHook, settings: Settings) -> str | DeclaredHook:
    """Return the declared hook with the settings that it does not override: where its store is."""
    declared = hook if isinstance(hook, DeclaredHook) else DeclaredHook(hook)
    defaults = {name: (argument, settings.database) for name, argument in _STORE_ARGUMENTS.items()}
    defaults["SkillEvolverHook"] = "folder", settings.skills
    defaults["SpendingLimit"] = "store", settings.spending_file
    if parse_reference(declared.use).is_data:
        defaults[declared.use] = "store", settings.database
    if declared.args.get("path"):
        defaults["AuditLogHook"] = "index", settings.audit_index or ""
    argument, place = defaults.get(declared.use, ("", ""))
    if not place or argument in declared.args:
        return hook
    return msgspec.structs.replace(declared, args={**declared.args, argument: place})


def _own_files(settings: Settings, home: Path) -> Iterator[OwnFile]:
    """Return the files and folders that the settings name, even if nothing has loaded or opened them yet."""
    references = [hook.use if isinstance(hook, DeclaredHook) else hook for hook in settings.hooks] + [*settings.tools]
    references += [settings.deps] if settings.deps else []
    code = [*code_files(references, home), *_server_code(settings)]
    if settings.write:  # otherwise nothing can change what the code imports
        servers = command_scripts((*settings.mcp, *settings.trusted_mcp), home)
        code += map(str, [*reference_files(references, home), *with_imports(servers, (home, Path.cwd()))])
    code += [str(plugin.folder) for plugin in build_plugins(settings, home).found() if plugin.folder is not None]
    for path in dict.fromkeys([*code, *filter(None, [settings.personalities])]):
        yield OwnFile(path, "code of the agent", is_folder=os.path.isdir(path) or not Path(path).suffix, optional=True)
    stores = (settings.runs, settings.approval_file, settings.spending_file, settings.sessions, settings.audit)
    for place in (*stores, settings.audit_index, settings.records, settings.tapes, settings.tickets, settings.skills):
        if place and not is_database_url(place):
            is_folder = not Path(place).suffix
            yield OwnFile(place, "a store of Hookline", beside=not is_folder, is_folder=is_folder, optional=True)


def approval_policy(settings: Settings) -> ApprovalPolicy | None:
    """Return who may approve calls; ``None`` if the settings do not say it.

    Raises:
        ConfigError: the policy cannot work, or calls are approved without people.
    """
    if not settings.approval_policy:
        return None
    from ..stores.approval_policy import ApprovalPolicy

    policy = parse_table(ApprovalPolicy, "approval_policy", settings.approval_policy)
    if settings.approvals == "yes":
        raise ConfigError("approvals = yes (--yes) approves calls without the people of approval_policy: remove one")
    return policy


def run_store(settings: Settings, place: str, *, keep_days: float | None = None) -> RunStore:
    """Return the store of runs at a place, which cancels the calls of deleted runs that wait for approval.

    Raises:
        StoreError: the path cannot be used.
    """
    from ..stores.approvals import ApprovalStore
    from ..stores.runs import RunStore

    return RunStore(place, keep_days=keep_days, approvals=ApprovalStore(settings.approval_file))


def approval_store(settings: Settings) -> ApprovalStore:
    """Return the store of calls that wait for approval, with the policy of the settings.

    Raises:
        ConfigError: the policy cannot work.
        StoreError: the path cannot be used.
    """
    from ..stores.approvals import ApprovalStore

    return ApprovalStore(settings.approval_file, policy=approval_policy(settings))


def code_files(references: Iterable[str], home: Path) -> list[str]:
    """Return the files and folders with the code of references such as ``FILE.py:name`` and ``module:name``."""
    modules, files = [], []
    for reference in map(parse_reference, references):
        if reference.file is not None:
            files.append(reference.file)
        elif reference.name:
            modules.append(home / reference.module.replace(".", "/"))
    return [*map(str, (*files, *modules)), *(f"{module}.py" for module in modules)]


def _server_code(settings: Settings) -> list[str]:
    """Return the files and folders whose code runs as an MCP server."""
    modules, files = [], []
    for target in (*settings.mcp, *settings.trusted_mcp):
        words = target.split()
        modules += [Path(name.replace(".", "/")).resolve() for mark, name in pairwise(words) if mark == "-m"]
        files += [Path(word).resolve() for word in (word.strip("\"'") for word in words) if Path(word).is_file()]
    return [*map(str, (*files, *modules)), *(f"{module}.py" for module in modules)]


def build_recorder(settings: Settings) -> ObservabilityHook | None:
    """Build the hook that records runs for ``hookline stats``; ``None`` if recording is off."""
    if settings.runs is None:
        return None
    from ..hooks.observability import ObservabilityHook

    on_failure: Literal["open", "closed"] = "closed" if settings.runs_required else "open"
    return ObservabilityHook(run_store(settings, settings.runs, keep_days=KEEP_DAYS), on_failure=on_failure)


def build_tools(settings: Settings, home: Path) -> list[Any]:
    """Build all tools that the settings enable or name, including those of MCP servers."""
    tools: list[Any] = []
    if settings.default_tools:
        from .._toolbox.basic import calculator, clock
        from .._toolbox.files import file_tools

        tools += [*file_tools(work_folder(settings), write=settings.write), calculator, clock]
    if settings.shell:
        tools.append(_build_shell(settings))
    tools += load_tools(settings.tools, home)
    if settings.hosts:
        from .._toolbox.web import fetch_tool

        tools.append(fetch_tool(settings.hosts))
    if settings.skills:
        from ..stores.skills import skill_store_at

        tools.append(skill_store_at(settings.skills))
    if settings.tickets:
        from .._toolbox.tickets import ticket_tools
        from ..stores.tickets import TicketBoard

        tools += ticket_tools(TicketBoard(settings.tickets))
    if settings.mcp or settings.trusted_mcp:
        from ..tools._mcp import mcp

        for script in command_scripts((*settings.mcp, *settings.trusted_mcp), home):
            check_file(script, script.read_bytes())
        for target in dict.fromkeys((*settings.mcp, *settings.trusted_mcp)):
            is_web = target.lower().startswith(("http://", "https://"))
            trusted = target in settings.trusted_mcp
            tools.append(mcp(target, trusted=trusted, env=None if is_web else _environment_of_servers()))
    return tools


def _environment_of_servers() -> dict[str, str]:
    """Return what keeps Python from the bytecode beside the code of a server, which nobody has trusted."""
    return {"PYTHONPYCACHEPREFIX": str(user_folder("cache") / "bytecode")}


class SandboxOptions(msgspec.Struct, frozen=True):
    """The setting ``sandbox``: the options of :class:`hookline.tools.Sandbox`, or the level ``off``."""

    level: Literal["auto", "bubblewrap", "landlock", "off"] = "auto"
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    memory: int | None = None
    processes: int | None = None
    file_size: int | None = None


def _build_shell(settings: Settings) -> Any:
    """Build the shell tool. Without the setting ``write``, its commands can only read the folder."""
    from .._toolbox.sandbox import Sandbox
    from .._toolbox.shell import shell_tool

    options = parse_table(SandboxOptions, "sandbox", settings.sandbox)
    folder = work_folder(settings)
    if options.level == "off" and settings.shell_profile == "developer":
        raise ConfigError("shell_profile: developer needs a sandbox, and sandbox.level is off. Remove one of them")
    if options.level == "off":
        return shell_tool(folder, sandbox="off")
    limits = {name: getattr(options, name) for name in ("memory", "processes", "file_size")}
    sandbox = Sandbox(
        options.level,
        write=settings.write,
        writable=options.writable,
        readable=options.readable,
        hosts=options.hosts,
        **{name: value for name, value in limits.items() if value is not None},
    )
    return shell_tool(folder, sandbox=sandbox)


def work_folder(settings: Settings) -> Path:
    """Return the folder that file tools may access.

    Raises:
        ConfigError: the folder does not exist.
    """
    folder = Path(settings.folder)
    if not folder.is_dir():
        raise ConfigError(f"folder: no such folder: {settings.folder!r}")
    return folder.resolve()


def make_context(
    settings: Settings, session: Session | None = None, *, halts: HaltSwitch | None = None
) -> AgentContext:
    """Create a run context. All runs that share it stay within the limits together; the step limit is per run.

    Args:
        settings: the settings.
        session: the conversation.
        halts: the stop switch that the runs obey; by default that of the database of runs in the settings.
    """
    limits = msgspec.structs.replace(limits_of(settings), steps=settings.max_steps)
    return AgentContext(session=session, limits=limits, halts=halts or halts_of(settings))


def limits_of(settings: Settings) -> Limits:
    """Return the limits of the settings, except that of steps, which only a loop of Hookline has."""
    return Limits(
        tokens=settings.max_tokens,
        seconds=settings.max_seconds,
        cost=settings.max_cost,
        tool_calls=settings.max_tool_calls,
    )


def find_deps_factory(
    settings: Settings, answerers: Iterable[Any], given: DepsFactory | None = None, home: Path | None = None
) -> DepsFactory | None:
    """Return the function that creates the ``deps`` of runs: the given one, or that of the settings.

    Raises:
        ConfigError: it is not a function, or there is none and an agent needs ``deps``.
        LoadError: the settings name a function that cannot be loaded.
    """
    if given is not None and not callable(given):
        raise ConfigError(f"deps= must be a function of a caller, not {given!r:.80}: write deps=lambda caller: ...")
    if given is not None or settings.deps:
        return given or load_function(settings.deps, Path.cwd() if home is None else home)
    for answerer in answerers:
        if problem := need_of_deps(answerer):
            raise ConfigError(
                f"{problem}: give deps=lambda caller: ..., which creates them for the caller of a run, or name such a "
                'function in the settings: deps = "FILE.py:name". With Deps | None as its deps_type it needs none'
            )
    return None


def halts_of(settings: Settings) -> HaltStore | None:
    """Return the stop switch of the settings, the same object each time; ``None`` if they name no database of runs."""
    return None if settings.runs is None else _halts_at(os.path.abspath(settings.runs), settings.runs)


@lru_cache(maxsize=16)
def _halts_at(key: str, path: str) -> HaltStore:
    from ..stores.runs import RunStore

    return RunStore(path).halts


def audit_log(settings: Settings) -> AuditLog | None:
    """Return the audit log of the settings, to add a record to it; ``None`` without one."""
    from ..stores.audit.log import AuditLog

    path, index = audit_path(settings), settings.audit_index or None
    if path is None:
        return None
    if is_default_audit_path(path):
        return AuditLog(path, max_bytes=AUDIT_BYTES, keep_files=AUDIT_FILES, index=index)
    return AuditLog(path, index=index)


def build_plugins(settings: Settings, home: Path | None = None) -> PluginManager:
    """Build the plugin manager for plugins beside the configuration, installed ones, and those named by path.

    Args:
        settings: the settings.
        home: the folder that ``plugins_folder`` is relative to; by default, the working folder.
    """
    home = Path.cwd() if home is None else home
    named = [name for name in settings.plugins if is_path(name)]
    return PluginManager(
        folder=home / settings.plugins_folder, named=named, settings=settings.plugin_settings, trust=distrust_reason
    )


def use_plugins(manager: PluginManager, host: Host, names: Iterable[str], *, lenient: bool = False) -> list[str]:
    """Activate plugins for an agent, and return notes for the user.

    A plugin may contain guards that the user relies on. So a plugin that cannot be activated is an error, unless its
    manifest says ``required = false`` or the caller passes ``lenient``.

    Raises:
        PluginError: a plugin cannot be activated; all plugins are deactivated again.
    """
    manager.attach(host)
    notes = []
    for name, problem in manager.activate_all(names).items():
        if not lenient and _is_required(manager, name):
            manager.close()
            manager.detach(host)
            raise PluginError(
                f"{problem}. The agent does not start without this plugin. Fix it, disable it with "
                f"'hookline plugins disable {name}', or run once without plugins with '--plugin none'"
            )
        notes.append(f"{problem}. The agent continues without it")
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
