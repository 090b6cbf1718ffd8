"""Draw the sections of a page one by one: a section that cannot be drawn says so, and the others are shown."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from ...explain.from_events import EventsView
from ...stores.errors import StoreError
from ...stores.runs import StoredEvent
from ..errors import ApiError
from .render import fragment

log = logging.getLogger("hookline")

Sections = Mapping[str, str | msgspec.Struct]
"""The parts of a page that change, as HTML by the id of their element; an empty text removes the element. The page Chat
has parts of another form, see :mod:`hookline._web.chat.protocol`."""

_TABLE_ROWS = frozenset(("runs-rows", "replay-rows", "audit-rows"))
"""Sections inside a table."""


def draw_all(template: str, base: str, prefix: str, names: Iterable[str], **values: Any) -> dict[str, str]:
    """Draw the sections of a template. Their ids are the prefix and their names."""
    ids = {f"{prefix}-{name}": name for name in names}
    return {id: draw(id, partial(fragment, template, base, section=name, **values)) for id, name in ids.items()}


def draw(id: str, make: Callable[[], str], *, tag: str = "section", into: str = "") -> str:
    """Draw one section. If that fails, return HTML that says so, and log the error.

    Args:
        id: the id of its element.
        make: returns its HTML.
        tag: the name of the element that says that it failed.
        into: the id of the element that a new section is added to.

    Raises:
        StoreError: a file cannot be used.
    """
    try:
        return make()
    except (StoreError, ApiError):
        raise
    except Exception:  # one section must not take the page down
        log.exception("the section %s of a page of the console could not be drawn", id)
        return _notice(id, tag, into)


async def draw_together(ids: Iterable[str], sections: Awaitable[Sections]) -> Sections:
    """Return the sections of a page. If what they show cannot be read, each of them says so, and the error is logged.

    Args:
        ids: the ids of the sections that the page always has.
        sections: reads the data and draws the sections.

    Raises:
        StoreError: a file cannot be used.
        ApiError: what the page shows does not exist, or the caller may not see it.
    """
    try:
        return await sections
    except (StoreError, ApiError):
        raise
    except Exception:
        ids = list(ids)
        log.exception("the sections %s of a page of the console could not be drawn", ", ".join(ids))
        return {id: _notice(id) for id in ids}


def add_event(view: EventsView, event: StoredEvent) -> Mapping[str, Any]:
    """Add a stored event to the view of its run, and return its fields.

    If it cannot be shown, the view says so, and the error is logged.
    """
    fields: Mapping[str, Any] = {}
    try:
        fields = msgspec.json.decode(event.data)
        view.add(fields)
    except Exception:  # one event must not take the page of its run down
        log.exception("event %d of the run %s could not be shown", event.seq, event.run_id)
        view.view.notes.append(f"Event {event.seq} ({event.type}) could not be shown. The log of the server says why.")
    view.seq = event.seq
    return fields


def _notice(id: str, tag: str = "section", into: str = "") -> str:
    return fragment("broken_section.html", "", id=id, tag="tbody" if id in _TABLE_ROWS else tag, into=into)
