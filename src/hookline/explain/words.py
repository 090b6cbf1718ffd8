"""The words and colours for verbs, outcomes and stops, the same in the terminal and on pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Sign(NamedTuple):
    """How a gate of the hook line is shown: in words, on a terminal, and as a drawing.

    ``glyph`` is one character, and ``ascii`` its form for terminals without Unicode. ``shapes`` are SVG elements around
    0,0: a name and attributes. Their colours are in ``theme.css``.
    """

    word: str
    tone: str
    glyph: str
    ascii: str
    shapes: tuple[tuple[str, Mapping[str, str]], ...]


SIGNS: Mapping[str, Sign] = {
    "passed": Sign("passed", "grey", "○", "o", (("circle", {"r": "3.25"}),)),
    "changed": Sign("changed", "amber", "◆", "*", (("path", {"d": "M0-5 5 0 0 5-5 0z"}),)),
    "unanswered": Sign(
        "asked without answer",
        "grey",
        "◌",
        "~",
        (("circle", {"r": "4"}), ("path", {"class": "in", "d": "M-2 0H2"})),
    ),
    "asked": Sign(
        "asked", "violet", "●", "?", (("circle", {"r": "4.5"}), ("path", {"class": "in", "d": "M-2 .2-.6 1.6 2.1-1.4"}))
    ),
    "waits": Sign("asks", "violet", "◉", "?", (("circle", {"r": "4"}), ("circle", {"class": "in", "r": "1.5"}))),
    "denied": Sign(
        "denied", "red", "⊘", "!", (("circle", {"cx": "-3", "r": "3.75"}), ("path", {"class": "cut", "d": "M4-7V7"}))
    ),
    "blocked": Sign("blocked", "red", "┃", "|", (("path", {"d": "M0-7V7"}),)),
    "failed": Sign("failed", "red", "✗", "x", (("path", {"d": "M-3.5-3.5 3.5 3.5M3.5-3.5-3.5 3.5"}),)),
    "skipped": Sign("not called", "grey", "·", ".", (("circle", {"r": "1.5"}),)),
}
"""The signs of the hook line, on pages, in reports and in the terminal: shape and colour both differ."""

VERBS: Mapping[str, tuple[str, str]] = {
    "block": ("blocked", "red"),
    "failed": ("failed", "red"),
    "invalid": ("invalid", "red"),
    "end": ("ended the run", "red"),
    "ask": ("asked", "violet"),
    "replace": ("changed", "amber"),
    "merge": ("added", "amber"),
    "stop": ("stopped", "amber"),
    "retry": ("retry", "amber"),
    "keep_going": ("kept going", "amber"),
    "answer": ("answered", "amber"),
    "claim": ("decided", "amber"),
    "shadow": ("would have acted", "grey"),
    "cont": ("passed", "grey"),
}
"""Each verb as a word for people, and its colour."""

GATES: Mapping[str, str] = {
    "cont": "passed",
    "ask": "asked",
    "block": "blocked",
    "end": "blocked",
    "invalid": "blocked",
    "failed": "failed",
    "shadow": "passed",
    "pending": "waits",
    "approved": "asked",
    "edited": "asked",
    "denied": "denied",
    "cancelled": "unanswered",
    "expired": "unanswered",
}
"""How the hook line draws each verb and each decision about an approval: ``passed`` is hollow, ``blocked`` a cut.

All others ``changed`` something. A question is ``unanswered`` if its run was cancelled or interrupted before an answer,
or another hook blocked the call.
"""


def gate_of(verb: str) -> str:
    """Return how the hook line draws a verb or a decision."""
    return GATES.get(verb, "changed")


_OBJECTS: Mapping[str, str] = {
    "on_run_start": "the task",
    "before_llm": "the request",
    "on_token": "the text",
    "after_llm": "the reply",
    "before_tool": "the call",
    "after_tool": "the result",
    "message_sending": "the message",
}
"""Changes and blocks by hooks at a point."""


def verb_phrase(verb: str, point: str) -> str:
    """Return what a hook did at a point, such as ``blocked the call at before_tool``."""
    word = verb_words(verb)[0]
    match verb:
        case "replace" | "block":
            word = f"{word} {_OBJECTS.get(point, '')}".rstrip()
        case "answer" if point in ("before_llm", "before_tool"):
            word = f"{word} instead of the {'model' if point == 'before_llm' else 'tool'}"
        case "retry":
            word = "requested a retry"
        case "stop":
            word = "stopped the run"
        case "keep_going":
            word = "kept the run going"
    return f"{word} at {point}"


def verb_words(verb: str) -> tuple[str, str]:
    """Return the word and the colour of a verb or decision. One that is not known is its own word."""
    return VERBS.get(verb) or (verb, DECISIONS.get(verb, "grey"))


OUTCOMES: Mapping[str, str] = {
    "ok": "grey",
    "answered": "amber",
    "error": "red",
    "blocked": "red",
    "cancelled": "grey",
}
"""The colours of the outcomes of tool calls."""

STATUSES: Mapping[str, str] = {
    "queued": "grey",
    "completed": "grey",
    "running": "blue",
    "waiting": "violet",
    "stopped": "amber",
    "ended": "amber",
    "cancelled": "grey",
    "failed": "red",
    "interrupted": "red",
}
"""The colours of how runs ended. A run without an end in its record was ``interrupted``, or is still running."""

DECISIONS: Mapping[str, str] = {
    "pending": "violet",
    "approved": "violet",
    "edited": "violet",
    "denied": "red",
    "cancelled": "grey",
    "expired": "grey",
}
"""The colours of approvals."""


def tone_of(word: str, unknown: str = "grey") -> str:
    """Return the colour of a status, an outcome, a decision or a verb."""
    known = STATUSES.get(word) or OUTCOMES.get(word) or DECISIONS.get(word)
    return known or VERBS.get(word, (word, unknown))[1]


ONLY: Mapping[str, tuple[str, ...]] = {
    "blocked": (),
    "changed": ("replace", "merge"),
    "asked": ("ask", "claim"),
    "failed": ("failed",),
    "answered": ("answer",),
    "retried": ("retry", "keep_going"),
    "stopped": ("stop", "end"),
    "invalid": ("invalid",),
}
"""The verbs that each choice of a filter shows; ``blocked`` shows what was refused, by any verb."""

QUIET_POINTS = ("on_run_start", "on_run_end", "on_stop", "subagent_spawning", "subagent_spawned", "subagent_ended")
"""Points whose text says nothing that is not shown elsewhere."""

STOPS: Mapping[str, str] = {
    "completed": "The model replied without calling a tool.",
    "finish_reason": "The run handed over, or a hook accepted the reply as the last one.",
    "steps_limit": "The run reached its limit of steps.",
    "token_limit": "The run reached its limit of tokens.",
    "time_limit": "The run reached its time limit.",
    "cost_limit": "The run reached its limit of cost.",
    "tool_calls_limit": "The run reached its limit of tool calls.",
    "retry_limit": "A hook asked for more retries than are allowed.",
    "halted": "Somebody halted all runs.",
    "stop_requested": "A hook asked the run to stop.",
    "user_requested": "The run was cancelled.",
    "error": "An error stopped the run.",
    "unknown": "The model returned neither text nor tool calls.",
}
"""Why a run stopped, by the kind of its stop signal (DESIGN 5.4)."""
