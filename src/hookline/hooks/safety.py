"""SafetyGuardrailHook: block and allow lists for tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.payloads import RunStart
from .._kernel.points import ON_RUN_START
from .._kernel.results import HookResult

Entry = str | re.Pattern[str]

_INVISIBLE = re.compile(  # ignorable characters in Unicode, and control characters other than whitespace
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2065\u3164"
    r"\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)


class SafetyGuardrailHook:
    """Ends a run at its start if the task matches a block list, or does not match an allow list.

    An entry is a word, a phrase, or a compiled regular expression. Words match as whole words in any case, Unicode form
    and spacing; expressions are searched in the task as it was written. The block list takes precedence. The
    transcript stays unchanged.

    Example:
        >>> hook = SafetyGuardrailHook(blocklist=["credit card", re.compile("(?i)passwords?")])

    Args:
        blocklist: a task that contains any of these entries is rejected.
        allowlist: if given, only tasks that contain one of these entries pass.
        reply: the reply of a rejected run; ``hook_ended`` names the list, and the entry of a block list.

    Raises:
        RegistrationError: both lists are empty, or an entry has the wrong type.
    """

    points = frozenset({ON_RUN_START})
    phase = "guard"
    priority = 100

    def __init__(
        self,
        blocklist: Iterable[Entry] = (),
        allowlist: Iterable[Entry] = (),
        *,
        reply: str = "I cannot help with that.",
    ) -> None:
        self._blocked, self._allowed = _rules(blocklist, "blocklist"), _rules(allowlist, "allowlist")
        if not self._blocked and not self._allowed:
            raise RegistrationError("give a blocklist or an allowlist with at least one entry")
        if not isinstance(reply, str):
            raise RegistrationError(f"reply must be text, not {type(reply).__name__}")
        self.reply = reply

    def __call__(self, point: str, ctx: Any, start: RunStart) -> HookResult | None:
        """Check the task."""
        plain = _normalize(start.task)
        for rule in self._blocked:
            if rule.matches(start.task, plain):
                return HookResult.end(self.reply, reason=f"blocklist: {rule.name}")
        if self._allowed and not any(rule.matches(start.task, plain) for rule in self._allowed):
            return HookResult.end(self.reply, reason="allowlist: no entry matches")
        return None


class _Rule:
    """A compiled entry."""

    def __init__(self, entry: Entry) -> None:
        self._as_written = not isinstance(entry, str)
        if isinstance(entry, str):
            self.name, words = entry, _normalize(entry)
            self._pattern = re.compile(_boundary(words[0], "(?<!") + re.escape(words) + _boundary(words[-1], "(?!"))
        else:
            self.name, self._pattern = entry.pattern, entry

    def matches(self, task: str, plain: str) -> bool:
        return self._pattern.search(task if self._as_written else plain) is not None


def _rules(entries: Any, name: str) -> tuple[_Rule, ...]:
    if isinstance(entries, (str, re.Pattern, Mapping)) or not isinstance(entries, Iterable):
        raise RegistrationError(f"{name} must be a list of words and expressions: [{entries!r}]")
    given = tuple(entries)
    for entry in given:
        words = isinstance(entry, str) and _normalize(entry)
        if not words and not (isinstance(entry, re.Pattern) and isinstance(entry.pattern, str)):
            raise RegistrationError(f"{name}: an entry must be a word, a phrase or re.compile(...), not {entry!r}")
    return tuple(map(_Rule, given))


def _normalize(text: str) -> str:
    """Normalise case, compatible characters and whitespace, and remove invisible characters."""
    text = _INVISIBLE.sub("", text)
    if not text.isascii():
        from unicodedata import category, normalize

        text = normalize("NFKC", normalize("NFKC", text).casefold())
        for character in set(text):
            if category(character) == "Cf":
                text = text.replace(character, "")
    return " ".join(text.casefold().split())


def _boundary(edge: str, look: str) -> str:
    """Return a condition that no word character is next to a word; not for scripts that are written without spaces."""
    from unicodedata import east_asian_width

    has_boundary = re.match(r"\w", edge) is not None and east_asian_width(edge) not in ("W", "F")
    return rf"{look}\w)" if has_boundary else ""
