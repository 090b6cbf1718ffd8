"""``hookline new``: a hook, a tool or a plugin to start from, with a test that passes; or a personality."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from .._kernel.errors import HooklineError
from .help import Command
from .templates import PERSONALITY, TEMPLATES

EPILOG = """
Examples:
  hookline new hook keep_files
  hookline new tool word_count --dir tools
  hookline new plugin word-watch
  hookline new personality critic
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("new", cls=Command, epilog=EPILOG)(new)


def new(
    kind: Annotated[
        Literal["hook", "tool", "plugin", "personality"],
        typer.Argument(metavar="hook|tool|plugin|personality", help="What to write."),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, a Python identifier; a plugin's id.")],
    folder: Annotated[
        str,
        typer.Option(
            "--dir",
            metavar="DIR",
            show_default=False,
            help="Where to write it; a plugin goes to plugins/, a personality to personalities/, if left out.",
        ),
    ] = "",
) -> int:
    """Write a hook, tool, plugin or personality to start from.

    A hook or tool is NAME.py with test_NAME.py, a test that passes; a plugin is a folder of its own; a personality is
    NAME.toml.
    """
    if kind == "personality":
        return new_personality(name, Path(folder or "personalities"))
    if kind == "plugin":
        from .new_plugin import write_plugin

        made = write_plugin(name, Path(folder or "plugins"))
        typer.echo(f"wrote {made}/: plugin.toml, a guard, a tool, a test and a README\n")
        typer.echo(f"look at it:    hookline plugins check {made}\ntest it:       pytest {made}")
        typer.echo(f"switch it on:  hookline plugins enable {name if not folder else made}")
        return 0
    if not name.isidentifier() or keyword.iskeyword(name):
        raise HooklineError(f"{name!r} is no Python identifier; how about {suggested(name)!r}?")
    taken = why_taken(name)
    if taken:
        raise HooklineError(f"{name!r} is {taken}; how about {f'my_{name}'.lower()!r}?")
    code, test = TEMPLATES[kind]
    place = Path(folder or ".")
    files = {place / f"{name}.py": code, place / f"test_{name}.py": test}
    for path in files:
        if path.exists():
            raise HooklineError(f"{path} is already there; nothing was written")
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text.replace("NAME", name))
    except OSError as error:
        raise HooklineError(f"cannot write to {place}: {error}") from error
    first, second = files
    typer.echo(f"wrote {first}\nwrote {second}\n\ntest it:     pytest {second}")
    if kind == "hook":
        typer.echo(f'look at it:  hookline hooks {first}\nuse it:      hookline run "TASK" --hooks {first}')
    else:
        typer.echo(f'try it:      hookline run "Count the words of: one two three" --tools {first}')
    return 0


def new_personality(name: str, folder: Path) -> int:
    """Write NAME.toml into a folder of personalities."""
    from ..teams.personalities import is_id

    if not is_id(name):
        raise HooklineError(f"{name!r} is no id: use letters, digits, - and _; how about {suggested(name)!r}?")
    path = folder / f"{name}.toml"
    if path.exists() or (folder / name).exists():
        raise HooklineError(f"{path if path.exists() else folder / name} is already there; nothing was written")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(PERSONALITY.replace("NAME", name))
    except OSError as error:
        raise HooklineError(f"cannot write to {folder}: {error}") from error
    typer.echo(f"wrote {path}\n\ntry it:   hookline chat --personalities {folder} --personality {name}")
    typer.echo(f'keep it:  personalities = "{folder.as_posix()}" in hookline.toml')
    return 0


def why_taken(name: str) -> str:
    """What else has this name, so that the file or the function would stand in its way; empty if nothing has."""
    from importlib.metadata import packages_distributions

    from .._base.lazy import exports

    module = "the name of a module that others import"
    if name == "hookline" or name in sys.stdlib_module_names:
        return module
    if hasattr(builtins, name):
        return "a name of Python's own"
    if name in exports("hookline"):
        return "a name of hookline's own"
    if any(name in _names_in(text) for texts in TEMPLATES.values() for text in texts):
        return "a name that the files need themselves"
    if name.startswith("test_"):
        return "what pytest takes for a test"
    return module if name in packages_distributions() else ""  # last: it reads about everything that is installed


def _names_in(code: str) -> set[str]:
    nodes = [vars(node) for node in ast.walk(ast.parse(code))]
    return {str(node[field]) for node in nodes for field in ("id", "name", "arg") if node.get(field)}


def suggested(name: str) -> str:
    """The nearest identifier."""
    made = re.sub(r"\W+", "_", name).strip("_").lower() or "my_hook"
    made = f"_{made}" if made[0].isdigit() else made
    return f"{made}_" if keyword.iskeyword(made) else made
