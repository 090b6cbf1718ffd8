"""The answer to an event that is not judged: it does not happen.

This must work whatever is broken, and fast, so the module needs nothing but the standard library.
"""

from __future__ import annotations

import json

from .codecs import codec_of
from .events import CommandOutput


def refusal(agent: str, variables: str, data: bytes | bytearray, problem: str) -> CommandOutput:
    """Return the answer to an event that is not judged.

    Args:
        agent: the coding agent.
        variables: what the environment says about it, for :meth:`~.codecs.base.Codec.for_event`.
        data: the event, which may be anything.
        problem: what went wrong, for the model.
    """
    codec, event = codec_of(agent), None
    try:
        given = json.loads(data)
        codec = codec.for_event(variables, given)
        event = codec.read(given)
    except (ValueError, RecursionError):
        pass
    return codec.refuse(event, problem[:5000], "")
