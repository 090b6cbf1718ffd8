"""What the pages of docs/concepts say of the code and its tests is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROMISES = re.split(r"^## ", (ROOT / "docs/concepts/invariants.md").read_text(), flags=re.M)[1:]


def test_the_page_has_the_promises_of_the_design_and_no_other():
    design = (ROOT / "docs/design.md").read_text().partition("## 7. Invariants")[2].partition("## 8.")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", design, re.M)]
    assert [int(promise.partition(".")[0]) for promise in PROMISES] == numbers


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.partition(".")[0])
def test_the_tests_that_a_promise_names_exist(promise):
    named = re.findall(r"^- \[(tests/\S+?)\]\(\.\./\.\./(\S+?)\)(.*?)(?=^- |^\S|\Z)", promise, re.M | re.S)
    assert named
    for shown, link, functions in named:
        assert shown == link
        if link.endswith(".py"):
            defined = re.findall(r"^(?:async )?def (test_\w+)", (ROOT / link).read_text(), re.M)
            wanted = re.findall(r"`(\w+)`", functions)
            assert wanted
            assert set(wanted) - set(defined) == set()


@pytest.mark.parametrize("promise", [p for p in PROMISES if "```diff" in p], ids=lambda p: p.partition(".")[0])
def test_the_line_that_breaks_a_promise_is_in_the_code(promise):
    source = (ROOT / re.search(r"Break it, in `(\S+)`", promise)[1]).read_text()
    assert source.count(re.search(r"^-( {2,}.*\n)", promise, re.M)[1]) == 1


def test_the_pictures_are_as_the_code_would_draw_them():
    done = subprocess.run(
        [sys.executable, "docs/draw.py", "--check"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_picture_of_the_readme_is_small_has_both_themes_and_stands_still_where_motion_is_not_wanted():
    picture = (ROOT / "docs/pictures/hook_line.svg").read_text()
    assert "docs/pictures/hook_line.svg" in (ROOT / "README.md").read_text()
    assert len(picture.encode()) < 500_000
    assert "<script" not in picture
    assert "prefers-color-scheme:dark" in picture
    assert "@media(prefers-reduced-motion:reduce){*{animation:none!important}}" in picture
    assert not re.search(r"(href|src|url)\s*[=(]", picture)  # it is one file
