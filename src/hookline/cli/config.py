"""``hookline config``: every setting, its value, and where it comes from."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from ..config.settings import KEYS
from ..config.sources import Configuration
from .help import Command
from .options import takes_settings
from .output import nearby, table, write_json

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

    values = {name: masked(getattr(config.settings, name), name) for name in KEYS}
    if json:
        write_json({name: {"value": value, "from": config.origins[name]} for name, value in values.items()})
    else:
        rows = [(name, shown(value), _short(config.origins[name])) for name, value in values.items()]
        table(("key", "value", "from"), rows, keep=("key",))
    return 0


def shown(value: Any) -> str:
    """A value, nearly as a configuration file would have it; each item of a list on a line of its own."""
    if value is None:
        return "none"
    if isinstance(value, list) and value:
        return "\n".join(item if isinstance(item, str) else _inline(item) for item in value)
    return value if isinstance(value, str) else _inline(value)


def _inline(value: Any) -> str:
    """A value in TOML, with blanks at which it can be broken."""
    if isinstance(value, dict) and value:
        return f"{{ {', '.join(f'{name} = {_inline(item)}' for name, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return msgspec.json.encode(value).decode()


def _short(origin: str) -> str:

    kind, _, path = origin.partition(":")
    return f"file:{nearby(path)}" if kind == "file" else origin
