"""An input rail: which tasks an agent takes on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.payloads import RunStart
from .._kernel.points import ON_RUN_START
from .._kernel.results import HookResult

Entry = str | re.Pattern[str]

_UNSEEN = re.compile(  # what Unicode calls ignorable beside its format characters, and controls that are no space
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2065\u3164"
    r"\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)


class SafetyGuardrailHook:
    """Ends a run at once if its task matches a block list, or does not match an allow list.

    An entry is a word or phrase, or a compiled regular expression. Words are found whatever their case, form
    and spacing, but only whole; expressions are searched for in the task as it was written. The block list
    beats the allow list. The transcript stays untouched.

    Args:
        blocklist: a task with any of these is refused.
        allowlist: with entries here, only a task with one of them passes.
        reply: what the user is told; ``hook_ended`` names the list, and the entry of a block list.

    Raises:
        RegistrationError: two empty lists, or an entry that is neither words nor an expression.
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
            raise RegistrationError(f"reply is text, not {type(reply).__name__}")
        self.reply = reply

    def __call__(self, point: str, ctx: Any, start: RunStart) -> HookResult | None:
        """Judge the task."""
        plain = _plain(start.task)
        for rule in self._blocked:
            if rule.matches(start.task, plain):
                return HookResult.end(self.reply, reason=f"blocklist: {rule.name}")
        if self._allowed and not any(rule.matches(start.task, plain) for rule in self._allowed):
            return HookResult.end(self.reply, reason="allowlist: no entry matches")
        return None


class _Rule:
    """One entry, ready to be looked for."""

    def __init__(self, entry: Entry) -> None:
        self._as_written = not isinstance(entry, str)
        if isinstance(entry, str):
            self.name, words = entry, _plain(entry)
            self._pattern = re.compile(_border(words[0], "(?<!") + re.escape(words) + _border(words[-1], "(?!"))
        else:
            self.name, self._pattern = entry.pattern, entry

    def matches(self, task: str, plain: str) -> bool:
        return self._pattern.search(task if self._as_written else plain) is not None


def _rules(entries: Any, name: str) -> tuple[_Rule, ...]:
    if isinstance(entries, (str, re.Pattern, Mapping)) or not isinstance(entries, Iterable):
        raise RegistrationError(f"{name} is a list of words and expressions: [{entries!r}]")
    given = tuple(entries)
    for entry in given:
        words = isinstance(entry, str) and _plain(entry)
        if not words and not (isinstance(entry, re.Pattern) and isinstance(entry.pattern, str)):
            raise RegistrationError(f"{name}: an entry is a word, a phrase or re.compile(...) of text, not {entry!r}")
    return tuple(map(_Rule, given))


def _plain(text: str) -> str:
    """Text in which case, compatible forms of characters, invisible ones and the kind of space do not matter."""
    text = _UNSEEN.sub("", text)
    if not text.isascii():
        from unicodedata import category, normalize

        text = normalize("NFKC", normalize("NFKC", text).casefold())
        for character in set(text):
            if category(character) == "Cf":
                text = text.replace(character, "")
    return " ".join(text.casefold().split())


def _border(edge: str, look: str) -> str:
    """No word character next to a word; scripts written without spaces have no such borders."""
    from unicodedata import east_asian_width

    has_border = re.match(r"\w", edge) is not None and east_asian_width(edge) not in ("W", "F")
    return rf"{look}\w)" if has_border else ""
