"""``hookline runs``: the runs of a project, and how to continue a durable one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..config.errors import ConfigError
from ..config.settings import KEYS
from ..config.sources import Configuration, Flag
from .errors import COMPLETED, FAILED, print_note
from .help import Command, ListingGroup
from .names import check_name, find_durable
from .options import AsJson, with_settings
from .output import print_problems, print_table, short_path, state_text, time_text, write_json
from .text import counted, printable, short

if TYPE_CHECKING:
    from .._run.journal import RunHead, StoredRun
    from .._run.session import Session
    from ..stores.runs import RunRecord, RunStore

EPILOG = """
The list has the runs of hookline run, chat, serve and gateway, of programs that record or store their runs in the same
database (Agent(..., runs=True)), of other frameworks and of coding agents; the column "from" says which. It is the list
of the console and of GET /runs. The task is shown if it is stored: that of a durable run, and of a server.

A run is durable with hookline run --durable. If its process ends, another one continues it from its
journal, with the options with which it was started.

Examples:
  hookline run "Pay the invoices" --durable --wait
  hookline approvals
  hookline runs --open
  hookline runs resume last
"""

OPEN = ("new", "running", "waiting", "interrupted")


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=ListingGroup,
        rich_markup_mode=None,
        help="List and delete runs; resume or unpin durable ones.",
        epilog=EPILOG,
    )
    group.command("list", cls=Command)(with_settings("runs", "database", "debug")(list_runs))
    group.command("resume", cls=Command)(with_settings(stored=_first_options)(resume))
    group.command("unpin", cls=Command)(with_settings("runs", "database", "debug")(unpin))
    group.command("delete", cls=Command)(with_settings("runs", "approval_file", "database", "debug")(delete))
    app.add_typer(group, name="runs")


Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the run, or the beginning of it; last is the newest.")]


def list_runs(
    config: Configuration,
    number: Annotated[int, typer.Option("-n", metavar="N", min=1, help="Number of runs.")] = 20,
    only_open: Annotated[
        bool, typer.Option("--open", help="Only durable runs that have not ended: those that can be resumed.")
    ] = False,
    json: AsJson = False,
) -> int:
    """List the runs of the project, newest first, without the runs inside them."""
    store = _store(config)
    found = [] if store is None else _listed(store, number, only_open=only_open)
    if json:
        write_json([run.to_dict() for run in found])
        return 0
    if not found:
        typer.echo("no run can be resumed" if only_open else f"no run is recorded{_where(config)} yet")
        return 0
    rows = [
        (
            run.id,
            time_text(run.created),
            state_text(run.status),
            run.agent,
            run.origin,
            f"{run.steps:,}",
            "" if run.cost is None else f"${run.cost:.4f}",
            short(printable(run.task, keep=""), 60),
        )
        for run in (each.run for each in found)
    ]
    heads = ("run", "began", "status", "agent", "from", "steps", "cost", "task")
    print_table(heads, rows, keep=("run", "began", "status"), right=("steps", "cost"))
    print_problems([run.problem for run in found if run.problem])
    return 0


class ListedRun(msgspec.Struct, frozen=True):
    """A run of the project, and its journal if it is durable."""

    run: RunRecord
    durable: StoredRun | None = None
    problem: str = ""
    """Why no process continues a durable run."""

    def to_dict(self) -> dict[str, object]:
        """Return the run for programs."""
        names = ("origin", "created", "status", "agent", "steps", "cost", "task")
        fields: dict[str, object] = {"run_id": self.run.id, **{name: getattr(self.run, name) for name in names}}
        fields |= {"problem": self.problem, "durable": self.durable is not None}
        if self.durable is not None:
            run = self.durable
            fields |= {"attempts": run.attempts, "changed": run.changed, "digest": run.digest}
        return fields


def _listed(store: RunStore, number: int, *, only_open: bool) -> list[ListedRun]:
    """Return the newest runs, or the newest durable runs that have not ended."""
    if only_open:
        ids = [run.run_id for run in store.journal.runs(*OPEN, limit=number, with_input=False)]
        found = sorted(filter(None, map(store.get, ids)), key=lambda run: (run.created, run.id), reverse=True)
    else:
        found = store.runs(number, outermost=True)
    problems = {run.run_id: run.problem for run in store.workers.pinned()}
    journals = ((run, store.journal.get(run.id)) for run in found)
    return [ListedRun(run, journal, problems.get(run.id) or _format_problem(journal)) for run, journal in journals]


def _where(config: Configuration) -> str:
    path = config.settings.runs
    return " (runs = none)" if path is None else f" in {short_path(path)}"


def resume(
    config: Configuration,
    run_id: Id,
    json: Annotated[bool, typer.Option("--json", help="Print events to stdout as JSON lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the reply.")] = False,
) -> int:
    """Continue a durable run where it was, or show the result of one that has ended.

    The options with which it was started are used again. Those that are given here win.
    """
    from .._run.journal import head_of
    from .output import print_reply
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


def _first_options(config: Configuration, given: Mapping[str, Any]) -> list[Flag]:
    """Return the options with which a durable run was started."""
    from .._run.journal import head_of

    _, run = _find(config, given["run_id"])
    stored = head_of(run).settings or {}
    return [Flag(key, KEYS[key].about.flag, value) for key, value in stored.items() if key in KEYS]


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
    """Delete a run with everything that is stored about it: numbers, facts, events, and its journal.

    Calls of the run that wait for approval are cancelled. Records, tapes and the audit log are files of their own, and
    stay.
    """
    check_name(run_id)
    store = _store(config)
    if store is None:
        raise ConfigError(f"there is no run {run_id!r}: no run is recorded{_where(config)} yet")
    run = store.find(run_id)
    durable = store.journal.get(run.id)
    if durable is not None:
        _check_not_served(store, durable)
    approvals = store.approvals
    is_asking = approvals is not None and approvals.db.exists()
    waiting = approvals.rows(status="pending", root_id=run.id) if approvals is not None and is_asking else []
    if not store.delete(run.id):
        raise ConfigError(f"run {run.id} is being executed: cancel it, or wait until its process has ended")
    cancelled = len(waiting)
    typer.echo(f"deleted {run.id}" + (f", and cancelled {counted(cancelled, 'approval')}" if cancelled else ""))
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
    from ..config.factory import run_store

    path = config.settings.runs
    if path is None:
        return None
    store = run_store(config.settings, path)
    return store if store.db.exists() else None


def _find(config: Configuration, run_id: str) -> tuple[RunStore, StoredRun]:
    """Return the store, and the run with this name.

    Raises:
        ConfigError: there is no such run, or more than one.
    """
    store = _store(config)
    run = find_durable(run_id, store)
    assert store is not None  # it has the run
    return store, run


def _format_problem(run: StoredRun | None) -> str:
    """Return why this version of Hookline cannot continue the run; empty if the format of its journal is no reason."""
    from .._run.journal import JournalFormatError

    try:
        if run is not None and not run.is_over:
            run.check_format()
    except JournalFormatError as error:
        return str(error)
    return ""
