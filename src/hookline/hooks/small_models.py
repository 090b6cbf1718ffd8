"""Recommended hooks for small models."""

from __future__ import annotations

from typing import Any

from .echoed_payload import EchoedPayloadHook
from .grounded_reply import GroundedReplyHook
from .loop_detector import LoopDetectorHook
from .schema_retry import SchemaRetryHook


def default_slm_hooks() -> list[Any]:
    """Return the recommended hooks for a small model, such as one below 4 billion parameters.

    A model that repeats a successful call ends the run with its result. A reply that copies tool data becomes a
    sentence; a reply that omits the tool result gets it appended. A call that failed, or that has a
    text which stands nowhere in the conversation, is made once more.

    Example::

        agent = Agent("a", llm=model, tools=[weather], hooks=default_slm_hooks())
    """
    return [
        LoopDetectorHook(answer=True),
        EchoedPayloadHook(),
        GroundedReplyHook(),
        SchemaRetryHook(any_error=True, grounded=True),
    ]
