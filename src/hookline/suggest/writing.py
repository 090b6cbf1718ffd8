"""Proposed rules as a file, with the evidence as comments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from .._base.text import counted
from ..hooks._rules.file import Example, RuleData
from .expressions import quoted
from .report import Part, Proposal, ProposedRule

WIDTH = 118


def rules_toml(proposal: Proposal) -> str:
    """Return the rules of a proposal as the text of a file."""
    lines = [*_head(proposal), ""]
    for each in proposal.rules:
        lines += [*_evidence(each), *_rule(each.rule), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _head(proposal: Proposal) -> Iterator[str]:
    yield from _comment(
        "Rules that recorded runs suggest. Each is in shadow mode: it decides nothing, and is only reported."
    )
    yield from _comment("Review a rule, then remove its line shadow = true.")
    yield "#"
    yield from _comment(f"Learned from {_part(proposal.learned)}; chosen by {_part(proposal.chosen)};")
    yield from _comment(f"judged by {_part(proposal.later)}, which no rule was learned from or chosen by:")
    for name, found in (("these rules", proposal.judged), ("a list of tool names alone", proposal.allow_list)):
        costs = found.interrupted
        text = f"  {name}: {costs.hits:,} of {costs.total:,} calls interrupted, {costs}"
        if found.by_day is not None:
            text += f", {found.by_day:.2g} a day"
        if found.stopped.total:
            text += f"; {found.stopped.hits:,} of {found.stopped.total:,} attacks stopped"
        yield from _comment(text)
    if proposal.left_out:
        yield from _comment(f"{counted(len(proposal.left_out), 'other rule')} did not pay; the report says why.")


def _part(part: Part) -> str:
    text = f"{counted(part.calls, 'call')} in {counted(part.runs, 'run')}"
    return f"{text} ({period(part)})" if part.first else text


def period(part: Part) -> str:
    """Return the first and the last day of a part."""
    first, last = (f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}" for time in (part.first, part.last))
    return first if first == last else f"{first} to {last}"


def _evidence(each: ProposedRule) -> Iterator[str]:
    tool = "every call" if each.rule.tools == ("*",) else each.rule.tools[0]
    yield from _comment(f"{tool}: {each.what}. Seen {counted(each.calls, 'time')} in {counted(each.runs, 'run')}.")
    found = each.judged
    if found.interrupted.total:
        of = counted(found.interrupted.total, "later call")
        costs = f"Of {of}, it interrupts {found.interrupted.hits:,}: {found.interrupted}."
    else:
        costs = "No later call judges it."
    if found.stopped.total:
        costs += f" It stops {found.stopped.hits:,} of {counted(found.stopped.total, 'attack')}."
    yield from _comment(costs)
    if each.exception_count:
        yield from _comment(f"{counted(each.exception_count, 'exception')}:")
        for one in each.exceptions:
            yield from _comment(f"  {one.run_id} #{one.n}  {one.shown}")
        if (more := each.exception_count - len(each.exceptions)) > 0:
            yield from _comment(f"  and {more:,} more")


def _comment(text: str) -> Iterator[str]:
    """Yield a text as one comment. It may contain values of records, so no character of it can end the line."""
    clean = "".join(c if c.isprintable() else quoted(c)[1:-1] for c in text)
    yield f"# {clean}"


def _rule(rule: RuleData) -> Iterator[str]:
    yield "[[rules]]"
    yield f"name = {_text(rule.name)}"
    if rule.tools != ("*",):
        yield f"tools = {_value(list(rule.tools))}"
    yield f"when = {_text(rule.when)}"
    yield f"then = {_text(rule.then)}"
    yield f"message = {_text(rule.message)}"
    if rule.shadow:
        yield "shadow = true"
    if rule.examples:
        yield "examples = ["
        for example in rule.examples:
            yield f"  {_example(example)},"
        yield "]"


def _example(example: Example) -> str:
    shown = _without_defaults(example)
    if example.history:
        shown["history"] = [_without_defaults(past) for past in example.history]
    return _value(shown)


def _without_defaults(struct: msgspec.Struct) -> dict[str, Any]:
    given, usual = msgspec.structs.asdict(struct), msgspec.structs.fields(type(struct))
    return {each.name: given[each.name] for each in usual if given[each.name] not in (each.default, {}, ())}


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        items = [f"{_key(name)} = {_value(item)}" for name, item in value.items()]
        return f"{{ {', '.join(items)} }}" if items else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)


def can_write(value: Any) -> bool:
    """Whether TOML has a way to write a JSON value."""
    if isinstance(value, Mapping):
        return all(map(can_write, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(can_write, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is not None and (not isinstance(value, int) or abs(value) < 2**63)


def _key(name: str) -> str:
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if is_bare else quoted(name, '"')


def _text(text: str) -> str:
    if "\n" not in text:
        return quoted(text, '"')
    return '"""\n' + "\n".join(quoted(line, '"')[1:-1] for line in text.split("\n")) + '"""'
