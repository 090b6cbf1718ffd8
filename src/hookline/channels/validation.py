"""Check the names, paths and secrets that channels are configured with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .protocol import ChannelError

MIN_SECRET_LENGTH = 16
"""Shortest secret, in characters."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}")
_PATH = re.compile(r"/(?:[A-Za-z0-9._~-]+/?)*")


def checked_name(name: str) -> str:
    """Return a name if it can be part of a path and of a cookie's name.

    Raises:
        ChannelError: the name has other characters or is too long.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ChannelError(f"{name!r:.80} is not a valid channel name: use at most 50 letters, digits, - and _")
    return name


def checked_path(path: str) -> str:
    """Return a path if it begins with a slash and needs no escapes.

    Raises:
        ChannelError: the path is not valid.
    """
    if not isinstance(path, str) or not _PATH.fullmatch(path) or "/." in path:
        raise ChannelError(f"{path!r:.80} is not a valid path: write it like /chat, with letters, digits, - and _")
    return path


def checked_secrets(secret: str | Sequence[str], setting: str = "secret") -> tuple[str, ...]:
    """Return one or several secrets as a tuple if they are long enough.

    Raises:
        ChannelError: a secret is too short, or there is none.
    """
    secrets = (secret,) if isinstance(secret, str) else tuple(secret or ())
    if not secrets or not all(isinstance(each, str) and len(each) >= MIN_SECRET_LENGTH for each in secrets):
        raise ChannelError(
            f"{setting} must have at least {MIN_SECRET_LENGTH} characters: create one with `openssl rand -hex 32`, "
            "and pass it through the environment"
        )
    return secrets
