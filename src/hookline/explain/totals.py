"""What the subagents of a run did. The totals of the run itself contain their tokens and cost, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .._base.text import counted

if TYPE_CHECKING:
    from .._kernel.state import AgentResult


class SubagentTotals(msgspec.Struct, frozen=True, omit_defaults=True):
    """Number of runs, steps and tool calls of the subagents of a run, and of theirs."""

    runs: int = 0
    steps: int = 0
    tool_calls: int = 0

    @classmethod
    def of(cls, result: AgentResult[Any]) -> SubagentTotals:
        """Return the totals of one subagent, without those of its own."""
        return cls(1, len(result.steps), result.tool_calls)

    def __add__(self, other: SubagentTotals) -> SubagentTotals:
        """Return the sum."""
        return SubagentTotals(self.runs + other.runs, self.steps + other.steps, self.tool_calls + other.tool_calls)

    def __str__(self) -> str:
        if not self.runs:
            return ""
        did = f"{counted(self.steps, 'step')}, {counted(self.tool_calls, 'tool call')}"
        return f"{counted(self.runs, 'subagent')} ({did})"
