"""Generate `reference/verbs.md`: what a hook may return, and where."""

from typing import Any

from hookline import APPROVAL_REQUESTED, HookResult
from hookline.hooks import HookAction
from hookline.points import POINTS, Point

from .markdown import GENERATED, block, call, summary, table

HEAD = f"""# Verbs

A hook returns `None` or a `HookResult` created by one of these methods. {GENERATED}

Every verb takes `reason=`, for people and audit logs, and at a pipeline point `state=`, a changed copy of `ctx.state`
that applies before the next hook is called. A hook in the guard phase may use every verb of its point except
`replace`; an observer may use none. A verb that the point does not allow is an error that names the hook, the point
and the allowed verbs.

## Allowed verbs

"""

NOTES = {
    "cont": "",
    "replace": (
        "Returning the payload, or a mapping of fields, means the same. [Points](points.md) marks the fields that may"
        ' be changed. At `before_tool`, `{"args": arguments}` replaces the arguments, as in'
        " [Ethos](../coming-from/ethos.md)."
    ),
    "block": (
        "At `before_tool` the call gets the outcome `blocked`, its `after_tool` fires, and the run continues; "
        'returning `{"error": message}` there means the same, as in [Ethos](../coming-from/ethos.md). At '
        "`before_compaction` the history is unchanged."
    ),
    "answer": (
        "At `before_tool` the value is the tool's result; at `before_llm` and, for a failed model call, at "
        "`on_error` a text or a `ModelResponse`. The answer of a rewriting hook skips the remaining "
        "rewriting hooks; guards still run."
    ),
    "ask": (
        "All questions about a call go to the approvers at once; without an answer the call is denied. "
        "Other hooks still run, and a `block` or an `end` takes precedence."
    ),
    "retry": ("At most 2 for each model call and 2 for each tool call. After that the run stops with `retry_limit`."),
    "stop": (
        "The remaining hooks are still called, and running calls are not interrupted. `kind` is one of the stop "
        "reasons of the result, such as `steps_limit`."
    ),
    "keep_going": "Overrides `completed`, `finish_reason` and `stop_requested`, but no limit, at most 8 times a run.",
    "end": (
        "Open calls get a result first. The reply is added to the transcript, marked as that of a hook, except at "
        "`on_run_start`, where the transcript is unchanged. The status is `ended`."
    ),
    "merge": (
        "A mapping of the fields means the same. The first value of each field counts; a later one is reported as"
        " the event `merge_lost`."
    ),
    "claim": (
        'A mapping with `"handled": True` means the same. At `approval_requested` a claim is one of `approve`, `deny`'
        " and `edit`."
    ),
    "approve": "",
    "deny": "",
    "edit": "The edited call is validated, and the guards check it again.",
}
"""Text for each verb in addition to its docstring."""

EXAMPLES = {
    "cont": 'return HookResult.cont(reason="seen before")',
    "replace": 'return HookResult.replace({"arguments": {**request.arguments, "limit": 10}}, reason="at most ten")',
    "block": 'return HookResult.block("Files stay.")',
    "answer": 'return HookResult.answer("12 degrees", reason="from the cache")',
    "ask": "return HookResult.ask(f\"Send this to {request.arguments['to']}?\")",
    "retry": 'return HookResult.retry("Answer in JSON.")',
    "stop": 'return HookResult.stop("Enough was found.")',
    "keep_going": 'return HookResult.keep_going("Two files are left.")',
    "end": 'return HookResult.end("I cannot help with that.")',
    "merge": 'return HookResult.merge(append_system="The user is in Rome.")',
    "claim": 'return HookResult.claim(reason="not in working hours")',
    "approve": 'return HookResult.approve(by="anna")',
    "deny": 'return HookResult.deny("Not on a Friday.", by="anna")',
    "edit": 'return HookResult.edit({"to": "team@example.com"}, by="anna")',
}
"""An example for each verb, in the order of the page."""


def page(_: str) -> str:
    """Return the page."""
    named = {str(verb) for verb in HookAction} - {"invalid", "failed"}
    if not named <= EXAMPLES.keys() or EXAMPLES.keys() != NOTES.keys():
        raise LookupError(f"describe in {__name__} the verbs {named ^ EXAMPLES.keys()}")
    return HEAD + _matrix() + "".join(map(_section, EXAMPLES))


def _matrix() -> str:
    allowed = [verb for verb in EXAMPLES if any(verb in point.verbs for point in POINTS.values())]
    rows = [
        (f"[`{point}`](points.md#{point})", *("✓" if verb in point.verbs else "" for verb in allowed))
        for point in POINTS.values()
        if point.verbs
    ]
    others = [f"`{verb}` at the {verb} points: {', '.join(f'`{p}`' for p in _at(verb))}" for verb in ("merge", "claim")]
    heads = ("point", *(f"[{verb}](#{verb})" for verb in allowed))
    return table(heads, rows) + "\n" + "".join(f"- {line}.\n" for line in others) + "- `cont` everywhere.\n"


def _at(verb: str) -> list[Point[Any]]:
    return [point for point in POINTS.values() if verb in point.verbs or verb == point.model]


def _section(verb: str) -> str:
    make = getattr(HookResult, verb)
    points = _at(verb) if verb not in ("approve", "deny", "edit") else [APPROVAL_REQUESTED]
    where = ", ".join(f"[`{point}`](points.md#{point})" for point in points) or "every point"
    text = " ".join(filter(None, (summary(make), NOTES[verb])))
    made, example = (block(text, "py") for text in (call(f"HookResult.{verb}", make, result=False), EXAMPLES[verb]))
    return f"\n## {verb}\n\n{made}\n{text}\n\nAt {where}.\n\n{example}"
