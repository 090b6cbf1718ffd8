"""``hookline plugins``: what plugins there are, what they ask for, and which are on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._kernel.errors import HooklineError
from ..config.errors import ConfigError
from ..config.sources import FILE, Configuration
from .errors import BAD_INPUT, CANCELLED, COMPLETED, FAILED, say_error, say_note
from .help import Command, Group
from .options import takes_settings
from .output import facts, nearby, problems, state, table, write_json
from .text import counted, printable, short

if TYPE_CHECKING:
    from ..plugins.discovery import FoundPlugin
    from ..plugins.manager import PluginManager

EPILOG = """
Plugins are found in the folder plugins/ beside the configuration file, among installed packages,
and where the setting plugins names a folder. A plugin is Python code: it runs with all your rights.

Examples:
  hookline new plugin word-watch
  hookline plugins list
  hookline plugins check plugins/word-watch
  hookline plugins enable word-watch
"""
WARNING = "A plugin is Python code: it runs with all your rights."

Name = Annotated[str, typer.Argument(metavar="ID", help="The plugin's id, or the path of its folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(cls=Group, rich_markup_mode=None, help="List, check, enable or disable plugins.", epilog=EPILOG)
    settings = takes_settings("plugins_folder", "debug")
    for name, command in (("list", show), ("check", check), ("enable", enable), ("disable", disable)):
        group.command(name, cls=Command)(settings(command))
    app.add_typer(group, name="plugins")


def close_plugins(plugins: PluginManager) -> None:
    """Switch all plugins off, and tell what went wrong with that."""
    known = dict(plugins.problems)
    plugins.close()
    for name, problem in plugins.problems.items():
        if known.get(name) != problem:
            say_note(problem)


def show(config: Configuration, json: AsJson = False) -> int:
    """Show the plugins that there are, and which are on. None of their code runs."""
    rows = _rows(config)
    if json:
        write_json(rows)
        return COMPLETED
    if not rows:
        folder = config.home / config.settings.plugins_folder
        sys.stdout.write(f"There are no plugins: none is installed, and none is in {printable(str(folder))}.\n")
        sys.stdout.write("'hookline new plugin NAME' writes one.\n")
        return COMPLETED
    heads = ("plugin", "version", "state", "from", "brings", "asks for")
    cells = [(row["id"], row["version"], state(row["state"]), _place(row), row["brings"], _asks(row)) for row in rows]
    table(heads, cells, keep=("plugin", "version", "state"))
    problems([_problem(row) for row in rows if row["problem"]])
    return COMPLETED


def check(config: Configuration, name: Name) -> int:
    """Load a plugin, switch it on in an empty place and off again, and say what is wrong."""
    from ..config.build import build_plugins

    manager = build_plugins(config.settings, config.home)
    found = manager.find(_as_path(name))
    problems = manager.check(_as_path(name))
    for problem in problems:
        say_error(problem)
    if problems:
        return FAILED
    sys.stdout.write(f"{printable(found.id)} {printable(found.version, keep='')}: nothing is wrong\n")
    _describe(found)
    return COMPLETED


def enable(
    config: Configuration,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Show what a plugin asks for, and switch it on in the configuration file."""
    from ..config.build import build_plugins
    from ..config.editing import add_to_list

    manager = build_plugins(config.settings, config.home)
    found = manager.find(_as_path(name))
    if found.problem:
        raise HooklineError(found.problem)
    path, entry = _file(config), _entry(found, config)
    if entry in config.settings.plugins or str(found.folder) in config.settings.plugins:
        sys.stdout.write(f"{printable(found.id)} is on already\n")
        return COMPLETED
    sys.stdout.write(
        f"{printable(found.id)} {printable(found.version, keep='')}, from {printable(nearby(found.where))}\n"
    )
    _describe(found)
    sys.stdout.write(f"{WARNING}\n")
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("there is no terminal to ask at: look at it, then say --yes")
        if input("Switch it on? [y/N] ").strip().lower() not in ("y", "yes"):
            sys.stdout.write("It stays off.\n")
            return CANCELLED
    for problem in (problems := manager.check(_as_path(name))):
        say_error(problem)
    if problems:
        say_error(f"{path} was not changed")
        return BAD_INPUT
    add_to_list(path, "plugins", entry)
    sys.stdout.write(f"on: plugins in {printable(nearby(str(path)))} names {printable(entry)} now\n")
    return COMPLETED


