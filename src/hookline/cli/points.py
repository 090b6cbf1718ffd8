"""``hookline points``: show the points at which hooks run."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from .._kernel.points import POINTS, Point, resolve
from .help import Command
from .options import AsJson
from .output import print_facts, print_table, write_json

EPILOG = """
Examples:
  hookline points
  hookline points before_tool
  hookline points BeforeToolExec --json
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("points", cls=Command, epilog=EPILOG)(points)


def points(
    name: Annotated[
        str | None,
        typer.Argument(help="A point, by any of its names.", show_default=False, autocompletion=lambda: list(POINTS)),
    ] = None,
    json: AsJson = False,
) -> int:
    """Show the points at which hooks run, or the details of one."""
    if name is None and json:
        write_json([describe_point(point) for point in POINTS.values()])
    elif name is None:
        rows = [(p, p.model, _results_text(p), p.when) for p in POINTS.values()]
        print_table(("point", "model", "a hook may", "fires"), rows, keep=("point", "model"))
    elif json:
        write_json(describe_point(resolve(name)))
    else:
        _print_point(resolve(name))
    return 0


def describe_point(point: Point[Any]) -> dict[str, Any]:
    """Return all properties of a point."""
    return {
        "point": str(point),
        "model": point.model,
        "fires": point.when,
        "fired_by": point.fired_by,
        "verbs": sorted(point.verbs),
        "payload": point.payload.__name__,
        "fields": _fields(point.payload),
        "result": point.result.__name__ if point.result else None,
        "result_fields": _fields(point.result) if point.result else [],
        "closed_failure": point.closed,
        "takes_tools": point.tool,
        "names": dict(point.names),
    }


def _fields(kind: Any) -> list[dict[str, Any]]:
    return [
        {"name": f.name, "type": _type_text(f.type), "replaceable": f.name in kind.editable}
        for f in msgspec.structs.fields(kind)
    ]


def _type_text(kind: Any) -> str:
    text = getattr(kind, "__name__", None) if isinstance(kind, type) and not getattr(kind, "__args__", ()) else None
    text = text or str(kind)
    for module in (
        "hookline._kernel.values.",
        "hookline._kernel.payloads.",
        "hookline._kernel.state.",
        "typing.",
        "collections.abc.",
    ):
        text = text.replace(module, "")
    return text


def _results_text(point: Point[Any]) -> str:
    """Describe what a hook may return at a point."""
    if point.model == "pipeline":
        return " ".join(sorted(point.verbs))
    given = f" {point.result.__name__}" if point.result else ""
    return {"merge": f"give{given}", "claim": f"claim{given and ' with' + given}", "observe": "observe"}[point.model]


def _print_point(point: Point[Any]) -> None:

    about = describe_point(point)
    names = ", ".join(f"{name} ({source})" for source, name in point.names.items()) or "none"
    pairs = [
        ("model", point.model),
        ("fires", point.when),
        ("fired by", point.fired_by),
        ("a hook may", _results_text(point)),
        ("closed failure", point.closed),
        ("tools=", "selects tool calls" if point.tool else "not available"),
        ("other names", names),
    ]
    print_facts(str(point), pairs)
    may_replace = "replace" in point.verbs
    rows = [(f["name"], f["type"], "yes" if may_replace and f["replaceable"] else "") for f in about["fields"]]
    print_table(("field", "type", "may be replaced"), rows, title=f"Payload: {about['payload']}")
    if about["result"]:
        given = [(f["name"], f["type"]) for f in about["result_fields"]]
        print_table(("field", "type"), given, title=f"Result of a hook: {about['result']}")
