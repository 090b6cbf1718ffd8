"""What the constructors of built-in hooks check."""

from __future__ import annotations

from ..kernel.errors import RegistrationError


def whole(value: object, name: str, least: int = 1) -> int:
    """A whole number that is not below ``least``.

    Raises:
        RegistrationError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RegistrationError(f"{name} is a whole number, {least} or more, not {value!r:.80}")
    return value


def able(value: object, method: str, expected: str) -> None:
    """That a value has a method.

    Raises:
        RegistrationError: it has not, with what is ``expected`` instead.
    """
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise RegistrationError(f"{expected}, not {value!r:.80}")
