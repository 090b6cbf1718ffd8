"""Local token counting for texts and messages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import ceil
from typing import Any

from .._base.attachment import AttachmentError
from .._base.frozen import json_text
from .._kernel.values import Message

_PER_MESSAGE = 4
_OLD = ("gpt-3.5", "gpt-35", "gpt-4", "text-embedding")
_NEW_GPT_4 = ("gpt-4o", "gpt-4.")

Counter = Callable[[str], int]


def estimate(text: str, *, bytes_per_token: float) -> int:
    """Estimate the number of tokens from the length in UTF-8."""
    return ceil(len(text.encode("utf-8", "replace")) / bytes_per_token)


def openai_counter(model: str) -> Counter:
    """Return a counter that uses ``bpe-openai`` if installed, else an estimate."""
    old = model.startswith(_OLD) and not model.startswith(_NEW_GPT_4)
    encoding = _encoding("cl100k_base" if old else "o200k_base")
    if encoding is None:
        return partial(estimate, bytes_per_token=4)
    return lambda text: len(encoding.encode_ordinary(text.encode("utf-8", "replace").decode()))


@lru_cache(maxsize=2)
def _encoding(name: str) -> Any:
    """Load a tokenizer, which takes about a second."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # bpe_openai uses a deprecated way to read its data
        try:
            from bpe_openai import get_encoding
        except ImportError:
            return None
        return get_encoding(name)


def count(content: str | Sequence[Message], counter: Counter) -> int:
    """Count the tokens of a text, or of messages with their calls and a few for the frame of each message."""
    if isinstance(content, str):
        return counter(content)
    return sum(
        _PER_MESSAGE + counter(_as_text(message)) + (_of_attachments(message, counter) if message.attachments else 0)
        for message in content
    )


_PER_IMAGE = 1_600
_BYTES_PER_TOKEN = 40


def _of_attachments(message: Message, counter: Counter) -> int:
    """Estimate the tokens of attachments. Vendors count pixels, pages and seconds, which are not known here."""
    tokens = 0
    for each in message.attachments:
        if each.media_type.startswith("image/") or not each.size:
            tokens += _PER_IMAGE
        elif each.is_text:
            try:
                tokens += counter(each.data.decode(errors="replace"))
            except AttachmentError:  # the call itself reports it
                tokens += each.size // 4
        else:
            tokens += max(_PER_IMAGE, each.size // _BYTES_PER_TOKEN)
    return tokens


def _as_text(message: Message) -> str:
    calls = (f"{call.name} {json_text(call.arguments)}" for call in message.tool_calls)
    return "\n".join((message.content, *calls)) if message.tool_calls else message.content
