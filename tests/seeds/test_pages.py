"""The pages for people who come from another system name everything that is there, and only what is here."""

import re
from pathlib import Path

import pytest

from hookline.points import POINTS

from ..release.surface import public_modules

PAGES = Path(__file__).parent.parent.parent / "docs/coming-from"
SYSTEMS = ("Cognesy", "EdgeVox", "Ethos", "Forge")
ALIASES = [(system, alias, point) for point in POINTS.values() for system, alias in point.names.items()]


def page(system):
    return (PAGES / f"{system.lower()}.md").read_text()


def rows(system, heading):
    """The cells of all tables below a heading."""
    section = page(system).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_system_of_the_point_table_has_a_page():
    systems = {system for system, _, _ in ALIASES}
    assert systems >= set(SYSTEMS)
    pages = {system.lower().replace(" ", "-") for system in systems}
    assert pages <= {path.stem for path in PAGES.glob("*.md")}


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_alias_of_the_point_table_is_in_the_table_of_its_systems_page(system):
    shown = {tuple(cells[:2]) for cells in rows(system, "There and here")}
    for owner, alias, point in ALIASES:
        if owner == system:
            assert any(there.startswith(f"`{alias}`") and here == f"`{point}`" for there, here in shown), (alias, point)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_class_that_the_page_says_is_here_is_here(system):
    cells = "\n".join(cell for row in rows(system, "There and here") for cell in row[1:])
    named = re.findall(r"(?:`|\[)([A-Z][a-z]+(?:[A-Z][a-z]+)+)\b", cells)
    assert named
    public = {name for module in public_modules().values() for name in module.__all__}
    assert [name for name in named if name not in public] == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_difference_says_what_the_source_does_what_we_do_and_why(system):
    for cells in rows(system, "What we do differently"):
        assert len(cells) == 4, cells
