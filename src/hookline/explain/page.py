"""A run as an HTML page, and as a part of another page."""

from __future__ import annotations

from typing import Any

from .._base.text import shorten
from .comparison import Comparison, summary
from .html import html_page, json_block
from .view import RunView, unanswered_signs
from .words import DECISIONS, GATES, ONLY, OUTCOMES, QUIET_POINTS, SIGNS, STATUSES, VERBS

EXPLAIN_ASSETS = ("theme.css", "explain.css", "common.js", "explain.js")
"""The style sheets and scripts that a page with :func:`explain_fragment` needs, in order."""

DIFF_ASSETS = ("theme.css", "diff.css", "common.js", "diff.js")
"""The style sheets and scripts that a page with :func:`diff_fragment` needs, in order."""


def explain_html(run: RunView) -> str:
    """Return a page that shows a run. It is one file, and needs no network.

    Example::

        run = next(read_runs(["records/"]))
        Path("run.html").write_text(explain_html(explain(run)), encoding="utf-8")
    """
    title = f"{run.status}: {' '.join(run.task.split()) or run.id}"
    return html_page(shorten(title, 90), assets=EXPLAIN_ASSETS, body=explain_fragment(run))


def explain_fragment(run: RunView) -> str:
    """Return HTML that shows a run inside a page that loads :data:`EXPLAIN_ASSETS`.

    It contains no script that runs and no style, so it needs nothing from the content security policy of the page.
    """
    data: dict[str, Any] = {
        "run": run,
        "verbs": VERBS,
        "outcomes": OUTCOMES,
        "statuses": STATUSES,
        "decisions": DECISIONS,
        "gates": GATES,
        "asked": unanswered_signs(run),
        "signs": {state: sign._asdict() for state, sign in SIGNS.items()},
        "only": ONLY,
        "quiet": QUIET_POINTS,
    }
    return f'<div class="hookline-explain">{json_block(data)}</div>'


def diff_html(comparison: Comparison) -> str:
    """Return a page that shows two runs side by side. It is one file, and needs no network.

    Example::

        Path("diff.html").write_text(diff_html(compare(explain(one), explain(other))), encoding="utf-8")
    """
    title = f"{'same' if comparison.same else 'different'}: {comparison.left.id} and {comparison.right.id}"
    return html_page(shorten(title, 90), assets=DIFF_ASSETS, body=diff_fragment(comparison))


def diff_fragment(comparison: Comparison) -> str:
    """Return HTML that shows two runs side by side, inside a page that loads :data:`DIFF_ASSETS`."""
    data: dict[str, Any] = {
        "runs": [_head(comparison.left), _head(comparison.right)],
        "pairs": comparison.pairs,
        "first": comparison.first,
        "summary": summary(comparison),
        "verbs": VERBS,
        "statuses": STATUSES,
    }
    return f'<div class="hookline-diff">{json_block(data)}</div>'


def _head(run: RunView) -> dict[str, Any]:
    fields = ("id", "agent", "model", "time", "status", "why", "elapsed", "cost", "input_tokens", "output_tokens")
    return {name: getattr(run, name) for name in fields}
