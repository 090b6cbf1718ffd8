"""The versions of other frameworks: what is tested is what is supported, and newer releases are reported."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

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


def test_the_oldest_and_the_newest_version_have_environments_of_their_own():
    made = list(run.frameworks("# a comment\nframe  frame==1.0\nframe  frame==2.0 part==3\nother  other==1\n"))
    assert [(name, each.name, each.install[len(run.TOOLS) :]) for name, each in made] == [
        ("frame", "adapter_frame_oldest", ("frame==1.0",)),
        ("frame", "adapter_frame", ("frame==2.0", "part==3")),
        ("other", "adapter_other", ("other==1",)),
    ]


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
