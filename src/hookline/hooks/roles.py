"""A guard that keeps tools for people with a role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_TOOL
from .._kernel.results import HookResult
from ._support.validation import check_name_or_names, check_names


class RoleBasedAccessHook:
    """Blocks calls of certain tools unless the user has a role that may use them.

    The role is read from ``ctx.state.metadata``, where your program puts it: one name or a list of them.

    Args:
        rules: globs of tool names, each with the role, or the roles, one of which is needed; or a list of
            globs, which are then for the role ``admin``. Where several globs match, all must be satisfied.
        key: where in the metadata the user's role is.

    Raises:
        RegistrationError: no rules, or rules that are no names.
    """

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100

    def __init__(self, rules: Mapping[str, str | Iterable[str]] | Iterable[str], *, key: str = "user_role") -> None:
        if not isinstance(rules, Mapping):
            rules = dict.fromkeys(check_names(rules, "rules"), "admin")
        check_names(list(rules), "rules")
        if not isinstance(key, str) or not key:
            raise RegistrationError(f"key is a name in the metadata, not {key!r}")
        self.rules = {glob: check_name_or_names(roles, f"the roles for {glob!r}") for glob, roles in rules.items()}
        self.key = key

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Judge one call."""
        held = roles_of_user(ctx, self.key)
        for glob, roles in self.rules.items():
            if fnmatchcase(request.name, glob) and not any(role in held for role in roles):
                needed = " or ".join(roles)
                message = f'Tool "{request.name}" requires {needed} privileges.'
                return HookResult.block(message, reason=f"not {needed}")
        return None


def roles_of_user(ctx: Any, key: str) -> list[Any]:
    """What the metadata of a run says that its user is: one name, or a list of them."""
    has = ctx.state.metadata.get(key)
    return [has] if isinstance(has, str) else has if isinstance(has, list) else []
