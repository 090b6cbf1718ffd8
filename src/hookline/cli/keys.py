"""``hookline keys``: who may call ``hookline serve``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ..config.errors import ConfigError
from ..config.sources import Configuration
from .help import Command, ListingGroup
from .options import takes_settings
from .output import console, nearby, show, state, table, when, write_json
from .text import printable, seconds_of, short

if TYPE_CHECKING:
    from ..stores.keys import KeyStore

EPILOG = """
Rights:
  read      look at its own runs and their events
  run       start runs, cancel and steer them
  approve   decide about calls that wait for approval
  admin     use its other rights for everybody's runs; see /metrics
Somebody who approves what others start needs approve,admin.

Examples:
  KEY=$(hookline keys add ci --scope read,run)
  curl -H "Authorization: Bearer $KEY" http://127.0.0.1:8420/runs
  hookline keys add shop --scope run --expires 30d --metadata user_role=customer
  hookline keys revoke ci
"""
NARROW = 90
"""Columns below which it is not shown when keys were made and used."""


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=ListingGroup, rich_markup_mode=None, help="List, add and revoke API keys for hookline serve.",
        epilog=EPILOG,
    )  # fmt: skip
    commands: dict[str, Callable[..., int]] = {"list": list_keys, "add": add, "revoke": revoke}
    for name, function in commands.items():
        group.command(name, cls=Command)(takes_settings("debug")(function))
    app.add_typer(group, name="keys")


def list_keys(config: Configuration, json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> int:
    """List all keys, revoked ones too. Nobody can see the keys themselves."""
    store, now = _store(config), time.time()
    rows = store.keys()
    if json:
        write_json([{**_plain(row), "state": row.state(now)} for row in rows])
    elif not rows:
        show(
            Text(f"There are no API keys in {printable(nearby(store.path), keep='')}."),
            Text("Without any, hookline serve lets in whoever is at this machine, and nobody else."),
            Text("Make one with: hookline keys add NAME --scope read,run"),
        )
    else:
        heads = ["id", "name", "scopes", "created", "last used", "expires", "state"]
        lines: list[list[Any]] = [
            [
                row.id, short(row.name, 30), ", ".join(row.scopes), when(row.created),
                when(row.last_used) if row.last_used else "never", when(row.expires) if row.expires else "never",
                state(row.state(now)),
            ]
            for row in rows
        ]  # fmt: skip
        if console().width < NARROW:
            del heads[3:5]
            for cells in lines:
                del cells[3:5]
        table(heads, lines, keep=heads)
    return 0


def add(
    config: Configuration,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is, such as ci.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", "-s", metavar="RIGHTS", help="Of read, run, approve, admin; with commas. Repeatable."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="After 12h, 30d, 8w, or at a time such as 2027-01-31. [default: never]"),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="What hooks are told of its caller, such as user_role=customer. Repeatable."
        ),
    ] = None,
) -> int:
    """Make a key. It is written to stdout, this once; all else goes to stderr."""
    rights = [right.strip() for given in scope or () for right in given.split(",") if right.strip()]
    if not rights:
        raise ConfigError("what may it do? Give --scope with some of read, run, approve, admin, as in --scope read,run")
    store = _store(config)
    row, key = store.add(name, rights, expires=_moment(expires), metadata=dict(map(_pair, metadata or ())))
    sys.stdout.write(f"{key}\n")
    sys.stdout.flush()
    until = f", until {when(row.expires)}" if row.expires else ""
    where = printable(nearby(store.path), keep="")
    sys.stderr.write(
        f"This is the key of {printable(row.name, keep='')} ({row.id}): {', '.join(row.scopes)}{until}.\n"
        f"It is not shown again: of it, {where} has only a hash.\n"
        "Send it as Authorization: Bearer KEY. A server that is running knows it already.\n"
    )
    if not {"run", "admin"} & set(row.scopes):
        sys.stderr.write("note: for runs of others it needs admin too; of its own it has none without run\n")
    return 0


def revoke(
    config: Configuration,
    key: Annotated[str, typer.Argument(metavar="ID|NAME", help="Its id or its name, as hookline keys shows them.")],
) -> int:
    """End a key, also for a server that is running."""
    row = _store(config).revoke(key)
    sys.stdout.write(f"Revoked {printable(row.name, keep='')} ({row.id}): nobody is let in with it from now on.\n")
    return 0


def _store(config: Configuration) -> KeyStore:
    from ..server.options import ServerOptions
    from ..stores.keys import KeyStore

    path = ServerOptions.of(config.settings.server).keys_path(config.settings.runs, config.home)
    if path == ":memory:":
        raise ConfigError('server.keys is ":memory:", which ends with each program: give the path of a file')
    return KeyStore(path)


def _plain(row: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(row)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals):
        raise ConfigError(f"--metadata: expected KEY=VALUE, such as user_role=customer; got {text!r:.80}")
    return name.strip(), value


def _moment(text: str | None) -> float | None:
    """The time that is meant, or that long from now."""
    if text is None or text == "never":
        return None
    left = seconds_of(text)
    try:
        at = datetime.fromisoformat(text) if left is None else datetime.fromtimestamp(time.time() + left)
        return at.timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"--expires: expected 12h, 30d, 8w or a time such as 2027-01-31; got {text!r:.80}") from None
