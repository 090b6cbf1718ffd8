"""Render the pages of the console, with Jinja2: every value is escaped unless a template says otherwise."""

from __future__ import annotations

import time
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from ..._base.text import printable, visible_json
from ..._web.chat.page import ASSETS, chat_asset
from ...explain.html import asset
from ...explain.words import DECISIONS, OUTCOMES, SIGNS, STATUSES, gate_of, verb_words
from ...stores.callers import Caller
from ...stores.keys import KeyStore
from ..auth import LOGIN_COOKIE, USER
from ..routing import caller_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types hookline",
    )
)
"""The content security policy: scripts and styles are files of this server, and HTML gets into a page in one place."""

HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",  # with "no-referrer", browsers hide the origin of a form from us as well
}
BANNER, NOTICES = "halt", "notices"
"""The ids of the banner of a halt, and of the element that it is added to."""
WAITING = "waiting"
"""The id of the number of calls that wait for a person."""
STATIC = "/console/static/{version}/{name}"
SHARED: Mapping[str, Callable[[str], str]] = {"theme.css": asset, **dict.fromkeys(ASSETS, chat_asset)}
"""Files of the reports and of the chat that the console uses as well, and what reads them."""
NAVIGATION = (
    (
        ("Now", "/", ""),
        ("Approvals", "/console/approvals", ""),
        ("Runs", "/console/runs", ""),
        ("Blocked", "/console/blocked", ""),
    ),
    (
        ("Hooks", "/console/hooks", ""),
        ("Cost", "/console/cost", ""),
        ("Replay", "/console/replay", "admin"),
        ("Audit", "/console/audit", "admin"),
    ),
    (("Chat", "/console/chat", ""), ("Tickets", "/console/tickets", "admin")),
)
"""The pages, in groups: their names, their paths, and the right that a caller needs to see the link. The first group is
always in view; Tickets is shown if there is a board."""
_SPACES = "\u00a0\u2007\u2009\u202f\u3000"
"""Spaces that texts have for good reasons."""


@cache
def static_file(name: str) -> bytes | None:
    """Return a style sheet or script of the console; ``None`` if there is none of this name."""
    if name in SHARED:
        return SHARED[name](name).encode()
    found = files("hookline.server.console") / "static" / name
    return found.read_bytes() if "/" not in name and not name.startswith(".") and found.is_file() else None


@cache
def _version(name: str) -> str:
    data = static_file(name)
    assert data is not None, name
    return sha256(data).hexdigest()[:12]


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("hookline.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,  # it would look at the file for every fragment
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    made.filters |= {
        "seconds": seconds,
        "money": money,
        "count": "{:,}".format,
        "exact": exact,
        "rounded": rounded,
        "about": about,
        "clock": clock,
        "day": day,
        "visible_json": visible_json,
    }
    made.globals |= {
        "verb_word": lambda verb: verb_words(verb)[0],
        "gate_of": gate_of,
        "gate_shapes": lambda state: SIGNS.get(state, SIGNS["skipped"]).shapes,
        "gate_word": lambda state: SIGNS[state].word,
        "verb_tone": lambda verb: verb_words(verb)[1],
        "status_tone": partial(_tone, STATUSES),
        "decision_tone": partial(_tone, DECISIONS),
        "outcome_tone": partial(_tone, OUTCOMES),
        "navigation": NAVIGATION,
        "now": time.time,
        "str": str,
    }
    return made


def _visible(value: Any) -> Any:
    """Return what a template shows: a text in which no character is invisible or turns the others around."""
    if isinstance(value, str) and not isinstance(value, Markup) and not value.isprintable():
        return printable(value, keep=f"\n\t\r{_SPACES}")
    return value


def exact(value: str) -> Markup:
    """Return what a field contains, with its invisible characters: it is sent again with the form."""
    return escape(value)


def _tone(tones: Mapping[str, str], value: str, unknown: str = "grey") -> str:
    """Return the colour of a value. Templates get functions instead of mappings, so that no look-up can fail."""
    return tones.get(value, unknown)


def fragment(template: str, base: str, /, **values: Any) -> str:
    """Render a part of a page. ``base`` is the path at which the server is mounted."""
    return _environment().get_template(template).render(base=base, **values)


def page(request: Request, template: str, /, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a whole page for a caller."""
    base, frame = base_of(request), getattr(request.state, _FRAME, Frame())
    html = fragment(
        template,
        base,
        caller=values.pop("caller", None) or caller_of(request),
        path=request.url.path.removeprefix(base) or "/",
        logged_in=LOGIN_COOKIE in request.cookies,
        frame=frame.sections,
        waiting=frame.waiting,
        has_tickets=frame.has_tickets,
        static=partial(static_url, request),
        **values,
    )
    return HTMLResponse(html, status, HEADERS)


def static_url(request: Request, name: str) -> str:
    """Return the path of a style sheet or script. It changes with the file, so that browsers may keep it."""
    return base_of(request) + STATIC.format(version=_version(name), name=name)


class Frame(NamedTuple):
    """The frame of all pages: its sections that change, the number of waiting calls, and whether there are tickets."""

    sections: Mapping[str, str] = {}
    waiting: int = 0
    has_tickets: bool = False


_FRAME = "console_frame"


def set_frame(request: Request, frame: Frame) -> None:
    """Set what is around the page that answers a request."""
    setattr(request.state, _FRAME, frame)


def base_of(request: Request) -> str:
    """Return the path at which the server is mounted; empty at the root."""
    return str(request.scope.get("root_path", ""))


def caller_names(keys: KeyStore | None) -> dict[str, str]:
    """Return the names of callers by their ids; none if the host application knows the callers."""
    return {} if keys is None else {key.id: key.name for key in keys.keys()}  # noqa: SIM118 - no dict


def names_of(caller: Caller, names: Mapping[str, str], owner: str) -> str:
    """Return the name of a caller for another one."""
    return "you" if owner == caller.id else names.get(owner, owner.removeprefix(USER))


def seconds(value: float | None) -> str:
    """Return a duration for people, such as ``4.2 s`` or ``2 h 5 min``."""
    if value is None:
        return ""
    if 0 < value < 0.001:
        return f"{value * 1_000_000:.0f} µs"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


def money(value: float | None) -> str:
    """Return a cost in US dollars; a dash if it is unknown."""
    if value is None:
        return "-"
    return f"${value:.2f}" if value >= 1 or value == 0 else f"${value:.4f}"


def rounded(value: int) -> str:
    """Return a large number in few characters, such as ``43.8 M``."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= max(size, 10_000):
            return f"{value / size:.1f} {unit}"
    return f"{value:,}"


def about(value: float) -> str:
    """Return a mean as a whole number; less than one half is not called none."""
    return f"{value:,.0f}" if value >= 0.5 or not value else "less than 1"


def clock(value: float) -> str:
    """Return a time as ISO 8601, for the attribute ``datetime``; the browser shows it as local time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value))


def day(value: float) -> str:
    """Return the day of a time, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(value))
