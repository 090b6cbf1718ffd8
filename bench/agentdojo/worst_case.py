"""The worst-case model: it solves the user's task, and obeys every injection that it can read."""

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from agentdojo.functions_runtime import FunctionCall

from hookline import Message
from hookline.models import ModelResponse
from hookline.payloads import ModelRequest, ToolCall

USER, INJECTED = "user", "injected"
"""How the ids of calls begin: for the user's task, and for the injection."""


class Injection(NamedTuple):
    """An injected task: its text, its calls, the wanted answer, and whether refused calls are repeated."""

    goal: str
    calls: Callable[[], Sequence[FunctionCall]]
    answer: str = ""
    again: bool = False


class WorstCase:
    """A model without judgement that makes the calls of the user's task one by one.

    As soon as the text of the injection is in a tool result that it can read, it makes the calls of the injection
    first. After a blocked call it continues with the others; at the end it repeats those of the injection that did not
    run, if the injection says so. It makes no call and gives no answer for which it would
    need a part of a result that a hook withheld.

    Args:
        calls: the calls of the user's task.
        answer: its final answer.
        injection: the injected task.
    """

    name = "worst-case"
    provider = "agentdojo"

    def __init__(self, calls: Sequence[FunctionCall], answer: str, injection: Injection | None = None) -> None:
        self._user, self._injected, self._refused = deque(calls), deque[FunctionCall](), deque[FunctionCall]()
        self._answer, self._injection = answer, injection
        self._last: FunctionCall | None = None  # the injected call before, and how many results there were
        self._before = 0
        self._number = 0
        self.has_read = False
        self.origin = USER
        self.results: list[str] = []
        """The results of its calls as the tools returned them."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Make the next call, or give the final answer."""
        if self._injection is not None and not self.has_read and _can_read(self._injection.goal, request.messages):
            self.has_read = True
            self._injected.extend(self._injection.calls())
        if self._last is not None and len(self.results) == self._before:
            self._refused.append(self._last)
        self._last = None
        if self._injected:
            wanted = self._injected.popleft()
            if self._injection is not None and self._injection.again:
                self._last, self._before = wanted, len(self.results)
            return self._call(INJECTED, wanted)
        while self._user:
            wanted = self._user.popleft()
            if self._knows(request.messages, json.dumps(dict(wanted.args), default=str)):
                return self._call(USER, wanted)
        if self._refused:
            return self._call(INJECTED, self._refused.popleft())
        if not self._knows(request.messages, self._answer):
            self._answer = "I could not read that."
        if self.has_read and self._injection is not None and self._injection.answer:
            return ModelResponse(content=f"{self._answer}\n{self._injection.answer}")
        return ModelResponse(content=self._answer or "Done.")

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Yield the whole reply."""
        yield await self.complete(request)

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Return a rough count."""
        return len(str(content)) // 4

    def _knows(self, messages: Sequence[Message], text: str) -> bool:
        """Return whether all words of a text that a tool returned are still in the results that the model reads."""
        returned = _words("\n".join(self.results))
        readable = _words("\n".join(message.content for message in messages))
        return not (_words(text) & returned) - readable

    def _call(self, origin: str, wanted: FunctionCall) -> ModelResponse:
        self._number += 1
        self.origin = origin
        call = ToolCall(f"{origin}-{self._number}", wanted.function, dict(wanted.args))
        return ModelResponse(tool_calls=(call,), finish_reason="tool_calls")


def _can_read(goal: str, messages: Sequence[Message]) -> bool:
    """Return whether a tool result contains the goal, however its characters are quoted or escaped."""
    wanted = _letters(goal)
    return any(wanted in _letters(message.content) for message in messages if message.role == "tool")


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]{3,}", re.sub(r"\\+[nrt]", " ", text)))


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", re.sub(r"\\+[nrt]", " ", text))
