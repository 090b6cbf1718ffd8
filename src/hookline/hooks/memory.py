"""What an agent remembers, in front of the model."""

from __future__ import annotations

import os
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelRequest
from .._kernel.points import BEFORE_LLM
from .._kernel.results import HookResult
from ..stores.memory import MemoryStore
from ._support.messages import add_system_text
from ._support.validation import check_integer, check_method, check_path

_EXPECTED = "memory takes a MemoryStore or the path of its file"


def memory_of(memory: Any, method: str) -> Any:
    """The memory that a hook was given, or that of a path; ``None`` for that of the context."""
    if isinstance(memory, (str, os.PathLike)):
        return MemoryStore(check_path(memory, _EXPECTED))
    if memory is not None:
        check_method(memory, method, _EXPECTED)
    return memory


def scope_of(scope: object) -> str:
    """The name of a scope."""
    if not isinstance(scope, str):
        raise RegistrationError(f"scope is text, not {scope!r}")
    return scope


class MemoryInjectionHook:
    """Adds facts, preferences and the latest episodes of a memory to the system message of every step.

    The memory is read once for a run, before its first model call, so all calls of the run are given the same text.
    A memory that cannot be read is reported, and the run goes on without it.

    Args:
        memory: a store, or the path of its file; ``ctx.memory`` if left out.
        max_facts: how many facts, the ones said last.
        max_episodes: how many episodes.
        scope: facts, preferences and episodes of this scope only; of all scopes if left out.

    Raises:
        RegistrationError: a memory that cannot be rendered, or numbers that make no sense.
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
        self.memory = memory_of(memory, "render")
        self.max_facts, self.max_episodes = (
            check_integer(max_facts, "max_facts", 0),
            check_integer(max_episodes, "max_episodes", 0),
        )
        self.scope = None if scope is None else scope_of(scope)

    async def __call__(self, point: str, ctx: Any, request: ModelRequest) -> HookResult | None:
        """Add the text to one request."""
        memory = ctx.memory if self.memory is None else self.memory
        if memory is None:
            return None

        def make() -> str:
            return memory.render(max_facts=self.max_facts, max_episodes=self.max_episodes, scope=self.scope) or ""

        return await add_system_text(self, ctx, request, make)
