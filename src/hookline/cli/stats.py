"""``hookline stats``: statistics about recorded runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from .._base.text import duration_text, stop_text
from ..config.errors import ConfigError
from ..config.sources import Configuration
from ..explain.words import gate_of, verb_words
from ..stores.run_statistics import RunStats, RunTotals
from ..stores.runs import CallRow, RunRecord
from ..stores.verdicts import Verdict
from .halt import halt_text
from .help import Command
from .hook_line import is_ascii, sign, style_of
from .names import check_name, run_in_list
from .options import AsJson, Since, with_settings
from .output import console, print_parts, print_table, short_path, time_text, write_json
from .text import counted, parse_since, printable, short

if TYPE_CHECKING:
    from ..config.settings import Settings
    from ..stores.runs import RunRecord, RunStore
    from ..stores.spending import Account


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
    app.command("stats", cls=Command, epilog=EPILOG)(
        with_settings("records", "runs", "spending_file", "database", "debug")(stats)
    )


def stats(
    config: Configuration,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="File with recorded runs, short for --runs FILE. [default: the setting runs]"
        ),
    ] = None,
    since: Since = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this agent.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs that called this model.")] = None,
    last: Annotated[int | None, typer.Option(metavar="N", min=1, help="Show the last N runs of the list.")] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Show the calls of one run: its id or the beginning of it, last, or a file or folder."
        ),
    ] = None,
    json: AsJson = False,
) -> int:
    """Show statistics of runs: models, tools, hooks, tokens, cost and time."""
    from ..stores.run_statistics import run_stats
    from ..stores.runs import RunStore

    alone = [name for name, given in (("--last", last), ("--run", run)) if given is not None]
    if alone and (len(alone) > 1 or since or agent or model):
        raise ConfigError(f"{alone[0]} cannot be combined with other options that select runs")
    if run is not None:
        check_name(run)
    begin = parse_since(since)
    store = _open_store(file, config)
    if store is None and json:
        store = RunStore(":memory:")
    if store is None:
        show_nothing(file or config.settings.runs)
    elif run is not None:
        found = run_in_list(run, store, config)
        calls, verdicts = store.calls(found.id), store.verdicts(found.id)
        if json:
            write_json({"run": _without_texts(found), "calls": calls, "verdicts": verdicts})
        else:
            messages = [fact.reason for fact in store.facts(found.id) if fact.kind == "run"]
            show_run(found, calls, verdicts, found.reason or stop_text(found.stop, "".join(messages[-1:])))
    elif last is not None:
        rows = store.runs(last, outermost=True)
        if json:
            write_json([_without_texts(row) for row in rows])
        else:
            show_runs(rows, store.path)
    else:
        totals = run_stats(store, since=begin, agent=agent, model=model)
        if json:
            write_json(totals)
        else:
            if (halt := store.halts.current()) is not None:
                print_parts(Text(halt_text(halt, store.path), style="bold red"))
            show_stats(totals, store.path, chosen=bool(since or agent or model))
            if not (file or since or agent or model):
                _show_spending(config.settings)
    return 0


def _show_spending(settings: Settings) -> None:
    from ..stores.spending import SpendingStore
    from .spending import show_accounts, spending_places

    found: list[Account] = []
    for place in spending_places(settings):
        store = SpendingStore(place)
        found += store.accounts(limit=_MAX_ROWS)
        store.close()
    if found:
        show_accounts(found[:_MAX_ROWS], "Spending limits")
        if len(found) >= _MAX_ROWS:
            print_parts(Text("hookline spending shows all", style="dim"))


def _open_store(file: str | None, config: Configuration) -> RunStore | None:
    """Open the store of runs; ``None`` if nothing has been recorded."""
    from ..stores.paths import is_database_url
    from ..stores.runs import RunStore

    if file is not None and "runs" in config.given:
        raise ConfigError("FILE and --runs both name the runs: leave one of them out")
    path = file if file is not None else config.settings.runs
    if file is not None and not os.path.isfile(file) and not is_database_url(file):
        raise ConfigError(f"no such file: {file!r}")
    store = None if path is None else RunStore(path)
    return store if store is not None and store.db.exists() else None


def _without_texts(run: RunRecord) -> dict[str, Any]:
    """Return a run without its owner and its texts: statistics hold names, numbers and times only."""
    texts = ("id", "owner", "session", "task", "reply", "reason", "error")
    fields = {name: getattr(run, name) for name in run.__struct_fields__ if name not in texts}
    return {"run_id": run.id, **fields, "error": run.error_type}


_SPARK_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"
Cells = Sequence[str | Text]

_UNBROKEN = ("", "call", "run", "began", "status", "verb", "last")
_MAX_ROWS = 10
"""Maximum number of reasons and errors shown."""
_BAR = 60
"""Maximum width of the bars that show the calls of a run."""
_WIDTHS = {3600: "hour", 86400: "day", 7 * 86400: "week", 28 * 86400: "four weeks", 364 * 86400: "year"}


def show_nothing(path: str | None) -> None:
    """Explain how runs are recorded."""
    where = "Recording is off (runs = none)." if path is None else f"No runs recorded in {short_path(path)} yet."
    print_parts(
        Text(printable(where, keep="")),
        Text("hookline run and hookline chat record names, numbers and times of each run there, but no texts."),
        Text('In a program: Agent(..., runs="runs.db"), then: hookline stats runs.db'),
    )


def show_stats(stats: RunStats, path: str, *, chosen: bool) -> None:
    """Print totals, a timeline, and tables of models, tools, hooks, approvals and errors."""
    totals = stats.totals
    if not totals.runs:
        if chosen:
            print_parts(
                Text("No runs match."),
                Text(f"Show all runs: hookline stats {short_path(path)}", style="dim"),
            )
        else:
            show_nothing(path)
        return
    _show_totals(totals, path)
    _show_timeline(stats)
    names = ("model", "calls", "errors", "in", "cached", "out", "cost", "p50", "p95")
    models = [
        (
            m.model,
            _number(m.calls),
            _number(m.errors, "red"),
            _number(m.input_tokens),
            _number(m.cached_tokens),
            _number(m.output_tokens),
            _cost(m.cost, m.unpriced, m.calls),
            _span(m.p50),
            _span(m.p95),
        )
        for m in stats.models
    ]
    _table("Models", names, models)
    names = ("tool", "calls", "ok", "error", "blocked", "answered", "cancelled", "p50", "p95")
    tools: list[Cells] = [
        (
            t.tool,
            _number(t.calls),
            *(_number(t.outcomes.get(name, 0), style_of(name).replace("dim", "")) for name in names[2:7]),
            _span(t.p50),
            _span(t.p95),
        )
        for t in stats.tools
    ]
    _table("Tools", names, tools)
    is_shadowed = any(h.shadow for h in stats.hooks)
    verdicts: list[Cells] = [
        (
            h.hook,
            _verbs(h.verbs),
            *([_verbs(h.shadow)] if is_shadowed else ()),
            _span(None if h.p50 is None else h.seconds),  # facts of earlier versions have no durations
            _share(None if h.p50 is None else h.share),
            _span(h.p50),
            _span(h.p95),
        )
        for h in stats.hooks
    ]
    shadowed = ("would have",) if is_shadowed else ()
    _table("Hooks", ("hook", "verdicts", *shadowed, "time", "share", "p50", "p95"), verdicts)
    why = [
        (
            _number(r.count),
            r.hook or "none",
            _verb("denied" if r.verb == "claim" else r.verb),
            short(r.tool or r.point, 24),
            short(r.reason, 60),
            _when(r.last),
        )
        for r in stats.refusals
    ]
    _table("Blocked by hooks", ("times", "hook", "verb", "what", "reason", "last"), why, most=_MAX_ROWS)
    asked = [(a.tool, _counts(a.decisions), _span(a.p50), _span(a.p95)) for a in stats.approvals]
    _table("Approvals", ("tool", "decided", "p50", "p95"), asked)
    errors = [(_number(e.count), e.type, e.place, e.source, _when(e.last)) for e in stats.errors if e.type != "Blocked"]
    _table("Errors", ("times", "error", "in", "name", "last"), errors, most=_MAX_ROWS)


def show_runs(rows: Sequence[RunRecord], path: str) -> None:
    """Print a line for each run."""
    if not rows:
        show_nothing(path)
        return
    names = ("began", "run", "agent", "status", "steps", "tools", "tokens", "cost", "took")
    lines = [
        (
            _when(r.started or r.created),
            _short_id(r.id),
            _on_one_line(r.agent),
            _styled(r.status),
            _number(r.steps),
            _number(r.tool_calls),
            _number(_tokens(r)),
            _cost(r.cost, r.cost is None, r.ended is not None or r.steps),
            _span(r.elapsed),
        )
        for r in rows
    ]
    _table("", names, lines)


def show_run(run: RunRecord, calls: Sequence[CallRow], verdicts: Sequence[Verdict], stopped: str) -> None:
    """Print one run: why it ended, its calls as bars on a time line, and the verdicts of hooks."""
    out = console()
    began = run.started or run.created
    why = run.error_type or (printable(stopped, keep="") if run.stop != run.status else "")
    head = Text.assemble((run.id, "bold"), "  ", _styled(run.status), f" ({why})" if why else "")
    facts = [
        f"agent {run.agent}" if run.agent else "",
        _when(began),
        counted(run.steps, "step"),
        counted(run.tool_calls, "tool call"),
        counted(_tokens(run), "token"),
        "" if run.cost is None else f"${run.cost:.4f}",
        "" if run.elapsed is None else duration_text(run.elapsed),
    ]
    ids = [
        f"{label} {printable(value, keep='')}"
        for label, value in (("task", run.task_id), ("session", run.session_id), ("inside", run.parent_run_id))
        if value and value != run.id
    ]
    print_parts(
        head,
        Text(printable(" · ".join(filter(None, facts)), keep="")),
        *([Text(" · ".join(ids), style="dim")] * bool(ids)),
    )
    if calls:
        end = max([run.ended or 0.0, *(call.began + call.duration for call in calls)])
        start = min(began, calls[0].began)
        names = [short(call.name if call.run_id == run.id else f"{call.agent}: {call.name}", 32) for call in calls]
        width = max(10, min(_BAR, out.width - max(map(len, names)) - 44))
        rows = [
            (
                _span(max(0.0, call.began - began)),
                Text(name),
                _bar(call, start, end, width),
                _span(call.duration),
                _outcome(call),
                counted(call.tokens, "token") if call.tokens else "",
            )
            for call, name in zip(calls, names, strict=True)
        ]
        _table("Calls", ("at", "call", "", "took", "outcome", "used"), rows)
    lines = [
        (_span(max(0.0, v.at - began)), v.hook or v.by, _verb(v.verb), v.point, short(v.reason or v.error, 60))
        for v in verdicts
        if v.verb != "cont"
    ]
    _table("Verdicts", ("at", "by", "verb", "point", "reason"), lines)


def spark(values: Sequence[int]) -> str:
    """Return numbers as a row of blocks; zero is a dot."""
    most = max(values, default=0)
    return "".join(_SPARK_LEVELS[-(-value * (len(_SPARK_LEVELS) - 1) // most)] if value else "·" for value in values)


def _show_totals(totals: RunTotals, path: str) -> None:
    began = f", since {_when(totals.first)}" if totals.first is not None else ""
    cached = f" ({totals.cached_tokens:,} cached)" if totals.cached_tokens else ""
    unpriced = f" and {counted(totals.unpriced, 'call')} of unknown price" if totals.unpriced else ""
    took = (
        ""
        if totals.p50 is None or totals.p95 is None
        else f"p50 {duration_text(totals.p50)}, p95 {duration_text(totals.p95)} a run"
    )
    rows: list[tuple[str, str | Text]] = [
        ("runs", _counts(totals.statuses)),
        ("calls", f"{counted(totals.model_calls, 'model call')}, {counted(totals.tool_calls, 'tool call')}"),
        ("tokens", f"{totals.input_tokens:,} in{cached}, {totals.output_tokens:,} out"),
        ("cost", f"${totals.cost:,.4f}{unpriced}"),
        ("time", took),
        ("lost", Text(f"{counted(totals.lost, 'record')} could not be written", style="red") if totals.lost else ""),
    ]
    heading = Text.assemble((counted(totals.runs, "run"), "bold"), (f" in {short_path(path)}{began}", "dim"))
    lines = [Text.assemble((f"  {name:<8}", "dim"), text) for name, text in rows if text]
    print_parts(heading, *lines)


def _show_timeline(stats: RunStats) -> None:
    bars = stats.timeline[-max(10, min(_BAR, console().width - 30)) :]
    if len(bars) < 2:
        return
    runs, tokens = [bar.runs for bar in bars], [bar.tokens for bar in bars]
    lines = [
        Text.assemble((f"  {name:<8}", "dim"), (spark(values), style), (f"  max {max(values):,}", "dim"))
        for name, values, style in (("runs", runs, ""), ("tokens", tokens, ""))
    ]
    each = _WIDTHS.get(int(stats.width), duration_text(stats.width))
    print_parts(Text(f"\nSince {_when(bars[0].began)}, one block per {each}", style="bold"), *lines)


def _table(title: str, names: Sequence[str], rows: Sequence[Cells], most: int | None = None) -> None:
    if not rows:
        return
    numbers = [name for name, cell in zip(names, rows[0], strict=True) if isinstance(cell, Text) and cell.justify]
    print_table(names, rows[:most], title=title, keep=_UNBROKEN, right=numbers)
    if most is not None and len(rows) > most:
        print_parts(Text(f"and {len(rows) - most:,} more: hookline stats --json shows all", style="dim"))


def _on_one_line(name: str) -> Text:
    """Return a name that is shortened, not wrapped, if it is too long."""
    return Text(printable(name, keep=""), no_wrap=True, overflow="ellipsis")


def _bar(call: CallRow, start: float, end: float, width: int) -> Text:
    """Return a bar for the time of a call within the time of the run."""
    scale = width / max(end - start, 1e-9)
    left, length = (call.began - start) * scale, call.duration * scale
    blanks = min(int(left), width - 1)
    full, part = divmod(max(1, round((left - blanks + length) * 8)), 8)
    blocks = ("█" * full + _EIGHTHS[part].strip())[: width - blanks]
    style = _call_style(call)
    return Text(" " * blanks) + Text(blocks or "▏", style=style) + Text(" " * (width - blanks - len(blocks or "▏")))


def _outcome(call: CallRow) -> Text:
    attempt = f", attempt {call.attempt}" if call.attempt > 1 else ""
    purpose = f" ({call.purpose})" if call.purpose not in ("", "step") else ""
    return Text(printable(call.outcome, keep=""), style=_call_style(call).replace("dim", "")) + Text(attempt + purpose)


def _call_style(call: CallRow) -> str:
    """Return the colour of a call. The outcome of a model call is why it finished, or an error."""
    if call.kind == "model":
        return "red" if call.outcome == "error" else ""
    return style_of(call.outcome)


def _counts(counts: Mapping[str, int]) -> Text:
    parts = [_styled(name, f" {count:,}") for name, count in sorted(counts.items(), key=lambda item: -item[1])]
    return Text(" · ").join(parts)


def _styled(word: str, more: str = "") -> Text:
    """Return a status, an outcome or a decision in its colour. What went well has none."""
    style = style_of(word)
    return Text(printable(word, keep=""), style="" if style == "dim" else style) + Text(more)


def _verb(verb: str, more: str = "") -> Text:
    """Return what a hook did, with its sign and in its colour."""
    mark = sign(gate_of(verb), ascii=is_ascii(sys.stdout))
    return Text.assemble(mark, " ", (printable(verb_words(verb)[0], keep=""), mark[1].replace("dim", "")), more)


def _verbs(counts: Mapping[str, int]) -> Text:
    """Return what a hook did how often, the most frequent first."""
    parts = [_verb(verb, f" {count:,}") for verb, count in sorted(counts.items(), key=lambda item: -item[1])]
    return Text(" · ").join(parts)


def _number(value: int | None, style: str = "") -> Text:
    return Text("" if value is None else f"{value:,}", style=style if value else "dim", justify="right")


def _span(seconds: float | None) -> Text:
    return Text("" if seconds is None else duration_text(seconds), justify="right")


def _share(share: float | None) -> Text:
    return Text("" if share is None else f"{share:.1%}", justify="right")


def _cost(cost: float | None, unpriced: int, calls: int) -> Text:
    """Return a cost; a ``+`` marks calls of unknown price."""
    if not calls:
        return Text("", justify="right")
    if unpriced and not cost:
        return Text("unknown", style="dim", justify="right")
    return Text(f"${cost or 0.0:,.4f}{'+' if unpriced else ''}", justify="right")


def _tokens(run: RunRecord) -> int:
    return run.input_tokens + run.output_tokens


def _short_id(run_id: str) -> str:
    return run_id[:12]


def _when(at: float | None) -> str:
    return "" if at is None else time_text(at)
