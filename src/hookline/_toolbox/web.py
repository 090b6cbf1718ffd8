"""A tool that reads web pages from listed hosts only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from .._kernel.errors import RegistrationError
from .._net.egress import MAX_BYTES, SECONDS, Egress
from .._net.pages import html_text
from ..tools._tool import Tool

MAX_TEXT = 16_000
"""Maximum number of characters of a page in a result."""


def fetch_tool(
    hosts: Iterable[str] | Egress,
    *,
    seconds: float = SECONDS,
    max_bytes: int = MAX_BYTES,
    max_text: int = MAX_TEXT,
    html: Literal["text", "raw"] = "text",
) -> Tool:
    """Make the tool ``fetch``, which gets a page of text from one of these hosts, and from no other.

    It only sends ``GET`` requests, with nothing but the URL. Its results are marked as untrusted.

    Args:
        hosts: a list of hosts as for :class:`Egress`, or an :class:`Egress`.
        seconds: time limit for a whole fetch.
        max_bytes: maximum size of a page, both compressed and decompressed.
        max_text: maximum number of characters that the model gets.
        html: ``"text"`` to give the model the text of an HTML page, ``"raw"`` for its source.

    Raises:
        RegistrationError: an argument is invalid.

    Example::

        agent = Agent("bob", llm="local", tools=[fetch_tool(["*.wikipedia.org"])])
    """
    egress = hosts if isinstance(hosts, Egress) else Egress(hosts)
    for name, value in {"seconds": seconds, "max_bytes": max_bytes, "max_text": max_text}.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
            raise RegistrationError(f"{name}= must be a positive number, not {value!r:.80}")
    if html not in ("text", "raw"):
        raise RegistrationError(f"html= must be 'text' or 'raw', not {html!r:.80}")

    async def fetch(url: Annotated[str, Field(examples=["https://example.com/"])]) -> str:
        """Get a page of text from the web.

        Args:
            url: the whole address, with https://
        """
        page = await egress.afetch(url, seconds=seconds, max_bytes=int(max_bytes))
        text = html_text(page.text) if html == "text" and "html" in page.content_type else page.text
        shown = text[: int(max_text)]
        notes = ["[the page is longer]"] if page.cut or len(shown) < len(text) else []
        head = f"{page.status} {page.reason}".strip()
        return "\n".join([f"{head}, {page.content_type}, {page.url}", "", shown or "The page is empty.", *notes])

    return Tool(fetch, effects=["network"], dangerous=False)  # it sends nothing but the URL
