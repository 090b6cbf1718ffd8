"""``hookline keys``: API keys for ``hookline serve``."""

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
from .options import AsJson, with_settings
from .output import console, print_parts, print_table, short_path, state_text, time_text, write_json
from .text import parse_duration, printable, short

if TYPE_CHECKING:
    from ..stores.keys import KeyStore

EPILOG = """
Scopes:
  read      read its own runs and their events
  run       start, cancel and steer runs
  approve   decide tool calls that wait for approval
  admin     use its other scopes for the runs of all keys; read /metrics; halt all runs
To approve calls of runs that other keys start, a key needs approve,admin.

Examples:
  KEY=$(hookline keys add ci --scope read,run)
  curl -H "Authorization: Bearer $KEY" http://127.0.0.1:8420/runs
  hookline keys add shop --scope run --expires 30d --metadata user_role=customer
  hookline keys revoke ci
"""
NARROW = 90
"""Terminal width in columns below which the list leaves out the times of creation and last use."""


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=ListingGroup,
        rich_markup_mode=None,
        help="List, add and revoke API keys for hookline serve.",
        epilog=EPILOG,
    )
    commands: dict[str, Callable[..., int]] = {"list": list_keys, "add": add, "revoke": revoke}
    for name, function in commands.items():
        group.command(name, cls=Command)(with_settings("database", "debug")(function))
    app.add_typer(group, name="keys")


def list_keys(config: Configuration, json: AsJson = False) -> int:
    """List all keys, including revoked ones. The keys themselves are not stored and cannot be shown."""
    store, now = _store(config), time.time()
    rows = store.keys()
    if json:
        write_json([{**_to_dict(row), "state": row.state(now)} for row in rows])
    elif not rows:
        print_parts(
            Text(f"No API keys in {printable(short_path(store.path), keep='')}."),
            Text("Without keys, hookline serve accepts requests from this machine only."),
            Text("Create one with: hookline keys add NAME --scope read,run"),
        )
    else:
        heads = ["id", "name", "scopes", "created", "last used", "expires", "state"]
        lines: list[list[Any]] = [
            [
                row.id,
                short(row.name, 30),
                ", ".join(row.scopes),
                time_text(row.created),
                time_text(row.last_used) if row.last_used else "never",
                time_text(row.expires) if row.expires else "never",
                state_text(row.state(now)),
            ]
            for row in rows
        ]
        if console().width < NARROW:
            del heads[3:5]
            for cells in lines:
                del cells[3:5]
        print_table(heads, lines, keep=heads)
    return 0


def add(
    config: Configuration,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of its owner, such as ci.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", "-s", metavar="SCOPES", help="read, run, approve, admin; separated by commas. Repeatable."
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Expire after 12h, 30d, 8w, or at a time such as 2027-01-31. [default: never]"
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Metadata of the caller for hooks, such as user_role=customer. Repeatable."
        ),
    ] = None,
) -> int:
    """Create a key. It is printed to stdout once and cannot be shown again."""
    rights = [right.strip() for given in scope or () for right in given.split(",") if right.strip()]
    if not rights:
        raise ConfigError("--scope is missing: choose from read, run, approve and admin, as in --scope read,run")
    store = _store(config)
    row, key = store.add(name, rights, expires=_parse_expiry(expires), metadata=dict(map(_pair, metadata or ())))
    sys.stdout.write(f"{key}\n")
    sys.stdout.flush()
    until = f", until {time_text(row.expires)}" if row.expires else ""
    where = printable(short_path(store.path), keep="")
    sys.stderr.write(
        f"Created the key of {printable(row.name, keep='')} ({row.id}): {', '.join(row.scopes)}{until}.\n"
        f"It is not shown again: {where} holds only its hash.\n"
        "Send it as Authorization: Bearer KEY. A running server accepts it at once.\n"
    )
    if not {"run", "admin"} & set(row.scopes):
        sys.stderr.write(
            "note: without run it cannot start runs of its own, and without admin it cannot see those of other keys\n"
        )
    return 0


def revoke(
    config: Configuration,
    key: Annotated[str, typer.Argument(metavar="ID|NAME", help="Id or name of the key, as in hookline keys.")],
) -> int:
    """Revoke a key. A running server rejects it at once."""
    row = _store(config).revoke(key)
    sys.stdout.write(
        f"Revoked {printable(row.name, keep='')} ({row.id}): requests with this key are rejected from now on.\n"
    )
    return 0


def _store(config: Configuration) -> KeyStore:
    from ..server.options import ServerOptions
    from ..stores.keys import KeyStore

    path = ServerOptions.of(config.settings.server).keys_path(config.settings.runs, config.home)
    if path == ":memory:":
        raise ConfigError('server.keys is ":memory:", which no other program can read: set it to the path of a file')
    return KeyStore(path)


def _to_dict(row: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(row)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals):
        raise ConfigError(f"--metadata: expected KEY=VALUE, such as user_role=customer; got {text!r:.80}")
    return name.strip(), value


def _parse_expiry(text: str | None) -> float | None:
    """Return the time of an ISO 8601 text, or of a duration from now; ``None`` for never."""
    if text is None or text == "never":
        return None
    left = parse_duration(text)
    try:
        at = datetime.fromisoformat(text) if left is None else datetime.fromtimestamp(time.time() + left)
        return at.timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"--expires: expected 12h, 30d, 8w or a time such as 2027-01-31; got {text!r:.80}") from None
