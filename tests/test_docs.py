"""What the pages promise: their links lead somewhere, and what comes from the code is up to date."""

import inspect
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from hookline.hooks._catalog import builtin_rows, load_builtin
from tests.cases import each_case

ROOT = Path(__file__).parent.parent
PAGES = [
    path
    for path in (*sorted(ROOT.glob("*.md")), ROOT / "bench/RESULTS.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.exists()
]


def named(path):
    return str(path.relative_to(ROOT))


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=ROOT, check=False)


# Code, beyond tests/pages.


def test_the_first_hook_of_the_readme_prints_what_it_says(capsys):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out == "Mail goes to colleagues only. I may not. completed\n"


# Links.


def prose(page):
    return re.sub(r"^(```+).*?^\1$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """The anchors of a page's headings, as both GitHub and the site make them."""
    found = []
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "").strip().lower()
        kept = "".join(c for c in text if c in " -_" or unicodedata.category(c)[0] in "LN")
        slug = kept.replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{sum(f.startswith(slug) for f in found)}")
    return found


@each_case("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page):
    broken = []
    for target in re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", re.sub(r"`[^`\n]*`", "", prose(page))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and (file.suffix != ".md" or anchor not in anchors(file))):
            broken.append(target)
    assert broken == []


# What comes from the code, and the site.


@pytest.mark.slow
def test_what_is_generated_from_the_code_is_up_to_date():
    done = python("docs/generate.py", "--check")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr + done.stdout


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    done = python(
        "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "dummy", "-c", "docs", "-d", tmp_path / "trees", ".", tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_the_page_of_a_built_in_hook_names_each_of_its_arguments():
    unnamed = {}
    for row in builtin_rows():
        page = (ROOT / f"docs/reference/hooks/{row.page}.md").read_text()
        described = (inspect.getdoc(load_builtin(row.name)) or "").partition("\nArgs:\n")[2].partition("\nRaises:\n")[0]
        for names in re.findall(r"^ {4}\*{0,2}(\w+(?:, \w+)*): ", described, re.MULTILINE):
            missing = [name for name in names.split(", ") if not re.search(rf"\b{name}\b", page)]
            unnamed |= {row.name: missing} if missing else {}
    assert unnamed == {}
