"""The plugins that settings name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .._base.text import did_you_mean
from ..plugins.discovery import is_path
from ..plugins.errors import PluginError
from ..plugins.manager import Host, PluginManager
from .settings import Settings
from .trust import why_not_trusted


def build_plugins(settings: Settings, home: Path | None = None) -> PluginManager:
    """Who switches plugins on and off: those beside the configuration, the installed ones, and those named by path.

    Args:
        settings: the settings.
        home: the folder that ``plugins_folder`` starts at; the working folder if left out.
    """
    home = Path.cwd() if home is None else home
    named = [name for name in settings.plugins if is_path(name)]
    return PluginManager(
        folder=home / settings.plugins_folder, named=named, settings=settings.plugin_settings, trust=why_not_trusted
    )


def use_plugins(manager: PluginManager, host: Host, names: Iterable[str], *, lenient: bool = False) -> list[str]:
    """Plug these plugins into an agent; what people should know about it.

    A plugin may bring the guards that somebody counts on: an agent is not built without one, unless the plugin's own
    manifest says ``required = false``, or a program that must go on asks for it (``lenient``).

    Raises:
        PluginError: one cannot be used; all are off again.
    """
    manager.attach(host)
    notes = []
    for name, problem in manager.activate_all(names).items():
        if not lenient and _is_required(manager, name):
            manager.close()
            manager.detach(host)
            raise PluginError(
                f"{problem}. The agent does not start without it. Fix it, or leave it out: "
                f"'hookline plugins disable {name}', or '--plugin none' for no plugins this time"
            )
        notes.append(f"{problem}. The agent goes on without it")
    known = {found.id for found in manager.found()} if manager.settings else set()
    for name in manager.settings:
        if name not in known:
            notes.append(f"plugin_settings.{name}: there is no plugin {name!r}.{did_you_mean(name, known)}")
    return notes


def _is_required(manager: PluginManager, name: str) -> bool:
    try:
        manifest = manager.find(name).manifest
    except PluginError:
        return True
    return manifest is None or manifest.required
