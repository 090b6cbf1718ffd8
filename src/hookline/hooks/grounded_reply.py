"""A hook that adds to a reply the result that it leaves out."""

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
_FEW = 5
_LONGEST = 200
_READ = 20_000


class GroundedReplyHook:
    """Adds the result of the last tool call to a final reply that leaves out what the user did not know yet.

    A small model often ends with "It is done." or makes up a number. What counts is what the result says and the
    request did not: all of its numbers and ids, if they are few, else at least one of its words. A result that
    nobody could miss, a failed call, and a reply in a ``response_format`` change nothing. It passes on whatever a
    tool gave: not for tools whose results the user may not see.
    """

    points = frozenset({AFTER_LLM})
    priority = 55
    on_failure = "open"

    def __call__(self, point: str, ctx: Any, reply: ModelReply) -> HookResult | None:
        """Look at a final reply."""
        if reply.purpose != "step" or reply.tool_calls or not reply.content or reply.request.response_format:
            return None
        messages = ctx.state.messages
        last, asked = next(iter(recent_results(messages)), None), last_user_message(messages)
        if last is None or last.is_error or not _leaves_out(reply.content, last, asked.content if asked else ""):
            return None
        text = f"{reply.content.rstrip()} {as_sentence(last.content, _LONGEST)}"
        return HookResult.replace({"content": text}, reason="it left the result out")


def _leaves_out(text: str, result: Message, asked: str) -> bool:
    known, said = _words(asked), _words(text)
    given = [word for leaf in leaf_values(parse_json(result.content[:_READ])) for word in _words_of(leaf)]
    news = [word for word in dict.fromkeys(given) if word not in known]
    numbers = [word for word in news if any(letter.isdigit() for letter in word)]
    if 0 < len(numbers) <= _FEW:
        return not all(number in said for number in numbers)
    return bool(news) and not any(word in said for word in news)


def _words_of(leaf: Any) -> list[str]:
    if leaf is None or isinstance(leaf, bool):
        return []
    return list(_words(str(leaf)))


def _words(text: str) -> dict[str, None]:
    found = (word.casefold() for word in _WORD.findall(text))
    return dict.fromkeys(word.removesuffix(".0") for word in found)
