"""Compares what a door tells with what the vectors expect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.cases import Failures

from .doors.base import Door
from .vectors import Vector, doors, vectors


async def check(door: Door, folder: Path, chosen: Sequence[Vector] = ()) -> None:
    """Run all vectors at a door, and compare what it shows with what is expected."""
    data = doors()[door.id]
    chosen = [each for each in chosen or vectors() if data.why_not(each) is None]
    failures = Failures()
    async with door.open(folder, chosen):
        for number, vector in enumerate(chosen):
            place = folder / f"{number}"
            place.mkdir()
            with failures.of({"door": data.name, "vector": vector.id}):
                told = data.shown_part(vector, await door.tell(vector, place))
                assert told == data.shown_part(vector, vector.expect.story)
    failures.check(len(chosen))
