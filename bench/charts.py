"""SVG charts that are readable on light and dark pages."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

WIDTH = 760
OURS, FLOOR, OTHER = "#3b82c4", "#4c9f70", "#9aa3ad"
COLORS = (OURS, "#d08a2e", "#4c9f70", "#a06cb4", "#c4574e")
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#747c87}.t{font-weight:600;font-size:15px}.s{font-size:11px}"
    ".g{stroke:#8884}.d{stroke:#747c87;stroke-dasharray:5 4}.w{stroke:#747c87;stroke-width:1.5}"
)


class Bar(NamedTuple):
    """One bar: its value, its label and the quartiles."""

    label: str
    value: float
    label_text: str
    low: float
    high: float
    color: str = OTHER


def svg(height: float, title: str, parts: Sequence[str], style: str = STYLE, width: int = WIDTH) -> str:
    """Return a complete SVG file."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img" '
        f"aria-label={quoteattr(title)}>\n<style>{style}</style>\n{body}\n</svg>\n"
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", css: str = "") -> str:
    """Return a text element with its baseline at ``y``."""
    given = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{given}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str = "g") -> str:
    """Return a straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def decades(low: float, high: float) -> tuple[int, int]:
    """Return the powers of ten that enclose the values."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return first, max(last, first + 1)


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """Draw horizontal bars on a logarithmic scale, shortest first, with marks from quartile to quartile."""
    rows = sorted(rows, key=lambda row: row.value)
    left, right, step = 16 + 7.2 * max(len(row.label) for row in rows), WIDTH - 110, 26
    first, last = decades(min(row.value for row in rows) / 1.5, max(row.high for row in rows))
    bottom = 60 + step * len(rows)

    def at(value: float) -> float:
        return left + (right - left) * (math.log10(value) - first) / (last - first)

    parts = [text(8, 22, title, css="t"), text(8, 40, f"{unit}, logarithmic scale; shorter is better", css="s")]
    for power in range(first, last + 1):
        x = at(10.0**power)
        parts += [line(x, 50, x, bottom), text(x, bottom + 16, _power(power), anchor="middle", css="s")]
    for index, row in enumerate(rows):
        y = 54 + step * index
        parts.append(text(left - 10, y + 14, row.label, anchor="end"))
        parts.append(
            f'<rect x="{left:.1f}" y="{y}" width="{max(1.0, at(row.value) - left):.1f}" height="18" rx="2" '
            f'fill="{row.color}"/>'
        )
        if row.high > row.low:
            parts.append(line(at(row.low), y + 9, at(row.high), y + 9, "w"))
        parts.append(text(max(at(row.value), at(row.high)) + 8, y + 14, row.label_text))
    return svg(bottom + 26, title, parts)


def lines(title: str, across: str, up: str, series: Mapping[str, Mapping[str, float]]) -> str:
    """Draw lines on two logarithmic scales. A dashed line shows linear growth."""
    points = {name: sorted((float(x), y) for x, y in given.items()) for name, given in series.items()}
    every = [point for given in points.values() for point in given]
    left, right, top, bottom = 90, WIDTH - 250, 56, 300
    x0, x1 = decades(min(x for x, _ in every), max(x for x, _ in every))
    y0, y1 = decades(min(y for _, y in every), max(y for _, y in every))

    def across_at(value: float) -> float:
        return left + (right - left) * (math.log10(value) - x0) / (x1 - x0)

    def up_at(value: float) -> float:
        return bottom - (bottom - top) * (math.log10(value) - y0) / (y1 - y0)

    parts = [text(8, 22, title, css="t"), text(8, 40, f"{up}; both scales logarithmic", css="s")]
    for power in range(x0, x1 + 1):
        x = across_at(10.0**power)
        parts += [line(x, top, x, bottom), text(x, bottom + 16, _power(power), anchor="middle", css="s")]
    for power in range(y0, y1 + 1):
        y = up_at(10.0**power)
        parts += [line(left, y, right, y), text(left - 8, y + 4, _power(power), anchor="end", css="s")]
    parts.append(text((left + right) / 2, bottom + 34, across, anchor="middle", css="s"))
    reach = min(x1 - x0, y1 - y0)
    parts.append(
        f'<path d="M{left},{bottom} L{across_at(10.0 ** (x0 + reach)):.1f},{up_at(10.0 ** (y0 + reach)):.1f}" '
        'fill="none" class="d"/>'
    )
    for index, (name, given) in enumerate(points.items()):
        color = COLORS[index % len(COLORS)]
        path = " ".join(f"{across_at(x):.1f},{up_at(y):.1f}" for x, y in given)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{across_at(x):.1f}" cy="{up_at(y):.1f}" r="3.5" fill="{color}"/>' for x, y in given]
        y = top + 8 + 22 * index
        parts.append(f'<rect x="{right + 20}" y="{y - 9}" width="12" height="12" rx="2" fill="{color}"/>')
        parts.append(text(right + 40, y + 2, name))
    y = top + 8 + 22 * len(points)
    parts.append(line(right + 16, y - 3, right + 34, y - 3, "d"))
    parts.append(text(right + 40, y + 2, "in step with the size"))
    return svg(bottom + 46, title, parts)


def stacks(title: str, unit: str, kinds: Sequence[str], rows: Mapping[str, Sequence[float]], total: float) -> str:
    """Draw stacked bars on a linear scale that ends at ``total``."""
    width, left, height = 640, 170, 30
    scale = 440 / total
    parts: list[str] = []
    for index, kind in enumerate(kinds):
        x = left + index * 110
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" rx="2" fill="{COLORS[index]}"/>')
        parts.append(text(x + 18, 22, kind))
    y = 44
    for label, values in rows.items():
        parts.append(text(left - 10, y + 16, label, anchor="end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{total * scale:.0f}" height="22" rx="3" fill="#8882"/>')
        at = float(left)
        for color, value in zip(COLORS, values, strict=False):
            wide = value * scale
            if value:
                parts.append(f'<rect x="{at:.1f}" y="{y}" width="{wide:.1f}" height="22" fill="{color}"/>')
                parts.append(text(at + wide / 2, y + 16, f"{value:g}", anchor="middle", css="i"))
            at += wide
        y += height
    parts.append(text(left + total * scale, y + 6, unit, anchor="end"))
    return svg(y + 16, title, parts, STYLE + ".i{fill:#fff}", width)


def _power(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"
