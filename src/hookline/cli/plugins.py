"""``hookline plugins``: list plugins, check one, and enable or disable them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._kernel.errors import HooklineError
from ..config.errors import ConfigError
from ..config.sources import FILE, Configuration
from .errors import BAD_INPUT, CANCELLED, COMPLETED, FAILED, print_error, print_note
from .help import Command, Group
from .options import AsJson, with_settings
from .output import print_facts, print_problems, print_table, short_path, state_text, write_json
from .text import counted, printable, short

if TYPE_CHECKING:
    from ..plugins.discovery import FoundPlugin
    from ..plugins.manager import PluginManager

EPILOG = """
Plugins are read from the folder plugins/ beside the configuration file, from installed packages,
and from folders named in the setting plugins. A plugin is Python code that runs with your permissions.

Examples:
  hookline new plugin word-watch
  hookline plugins list
  hookline plugins check plugins/word-watch
  hookline plugins enable word-watch
"""
WARNING = "A plugin is Python code that runs with your permissions."

Name = Annotated[str, typer.Argument(metavar="ID", help="Id of the plugin, or path of its folder.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(cls=Group, rich_markup_mode=None, help="List, check, enable or disable plugins.", epilog=EPILOG)
    settings = with_settings("plugins_folder", "debug")
    for name, command in (("list", list_plugins), ("check", check), ("enable", enable), ("disable", disable)):
        group.command(name, cls=Command)(settings(command))
    app.add_typer(group, name="plugins")


def close_plugins(plugins: PluginManager) -> None:
    """Deactivate all plugins, and print a note for each one that fails to shut down."""
    known = dict(plugins.problems)
    plugins.close()
    for name, problem in plugins.problems.items():
        if known.get(name) != problem:
            print_note(problem)


def list_plugins(config: Configuration, json: AsJson = False) -> int:
    """List all plugins, and whether they are enabled. This runs none of their code."""
    rows = _rows(config)
    if json:
        write_json(rows)
        return COMPLETED
    if not rows:
        folder = config.home / config.settings.plugins_folder
        sys.stdout.write(f"No plugins are installed or in {printable(str(folder))}.\n")
        sys.stdout.write("Write one with: hookline new plugin NAME\n")
        return COMPLETED
    heads = ("plugin", "version", "state", "from", "contains", "permissions")
    cells = [
        (row["id"], row["version"], state_text(row["state"]), _location(row), row["brings"], _permissions_text(row))
        for row in rows
    ]
    print_table(heads, cells, keep=("plugin", "version", "state"))
    print_problems([_problem(row) for row in rows if row["problem"]])
    return COMPLETED


def check(config: Configuration, name: Name) -> int:
    """Load a plugin, activate it in an empty agent and deactivate it again, and print problems."""
    from ..config.factory import build_plugins
    from ..plugins.trust import trust_named

    manager = build_plugins(config.settings, config.home)
    found = manager.find(_as_path(name))
    if found.folder is not None:
        trust_named(found.folder)
    problems = manager.check(_as_path(name))
    for problem in problems:
        print_error(problem)
    if problems:
        return FAILED
    sys.stdout.write(f"{printable(found.id)} {printable(found.version, keep='')}: no problems found\n")
    _print_details(found)
    return COMPLETED


def enable(
    config: Configuration,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> int:
    """Show the permissions of a plugin, and enable it in the configuration file."""
    from ..config.editing import add_to_list
    from ..config.factory import build_plugins
    from ..config.trust import plugin_files
    from ..plugins.trust import trust_named
    from .trust import keep_trust

    manager = build_plugins(config.settings, config.home)
    found = manager.find(_as_path(name))
    if found.problem:
        raise HooklineError(found.problem)
    path, entry = _config_file(config), _config_entry(found, config)
    if entry in config.settings.plugins or str(found.folder) in config.settings.plugins:
        sys.stdout.write(f"{printable(found.id)} is already enabled\n")
        return COMPLETED
    sys.stdout.write(
        f"{printable(found.id)} {printable(found.version, keep='')}, from {printable(short_path(found.where))}\n"
    )
    _print_details(found)
    sys.stdout.write(f"{WARNING}\n")
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("there is no terminal to ask at: check the permissions above, then add --yes")
        if input("Enable it? [y/N] ").strip().lower() not in ("y", "yes"):
            sys.stdout.write("Not enabled.\n")
            return CANCELLED
    code = [] if found.folder is None or found.source == "installed" else list(plugin_files(found.folder))
    trust_named(*code)
    for problem in (problems := manager.check(_as_path(name))):
        print_error(problem)
    if problems:
        print_error(f"{path} was not changed")
        return BAD_INPUT
    add_to_list(path, "plugins", entry)
    keep_trust(config, path, code)
    sys.stdout.write(f"enabled: added {printable(entry)} to plugins in {printable(short_path(str(path)))}\n")
    return COMPLETED


def disable(config: Configuration, name: Name) -> int:
    """Disable a plugin in the configuration file."""
    from ..config.editing import remove_from_list
    from ..config.factory import build_plugins
    from .trust import keep_trust

    path = _config_file(config)
    names = [name]
    if name not in config.settings.plugins:
        for found in build_plugins(config.settings, config.home).found():
            if name in (found.id, found.folder and found.folder.name):
                names += [found.id, _config_entry(found, config), str(found.folder)]
    for each in names:
        for entry in {each, _relative(each, path.parent)} if path.exists() else ():
            if remove_from_list(path, "plugins", entry):
                keep_trust(config, path)
                sys.stdout.write(
                    f"disabled: removed {printable(entry)} from plugins in {printable(short_path(str(path)))}\n"
                )
                return COMPLETED
    on = ", ".join(config.settings.plugins) or "none"
    elsewhere = (
        f", it comes from {config.origins['plugins']}" if any(n in config.settings.plugins for n in names) else ""
    )
    raise ConfigError(f"{path} does not enable {name!r}{elsewhere}. Enabled: {on}")


def _rows(config: Configuration) -> list[dict[str, Any]]:
    from ..config.factory import build_plugins
    from ..plugins.discovery import is_path

    found = build_plugins(config.settings, config.home).found()
    on = {str(Path(name)) if is_path(name) else name for name in config.settings.plugins}
    rows = [_row(plugin, plugin.id in on or str(plugin.folder) in on) for plugin in found]
    known = {plugin.id for plugin in found} | {str(plugin.folder) for plugin in found}
    for name in sorted(on - known):
        missing = {"id": name, "version": "", "state": "missing", "where": "", "source": "", "description": ""}
        rows.append(missing | {"brings": "", "permissions": None, "problem": "enabled in plugins, but not found"})
    return rows


def _row(found: FoundPlugin, on: bool) -> dict[str, Any]:
    manifest = found.manifest
    state = ("on" if on else "off") if not found.problem else "broken"
    return {
        "id": found.id,
        "version": found.version,
        "state": state,
        "where": found.where,
        "source": found.source,
        "description": manifest.description if manifest else "",
        "brings": _contents(found),
        "permissions": None if manifest is None else list(manifest.permissions),
        "problem": found.problem,
    }


def _location(row: dict[str, Any]) -> str:
    """Return where a plugin comes from; only the parent folder if the folder has the plugin's name."""
    if row["source"] in ("", "installed"):
        return str(row["where"])
    path = Path(row["where"])
    return f"{short_path(str(path.parent))}/" if path.name == row["id"] else short_path(str(path))


