"""A section of the page: its measurement, its text and its charts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from environments import Environment
from lab import Lab


def no_charts(data: Any) -> dict[str, str]:
    """Return no charts."""
    return {}


@dataclass(frozen=True)
class Section:
    """One section.

    Args:
        name: its name on the command line and in results.json.
        title: its heading on the page.
        measure: returns plain data that JSON can hold.
        render: turns the data into Markdown.
        draw: turns the data into SVG charts, by file name.
        modules: modules that must be installed to measure it.
        environment: an environment of its own, whose interpreter is ``lab.pythons[environment.name]``.
    """

    name: str
    title: str
    measure: Callable[[Lab], Any]
    render: Callable[[Any], str]
    draw: Callable[[Any], dict[str, str]] = no_charts
    modules: tuple[str, ...] = ()
    environment: Environment | None = None
