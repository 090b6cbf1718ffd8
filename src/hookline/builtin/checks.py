"""Checks that several built-in hooks make of their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from ..base.names import is_number
from ..kernel.errors import RegistrationError


def positive(value: Any, name: str) -> Any:
    """A finite number above 0."""
    if not is_number(value) or not 0 < value < inf:
        raise RegistrationError(f"{name} is a number above 0, not {value!r:.80}")
    return value


def whole(value: object, name: str, least: int = 1) -> int:
    """A whole number that is not below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RegistrationError(f"{name} is a whole number, {least} or more, not {value!r:.80}")
    return value


def names_of(value: Any, name: str) -> tuple[str, ...]:
    """A list of names or globs, with at least one in it."""
    if isinstance(value, str):
        raise RegistrationError(f"{name} is a list: [{value!r}]")
    names = tuple(value) if isinstance(value, Iterable) else ()
    if not names or not all(isinstance(item, str) and item for item in names):
        raise RegistrationError(f"{name} must be a list of names with at least one in it, not {value!r}")
    return names
