"""``hookline config``: every setting, its value, and where it comes from."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from ..config.settings import KEYS
from ..config.sources import Configuration
from .help import Command
from .options import takes_settings

EPILOG = """
Settings come from hookline.toml or [tool.hookline] in pyproject.toml (in this folder or above),
then from variables such as HOOKLINE_MODEL, then from options. The later one wins.

Examples:
  hookline config
  HOOKLINE_MAX_STEPS=5 hookline config --model openai:gpt-5-mini
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("config", cls=Command, epilog=EPILOG)(takes_settings()(config))


def config(
    config: Configuration,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> int:
    """Show every setting, its value, and where it comes from."""
    from ..config.secrets import masked
    from .screen import table, write_json

    values = {name: masked(getattr(config.settings, name), name) for name in KEYS}
    if json:
        write_json({name: {"value": value, "from": config.origins[name]} for name, value in values.items()})
    else:
        rows = [(name, shown(value), _short(config.origins[name])) for name, value in values.items()]
        table(("key", "value", "from"), rows, keep=("key",))
    return 0


def shown(value: Any) -> str:
    """A value as a configuration file would have it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _short(origin: str) -> str:
    from .screen import nearby

    kind, _, path = origin.partition(":")
    return f"file:{nearby(path)}" if kind == "file" else origin
