"""``hookline skills``: what agents have learned, and what waits for a person to accept it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.sources import Configuration
from .exits import COMPLETED, FAILED
from .help import Command, Group
from .options import takes_settings
from .text import counted, printable, short

if TYPE_CHECKING:
    from ..config.settings import Settings
    from ..stores.skills import SkillQueue, SkillStore

EPILOG = """
Examples:
  hookline run "Tidy my notes" --write --skills skills --hooks SkillEvolverHook
  hookline skills analyse
  hookline skills review
  hookline skills accept tidy-notes --as tidy-my-notes
  hookline skills list

A skill is a file NAME/SKILL.md in the folder of skills. What a model proposes waits until you accept it.
"""

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the skill.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group, rich_markup_mode=None, help="Show, review, accept or reject what agents have learned.", epilog=EPILOG
    )
    few = takes_settings("skills", "debug")
    for command in (list_skills, show, review, accept, reject):
        group.command(command.__name__.removesuffix("_skills"), cls=Command)(few(command))
    group.command("analyse", cls=Command)(takes_settings()(analyse))
    app.add_typer(group, name="skills")


def list_skills(
    config: Configuration,
    all: Annotated[bool, typer.Option("--all", help="Also those that were rejected.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> int:
    """Show the skills, and what waits for you."""
    from .screen import nearby, problems, state, table, write_json

    store, queue = opened(config.settings)
    accepted, proposed, rejected = (store.list(state) for state in ("accepted", "proposed", "rejected"))
    waiting = len(queue.ids())
    if json:
        shown = [*accepted, *proposed, *(rejected if all else ())]
        write_json({"skills": shown, "waiting": waiting, "problems": store.problems()})
        return COMPLETED
    rows = [
        (skill.name, state(skill.state), skill.date, short(skill.description, 200))
        for skill in (*proposed, *accepted, *(rejected if all else ()))
    ]
    if rows:
        table(("name", "state", "date", "what it is for"), rows, keep=("name", "state", "date"))
    else:
        typer.echo(f"There are no skills in {printable(nearby(str(store.folder)), keep='')}.")
    notes = []
    if proposed:
        notes.append(f"{counted(len(proposed), 'proposal')} to review: hookline skills review")
    if waiting:
        notes.append(f"{counted(waiting, 'run')} to look at: hookline skills analyse")
    if rejected and not all:
        notes.append(f"{len(rejected)} rejected: --all shows them")
    if notes:
        typer.echo("\n" + "\n".join(notes))
    problems(store.problems())
    return COMPLETED


def show(
    config: Configuration,
    name: Name,
    raw: Annotated[bool, typer.Option("--raw", help="The file as it is.")] = False,
) -> int:
    """Show a skill or a proposal."""
    from .skill_review import show_skill

    store, _ = opened(config.settings)
    skill = store.find(name)
    if raw:
        text = store.raw(skill)
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    else:
        show_skill(skill, store)
    return COMPLETED


def accept(
    config: Configuration,
    name: Name,
    rename: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Call it something else.")] = None,
) -> int:
    """Make a skill of a proposal: agents may read it from their next run on."""
    from .screen import nearby

    store, _ = opened(config.settings)
    skill = store.accept(name, rename=rename)
    typer.echo(f"accepted: {printable(nearby(str(store.path(skill.name))), keep='')}")
    return COMPLETED


def reject(
    config: Configuration, names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Their names.")]
) -> int:
    """Say no to proposals. They are kept, and not proposed again; 'accept' takes one back."""
    from ..stores.errors import StoreError
    from .failures import say_error

    store, _ = opened(config.settings)
    code = COMPLETED
    for name in names:
        try:
            typer.echo(f"rejected: {store.reject(name).name}")
        except StoreError as error:
            say_error(str(error))
            code = FAILED
    return code


def review(config: Configuration) -> int:
    """Decide about proposals, one after another."""
    from .skill_review import review_all

    return review_all(*opened(config.settings))


def analyse(config: Configuration) -> int:
    """Have the model look at runs that wait, and propose skills. This costs a model call for each."""
    from .skill_review import analyse_all

    return analyse_all(config, *opened(config.settings))


def opened(settings: Settings) -> tuple[SkillStore, SkillQueue]:
    """The skills that settings name, and the runs that wait."""
    from ..stores.skills import SkillQueue, SkillStore

    folder = folder_of(settings)
    return SkillStore(folder), SkillQueue(folder)


def folder_of(settings: Settings) -> str:
    """The folder of skills: the setting's, that of a hook that is declared, or ``skills``."""
    from ..config.settings import DeclaredHook

    if settings.skills:
        return settings.skills
    hooks = [hook for hook in settings.hooks if isinstance(hook, DeclaredHook)]
    named = [hook.args.get("folder") for hook in hooks if hook.use in ("SkillEvolverHook", "SkillsHook")]
    return next((folder for folder in named if isinstance(folder, str) and folder), "skills")
