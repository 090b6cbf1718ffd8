"""``hookline stats``: what runs did, in numbers."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config.errors import ConfigError
from ..config.sources import Configuration
from .help import Command
from .options import takes_settings
from .times import seconds_of

if TYPE_CHECKING:
    from ..stores.runs import RunRecord, RunStore

EPILOG = """
Examples:
  hookline stats
  hookline stats --since 24h --model gpt-5-mini
  hookline stats --last 20
  hookline stats --run last
  hookline stats runs.db --json | jq .totals.cost
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("stats", cls=Command, epilog=EPILOG)(takes_settings("debug")(stats))


def stats(
    config: Configuration,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="The file that runs are recorded in; if left out, the setting runs."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only runs since then: 30m, 24h, 7d, 2w or a date.")
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this agent.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs that asked this model.")] = None,
    last: Annotated[int | None, typer.Option(metavar="N", min=1, help="Show the last N runs.")] = None,
    run: Annotated[
        str | None, typer.Option(metavar="ID", help="Show one run, call by call; the beginning of its id, or last.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> int:
    """Show what runs did: models, tools, hooks, tokens, cost and time."""
    from ..stores.run_statistics import run_stats
    from . import stats_views
    from .screen import write_json

    alone = [name for name, given in (("--last", last), ("--run", run)) if given is not None]
    if alone and (len(alone) > 1 or since or agent or model):
        raise ConfigError(f"{alone[0]} goes alone: leave out the other options that choose runs")
    begin = None if since is None else since_time(since)
    store = _store(file, config)
    if store is None:
        stats_views.show_nothing(file or config.settings.runs)
    elif run is not None:
        found = store.find(run)
        calls, verdicts = store.calls(found.id), store.verdicts(found.id)
        if json:
            write_json({"run": _without_texts(found), "calls": calls, "verdicts": verdicts})
        else:
            stats_views.show_run(found, calls, verdicts)
    elif last is not None:
        rows = store.runs(last)
        if json:
            write_json([_without_texts(row) for row in rows])
        else:
            stats_views.show_runs(rows, store.path)
    else:
        told = run_stats(store, since=begin, agent=agent, model=model)
        if json:
            write_json(told)
        else:
            stats_views.show_stats(told, store.path, chosen=bool(since or agent or model))
    return 0


def _store(file: str | None, config: Configuration) -> RunStore | None:
    """The runs; ``None`` if nothing has been recorded."""
    from ..stores.runs import RunStore

    path = file if file is not None else config.settings.runs
    if file is not None and not os.path.isfile(file):
        raise ConfigError(f"there is no file {file!r}: give one that runs are recorded in")
    return None if path is None or not os.path.exists(path) else RunStore(path)


def _without_texts(run: RunRecord) -> dict[str, Any]:
    """A run without its owner and its texts: statistics are names, numbers and times."""
    texts = ("id", "owner", "session", "task", "reply", "reason", "error")
    told = {name: getattr(run, name) for name in run.__struct_fields__ if name not in texts}
    return {"run_id": run.id, **told, "error": run.error_type}


def since_time(text: str, now: float | None = None) -> float:
    """The Unix time that ``24h``, ``7d`` or a date means.

    Raises:
        ConfigError: it means none.
    """
    ago = seconds_of(text)
    try:
        if ago is not None:
            return (time.time() if now is None else now) - ago
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(f"--since: expected 30m, 24h, 7d, 2w or a date such as 2026-11-01; got {text!r}") from error
