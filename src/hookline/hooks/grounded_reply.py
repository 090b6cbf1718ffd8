"""GroundedReplyHook: adds a tool result to a reply that leaves it out."""

from __future__ import annotations

import re
from typing import Any

from .._kernel.payloads import ModelReply
from .._kernel.points import AFTER_LLM
from .._kernel.results import HookResult
from .._kernel.values import Message
from ._support.messages import last_user_message
from ._tool_results import as_sentence, leaf_values, parse_json, recent_results

_WORD = re.compile(r"[^\W_](?:[\w.:@/'-]*[\w%])?|-?\d[\w.:-]*")
_FEW = 5  # numbers that a reply must repeat completely
_MAX_SENTENCE = 200
_MAX_RESULT = 20_000


class GroundedReplyHook:
    """Adds the result of the last tool call to a final reply that omits its new information.

    Small models often end with "It is done." or invent a number. The new information is the part of the result that is
    not in the request: all of its numbers and ids if there are few, else at least one of its words. The reply stays
    unchanged if there is no new information, if the call failed, and if there is a ``response_format``. Do not use it
    with tools whose results the user must not see.

    Example:
        >>> agent = Agent("helper", llm="local", tools=[weather], hooks=[GroundedReplyHook()])
    """

    points = frozenset({AFTER_LLM})
    priority = 55
    on_failure = "open"

    def __call__(self, point: str, ctx: Any, reply: ModelReply) -> HookResult | None:
        """Add the tool result to a final reply that omits it."""
        if reply.purpose != "step" or reply.tool_calls or not reply.content or reply.request.response_format:
            return None
        messages = ctx.state.messages
        last, asked = next(iter(recent_results(messages)), None), last_user_message(messages)
        if last is None or last.is_error or not _omits(reply.content, last, asked.content if asked else ""):
            return None
        text = f"{reply.content.rstrip()} {as_sentence(last.content, _MAX_SENTENCE)}"
        return HookResult.replace({"content": text}, reason="the reply omitted the tool result")


def _omits(text: str, result: Message, asked: str) -> bool:
    known, replied = _words(asked), _words(text)
    given = [word for leaf in leaf_values(parse_json(result.content[:_MAX_RESULT])) for word in _words_of(leaf)]
    news = [word for word in dict.fromkeys(given) if word not in known]
    numbers = [word for word in news if any(letter.isdigit() for letter in word)]
    if 0 < len(numbers) <= _FEW:
        return not all(number in replied for number in numbers)
    return bool(news) and not any(word in replied for word in news)


def _words_of(leaf: Any) -> list[str]:
    if leaf is None or isinstance(leaf, bool):
        return []
    return list(_words(str(leaf)))


def _words(text: str) -> dict[str, None]:
    found = (word.casefold() for word in _WORD.findall(text))
    return dict.fromkeys(word.removesuffix(".0") for word in found)
