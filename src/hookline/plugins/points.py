"""Points that belong to plugins: declared while one of their owners is on, and gone after that."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .._kernel.errors import RegistrationError
from .._kernel.points import NAMES, TABLE, Point, import_declarations

_lock = threading.RLock()
_owners: dict[str, list[object]] = {}


@contextmanager
def captured(hidden: Iterable[Point[Any]] = ()) -> Iterator[list[Point[Any]]]:
    """Collect the points that are declared inside the block; after it, the table is as it was.

    ``hidden`` ones do not stand in the way: they are those of an older version of the same code.
    """
    found: list[Point[Any]] = []
    import_declarations()  # or a plugin that names a point of a channel would seem to declare it
    with _lock:
        points, names = dict(TABLE), dict(NAMES)
        for point in hidden:
            _remove(point)
        try:
            yield found
        finally:
            found += [point for name, point in TABLE.items() if points.get(name) is not point]
            for table, before in ((TABLE, points), (NAMES, names)):
                for name in [name for name in table if name not in before]:
                    del table[name]
                table.update(before)


def declare(points: Iterable[Point[Any]], owner: object) -> None:
    """Put these points into the table, for an owner; all of them, or none.

    Raises:
        RegistrationError: one has the name of another point.
    """
    with _lock:
        done: list[Point[Any]] = []
        try:
            for point in points:
                _declare(point, owner)
                done.append(point)
        except RegistrationError:
            withdraw(done, owner)
            raise


def withdraw(points: Iterable[Point[Any]], owner: object) -> None:
    """Take out the points that nobody but this owner declared."""
    with _lock:
        for point in points:
            owners = _owners.get(point, [])
            if owner in owners:
                owners.remove(owner)
                if not owners:
                    del _owners[point]
                    _remove(point)


def _declare(point: Point[Any], owner: object) -> None:
    known = TABLE.get(point)
    if known is None:
        for alias in point.aliases & NAMES.keys():
            raise RegistrationError(f"point {point!s}: the name {alias!r} belongs to point {NAMES[alias]!s}")
        TABLE[point] = point
        NAMES.update(dict.fromkeys(point.aliases, point))
    elif point not in _owners:
        if known is point:
            return  # the program imported it itself: it stays
        raise RegistrationError(f"point {point!s} is there already, and is not a plugin's; give it another name")
    elif known._shape() != point._shape():
        raise RegistrationError(f"point {point!s} is another plugin's, with another shape; give it another name")
    _owners.setdefault(point, []).append(owner)


def _remove(point: Point[Any]) -> None:
    TABLE.pop(point, None)
    for name in [name for name, owner in NAMES.items() if owner == point]:
        del NAMES[name]
