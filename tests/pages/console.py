"""Parse the console blocks of pages into commands and their output."""

import re
import shlex
from dataclasses import dataclass
from functools import cache

from typer import Exit
from typer._click.exceptions import MissingParameter

from hookline.cli.app import make_app


@dataclass(frozen=True)
class Command:
    """A command of a page, what the page says it writes, and where it stands."""

    text: str
    output: str
    block: object


def commands_in(block):
    """The commands of a console block: each begins with `$ `; lines that end with a backslash go on."""
    if block.kind == "sh":
        return [Command(block.text.rstrip("\n"), "", block)]
    found = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append([line[2:], ""])
        elif not found:
            raise ValueError(f"{block}: a console block begins with a command, after `$ `: {line!r}")
        elif found[-1][0].endswith("\\"):
            found[-1][0] += "\n" + line
        else:
            found[-1][1] += line + "\n"
    return [Command(text, output, block) for text, output in found]


def bare(command):
    """A command without the comment behind it."""
    return re.sub(r"\s+#\s.*", "", command)


def hookline_calls(text):
    """The arguments of every `hookline` in a command, without the file that its output goes to."""
    for found in re.finditer(r"(?:^|[|;(] *|\s)(?:\S*/)?hookline\s+([^|;)\n]*(?:'[^']*'[^|;)\n]*)*)", text):
        words = shlex.split(found[1], comments=True)
        yield words[: words.index(">")] if ">" in words else words


def parse(args, *, named=False):
    """Parse a command line as the program would: its commands, options and arguments exist, and are enough.

    Nothing is done, not even what options such as `--install-completion` do at once.

    Args:
        args: the command line.
        named: it is named and not typed: commands and arguments may be left out.

    Raises:
        Exception: what the program would say.
    """
    command = _app()
    context = command.make_context("hookline", list(args), resilient_parsing=named)
    while hasattr(command, "commands"):
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not rest and (named or command.invoke_without_command):
            break
        name, command, rest = command.resolve_command(context, rest)
        _harmless(command)
        try:
            context = command.make_context(name, rest, parent=context)
        except (MissingParameter, Exit):
            if not named:
                raise
            break
    return command.name


@cache
def _app():
    return _harmless(make_app())


def _harmless(command):
    for param in command.params:
        if param.is_eager:
            param.callback = None
    return command
