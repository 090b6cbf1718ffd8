"""Values in the form in which OpenTelemetry can send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._base.frozen import scrub
from ..._base.text import is_number
from ..._kernel.values import Usage
from . import attributes as a

Attributes = dict[str, Any]

_LONGEST = 500


def short(value: object) -> str:
    """The beginning of a text."""
    return clean(str(value)[:_LONGEST])


def clean(text: str) -> str:
    """Text that can be sent: one lone surrogate would make an exporter lose all that it has to send."""
    return text if text.isascii() else str(scrub(text))


def params_of(params: Mapping[str, Any]) -> Attributes:
    """The settings of a request for which the conventions have a name."""
    found = {attribute: params[name] for name, attribute in a.PARAMS.items() if _is_sendable(params.get(name))}
    stop = params.get("stop") or params.get("stop_sequences")
    if isinstance(stop, (str, list, tuple)):
        found[a.STOP_SEQUENCES] = [short(item) for item in ([stop] if isinstance(stop, str) else stop)]
    return found


def usage_of(usage: Usage) -> Attributes:
    """The tokens that were used."""
    found = {a.INPUT_TOKENS: usage.input_tokens, a.OUTPUT_TOKENS: usage.output_tokens}
    found |= {a.CACHE_READ_TOKENS: usage.cached_tokens} if usage.cached_tokens else {}
    return {name: count for name, count in found.items() if _is_sendable(count)}


def _is_sendable(value: Any) -> bool:
    """Whether it is a number for which there is room: 64 bits."""
    return is_number(value) and (isinstance(value, float) or -(2**63) <= value < 2**63)
