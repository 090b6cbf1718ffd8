"""Help a model to correct invalid tool arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from .._base.frozen import json_text
from .._kernel.payloads import ModelRequest, ToolCallResult
from .._kernel.points import AFTER_TOOL, BEFORE_LLM
from .._kernel.results import HookResult
from .._kernel.validation import check_bool, check_integer
from .._kernel.values import ToolSpec
from ._support.tools import find_tool

_UNKNOWN_OUTCOME = frozenset({"TimeoutError", "CancelledError"})


class _Retries(msgspec.Struct):
    """The number of hints for each tool, and the tool to call again in the next step."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)
    tool: str = ""
    hop: int = -1


class SchemaRetryHook:
    """Adds the tool's parameters to an error about invalid arguments, and makes the model call the tool again.

    The next request has the tool as its ``tool_choice``. Models that can generate by a schema then make that call with
    valid arguments. Other requests are not changed.

    Args:
        max_retries_per_tool: maximum number of retries of each tool in one run.
        any_error: also retry calls that failed for another reason, because small models report an error to the user
            instead of trying again. Timeouts are not retried: the call may have worked.

    Raises:
        RegistrationError: ``max_retries_per_tool`` is not a whole number above 0.
    """

    points = frozenset({AFTER_TOOL, BEFORE_LLM})
    priority = 40
    on_failure = "open"

    def __init__(self, max_retries_per_tool: int = 1, *, any_error: bool = False) -> None:
        self.max_retries_per_tool = check_integer(max_retries_per_tool, "max_retries_per_tool")
        self.any_error = check_bool(any_error, "any_error")

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Explain an error to the model, or require the call in the next request."""
        return self._constrain(ctx, payload) if point == BEFORE_LLM else self._explain(ctx, payload)

    def _explain(self, ctx: Any, result: ToolCallResult) -> HookResult | None:
        tool = find_tool(ctx, result.name)
        if result.outcome != "error" or tool is None:
            return None
        error = next((e.type for e in reversed(ctx.state.errors) if e.call_id == result.id), "")
        state: _Retries = ctx.hook_state.setdefault(id(self), _Retries())
        invalid, again = error == "InvalidCall", self.any_error and error not in _UNKNOWN_OUTCOME
        if not (invalid or again) or state.counts[result.name] >= self.max_retries_per_tool:
            return None
        state.counts[result.name] += 1
        state.tool, state.hop = result.name, result.hop + 1
        if not invalid:
            return None
        hint = f"{result.error}\nCall {result.name} again, with these arguments:\n{_describe_parameters(tool.spec)}"
        return HookResult.replace({"error": hint}, reason="invalid arguments")

    def _constrain(self, ctx: Any, request: ModelRequest) -> HookResult | None:
        state: _Retries | None = ctx.hook_state.get(id(self))
        if state is None or (request.purpose, request.hop) != ("step", state.hop) or request.tool_choice is not None:
            return None
        if not any(tool.name == state.tool for tool in request.tools):
            return None
        return HookResult.replace({"tool_choice": state.tool}, reason=f"{state.tool} is to be called again")


def _describe_parameters(tool: ToolSpec) -> str:
    """Describe the parameters of a tool, one on a line."""
    required = tool.parameters.get("required", ())
    lines = []
    for name, given in tool.parameters.get("properties", {}).items():
        schema = given if isinstance(given, Mapping) else {}
        kind = schema.get("type") or ("anything" if not schema else json_text(schema))
        kind = f"one of {json_text(schema['enum'])}" if "enum" in schema else kind
        about = f": {schema['description']}" if schema.get("description") else ""
        lines.append(f"- {name} ({kind}, {'required' if name in required else 'optional'}){about}")
    return "\n".join(lines) or "- none: {}"
