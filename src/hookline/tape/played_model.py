"""The model of a replay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from .._kernel.payloads import ModelRequest
from .._kernel.values import Message, ModelResponse, Usage
from ..models.protocol import Model
from . import entries as on
from .playback import Playback
from .recorded_model import count_key, price_key, request_key


class Answers(Protocol):
    """Where answers come from."""

    counted: Mapping[str, float | None]

    async def answer_to(self, request: ModelRequest) -> tuple[on.ModelAnswered, int]:
        """What the model said to a request, and where on the tape."""
        ...

    async def end_of(self, answer: on.ModelAnswered, end: int) -> ModelResponse | None:
        """Wait until it is the turn of an answer, and give how it ended."""
        ...


class PlayedModel:
    """A model that says what is on the tape; the real one is only asked for its name."""

    def __init__(self, answers: Answers, playback: Playback, model: Model) -> None:
        self._answers, self._playback = answers, playback
        self.name, self.provider = model.name, model.provider

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The whole reply at once."""
        answer, end = await self._answers.answer_to(request)
        response = await self._answers.end_of(answer, end)
        if response is None:
            return await self._playback.leave("the reply was broken off then")
        return response

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Pieces as they came, then the whole reply."""
        answer, end = await self._answers.answer_to(request)
        try:
            for piece in answer.pieces:
                yield piece
        except GeneratorExit:
            self._playback.passed(end)
            raise
        response = await self._answers.end_of(answer, end)
        if response is not None:
            yield response

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """As many as it said then; else an estimate."""
        known = self._answers.counted.get(count_key(content))
        if known is not None:
            return int(known)
        texts = [content] if isinstance(content, str) else [message.content for message in content]
        return sum(len(text) // 4 + 1 for text in texts)

    def count_request(self, request: ModelRequest) -> int:
        """As many as it said then; else an estimate."""
        known = self._answers.counted.get(request_key(request))
        return int(known) if known is not None else self.count_tokens(request.messages)

    def price(self, usage: Usage) -> float | None:
        """What it said then."""
        return self._answers.counted.get(price_key(usage))
