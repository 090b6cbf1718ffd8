"""Fixtures for pytest, there wherever Hookline is installed. They import Hookline when used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest


@pytest.fixture
def scripted_agent() -> Callable[..., Any]:
    """Make agents on a scripted model: :func:`hookline.testing.scripted_agent`."""
    from .testing import scripted_agent as make

    return make


@pytest.fixture
def fire_hook() -> Callable[..., Any]:
    """Fire one hook at one point: :func:`hookline.testing.fire_hook`."""
    from .testing import fire_hook as fire

    return fire


@pytest.fixture
def inject_fault() -> Iterator[Callable[..., list[str]]]:
    """Make a hook fail until the test is over: :func:`hookline.testing.inject_fault`."""
    from .testing import inject_fault as inject

    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(inject(*args, **kwargs))