def _problem(row: dict[str, Any]) -> str:

    text, where = f"{row['id']}: {row['problem']}", row["where"]
    return text.replace(where, short_path(where)) if where else text


def _permissions_text(row: dict[str, Any]) -> str:
    if row["permissions"] is None:
        return "" if row["problem"] else "unknown (no manifest)"
    return ", ".join(row["permissions"]) or "none"


def _contents(found: FoundPlugin) -> str:
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


def _print_details(found: FoundPlugin) -> None:
    from ..plugins.manifest import ENFORCED, permission_meaning

    manifest = found.manifest
    if manifest is None:
        sys.stdout.write("It is a Plugin object without a manifest, so its permissions are unknown.\n")
        return
    if manifest.description:
        sys.stdout.write(f"{short(manifest.description, 500)}\n")
    sys.stdout.write(f"It contains {_contents(found) or 'nothing'}.\n")
    asked = [
        (f"{name}{'*' if name.partition(':')[0] in ENFORCED else ''}", permission_meaning(name))
        for name in manifest.permissions
    ]
    if asked:
        print_facts("Permissions (those with * are enforced)", asked)
    else:
        sys.stdout.write("It needs no permissions: its hooks only observe and block.\n")
    if manifest.settings:
        needed = {True: " (required)", False: ""}
        print_facts(
            "Settings",
            [
                (key, f"{each.description or each.type}{needed[each.required]}")
                for key, each in manifest.settings.items()
            ],
        )


def _as_path(name: str) -> str:
    """Resolve a name that looks like a path; leave an id unchanged."""
    return str(Path(name).resolve()) if "/" in name or name.startswith((".", "~")) else name


def _config_file(config: Configuration) -> Path:
    return config.file if config.file is not None else Path.cwd() / FILE


def _config_entry(found: FoundPlugin, config: Configuration) -> str:
    """Return the name of a plugin for the configuration file: its id if that is enough to find it, else its path."""
    folder = (config.home / config.settings.plugins_folder).resolve()
    if found.folder is None or found.source == "installed" or found.folder.parent == folder:
        return found.id
    return _relative(str(found.folder), _config_file(config).parent)


def _relative(path: str, folder: Path) -> str:
    if not Path(path).is_absolute() or not Path(path).is_relative_to(folder.resolve()):
        return path
    return f"./{Path(path).relative_to(folder.resolve())}"
