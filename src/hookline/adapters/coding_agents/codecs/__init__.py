"""The coding agents that ``hookline agent-hook`` knows: one module for each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..options import AGENTS

if TYPE_CHECKING:
    from .base import Codec


def codec_of(agent: str) -> Codec:
    """Return the codec of an agent."""
    if agent not in AGENTS:
        raise ValueError(f"{agent!r:.80} is not a coding agent that is known here")
    codec: Codec = import_module(f".{agent}", __name__).CODEC
    return codec
