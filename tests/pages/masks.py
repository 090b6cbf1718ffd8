"""Output in a page beside real output: numbers, times and ids differ, and `...` stands for anything."""

import re

_VARY = re.compile(
    r"(?P<any>\.\.\.|…)|(?P<id>(?<=[a-z]_)[0-9a-f]{4,}|\b[0-9a-f]{8,}\b)|(?P<time>\d[\d.]* (µs|ms|s)\b)"
    r"|(?P<number>\d[\d.,:]*)|(?P<space> {2,})"
)
_AS = {
    "any": ".*",
    "id": "[0-9a-f]+",
    "time": r"\d[\d.]* (µs|ms|s)",
    "number": r"\d[\d.,:]*",
    "space": " +",
}


def pattern(line):
    """Return the pattern that a line of a page stands for."""
    parts, end = [], 0
    for found in _VARY.finditer(line):
        parts += re.escape(line[end : found.start()]), _AS[found.lastgroup]
        end = found.end()
    return re.compile("".join([*parts, re.escape(line[end:])]).rstrip() + r"\s*")


def missing(expected, output):
    """The lines of a page that are not in the output, in this order."""
    lines = iter(output.splitlines())
    wanted = [line.rstrip() for line in expected.splitlines() if line.strip()]
    for number, line in enumerate(wanted):
        shape = pattern(line)
        if not any(shape.fullmatch(real) for real in lines):
            return wanted[number:]
    return []
