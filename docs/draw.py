"""Draw the pictures of the docs from the code: ``python docs/draw.py``.

``--check`` writes nothing and lists the pictures that are out of date.
"""

import sys
from pathlib import Path

from pictures.concepts import batch, failure, layers, order, settlement, state
from pictures.life import life, outside
from pictures.story import hook_line

from hookline.points import POINTS

HERE = Path(__file__).parent / "pictures"


def every_picture() -> dict[str, str]:
    """Draw every picture; return them by file name.

    Raises:
        LookupError: no picture shows a point.
    """
    with_points = {"life": life(), "outside": outside()}
    if missing := POINTS.keys() - {name for picture in with_points.values() for name in picture.shown}:
        raise LookupError(f"pictures/life.py does not show {', '.join(sorted(missing))}")
    others = {draw.__name__: draw() for draw in (order, settlement, batch, failure, state, layers)}
    drawn = {f"{name}.svg": picture.svg() for name, picture in (with_points | others).items()}
    return drawn | {"hook_line.svg": hook_line()}


if __name__ == "__main__":
    drawn = every_picture()
    stale = [name for name, svg in drawn.items() if not (HERE / name).exists() or (HERE / name).read_text() != svg]
    if "--check" in sys.argv:
        sys.exit(f"Out of date, run python docs/draw.py: {', '.join(stale)}" if stale else 0)
    for name in stale:
        (HERE / name).write_text(drawn[name])
