"""A section of the page: what is measured, what is said of it, and what is drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab import Lab


def no_charts(data: Any) -> dict[str, str]:
    """Nothing is drawn."""
    return {}


@dataclass(frozen=True)
class Section:
    """One section.

    Args:
        name: how the command line and the file of figures know it.
        title: its heading.
        measure: gives plain data, fit for JSON.
        render: that data as Markdown.
        draw: that data as SVG, by name of the file.
        modules: what must be installed to measure it.
    """

    name: str
    title: str
    measure: Callable[[Lab], Any]
    render: Callable[[Any], str]
    draw: Callable[[Any], dict[str, str]] = no_charts
    modules: tuple[str, ...] = ()
