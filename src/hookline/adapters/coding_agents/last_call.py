"""The last tool call of each coding agent that the hooks judged, for ``hookline doctor``: when, and what came of it.

It is in a small file in the user's data folder, without arguments or reasons. Writing it never fails a call.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from ..._base.files import replace_file, user_folder
from .events import Answer

Decision = Literal["allowed", "denied", "asked", "changed"]


class LastCall(msgspec.Struct, frozen=True):
    """A call that was judged.

    Args:
        at: when, in seconds since 1970.
        tool: the agent's name of the tool.
        decision: what the hooks decided.
    """

    at: float
    tool: str
    decision: Decision

    @classmethod
    def of(cls, tool: str, answer: Answer) -> LastCall:
        """Return a call that was judged now."""
        decision: Decision = "allowed"
        if answer.deny is not None or answer.stop is not None:
            decision = "denied"
        elif answer.ask is not None:
            decision = "asked"
        elif answer.changed is not None:
            decision = "changed"
        return cls(time.time(), tool[:200], decision)


def save_last_call(agent: str, call: LastCall) -> None:
    """Write the last call of an agent, if that is possible."""
    file = last_call_file(agent)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(file, msgspec.json.encode(call), 0o600, sync=False)


def load_last_call(agent: str) -> LastCall | None:
    """Return the last call of an agent; ``None`` if there was none, or if the file cannot be read."""
    try:
        return msgspec.json.decode(last_call_file(agent).read_bytes(), type=LastCall)
    except (OSError, msgspec.DecodeError):
        return None


def last_call_file(agent: str) -> Path:
    """Return the file of an agent."""
    return user_folder("data") / "last-calls" / f"{agent}.json"
