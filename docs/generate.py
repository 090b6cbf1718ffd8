"""Write the reference pages that the code itself can give: `make docs`."""

from pathlib import Path

import msgspec

from hookline import POINTS, Frozen

HEAD = """# Points

Every moment a hook can take part in. This page is generated from the point table (`make docs`).

| point | model | payload | verbs | fires | a closed failure | fired by | also known as |
|---|---|---|---|---|---|---|---|
"""


FIELDS = """
## Payloads

What each of these carries; a hook that may `replace` may change the fields marked with *.

"""


def points_page() -> str:
    """The point table as a page."""
    rows = []
    for point in POINTS.values():
        verbs = ", ".join(f"`{verb}`" for verb in sorted(point.verbs))
        names = ", ".join(f"`{name}` ({source})" for source, name in point.names.items())
        payload = f"`{point.payload.__name__}`" + (f" → `{point.result.__name__}`" if point.result else "")
        cells = (f"`{point}`", point.model, payload, verbs, point.when, point.closed, point.fired_by, names)
        rows.append("| " + " | ".join(cells) + " |\n")
    return HEAD + "".join(rows) + FIELDS + "".join(_fields_of(kind) for kind in _kinds())


def _kinds() -> list[type[Frozen]]:
    used = [kind for point in POINTS.values() for kind in (point.payload, point.result) if kind is not None]
    return sorted(set(used), key=lambda kind: kind.__name__)


def _fields_of(kind: type[Frozen]) -> str:
    fields = msgspec.structs.fields(kind)
    names = ", ".join(f"`{field.name}`" + ("*" if field.name in kind.free else "") for field in fields)
    return f"- **`{kind.__name__}`**: {names}\n"


if __name__ == "__main__":
    Path(__file__).with_name("points.md").write_text(points_page())
