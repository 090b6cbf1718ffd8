"""Add facts, preferences and episodes from a memory to the system message."""

from __future__ import annotations

import os
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelRequest
from .._kernel.points import BEFORE_LLM
from .._kernel.results import HookResult
from .._kernel.validation import check_integer, check_method, check_path
from ..stores.memory import MemoryStore
from ._support.messages import add_system_text

_EXPECTED = "memory must be a MemoryStore or the path of its file"


def check_memory(memory: Any, method: str) -> Any:
    """Open the memory at a path, or check a given one; ``None`` stands for the memory of the context."""
    if isinstance(memory, (str, os.PathLike)):
        return MemoryStore(check_path(memory, _EXPECTED))
    if memory is not None:
        check_method(memory, method, _EXPECTED)
    return memory


def check_scope(scope: object) -> str:
    """Accept the name of a scope."""
    if not isinstance(scope, str):
        raise RegistrationError(f"scope must be text, not {scope!r}")
    return scope


class MemoryInjectionHook:
    """Adds facts, preferences and the latest episodes of a memory to the system message of every step.

    The memory is read once in each run, before its first model call, so all model calls of the run get the same text.
    If the memory cannot be read, the error is reported and the run continues without it.

    Args:
        memory: a ``MemoryStore`` or the path of its file; by default ``ctx.memory``.
        max_facts: maximum number of facts; the latest are used.
        max_episodes: maximum number of episodes.
        scope: use only this scope; by default all scopes.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({BEFORE_LLM})
    phase = "rewrite"
    priority = 80
    on_failure = "open"

    def __init__(
        self,
        memory: Any = None,
        *,
        max_facts: int = 20,
        max_episodes: int = 5,
        scope: str | None = None,
    ) -> None:
        self.memory = check_memory(memory, "render")
        self.max_facts = check_integer(max_facts, "max_facts", 0)
        self.max_episodes = check_integer(max_episodes, "max_episodes", 0)
        self.scope = None if scope is None else check_scope(scope)

    async def __call__(self, point: str, ctx: Any, request: ModelRequest) -> HookResult | None:
        """Add the text to one request."""
        memory = ctx.memory if self.memory is None else self.memory
        if memory is None:
            return None

        def make() -> str:
            return memory.render(max_facts=self.max_facts, max_episodes=self.max_episodes, scope=self.scope) or ""

        return await add_system_text(self, ctx, request, make)
