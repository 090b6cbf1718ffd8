"""A proposal as one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from .._base.frozen import EMPTY
from ..explain.html import html_page
from .report import Proposal, ProposedRule, RecordedCall, headline


def proposal_page(proposal: Proposal, *, about: Mapping[str, str] = EMPTY) -> str:
    """Return a proposal as one HTML page that needs no other file and no network.

    Args:
        proposal: the proposal.
        about: what it was made from, as names and values for people, such as the files of records.

    Example::

        Path("report.html").write_text(proposal_page(propose("records/")), encoding="utf-8")
    """
    title = headline(proposal)
    return html_page(
        title,
        assets=("theme.css", "common.js", "suggest.css", "suggest.js"),
        data={"headline": title, "about": dict(about), "proposal": _shown(proposal), "toml": proposal.toml},
        body='<div id="page"></div><noscript>This page draws the report with JavaScript.</noscript>',
    )


def _shown(proposal: Proposal) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(proposal.replace(toml=""))
    for group, rules in (("rules", proposal.rules), ("left_out", proposal.left_out)):
        shown[group] = [made | _rule(rule) for made, rule in zip(shown[group], rules, strict=True)]
    return shown


def _rule(rule: ProposedRule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "tool": "" if rule.rule.tools == ("*",) else rule.rule.tools[0],
        "exceptions": [msgspec.to_builtins(one) | {"command": _command(one)} for one in rule.exceptions],
    }


def _command(one: RecordedCall) -> str:
    """Return the command that shows a call. It is quoted for a shell: ids come from records."""
    options = ["--at", str(one.n), *(["--records", one.file] if one.file else [])]
    words = [*options, "--", one.run_id] if one.run_id.startswith("-") else [one.run_id, *options]
    return shlex.join(["hookline", "explain", *words])
