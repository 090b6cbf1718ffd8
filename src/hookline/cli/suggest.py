"""``hookline suggest``: propose rules from recorded runs."""

from __future__ import annotations

import os
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .. import __version__
from ..config.errors import ConfigError
from ..config.sources import Configuration
from .errors import COMPLETED, SKIPPED, print_note, print_skipped, set_up_logging
from .explain import write_page
from .help import Command
from .names import RecordNames, named_records
from .options import AsJson, Since, with_settings
from .output import print_parts, print_table, write_json
from .text import counted, parse_since, printable, short

if TYPE_CHECKING:
    from ..suggest.report import Judged, Proposal, ProposedRule

EPILOG = """
Examples:
  hookline suggest --out rules.toml
  hookline suggest records/ --since 30d --at-most 3 --html report.html
  hookline suggest records/ --attacks red-team/ --out rules.toml

RECORDS are files and folders of records, tapes and Parquet files. Rules are learned from the earlier half of the runs,
chosen by a fifth after that, and judged by the latest runs. All of them are in shadow mode until you remove the line
shadow = true. No model and no tool is called.

Exit codes:
  0    at least one rule is proposed
  2    invalid input or setup, or too few runs
  5    no rule pays, or lines were skipped
"""

_EXCEPTIONS = 3
_LEFT_OUT = 8


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("suggest", cls=Command, epilog=EPILOG)(with_settings("debug")(suggest))


def suggest(
    config: Configuration,
    records: RecordNames = None,
    attacks: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RECORDS", help="Records with attacks: calls labelled as bad, or all if none is. Repeatable."
        ),
    ] = None,
    at_most: Annotated[
        str, typer.Option(metavar="LIMIT", help="How many calls the rules may interrupt: 3 (a day), or a share: 1%.")
    ] = "1%",
    then: Annotated[str, typer.Option(metavar="VERB", help="What the rules do later: ask or block.")] = "ask",
    support: Annotated[int, typer.Option(min=2, metavar="N", help="How often something must occur at least.")] = 5,
    since: Since = None,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Write the rules to a new file.")] = "",
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Write the report as one HTML file.")] = "",
    json: AsJson = False,
) -> int:
    """Propose rules from recorded runs, with what they would cost.

    Shown are the calls of later runs that the rules would interrupt, and the attacks that they would stop.
    """
    from ..suggest._propose import propose
    from ..suggest.page import proposal_page

    set_up_logging(config.settings.debug)
    if then not in ("ask", "block"):
        raise ConfigError(f"--then: expected ask or block; got {then!r}")
    if out and os.path.lexists(out):
        raise ConfigError(f"--out: {out} exists already, and may have been reviewed: choose another file")
    with ExitStack() as stack:
        paths = stack.enter_context(named_records(records, config))
        others = stack.enter_context(named_records(attacks, config)) if attacks else []
        proposal = propose(
            paths,
            attacks=others,
            at_most=at_most,
            since=parse_since(since),
            support=support,
            then="block" if then == "block" else "ask",
        )
    if out and proposal.rules:
        _write(out, proposal.toml)
    if html:
        about = {
            "Records": ", ".join(records or [config.settings.records]),
            "Attacks": ", ".join(attacks or ()),
            "Since": since or "",
            "Made": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}, Hookline {__version__}",
        }
        write_page(html, proposal_page(proposal, about={name: text for name, text in about.items() if text}))
    if json:
        write_json(proposal)
    else:
        _print(proposal)
    for note in proposal.notes:
        print_note(note)
    print_skipped(proposal.skipped)
    if out and proposal.rules:
        print_note(f"written: {out} ({counted(len(proposal.rules), 'rule')}, all in shadow mode)")
    return COMPLETED if proposal.rules and not proposal.skipped else SKIPPED


def _write(file: str, text: str) -> None:
    """Write the rules for their owner only, because examples are from records."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as made:
            made.write(text)
    except OSError as error:
        raise ConfigError(f"--out: {file} cannot be written: {error.strerror or error}") from error


def _print(proposal: Proposal) -> None:
    from ..suggest.report import headline

    later = proposal.later
    style = "bold green" if proposal.rules else "bold yellow"
    print_parts(
        Text(headline(proposal), style=style),
        Text(
            f"Learned from {counted(proposal.learned.runs, 'run')}, chosen by {proposal.chosen.runs:,}, judged by the "
            f"latest {later.runs:,}. {counted(proposal.calls, 'call')} in {proposal.seconds:.1f} s."
        ),
        Text(),
    )
    has_attacks = bool(proposal.judged.stopped.total)
    rows = [
        (f"{counted(len(proposal.rules), 'rule')}", *_figures(proposal.judged)),
        ("tool names alone", *_figures(proposal.allow_list)),
    ]
    columns = ("to compare", "interrupted", "95 % interval", "a day", "attacks stopped")
    print_table(columns, [row if has_attacks else (*row[:4], "unknown") for row in rows], right=columns[1:])
    if proposal.rules:
        print_parts(Text())
        print_table(
            ("rule", "usual", "seen", "interrupts", "stops"),
            [_row(each) for each in proposal.rules],
            keep=("rule",),
            right=("seen", "interrupts", "stops"),
        )
    for each in proposal.rules:
        if each.exceptions:
            lines = [
                Text(f"\n{counted(each.exception_count, 'exception')} of {printable(each.name, keep='')}", style="bold")
            ]
            lines += [
                Text(f"  {short(one.shown, 70)}  {printable(one.run_id, keep='')} #{one.n}")
                for one in each.exceptions[:_EXCEPTIONS]
            ]
            print_parts(*lines, soft_wrap=True)
    if proposal.left_out:
        print_parts(Text("\nLeft out", style="bold"))
        lines = [Text(f"  {printable(each.name, keep='')}: {each.left_out}") for each in proposal.left_out[:_LEFT_OUT]]
        if (more := len(proposal.left_out) - _LEFT_OUT) > 0:
            lines.append(Text(f"  and {more:,} more: --html or --json shows them", style="dim"))
        print_parts(*lines)


def _figures(judged: Judged) -> tuple[str, str, str, str]:
    from ..suggest.certainty import percent

    costs, stopped = judged.interrupted, judged.stopped
    interval = f"{percent(costs.low)} to {percent(costs.high)}" if costs.total else ""
    a_day = "" if judged.by_day is None else f"{judged.by_day:.2g}"
    return f"{costs.hits:,} of {costs.total:,}", interval, a_day, f"{stopped.hits:,} of {stopped.total:,}"


def _row(each: ProposedRule) -> tuple[object, ...]:
    costs, stopped = each.judged.interrupted, each.judged.stopped
    return (
        short(each.name, 34),
        short(each.what, 60),
        f"{each.calls:,}",
        f"{costs.hits:,} of {costs.total:,}",
        f"{stopped.hits:,}" if stopped.total else "",
    )
