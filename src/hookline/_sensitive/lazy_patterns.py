"""Regular expressions that are compiled on first use."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial


def lazily(pattern: str, flags: int = 0) -> Callable[[], re.Pattern[str]]:
    """Return a function that returns a regular expression, and compiles it in the first call.

    Those with many words or wide ranges take 1 to 20 ms. Together they would take a quarter of a second in every
    program that imports them, also in one that never meets a text for them.
    """
    return cache(partial(re.compile, pattern, flags))
