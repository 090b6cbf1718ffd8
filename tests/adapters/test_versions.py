"""The versions of other frameworks: what is tested is what is supported, and newer releases are reported."""

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from . import run
from .loops import FRAMEWORKS

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TESTED = list(run.frameworks((ROOT / "tests/adapters/frameworks.txt").read_text()))


def numbers(text):
    return tuple(map(int, re.findall(r"\d+", text)))[:2]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_supported_versions_begin_and_end_with_tested_ones(name):
    support = import_module(f"hookline.adapters.{name}").SUPPORT
    releases = [each.install[len(run.TOOLS)].partition("==")[2] for known, each in TESTED if known == name]
    oldest, newest = numbers(releases[0]), numbers(releases[-1])
    assert numbers(support.minimum) == oldest
    assert numbers(support.below) == (newest[0], newest[1] + 1)
    assert EXTRAS[support.extra] == [f"{support.package}>={support.minimum},<{support.below}"]


def test_each_version_has_an_environment_of_its_own():
    made = list(run.frameworks("# a comment\nframe  frame==1.0\nframe  frame==2.0 part==3\nother  other==1\n"))
    assert [(name, each.name, each.install[len(run.TOOLS) :]) for name, each in made] == [
        ("frame", "adapter_frame_1.0", ("frame==1.0",)),
        ("frame", "adapter_frame", ("frame==2.0", "part==3")),
        ("other", "adapter_other", ("other==1",)),
    ]


class Environment(NamedTuple):
    """An environment that was made already, or that pip cannot make."""

    install: tuple[str, ...]
    problem: str = ""
    python: str = sys.executable

    @property
    def made(self):
        return not self.problem

    def make(self):
        return self.problem


@pytest.fixture
def frame(tmp_path, monkeypatch):
    """Return a function that tests an adapter, whose only test notes that it ran."""
    (tmp_path / "test_frame.py").write_text(
        "import os\n\ndef test_notes():\n    with open('ran', 'a') as file:\n"
        "        print('HOOKLINE_WRITE_ADAPTER_RESULTS' in os.environ, file=file)\n"
    )
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "ROOT", tmp_path)

    def tested(**problems):
        environments = [Environment((*run.TOOLS, f"frame=={each[1:]}"), why) for each, why in problems.items()]
        found = run.tested("frame", environments, write_results=True)
        ran = tmp_path / "ran"
        return *found, ran.read_text().split() if ran.exists() else []

    return tested


def test_a_version_whose_requirements_the_index_does_not_have_is_reported_and_no_failure(frame):
    lacking = "ERROR: No matching distribution found for part>=2"
    assert frame(v1="", v2="", v3=lacking) == (
        0,
        "frame: 3 is not installable here: the package index has no part>=2; tested with 2 and 1",
        ["True", "False"],  # the results are those of version 2
    )


def test_an_adapter_that_no_version_could_be_tested_with_has_failed(frame):
    lacking = "ERROR: No matching distribution found for part>=2"
    expected = "frame: 3 is not installable here: the package index has no part>=2; tested with no version"
    assert frame(v3=lacking) == (1, expected, [])


@pytest.mark.parametrize(
    "problem", ["ERROR: No matching distribution found for frame==3", "ERROR: ResolutionImpossible"]
)
def test_another_problem_of_an_installation_is_a_failure(frame, problem):
    assert frame(v2="", v3=problem) == (1, "", ["True"])


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Return the only package index that pip knows, a folder."""
    for name in ("PIP_CONFIG_FILE", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, "/dev/null" if name == "PIP_CONFIG_FILE" else "")
    monkeypatch.setenv("PIP_INDEX_URL", tmp_path.as_uri())
    return tmp_path


def release(index, *versions):
    (index / "frame").mkdir()
    links = [f'<a href="frame-{each}.tar.gz">frame-{each}.tar.gz</a>' for each in versions]
    (index / "frame" / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")


@pytest.mark.parametrize(
    ("tested", "told"),
    [
        ("1.5.0", ""),
        ("1.4.0", "frame: 1.5.0 is out; the newest tested version is 1.4.0"),
        ("1.6.0b1", "frame: 1.6.0b2 is out; the newest tested version is 1.6.0b1"),
    ],
)
def test_a_newer_release_is_reported(index, tested, told):
    release(index, "1.4.0", "1.5.0", "1.6.0b2")
    assert run.newer_release("frame", f"frame=={tested}") == told


def test_an_index_that_cannot_be_read_is_reported(index):
    expected = "frame: the package index cannot be read, so whether a newer release than 1.4.0 is out is unknown"
    assert run.newer_release("frame", "frame==1.4.0") == expected
