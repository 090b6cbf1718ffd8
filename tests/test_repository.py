"""What the README and the design say of the repository itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hookline

ROOT = Path(__file__).parent.parent
KERNEL = sorted((ROOT / "src/hookline/kernel").glob("*.py"))


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)


def lines(path):
    return len(path.read_text().splitlines())


def test_the_kernel_can_be_read_in_one_sitting():
    assert sum(map(lines, KERNEL)) < 2000
    assert lines(ROOT / "src/hookline/kernel/dispatch.py") < 250


def test_no_module_asks_to_become_a_folder():
    long = {str(path): lines(path) for path in (ROOT / "src").rglob("*.py") if lines(path) > 500}
    assert long == {}


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


PAGES = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if "```python" in path.read_text()
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_code_in_the_pages_runs_in_an_empty_folder_and_there_again(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", "import sys; code = sys.argv[1]; exec(code, {}); exec(code, {})", "\n".join(blocks)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_first_hook_of_the_readme_prints_what_it_says(capsys):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out == "I may not. completed\nFiles stay.\n"


def test_the_generated_reference_is_up_to_date():
    page = ROOT / "docs/reference/points.md"
    code = "import sys; sys.path.insert(0, 'docs'); from generate import points_page; print(points_page(), end='')"
    assert python("-c", code).stdout == page.read_text()


def test_the_tables_of_the_command_line_page_are_up_to_date():
    page = ROOT / "docs/guides/command-line.md"
    code = (
        "import sys; sys.path.insert(0, 'docs'); from generate import cli_page; from pathlib import Path; "
        "print(cli_page(Path('docs/guides/command-line.md').read_text()), end='')"
    )
    assert python("-c", code).stdout == page.read_text()
    assert "| `max_steps` | `--max-steps` | `20` |" in page.read_text()


def test_the_table_of_audit_records_is_up_to_date():
    code = (
        "import sys; sys.path.insert(0, 'docs'); from generate import audit_page; from pathlib import Path; "
        "print(audit_page(Path('docs/guides/audit.md').read_text()), end='')"
    )
    assert python("-c", code).stdout == (ROOT / "docs/guides/audit.md").read_text()


def test_the_table_of_settings_of_the_server_is_up_to_date():
    code = (
        "import sys; sys.path.insert(0, 'docs'); from generate import server_page; from pathlib import Path; "
        "print(server_page(Path('docs/guides/serve.md').read_text()), end='')"
    )
    page = (ROOT / "docs/guides/serve.md").read_text()
    assert python("-c", code).stdout == page
    assert "| `port` | `8420` |" in page


def test_the_index_of_built_in_hooks_is_up_to_date():
    code = "import sys; sys.path.insert(0, 'docs'); from generate import hooks_page; print(hooks_page(), end='')"
    assert python("-c", code).stdout == (ROOT / "docs/reference/hooks/index.md").read_text()


def test_the_point_table_can_be_printed():
    out = python("-c", "import hookline; print(hookline.points_table())").stdout
    assert len(out.splitlines()) == 30
    assert "BeforeToolExec (Forge)" in out


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_the_examples_run(example):
    done = python(f"examples/{example}")
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout


def test_the_benchmark_harness_works():
    done = python("bench/run.py", "--quick")
    assert done.returncode == 0, done.stderr
    assert "## The standard run" in done.stdout
    assert "| ModelRetryHook, giving up | " in done.stdout
    assert "| the same, replies posted to a callback | " in done.stdout


def test_ci_runs_the_readmes_test_command_and_nothing_else():
    assert "make test" in (ROOT / "README.md").read_text()
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "make test"
