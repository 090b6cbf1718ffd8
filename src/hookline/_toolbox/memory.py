"""Tools that let a model store and find facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..stores.memory import bullet, fact_line
from ..tools._tool import Tool

_MAX_RECALLED = 50


class FactStore(Protocol):
    """The methods that the tools need of a memory."""

    def add_fact(self, key: str, value: Any, *, source: str = "") -> Any:
        """Record a fact."""
        ...

    def facts(self, *, scope: str | None = None) -> Sequence[Any]:
        """Return the facts that are valid now."""
        ...

    def forget_fact(self, key: str) -> bool:
        """End a fact. Return whether there was one."""
        ...


def memory_tools(memory: FactStore) -> tuple[Tool, ...]:
    """Make the tools ``remember``, ``recall`` and ``forget``."""

    def remember(key: str, value: str) -> str:
        """Remember a fact for later conversations.

        Args:
            key: what the fact is about, in a word or two
            value: the fact
        """
        memory.add_fact(key.strip(), value, source="remember")
        return f"Remembered: {key.strip()}."

    def recall(query: str = "") -> str:
        """Recall facts that were remembered.

        Args:
            query: words to search for; leave it empty for all facts
        """
        words = query.casefold().split()
        lines = [fact_line(fact.key, fact.value) for fact in memory.facts(scope="")]
        found = [item for item in lines if all(word in item.casefold() for word in words)]
        more = [f"({len(found) - _MAX_RECALLED} more: give words to search for)"] if len(found) > _MAX_RECALLED else []
        return "\n".join([*map(bullet, found[:_MAX_RECALLED]), *more]) or "Nothing is remembered about that."

    def forget(key: str) -> str:
        """Forget a fact that is no longer true.

        Args:
            key: the key of the fact, as recall shows it
        """
        if memory.forget_fact(key.strip()):
            return f"Forgotten: {key.strip()}."
        raise ValueError(f"there is no fact {key!r:.80}; use recall to see the facts")

    return Tool(remember), Tool(recall), Tool(forget)
