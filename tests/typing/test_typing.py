"""mypy and pyright check the programs in ``cases``, which use Hookline.

A line that must be an error ends with ``# error: mypy, pyright``, or with the name of one of the two. Every marked line
must be reported, and no other line may be.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.cli.new_agent import AGENT, TEST

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CASES = sorted((HERE / "cases").glob("*.py"))
MARK = re.compile(r"# error: (?P<checkers>\w+(, \w+)*)$")

Places = dict[tuple[str, int], str]
"""What is said, by the name of the file and the line."""

pytestmark = pytest.mark.timeout(600)  # mypy without a cache reads the whole package


def marked(checker: str) -> Places:
    found: Places = {}
    for path in CASES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            mark = MARK.search(line)
            if mark is not None and checker in mark["checkers"].split(", "):
                found[path.name, number] = line.strip()
    return found


def run(*command: str) -> str:
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def said_by_mypy() -> Places:
    out = run("mypy", "--no-error-summary", "--output", "json", *map(str, CASES))
    errors = [error for error in map(json.loads, out.splitlines()) if error["severity"] == "error"]
    return {(Path(error["file"]).name, error["line"]): error["message"] for error in errors}


def said_by_pyright() -> Places:
    out = run("pyright", "--project", str(HERE), "--pythonpath", sys.executable, "--outputjson")
    answer = json.loads(out)
    assert answer["summary"]["filesAnalyzed"] == len(CASES)
    errors = [error for error in answer["generalDiagnostics"] if error["severity"] == "error"]
    return {(Path(error["file"]).name, error["range"]["start"]["line"] + 1): error["message"] for error in errors}


@pytest.mark.parametrize(("checker", "check"), [("mypy", said_by_mypy), ("pyright", said_by_pyright)])
def test_type_checkers_report_the_marked_lines_and_no_other(checker, check):
    expected, said = marked(checker), check()
    assert len(expected) > 30
    assert {place: expected[place] for place in expected.keys() - said.keys()} == {}, "accepted, but marked as errors"
    assert {place: said[place] for place in said.keys() - expected.keys()} == {}, "errors that are not marked"


@pytest.mark.parametrize("path", [path for path in CASES if not path.stem.endswith("_refused")], ids=lambda p: p.stem)
def test_what_type_checkers_accept_works(path):
    subprocess.run([sys.executable, str(path)], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True)


def test_a_new_agent_passes_mypy_strict(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "test_agent.py").write_text(TEST)
    out = run("mypy", "--strict", str(tmp_path / "agent.py"), str(tmp_path / "test_agent.py"))
    assert out == "Success: no issues found in 2 source files\n"
