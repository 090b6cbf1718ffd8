"""Mask passwords, keys and tokens in settings before they are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ..stores.paths import is_database_url, without_password

MASK = "***"
_NAMES = re.compile(
    r"(?i)(^|[_-])(api[_-]?key|key|token|secret|password|passwd|passphrase|auth|authorization|cookie|credentials?)s?$"
)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY = re.compile(
    r"(?i)(?<=[?&#])((?:[^=&\s]*(?:key|token|secret|passw|signature|credential)[^=&\s]*|code|sig|auth|jwt|session)=)"
    r"[^&\s\"']+"
)
_HEADER = re.compile(
    r"(?i)(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*|\bcookie[\"']?\s*:\s*)(\"[^\"]*\"|'[^']*'|[^\"'\n]+)"
)
_BEARER = re.compile(r"(?i)(\bbearer\s+)[^\s\"']+")
_SECRET = r"[\w-]*(?:key|token|secret|password|passwd|passphrase)"
_OPTION = re.compile(
    rf"(?i)((?<![\w-])--?(?:{_SECRET}|auth|pass|bearer)(?:\s*[=:]\s*|\s+)|\b{_SECRET}[\"']?\s*[=:]\s*)"
    r"(?:\"[^\"]*\"|'[^']*'|[^\s\"']+)"
)
_KEY_LIKE = re.compile(r"\b(sk|pk|ghp|xox[a-z])[-_][A-Za-z0-9_-]{8,}")


def mask(value: Any, name: str = "") -> Any:
    """Return the value as plain data, with ``***`` for everything that looks like a secret."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {key: mask(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask(item, name) for item in value]
    if type(value) is not bool and isinstance(value, int):
        return int(value)  # a default may be a subclass of int
    if not isinstance(value, str) or not value:
        return value
    if _NAMES.search(name):
        return MASK
    value = without_password(value) if is_database_url(value) else _USERINFO.sub(MASK, value)
    for pattern in (_QUERY, _HEADER, _BEARER, _OPTION):
        value = pattern.sub(rf"\g<1>{MASK}", value)
    return _KEY_LIKE.sub(MASK, value)


def mask_values(values: Mapping[str, Any], text: str) -> str:
    """Return the text with every secret among these values masked."""
    for name, value in values.items():
        if isinstance(value, str) and mask(value, name) == MASK:
            text = text.replace(value, MASK)
    return str(mask(text))
