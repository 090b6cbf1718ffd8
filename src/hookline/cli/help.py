"""Help pages: options in groups, examples as they were written. Rich would cost more time than all the rest."""

from __future__ import annotations

import inspect
import os
from typing import Any

from typer import style
from typer.core import TyperCommand, TyperGroup

from .exits import ReaderGone


def _heading(text: str) -> str:
    return text if os.environ.get("NO_COLOR") else style(text, bold=True)


def _write_rows(formatter: Any, rows: list[tuple[str, str]], heading: str) -> None:
    if rows:
        formatter.write_paragraph()
        formatter.write(f"{_heading(heading)}\n")
        with formatter.indentation():
            formatter.write_dl(rows, col_max=26)


def _write_params(command: Any, ctx: Any, formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None and param.param_type_name == "argument":
            groups.setdefault("Arguments", []).append((param.metavar or param.name.upper(), param.help or ""))
        elif record is not None:
            groups.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
    last = groups.pop("Options", [])
    for name, rows in [*groups.items(), ("Options", last)]:
        _write_rows(formatter, rows, name)


def _write_epilog(command: Any, formatter: Any) -> None:
    if command.epilog:
        formatter.write_paragraph()
        for line in inspect.cleandoc(command.epilog).splitlines():
            formatter.write(f"{_heading(line) if line.endswith(':') else line}\n")


class Command(TyperCommand):
    """A command with such a page."""

    def invoke(self, ctx: Any) -> Any:
        """Run it; an output that nobody reads is told from other failures."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options under their headings."""
        _write_params(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The epilog, line by line."""
        _write_epilog(self, formatter)


class Group(TyperGroup):
    """A group of commands with such a page."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Commands first, then options."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(100)) for name, command in commands if command is not None]
        _write_rows(formatter, rows, "Commands")
        _write_params(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The epilog, line by line."""
        _write_epilog(self, formatter)
