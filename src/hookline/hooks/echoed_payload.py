"""A hook that puts into words what a model only copied out."""

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
    """Replaces a final reply that only echoes the data of a tool result by a sentence made of that result.

    Data is a JSON object or array, in a fence of Markdown or not, whole or cut off; of an object, a part is an echo
    too. Where JSON was asked for (by ``response_format``, or by the user in words), and where the data is not what
    a tool gave, the reply stays as it is.

    Args:
        fallback: what to say instead: a text, in which ``{result}`` stands for the result in words, or a function
            of the result's value that gives a text.

    Raises:
        RegistrationError: a fallback that is neither.
    """

    points = frozenset({AFTER_LLM})
    priority = 60
    on_failure = "open"

    def __init__(self, fallback: str | Callable[[Any], str] = "{result}") -> None:
        if not (isinstance(fallback, str) and fallback.strip()) and not callable(fallback):
            raise RegistrationError(f"fallback is a text, or a function of the result; not {fallback!r}")
        self.fallback = fallback

    def __call__(self, point: str, ctx: Any, reply: ModelReply) -> HookResult | None:
        """Look at a final reply."""
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
                return HookResult.replace({"content": self._words(result.content)}, reason="it echoed a tool result")
        return None

    def _words(self, result: str) -> str:
        if isinstance(self.fallback, str):
            return self.fallback.replace("{result}", as_sentence(result))
        return self.fallback(parse_json(result))


def _echoes(text: str, result: str) -> bool:
    """Whether a reply is a tool result, or a part of it, and nothing else."""
    data, given = parse_json(text), parse_json(result)
    if isinstance(data, str):  # it was cut off
        begun = "".join(text.strip().removeprefix("```json").strip("`").split())
        return len(begun) > 1 and "".join(result.split()).startswith(begun)
    if isinstance(data, Mapping) and isinstance(given, Mapping):
        return bool(data) and all(name in given and given[name] == value for name, value in data.items())
    return isinstance(data, (Mapping, list)) and data == given
