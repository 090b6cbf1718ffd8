"""The table of points as plain text."""

from __future__ import annotations

from ._kernel.points import POINTS


def points_table() -> str:
    """Every point, one on a line: its model, payload and verbs, when it fires, and its names in other systems."""
    rows = [("point", "model", "payload", "verbs", "fires", "also known as")]
    for point in POINTS.values():
        aliases = ", ".join(f"{name} ({source})" for source, name in point.names.items())
        rows.append((point, point.model, point.payload.__name__, " ".join(sorted(point.verbs)), point.when, aliases))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in rows
    )
