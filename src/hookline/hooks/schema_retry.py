"""Help a model to correct invalid tool arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .._base.frozen import json_text
from .._kernel.payloads import ModelRequest, ToolCallRequest, ToolCallResult
from .._kernel.points import AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_bool, check_integer
from .._kernel.values import Message, ToolSpec
from ..tools.arguments import is_written_freely
from ._support.tools import find_tool

_CHOSEN = ("enum", "const", "format", "pattern")  # a schema with these says itself which values are right
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
        grounded: block a call with a text that stands nowhere in the conversation, and have it made again: small models
            invent values, or copy them from a description. Enums, dates and other formats, defaults, and texts that a
            model writes (:func:`~hookline.tools.arguments.is_written_freely`) may be new.

    Raises:
        RegistrationError: ``max_retries_per_tool`` is not a whole number above 0.
    """

    points = frozenset({AFTER_TOOL, BEFORE_LLM})
    priority = 40
    on_failure = "open"

    def __init__(self, max_retries_per_tool: int = 1, *, any_error: bool = False, grounded: bool = False) -> None:
        self.max_retries_per_tool = check_integer(max_retries_per_tool, "max_retries_per_tool")
        self.any_error = check_bool(any_error, "any_error")
        if check_bool(grounded, "grounded"):
            self.points = frozenset({BEFORE_TOOL, AFTER_TOOL, BEFORE_LLM})

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Block invented arguments, explain an error to the model, or require the call in the next request."""
        if point == BEFORE_TOOL:
            return self._check(ctx, payload)
        return self._constrain(ctx, payload) if point == BEFORE_LLM else self._explain(ctx, payload)

    def _check(self, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        tool = find_tool(ctx, request.name)
        state: _Retries = ctx.own_state(self, _Retries)
        if tool is None or state.counts[request.name] >= self.max_retries_per_tool:
            return None
        invented = _invented(tool.spec, request.arguments, ctx.state.messages)
        if not invented:
            return None
        state.counts[request.name] += 1
        state.tool, state.hop = request.name, request.hop + 1
        values = ", ".join(f"{name} {json_text(value)}" for name, value in invented.items())
        hint = f"Nobody mentioned {values}. Call {request.name} again, with the words of the request."
        return HookResult.block(hint, reason=f"{values} stands nowhere in the conversation")

    def _explain(self, ctx: Any, result: ToolCallResult) -> HookResult | None:
        tool = find_tool(ctx, result.name)
        if result.outcome != "error" or tool is None:
            return None
        error = next((e.type for e in reversed(ctx.state.errors) if e.call_id == result.id), "")
        state: _Retries = ctx.own_state(self, _Retries)
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
        state: _Retries = ctx.own_state(self, _Retries)
        if (request.purpose, request.hop) != ("step", state.hop) or request.tool_choice is not None:
            return None
        if not any(tool.name == state.tool for tool in request.tools):
            return None
        return HookResult.replace({"tool_choice": state.tool}, reason=f"{state.tool} is to be called again")


def _invented(tool: ToolSpec, arguments: Mapping[str, Any], messages: Sequence[Message]) -> dict[str, str]:
    """Return the texts among the arguments that stand nowhere in the conversation."""
    said = _plain(" ".join(each.content for each in messages if each.role in ("user", "tool")))
    found = {}
    for name, value in arguments.items():
        schema = tool.parameters.get("properties", {}).get(name)
        if not isinstance(schema, Mapping) or schema.get("type") != "string" or not isinstance(value, str):
            continue
        may_be_new = not schema.keys().isdisjoint(_CHOSEN) or is_written_freely(name, schema)
        if not may_be_new and value != schema.get("default") and _plain(value) not in said:
            found[name] = value
    return found


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


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
