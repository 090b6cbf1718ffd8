"""Settings as they may be shown: without passwords, keys and tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

MASK = "***"
_NAMES = re.compile(
    r"(^|[_-])(api[_-]?key|key|token|secret|password|passwd|authorization|credentials?)s?$", re.IGNORECASE
)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY = re.compile(r"(?i)(?<=[?&])([^=&\s]*(?:key|token|secret|password|signature)[^=&\s]*=)[^&\s]+")
_OPTION = re.compile(r"(?i)((?:--?|\b)[\w-]*(?:key|token|secret|password)[=\s]+)[^\s,]+")
_KEY_LIKE = re.compile(r"\b(sk|pk|ghp|xox[a-z])[-_][A-Za-z0-9_-]{8,}")


def masked(value: Any, name: str = "") -> Any:
    """The same value, plain, with everything that looks like a secret replaced by ``***``."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item, name) for item in value]
    if not isinstance(value, str) or not value:
        return value
    if _NAMES.search(name):
        return MASK
    value = _USERINFO.sub(MASK, value)
    value = _QUERY.sub(rf"\g<1>{MASK}", value)
    value = _OPTION.sub(rf"\g<1>{MASK}", value)
    return _KEY_LIKE.sub(MASK, value)
