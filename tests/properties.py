"""How many examples the tests of properties try: few in `make test`, all in `make test-slow` and `make fuzz`."""

from hypothesis import settings

ALL = 100
"""The examples of a test without a number of its own, where all are tried."""


def examples(number: int) -> int:
    """Return the number of examples to try, of those that a test has where all are tried."""
    return min(number, max(4, number * settings.default.max_examples // ALL))
