"""How a server works: the table ``server`` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from .._base.files import user_folder
from .._net.urls import UrlError, parse_host, parse_url
from .._web.middleware import is_loopback
from ..config.errors import ConfigError
from ..config.settings import options_of

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Some = Annotated[float, msgspec.Meta(gt=0)]


class ServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How ``hookline serve`` works.

    Args:
        keys: the SQLite file of API keys; ``keys.db`` beside the file of the runs if it is left out.
        host: the address to listen at; others than loopback addresses need keys.
        port: the port; 0 for any that is free.
        hosts: names it is known by, such as that of a proxy before it.
        public_url: how others reach it, as told in descriptions, such as ``https://agents.example.com``.
        trusted_proxies: addresses or networks of proxies, whose word for who calls is taken.
        rate: how many requests a caller may send in a minute.
        burst: how many of them at once.
        max_body: bytes of a body.
        body_seconds: how long a body may take to arrive.
        max_runs: how many runs there may be at once.
        max_queued: how many runs may wait for that.
        max_runs_per_caller: how many runs of one caller may be under way or wait.
        max_streams: how many streams of events may be open at once.
        max_streams_per_caller: how many of one caller.
        heartbeat: after how many seconds without an event a stream shows that it is alive.
        grace: how many seconds runs get to finish when the server is stopped.
        approval_seconds: how long somebody may take to approve a call, before it is denied.
        keep_days: how many days the texts and events of a run are kept after its end.
        public_card: whether the card of the agent can be read without a key.
        push_hosts: names or addresses that push notifications may be sent to, besides public ones.
        chat_stream: when chat clients are streamed text: ``live``, as it is written, or ``settled``, when all hooks
            have seen it, so that nobody is sent what one of them rejects or changes afterwards.
        logs: how logs are written: ``json``, ``text``, or ``auto``: text at a terminal, else JSON.
        agents: which personalities are served; all if it is left out.
    """

    keys: str = ""
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8420
    hosts: tuple[str, ...] = ()
    public_url: str = ""
    trusted_proxies: tuple[str, ...] = ()
    rate: Some = 600.0
    burst: Positive = 100
    max_body: Annotated[int, msgspec.Meta(ge=1000, le=1_000_000_000)] = 1_000_000
    body_seconds: Some = 20.0
    max_runs: Positive = 64
    max_queued: Annotated[int, msgspec.Meta(ge=0)] = 1000
    max_runs_per_caller: Positive = 32
    max_streams: Positive = 1000
    max_streams_per_caller: Positive = 600
    heartbeat: Annotated[float, msgspec.Meta(ge=0.1)] = 15.0
    grace: Seconds = 30.0
    approval_seconds: Some = 3600.0
    keep_days: Some = 30.0
    public_card: bool = False
    push_hosts: tuple[str, ...] = ()
    chat_stream: Literal["live", "settled"] = "live"
    logs: Literal["auto", "json", "text"] = "auto"
    agents: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what reads well and cannot work."""
        if not self.host:
            raise ValueError("host is empty: give an address such as 127.0.0.1")
        for name in ("hosts", "push_hosts"):
            for given in getattr(self, name):
                _check_host(name, given)
        for network in self.trusted_proxies:
            try:
                ip_network(network, strict=False)
            except ValueError:
                what = f"trusted_proxies has {network!r:.80}"
                raise ValueError(f"{what}: give addresses or networks such as 10.0.0.0/8") from None
        if self.public_url:
            try:
                parse_url(self.public_url)
            except UrlError as error:
                raise ValueError(f"public_url is not like https://agents.example.com: {error}") from None

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> ServerOptions:
        """The options in a table of settings.

        Raises:
            ConfigError: one that does not exist, or a value it cannot have.
        """
        if "database" in table:
            raise ConfigError("server.database is gone: the setting runs, above [server], names the file of the runs")
        return options_of(cls, "server", table)

    @property
    def exposed(self) -> bool:
        """Whether others than this machine may reach it, also through a proxy: then callers need keys."""
        return not is_loopback(self.host) or bool(self.hosts or self.trusted_proxies or self.public_url)

    def keys_path(self, runs: str | None, home: Path) -> str:
        """The file of API keys.

        Args:
            runs: the file of the runs; the keys are in ``keys.db`` beside it, unless the option ``keys`` is given.
            home: the folder that a relative path in the option ``keys`` is taken from.
        """
        if self.keys:
            return self.keys if self.keys == ":memory:" else str(home / Path(self.keys).expanduser())
        folder = user_folder("data") if runs in (None, ":memory:") else Path(str(runs)).expanduser().absolute().parent
        return str(folder / "keys.db")


def _check_host(name: str, given: str) -> None:
    try:
        _, port = parse_host(f"[{given}]" if given.count(":") > 1 else given)
    except UrlError as error:
        raise ValueError(f"{name}: {error}") from None
    if port is not None:
        raise ValueError(f"{name} has {given!r:.80}: leave out the port")
