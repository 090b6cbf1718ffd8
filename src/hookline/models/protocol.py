"""What a model must be able to do for the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from ..kernel.payloads import ModelRequest
from ..kernel.values import Message, ModelResponse


@runtime_checkable
class Model(Protocol):
    """A language model. Implementations keep no conversation: each request holds all of it."""

    @property
    def name(self) -> str:
        """Which model, as its provider calls it."""

    @property
    def provider(self) -> str:
        """Who serves it."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The whole reply at once."""

    def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Pieces of text as they come, then the whole reply as the last item."""

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """How many tokens a text or some messages take."""
