"""The commands, wired together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from .. import __version__
from . import (
    approvals,
    audit,
    chat,
    config,
    doctor,
    gateway,
    hooks,
    keys,
    models,
    new,
    personalities,
    plugins,
    points,
    replay,
    run,
    serve,
    skills,
    stats,
    tickets,
)
from .exits import MEANINGS
from .help import Group

EPILOG = """
Examples:
  hookline run "What is in this folder?"
  git diff | hookline run "Review this" --hooks rules.py
  hookline new hook keep_files

Exit codes:
""" + "\n".join(f"  {code:<5}{meaning}" for code, meaning in MEANINGS.items())

_LOOK: Any = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def run_app(args: Sequence[str]) -> int:
    """Run one command; the exit code."""
    code = get_command(make_app()).main(list(args) or ["--help"], prog_name="hookline", standalone_mode=False)
    return code if isinstance(code, int) else 0


def make_app() -> typer.Typer:
    """The program."""
    app = typer.Typer(cls=Group, rich_markup_mode=None, context_settings=_LOOK, epilog=EPILOG)
    app.callback()(root)
    for module in (
        run, chat, replay, serve, approvals, keys, gateway, personalities, tickets, skills, plugins, stats,
        audit, points, hooks, new, config, models, doctor,
    ):  # fmt: skip
        module.add_to(app)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"hookline {__version__}\n")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    """Run LLM agents under hooks that see, change, block, answer or end what they do."""
