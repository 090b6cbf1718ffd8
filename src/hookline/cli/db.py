"""``hookline db``: the PostgreSQL database or the SQLite files of the stores."""

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
from .errors import BAD_INPUT, FAILED
from .help import Command, Group
from .options import AsJson, with_settings
from .output import print_table, short_path, state_text, write_json
from .text import counted, printable

if TYPE_CHECKING:
    from ..stores.copying import Progress
    from ..stores.postgres import PostgresDatabase

EPILOG = """
The address is the setting database: in hookline.toml, in HOOKLINE_DATABASE, or as --database. Without it, backup and
repair are about the SQLite files of the project; init, upgrade, check and copy need it.

Examples:
  hookline db init --database postgresql://ada@db.example/shop
  hookline db check
  hookline db copy
  hookline db copy memory.db
  hookline db backup /backups/monday
  hookline db repair --dry-run
  hookline db key >> data-keys
"""


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group,
        rich_markup_mode=None,
        help="Create, upgrade, check, fill, back up or repair databases; make a key for their encryption.",
        epilog=EPILOG,
    )
    commands: dict[str, Callable[..., int]] = {
        "init": init,
        "upgrade": upgrade,
        "check": check,
        "copy": copy,
        "backup": backup,
        "repair": repair,
        "key": key,
    }
    for name, function in commands.items():
        more = ("runs", "approval_file") if function is repair else ()
        group.command(name, cls=Command)(with_settings("database", *more, "debug")(function))
    app.add_typer(group, name="db")


def key(config: Configuration) -> int:
    """Print a new key for the encryption of journals, tapes and messages to durable runs.

    Programs take the keys from HOOKLINE_DATA_KEYS, separated by commas, or from the file that HOOKLINE_DATA_KEY_FILE
    names, one in each line. The first key encrypts, all of them decrypt. What was encrypted with a lost key is lost.
    """
    from .._sensitive.encryption import make_key

    sys.stdout.write(f"{make_key()}\n")
    return 0


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
    """Convert tables of earlier versions. Programs that could not write the converted tables must be stopped first."""
    databases = sorted(_databases(config), key=lambda each: each.schema.name != "leases")  # they say who is running
    upgraded = [each.schema.name for each in databases if each.upgrade()]
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


def backup(
    config: Configuration,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A new folder for the backup.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="SQLite files of stores, and folders. [default: those of the project, or the database]",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Back up the SQLite files of the stores, or the PostgreSQL database, while programs use them.

    Each SQLite file is copied as it is at one moment. For PostgreSQL, the program pg_dump is run; if it is not
    installed, the command for it is shown.
    """
    from ..stores.backup import back_up_files, dump_command, new_folder, run_dump

    if config.settings.database and not files:
        dump = dump_command(config.settings.database, os.path.join(folder, "hookline.dump"))
        if not dump.is_installed:
            raise ConfigError(f"pg_dump is not installed: install it, or run where it is: {dump}")
        new_folder(folder)
        run_dump(dump)
        sys.stdout.write(f"Wrote {printable(dump.target, keep='')}. To restore it into an empty database:\n")
        sys.stdout.write(f"{printable(dump.restore, keep='')}\n")
        return 0
    known = dict.fromkeys((*filter(None, (config.settings.runs,)), *replaced_files(config)))
    sources = files or [path for path in known if os.path.exists(path)]
    if not sources:
        sys.stdout.write("There are no files to back up.\n")
        return 0
    copied = back_up_files(sources, folder)
    rows = [(printable(short_path(source), keep=""), printable(short_path(copy), keep="")) for source, copy in copied]
    print_table(("file", "copy"), rows, keep=("copy",))
    return 0


def repair(
    config: Configuration,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be repaired.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Repair rows about durable runs that contradict each other: show each one, and what is done about it."""
    from ..config.factory import run_store
    from ..server.consistency import ConsistencyCheck

    if config.settings.runs is None:
        raise ConfigError("no runs are stored (runs = none): name the file with --runs FILE.db")
    store = run_store(config.settings, config.settings.runs)
    try:
        check = ConsistencyCheck(store)
        found = check.find()
        if not found:
            sys.stdout.write("There is nothing to repair.\n")
            return 0
        rows = [(printable(each.problem, keep=""), each.remedy) for each in found]
        print_table(("problem", "repair"), rows, keep=("problem", "repair"))
        if dry_run:
            return BAD_INPUT
        total = counted(len(found), "problem")
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError(f"repairing {total} needs --yes, because there is no terminal to ask at")
            if not typer.confirm(f"Repair {total}?"):
                return FAILED
        sys.stdout.write(f"repaired {counted(len(check.repair(found)), 'problem')}\n")
    finally:
        store.close()
    return 0


def table_state(database: PostgresDatabase) -> str:
    """Return ``ok``, or what to do about the tables of a store.

    Raises:
        StoreError: the database cannot be used.
    """
    (version, min_writer), needed = database.stored_versions(), database.schema.version
    if version is None:
        return "missing: hookline db init"
    if version < needed or min_writer is None:
        return f"format {version}, {needed} is needed: hookline db upgrade"
    return "ok" if min_writer <= needed else f"format {version}, written by a newer Hookline: update Hookline"


def replaced_files(config: Configuration) -> list[str]:
    """Return the files and folders that stores use without a database, by default."""
    from ..server.options import ServerOptions
    from ..stores.paths import default_approvals_path, default_runs_path, default_spending_path

    project = config.file.parent if config.file else "."
    runs = str(default_runs_path(project))
    data = user_folder("data")
    keys = ServerOptions.of(config.settings.server).keys_path(runs, config.home)
    named = [runs, str(default_approvals_path(project)), str(default_spending_path(project)), keys]
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
