"""`reference/points.md`: every point with its payload, verbs and names."""

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
from .markdown import GENERATED, cell, more, table, told

HEAD = f"""# Points

Every moment a hook can take part in. `hookline points` shows them in a terminal, `hookline points NAME` all about
one. {GENERATED}

The model of a point says how its hooks work together:

- **pipeline**: each hook sees the payload as the one before left it, and answers with a [verb](verbs.md);
- **merge**: each sees the original payload and gives fields of a result; the first value of each field counts;
- **claim**: they are asked in order, until one claims;
- **observe**: nothing can be decided.

Observers are called at every point, last, whatever was decided. A name in another system is an alias:
`@hook("BeforeToolExec")` is `@hook("before_tool")`.

"""

VALUES: tuple[type[Frozen], ...] = (
    Ids, Usage, Message, ToolCall, ToolSpec, StopSignal, ErrorInfo, Question, InboundMessage, OutboundMessage,
)  # fmt: skip

MODELS = {
    "merge": "Handlers give these fields, as a mapping or `HookResult.merge(...)`",
    "claim": "A claim, as a mapping or `HookResult.claim(...)`, gives these fields",
}


def page(_: str) -> str:
    """The page."""
    rows = [
        (f"[`{point}`](#{point})", point.model, f"`{point.payload.__name__}`", cell(_verbs(point)), cell(point.when))
        for point in POINTS.values()
    ]
    text = HEAD + table(("point", "model", "payload", "verbs", "fires"), rows)
    text += "".join(map(_section, POINTS.values()))
    text += "\n## Values in payloads\n\nFields of payloads hold these, too.\n"
    for kind in VALUES:
        text += f"\n### {kind.__name__}\n\n{told(kind)}\n\n{_and(more(kind))}{field_table(kind)}"
    return text


def _verbs(point: Point) -> str:
    return ", ".join(f"`{verb}`" for verb in sorted(point.verbs))


def _and(text: str) -> str:
    return f"{text}\n\n" if text else ""


def _section(point: Point) -> str:
    facts = [
        ("fires", point.when),
        ("model", point.model),
        ("verbs", _verbs(point) or "none"),
        ("a closed failure", point.closed),
        ("fired by", point.fired_by),
    ]
    if point.tool:
        facts.append(("`tools=`", "selects the calls that a hook is called for"))
    if point.names:
        facts.append(("also known as", ", ".join(f"`{name}` ({source})" for source, name in point.names.items())))
    text = f"\n## {point}\n\n" + "".join(f"- {name}: {said}\n" for name, said in facts)
    mark = "; what `replace` may change is marked with `*`" if "replace" in point.verbs else ""
    text += f"\nThe payload is a `{point.payload.__name__}`{mark}:\n\n{_replaceable(point)}"
    if point.result is not None:
        text += f"\n{MODELS[point.model]}, those of a `{point.result.__name__}`:\n\n{field_table(point.result)}"
    return text


def _replaceable(point: Point) -> str:
    made = field_table(point.payload)
    return made if "replace" in point.verbs else made.replace("`* |", "` |")
