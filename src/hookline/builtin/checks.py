"""What the constructors of built-in hooks check: nonsense is told where it is written."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from ..base.names import is_number
from ..kernel.errors import RegistrationError


def whole(value: Any, name: str, least: int = 1) -> int:
    """A whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise RegistrationError(f"{name} is a whole number, {least} or more; not {value!r}")
    return value


def seconds(value: Any, name: str) -> float:
    """A number of seconds, 0 or more."""
    if not is_number(value) or not isfinite(value) or value < 0:
        raise RegistrationError(f"{name} is a number of seconds, 0 or more; not {value!r}")
    return float(value)


def names_of(value: Any, name: str) -> tuple[str, ...]:
    """A list of names that is not empty."""
    if isinstance(value, str):
        raise RegistrationError(f"{name} is a list of names: [{value!r}]")
    given = tuple(value) if isinstance(value, Iterable) else ()
    if not given or not all(isinstance(item, str) and item for item in given):
        raise RegistrationError(f"{name} is a list of names, at least one; not {value!r}")
    return given


def error_names(value: Any, name: str) -> frozenset[str]:
    """The class names of errors, given as names or as the classes themselves."""
    if isinstance(value, type):
        raise RegistrationError(f"{name} is a list of errors: [{value.__name__}]")
    if isinstance(value, Iterable) and not isinstance(value, str):
        value = tuple(_error_name(item) for item in value)
    return frozenset(names_of(value, name))


def _error_name(item: Any) -> Any:
    return item.__name__ if isinstance(item, type) and issubclass(item, BaseException) else item
