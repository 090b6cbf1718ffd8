"""What became of a run, as its caller is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._kernel.state import AgentResult
from .._kernel.values import Usage
from ..stores.runs import RunRecord
from .records import RunClosed


def outcome_of(results: Sequence[AgentResult[Any]], problem: str = "") -> tuple[str, dict[str, Any]]:
    """The state that a served run ended in, and what else is known of it, from the runs that it was made of."""
    last, costs = results[-1], [result.cost for result in results]
    fatal = [f"{error.type}: {error.message}" for error in last.errors if error.fatal]
    stop = "" if last.stop is None else f"{last.stop.kind}: {last.stop.message}".removesuffix(": ")
    return last.status, {
        "reply": "\n\n".join(text for result in results if (text := result.output_text)),
        "error": fatal[-1] if fatal else problem,
        "reason": last.hook_ended or ("" if last.status == "completed" else stop),
        "stop": "" if last.stop is None else last.stop.kind,
        "steps": sum(len(result.steps) for result in results),
        "tool_calls": sum(result.tool_calls for result in results),
        "input_tokens": sum(result.usage.input_tokens for result in results),
        "output_tokens": sum(result.usage.output_tokens for result in results),
        "cached_tokens": sum(result.usage.cached_tokens for result in results),
        "cost": None if None in costs else sum(cost for cost in costs if cost is not None),
    }


def closing(run: RunRecord) -> RunClosed:
    """The last event of a run that is over."""
    return RunClosed(
        at=run.ended or 0.0, run_id=run.id, status=run.status, reply=run.reply, error=run.error, reason=run.reason,
        usage=Usage(run.input_tokens, run.output_tokens, run.cached_tokens), cost=run.cost,
    )  # fmt: skip
