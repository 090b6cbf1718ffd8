"""The code of the guide to other frameworks runs, and prints what the guide says: each section with its framework."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from .loops import installed

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "other-frameworks.md"
SECTIONS = {text.partition("\n")[0]: text for text in re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)[1:]}
FRAMEWORKS = [driver.name for driver in installed() if driver.name not in ("Hookline", "Plain loop")]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_code_of_a_section_runs_and_prints_what_the_guide_says(framework, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", SECTIONS[framework], flags=re.DOTALL)
    (output,) = re.findall(r"```text\n(.*?)```", SECTIONS[framework], flags=re.DOTALL)
    (tmp_path / "section.py").write_text(code)
    command = [sys.executable, "section.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == [line.rstrip() for line in output.splitlines()]


def test_every_framework_that_is_installed_has_a_section():
    assert set(FRAMEWORKS) <= set(SECTIONS)


@pytest.mark.parametrize(
    "module", ["langchain", "openai_agents", "pydantic_ai", "strands", "google_adk", "agent_framework"]
)
def test_a_section_installs_hookline_with_the_extra_of_its_framework(module):
    support = import_module(f"hookline.adapters.{module}").SUPPORT
    assert f"$ pip install '/path/to/hookline[{support.extra}]'\n" in SECTIONS[support.framework]
