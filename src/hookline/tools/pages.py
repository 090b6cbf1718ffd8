"""What a server sent, as a page of text."""

from __future__ import annotations

import re
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
