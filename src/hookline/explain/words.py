"""The words and colours for verbs, outcomes and stops, the same in the terminal and on pages."""

from __future__ import annotations

from collections.abc import Mapping

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
    "denied": "denied",
    "failed": "failed",
    "shadow": "passed",
}
"""How the hook line draws each verb: ``passed`` is hollow, ``blocked`` a cut. All others ``changed`` something."""


def gate_of(verb: str) -> str:
    """Return how the hook line draws a verb."""
    return GATES.get(verb, "changed")


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

DECISIONS: Mapping[str, str] = {"approved": "violet", "edited": "violet", "denied": "red", "cancelled": "grey"}
"""The colours of approvals."""

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
