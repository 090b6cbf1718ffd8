"""Fixtures for pytest, available where Hookline is installed. Hookline is only imported when a test uses one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest


@pytest.fixture
def scripted_agent() -> Callable[..., Any]:
    """Create agents with a scripted model: :func:`hookline.testing.scripted_agent`."""
    from . import testing

    return testing.scripted_agent


@pytest.fixture
def fire_hook() -> Callable[..., Any]:
    """Call one hook at one point: :func:`hookline.testing.fire_hook`."""
    from . import testing

    return testing.fire_hook


@pytest.fixture
def inject_fault() -> Iterator[Callable[..., list[str]]]:
    """Make a hook fail until the end of the test: :func:`hookline.testing.inject_fault`."""
    from . import testing

    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(testing.inject_fault(*args, **kwargs))
