"""The options of a server: the table ``server`` of the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from .._base.files import user_folder
from .._net.urls import UrlError, parse_host, parse_url
from .._web.middleware import check_origin, is_loopback
from ..config.errors import ConfigError
from ..config.settings import parse_table
from ..config.sources import parse_reference
from ..stores.keys import Right
from ..stores.paths import is_database_url

_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
_OTHER_HEADERS = frozenset(("authorization", "cookie", "forwarded", "host", "origin", "x-api-key", "x-forwarded-for"))

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
PositiveNumber = Annotated[float, msgspec.Meta(gt=0)]


class LinkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Signed links to calls that wait for approval.

    Args:
        secret: signs the links, at least 16 characters; ``env:NAME`` reads it from the environment.
        webhook: the URL to which each link is posted.
        people: the people who decide; each gets a link of their own.
        private: whether the host name of the webhook may resolve to a private address.
    """

    secret: str
    webhook: str
    people: tuple[str, ...] = ()
    private: bool = False


class LoginOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """People whom a reverse proxy in front of the server has authenticated, for example with OpenID Connect.

    Args:
        header: the header in which the proxy names the person, such as ``X-Forwarded-Email``. The proxy must remove it
            from the requests that it gets.
        addresses: the addresses or networks of the proxy. The header is refused from any other address.
        rights: the rights of each person: ``read``, ``run``, ``approve`` and ``admin``.
        admins: the people who have all rights, as the header names them.
    """

    header: str
    addresses: tuple[str, ...]
    rights: tuple[Right, ...] = ("read", "run", "approve")
    admins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check values that have the right type but cannot work."""
        if not _HEADER.fullmatch(self.header) or self.header.lower() in _OTHER_HEADERS:
            raise ValueError(f"header has {self.header!r:.80}: name a header of its own, such as X-Forwarded-Email")
        if not self.addresses:
            raise ValueError("addresses is empty: list the addresses of the proxy, such as 10.0.0.5")
        _check_networks("addresses", self.addresses)
        if not self.rights:
            raise ValueError("rights is empty, so that people could not do anything")


class ServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of ``hookline serve``.

    Args:
        keys: the SQLite file of API keys; by default ``keys.db`` in the folder of the runs file.
        host: the address to listen on. With any other than a loopback address, callers need keys.
        port: the port; 0 picks a free one.
        socket: the path of a Unix socket to listen on as well, in a folder of this user that nobody else can enter.
            Its callers have all rights, without a key.
        hosts: further host names to accept, such as that of a reverse proxy.
        origins: other origins whose pages may send requests and read the responses (CORS), such as
            ``https://chat.example.com``.
        public_url: the URL of the server for clients, such as ``https://agents.example.com``; used in descriptions.
        trusted_proxies: addresses or networks of reverse proxies whose forwarding headers are trusted.
        login: people whom a reverse proxy authenticates: a table with ``header``, ``addresses``, ``rights`` and
            ``admins``.
        rate: how many requests a caller may send per minute.
        burst: how many requests a caller may send at once.
        decide_rate: how many questions a caller may send to ``/decide`` per minute; they do not count in ``rate``. Each
            server counts those that it gets.
        decide_burst: how many questions a caller may send at once.
        decide_seconds: how long hooks may take to judge a question before it is answered with a block. The time that a
            call waits for people does not count.
        max_sessions: how many sessions of ``/decide`` may be open at this server.
        max_sessions_per_caller: how many sessions of ``/decide`` one caller may have open at this server.
        session_seconds: after how many seconds without a question the run of a session ends.
        max_body: the limit for a request body, in bytes.
        body_seconds: how long a client may take to send a request body.
        max_runs: how many runs this process executes at once.
        max_queued: how many runs may be queued; durable runs at all servers that share the database together.
        max_runs_per_caller: how many runs of one caller may be running or queued; on PostgreSQL at all servers
            together.
        max_streams: how many event streams this process may have open at once.
        max_streams_per_caller: how many event streams one caller may have open at this process.
        heartbeat: after how many seconds without an event a stream sends a heartbeat.
        grace: how many seconds runs get to finish when the server stops.
        approval_seconds: how long a call may wait for approval before it is denied.
        approval_links: sends signed links to waiting calls: a table with ``secret``, ``webhook``, ``people`` and
            ``private``.
        durable: whether runs survive the end of their process: another one continues them from their journals.
        execute: whether this process executes durable runs; otherwise it leaves them to workers that share its
            PostgreSQL database.
        lease_seconds: how long a process may execute a durable run without renewing its lease; after that, another
            process takes the run over.
        max_attempts: how many processes may end while they execute a durable run, before the run fails.
        pin_seconds: how long a durable run waits for a process with the hooks, instructions and tools that it was begun
            with, before it fails.
        keep_days: for how many days the texts and events of a finished run are kept.
        public_card: whether the A2A agent card can be read without a key.
        push_hosts: names or addresses that push notifications may be sent to, besides public ones.
        chat_stream: when chat clients get streamed text: ``live``, as soon as the run shows it (see ``stream`` of the
            agent), or ``settled``, after all hooks have seen it, so that nothing is ever withdrawn.
        logs: the log format: ``json``, ``text``, or ``auto``: text on a terminal, otherwise JSON.
        audit_stream: whether each record of the audit log is also written to the log stream, as one JSON object a line.
        agents: the personalities to serve; all by default.
        rules: the files of hooks that can be tried on recorded runs in the console: ``rules.py``, or ``rules.py:name``
            for one hook of a file.
    """

    keys: str = ""
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8420
    socket: str = ""
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    public_url: str = ""
    trusted_proxies: tuple[str, ...] = ()
    login: LoginOptions | None = None
    rate: PositiveNumber = 600.0
    burst: PositiveInt = 100
    decide_rate: PositiveNumber = 60_000.0
    decide_burst: PositiveInt = 2000
    decide_seconds: PositiveNumber = 30.0
    max_sessions: PositiveInt = 2000
    max_sessions_per_caller: PositiveInt = 1000
    session_seconds: PositiveNumber = 3600.0
    max_body: Annotated[int, msgspec.Meta(ge=1000, le=1_000_000_000)] = 1_000_000
    body_seconds: PositiveNumber = 20.0
    max_runs: PositiveInt = 64
    max_queued: Annotated[int, msgspec.Meta(ge=0)] = 1000
    max_runs_per_caller: PositiveInt = 32
    max_streams: PositiveInt = 1000
    max_streams_per_caller: PositiveInt = 600
    heartbeat: Annotated[float, msgspec.Meta(ge=0.1)] = 15.0
    grace: Seconds = 30.0
    approval_seconds: PositiveNumber = 3600.0
    approval_links: LinkOptions | None = None
    durable: bool = False
    execute: bool = True
    lease_seconds: PositiveNumber = 15.0
    max_attempts: PositiveInt = 10
    pin_seconds: PositiveNumber = 3600.0
    keep_days: PositiveNumber = 30.0
    public_card: bool = False
    push_hosts: tuple[str, ...] = ()
    chat_stream: Literal["live", "settled"] = "live"
    logs: Literal["auto", "json", "text"] = "auto"
    audit_stream: bool = False
    agents: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check values that have the right type but cannot work."""
        if not self.host:
            raise ValueError("host is empty: use an address such as 127.0.0.1")
        for name in ("hosts", "push_hosts"):
            for given in getattr(self, name):
                _check_host(name, given)
        _check_networks("trusted_proxies", self.trusted_proxies)
        for origin in self.origins:
            check_origin(origin)
        for rules in self.rules:
            if parse_reference(rules).file is None:
                raise ValueError(f"rules has {rules!r:.80}: name a file such as rules.py, or rules.py:name")
        if self.public_url:
            try:
                parse_url(self.public_url)
            except UrlError as error:
                raise ValueError(f"public_url is not like https://agents.example.com: {error}") from None

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> ServerOptions:
        """Read the options from a table of settings.

        Raises:
            ConfigError: an option is unknown or has a wrong value.
        """
        if "database" in table:
            raise ConfigError("server.database no longer exists: set runs, above [server], to the file of the runs")
        return parse_table(cls, "server", table)

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach the server, also through a proxy. Then callers need keys."""
        return not is_loopback(self.host) or bool(self.hosts or self.trusted_proxies or self.login or self.public_url)

    def keys_path(self, runs: str | None, home: Path) -> str:
        """Return the path of the file of API keys.

        Args:
            runs: the file or database of the runs; the keys are in ``keys.db`` in its folder, or in the same database,
                unless the option ``keys`` is set.
            home: the folder for a relative path in the option ``keys``.
        """
        if self.keys:
            kept = self.keys == ":memory:" or is_database_url(self.keys)
            return self.keys if kept else str(home / Path(self.keys).expanduser())
        if is_database_url(runs):
            return str(runs)
        folder = user_folder("data") if runs in (None, ":memory:") else Path(str(runs)).expanduser().absolute().parent
        return str(folder / "keys.db")


def _check_networks(name: str, given: tuple[str, ...]) -> None:
    for network in given:
        try:
            ip_network(network, strict=False)
        except ValueError:
            raise ValueError(f"{name} has {network!r:.80}: use addresses or networks such as 10.0.0.0/8") from None


def _check_host(name: str, given: str) -> None:
    try:
        _, port = parse_host(f"[{given}]" if given.count(":") > 1 else given)
    except UrlError as error:
        raise ValueError(f"{name}: {error}") from None
    if port is not None:
        raise ValueError(f"{name} has {given!r:.80}: leave out the port")
