"""Restrict tools to users with a role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_name_or_names, check_names
from ..tools.registry import ToolView


class RoleBasedAccessHook:
    """Blocks calls of certain tools unless the user has a role that may use them.

    Your program puts the user's role, or a list of roles, into ``ctx.state.metadata``.

    Example::

        RoleBasedAccessHook({"deploy_*": "admin", "refund": ["admin", "support"]})

    Args:
        rules: globs of tool names, each with a role or a list of roles; the user needs one of them. A list of globs
            requires the role ``admin``. If several globs match a tool, the user must satisfy all of them.
        key: the metadata key of the user's role.

    Raises:
        RegistrationError: there are no rules, or a rule is not a name.
    """

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100

    def __init__(self, rules: Mapping[str, str | Iterable[str]] | Iterable[str], *, key: str = "user_role") -> None:
        if not isinstance(rules, Mapping):
            rules = dict.fromkeys(check_names(rules, "rules"), "admin")
        check_names(list(rules), "rules")
        if not isinstance(key, str) or not key:
            raise RegistrationError(f"key must be a metadata key, not {key!r}")
        self.rules = {glob: check_name_or_names(roles, f"the value for {glob!r}") for glob, roles in rules.items()}
        self.key = key

    def covers(self, tool: ToolView) -> bool:
        """Whether a rule names the tool."""
        return any(fnmatchcase(tool.name, glob) for glob in self.rules)

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Block the call if the user lacks a role for the tool."""
        held = roles_of_user(ctx, self.key)
        for glob, roles in self.rules.items():
            if fnmatchcase(request.name, glob) and not any(role in held for role in roles):
                needed = " or ".join(roles)
                message = f'Tool "{request.name}" requires {needed} privileges.'
                return HookResult.block(message, reason=f"not {needed}")
        return None


def roles_of_user(ctx: Any, key: str) -> list[Any]:
    """Return the user's roles from the metadata of a run: a single name, or a list."""
    roles = ctx.state.metadata.get(key)
    return [roles] if isinstance(roles, str) else roles if isinstance(roles, list) else []
