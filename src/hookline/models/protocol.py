"""The interface of a language model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from .._kernel.payloads import ModelRequest
from .._kernel.values import Message, ModelResponse

FINISH_REASONS = ("stop", "tool_calls", "length", "content_filter", "other")
"""The reasons why a model stopped: finished, called tools, reached a length limit, was filtered, or another reason."""


@runtime_checkable
class Model(Protocol):
    """A language model. It is stateless: each request contains the whole conversation.

    In a request, ``tool_choice`` is ``None`` or ``"auto"`` (the model decides), ``"none"``, ``"required"`` or the name
    of a tool; ``params`` may contain ``temperature``, ``max_tokens``, ``top_p``, ``stop``, ``seed`` and settings of the
    provider. The ``finish_reason`` of a reply is one of :data:`FINISH_REASONS`. Failures are raised as
    :class:`~hookline.models.ProviderError`.

    Two methods are optional: ``price(usage)`` returns the cost in USD or ``None``, for calls that were interrupted, and
    ``count_request(request)`` returns the number of tokens of a whole request. A model that takes attachments has an
    attribute ``attachment_types`` with their media types, such as ``("image/*", "application/pdf")``. Requests with
    other attachments fail before the model is called.

    A model that gives its replies in a fixed order, such as :class:`~hookline.ScriptedModel`, has two more methods, so
    that a durable run continues after the replies that it has had. ``take_turn(request, call, number)`` is called
    before each call and returns the number of its reply, which the run records: ``number`` if it is not ``None``, the
    same one as before if this ``call`` is made again in this process, or else the next one. ``skip_turn(number)`` is
    called for each recorded reply instead of a call.

    Example::

        class Echo:
            name = "echo"
            provider = "example"

            async def complete(self, request):
                return ModelResponse(content=request.messages[-1].content)

            async def stream(self, request):
                yield await self.complete(request)

            def count_tokens(self, content):
                return len(str(content)) // 4
    """

    @property
    def name(self) -> str:
        """The provider's name for the model."""
        ...

    @property
    def provider(self) -> str:
        """The name of the provider."""
        ...

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole reply."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Yield pieces of text as they arrive, then the whole reply as the last item."""
        ...

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Return the number of tokens in a text or in messages."""
        ...
