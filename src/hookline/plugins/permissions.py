"""What a plugin asks for: told to people before it is switched on, and held to where that can be seen."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from .._kernel.hook import compile_hook
from ..tools._tool import Tool

PERMISSIONS = {
    "rewrite": "change tasks, prompts, requests, replies, tool calls or results",
    "approve": "answer for you when a hook asks for approval",
    "dangerous": "bring tools that may do harm, such as write or send",
    "network": "reach other computers",
    "files:read": "read your files",
    "files:write": "write or delete your files",
    "shell": "start programs",
    "model": "ask the model on its own",
}
"""What each permission means."""
ENFORCED = frozenset(("rewrite", "approve", "dangerous", "secrets"))
"""Those that Hookline itself holds a plugin to; the others are the plugin's word."""
_SECRET = re.compile(r"secrets:([A-Za-z_]\w*)")


def meaning(permission: str) -> str:
    """What a permission means, in words.

    Raises:
        RegistrationError: there is none of that name.
    """
    if secret := _SECRET.fullmatch(permission):
        return f"read the environment variable {secret[1]}"
    if permission not in PERMISSIONS:
        known = (*PERMISSIONS, "secrets:NAME")
        raise RegistrationError(
            f"there is no permission {permission!r}.{did_you_mean(permission, known)} There are {', '.join(known)}"
        )
    return PERMISSIONS[permission]


def check_permissions(granted: Collection[str], hooks: Iterable[Any], tools: Iterable[Tool]) -> None:
    """See that hooks and tools do no more than what was asked for.

    Raises:
        RegistrationError: one does; it says which permission it needs.
    """
    for hook in hooks:
        for entry in compile_hook(hook):
            if entry.point == "approval_requested" and entry.phase != "observe":
                _need("approve", granted, f"hook {entry.name!r} answers at {entry.point}")
            elif entry.phase == "rewrite":
                _need("rewrite", granted, f"hook {entry.name!r} rewrites at {entry.point}")
    for tool in tools:
        if tool.dangerous:
            _need("dangerous", granted, f"tool {tool.name!r} is marked as dangerous")


def check_secrets(granted: Collection[str], variables: Iterable[str]) -> None:
    """See that settings come only from environment variables that were asked for.

    Raises:
        RegistrationError: one does not.
    """
    for name in variables:
        _need(f"secrets:{name}", granted, f"a setting comes from the environment variable {name}")


def _need(permission: str, granted: Collection[str], why: str) -> None:
    if permission not in granted:
        raise RegistrationError(f'{why}: that needs permissions = ["{permission}"] in plugin.toml')
