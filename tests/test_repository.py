"""What the README and the design say of the repository itself."""

import subprocess
import sys
from pathlib import Path

import pytest

import hookline

ROOT = Path(__file__).parent.parent
KERNEL = sorted((ROOT / "src/hookline/_kernel").glob("*.py"))


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)


def lines(path):
    return len(path.read_text().splitlines())


def test_the_kernel_can_be_read_in_one_sitting():
    assert sum(map(lines, KERNEL)) < 2000
    assert lines(ROOT / "src/hookline/_kernel/dispatch.py") < 250


def test_importing_hookline_pulls_in_no_extra_and_not_even_pydantic():
    code = "import sys, hookline; hookline.Agent; print(' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    loaded = set(python("-c", code).stdout.split())
    heavy = {
        "pydantic",
        "pydantic_core",
        "docstring_parser",
        "typer",
        "rich",
        "openai",
        "anthropic",
        "mcp",
        "httpx2",
        "xllamacpp",
    }
    assert "hookline" in loaded
    assert loaded & heavy == set()


def test_every_public_name_is_exported_and_documented():
    for name in hookline.__all__:
        value = getattr(hookline, name)
        if isinstance(value, type) or callable(value):
            assert value.__doc__, f"{name} has no docstring"
    assert set(hookline.api._LATER) <= set(hookline.__all__)


def test_the_point_table_can_be_printed():
    out = python("-c", "import hookline; print(hookline.points_table())").stdout
    assert len(out.splitlines()) == 30
    assert "BeforeToolExec (Forge)" in out


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_the_examples_run(example):
    done = python(f"examples/{example}")
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout


def test_ci_runs_the_readmes_test_command_and_nothing_else():
    assert "make test" in (ROOT / "README.md").read_text()
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "make test"
