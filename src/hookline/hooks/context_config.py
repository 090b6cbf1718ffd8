"""Set the system prompt and the response format of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._base.frozen import freeze
from .._kernel.errors import RegistrationError
from .._kernel.payloads import RunStart
from .._kernel.points import ON_RUN_START
from .._kernel.results import HookResult


class ApplyContextConfigHook:
    """Sets the system prompt and the response format at the start of each run.

    An empty value changes nothing. Runs of subagents are not changed.

    Args:
        system_prompt: replaces the agent's instructions.
        response_format: JSON schema of the replies.

    Raises:
        RegistrationError: ``system_prompt`` is not text, or ``response_format`` is not a JSON object.
    """

    points = frozenset({ON_RUN_START})
    priority = 80
    inherit = False

    def __init__(self, system_prompt: str = "", response_format: Mapping[str, Any] | None = None) -> None:
        if not isinstance(system_prompt, str):
            raise RegistrationError(f"system_prompt must be text, not {type(system_prompt).__name__}")
        if response_format is not None and not isinstance(response_format, Mapping):
            raise RegistrationError(f"response_format must be a JSON schema, not {type(response_format).__name__}")
        try:
            self.response_format = freeze(response_format)
        except (TypeError, ValueError) as error:
            raise RegistrationError(f"response_format is not JSON: {error}") from error
        self.system_prompt = system_prompt
        self.changes = ("response_format",) if self.response_format else ()

    def __call__(self, point: str, ctx: Any, start: RunStart) -> HookResult:
        """Change the state before the first model call."""
        state = ctx.state
        if self.system_prompt:
            state = state.with_system_prompt(self.system_prompt)
        if self.response_format:
            state = state.replace(response_format=self.response_format)
        return HookResult.cont(state=state)
