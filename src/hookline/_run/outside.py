"""Where a run meets the world: what its model calls, tool calls and approvals go through, if anything (DESIGN 6.11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from .._kernel.payloads import ApprovalRequest, ToolCallRequest
from .._kernel.results import Verdict
from ..models.protocol import Model
from ..tools._tool import Checked, Tool


class Outside(Protocol):
    """What ``ctx.outside`` may be: it sees all that a run asks of the world, and may answer itself.

    Runs inside the run have the same one.
    """

    def model(self, model: Model) -> Model:
        """The model to ask in the place of this one."""

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> Checked | str:
        """What ``tool.validate(arguments)`` gives."""

    def call(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Awaitable[Any]:
        """What ``tool.call(values, ctx)`` gives."""

    def approve(
        self,
        asked: ApprovalRequest,
        ask: Callable[[], Awaitable[Verdict]],
        report: Callable[..., Awaitable[Verdict | None]],
    ) -> Awaitable[Verdict]:
        """What the approvers say. ``ask()`` asks them; ``report(error)`` puts a failure of theirs to ``on_error``."""

    def steered(self, run_id: str, text: str) -> None:
        """A message was put into the run, for its next model call."""
