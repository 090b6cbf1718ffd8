"""``hookline config``: every setting, its value, and where it comes from."""

from __future__ import annotations

import typer

from ..config.settings import KEYS
from ..config.sources import Configuration
from .help import Command
from .options import AsJson, with_settings
from .output import print_table, short_path, value_text, write_json

EPILOG = """
Settings come from hookline.toml or [tool.hookline] in pyproject.toml (in this folder or a parent),
then from variables such as HOOKLINE_MODEL, then from options. A later source overrides an earlier one.

Examples:
  hookline config
  HOOKLINE_MAX_STEPS=5 hookline config --model openai:gpt-5-mini
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("config", cls=Command, epilog=EPILOG)(with_settings(needs_trust=False)(config))


def config(
    config: Configuration,
    json: AsJson = False,
) -> int:
    """Show every setting, its value, and where it comes from."""
    from ..config.secrets import mask

    values = {name: mask(getattr(config.settings, name), name) for name in KEYS}
    if json:
        write_json({name: {"value": value, "from": config.origins[name]} for name, value in values.items()})
    else:
        rows = [(name, value_text(value), _origin_text(config.origins[name])) for name, value in values.items()]
        print_table(("key", "value", "from"), rows, keep=("key",))
    return 0


def _origin_text(origin: str) -> str:

    kind, _, path = origin.partition(":")
    return f"file:{short_path(path)}" if kind == "file" else origin
