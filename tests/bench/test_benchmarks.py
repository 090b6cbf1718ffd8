"""The benchmarks measure, and write their page: with tiny sizes, without other frameworks, saying nothing of times."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


def bench(*arguments):
    command = [sys.executable, "bench/run.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=500, check=False)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    done = bench("--quick", "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_section_is_measured_and_on_the_page(out):
    page = (out / "RESULTS.md").read_text()
    listed = re.findall(r"^- \[(.+)\]\(#(.+)\)$", page, re.MULTILINE)
    assert [name for name, _ in listed] == re.findall(r"^## (.+)$", page, re.MULTILINE)
    sections = json.loads((out / "results.json").read_text())["sections"]
    assert len(listed) == len(sections) + 1
    for row in ("| hookline | ", "| ModelRetryHook, giving up | ", "| the same, replies posted to a callback | "):
        assert row in page
    assert not re.search(r"\bnan\b|\binf\b|\| None|\{", page)


def test_every_chart_is_a_picture_and_on_the_page(out):
    page = (out / "RESULTS.md").read_text()
    shown = set(re.findall(r"!\[.+\]\(charts/(.+\.svg)\)", page))
    assert shown == {path.name for path in (out / "charts").iterdir()}
    for path in (out / "charts").iterdir():
        drawn = ElementTree.parse(path).getroot()
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(list(drawn.iter("{http://www.w3.org/2000/svg}text"))) > 3


def test_one_section_measured_again_leaves_the_others_and_says_so(out):
    results = json.loads((out / "results.json").read_text())
    old = dict.fromkeys(results["sections"], "2026-01-02T03:04:05+00:00")
    results["runs"] = {"2026-01-02T03:04:05+00:00": next(iter(results["runs"].values()))}
    for name, found in results["sections"].items():
        found["run"] = old[name]
    (out / "results.json").write_text(json.dumps(results))
    assert bench("--quick", "--out", out, "--sections", "scanning").returncode == 0
    again = json.loads((out / "results.json").read_text())
    assert again["sections"]["audit"] == results["sections"]["audit"]
    assert len(again["runs"]) == 2
    page = (out / "RESULTS.md").read_text()
    assert "Measured on 2026-01-02 on" in page
    assert page.count("*Measured in another run, on ") == 1


def test_an_unknown_section_is_refused_with_those_there_are():
    done = bench("--sections", "speed")
    assert done.returncode == 2
    assert "there is no section speed; there are dispatch, loops" in done.stderr


def test_a_quick_run_never_replaces_the_figures_that_are_kept():
    done = bench("--quick")
    assert done.returncode == 2
    assert "--out" in done.stderr
