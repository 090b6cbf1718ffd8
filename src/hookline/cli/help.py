"""Help pages with options in groups, wrapped text and examples kept as written.

Typer can format help with Rich, but importing Rich would take longer than everything else.
"""

from __future__ import annotations

import inspect
import os
from itertools import groupby
from typing import Any

from typer import echo, style
from typer.core import TyperCommand, TyperGroup

from .errors import OutputClosedError


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
    if not command.epilog:
        return
    formatter.write_paragraph()
    lines = inspect.cleandoc(command.epilog).splitlines()
    for is_text, group in groupby(lines, lambda line: line[:1].strip() != "" and not line.endswith(":")):
        if is_text:
            formatter.write_text(" ".join(group))
        else:
            formatter.write("".join(f"{_heading(line) if line.endswith(':') else line}\n" for line in group))


class Command(TyperCommand):
    """A command with a help page in this format."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a closed pipe on stdout raises ``OutputClosedError``."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise OutputClosedError from error

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under their headings."""
        _write_params(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the epilog: wrap its text, keep its examples line by line."""
        _write_epilog(self, formatter)


class Group(TyperGroup):
    """A group of commands with a help page in this format, which it shows if no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; without any, print the help page."""
        if not args and not ctx.resilient_parsing:
            echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)

    def summaries(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return each command with the first sentence of its help, under the headings of the page."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(100)) for name, command in commands if command is not None]
        return {"Commands": rows}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options."""
        groups = self.summaries(ctx)
        width = max(len(name) for rows in groups.values() for name, _ in rows)
        for heading, rows in groups.items():
            _write_rows(formatter, [(name.ljust(width), text) for name, text in rows], heading)
        _write_params(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the epilog: wrap its text, keep its examples line by line."""
        _write_epilog(self, formatter)


class ListingGroup(Group):
    """A group of commands that runs its ``list`` command when no other one is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. If they are empty or begin with an option, insert ``list``."""
        if not args or (args[0].startswith("-") and not {"-h", "--help"} & set(args)):
            args = ["list", *args]
        return super().parse_args(ctx, args)
