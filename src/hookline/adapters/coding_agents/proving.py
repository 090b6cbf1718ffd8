"""The call that Hookline always denies, so that everybody can see whether its denials arrive."""

from __future__ import annotations

from typing import Any

from ..._kernel.payloads import ToolCallRequest
from ..._kernel.points import BEFORE_TOOL
from ..._kernel.results import HookResult

PROOF = "hookline-proof"
"""A command with this word is denied in every protected session."""
REASON = f"This is Hookline: commands with {PROOF} are always denied, which proves that its denials arrive here."


class DenyProof:
    """Denies every command that contains :data:`PROOF`."""

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 1000

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Block the call, if one of its texts contains the word and the tool runs commands."""
        tool = ctx.tool_registry.get(request.name)
        if tool is None or not tool.may("execute"):
            return None
        named = any(PROOF in value for value in request.arguments.values() if isinstance(value, str))
        return HookResult.block(REASON, reason="proof") if named else None
