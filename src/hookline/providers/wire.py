"""What a provider's API is to us: requests written, replies read, streams put together, tool names carried over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Protocol

import msgspec

from .._base.frozen import json_text
from .._kernel.payloads import ModelRequest
from .._kernel.values import ToolCall, Usage

Json = dict[str, Any]

_NAME_LENGTH = 64
_MOST = 2**53  # more tokens than anybody has, and a number that every JSON reader takes
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")


class Reply(msgspec.Struct):
    """A reply as an API gave it, in our words; tool names are still the API's.

    ``usage`` is ``None`` where the server did not count; ``written`` are tokens written into a cache, under the
    names that price lists have for them.
    """

    content: str
    tool_calls: list[ToolCall]
    finish_reason: str
    model: str
    usage: Usage | None
    written: dict[str, int] = {}

    def __post_init__(self) -> None:
        texts = [self.content, self.model, *(text for call in self.tool_calls for text in (call.id, call.name))]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a reply has something else where a text belongs")


class Stream(Protocol):
    """A reply that comes in pieces."""

    def add(self, event: Json) -> str:
        """Take in one event; gives the text in it."""
        ...

    def whole(self) -> Json | None:
        """The reply as the API gives it when it is not streamed; ``None`` if it was cut off."""
        ...


class Dialect(Protocol):
    """One API of a provider."""

    @property
    def path(self) -> str:
        """Where requests go, below the base URL."""
        ...

    def body(self, request: ModelRequest, model: str, names: ToolNames) -> Json:
        """The request, as this API wants it."""
        ...

    def streamed(self, body: Json) -> Json:
        """The same request, for a reply in pieces."""
        ...

    def read(self, data: Json) -> Reply | None:
        """What a whole reply says; ``None`` if it holds no answer."""
        ...

    def stream(self) -> Stream:
        """Puts a streamed reply together."""
        ...


class ToolNames:
    """Tool names as the APIs allow them (``[a-zA-Z0-9_-]``, at most 64), and back.

    ``files.read`` goes out as ``files_read``. Where two names would become one, or a name is too long, a few
    letters of its digest make the difference.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = dict.fromkeys(names)
        self._ours: dict[str, str] = {name: name for name in known if fits(name)}
        self._theirs: dict[str, str] = dict(self._ours)
        for name in known:
            if name not in self._theirs:
                self._theirs[name] = fitting = self._fit(name)
                self._ours[fitting] = name

    @classmethod
    def of(cls, request: ModelRequest) -> ToolNames:
        """The names in a request: of its tools, then of the calls in its history."""
        called = (call.name for message in request.messages for call in message.tool_calls)
        return cls([*(tool.name for tool in request.tools), *called])

    def out(self, name: str) -> str:
        """The name to send."""
        return self._theirs.get(name) or self._fit(name)

    def back(self, name: str) -> str:
        """The name that is meant by one that came back."""
        return self._ours.get(name, name)

    def _fit(self, name: str) -> str:
        fitting = _UNFIT.sub("_", name) or "_"
        if len(fitting) <= _NAME_LENGTH and fitting not in self._ours:
            return fitting
        return f"{fitting[: _NAME_LENGTH - 9]}_{sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def fits(name: str) -> bool:
    """Whether the APIs allow this name or id."""
    return 0 < len(name) <= _NAME_LENGTH and not _UNFIT.search(name)


def fit_id(call_id: str) -> str:
    """A call id of any provider, as every API allows it."""
    return _UNFIT.sub("_", call_id)


def arguments_text(call: ToolCall) -> str:
    """A call's arguments as JSON text; what was no JSON object goes out as an empty one, which servers can parse."""
    return json_text(call.arguments)


def text_of(content: Any) -> str:
    """The text of a message that is a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def count(usage: Any, *keys: str) -> int:
    """The number of tokens below these keys; 0 for whatever else a server wrote there."""
    for key in keys:
        usage = usage.get(key) if isinstance(usage, dict) else None
    try:
        number = int(usage or 0)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number <= _MOST else 0


def finish(reason: str, calls: list[ToolCall], refused: bool) -> str:
    """One of :data:`~hookline.models.FINISH_REASONS`, once it is known what the reply holds."""
    if refused:
        return "content_filter"
    return "tool_calls" if calls and reason == "stop" else reason
