"""``hookline skills``: list, review, accept and reject skills that agents have learned."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from ..config.sources import Configuration
from ..stores.errors import StoreError
from .errors import CANCELLED, COMPLETED, FAILED, print_error, set_up_logging
from .help import Command, Group
from .options import AsJson, with_settings
from .output import console, print_facts, print_parts, print_problems, print_table, short_path, state_text, write_json
from .terminal import Terminal
from .text import counted, printable, short

if TYPE_CHECKING:
    from pathlib import Path

    from .._kernel.state import AgentResult
    from ..config.settings import Settings
    from ..stores.skills import QueuedRun, Skill, SkillQueue, SkillStore


EPILOG = """
Examples:
  hookline run "Tidy my notes" --write --skills skills --hooks SkillEvolverHook
  hookline skills analyse
  hookline skills review
  hookline skills accept tidy-notes --as tidy-my-notes
  hookline skills list

A skill is a file NAME/SKILL.md in the skills folder, or a text in a database. Agents use a proposed skill only after
you have accepted it.
"""

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the skill.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group,
        rich_markup_mode=None,
        help="Show, review, accept or reject skills that agents have learned.",
        epilog=EPILOG,
    )
    few = with_settings("skills", "debug")
    for command in (list_skills, show_one, review, accept, reject):
        group.command(command.__name__.partition("_")[0], cls=Command)(few(command))
    group.command("analyse", cls=Command)(with_settings()(analyse))
    app.add_typer(group, name="skills")


def list_skills(
    config: Configuration,
    all: Annotated[bool, typer.Option("--all", help="Include rejected skills.")] = False,
    json: AsJson = False,
) -> int:
    """List skills, proposals, and the number of runs to analyse."""
    store, queue = open_stores(config.settings)
    accepted, proposed, rejected = (store.list(state) for state in ("accepted", "proposed", "rejected"))
    waiting = len(queue.ids())
    if json:
        shown = [*accepted, *proposed, *(rejected if all else ())]
        write_json({"skills": shown, "waiting": waiting, "problems": store.problems()})
        return COMPLETED
    rows = [
        (skill.name, state_text(skill.state), skill.date, short(skill.description, 200))
        for skill in (*proposed, *accepted, *(rejected if all else ()))
    ]
    if rows:
        print_table(("name", "state", "date", "what it is for"), rows, keep=("name", "state", "date"))
    else:
        typer.echo(f"No skills in {printable(short_path(store.place), keep='')}.")
    notes = []
    if proposed:
        notes.append(f"{counted(len(proposed), 'proposal')} to review: hookline skills review")
    if waiting:
        notes.append(f"{counted(waiting, 'run')} to analyse: hookline skills analyse")
    if rejected and not all:
        notes.append(f"{len(rejected)} rejected: --all shows them")
    if notes:
        typer.echo("\n" + "\n".join(notes))
    print_problems(store.problems())
    return COMPLETED


def show_one(
    config: Configuration,
    name: Name,
    raw: Annotated[bool, typer.Option("--raw", help="Print the unchanged file.")] = False,
) -> int:
    """Show a skill or a proposal."""
    store, _ = open_stores(config.settings)
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
    rename: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Accept it under another name.")] = None,
) -> int:
    """Accept a proposal. Agents can use the skill from their next run on."""
    store, _ = open_stores(config.settings)
    skill = store.accept(name, rename=rename)
    typer.echo(f"accepted: {printable(short_path(store.location(skill.name)), keep='')}")
    return COMPLETED


def reject(
    config: Configuration,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of the proposals.")],
) -> int:
    """Reject proposals. Rejected ones are kept and not proposed again; accept undoes it."""
    from ..stores.errors import StoreError

    store, _ = open_stores(config.settings)
    code = COMPLETED
    for name in names:
        try:
            typer.echo(f"rejected: {store.reject(name).name}")
        except StoreError as error:
            print_error(str(error))
            code = FAILED
    return code


def review(config: Configuration) -> int:
    """Review proposals one by one."""
    return review_all(*open_stores(config.settings))


def analyse(config: Configuration) -> int:
    """Let the model analyse recorded runs and propose skills, with one model call for each run."""
    return analyse_all(config, *open_stores(config.settings))


def open_stores(settings: Settings) -> tuple[SkillStore, SkillQueue]:
    """Open the skills and the queue of runs to analyse."""
    from ..stores.skills import skill_store_at

    store = skill_store_at(skills_folder(settings))
    return store, store.queue()


def skills_folder(settings: Settings) -> str:
    """Return the folder or database of skills: from the setting, from a declared hook, or ``skills``."""
    from ..config.settings import DeclaredHook

    if settings.skills:
        return settings.skills
    hooks = [hook for hook in settings.hooks if isinstance(hook, DeclaredHook)]
    named = [hook.args.get("folder") for hook in hooks if hook.use in ("SkillEvolverHook", "SkillsHook")]
    return next((folder for folder in named if isinstance(folder, str) and folder), "skills")


QUESTION = "accept / edit / reject / later / quit: "
MAX_TOKENS, MAX_SECONDS = 20_000, 300.0
"""Limits for the analysis of one run, if the settings have none."""

_MARKS = {"proposed": ("?", "yellow"), "unusable": ("·", "dim"), "nothing": ("·", "dim"), "failed": ("✗", "red")}


def review_all(store: SkillStore, queue: SkillQueue) -> int:
    """Ask about each proposal in turn."""
    proposals, waiting = store.list("proposed"), len(queue.ids())
    if waiting:
        typer.echo(f"{counted(waiting, 'run')} not analysed yet: hookline skills analyse\n")
    if not proposals:
        typer.echo("No proposals to review.")
        return COMPLETED
    terminal = Terminal.find() if sys.stdout.isatty() else None
    if terminal is None:
        for skill in proposals:
            typer.echo(f"{skill.name}: {short(skill.description, 200)}")
        typer.echo("\nThere is no terminal to ask at. For each proposal, use:")
        typer.echo("  hookline skills show NAME\n  hookline skills accept NAME\n  hookline skills reject NAME")
        return COMPLETED
    decided = {"accepted": 0, "rejected": 0}
    for number, skill in enumerate(proposals, 1):
        answer = _review_one(store, skill, terminal, f"{number} of {len(proposals)}")
        if answer == "quit":
            break
        if answer in decided:
            decided[answer] += 1
    left = len(store.list("proposed"))
    typer.echo(f"{decided['accepted']} accepted, {decided['rejected']} rejected, {left} left")
    return COMPLETED


def _review_one(store: SkillStore, skill: Skill, terminal: Terminal, position: str) -> str:
    """Show one proposal, and apply the user's decision."""
    with Draft() as draft:
        return _ask_and_apply(store, skill, terminal, position, draft)


