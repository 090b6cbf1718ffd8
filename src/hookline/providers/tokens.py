"""How many tokens a text or some messages take, without asking anybody."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import ceil
from typing import Any

from .._base.frozen import json_text
from .._kernel.values import Message

_PER_MESSAGE = 4
_OLD = ("gpt-3.5", "gpt-35", "gpt-4", "text-embedding")
_NEW_GPT_4 = ("gpt-4o", "gpt-4.")

Counter = Callable[[str], int]


def estimate(text: str, *, bytes_per_token: float) -> int:
    """A guess from the length in UTF-8."""
    return ceil(len(text.encode("utf-8", "replace")) / bytes_per_token)


def openai_counter(model: str) -> Counter:
    """Counts as OpenAI's model does, with ``bpe-openai`` if that is installed; else an estimate."""
    old = model.startswith(_OLD) and not model.startswith(_NEW_GPT_4)
    encoding = _encoding("cl100k_base" if old else "o200k_base")
    if encoding is None:
        return partial(estimate, bytes_per_token=4)
    return lambda text: len(encoding.encode_ordinary(text.encode("utf-8", "replace").decode()))


@lru_cache(maxsize=2)
def _encoding(name: str) -> Any:
    """A tokenizer, which takes about a second to load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it reads its data in an outdated way
        try:
            from bpe_openai import get_encoding
        except ImportError:
            return None
        return get_encoding(name)


def count(content: str | Sequence[Message], counter: Counter) -> int:
    """The tokens of a text, or of messages with their calls and a few for each message's frame."""
    if isinstance(content, str):
        return counter(content)
    return sum(_PER_MESSAGE + counter(_written_out(message)) for message in content)


def _written_out(message: Message) -> str:
    calls = (f"{call.name} {json_text(call.arguments)}" for call in message.tool_calls)
    return "\n".join((message.content, *calls)) if message.tool_calls else message.content
