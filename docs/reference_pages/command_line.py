"""Generate `reference/cli.md`: every command of the program."""

import inspect
from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperGroup

from hookline.cli.app import make_app
from hookline.cli.errors import EXIT_CODES
from hookline.cli.options import APPROVALS
from hookline.config.settings import KEYS

from .markdown import GENERATED, block, code, table

HEAD = f"""# Commands and options

Every command of `hookline` with its arguments and options; `--help` shows the same in a terminal. The
[guide](../guides/command-line.md) explains how to use them. {GENERATED}

"""

EXITS = """
## Exit codes

The exit codes of all commands that do not list other ones:

"""

SETTINGS = """
## Options of settings

Commands that take settings accept these options, which apply to one call; [configuration](configuration.md) describes
each setting and how to set it in a file or in the environment. `--config FILE` reads another configuration file.

"""


TRUST = "trust"
"""The option of every command that reads a configuration file."""


def page(_: str) -> str:
    """Return the page."""
    root: Any = make_app()
    commands = list(_walk(root, "hookline"))
    rows = [(f"[`{name}`](#{name.replace(' ', '-')})", _first(command)) for name, command in commands[1:]]
    text = HEAD + table(("command", "what it does"), rows) + _options_of(root)
    text += EXITS + table(("code", "meaning"), ((str(number), words) for number, words in EXIT_CODES.items()))
    text += SETTINGS + table(("option", "what it does"), map(_row, _setting_options(commands)))
    return text + "".join(_section(name, command) for name, command in commands[1:])


def _walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for inner in getattr(command, "commands", {}).values():
        if not inner.hidden:
            yield from _walk(inner, f"{name} {inner.name}")


def _first(command: Any) -> str:
    return (inspect.cleandoc(command.help or "").split("\n\n")[0]).replace("\n", " ").replace("|", "\\|")


def _is_setting(param: Any) -> bool:
    """Return whether an option is that of a setting, which is the same for every command."""
    if param.name in ("config_file", TRUST):
        return True
    if param.name in APPROVALS:
        return f"--{param.name}" in param.opts
    key = KEYS.get(param.name)
    return key is not None and key.about.flag.split("/")[0] in param.opts and bool(param.rich_help_panel)


def _setting_options(commands: list[tuple[str, Any]]) -> list[Any]:
    (run,) = [command for name, command in commands if name == "hookline run"]
    return [param for param in run.params if not isinstance(param, TyperArgument) and _is_setting(param)]


def _section(name: str, command: Any) -> str:
    depth = "#" * min(1 + len(name.split()) - 1, 3)
    text = f"\n{depth} {name}\n\n{inspect.cleandoc(command.help or '')}\n\n{block(_usage(name, command))}"
    arguments = [param for param in command.params if isinstance(param, TyperArgument)]
    text += _spaced(table(("argument", "meaning"), (_argument(param) for param in arguments)))
    text += _options_of(command)
    taken = [param for param in command.params if _is_setting(param) and not isinstance(param, TyperArgument)]
    all_of_them = len({param.name for param in taken} & KEYS.keys()) > len(KEYS) // 2
    if all_of_them:
        text += "\nAlso takes all [options of settings](#options-of-settings).\n"
    elif taken:
        flags = ", ".join(f"`{flag}`" for param in taken for flag in (*param.opts, *param.secondary_opts))
        text += f"\nAlso takes these [options of settings](#options-of-settings): {flags}.\n"
    if command.epilog:
        text += f"\n{block(inspect.cleandoc(command.epilog))}"
    return text


def _spaced(text: str) -> str:
    return f"\n{text}" if text else ""


def _usage(name: str, command: Any) -> str:
    pieces = [name]
    if any(not isinstance(param, TyperArgument) for param in command.params):
        pieces.append("[OPTIONS]")
    for param in command.params:
        if isinstance(param, TyperArgument):
            word = param.metavar or str(param.name).upper()
            pieces.append(word if param.required or word.startswith("[") else f"[{word}]")
    if isinstance(command, TyperGroup):
        pieces.append("COMMAND ...")
    return " ".join(pieces)


def _argument(param: Any) -> tuple[str, str]:
    return code(param.metavar or param.name.upper()), (param.help or "").replace("|", "\\|")


def _options_of(command: Any) -> str:
    mine = [p for p in command.params if not isinstance(p, TyperArgument) and not _is_setting(p) and not p.hidden]
    return _spaced(table(("option", "what it does"), map(_row, mine)))


def _row(param: Any) -> tuple[str, str]:
    metavar = f" {param.metavar}" if param.metavar else "" if param.is_flag else f" {param.type.name.upper()}"
    flags = [f"{flag}{metavar}" for flag in (*param.opts, *param.secondary_opts)]
    default = param.default
    shown = (
        default not in (None, "", False, True, []) and not callable(default) and "[default" not in (param.help or "")
    )
    text = (param.help or "") + (f" [default: {default}]" if shown else "")
    return ", ".join(map(code, flags)), text.replace("|", "\\|")
