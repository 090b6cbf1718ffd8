"""EchoedPayloadHook: replaces a reply that only repeats the JSON of a tool result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelReply
from .._kernel.points import AFTER_LLM
from .._kernel.results import HookResult
from ._support.messages import last_user_message
from ._tool_results import as_sentence, parse_json, recent_results


class EchoedPayloadHook:
    """Replaces a final reply that only echoes the JSON of a tool result by a sentence made from that result.

    An echo is the JSON object or array of a result, or a part of the object, complete or truncated, with or without a
    Markdown code fence. The reply stays unchanged if JSON was requested (by ``response_format``, or by the user).

    Example:
        >>> agent = Agent("helper", llm="local", tools=[weather], hooks=[EchoedPayloadHook()])

    Args:
        fallback: the new reply: a text in which ``{result}`` is replaced by the result in words, or a function that
            takes the value of the result and returns a text.

    Raises:
        RegistrationError: ``fallback`` is neither a text nor a function.
    """

    points = frozenset({AFTER_LLM})
    priority = 60
    on_failure = "open"

    def __init__(self, fallback: str | Callable[[Any], str] = "{result}") -> None:
        if not (isinstance(fallback, str) and fallback.strip()) and not callable(fallback):
            raise RegistrationError(f"fallback must be a text, or a function of the result, not {fallback!r}")
        self.fallback = fallback

    def __call__(self, point: str, ctx: Any, reply: ModelReply) -> HookResult | None:
        """Replace a final reply that only echoes a tool result."""
        if reply.purpose != "step" or reply.tool_calls or reply.request.response_format is not None:
            return None
        if not reply.content.lstrip("` \n\tjson").startswith(("{", "[")):
            return None
        messages = ctx.state.messages
        asked = last_user_message(messages)
        if asked is not None and "json" in asked.content.casefold():
            return None
        for result in recent_results(messages):
            if _echoes(reply.content, result.content):
                return HookResult.replace(
                    {"content": self._words(result.content)}, reason="the reply only echoed a tool result"
                )
        return None

    def _words(self, result: str) -> str:
        if isinstance(self.fallback, str):
            return self.fallback.replace("{result}", as_sentence(result))
        return self.fallback(parse_json(result))


def _echoes(text: str, result: str) -> bool:
    """Whether a reply is only a tool result, or a part of it."""
    data, given = parse_json(text), parse_json(result)
    if isinstance(data, str):  # not valid JSON: truncated
        begun = "".join(text.strip().removeprefix("```json").strip("`").split())
        return len(begun) > 1 and "".join(result.split()).startswith(begun)
    if isinstance(data, Mapping) and isinstance(given, Mapping):
        return bool(data) and all(name in given and given[name] == value for name, value in data.items())
    return isinstance(data, (Mapping, list)) and data == given
