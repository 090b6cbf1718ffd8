"""The static files of the chat component, and its markup."""

from __future__ import annotations

import html
from functools import cache
from importlib.resources import files
from string import Template

import msgspec

from .protocol import Settings

ASSETS = ("chat.css", "chat.js", "text.js")
"""The names of the static files."""


@cache
def chat_asset(name: str) -> str:
    """Return a static file of the component, or its markup."""
    return (files("hookline._web.chat") / "assets" / name).read_text("utf-8")


def chat_markup(settings: Settings) -> str:
    """Return the markup of the component as HTML. The page also needs ``theme.css`` and the files of :data:`ASSETS`."""
    data = html.escape(msgspec.json.encode(settings).decode("utf-8"))
    return Template(chat_asset("chat.html")).substitute(settings=data, title=html.escape(settings.title))
