"""Build an agent, or a roster of personalities, from settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from .._kernel.hook import Hook
from .._run.agent import Agent
from ..config.errors import ConfigError
from ..config.factory import build_agent, build_model
from ..config.settings import Settings
from ..config.sources import MODEL_OPTIONS
from ..models.protocol import Model
from ..plugins.manager import PluginManager
from .roster import Roster

log = logging.getLogger("hookline")


def build_answerer(
    settings: Settings,
    *,
    home: Path | None = None,
    hooks: Iterable[Hook] = (),
    file: Path | None = None,
    plugins: PluginManager | None = None,
    notify: Callable[[str], object] = log.warning,
) -> Agent | Roster:
    """Build an agent, or a roster if the settings name a folder of personalities.

    Args:
        settings: the settings.
        home: the folder to import modules from; by default the working folder.
        hooks: further hooks, such as an approver.
        file: the file of the settings' hooks, for error messages.
        plugins: the manager that switches the plugins on, as for ``build_agent``.
        notify: called with messages about plugins.

    Raises:
        ConfigError: a personality is set without a folder, or the folder does not exist.
        HooklineError: any error of ``build_agent``.
    """
    if not settings.personalities:
        if settings.personality:
            raise ConfigError(
                f"personality: no folder is set for {settings.personality!r}: "
                "set personalities, or give --personalities DIR"
            )
        return build_agent(settings, home=home, hooks=hooks, file=file, plugins=plugins, notify=notify)

    def model(name: str) -> Model:
        same = name.partition(":")[0] == settings.model.partition(":")[0]
        others = {} if same else dict.fromkeys(MODEL_OPTIONS)  # the server of another vendor must not get this key
        return build_model(msgspec.structs.replace(settings, model=name, **others))

    agent = build_agent(settings, home=home, hooks=hooks, file=file, plugins=plugins, notify=notify)
    return Roster(
        agent,
        settings.personalities,
        first=settings.personality,
        home=home,
        models=model,
    )
