"""What views of a run show, without what differs from run to run."""

import re


def without_duration(line: str) -> str:
    """Return a line of a view without the time that a call or a hook took."""
    return re.sub(r"  \d[\d.]* (µs|ms|s)$", "", line)
