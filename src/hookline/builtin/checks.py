"""What the constructors of built-in hooks check: nonsense is told where it is written."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from ..base.names import is_number
from ..kernel.errors import RegistrationError


def positive(value: Any, name: str) -> float:
    """A finite number above 0."""
    if not is_number(value) or not 0 < value < inf:
        raise RegistrationError(f"{name} is a number above 0, not {value!r:.80}")
    return value  # type: ignore[no-any-return]


def seconds(value: Any, name: str) -> float:
    """A number of seconds, 0 or more."""
    if not is_number(value) or not 0 <= value < inf:
        raise RegistrationError(f"{name} is a number of seconds, 0 or more, not {value!r:.80}")
    return float(value)


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
        raise RegistrationError(f"{name} is a list of names with at least one in it, not {value!r}")
    return names


def error_names(value: Any, name: str) -> frozenset[str]:
    """The class names of errors, given as names or as the classes themselves."""
    if isinstance(value, type):
        raise RegistrationError(f"{name} is a list of errors: [{value.__name__}]")
    if isinstance(value, Iterable) and not isinstance(value, str):
        value = tuple(_error_name(item) for item in value)
    return frozenset(names_of(value, name))


def able(value: object, method: str, expected: str) -> None:
    """That a value has a method; the error says what is ``expected`` instead."""
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise RegistrationError(f"{expected}, not {value!r:.80}")


def _error_name(item: Any) -> Any:
    return item.__name__ if isinstance(item, type) and issubclass(item, BaseException) else item
