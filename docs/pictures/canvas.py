"""Draw boxes, text and arrows as SVG for light and dark pages."""

from html import escape
from typing import NamedTuple

MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif"


class Tone(NamedTuple):
    """The colours of surfaces, edges and text, on a light or a dark page."""

    fill: str
    edge: str
    ink: str


PAPER = {"light": Tone("#fdfcfa", "#e4e1da", "#1f2933"), "dark": Tone("#14181e", "#2a323c", "#e4e9ef")}
TONES = {
    "plain": (Tone("#f2f3f5", "#b9c2cc", "#2d3945"), Tone("#1f262e", "#4a5665", "#d6dde5")),
    "quiet": (Tone("none", "#c9d0d8", "#5f6d7b"), Tone("none", "#414c59", "#98a5b3")),
    "amber": (Tone("#fdf1d8", "#d59b24", "#744e00"), Tone("#332812", "#c1923a", "#f0cf8c")),
    "red": (Tone("#fce6e2", "#cd5a4d", "#8a2a20"), Tone("#381d1b", "#cf6d62", "#f4b6ae")),
    "blue": (Tone("#e4f0fa", "#4487c2", "#1b5282"), Tone("#172939", "#4f93cd", "#a8d1f4")),
    "green": (Tone("#e3f3e8", "#439d66", "#1e683b"), Tone("#172e1f", "#4faa73", "#a4dfba")),
    "violet": (Tone("#eee8f9", "#8069c4", "#4a358d"), Tone("#28213d", "#937fd3", "#cabdf4")),
}


def _style() -> str:
    def rules(shade: int) -> str:
        paper = PAPER["dark" if shade else "light"]
        lines = [f".paper{{fill:{paper.fill};stroke:{paper.edge}}}", f"text{{fill:{paper.ink}}}"]
        for name, tones in TONES.items():
            tone = tones[shade]
            lines.append(f".{name}{{fill:{tone.fill};stroke:{tone.edge}}}")
            lines.append(f"text.{name}{{fill:{tone.ink};stroke:none}}")
            lines.append(f".line.{name}{{fill:none;stroke:{tone.edge}}}.tip.{name}{{fill:{tone.edge};stroke:none}}")
        return "".join(lines)

    fonts = f"text{{font-family:{SANS};stroke:none}}.m{{font-family:{MONO}}}.b{{font-weight:600}}"
    fonts += ".d{stroke-dasharray:4 4}.h{opacity:.55}"
    return f"<style>{fonts}{rules(0)}@media (prefers-color-scheme:dark){{{rules(1)}}}</style>"


class Canvas:
    """A picture under construction, 720 pixels wide by default.

    Args:
        title: describes the picture to screen readers.
        height: in pixels.
        width: in pixels.
    """

    def __init__(self, title: str, height: float, width: float = 720) -> None:
        self.title, self.height, self.width = title, height, width
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, w: float, h: float, tone: str = "plain", r: float = 8, *, dashed: bool = False
    ) -> None:
        """Draw a rectangle."""
        kind = f"{tone} d" if dashed else tone
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{r:g}"/>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        tone: str = "",
        *,
        size: float = 12.5,
        at: str = "start",
        mono: bool = False,
        bold: bool = False,
    ) -> None:
        """Draw one line of text with its baseline at ``y``."""
        kind = " ".join(filter(None, (tone, "m" if mono else "", "b" if bold else "")))
        anchor = "" if at == "start" else f' text-anchor="{at}"'
        shown = escape(words, quote=False)
        space = ' xml:space="preserve"' if "  " in words else ""
        self._parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size:g}"{anchor}{space}>{shown}</text>'
        )

    def lines(
        self, x: float, y: float, words: str, tone: str = "", *, step: float = 16, size: float = 12.5, at: str = "start"
    ) -> None:
        """Draw several lines of text."""
        for number, line in enumerate(words.split("\n")):
            self.text(x, y + number * step, line, tone, size=size, at=at)

    def label(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        words: str,
        tone: str = "plain",
        *,
        size: float = 12.5,
        mono: bool = False,
        bold: bool = False,
        r: float = 8,
    ) -> None:
        """Draw a rectangle with centred text."""
        self.box(x, y, w, h, tone, r)
        rows = words.split("\n")
        top = y + h / 2 + size * 0.36 - (len(rows) - 1) * (size + 3) / 2
        for number, row in enumerate(rows):
            self.text(x + w / 2, top + number * (size + 3), row, tone, size=size, at="middle", mono=mono, bold=bold)

    def arrow(self, *spots: tuple[float, float], tone: str = "quiet", dashed: bool = False, head: bool = True) -> None:
        """Draw a line through the points, with rounded corners and an arrowhead."""
        end, before = spots[-1], spots[-2]
        dx, dy = _sign(end[0] - before[0]), _sign(end[1] - before[1])
        stop = (end[0] - dx * 6, end[1] - dy * 6) if head else end
        path = f"M{spots[0][0]:g} {spots[0][1]:g}"
        for last, spot, following in zip(spots[:-2], spots[1:-1], spots[2:], strict=True):
            near = (spot[0] - _sign(spot[0] - last[0]) * 8, spot[1] - _sign(spot[1] - last[1]) * 8)
            far = (spot[0] + _sign(following[0] - spot[0]) * 8, spot[1] + _sign(following[1] - spot[1]) * 8)
            path += f"L{near[0]:g} {near[1]:g}Q{spot[0]:g} {spot[1]:g} {far[0]:g} {far[1]:g}"
        path += f"L{stop[0]:g} {stop[1]:g}"
        kind = f"line {tone} d" if dashed else f"line {tone}"
        self._parts.append(f'<path class="{kind}" stroke-width="1.6" d="{path}"/>')
        if head:
            wing = 4.5
            back = (end[0] - dx * 8, end[1] - dy * 8)
            one, two = (back[0] + dy * wing, back[1] + dx * wing), (back[0] - dy * wing, back[1] - dx * wing)
            tip = f"M{end[0]:g} {end[1]:g}L{one[0]:g} {one[1]:g}L{two[0]:g} {two[1]:g}Z"
            self._parts.append(f'<path class="tip {tone}" d="{tip}"/>')

    def rule(self, x: float, y: float, to: float) -> None:
        """Draw a thin horizontal line."""
        self._parts.append(f'<path class="line quiet h" d="M{x:g} {y:g}H{to:g}"/>')

    def tick(self, x: float, y: float, tone: str) -> None:
        """Draw a tick."""
        self._parts.append(f'<path class="line {tone}" stroke-width="2" d="M{x - 5:g} {y:g}l3.5 4l7 -8"/>')

    def dot(self, x: float, y: float, r: float, tone: str) -> None:
        """Draw a disc."""
        self._parts.append(f'<circle class="{tone}" cx="{x:g}" cy="{y:g}" r="{r:g}"/>')

    def svg(self) -> str:
        """Return the SVG text."""
        w, h = self.width, self.height
        size = f'viewBox="0 0 {w:g} {h:g}" width="{w:g}" height="{h:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        paper = f'<rect class="paper" x="0.5" y="0.5" width="{w - 1:g}" height="{h - 1:g}" rx="12"/>'
        return "\n".join((head, f"<title>{escape(self.title)}</title>", _style(), paper, *self._parts, "</svg>\n"))


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
