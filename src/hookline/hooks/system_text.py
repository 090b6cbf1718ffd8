"""Text for the system message of a request: what hooks that add context share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .._kernel.payloads import ModelRequest
from .._kernel.results import HookResult
from .._kernel.values import Message


async def inject(hook: object, ctx: Any, request: ModelRequest, make: Callable[[], str]) -> HookResult | None:
    """Add text to a step's system message: made once for a run, in a thread, and never twice in a request.

    If it cannot be made, that is raised once, and the run goes on without it.
    """
    if request.purpose != "step":
        return None
    state = ctx.hook_state.setdefault(id(hook), {})
    if "text" not in state:
        state["text"] = ""
        state["text"] = await asyncio.to_thread(make)
    text: str = state["text"]
    if not text.strip():
        return None
    messages = list(request.messages)
    at = next((index for index, message in enumerate(messages) if message.role == "system"), None)
    if at is None:
        messages.insert(0, Message("system", text))
    elif text in messages[at].content:
        return None
    else:
        before = messages[at].content
        messages[at] = messages[at].replace(content=f"{before}\n\n{text}" if before else text)
    return HookResult.replace(request.replace(messages=messages), reason="context added")
