"""Who answers, from settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from .._kernel.hook import Hook
from .._run.agent import Agent
from ..config.errors import ConfigError
from ..config.factory import build_agent, build_file_guards, build_model
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
    tell: Callable[[str], object] = log.warning,
) -> Agent | Roster:
    """Who answers under these settings: an agent, or, if they name a folder of them, a roster of personalities.

    Args:
        settings: the settings.
        home: the folder that modules named in them are looked for in; the working folder if left out.
        hooks: further hooks, such as an approver.
        file: where the settings' hooks are named, if it is one file; errors tell it.
        plugins: who switches the plugins on, as for ``build_agent``.
        tell: gets what people should know of the plugins.

    Raises:
        ConfigError: a personality without a folder of them, or a folder that does not exist.
        HooklineError: what ``build_agent`` raises.
    """
    if not settings.personalities:
        if settings.personality:
            raise ConfigError(
                f"personality: there is no folder to take {settings.personality!r} from: "
                "set personalities, or give --personalities DIR"
            )
        return build_agent(settings, home=home, hooks=hooks, file=file, plugins=plugins, tell=tell)

    def model(name: str) -> Model:
        same = name.partition(":")[0] == settings.model.partition(":")[0]
        others = {} if same else dict.fromkeys(MODEL_OPTIONS)  # another vendor's server must not get this one's key
        return build_model(msgspec.structs.replace(settings, model=name, **others))

    agent = build_agent(settings, home=home, hooks=hooks, file=file, plugins=plugins, tell=tell)
    return Roster(
        agent, settings.personalities, first=settings.personality, home=home, models=model,
        keep=lambda files: build_file_guards(settings, files),
    )  # fmt: skip
