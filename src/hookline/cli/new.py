"""``hookline new``: a hook or a tool to start from, with a test that passes."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..kernel.errors import HooklineError
from .help import Command
from .templates import TEMPLATES

EPILOG = """
Examples:
  hookline new hook keep_files
  hookline new tool word_count --dir tools
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("new", cls=Command, epilog=EPILOG)(new)


def new(
    kind: Annotated[Literal["hook", "tool"], typer.Argument(metavar="hook|tool", help="What to write.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, a Python identifier.")],
    folder: Annotated[str, typer.Option("--dir", metavar="DIR", help="Where to write it.")] = ".",
) -> int:
    """Write NAME.py and test_NAME.py: a working hook or tool, and a test that passes."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise HooklineError(f"{name!r} is no Python identifier; how about {suggested(name)!r}?")
    code, test = TEMPLATES[kind]
    place = Path(folder)
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
    use = "--hooks" if kind == "hook" else "--tools"
    typer.echo(f"wrote {first}\nwrote {second}\n")
    typer.echo(f'try it:   hookline run "What is in this folder?" {use} {first}\ntest it:  pytest {second}')
    return 0


def suggested(name: str) -> str:
    """The nearest identifier."""
    made = re.sub(r"\W+", "_", name).strip("_").lower() or "my_hook"
    made = f"_{made}" if made[0].isdigit() else made
    return f"{made}_" if keyword.iskeyword(made) else made
