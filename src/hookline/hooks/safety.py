"""SafetyGuardrailHook: block and allow lists for tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.payloads import RunStart
from .._kernel.points import ON_RUN_START
from .._kernel.results import HookResult
from ._support.words import WordList, WordPattern


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
        blocklist: Iterable[WordPattern] = (),
        allowlist: Iterable[WordPattern] = (),
        *,
        reply: str = "I cannot help with that.",
    ) -> None:
        self._blocked, self._allowed = WordList(blocklist, "blocklist"), WordList(allowlist, "allowlist")
        if not self._blocked and not self._allowed:
            raise RegistrationError("give a blocklist or an allowlist with at least one entry")
        if not isinstance(reply, str):
            raise RegistrationError(f"reply must be text, not {type(reply).__name__}")
        self.reply = reply

    def __call__(self, point: str, ctx: Any, start: RunStart) -> HookResult | None:
        """Check the task."""
        blocked = self._blocked.find(start.task)
        if blocked is not None:
            return HookResult.end(self.reply, reason=f"blocklist: {blocked}")
        if self._allowed and self._allowed.find(start.task) is None:
            return HookResult.end(self.reply, reason="allowlist: no entry matches")
        return None
