"""The Python of the pages runs, and prints what the pages say."""

import os
import subprocess
from importlib.util import find_spec

import pytest

from hookline._toolbox.sandbox import level_state

from .blocks import GENERATED, PAGES, of_kind
from .masks import missing

ELSEWHERE = (*GENERATED, "docs/reference/verbs.md", "docs/guides/openai.md")
"""Pages whose `py` is a signature, which test_kinds.py looks at, or runs among commands, in test_console.py."""
BY_FRAMEWORK = "docs/guides/other-frameworks/"
"""Each page of this folder needs another framework: tests/adapters/test_guide.py runs them."""
WITH_CODE = [
    page
    for page, blocks in PAGES.items()
    if any(block.kind == "python" for block in blocks) and not page.startswith(BY_FRAMEWORK)
]


PACKAGES = ("agent_hooks", "agent_control_spec", "dbos")
"""Packages of some pages that few people install. `make test-adapters` runs the code of these pages."""


def run(programs, code, folder, rules=""):
    file = folder / "page.code"
    file.write_text(code)
    inside = folder / "folder"
    inside.mkdir(exist_ok=True)
    (inside / "rules.toml").write_text(rules)
    command = [programs / "twice", file]
    env = {
        **os.environ,
        "CI": "1",
    }  # Hypothesis then tries the same examples each time, and ignores how slow the machine is
    return subprocess.run(command, capture_output=True, text=True, cwd=inside, env=env, check=False)


@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_a_page_runs_twice_in_one_folder_and_prints_the_output_shown(page, tmp_path, programs):
    code = "\n".join(block.text for block in PAGES[page] if block.kind == "python")
    for package in PACKAGES:
        if f"from {package} " in code and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    rules = next((block.text for block in PAGES[page] if block.kind == "toml" and block.file == "rules.toml"), "")
    done = run(programs, code, tmp_path, rules)
    assert done.returncode == 0, done.stdout + done.stderr
    for block in PAGES[page]:
        if block.output_of == "python" and page not in GENERATED:
            assert missing(block.text, done.stdout) == [], f"{block}:\n{done.stdout}"


@pytest.mark.parametrize("block", [block for block in of_kind("py") if block.page not in ELSEWHERE], ids=str)
def test_a_program_that_is_for_another_machine_starts_here(block, tmp_path, programs):
    if "Sandbox(" in block.text and (problem := level_state("bubblewrap").problem):
        pytest.skip(f"the sandbox: {problem}")
    (tmp_path / "block.py").write_text(block.text)
    command = [programs / "python", tmp_path / "block.py"]
    env = os.environ | {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr


def test_code_that_fails_is_noticed_and_disturbs_no_other(tmp_path, programs):
    assert "boom" in run(programs, "raise ValueError('boom')", tmp_path).stderr
    assert run(programs, "raise SystemExit('stopped')", tmp_path).returncode == 1
    assert run(programs, "import os; os.kill(os.getpid(), 9)", tmp_path).returncode == 247
    assert run(programs, "assert 1 == 1", tmp_path).returncode == 0
