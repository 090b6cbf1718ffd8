"""Fixtures of the tests of the gateway."""

from __future__ import annotations

import pytest

from .scenes import Scene


@pytest.fixture
async def scene(tmp_path):
    """Make sessions, which are closed at the end."""
    made = []

    def make(*hooks, **options):
        made.append(Scene(tmp_path, hooks, **options))
        return made[-1]

    yield make
    for each in made:
        await each.close()
