"""What a server sent, as a page of text."""

from __future__ import annotations

import re
from html import unescape
from http.client import HTTPResponse
from typing import Any

import msgspec

from .http_client import FetchError, Reply
from .urls import Url

_TEXT = re.compile(r"text/.+|application/(.+\+)?(json|xml|yaml|x-yaml|toml|javascript|x-ndjson|jsonl|rtf)")
_CHARSET = re.compile(
    r"(?:us-)?ascii|utf-?8|utf-?16(?:-?[lb]e)?|latin-?1|iso-?8859-?\d{1,2}|(?:windows|cp)-?125\d"
    r"|shift_?jis|euc-?(?:jp|kr)|gb(?:k|2312|18030)|big5|koi8-?[ru]"
)
_OPENED = re.compile(r"<(!--|(?:script|style|noscript|template|svg|head)(?=[\s>/]))", re.IGNORECASE)
_BREAK = re.compile(
    r"</?(?:p|div|br|hr|li|ul|ol|dl|dt|dd|h[1-6]|tr|table|section|article|header|footer|main|nav|aside|pre|blockquote"
    r"|form|option|title)(?:[\s/][^<>]*)?>",
    re.IGNORECASE,
)
_TAG = re.compile(r"<[/!?a-zA-Z][^<>]*>")
_TITLE = re.compile(r"<title[^<>]*>([^<]*)", re.IGNORECASE)
_BLANKS = re.compile(r"[ \t\r\f\v\xa0]+")


class FetchedPage(msgspec.Struct, frozen=True):
    """What was fetched: ``url`` is where it came from in the end, ``cut`` says that there was more."""

    url: str
    status: int
    reason: str
    content_type: str
    text: str
    cut: bool = False


def sends_on(status: int, location: str | None) -> bool:
    """Whether a server answers that the page is elsewhere."""
    return status in (301, 302, 303, 307, 308) and location is not None


def is_page(response: HTTPResponse) -> bool:
    """Whether a page of text follows, as far as the headers tell."""
    return not sends_on(response.status, response.headers.get("Location")) and _is_text(_kind(response.headers))


def _kind(headers: Any) -> str:
    return str(headers.get("Content-Type") or headers.get("content-type") or "").partition(";")[0].strip().lower()


def _is_text(kind: str) -> bool:
    return not kind or _TEXT.fullmatch(kind) is not None


def page_of(where: Url, reply: Reply) -> FetchedPage:
    """The page in a reply.

    Raises:
        FetchError: it is not text.
    """
    kind = _kind(reply.headers)
    if not _is_text(kind) or (not kind and b"\0" in reply.body):
        raise FetchError(f"{where} is {kind or 'binary'}, which is not text")
    charset = re.search(r"charset=[\"']?([\w.:-]{1,40})", reply.headers.get("content-type", ""), re.IGNORECASE)
    encoding = charset[1].lower() if charset and _CHARSET.fullmatch(charset[1].lower()) else "utf-8"
    try:
        text = reply.body.decode(encoding, "replace")
    except LookupError:
        text = reply.body.decode("utf-8", "replace")
    return FetchedPage(str(where), reply.status, reply.reason, kind or "text/plain", text, reply.cut)


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