def _ask_and_apply(store: SkillStore, skill: Skill, terminal: Terminal, position: str, draft: Draft) -> str:
    show_skill(skill, store, position)
    while True:
        answer = (asyncio.run(terminal.ask(QUESTION)) or "quit").lower()
        try:
            if answer in ("a", "accept", "y", "yes"):
                accepted = store.accept(skill.name)
                terminal.show(f"accepted: {accepted.name}\n\n")
                return "accepted"
            if answer in ("r", "reject", "n", "no"):
                store.reject(skill.name)
                terminal.show(f"rejected: {skill.name}\n\n")
                return "rejected"
            if answer in ("l", "later"):
                terminal.show("\n")
                return "later"
            if answer in ("q", "quit"):
                return "quit"
            if answer in ("e", "edit"):
                skill = store.revise(skill.name, draft.edited(store.raw(skill)))
                draft.drop()
                show_skill(skill, store, position)
            else:
                terminal.show("Type accept, edit, reject, later or quit.\n")
        except StoreError as error:
            kept = ". Your text is kept: type edit to continue" if draft.path is not None else ""
            terminal.show(f"{printable(str(error), keep='')}{kept}.\n")


class Draft:
    """The text that a person edits. If it could not be saved as a skill, the file stays, and its path is printed."""

    def __init__(self) -> None:
        self.path: Path | None = None

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        if self.path is not None:
            sys.stderr.write(f"your text is in {self.path}\n")

    def edited(self, text: str) -> str:
        """Open an editor with the text, or with the earlier draft, and return the edited text.

        Raises:
            StoreError: the editor cannot be started, or it failed.
        """
        import shlex
        import subprocess
        import tempfile
        from pathlib import Path

        default = "notepad" if sys.platform == "win32" else "vi"
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or default
        path = self.path
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="hookline-")) / "SKILL.md"
            path.write_text(text, encoding="utf-8")
        before, self.path = path.read_bytes(), path
        try:
            code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
        except (OSError, ValueError) as error:
            code, problem = None, f"the editor {editor!r} cannot be started ({error}): set EDITOR to another one"
        else:
            problem = f"the editor exited with code {code}: nothing was changed"
        if code == 0:
            return path.read_text(encoding="utf-8", errors="replace")
        if path.read_bytes() == before == text.encode():
            self.drop()
        raise StoreError(problem)

    def drop(self) -> None:
        """Delete the draft: the text is in the skills folder now."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            self.path.parent.rmdir()
            self.path = None


def show_skill(skill: Skill, store: SkillStore, position: str = "") -> None:
    """Print a skill: its origin, and the whole text that a model gets."""
    items = [
        ("for", skill.description),
        ("state", skill.state),
        ("file", short_path(store.location(skill.name, skill.state))),
        ("date", skill.date),
        ("from run", skill.source_run),
        ("with task", short(skill.source_task, 300)),
        ("with tools", ", ".join(skill.source_tools)),
    ]
    title = f"{skill.name}  ({position})" if position else skill.name
    print_facts(title, [(label, printable(text, keep="")) for label, text in items if text])
    lines = Text()
    for line in printable(skill.text).splitlines():
        lines.append(f"{line}\n", style="bold" if line.startswith("#") else "")
    print_parts(Text(""), Padding(lines, (0, 0, 0, 2)))


def analyse_all(config: Configuration, store: SkillStore, queue: SkillQueue) -> int:
    """Let the model analyse all queued runs."""
    from .._sensitive.redactor import Redactor
    from ..config.factory import approval_policy, build_agent
    from ..hooks._skill_analysis import analyse
    from .approval_prompt import Approver
    from .runner import finish_recording, start_recording
    from .views import choose_view
    from .weights import prepare_model

    settings = config.settings
    waiting = queue.ids()
    if not waiting:
        typer.echo("No runs to analyse.")
        return COMPLETED
    set_up_logging(settings.debug)
    recorders = start_recording(settings)
    paused = choose_view(silent=True).paused
    approver = Approver(settings.approvals, paused, settings.approval_file, approval_policy(settings))
    agent = build_agent(settings, home=config.home, hooks=[approver, *recorders], file=config.hooks_file)
    prepare_model(agent.model)
    failed, proposed, redactor = 0, 0, Redactor()
    for ident in waiting:
        outcome = analyse(store, queue, ident, lambda run, text: _ask_model(agent, settings, run, text), redactor)
        if outcome is not None and outcome.kind == "cancelled":
            finish_recording(recorders)
            return CANCELLED
        if outcome is not None:
            _print_outcome(outcome.kind, outcome.note)
            failed += outcome.kind == "failed"
            proposed += outcome.kind == "proposed"
    finish_recording(recorders)
    if proposed:
        typer.echo(f"\n{counted(proposed, 'proposal')} to review: hookline skills review")
    return FAILED if failed else COMPLETED


def _ask_model(agent: Any, settings: Settings, run: QueuedRun, text: str) -> AgentResult[Any]:
    """Let the agent's model analyse a run, under all hooks of the agent."""
    from .._run.budget import Budget, Limits
    from .._run.context import AgentContext
    from ..config.factory import halts_of
    from ..hooks._skill_analysis import analyst
    from .runner import run_once

    tokens, seconds = settings.max_tokens, settings.max_seconds
    limits = Limits(
        tokens=MAX_TOKENS if tokens is None else tokens,
        cost=settings.max_cost,
        seconds=MAX_SECONDS if seconds is None else seconds,
        soft=None,
    )
    sys.stderr.write(f"analysing: {short(run.task, 80)}\n")
    ctx = AgentContext(budget=Budget(limits), allowed_plugins=run.allowed_plugins, halts=halts_of(settings))
    outcome = run_once(analyst(agent.model, agent.hooks), text, ctx, [], settings.metadata)
    if outcome.failure is not None:
        raise outcome.failure
    return outcome.result


def _print_outcome(kind: str, note: str) -> None:

    mark, style = _MARKS[kind]
    text = f"proposed: {note}" if kind == "proposed" else note
    console().print(Text.assemble((f"{mark} ", style), printable(text, keep="")))
