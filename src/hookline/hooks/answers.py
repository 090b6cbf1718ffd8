"""A model's reply, to be served as an answer."""

from __future__ import annotations

from .._kernel.payloads import ModelReply
from .._kernel.values import ModelResponse


def as_answer(reply: ModelReply) -> ModelResponse:
    """What a reply says, without its usage: that has been counted where it was made."""
    return ModelResponse(
        reply.content, reply.tool_calls, finish_reason=reply.finish_reason, cost=0.0, model=reply.model,
        provider=reply.provider, organization_id=reply.organization_id,
    )  # fmt: skip
