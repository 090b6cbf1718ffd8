"""A file of rules as one HTML page, for people who review rules and not code."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from .._base.frozen import scrub
from ..hooks._rules.words import ExplainedRule, code_parts
from .html import html_page


def rules_page(name: str, rules: Sequence[ExplainedRule], wrong: Collection[str] = ()) -> str:
    """Return rules in plain English as one HTML page that needs no other file and no network.

    Args:
        name: the name of the file.
        rules: the rules in words.
        wrong: the names of rules with examples that are wrong.
    """
    shadowed = sum(rule.is_shadow for rule in rules)
    facts = [f"{len(rules)} rule{'s' * (len(rules) != 1)}"]
    facts += [f"{shadowed} in shadow mode, which only report"] if shadowed else []
    contents = "".join(f'<li><a href="#{_text(rule.name)}">{_text(rule.name)}</a></li>' for rule in rules)
    body = "".join(_rule(rule, is_wrong=rule.name in wrong) for rule in rules)
    return html_page(
        f"Rules: {name}",
        assets=("theme.css", "rules.css"),
        body=(
            f'<main class="wrap"><header><h1>{_text(name)}</h1><p>{_text(", ".join(facts))}</p></header>'
            f'<nav aria-label="Rules"><ol>{contents}</ol></nav>{body}</main>'
        ),
    )


def _rule(rule: ExplainedRule, *, is_wrong: bool) -> str:
    marks = '<span class="pill amber">shadow mode</span>' if rule.is_shadow else ""
    marks += '<span class="pill red">an example is wrong</span>' if is_wrong else ""
    said = f'<p class="said">{_text(rule.said)}</p>' if rule.said else ""
    reason = f'<p><span class="label">Why</span> {_text(rule.reason)}</p>' if rule.reason else ""
    rows = "".join(
        f'<tr><td><span class="pill {_TONES.get(done, "amber")}">{_text(done)}</span></td>'
        f"<td><code>{_text(situation)}</code></td></tr>"
        for done, situation in rule.examples
    )
    examples = (
        f'<div class="scroll"><table><caption class="label">Examples</caption>{rows}</table></div>' if rows else ""
    )
    return (
        f'<section class="card" id="{_text(rule.name)}"><h2>{_text(rule.name)} {marks}</h2>'
        f"<p>{_words(rule.sentence)}</p>{said}{reason}"
        f"<details><summary>The condition as it is evaluated</summary><pre>{_text(rule.condition)}</pre></details>"
        f"{examples}</section>"
    )


_TONES = {"passes": "grey", "blocked": "red", "withheld": "red", "asked": "violet", "labelled": "blue"}


def _words(text: str) -> str:
    return "".join(f"<code>{_text(part)}</code>" if code else _text(part) for part, code in code_parts(text))


def _text(text: str) -> str:
    return escape(scrub(text))
