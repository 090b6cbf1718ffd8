"""Propose rules from recorded runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .._base.frozen import plain
from .._base.text import shorten
from ..backtest._backtest import labels_beside, open_source
from ..backtest.sources import Source
from ..hooks._rules.file import Example
from .calls import Call, Calls, Run
from .choosing import Judge, Ranked, Sample, attacks_of, halves, part_of, ranked
from .errors import SuggestError
from .learning import Candidate, learn
from .report import CurvePoint, Judged, Proposal, ProposedRule, RecordedCall, Verb
from .use import uses_of
from .writing import can_write, rules_toml

Records = Iterable[str | os.PathLike[str]] | str | os.PathLike[str] | Source

MIN_RUNS = 10
LEARN, CHOOSE = 0.5, 0.7
"""Rules are learned from the first half of the runs, chosen by those up to this share, and judged by the rest."""
EXCEPTIONS = 5
_SHOWN = 120
_EXAMPLE = 300
"""Characters up to which a call becomes an example."""
_MAX_HISTORY = 12


def propose(
    records: Records,
    *,
    attacks: Records = (),
    at_most: str | float = "1%",
    since: float | None = None,
    support: int = 5,
    then: Verb = "ask",
) -> Proposal:
    """Return rules that recorded runs suggest, with what they would have cost and stopped.

    Rules are learned from the earlier half of the runs, chosen by a fifth after that, and judged by the latest runs. A
    call that a hook or a person refused, or that is labelled as bad, is not learned from. Bad calls are the attacks:
    those of a run and its nested runs are one attack, which counts as stopped if one of its calls is.

    Args:
        records: files and folders of records, tapes and Parquet files.
        attacks: further records with attacks: the calls in them that are labelled as bad, or all if none is.
        at_most: how many calls the rules may interrupt, where they are chosen: a number a day, or a share of the calls
            such as ``"1%"``.
        since: leave out runs that started before this Unix time.
        support: how often something must occur at least.
        then: what the rules do once they are not in shadow mode any more.

    Raises:
        SuggestError: there are too few runs, or an option is invalid.
        BacktestError: there are no records.
        RecordError: a record does not exist.
        NotInstalledError: the library for CEL is missing.

    Example::

        proposal = propose("records/", at_most=3)
        Path("rules.toml").write_text(proposal.toml)
    """
    began = time.perf_counter()
    limit = _limit(at_most)
    read = _read(records, since)
    good = [call for call in read.calls if call.has_run and not call.is_bad]
    learned, chosen, later = _parts(good)
    part_of_run = {call.run.tree: number for number, part in enumerate((learned, chosen, later)) for call in part}
    earlier_attacks: list[list[Call]] = []
    later_attacks: list[list[Call]] = []
    for calls in attacks_of(read.calls):
        is_later = part_of_run.get(calls[0].run.tree, 2 if calls[0].time > later[0].time else 1) == 2
        (later_attacks if is_later else earlier_attacks).append(calls)
    more = None if isinstance(attacks, (tuple, list)) and not attacks else _read(attacks, None)
    if more is not None:
        _mark(more.calls)
        given = halves(attacks_of(more.calls))
        earlier_attacks += given[0]
        later_attacks += given[1]
    samples = Sample(chosen, earlier_attacks), Sample(later, later_attacks)
    order, refused = ranked([Judge(candidate, then) for candidate in learn(learned, support)], samples[0])
    curve, sets = _curve(order, samples)
    count = _within(curve, limit)
    proposed = [_proposed(each, learned, samples) for each in order[:count]]
    for each in order[count:]:
        each.why_not = f"with it, the rules would interrupt more than {_limit_text(at_most)}"
    left_out = [_proposed(each, learned, samples) for each in (*order[count:], *refused)]
    names = next((each for each in (*order, *refused) if each.judge.candidate.kind == "tools"), None)
    allow_list = Judged() if names is None else _judged(names, samples[1])
    runs = len({call.run.tree for call in read.calls})
    notes = []
    if more is not None and not more.calls:
        notes.append("the records of attacks contain no calls")
    if not samples[1].attacks:
        notes.append("no later call is labelled as bad, so what the rules stop is not known: name records of attacks")
    if not later[-1].time:
        notes.append("the records have no times, so their order in the files is taken as the order in time")
    proposal = Proposal(
        tuple(proposed),
        tuple(left_out),
        sets[count],
        allow_list,
        tuple(curve),
        _limit_text(at_most),
        part_of(learned),
        samples[0].part,
        samples[1].part,
        uses_of(read.calls),
        runs,
        len(read.calls),
        read.moments,
        read.files,
        0.0,
        (*read.skipped, *(more.skipped if more else ())),
        tuple(notes),
    )
    return proposal.replace(
        toml=rules_toml(proposal) if proposed else "", seconds=round(time.perf_counter() - began, 3)
    )


def _read(records: Records, since: float | None) -> Calls:
    if not isinstance(records, (str, os.PathLike)) and not callable(getattr(records, "blocks", None)):
        records = list(records)  # type: ignore[arg-type]
    labels, _ = labels_beside(records)
    return Calls(open_source(records, since), labels, since or 0.0)


def _parts(calls: Sequence[Call]) -> tuple[list[Call], list[Call], list[Call]]:
    """Return the calls of the earlier half of the runs, of those after it, and of the latest."""
    runs = list(dict.fromkeys(call.run.tree for call in calls))
    if len(runs) < MIN_RUNS:
        raise SuggestError(
            f"rules are learned from some runs and judged by others: that needs at least {MIN_RUNS} runs with calls of "
            f"tools, and the records contain {len(runs)}. Record more runs, or import some with 'hookline import'"
        )
    place: Mapping[Run, float] = {run: number / len(runs) for number, run in enumerate(runs)}
    parts: tuple[list[Call], list[Call], list[Call]] = ([], [], [])
    for call in calls:
        at = place[call.run.tree]
        parts[(at >= LEARN) + (at >= CHOOSE)].append(call)
    return parts


def _mark(calls: Sequence[Call]) -> None:
    """Take all calls as bad if none is labelled."""
    if not any(call.is_bad for call in calls):
        for call in calls:
            call.is_bad = True


def _limit(at_most: str | float) -> tuple[str, float]:
    """Return whether a limit is a share or a number a day, and the number."""
    text = str(at_most).strip()
    kind, number = ("share", text.removesuffix("%")) if text.endswith("%") else ("day", text)
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9 or (kind == "share" and value > 100):
        raise SuggestError(f"at_most is a number of interruptions a day, or a share such as '1%', not {at_most!r}")
    return kind, value / 100 if kind == "share" else value


def _limit_text(at_most: str | float) -> str:
    kind, value = _limit(at_most)
    return f"{100 * value:g} % of the calls" if kind == "share" else f"{value:g} calls a day"


def _curve(order: Sequence[Ranked], samples: tuple[Sample, Sample]) -> tuple[list[CurvePoint], list[Judged]]:
    """Return what the first rules do together, for each number of them from 1; and to later calls, from 0."""
    curve: list[CurvePoint] = []
    interrupted: tuple[set[int], set[int]] = (set(), set())
    stopped: tuple[set[int], set[int]] = (set(), set())
    judged = [samples[1].judged((), ())]
    for number, each in enumerate(order, 1):
        points = []
        for place, sample in enumerate(samples):
            interrupted[place].update(sample.interrupted(each.judge))
            stopped[place].update(sample.stopped(each.judge))
            points.append(sample.judged(interrupted[place], stopped[place]))
        judged.append(points[1])
        curve.append(CurvePoint(number, each.name, *points))
    return curve, judged


def _within(curve: Sequence[CurvePoint], limit: tuple[str, float]) -> int:
    """Return how many rules stay within the limit on the calls by which they are chosen."""
    kind, most = limit
    if kind == "day" and curve and curve[0].chosen.by_day is None:
        raise SuggestError("the records have no times: give at_most as a share of the calls, such as '1%'")
    count = 0
    for point in curve:
        found = point.chosen
        spent = found.by_day if kind == "day" else found.interrupted.value
        if (spent or 0.0) > most:
            break
        count = point.rules
    return count


def _judged(each: Ranked, sample: Sample) -> Judged:
    judge = each.judge
    return sample.judged(sample.interrupted(judge), sample.stopped(judge), judge.candidate.tool)


def _proposed(each: Ranked, learned: Sequence[Call], samples: tuple[Sample, Sample]) -> ProposedRule:
    judge, candidate = each.judge, each.judge.candidate
    exceptions = [sample.good[place] for sample in samples for place in sorted(sample.interrupted(judge))]
    bad = [
        call
        for sample in samples
        for place in sorted(sample.stopped(judge))
        for call in sample.attacks[place]
        if candidate.judges(call.tool) and judge(call)
    ]
    examples = tuple(_examples(judge, [*bad, *exceptions], learned))
    return ProposedRule(
        msgspec.structs.replace(judge.rule, examples=examples),
        candidate.kind,
        candidate.what,
        candidate.calls,
        candidate.runs,
        samples[0].judged(each.interrupted, each.stopped, candidate.tool),
        _judged(each, samples[1]),
        tuple(_recorded(call, candidate) for call in exceptions[:EXCEPTIONS]),
        len(exceptions),
        each.why_not,
    )


def _recorded(call: Call, candidate: Candidate) -> RecordedCall:
    shown: Any = call.arguments
    if candidate.kind == "tools":
        shown = call.tool
    elif candidate.argument in call.arguments:
        shown = call.arguments[candidate.argument]
    text = msgspec.json.encode(shown).decode()
    return RecordedCall(call.run.id, call.n, call.time, call.tool, shorten(text, _SHOWN), call.run.file, call.is_bad)


def _examples(judge: Judge, interrupted: Sequence[Call], usual: Sequence[Call]) -> Iterable[Example]:
    """Yield up to two different calls that a rule interrupts, and two that it lets pass."""
    for calls, then, holds in ((interrupted, judge.rule.then, True), (usual, "pass", False)):
        found: list[Example] = []
        for call in calls:
            if not judge.candidate.judges(call.tool) or judge(call) is not holds:
                continue
            example = msgspec.structs.replace(judge.candidate.example(call), then=then)
            if _is_short(example) and example not in found:
                found.append(example)
            if len(found) == 2:
                break
        yield from found


def _is_short(example: Example) -> bool:
    """Whether TOML can write an example, and people will read it."""
    if len(example.history) > _MAX_HISTORY or not can_write(plain(example.arguments)):
        return False
    return len(msgspec.json.encode(example.arguments)) + len(example.task) <= _EXAMPLE
