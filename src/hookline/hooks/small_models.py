"""The hooks that a small model should never be without, as one list."""

from __future__ import annotations

from typing import Any

from .echoed_payload import EchoedPayloadHook
from .grounded_reply import GroundedReplyHook
from .loop_detector import LoopDetectorHook
from .schema_retry import SchemaRetryHook


def default_slm_hooks() -> list[Any]:
    """Hooks that harden a small model, below 4 billion parameters, say, that was not trained to call tools.

    At the first exact repeat of a good call, the user is answered from its result. Data that is copied out becomes a
    sentence, and a result that a reply leaves out is added to it. A call that failed is made once more.
    """
    return [
        LoopDetectorHook(answer=True),
        EchoedPayloadHook(),
        GroundedReplyHook(),
        SchemaRetryHook(any_error=True),
    ]
