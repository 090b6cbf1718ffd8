"""Checks that several built-in hooks make of their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from ..base.names import is_number
from ..kernel.errors import RegistrationError


def positive(value: Any, name: str, *, whole: bool = False) -> Any:
    """A finite number above 0, a ``whole`` one if need be."""
    if not is_number(value) or not 0 < value < inf or (whole and not isinstance(value, int)):
        raise RegistrationError(f"{name} must be a {'whole ' if whole else ''}number above 0, not {value!r}")
    return value


def names_of(value: Any, name: str) -> tuple[str, ...]:
    """A list of names or globs, with at least one in it."""
    if isinstance(value, str):
        raise RegistrationError(f"{name} is a list: [{value!r}]")
    names = tuple(value) if isinstance(value, Iterable) else ()
    if not names or not all(isinstance(item, str) and item for item in names):
        raise RegistrationError(f"{name} must be a list of names with at least one in it, not {value!r}")
    return names
