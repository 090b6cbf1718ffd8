"""Files of facts, one line each, which several processes write and others read meanwhile.

A process that is killed while it writes may leave half a line, and a reader may see half of one that is being written.
A line is JSON, so half of it is none, and it also begins with a line break, so it is not appended to such a half.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def add_line(path: Path, *values: object) -> None:
    """Append a line with these values."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"\n{json.dumps(values)}\n".encode())
    finally:
        os.close(file)


def read_lines(path: Path) -> list[list[Any]]:
    """Return the values of each whole line; none if there is no such file yet."""
    found = []
    with suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError):  # an empty line, or half of one
                found.append(json.loads(line))
    return found
