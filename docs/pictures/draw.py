"""Draw the pictures of the docs from the code: ``python docs/pictures/draw.py``.

``--record`` first runs the tour of ``make run`` anew on the embedded model, for ``run.svg``;
``--check`` draws nothing and says which pictures are not as the code would draw them now.
"""

import sys
from pathlib import Path

from concepts import batch, failure, layers, order, settlement, state
from life import life, outside
from terminal import record, run

from hookline import POINTS

HERE = Path(__file__).parent


def pictures() -> dict[str, str]:
    """Every picture, by the name of its file.

    Raises:
        LookupError: a point is in none of them.
    """
    points = life(), outside()
    if missing := POINTS.keys() - points[0].shown - points[1].shown:
        raise LookupError(f"life.py shows no {', '.join(sorted(missing))}")
    drawn = {"life": points[0], "outside": points[1]}
    others = {made.__name__: made() for made in (order, settlement, batch, failure, state, layers, run)}
    return {f"{name}.svg": picture.svg() for name, picture in (drawn | others).items()}


if __name__ == "__main__":
    if "--record" in sys.argv:
        record()
    stale = [name for name, svg in pictures().items() if not (HERE / name).exists() or (HERE / name).read_text() != svg]
    if "--check" in sys.argv:
        sys.exit(f"Not up to date, run python docs/pictures/draw.py: {', '.join(stale)}" if stale else 0)
    for name, svg in pictures().items():
        (HERE / name).write_text(svg)
