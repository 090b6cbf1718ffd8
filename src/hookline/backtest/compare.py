"""Compare the decision about a moment then and now, and describe both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from .._base.frozen import json_text, plain
from .._base.text import shorten
from .._kernel.results import HookAction, Verdict
from ..explain.words import verb_words
from .report import Kind

WORDS = {
    "block": "blocked",
    "ask": "asked",
    "end": "ended",
    "stop": "ended",
    "replace": "changed",
    "merge": "changed",
    "answer": "answered",
    "retry": "retried",
    "keep_going": "resumed",
    "claim": "claimed",
    "failed": "raised",
}
STOPPING = frozenset(("block", "ask", "end", "failed"))
"""Verbs at ``before_tool`` after which the tool does not simply run."""
_PASSING = frozenset(("replace", "ask", "answer", "stop", "retry", "merge"))
"""Verbs after which the payload is still used."""
_LENGTH = 200


class MomentOutcome(msgspec.Struct, frozen=True):
    """The decision of the hooks about a moment. ``payload`` is the payload after them; ``value`` is JSON."""

    verb: str = "cont"
    hook: str = ""
    reason: str = ""
    value: Any = None
    payload: Any = None
    is_known: bool = True
    """Whether ``value`` and ``payload`` are known, and not only the verb."""

    def __str__(self) -> str:
        """Describe the decision in words; empty if no hook decided anything."""
        if self.verb in ("cont", "invalid"):
            return ""
        value = self.value if isinstance(self.value, str) or self.value is None else json_text(self.value)
        by = f" by {self.hook}" if self.hook else ""
        reason = f" ({self.reason})" if self.reason and self.reason != value else ""
        return shorten(f"{verb_words(self.verb)[0]}{by}{reason}{f': {value}' if value else ''}", _LENGTH)


def outcome_of(verdict: Verdict) -> MomentOutcome:
    """Return the verdict of the dispatcher as an outcome."""
    verb = verdict.action
    value: Any = verdict.value
    if verb is HookAction.ASK:
        value = [question.text for question in verdict.asks]
        value = value[0] if len(value) == 1 else value
    elif verb is HookAction.ANSWER and verdict.answer is not None:
        value = plain(verdict.answer.value)
    elif verb is HookAction.STOP:
        value = [f"{signal.kind}: {signal.message}" for signal in verdict.signals]
    elif value is not None and not isinstance(value, str):
        value = plain(value)
    return MomentOutcome(str(verb), verdict.hook, str(verdict.reason), value, verdict.payload)


def kind_of(then: MomentOutcome, now: MomentOutcome) -> Kind:
    """Return the difference between two decisions."""
    if now.verb == then.verb:
        if now.verb in ("cont", "invalid", "failed") or not (now.is_known and then.is_known):
            return "same"
        if now.value != then.value:
            return "changed_differently" if now.verb == "merge" else "worded_differently"
        if now.verb in _PASSING and not _same_payload(then.payload, now.payload):
            return "changed_differently"
        return "same"
    if now.verb in WORDS:
        word = WORDS[now.verb]
        if WORDS.get(then.verb) == word:  # for example stop and end
            return "worded_differently"
        return "raised" if word == "raised" else cast("Kind", f"newly_{word}")
    return cast("Kind", f"no_longer_{WORDS[then.verb]}") if then.verb in WORDS else "same"


def _same_payload(then: Any, now: Any) -> bool:
    return then is now or then == now


def subject_of(payload: Any) -> str:
    """Return a payload in short form: the arguments of a call, the text of a message, or its fields."""
    for name in ("arguments", "result", "content", "task", "reply"):
        value = getattr(payload, name, None)
        if value:
            return shorten(value if isinstance(value, str) else _arguments(value), _LENGTH)
    messages = getattr(payload, "messages", ())
    if messages:
        return shorten(f"{messages[-1].role}: {messages[-1].content}", _LENGTH)
    call = getattr(payload, "call", None)
    return "" if call is None else subject_of(call)


def _arguments(value: Any) -> str:
    """Return the single text argument of a call itself, and anything else as JSON."""
    if isinstance(value, Mapping) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return json_text(plain(value))
