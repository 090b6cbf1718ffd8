"""What the README and the design say of the repository itself."""

import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hookline
from hookline import Event
from hookline.points import POINTS
from tests.cases import each_case

from .release.surface import public_modules

ROOT = Path(__file__).parent.parent
MODULES = public_modules()


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=ROOT, check=False)


def test_importing_hookline_imports_no_extra_and_not_pydantic():
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


def test_importing_hookline_imports_only_the_lazy_loader():
    code = "import sys, hookline; print(*(name for name in sys.modules if name.startswith('hookline.')))"
    loaded = python("-c", code).stdout.split()
    assert "hookline._base.lazy" in loaded
    assert [name for name in loaded if not name.startswith("hookline._base")] == []


@each_case("path", MODULES)
def test_every_public_name_is_exported_and_documented(path):
    module = MODULES[path]
    assert module.__doc__
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert value.__doc__, f"{name} has no docstring"


OF_OTHER_PACKAGES = {"ClaudeHooks", "RecordHook", "TapeHook"}
"""Built-in hooks of other packages, which ``hookline.hooks`` repeats, because it has all built-in hooks."""


def test_every_public_name_belongs_to_one_module_and_the_root_repeats_some():
    homes = {}
    for path, module in MODULES.items():
        # The classes of adapters are named after the extension point of their framework: two frameworks have plugins.
        repeats = path in ("hookline", "hookline.testing", "hookline.compat") or path.startswith("hookline.adapters.")
        others = OF_OTHER_PACKAGES if path == "hookline.hooks" else set()
        for name in set(module.__all__) - others if not repeats else ():
            homes.setdefault(name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
    for name in hookline.__all__:
        assert getattr(hookline, name) is getattr(MODULES[homes[name][0]], name)


def test_no_public_name_is_also_the_name_of_a_module_beside_it():
    """The import system puts a module into its package under its name, and would put it in the place of the other."""
    for path, module in MODULES.items():
        inside = {name for _, name, _ in pkgutil.iter_modules(getattr(module, "__path__", ()))}
        assert inside & set(module.__all__) == set(), path


def test_every_payload_event_and_point_is_in_its_public_module():
    wanted = {kind.__name__ for point in POINTS.values() for kind in (point.payload, point.result) if kind}
    assert wanted <= set(MODULES["hookline.payloads"].__all__)
    assert {str(point).upper() for point in POINTS.values()} <= set(MODULES["hookline.points"].__all__)
    events = {kind.__name__ for kind in Event.__subclasses__() if kind.__module__.startswith("hookline.")}
    assert events <= set(MODULES["hookline.events"].__all__)


def test_the_root_module_is_short_and_has_the_names_that_pages_use():
    assert len(hookline.__all__) <= 60
    pages = [ROOT / "README.md", *(ROOT / "docs/guides").rglob("*.md"), *(ROOT / "docs/concepts").rglob("*.md")]
    code = "\n".join(
        "\n".join(re.findall(r"^ *```(?:python|py)\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE))
        for page in pages
    )
    code += "\n".join(path.read_text() for path in (ROOT / "examples").rglob("*.py"))
    assert [name for name in hookline.__all__ if not re.search(rf"\b{name}\b", code)] == []


def test_no_page_uses_a_star_import():
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.split()
    texts = (ROOT / file for file in files if file.endswith((".py", ".md", ".pyi")))
    star = "from hookline import " + "*"
    assert [str(path) for path in texts if path.exists() and star in path.read_text()] == []


def test_pages_examples_and_templates_use_public_modules_only():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    wrong = []
    for page in [*pages, *(ROOT / "src/hookline/cli").glob("*.py")]:
        for path, several, one in re.findall(
            r"from (hookline(?:\.\w+)*) import (?:\(([^)]*)\)|([\w, ]+))", page.read_text()
        ):
            known = {*MODULES[path].__all__, "testing"} if path in MODULES else set()
            asked = {name.split(" as ")[0].strip() for name in (several or one).split(",")} - {""}
            wrong += [(page.name, path, name) for name in asked - known]
    assert wrong == []


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_the_examples_run(example):
    done = python(f"examples/{example}")
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout


def test_ci_runs_the_test_commands_of_the_readme_and_contributing():
    assert "make test" in (ROOT / "README.md").read_text()
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands[-2:] == ["make test", "make test-slow"]


def test_every_risk_of_owasp_names_a_test_that_exists():
    page = (ROOT / "SECURITY.md").read_text()
    rows = re.findall(r"^\| (ASI\d\d) .+?\| `(tests/[\w/]+\.py)::(test_\w+)` \|", page, re.MULTILINE)
    assert [risk for risk, _, _ in rows] == [f"ASI{number:02}" for number in range(1, 11)]
    for risk, file, name in rows:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), risk
