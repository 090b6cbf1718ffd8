"""Convert HTTP responses to pages of text, and HTML to plain text."""

from __future__ import annotations

import re
from html import unescape
from http.client import HTTPResponse
from typing import Any

import msgspec

from .http_client import FetchError, HttpResponse
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
    """A fetched page. ``url`` is its address after redirects; ``cut`` says that the page is longer."""

    url: str
    status: int
    reason: str
    content_type: str
    text: str
    cut: bool = False


def is_redirect(status: int, location: str | None) -> bool:
    """Return whether a response is a redirect."""
    return status in (301, 302, 303, 307, 308) and location is not None


def is_page(response: HTTPResponse) -> bool:
    """Return whether a response is a page of text, according to its headers."""
    return not is_redirect(response.status, response.headers.get("Location")) and _is_text(_kind(response.headers))


def _kind(headers: Any) -> str:
    return str(headers.get("Content-Type") or headers.get("content-type") or "").partition(";")[0].strip().lower()


def _is_text(kind: str) -> bool:
    return not kind or _TEXT.fullmatch(kind) is not None


def page_of(where: Url, response: HttpResponse) -> FetchedPage:
    """Return the page in a response.

    Raises:
        FetchError: the response is not text.
    """
    kind = _kind(response.headers)
    if not _is_text(kind) or (not kind and b"\0" in response.body):
        raise FetchError(f"{where} is {kind or 'binary'}, which is not text")
    charset = re.search(r"charset=[\"']?([\w.:-]{1,40})", response.headers.get("content-type", ""), re.IGNORECASE)
    encoding = charset[1].lower() if charset and _CHARSET.fullmatch(charset[1].lower()) else "utf-8"
    try:
        text = response.body.decode(encoding, "replace")
    except LookupError:
        text = response.body.decode("utf-8", "replace")
    return FetchedPage(str(where), response.status, response.reason, kind or "text/plain", text, response.cut)


def html_text(page: str) -> str:
    """Return the visible text of an HTML page: its title, then one line per block. Takes linear time."""
    title = _TITLE.search(page)
    body = _TAG.sub("", _BREAK.sub("\n", _visible(page)))
    lines = [_BLANKS.sub(" ", line).strip() for line in unescape(body).split("\n")]
    head = [" ".join(unescape(title[1]).split())] if title else []
    return "\n".join(line for line in [*head, *lines] if line)


def _visible(page: str) -> str:
    """Return the page without comments, scripts and other invisible parts."""
    kept, at, start, lower = [], 0, 0, _ascii_lower(page)
    absent: set[str] = set()
    while (opened := _OPENED.search(page, start)) is not None:
        name = opened[1].lower()
        end = "-->" if name == "!--" else f"</{name}"
        found = -1 if end in absent else lower.find(end, opened.end())
        start = opened.end()
        if found < 0:  # the element is not closed: keep its content
            absent.add(end)
            continue
        kept.append(page[at : opened.start()])
        start = at = page.find(">", found) + 1 or len(page)
    return "".join([*kept, page[at:]])


def _ascii_lower(page: str) -> str:
    """Convert ASCII letters to lower case without changing the length of the text."""
    return page.translate({code: code + 32 for code in range(ord("A"), ord("Z") + 1)})
