"""Checks for the arguments of hooks, so that a mistake is reported where it is written.

Each function returns the checked value and raises :class:`RegistrationError` if the value is wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .._base.text import is_number
from .._kernel.errors import RegistrationError

_MAX_FLOAT = sys.float_info.max  # an int may be larger, and then overflows in arithmetic with floats


def check_positive(value: Any, name: str) -> float:
    """Accept a finite number above 0."""
    if not is_number(value) or not 0 < value <= _MAX_FLOAT:
        raise RegistrationError(f"{name} must be a number above 0, not {value!r:.80}")
    return value  # type: ignore[no-any-return]


def check_seconds(value: Any, name: str) -> float:
    """Accept a finite number of seconds, 0 or more."""
    if not is_number(value) or not 0 <= value <= _MAX_FLOAT:
        raise RegistrationError(f"{name} must be a number of seconds, 0 or more, not {value!r:.80}")
    return float(value)


def check_integer(value: object, name: str, minimum: int = 1) -> int:
    """Accept an integer from ``minimum`` up."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise RegistrationError(f"{name} must be a whole number, {minimum} or more, not {value!r:.80}")
    if value > sys.maxsize:
        raise RegistrationError(f"{name} must be a whole number of at most {sys.maxsize}")
    return value


def check_bool(value: object, name: str) -> bool:
    """Accept ``True`` or ``False``, but not other truthy values: the text "no" would count as true."""
    if not isinstance(value, bool):
        raise RegistrationError(f"{name} must be True or False, not {value!r:.80}")
    return value


def check_names(value: Any, name: str, minimum: int = 1) -> tuple[str, ...]:
    """Accept a list of at least ``minimum`` names or globs."""
    if isinstance(value, str):
        raise RegistrationError(f"{name} must be a list: [{value!r:.80}]")
    is_list = isinstance(value, Iterable) and not isinstance(value, Mapping)
    names = tuple(value) if is_list else ()
    if not is_list or len(names) < minimum or not all(isinstance(item, str) and item for item in names):
        at_least = " with at least one in it" if minimum else ""
        raise RegistrationError(f"{name} must be a list of names{at_least}, not {value!r:.80}")
    return names


def check_name_or_names(value: Any, name: str, minimum: int = 1) -> tuple[str, ...]:
    """Accept a single name or glob, or a list of them."""
    return check_names([value] if isinstance(value, str) else value, name, minimum)


def check_error_names(value: Any, name: str) -> frozenset[str]:
    """Accept exception classes, or their names, and return the names."""
    if isinstance(value, type):
        raise RegistrationError(f"{name} must be a list of errors: [{value.__name__}]")
    if isinstance(value, Iterable) and not isinstance(value, (str, Mapping)):
        value = tuple(_error_name(item) for item in value)
    return frozenset(check_names(value, name))


def check_path(value: Any, expected: str) -> str:
    """Accept a path that a file or folder can have; the error message begins with ``expected``."""
    try:
        path = os.fspath(value)
        if isinstance(path, str) and path.strip() and b"\0" not in os.fsencode(path):
            return str(path)
    except (TypeError, UnicodeEncodeError):
        pass  # reported below
    raise RegistrationError(f"{expected}, not {value!r:.80}")


def check_folder(value: Any, name: str) -> str:
    """Accept an existing folder, and return its real path."""
    found = os.path.realpath(check_path(value, f"{name} must be the path of a folder"))
    if not os.path.isdir(found):
        raise RegistrationError(f"there is no folder {str(value)!r:.200}")
    return found


def check_method(value: object, method: str, expected: str) -> None:
    """Accept an object with the given method; the error message begins with ``expected``."""
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise RegistrationError(f"{expected}, not {value!r:.80}")


def _error_name(item: Any) -> Any:
    return item.__name__ if isinstance(item, type) and issubclass(item, BaseException) else item
