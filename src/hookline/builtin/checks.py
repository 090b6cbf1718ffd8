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
