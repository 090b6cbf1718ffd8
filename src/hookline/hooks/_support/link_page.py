"""The pages behind a link to a waiting call: plain HTML without scripts."""

from __future__ import annotations

import time
from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from html import escape

from ..._base.text import duration_text, one_line, visible_json
from ...stores.approvals import MAX_MESSAGE, ApprovalRow

_STYLE = """
:root {
  --back: #f5f6f8; --card: #ffffff; --text: #1c2027; --soft: #5d6675; --line: #d9dde4; --code: #f1f3f6;
  --yes: #1f7a45; --no: #b3261e; --on: #ffffff; color-scheme: light;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #16181d; --card: #1e2128; --text: #e7e9ee; --soft: #98a1b2; --line: #363c48; --code: #14161a;
    --yes: #5fcf8d; --no: #ff8f87; --on: #10131a; color-scheme: dark;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; padding: 2rem 1rem; background: var(--back); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main {
  max-width: 44rem; margin: 0 auto; padding: 1.5rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .8rem; display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem;
}
h1 { margin: 0; font-size: 1.25rem; line-height: 1.35; overflow-wrap: anywhere; }
h2 { margin: 0 0 .35rem; font-size: .9rem; color: var(--soft); font-weight: 600; }
p, ul { margin: 0; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; }
code, pre { font: .9rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre {
  margin: 0; padding: .8rem 1rem; background: var(--code); border: 1px solid var(--line); border-radius: .5rem;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
.soft { color: var(--soft); font-size: .9rem; }
form { display: grid; gap: .8rem; }
label { display: grid; gap: .3rem; font-size: .9rem; color: var(--soft); }
input {
  width: 100%; padding: .6rem .7rem; font: inherit; color: var(--text); background: var(--card);
  border: 1px solid var(--line); border-radius: .5rem;
}
.buttons { display: flex; flex-wrap: wrap; gap: .7rem; }
button {
  flex: 1 1 9rem; min-height: 2.9rem; padding: .5rem 1rem; font: inherit; font-weight: 600; border-radius: .5rem;
  border: 1px solid transparent; cursor: pointer;
}
.yes { background: var(--yes); color: var(--on); }
.no { background: none; color: var(--no); border-color: var(--no); }
:focus-visible { outline: 3px solid var(--soft); outline-offset: 2px; }
.good { color: var(--yes); }
.bad { color: var(--no); }
@media (max-width: 30rem) { body { padding: .6rem; } main { padding: 1.1rem; } }
"""

POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy of the pages."""

_TITLES = {
    "approved": ("This call was approved", "good"),
    "edited": ("This call was approved with other arguments", "good"),
    "denied": ("This call was denied", "bad"),
    "expired": ("This call was not approved in time", "bad"),
    "cancelled": ("This call no longer waits", "bad"),
}
_NEXT = {
    "approved": "It runs.",
    "edited": "It runs with the other arguments, if the guards allow them.",
    "denied": "It does not run.",
    "expired": "It does not run.",
    "cancelled": "Its run has ended.",
}


def call(row: ApprovalRow, to: str) -> str:
    """Return the page of a waiting call, with its exact arguments and the buttons."""
    agent, tool = one_line(row.agent) or "An agent", one_line(row.tool)
    asked = "".join(
        f"<li>{escape(one_line(each.hook) or 'A hook')}: {escape(one_line(each.text))}"
        f"{escape(f' ({one_line(each.reason)})') if each.reason else ''}</li>"
        for each in row.questions
    )
    who = f"<p class=soft>This link is for {escape(to)}. The decision is recorded under this name.</p>" if to else ""
    needed = f"<p class=soft>{escape(one_line(row.who_is_needed))}</p>" if row.who_is_needed else ""
    left = duration_text(max(1.0, row.expires - time.time()))
    body = f"""<h1>{escape(agent)} wants to call <code>{escape(tool)}</code></h1>
<section><h2>Arguments</h2><pre>{escape(visible_json(row.arguments))}</pre></section>
<section><h2>Why you are asked</h2><ul>{asked}</ul></section>
<form method="post" autocomplete="off">
<label>Reason, if you deny it (the agent reads it)<input name="message" maxlength="{MAX_MESSAGE}"></label>
<div class="buttons"><button class="no" name="decision" value="deny">Deny</button>
<button class="yes" name="decision" value="approve">Approve</button></div>
</form>
{needed}{who}
<p class="soft">Without a decision by {escape(format_time(row.expires))} (in {escape(left)}) the call does not run.
The link works once.</p>
<p class="soft">Run {escape(one_line(row.root_id))} · digest {escape(row.digest[:16])}</p>"""
    return _document("Approve this call?", body)


def recorded(row: ApprovalRow) -> str:
    """Return the page after an approval of a call that still needs another person."""
    body = f"""<h1 class="good">Your approval was recorded</h1>
<p><code>{escape(one_line(row.tool))}</code> does not run yet. {escape(one_line(row.who_is_needed))}</p>
<p class="soft">You can close this page.</p>"""
    return _document("Your approval was recorded", body)


def outcome(row: ApprovalRow, *, late: bool = False) -> str:
    """Return the page of a call that no longer waits; ``late`` if somebody has just tried to decide about it."""
    title, tone = _TITLES.get(row.status, ("This call no longer waits", "bad"))
    who = f" by {row.by}" if row.by and row.status in ("approved", "edited", "denied") else ""
    when = f" at {format_time(row.decided)}" if row.decided is not None else ""
    reason = f"<p>Reason: {escape(one_line(row.message))}</p>" if row.message else ""
    first = "<p>Your decision came too late: nothing was changed.</p>" if late else ""
    body = f"""<h1 class="{tone}">{title}</h1>
{first}<p><code>{escape(one_line(row.tool))}</code>{escape(f": decided{who}{when}." if who or when else ".")}
{_NEXT.get(row.status, "")}</p>{reason}
<p class="soft">This link has been used, or is no longer needed. You can close this page.</p>"""
    return _document(title, body)


def problem(title: str, text: str) -> str:
    """Return a page that explains why a link does not work."""
    return _document(title, f'<h1 class="bad">{escape(title)}</h1><p>{escape(text)}</p>')


def format_time(at: float) -> str:
    """Format a time in UTC: the reader may be anywhere."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex, nofollow">
<style>{_STYLE}</style></head>
<body><main>
{body}
</main></body></html>
"""
