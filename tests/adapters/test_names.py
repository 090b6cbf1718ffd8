"""The pages about other frameworks name what these frameworks really have: checked where one is installed."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "coming-from"
PACKAGES = {
    "agent-framework": "agent_framework",
    "google-adk": "google.adk",
    "langchain": "langchain.agents.middleware",
    "openai-agents": "agents",
    "pydantic-ai": "pydantic_ai",
    "strands": "strands",
}
"""Pages, and the packages that they are about."""


def folder_of(package: str) -> Path | None:
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def names_on(page: str) -> set[str]:
    """Return the names in the first columns of the tables of a page."""
    text = (PAGES / f"{page}.md").read_text()
    cells = re.findall(r"^\| (?!there)(.+?) \| ", text, re.MULTILINE)
    code = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    return {name for each in code for name in re.findall(r"[A-Za-z_]\w{3,}", re.sub(r'"[^"]*"', "", each))} - KEYWORDS


KEYWORDS = {"True", "False", "None"}


@pytest.mark.parametrize("page", PACKAGES)
def test_a_page_has_names_in_its_tables(page):
    assert len(names_on(page)) >= 10


@pytest.mark.parametrize("page", PACKAGES)
def test_the_framework_has_every_name_on_the_page_about_it(page):
    folder = folder_of(PACKAGES[page])
    if folder is None:
        pytest.skip(f"{PACKAGES[page]} is not installed here: make test-adapters")
    source = "\n".join(file.read_text(errors="replace") for file in folder.rglob("*.py"))
    words = set(re.findall(r"\w+", source))
    assert sorted(names_on(page) - words) == []
