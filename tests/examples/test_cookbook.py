"""Every program of the cookbook prints what its last lines say, twice, and leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "examples/cookbook").glob("*.py"))

RUN_ALL = """
import contextlib, io, json, os, runpy, sys
from pathlib import Path
from hookline.config.loading import load_hooks

told = {}
for path in sys.argv[1:]:
    outputs = []
    for _ in range(2):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(path, run_name="__main__")
        outputs.append(out.getvalue())
    with contextlib.redirect_stdout(io.StringIO()) as out:
        hooks, plugins = load_hooks([path], Path.cwd())
    told[path] = {
        "outputs": outputs, "left": os.listdir(), "hooks": [type(loaded.hook).__name__ for loaded in hooks],
        "said_while_loading": out.getvalue(),
    }
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cookbook")
    command = [sys.executable, "-c", RUN_ALL, *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def promised(path):
    _, mark, lines = path.read_text().partition("\n# prints:\n")
    assert mark, f"{path.name} does not end with what it prints"
    return "".join(line.removeprefix("#").removeprefix(" ") + "\n" for line in lines.splitlines())


def test_there_are_at_least_twenty_programs():
    assert len(FILES) >= 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_program_prints_what_its_last_lines_say_also_a_second_time(path, told):
    assert told[str(path)]["outputs"] == [promised(path)] * 2
    assert told[str(path)]["left"] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_program_is_a_hooks_file_for_the_command_line_too(path, told):
    assert told[str(path)]["hooks"]
    assert told[str(path)]["said_while_loading"] == ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_program_is_short_and_says_what_it_is_for(path):
    text = path.read_text()
    assert 15 <= len(text.splitlines()) <= 60
    title, empty, *about = text.split('"""')[1].splitlines()
    assert title.endswith(".")
    assert empty == ""
    assert about