def disable(config: Configuration, name: Name) -> int:
    """Switch a plugin off in the configuration file."""
    from ..config.build import build_plugins
    from ..config.editing import take_from_list

    path = _file(config)
    names = [name]
    if name not in config.settings.plugins:
        for found in build_plugins(config.settings, config.home).found():
            if name in (found.id, found.folder and found.folder.name):
                names += [found.id, _entry(found, config), str(found.folder)]
    for each in names:
        for entry in {each, _relative(each, path.parent)} if path.exists() else ():
            if take_from_list(path, "plugins", entry):
                sys.stdout.write(
                    f"off: plugins in {printable(nearby(str(path)))} does not name {printable(entry)} any more\n"
                )
                return COMPLETED
    on = ", ".join(config.settings.plugins) or "none"
    elsewhere = (
        f", it comes from {config.origins['plugins']}" if any(n in config.settings.plugins for n in names) else ""
    )
    raise ConfigError(f"{path} does not switch on {name!r}{elsewhere}. On are: {on}")


def _rows(config: Configuration) -> list[dict[str, Any]]:
    from ..config.build import build_plugins
    from ..plugins.discovery import is_path

    found = build_plugins(config.settings, config.home).found()
    on = {str(Path(name)) if is_path(name) else name for name in config.settings.plugins}
    rows = [_row(plugin, plugin.id in on or str(plugin.folder) in on) for plugin in found]
    known = {plugin.id for plugin in found} | {str(plugin.folder) for plugin in found}
    for name in sorted(on - known):
        missing = {"id": name, "version": "", "state": "missing", "where": "", "source": "", "description": ""}
        rows.append(missing | {"brings": "", "permissions": None, "problem": "plugins names it, but it is not there"})
    return rows


def _row(found: FoundPlugin, on: bool) -> dict[str, Any]:
    manifest = found.manifest
    state = ("on" if on else "off") if not found.problem else "broken"
    return {
        "id": found.id, "version": found.version, "state": state,
        "where": found.where,
        "source": found.source, "description": manifest.description if manifest else "", "brings": _brings(found),
        "permissions": None if manifest is None else list(manifest.permissions), "problem": found.problem,
    }  # fmt: skip


def _place(row: dict[str, Any]) -> str:
    """Where a plugin is from, short: a folder is nearly always named as its plugin."""
    if row["source"] in ("", "installed"):
        return str(row["where"])
    path = Path(row["where"])
    return f"{nearby(str(path.parent))}/" if path.name == row["id"] else nearby(str(path))


def _problem(row: dict[str, Any]) -> str:

    text, where = f"{row['id']}: {row['problem']}", row["where"]
    return text.replace(where, nearby(where)) if where else text


def _asks(row: dict[str, Any]) -> str:
    if row["permissions"] is None:
        return "" if row["problem"] else "it does not say"
    return ", ".join(row["permissions"]) or "nothing"


def _brings(found: FoundPlugin) -> str:
    manifest = found.manifest
    if manifest is None:
        return "" if found.problem else "a Plugin object"
    parts = (
        ("hook", manifest.hooks),
        ("tool", manifest.tools),
        ("channel", manifest.channels),
        ("point", manifest.points),
    )
    return ", ".join(counted(len(items), thing) for thing, items in parts if items)


def _describe(found: FoundPlugin) -> None:
    from ..plugins.permissions import ENFORCED, meaning

    manifest = found.manifest
    if manifest is None:
        sys.stdout.write("It is a Plugin object without a manifest: it does not say what it asks for.\n")
        return
    if manifest.description:
        sys.stdout.write(f"{short(manifest.description, 500)}\n")
    sys.stdout.write(f"It brings {_brings(found) or 'nothing'}.\n")
    asked = [
        (f"{name}{'*' if name.partition(':')[0] in ENFORCED else ''}", meaning(name)) for name in manifest.permissions
    ]
    if asked:
        facts("It asks to (what is marked with * would be refused otherwise)", asked)
    else:
        sys.stdout.write("It asks for no permissions: its hooks only watch and block.\n")
    if manifest.settings:
        needed = {True: " (required)", False: ""}
        facts(
            "Settings",
            [
                (key, f"{each.description or each.type}{needed[each.required]}")
                for key, each in manifest.settings.items()
            ],
        )


def _as_path(name: str) -> str:
    """A folder that is there is meant as a path, unless its name alone says so."""
    return str(Path(name).resolve()) if "/" in name or name.startswith((".", "~")) else name


def _file(config: Configuration) -> Path:
    return config.file if config.file is not None else Path.cwd() / FILE


def _entry(found: FoundPlugin, config: Configuration) -> str:
    """How the configuration names a plugin: by id, if it is found by that."""
    folder = (config.home / config.settings.plugins_folder).resolve()
    if found.folder is None or found.source == "installed" or found.folder.parent == folder:
        return found.id
    return _relative(str(found.folder), _file(config).parent)


def _relative(path: str, folder: Path) -> str:
    if not Path(path).is_absolute() or not Path(path).is_relative_to(folder.resolve()):
        return path
    return f"./{Path(path).relative_to(folder.resolve())}"
