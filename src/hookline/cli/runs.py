"""``hookline runs``: durable runs, and how to continue one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..config.errors import ConfigError
from ..config.sources import Configuration
from .errors import COMPLETED, FAILED, print_note
from .help import Command, ListingGroup
from .options import AsJson, with_settings
from .output import print_problems, print_table, state_text, time_text, write_json
from .text import printable, short

if TYPE_CHECKING:
    from .._run.journal import RunHead, StoredRun
    from .._run.session import Session
    from ..stores.runs import RunStore

EPILOG = """
A run is durable with hookline run --durable. If its process ends, another one continues it from its
journal. Use the options with which it was started.

Examples:
  hookline run "Pay the invoices" --durable --wait
  hookline approvals
  hookline runs
  hookline runs resume last
"""

OPEN = ("new", "running", "waiting", "interrupted")


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=ListingGroup, rich_markup_mode=None, help="List, resume, unpin or delete durable runs.", epilog=EPILOG
    )
    group.command("list", cls=Command)(with_settings("runs", "database", "debug")(list_runs))
    group.command("resume", cls=Command)(with_settings()(resume))
    group.command("unpin", cls=Command)(with_settings("runs", "database", "debug")(unpin))
    group.command("delete", cls=Command)(with_settings("runs", "database", "debug")(delete))
    app.add_typer(group, name="runs")


Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the run, or the beginning of it; last is the newest.")]


def list_runs(
    config: Configuration,
    all_runs: Annotated[bool, typer.Option("--all", "-a", help="Also runs that have ended.")] = False,
    json: AsJson = False,
) -> int:
    """List durable runs that have not ended, those that changed last first."""
    from .._run.journal import head_of

    store = _store(config)
    found = [] if store is None else store.journal.runs(*(() if all_runs else OPEN), limit=1000)
    problems = {} if store is None else {run.run_id: run.problem for run in store.workers.pinned()}
    problems |= {run.run_id: problem for run in found if (problem := _format_problem(run))}
    if json:
        write_json([_view(store, run, problems.get(run.run_id, "")) for run in found if store is not None])
        return 0
    if store is None or not found:
        typer.echo("no durable runs" if all_runs else "no durable run is open: --all shows those that have ended")
        return 0
    rows = [
        (
            run.run_id,
            state_text(_status(store, run)),
            time_text(run.changed),
            short(printable(head_of(run).task, keep=""), 60),
        )
        for run in found
    ]
    print_table(("run", "status", "changed", "task"), rows, keep=("run", "status", "changed"))
    print_problems(list(problems.values()))
    return 0


def resume(
    config: Configuration,
    run_id: Id,
    json: Annotated[bool, typer.Option("--json", help="Print events to stdout as JSON lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the reply.")] = False,
) -> int:
    """Continue a durable run where it was, or show the result of one that has ended."""
    from .._run.journal import head_of
    from .rendering import print_reply
    from .run import RunJob, execute

    store, run = _find(config, run_id)
    _check_not_served(store, run)
    served = store.get(run.run_id)
    if served is not None and served.is_durable:
        print_reply(served.reply)
        print_note(f"run {run.run_id} of a server has ended: {served.error or served.reason or served.status}")
        return COMPLETED if served.status == "completed" else FAILED
    head = head_of(run)
    name = None if head.ids.session_id.startswith("session_") else head.ids.session_id
    conversation = _conversation(config, name, head)
    job = RunJob(head.task, (), conversation, name, store=store, run_id=run.run_id)
    return execute(config, job, json=json, quiet=quiet)


def unpin(config: Configuration, run_id: Id) -> int:
    """Let workers with other hooks, instructions or tools than those of its start continue a run of a server.

    The run fails if it went differently with them so far. What they decide differently from here on is not noticed.
    """
    store, run = _find(config, run_id)
    if run.is_over or not run.digest:
        raise ConfigError(
            f"run {run.run_id} is not pinned: {'it has ended' if run.is_over else 'no worker has begun it'}"
        )
    run.check_format()
    if not store.journal.unpin(run.run_id):
        raise ConfigError(f"run {run.run_id} is being executed: a worker has its hooks, instructions and tools")
    typer.echo(f"unpinned {run.run_id}: any worker may continue it")
    return 0


def delete(config: Configuration, run_id: Id) -> int:
    """Delete a durable run with its journal and its events."""
    store, run = _find(config, run_id)
    _check_not_served(store, run)
    if not store.journal.delete(run.run_id):
        raise ConfigError(f"run {run.run_id} is being executed: cancel it, or wait until its process has ended")
    typer.echo(f"deleted {run.run_id}")
    return 0


def _check_not_served(store: RunStore, run: StoredRun) -> None:
    """Raise an error if the run is an unfinished run of a server or a gateway."""
    from ..channels.durable import is_of_gateway

    served = store.get(run.run_id)
    if served is not None and served.is_durable and not served.is_over:
        raise ConfigError(
            f"run {run.run_id} belongs to a server: hookline serve --durable or hookline worker continues it, and the "
            "API of the server cancels it"
        )
    if is_of_gateway(run) and not run.is_over:
        raise ConfigError(
            f"run {run.run_id} belongs to a gateway: hookline gateway --durable continues it, and /stop in its "
            "conversation cancels it"
        )


def _conversation(config: Configuration, name: str | None, head: RunHead) -> Session:
    from .._run.session import Session
    from .runner import session_store

    saved = None if name is None else session_store(config.settings.sessions).load(name)
    return saved or Session(
        head.ids.session_id,
        head.messages,
        personality_id=head.personality,
        personality_changes=head.personality_changes or {},
        handed_over_by=head.handed_over_by,
    )


def _store(config: Configuration) -> RunStore | None:
    """Open the store of runs; ``None`` if it does not exist."""
    from ..stores.runs import RunStore

    path = config.settings.runs
    if path is None:
        return None
    store = RunStore(path)
    return store if store.db.exists() else None


def _find(config: Configuration, run_id: str) -> tuple[RunStore, StoredRun]:
    """Return the run with this id or an unambiguous beginning of it.

    Raises:
        ConfigError: there is no such run, or more than one.
    """
    store = _store(config)
    chosen: list[StoredRun] = []
    if store is not None and run_id == "last":
        chosen = store.journal.newest()
    elif store is not None:
        begins = run_id.removeprefix("run_")
        exact = store.journal.get(run_id)
        chosen = [exact] if exact is not None else store.journal.find(begins, f"run_{begins}")
    if run_id == "last" and not chosen:
        raise ConfigError("there is no durable run: hookline run TASK --durable starts one")
    if store is None or not chosen:
        raise ConfigError(f"there is no durable run {run_id!r:.80}: hookline runs list --all shows their ids")
    if len(chosen) > 1:
        raise ConfigError(f"more than one run begins with {run_id!r:.80}: give more of its id")
    return store, chosen[0]


def _status(store: RunStore, run: StoredRun) -> str:
    """Return the status now: a run whose process has ended, or whose lease has expired, is interrupted."""
    if run.status not in ("new", "running") or store.journal.is_held(run):
        return run.status
    return "interrupted"


def _format_problem(run: StoredRun) -> str:
    """Return why this version of Hookline cannot continue the run; empty if the format of its journal is no reason."""
    from .._run.journal import JournalFormatError

    try:
        if not run.is_over:
            run.check_format()
    except JournalFormatError as error:
        return str(error)
    return ""


def _view(store: RunStore, run: StoredRun, problem: str) -> dict[str, object]:
    from .._run.journal import head_of

    return {
        "run_id": run.run_id,
        "agent": run.agent,
        "status": _status(store, run),
        "attempts": run.attempts,
        "created": run.created,
        "changed": run.changed,
        "task": head_of(run).task,
        "digest": run.digest,
        "problem": problem,
    }
