"""One attempt of one tool call, on its way to a result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from .._base.frozen import EMPTY
from .._kernel.payloads import Question, ToolCallRequest, ToolCallResult
from .._kernel.results import Answer
from .._kernel.values import ToolCall
from ..tools._tool import Tool


class Slot(msgspec.Struct):
    """One attempt of one call, on its way to a result."""

    call: ToolCall
    request: ToolCallRequest
    valid: ToolCallRequest | None = None
    tool: Tool | None = None
    values: Mapping[str, Any] = EMPTY
    result: ToolCallResult | None = None
    answer: Answer | None = None
    asks: tuple[Question, ...] = ()
    asking: bool = False
    started: bool = False
    ended: bool = False
    by: str = ""
    denied: bool = False
    began: float = 0.0
    pending: tuple[tuple[float | None, str], ...] = ()
    pump: asyncio.Task[None] | None = None
