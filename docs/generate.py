"""Write the reference pages that the code itself can give: `make docs`."""

from pathlib import Path

from hookline import POINTS

HEAD = """# Points

Every moment a hook can take part in. This page is generated from the point table (`make docs`).

| point | model | payload | verbs | fires | a closed failure | fired by | also known as |
|---|---|---|---|---|---|---|---|
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
    return HEAD + "".join(rows)


if __name__ == "__main__":
    Path(__file__).with_name("points.md").write_text(points_page())
