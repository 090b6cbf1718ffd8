"""The text of an HTML page, in time that grows with its length alone."""

from __future__ import annotations

import re
from html import unescape

_OPENED = re.compile(r"<(!--|(?:script|style|noscript|template|svg|head)(?=[\s>/]))", re.IGNORECASE)
_BREAK = re.compile(
    r"</?(?:p|div|br|hr|li|ul|ol|dl|dt|dd|h[1-6]|tr|table|section|article|header|footer|main|nav|aside|pre|blockquote"
    r"|form|option|title)(?:[\s/][^<>]*)?>",
    re.IGNORECASE,
)
_TAG = re.compile(r"<[/!?a-zA-Z][^<>]*>")
_TITLE = re.compile(r"<title[^<>]*>([^<]*)", re.IGNORECASE)
_BLANKS = re.compile(r"[ \t\r\f\v\xa0]+")


def html_text(page: str) -> str:
    """What a reader of the page would see: its title, then its text, a line for each block."""
    title = _TITLE.search(page)
    body = _TAG.sub("", _BREAK.sub("\n", _seen(page)))
    lines = [_BLANKS.sub(" ", line).strip() for line in unescape(body).split("\n")]
    head = [" ".join(unescape(title[1]).split())] if title else []
    return "\n".join(line for line in [*head, *lines] if line)


def _seen(page: str) -> str:
    """The page without comments, scripts and the like."""
    kept, at, start, lower = [], 0, 0, _ascii_lower(page)
    absent: set[str] = set()
    while (opened := _OPENED.search(page, start)) is not None:
        name = opened[1].lower()
        end = "-->" if name == "!--" else f"</{name}"
        found = -1 if end in absent else lower.find(end, opened.end())
        start = opened.end()
        if found < 0:  # it is not closed: what follows is read
            absent.add(end)
            continue
        kept.append(page[at : opened.start()])
        start = at = page.find(">", found) + 1 or len(page)
    return "".join([*kept, page[at:]])


def _ascii_lower(page: str) -> str:
    """In small letters, and not a character longer or shorter."""
    return page.translate({code: code + 32 for code in range(ord("A"), ord("Z") + 1)})
