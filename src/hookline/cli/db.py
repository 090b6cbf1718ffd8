"""``hookline db``: the PostgreSQL database of the stores."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from .._base.files import user_folder
from ..config.errors import ConfigError
from ..config.sources import Configuration
from .errors import BAD_INPUT
from .help import Command, Group
from .options import AsJson, with_settings
from .output import print_table, short_path, state_text, write_json
from .text import printable

if TYPE_CHECKING:
    from ..stores.copying import Progress
    from ..stores.postgres import PostgresDatabase

EPILOG = """
The address is the setting database: in hookline.toml, in HOOKLINE_DATABASE, or as --database.

Examples:
  hookline db init --database postgresql://ada@db.example/shop
  hookline db check
  hookline db copy
  hookline db copy memory.db
"""


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group, rich_markup_mode=None, help="Create, upgrade, check or fill a PostgreSQL database.", epilog=EPILOG
    )
    commands: dict[str, Callable[..., int]] = {"init": init, "upgrade": upgrade, "check": check, "copy": copy}
    for name, function in commands.items():
        group.command(name, cls=Command)(with_settings("database", "debug")(function))
    app.add_typer(group, name="db")


def init(config: Configuration) -> int:
    """Create the tables of all stores, and of the queue of durable runs, that do not exist yet."""
    databases = _databases(config)
    created = [each.schema.name for each in databases if each.create()]
    if find_spec("procrastinate") is not None:
        from ..server.postgres_queue import create_queue

        created += ["queue"] if create_queue(databases[0]) else []
    sys.stdout.write(f"Created: {', '.join(created)}.\n" if created else "All tables exist already.\n")
    return 0


def upgrade(config: Configuration) -> int:
    """Convert tables of earlier versions. Stop all other programs that use them first."""
    upgraded = [each.schema.name for each in _databases(config) if each.upgrade()]
    sys.stdout.write(f"Upgraded: {', '.join(upgraded)}.\n" if upgraded else "All tables are up to date.\n")
    return 0


def check(config: Configuration, json: AsJson = False) -> int:
    """Check that the database can be reached, and that all tables have the version that this Hookline needs."""
    rows = [(each.schema.name, each.namespace, table_state(each)) for each in _databases(config)]
    if json:
        write_json([{"store": store, "schema": schema, "state": state} for store, schema, state in rows])
    else:
        print_table(("store", "schema", "state"), [(*row[:2], state_text(row[2])) for row in rows], keep=("store",))
    return 0 if all(state == "ok" for _, _, state in rows) else BAD_INPUT


def copy(
    config: Configuration,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="SQLite files of stores, folders of sessions, skills or artifacts, or text files of notes. "
            "[default: those that the database replaces]",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Copy stores from SQLite files, folders and text files to the database: all of them, or none.

    Stop all programs that use the files first. The files stay as they are.
    """
    from ..stores.copying import copy_stores

    url = _url(config)
    sources = files or [path for path in replaced_files(config) if os.path.exists(path)]
    if not sources:
        sys.stdout.write("There are no files to copy.\n")
        return 0
    with _progress() as progress:
        copied = copy_stores(sources, url, progress)
    rows = [(each.name, f"{sum(each.rows.values()):,}", printable(short_path(each.source), keep="")) for each in copied]
    print_table(("store", "rows", "from"), rows, keep=("store",))
    return 0


def table_state(database: PostgresDatabase) -> str:
    """Return ``ok``, or what to do about the tables of a store.

    Raises:
        StoreError: the database cannot be used.
    """
    version, needed = database.stored_version(), database.schema.version
    if version is None:
        return "missing: hookline db init"
    if version < needed:
        return f"format {version}, {needed} is needed: hookline db upgrade"
    return "ok" if version == needed else f"format {version}, written by a newer Hookline: update Hookline"


def replaced_files(config: Configuration) -> list[str]:
    """Return the files and folders that stores use without a database, by default."""
    from ..server.options import ServerOptions
    from ..stores.paths import default_approvals_path, default_runs_path

    project = config.file.parent if config.file else "."
    runs = str(default_runs_path(project))
    data = user_folder("data")
    keys = ServerOptions.of(config.settings.server).keys_path(runs, config.home)
    named = [runs, str(default_approvals_path(project)), keys]
    return [*named, *(str(data / name) for name in ("sessions", "gateway.db", "chats.db"))]


def _url(config: Configuration) -> str:
    if not config.settings.database:
        raise ConfigError(
            'no database is set: add database = "postgresql://USER@HOST/NAME" to hookline.toml, set '
            "HOOKLINE_DATABASE, or give --database URL"
        )
    return config.settings.database


def _databases(config: Configuration) -> list[PostgresDatabase]:
    from ..stores.schemas import databases_at

    return databases_at(_url(config))


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """Show a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("copying", total=None)
        yield lambda table, done, total: bar.update(task, description=table, completed=done, total=total)
