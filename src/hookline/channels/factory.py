"""Build a gateway and its channels from settings."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._base.files import user_folder
from .._base.frozen import EMPTY
from .._base.text import describe, did_you_mean, error_text
from .._kernel.errors import HooklineError
from ..config.errors import ConfigError
from ..config.factory import approval_store, find_deps_factory, make_context
from ..config.loading import check_args
from ..config.settings import DeclaredChannel, Settings
from ..config.sources import parse_reference
from ..plugins.errors import LoadError
from ..plugins.files import importable, load_file
from ..plugins.manager import PluginManager
from ..plugins.plugin import Plugin
from ..stores.approvals import ApprovalStore
from ..stores.callers import DepsFactory
from ..stores.mailbox import Mailbox
from ..stores.paths import is_database_url
from ..stores.runs import RunStore
from ..stores.schemas import check_database
from ..stores.sessions import session_store_at
from .access import Access
from .gateway import Gateway
from .options import GatewayOptions
from .protocol import Answerer, Channel

log = logging.getLogger("hookline")

BUILT_IN = {
    "console": (".console", "ConsoleChannel"),
    "webhook": (".webhook.channel", "WebhookChannel"),
    "web": (".web.channel", "WebChannel"),
    "mqtt": (".mqtt.channel", "MqttChannel"),
    "telegram": (".telegram.channel", "TelegramChannel"),
    "slack": (".slack.channel", "SlackChannel"),
}
"""Built-in channels by the name they have in settings: module and class."""
_WITH_CHATS = ("webhook", "web")
"""Built-in channels that store the messages of chats."""

_FILE_ARGUMENTS = frozenset(("store", "ca_file", "cert_file", "key_file"))
"""Arguments of channels that are file paths, and so are relative to the folder of the settings."""


def build_gateway(
    settings: Settings,
    answerer: Answerer,
    *,
    home: Path | None = None,
    offered: Mapping[str, Any] = EMPTY,
    file: str | Path | None = None,
    deps: DepsFactory | None = None,
) -> Gateway:
    """Build the gateway that the settings describe.

    Args:
        settings: the settings, mainly ``channels`` and ``gateway``.
        answerer: an agent, or a roster of personalities.
        home: the folder for relative paths and modules; the working folder if left out.
        offered: further channel factories by name, such as those of plugins.
        file: the settings file, for error messages.
        deps: creates the ``deps`` of a run for the sender of its message, as for :class:`Gateway`.

    Raises:
        ConfigError: the settings name no channel, a setting is invalid, or the agent needs ``deps``, which nothing
            creates.
        LoadError: a channel cannot be found.
        ChannelError: a channel cannot work with its settings.
        NotInstalledError: a package is missing.
    """
    home = Path.cwd() if home is None else home
    options = GatewayOptions.of(settings.gateway)
    if not settings.channels:
        where = f" in {file}" if file else ""
        raise ConfigError(f'no channels are configured: add some{where}, such as channels = ["console"]')
    deps = find_deps_factory(settings, [answerer], deps, home)
    if settings.database:
        check_database(settings.database)
    declared = _declared(settings)
    channels = [load_channel(item, home, offered, settings.database) for item in declared]
    access = {channel.name: _access(item) for item, channel in zip(declared, channels, strict=True)}
    return Gateway(
        answerer,
        channels,
        mailbox=Mailbox(database_path(settings, home), lease=options.lease, keep_days=options.keep_days),
        sessions=session_store_at(settings.sessions),
        options=options,
        access=access,
        context=lambda session: make_context(settings, session),
        metadata=settings.metadata,
        approvals=_approvals(settings),
        durable=_runs(settings, options),
        deps=deps,
    )


def follow_plugins(gateway: Gateway, plugins: PluginManager, settings: Settings, *, home: Path | None = None) -> None:
    """Start and stop the channels of plugins when the plugins are switched on and off.

    Call this in the event loop of the gateway. Plugins may be switched by any thread.

    Args:
        gateway: the gateway.
        plugins: the plugin manager to watch.
        settings: the settings that the gateway was built from.
        home: the folder for relative paths and modules; the working folder if left out.
    """
    loop, folder = asyncio.get_running_loop(), Path.cwd() if home is None else home
    declared, names = _declared(settings), list(gateway.channels)
    tasks: set[asyncio.Task[None]] = set()

    async def switch(plugin: Plugin, on: bool) -> None:
        for number, item in enumerate(declared):
            if item.use not in plugin.channels:
                continue
            try:
                if on:
                    channel = load_channel(item, folder, plugin.channels, settings.database)
                    await gateway.add(channel, _access(item))
                    names[number] = channel.name
                else:
                    await gateway.remove(names[number], f"the plugin {plugin.name} is switched off")
            except HooklineError as error:
                log.error(
                    "the channel %s of the plugin %s cannot be switched: %s",
                    names[number],
                    plugin.name,
                    error_text(error),
                )

    def start(plugin: Plugin, on: bool) -> None:
        task = loop.create_task(switch(plugin, on))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def watch(plugin: Plugin, on: bool) -> None:
        if plugin.channels and not loop.is_closed():
            loop.call_soon_threadsafe(start, plugin, on)

    plugins.watch(watch)


def _declared(settings: Settings) -> list[DeclaredChannel]:
    return [item if isinstance(item, DeclaredChannel) else DeclaredChannel(item) for item in settings.channels]


def _approvals(settings: Settings) -> ApprovalStore | None:
    """Return the store for calls that wait for approval; ``None`` if calls never wait."""
    store = approval_store(settings)
    return None if settings.approvals in ("yes", "deny") else store


def _runs(settings: Settings, options: GatewayOptions) -> RunStore | None:
    """Return the store for the journals of durable runs; ``None`` if runs are not durable."""
    if not options.durable:
        return None
    if not settings.runs:
        raise ConfigError("durable runs need a file or a database: set runs")
    return RunStore(settings.runs, pinned=True, lease_seconds=options.lease)


def _access(item: DeclaredChannel) -> Access:
    return Access(item.allow, pairing=item.pairing, mention=item.mention, approve=item.approve)


def database_path(settings: Settings, home: Path) -> str:
    """Return the file or database for messages and pairings; by default a file in the data folder of the user."""
    options = GatewayOptions.of(settings.gateway)
    if options.database == ":memory:" or is_database_url(options.database):
        return options.database
    if settings.database and not options.database:
        return settings.database
    return str(home / Path(options.database).expanduser() if options.database else user_folder("data") / "gateway.db")


def load_channel(
    declared: DeclaredChannel, home: Path, offered: Mapping[str, Any] = EMPTY, database: str = ""
) -> Channel:
    """Create the channel that a declaration describes. ``database`` is for the messages of chats.

    Raises:
        ConfigError: its arguments are invalid.
        LoadError: there is no such channel.
        ChannelError: it cannot work with its settings.
    """
    found = offered[declared.use] if declared.use in offered else _find(declared.use, home, offered)
    args = {name: _argument(declared.use, name, value, home) for name, value in declared.args.items()}
    if declared.name:
        args["name"] = declared.name
    if database and declared.use in _WITH_CHATS:
        args.setdefault("store", database)
    if callable(found):
        try:
            check_args(found, declared.use, args)
            found = found(**args)
        except LoadError as error:
            web = [name for name in ("host", "port", "hosts") if name in declared.args]
            hint = f" (set {web[0]} in [gateway]: one web server serves all channels)" if web else ""
            raise ConfigError(f"channel {error}{hint}") from error
        except HooklineError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"channel {declared.use}: {error_text(error)}") from error
    elif args:
        raise ConfigError(f"channel {declared.use}: it is an object and not a class, so it takes no {', '.join(args)}")
    if not isinstance(found, Channel):
        raise LoadError(f"{declared.use} is a {type(found).__name__}, not a channel: see docs/guides/channels.md")
    return found


def _find(use: str, home: Path, offered: Mapping[str, Any]) -> Any:
    reference = parse_reference(use)
    if reference.file is None and ":" not in use:
        if use not in BUILT_IN:
            known = [*BUILT_IN, *offered]
            raise LoadError(
                f"there is no channel {use!r}.{did_you_mean(use, known)} Known: {', '.join(known)}, FILE.py:NAME"
            )
        module, name = BUILT_IN[use]
        return getattr(importlib.import_module(module, __package__), name)
    if not reference.name:
        raise LoadError(f"channel {use}: add the name of the class, as in {use}:NAME")
    try:
        if reference.file is not None:
            found: Any = load_file(reference.file)[0]
        else:
            with importable(home):
                found = importlib.import_module(reference.module)
    except ImportError as error:
        raise LoadError(f"channel {use}: {describe(error)}") from error
    if not hasattr(found, reference.name):
        raise LoadError(
            f"channel {use}: the module has no {reference.name!r}.{did_you_mean(reference.name, vars(found))}"
        )
    return getattr(found, reference.name)


def _argument(use: str, name: str, value: Any, home: Path) -> Any:
    """Resolve an argument: ``{ env = "NAME" }`` and ``"env:NAME"`` stand for an environment variable."""
    if isinstance(value, Mapping) and value.keys() == {"env"}:
        return _from_environment(use, name, str(value["env"]))
    if isinstance(value, str) and value.startswith("env:"):
        return _from_environment(use, name, value.removeprefix("env:"))
    if isinstance(value, (list, tuple)):
        return [_argument(use, name, item, home) for item in value]
    if name not in _FILE_ARGUMENTS or not isinstance(value, str) or value in ("", ":memory:") or is_database_url(value):
        return value
    return str(home / Path(value).expanduser())


def _from_environment(use: str, name: str, variable: str) -> str:
    found = os.environ.get(variable, "")
    if not found:
        raise ConfigError(f"channel {use}: {name} is read from the environment variable {variable}, which is not set")
    return found
