"""A model whose replies are written down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from .._base.frozen import digest, plain, scrub
from .._kernel.payloads import ModelRequest
from .._kernel.values import Message, ModelResponse, Usage
from ..models.protocol import Model
from . import entries as on


class Notes(Protocol):
    """Where they are written."""

    def write(self, entry: on.Entry) -> None:
        """Write an entry."""
        ...

    def asked(self, model: Model, request: ModelRequest) -> int:
        """A request goes to the model: its number."""
        ...

    def counted(self, key: str, value: float | None) -> None:
        """A number that the model gave."""
        ...


class RecordedModel:
    """A model whose replies are written down."""

    def __init__(self, tape: Notes, model: Model) -> None:
        self._tape, self._model = tape, model
        self.name, self.provider = model.name, model.provider
        if hasattr(model, "stream"):
            self.stream = self._stream
        for name in ("price", "count_request"):
            if hasattr(model, name):
                setattr(self, name, getattr(self, f"_{name}"))

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The whole reply at once."""
        answer = on.ModelAnswered(number=self._tape.asked(self._model, request))
        try:
            response = await self._model.complete(request)
            answer = answer.replace(**_as_taped(self._model, response))
            return response
        except BaseException as error:
            answer = answer.replace(**on.ending_of(error))
            raise
        finally:
            self._tape.write(answer)

    async def _stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        number, pieces = self._tape.asked(self._model, request), list[str]()
        given, ended = self._model.stream(request), dict[str, Any]()
        response: ModelResponse | None = None
        try:
            async for piece in given:
                if isinstance(piece, ModelResponse):
                    response, ended = piece, _as_taped(self._model, piece)
                    break
                pieces.append(piece)
                yield piece
        except GeneratorExit:
            task = asyncio.current_task()
            ended = {"cancelled" if task is not None and task.cancelling() else "closed": True}
            raise
        except BaseException as error:
            ended = on.ending_of(error)
            raise
        finally:
            self._tape.write(on.ModelAnswered(number=number, pieces=tuple(pieces)).replace(**ended))
            if (close := getattr(given, "aclose", None)) is not None:
                await close()
        if response is not None:
            yield response

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """How many tokens a text or some messages take."""
        tokens = self._model.count_tokens(content)
        self._tape.counted(count_key(content), tokens)
        return tokens

    def _count_request(self, request: ModelRequest) -> int:
        tokens = int(self._model.count_request(request))  # type: ignore[attr-defined]
        self._tape.counted(request_key(request), tokens)
        return tokens

    def _price(self, usage: Usage) -> float | None:
        price: float | None = self._model.price(usage)  # type: ignore[attr-defined]
        self._tape.counted(price_key(usage), price)
        return price


def count_key(content: str | Sequence[Message]) -> str:
    """What a count of tokens is kept under."""
    return digest(scrub(content) if isinstance(content, str) else [plain(message) for message in content])[:16]


def request_key(request: ModelRequest) -> str:
    """What the count of a whole request is kept under."""
    return "request " + " ".join(on.digests_of(request).values())


def price_key(usage: Usage) -> str:
    """What a price is kept under."""
    return f"price {usage.to_json().decode()}"


def _as_taped(model: Model, response: Any) -> dict[str, Any]:
    if isinstance(response, ModelResponse):
        return {"response": msgspec.structs.replace(response, content=response.content or "")}
    wrong = f"model {model.name!r} returned {type(response).__name__}, not a ModelResponse"
    return {"raised": on.Raised("ModelError", wrong, "model")}
