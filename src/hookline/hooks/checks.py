"""What the constructors of built-in hooks check: nonsense is told where it is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .._base.text import is_number
from .._kernel.errors import RegistrationError

_LARGEST = sys.float_info.max  # a whole number may be larger, and cannot be reckoned with


def positive(value: Any, name: str) -> float:
    """A finite number above 0."""
    if not is_number(value) or not 0 < value <= _LARGEST:
        raise RegistrationError(f"{name} is a number above 0, not {value!r:.80}")
    return value  # type: ignore[no-any-return]


def seconds(value: Any, name: str) -> float:
    """A number of seconds, 0 or more."""
    if not is_number(value) or not 0 <= value <= _LARGEST:
        raise RegistrationError(f"{name} is a number of seconds, 0 or more, not {value!r:.80}")
    return float(value)


def whole(value: object, name: str, least: int = 1) -> int:
    """A whole number that is not below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RegistrationError(f"{name} is a whole number, {least} or more, not {value!r:.80}")
    if value > sys.maxsize:
        raise RegistrationError(f"{name} is a whole number of at most {sys.maxsize}")
    return value


def flag(value: object, name: str) -> bool:
    """``True`` or ``False``, and nothing that only counts as one: the text "no" would be a yes."""
    if not isinstance(value, bool):
        raise RegistrationError(f"{name} is True or False, not {value!r:.80}")
    return value


def names_of(value: Any, name: str, least: int = 1) -> tuple[str, ...]:
    """A list of names or globs, with at least so many in it."""
    if isinstance(value, str):
        raise RegistrationError(f"{name} is a list: [{value!r:.80}]")
    is_list = isinstance(value, Iterable) and not isinstance(value, Mapping)
    names = tuple(value) if is_list else ()
    if not is_list or len(names) < least or not all(isinstance(item, str) and item for item in names):
        enough = " with at least one in it" if least else ""
        raise RegistrationError(f"{name} must be a list of names{enough}, not {value!r:.80}")
    return names


def one_or_more(value: Any, name: str, least: int = 1) -> tuple[str, ...]:
    """The same, or a single name or glob."""
    return names_of([value] if isinstance(value, str) else value, name, least)


def error_names(value: Any, name: str) -> frozenset[str]:
    """The class names of errors, given as names or as the classes themselves."""
    if isinstance(value, type):
        raise RegistrationError(f"{name} is a list of errors: [{value.__name__}]")
    if isinstance(value, Iterable) and not isinstance(value, (str, Mapping)):
        value = tuple(_error_name(item) for item in value)
    return frozenset(names_of(value, name))


def path_of(value: Any, expected: str) -> str:
    """A path that a file or folder can have; the error says what is ``expected`` instead."""
    try:
        path = os.fspath(value)
        if isinstance(path, str) and path.strip() and b"\0" not in os.fsencode(path):
            return str(path)
    except (TypeError, UnicodeEncodeError):
        pass  # refused below
    raise RegistrationError(f"{expected}, not {value!r:.80}")


def folder_of(value: Any, name: str) -> str:
    """The real path of a folder that is there."""
    found = os.path.realpath(path_of(value, f"{name} is the path of a folder"))
    if not os.path.isdir(found):
        raise RegistrationError(f"there is no folder {str(value)!r:.200}")
    return found


def able(value: object, method: str, expected: str) -> None:
    """That a value has a method; the error says what is ``expected`` instead."""
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise RegistrationError(f"{expected}, not {value!r:.80}")


def _error_name(item: Any) -> Any:
    return item.__name__ if isinstance(item, type) and issubclass(item, BaseException) else item
