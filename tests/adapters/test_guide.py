"""The code of the guides to other frameworks runs, and prints what they say: each page with its framework."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from .loops import installed

GUIDES = Path(__file__).parents[2] / "docs" / "guides" / "other-frameworks"
TEXTS = [path.read_text() for path in sorted(GUIDES.glob("*.md"))]
PAGES = {text.partition("\n")[0].removeprefix("# ").removesuffix(" with Hookline's hooks"): text for text in TEXTS}
FRAMEWORKS = [driver.name for driver in installed() if driver.name not in ("Hookline", "Plain loop")]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(framework, tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGES[framework], flags=re.DOTALL))
    (output,) = re.findall(r"```text\n(.*?)```", PAGES[framework], flags=re.DOTALL)
    (tmp_path / "page.py").write_text(code)
    command = [sys.executable, "page.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == [line.rstrip() for line in output.splitlines()]


def test_every_framework_that_is_installed_has_a_page():
    assert set(FRAMEWORKS) <= set(PAGES)


@pytest.mark.parametrize(
    "module", ["langchain", "openai_agents", "pydantic_ai", "strands", "google_adk", "agent_framework"]
)
def test_a_page_installs_hookline_with_the_extra_of_its_framework(module):
    support = import_module(f"hookline.adapters.{module}").SUPPORT
    assert f"pip install 'hookline[{support.extra}]'" in PAGES[support.framework]
