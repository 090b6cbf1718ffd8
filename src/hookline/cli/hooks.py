"""``hookline hooks``: show which hooks run at which point, in order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config.errors import ConfigError
from ..config.sources import Configuration
from .help import Command
from .options import AsJson, with_settings
from .output import console, print_facts, print_locations, print_table, short_path, write_json

if TYPE_CHECKING:
    from .._kernel.registry import HookRegistry

EPILOG = """
Examples:
  hookline hooks
  hookline hooks rules.py
  hookline hooks --built-in
"""

COLUMNS = ("point", "hook", "phase", "priority", "on_failure", "layer", "from")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("hooks", cls=Command, epilog=EPILOG)(
        with_settings("folder", "write", "plugins", "claude_hooks", "debug")(hooks)
    )


def hooks(
    config: Configuration,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="FILE.py, FILE.py:name, rules.toml, module:name or a built-in hook; by default, the configured hooks.",
        ),
    ] = None,
    built_in: Annotated[bool, typer.Option("--built-in", help="Show all built-in hooks.")] = False,
    json: AsJson = False,
) -> int:
    """Show which hooks run at which point, in order.

    The last column is the file and line where each hook is defined.
    """
    if built_in:
        if files:
            raise ConfigError("--built-in takes no names: it shows all built-in hooks")
        show_built_in(json)
        return 0
    registry = _registry(config, files or [])
    if json:
        write_json([dict(zip(COLUMNS, row, strict=True)) for row in hook_rows(registry)])
    else:
        show_hooks(registry)
    return 0


def show_built_in(json: bool) -> None:
    """Print every built-in hook: its name, its points, and what it does."""
    from .._base.frozen import plain
    from ..hooks._catalog import builtin_rows

    rows = builtin_rows()
    if json:
        write_json([plain(row) for row in rows])
        return
    for concern, group in groupby(rows, lambda row: row.concern):
        print_facts(concern, [(row.name, row.what, " · ".join(filter(None, row.cells))) for row in group])


def hook_rows(registry: HookRegistry) -> list[tuple[Any, ...]]:
    """Return a row for each hook at each point, in the order in which they run."""
    from ..config.hook_order import hook_order

    return [
        (
            place.point,
            f"{place.hook} [{', '.join(place.tools)}]" if place.tools else place.hook,
            place.phase,
            place.priority,
            place.on_failure,
            f"{place.layer}, plugin {place.plugin}" if place.plugin else place.layer,
            short_path(place.source),
        )
        for place in hook_order(registry.stack)
    ]


def show_hooks(registry: HookRegistry) -> None:
    """Print a table of the hooks at each point; two lines for each hook if the terminal is too narrow."""
    heads = ["point", "hook", "phase", "prio", "on_failure", "layer", "from"]
    rows = [(point, hook, phase, f"{priority:g}", *rest) for point, hook, phase, priority, *rest in hook_rows(registry)]
    if len({row[5] for row in rows}) == 1:  # all hooks are in the same layer
        heads, rows = [*heads[:5], "from"], [(*row[:5], row[6]) for row in rows]
    by_point = [(point, list(group)) for point, group in groupby(rows, lambda row: row[0])]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    if sum(widths) + 2 * len(widths) <= console().width:
        shown = [("" if i else point, *row[1:]) for point, group in by_point for i, row in enumerate(group)]
        print_table(heads, shown, keep=heads)
        return
    for point, group in [(heads[0], [tuple(heads)]), *by_point]:
        print_locations(point, [(row[1], " · ".join(row[2:-1]), row[-1]) for row in group], widths[1])


def _registry(config: Configuration, files: Iterable[str]) -> HookRegistry:
    from .._kernel.registry import HookRegistry
    from ..config.factory import approval_policy, build_hooks, build_plugins, build_recorder
    from ..config.loading import load_hooks
    from ..config.trust import reference_files
    from ..plugins.trust import trust_named
    from .approval_prompt import Approver
    from .views import PlainView

    if files:
        trust_named(*reference_files(files, Path.cwd()))
        registry = HookRegistry()
        loaded, plugins = load_hooks(list(files), Path.cwd())
        for declared in loaded:
            declared.register(registry)
    else:
        registry, plugins = build_hooks(config.settings, config.home, config.hooks_file)
        settings = config.settings
        registry.register(
            Approver(settings.approvals, PlainView(None).paused, settings.approval_file, approval_policy(settings))
        )
        if (recorder := build_recorder(config.settings)) is not None:
            registry.register(recorder)
        manager = build_plugins(config.settings, config.home)
        manager.attach(registry)
        for name in config.settings.plugins:
            manager.activate(name)
    for plugin in plugins:
        for hook in plugin.hooks:
            registry.register(hook, plugin=plugin.name)
    return registry
