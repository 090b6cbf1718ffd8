"""What users rely on is written down, and nothing of it disappears unnoticed (docs/versions.md)."""

import re
from pathlib import Path

import hookline

from .surface import promised, public_modules, surface

ROOT = Path(__file__).parents[2]


def test_nothing_that_was_promised_has_disappeared():
    now = surface()
    gone = {thing: parts - now.get(thing, set()) for thing, parts in promised().items() if thing in now}
    assert sorted(set(promised()) - set(now)) == [], "keep it, with a DeprecationWarning: see docs/versions.md"
    assert {thing: parts for thing, parts in gone.items() if parts} == {}, "keep it: see docs/versions.md"


def test_everything_that_is_new_is_written_down():
    before = promised()
    new = {thing: parts - before.get(thing, set()) for thing, parts in surface().items()}
    unwritten = {thing: parts for thing, parts in new.items() if parts or thing not in before}
    assert unwritten == {}, "python tests/release/surface.py writes it down"


def test_every_public_module_has_a_page_and_is_on_the_page_of_versions():
    pages = "\n".join(path.read_text() for path in (ROOT / "docs/reference/modules").glob("*.md"))
    versions = (ROOT / "docs/versions.md").read_text()
    assert set(re.findall(r"^##? (hookline[.\w]*)$", pages, re.M)) == set(public_modules())
    assert [path for path in public_modules() if f"`{path}`" not in versions] == []


def test_the_version_is_a_semantic_one_and_has_its_changes_written_down():
    version = hookline.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version)
    assert re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
