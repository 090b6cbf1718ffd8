"""What a model must be able to do for the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from .._kernel.payloads import ModelRequest
from .._kernel.values import Message, ModelResponse

FINISH_REASONS = ("stop", "tool_calls", "length", "content_filter", "other")
"""Why a model stopped: it was done, it called tools, it hit a length limit, it was silenced, or else."""


@runtime_checkable
class Model(Protocol):
    """A language model. Implementations keep no conversation: each request holds all of it.

    Of a request, ``tool_choice`` is ``None`` or ``"auto"`` (as the model likes), ``"none"``, ``"required"`` or
    a tool's name; ``params`` may hold ``temperature``, ``max_tokens``, ``top_p``, ``stop`` and ``seed``, and
    settings of the provider's own. A reply's ``finish_reason`` is one of :data:`FINISH_REASONS`. What fails
    raises a :class:`~hookline.models.ProviderError`. A model may also have ``price(usage)``, which gives USD or
    ``None`` (calls that are broken off are charged by it), and ``count_request(request)``, the tokens of a whole
    request.
    """

    @property
    def name(self) -> str:
        """Which model, as its provider calls it."""
        ...

    @property
    def provider(self) -> str:
        """Who serves it."""
        ...

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The whole reply at once."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Pieces of text as they come, then the whole reply as the last item."""
        ...

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """How many tokens a text or some messages take."""
        ...
