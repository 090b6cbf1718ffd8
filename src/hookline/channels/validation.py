"""What channels are told about themselves: names, paths and secrets that make sense."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .protocol import ChannelError

SECRET_LENGTH = 16
"""The fewest characters of a secret."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}")
_PATH = re.compile(r"/(?:[A-Za-z0-9._~-]+/?)*")


def checked_name(name: str) -> str:
    """A name that may stand in a path and a cookie.

    Raises:
        ChannelError: it may not.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ChannelError(f"{name!r:.80} is no name of a channel: use letters, digits, - and _, at most 50")
    return name


def checked_path(path: str) -> str:
    """A path that begins with a slash and needs no escapes.

    Raises:
        ChannelError: it is none.
    """
    if not isinstance(path, str) or not _PATH.fullmatch(path) or "/." in path:
        raise ChannelError(f"{path!r:.80} is no path: write it like /chat, of letters, digits, - and _")
    return path


def checked_secrets(secret: str | Sequence[str], what: str = "secret") -> tuple[str, ...]:
    """One or several secrets that cannot be guessed.

    Raises:
        ChannelError: one can be, or there is none.
    """
    secrets = (secret,) if isinstance(secret, str) else tuple(secret or ())
    if not secrets or not all(isinstance(one, str) and len(one) >= SECRET_LENGTH for one in secrets):
        raise ChannelError(
            f"{what} must have at least {SECRET_LENGTH} characters: make one with `openssl rand -hex 32`, "
            "and give it through the environment"
        )
    return secrets
