"""A model that returns prepared replies, for tests, examples and dry runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from .._base.text import counted
from .._kernel.errors import ModelError
from .._kernel.payloads import ModelRequest
from .._kernel.values import Message, ModelResponse, ToolCall, Usage
from .attachments import ANY_TYPE

_REMEMBERED_CALLS = 1000
"""Calls are repeated in the same process soon after they were made: when a database was unreachable."""

Turn = ModelResponse | ToolCall | str | BaseException | Callable[[ModelRequest], Any] | Sequence[Any]


def reply(text: str, **fields: Any) -> ModelResponse:
    """Create a turn in which the model replies with text. Further fields are those of :class:`ModelResponse`.

    Example:
        >>> ScriptedModel([reply("Hello!", cost=0.01)])
    """
    return ModelResponse(content=text, **fields)


def call(name: str, /, **arguments: Any) -> ToolCall:
    """Create a turn, or a part of one, in which the model calls a tool. The model assigns the id of the call.

    Example:
        >>> ScriptedModel([call("get_weather", city="Berlin"), reply("It is sunny.")])
    """
    return ToolCall("", name, arguments)


class ScriptedModel:
    """Returns a prepared list of turns, one for each request, and records the requests.

    Example::

        model = ScriptedModel([call("get_weather", city="Berlin"), reply("It is sunny.")])
        result = Agent("test", llm=model, tools=[get_weather]).run("How is the weather?")
        assert len(model.requests) == 2

    Args:
        turns: each turn is a :func:`reply`, a :func:`call`, a list of calls and text, an exception to raise, or a
            function that takes the request and returns one of these. A function instead of the list answers every
            request.
        delay: seconds to wait before each reply, and between streamed words.
        name: the model name that it reports.
        loop: whether to start again from the first turn after the last one.

    Raises:
        TypeError: an item of ``turns`` is not a turn.
    """

    provider = "scripted"
    attachment_types = ANY_TYPE

    def __init__(
        self,
        turns: Iterable[object] | Callable[[ModelRequest], Any] = (),
        *,
        delay: float = 0.0,
        name: str = "scripted",
        loop: bool = False,
    ) -> None:
        if callable(turns):
            turns, loop = [turns], True
        elif isinstance(turns, (str, ModelResponse, ToolCall)) or not isinstance(turns, Iterable):
            raise TypeError(f"turns must be a list: write ScriptedModel([{turns!r:.80}])")
        self.turns: list[Turn] = [_checked(turn) for turn in turns]
        self.delay, self.name, self.loop = delay, name, loop
        self.requests: list[ModelRequest] = []
        self._ahead = 0
        """The number of turns that are taken and have no request here, less the requests that had a turn again."""
        self._assigned: list[tuple[ModelRequest, int]] = []
        self._taken: dict[str, int] = {}
        """The turns of the last calls of durable runs in this process, by call."""

    def take_turn(self, request: ModelRequest, call: str, number: int | None = None) -> int:
        """Assign a turn to a request that :meth:`complete` or :meth:`stream` gets next, and return its number.

        Args:
            request: the request.
            call: identifies the call in its durable run, or is empty. A call that is made again gets the same turn.
            number: the turn that the durable run has recorded for this call; ``None`` if it has recorded none.
        """
        if number is None:
            number = self._taken.get(call, self._position)
        self.skip_turn(number)
        self._assigned.append((request, number))
        if call:
            self._taken[call] = number
            if len(self._taken) > _REMEMBERED_CALLS:
                del self._taken[next(iter(self._taken))]
        return number

    def skip_turn(self, number: int) -> None:
        """Continue after this turn, which an earlier process has had. If it was taken here, nothing changes."""
        self._ahead += max(0, number + 1 - self._position)

    @property
    def _position(self) -> int:
        """The number of the next turn."""
        return len(self.requests) + self._ahead

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the next turn."""
        if self.delay:
            await asyncio.sleep(self.delay)
        return self._next(request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Yield the next turn word by word, then the whole response."""
        response = self._next(request)
        for word in re.findall(r"\s*\S+|\s+$", response.content):
            if self.delay:
                await asyncio.sleep(self.delay)
            yield word
        yield response

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Count words, like the usage of this model does."""
        if isinstance(content, str):
            return len(content.split())
        return sum(len(message.content.split()) for message in content)

    def _next(self, request: ModelRequest) -> ModelResponse:
        number = self._turn_of(request)
        self.requests.append(request)
        if number >= len(self.turns) and not (self.loop and self.turns):
            raise ModelError(
                f"the script has only {counted(len(self.turns), 'turn')}, but this is request {number + 1}"
            )
        turn = self.turns[number % len(self.turns)]
        if callable(turn) and not isinstance(turn, BaseException):
            turn = _checked(turn(request))
        if isinstance(turn, BaseException):
            raise turn
        return self._response(turn, number, request)

    def _turn_of(self, request: ModelRequest) -> int:
        for index, (assigned, number) in enumerate(self._assigned):
            if assigned is request:
                del self._assigned[index]
                self._ahead -= 1
                return number
        return self._position

    def _response(self, turn: Any, number: int, request: ModelRequest) -> ModelResponse:
        if isinstance(turn, str):
            turn = ModelResponse(content=turn)
        elif not isinstance(turn, ModelResponse):
            parts = [turn] if isinstance(turn, ToolCall) else list(turn)
            calls = tuple(part for part in parts if isinstance(part, ToolCall))
            text = "".join(part for part in parts if isinstance(part, str))
            turn = ModelResponse(content=text, tool_calls=calls, finish_reason="tool_calls" if calls else "stop")
        named = [c if c.id else c.replace(id=f"call_{number}_{i}") for i, c in enumerate(turn.tool_calls)]
        turn = turn.replace(tool_calls=named)
        if turn.usage == Usage():
            turn = turn.replace(usage=Usage(self.count_tokens(request.messages), self.count_tokens(turn.content)))
        return turn if turn.cost is not None else turn.replace(cost=0.0)  # type: ignore[no-any-return]


def _checked(turn: Any) -> Any:
    if isinstance(turn, (str, ModelResponse, ToolCall, BaseException)) or callable(turn):
        return turn
    if isinstance(turn, (list, tuple)) and all(isinstance(part, (str, ToolCall)) for part in turn):
        return turn
    expected = "reply(...), call(...), a list of calls and text, an exception, or a function that returns one of these"
    raise TypeError(f"{turn!r:.80} is not a turn of a script: expected {expected}")
