"""Generate `reference/points.md`: every point with its payload, verbs and names."""

from typing import Any

from hookline import Message
from hookline.payloads import (
    ErrorInfo,
    Frozen,
    Ids,
    InboundMessage,
    OutboundMessage,
    Question,
    StopSignal,
    ToolCall,
    ToolSpec,
    Usage,
)
from hookline.points import POINTS, Point

from .fields import field_table
from .markdown import GENERATED, cell, more, summary, table

HEAD = f"""# Points

All points at which hooks run. `hookline points` shows them in a terminal, `hookline points NAME` shows one. {GENERATED}

The model of a point defines how its hooks work together:

- **pipeline**: each hook gets the payload that the previous one returned, and answers with a [verb](verbs.md);
- **merge**: each hook gets the original payload and returns fields of a result; the first value of each field counts;
- **claim**: hooks are called in order until one claims;
- **observe**: hooks cannot decide anything.

Observers are called last at every point, whatever was decided. Names in other systems are aliases:
`@hook("BeforeToolExec")` is `@hook("before_tool")`.

"""

VALUES: tuple[type[Frozen], ...] = (
    Ids,
    Usage,
    Message,
    ToolCall,
    ToolSpec,
    StopSignal,
    ErrorInfo,
    Question,
    InboundMessage,
    OutboundMessage,
)

MODELS = {
    "merge": "A hook returns these fields, as a mapping or `HookResult.merge(...)`",
    "claim": "A claim, as a mapping or `HookResult.claim(...)`, has these fields",
}


def page(_: str) -> str:
    """Return the page."""
    rows = [
        (f"[`{point}`](#{point})", point.model, f"`{point.payload.__name__}`", cell(_verbs(point)), cell(point.when))
        for point in POINTS.values()
    ]
    text = HEAD + table(("point", "model", "payload", "verbs", "fires"), rows)
    text += "".join(map(_section, POINTS.values()))
    text += "\n## Values in payloads\n\nTypes of fields in payloads.\n"
    for kind in VALUES:
        text += f"\n### {kind.__name__}\n\n{summary(kind)}\n\n{_and(more(kind))}{field_table(kind)}"
    return text


def _verbs(point: Point[Any]) -> str:
    return ", ".join(f"`{verb}`" for verb in sorted(point.verbs))


def _and(text: str) -> str:
    return f"{text}\n\n" if text else ""


def _section(point: Point[Any]) -> str:
    facts = [
        ("fires", point.when),
        ("model", point.model),
        ("verbs", _verbs(point) or "none"),
        ("a hook that fails closed", point.closed),
        ("fired by", point.fired_by),
    ]
    if point.tool:
        facts.append(("`tools=`", "selects the tools whose calls the hook sees"))
    if point.names:
        facts.append(("also known as", ", ".join(f"`{name}` ({source})" for source, name in point.names.items())))
    text = f"\n## {point}\n\n" + "".join(f"- {name}: {said}\n" for name, said in facts)
    mark = "; `*` marks the fields that `replace` may change" if "replace" in point.verbs else ""
    text += f"\nThe payload is {_with_article(point.payload)}{mark}:\n\n{_replaceable(point)}"
    if point.result is not None:
        text += f"\n{MODELS[point.model]}, those of {_with_article(point.result)}:\n\n{field_table(point.result)}"
    return text


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} `{kind.__name__}`"


def _replaceable(point: Point[Any]) -> str:
    made = field_table(point.payload)
    return made if "replace" in point.verbs else made.replace("`* |", "` |")
