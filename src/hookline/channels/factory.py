"""A gateway from settings: its channels, who may talk to it, and where it keeps things."""

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
from ..config.factory import make_context
from ..config.loading import check_args
from ..config.settings import DeclaredChannel, Settings
from ..config.sources import parse_reference
from ..plugins.errors import LoadError
from ..plugins.files import importable, load_file
from ..plugins.manager import PluginManager
from ..plugins.plugin import Plugin
from ..stores.approvals import ApprovalStore
from ..stores.mailbox import Mailbox
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
}
"""The channels that are known by a word."""

_FILES = frozenset(("store", "ca_file", "cert_file", "key_file"))
"""What channels call their arguments that are paths of files."""


def build_gateway(
    settings: Settings,
    answerer: Answerer,
    *,
    home: Path | None = None,
    offered: Mapping[str, Any] = EMPTY,
    file: str | Path | None = None,
) -> Gateway:
    """The gateway that these settings describe.

    Args:
        settings: the settings; ``channels`` and ``gateway`` above all.
        answerer: who answers.
        home: the folder that relative paths and modules are looked for in; the working folder if left out.
        offered: further channels by the word that they are known by, such as those of plugins: what makes each.
        file: where channels can be named; errors tell it.

    Raises:
        ConfigError: no channels, or a setting that cannot be.
        LoadError: a channel that cannot be found.
        ChannelError: a channel that cannot work as it is set up.
        NotInstalledError: a package is missing.
    """
    home = Path.cwd() if home is None else home
    options = GatewayOptions.of(settings.gateway)
    if not settings.channels:
        where = f" in {file}" if file else ""
        raise ConfigError(f'there are no channels: name some{where}, as in channels = ["console"]')
    declared = _declared(settings)
    channels = [load_channel(item, home, offered) for item in declared]
    rules = zip(declared, channels, strict=True)
    access = {there.name: _access(item) for item, there in rules}
    return Gateway(
        answerer, channels,
        mailbox=Mailbox(database_path(options, home), lease=options.lease, keep_days=options.keep_days),
        sessions=session_store_at(settings.sessions), options=options, access=access,
        context=lambda session: make_context(settings, session), metadata=settings.metadata,
        approvals=_approvals(settings),
    )  # fmt: skip


def follow_plugins(gateway: Gateway, plugins: PluginManager, settings: Settings, *, home: Path | None = None) -> None:
    """From now on, stop the channels of a plugin that is switched off, and start those of one that is switched on.

    To be called in the loop that the gateway runs in; plugins may be switched by any thread.

    Args:
        gateway: the gateway.
        plugins: who switches plugins on and off.
        settings: the settings that the gateway was made from.
        home: the folder that relative paths and modules are looked for in; the working folder if left out.
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
                    channel = load_channel(item, folder, plugin.channels)
                    await gateway.add(channel, _access(item))
                    names[number] = channel.name
                else:
                    await gateway.remove(names[number], f"the plugin {plugin.name} is switched off")
            except HooklineError as error:
                log.error("the channel %s of the plugin %s: %s", names[number], plugin.name, error_text(error))

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
    """Where calls wait for approval, if they are to wait."""
    return None if settings.approvals in ("yes", "deny") else ApprovalStore(settings.approval_file)


def _access(item: DeclaredChannel) -> Access:
    return Access(item.allow, pairing=item.pairing, mention=item.mention, approve=item.approve)


def database_path(options: GatewayOptions, home: Path) -> str:
    """The file of messages and pairings; one of this user if the settings name none."""
    if options.database == ":memory:":
        return options.database
    return str(home / Path(options.database).expanduser() if options.database else user_folder("data") / "gateway.db")


def load_channel(declared: DeclaredChannel, home: Path, offered: Mapping[str, Any] = EMPTY) -> Channel:
    """The channel that a declaration describes.

    Raises:
        ConfigError: its arguments do not fit.
        LoadError: there is none of that name.
        ChannelError: it cannot work as it is set up.
    """
    made = offered[declared.use] if declared.use in offered else _maker(declared.use, home, offered)
    args = {name: _value(declared.use, name, value, home) for name, value in declared.args.items()}
    if declared.name:
        args["name"] = declared.name
    if callable(made):
        try:
            check_args(made, declared.use, args)
            made = made(**args)
        except LoadError as error:
            theirs = [name for name in ("host", "port", "hosts") if name in declared.args]
            hint = f" (where web pages listen is set in [gateway]: {theirs[0]})" if theirs else ""
            raise ConfigError(f"channel {error}{hint}") from error
        except HooklineError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"channel {declared.use}: {error_text(error)}") from error
    elif args:
        raise ConfigError(f"channel {declared.use}: it is made already, and takes no {', '.join(args)}")
    if not isinstance(made, Channel):
        raise LoadError(f"{declared.use} is a {type(made).__name__}, not a channel: see docs/guides/channels.md")
    return made


def _maker(use: str, home: Path, offered: Mapping[str, Any]) -> Any:
    reference = parse_reference(use)
    if reference.file is None and ":" not in use:
        if use not in BUILT_IN:
            known = [*BUILT_IN, *offered]
            raise LoadError(
                f"there is no channel {use!r}.{did_you_mean(use, known)} Known: {', '.join(known)}, FILE.py:name"
            )
        module, name = BUILT_IN[use]
        return getattr(importlib.import_module(module, __package__), name)
    if not reference.name:
        raise LoadError(f"channel {use}: name it, as in {use}:NAME")
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
            f"channel {use}: there is no {reference.name!r} in it.{did_you_mean(reference.name, vars(found))}"
        )
    return getattr(found, reference.name)


def _value(use: str, name: str, value: Any, home: Path) -> Any:
    """An argument: ``{ env = "NAME" }`` and ``"env:NAME"`` are what that variable holds."""
    if isinstance(value, Mapping) and value.keys() == {"env"}:
        return _secret(use, name, str(value["env"]))
    if isinstance(value, str) and value.startswith("env:"):
        return _secret(use, name, value.removeprefix("env:"))
    if isinstance(value, (list, tuple)):
        return [_value(use, name, item, home) for item in value]
    if name in _FILES and isinstance(value, str) and value and value != ":memory:":
        return str(home / Path(value).expanduser())
    return value


def _secret(use: str, name: str, variable: str) -> str:
    found = os.environ.get(variable, "")
    if not found:
        raise ConfigError(f"channel {use}: {name} is to come from the environment, but {variable} is not set")
    return found
