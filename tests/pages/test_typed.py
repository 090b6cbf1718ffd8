"""The Python of the pages has types: people copy it into programs that mypy and pyright check."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .blocks import GENERATED, PAGES, ROOT, of_kind
from .test_python import BY_FRAMEWORK

CHECKED_ELSEWHERE = ("docs/guides/cookbook.md",)
"""Pages made from programs that `make test` checks."""
LENIENT = {"no-redef", "union-attr", "reportRedeclaration", "reportOptionalMemberAccess"}
"""Codes that do not count: blocks of a page define a name twice, and their `assert`s fail if a value is missing."""
UNTYPED = {"misc", "untyped-decorator", "no-any-return", "import-not-found", "reportMissingImports"}
"""Codes that do not count where a framework is not installed, so that its names have no types."""
WITHOUT_FRAMEWORK = (
    BY_FRAMEWORK,
    "docs/guides/agent-hooks.md",
    "docs/guides/cedar-rego.md",
    "docs/guides/durable-engines.md",
)
SIGNATURES = "docs/reference/verbs.md"
SHOWN_AS_MISTAKES = {
    ("docs/guides/first-hook.md", "return HookResult.block(request.argument)"),
    ("docs/concepts/order.md", 'request.arguments["amount"] = 1_000_000'),
    ("docs/guides/output.md", 'lambda: clerk.run("What is the total of order 7?"),'),
    ("docs/guides/output.md", 'clerk.run("What is the total of order 7?", deps="Ada"),'),
    ("docs/guides/output.md", 'Agent("clerk", llm=model, deps_type=Shop, tools=[count_staff]),'),
}
"""Lines that a page shows because they are wrong: type checkers say so too."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """One file for each page, with the line numbers of the page."""
    folder = tmp_path_factory.mktemp("typed")
    files = {}
    for page, blocks in PAGES.items():
        lines = []
        for block in blocks:
            if block.kind == "python":
                lines += [""] * (block.line - len(lines)) + block.text.splitlines()
        if lines and page not in CHECKED_ELSEWHERE:
            name = re.sub(r"\W", "_", page.removesuffix(".md"))
            files[name] = page
            (folder / f"{name}.py").write_text("\n".join(lines) + "\n")
    return folder, files


def run(*command):
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    command = [sys.executable, "-m", *map(str, command)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def said_by_mypy(folder):
    out = run("mypy", "--strict", "--no-error-summary", "--output", "json", folder)
    for error in map(json.loads, out.splitlines()):
        if error["severity"] == "error":
            yield Path(error["file"]).stem, error["line"], error["code"], error["message"]


def said_by_pyright(folder):
    settings = {"include": ["."], "extraPaths": [str(ROOT / "src")], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings | {"typeCheckingMode": "standard"}))
    out = run("pyright", "--project", folder, "--pythonpath", sys.executable, "--outputjson")
    for error in json.loads(out)["generalDiagnostics"]:
        if error["severity"] == "error":
            yield Path(error["file"]).stem, error["range"]["start"]["line"] + 1, error["rule"], error["message"]


@pytest.mark.slow
@pytest.mark.timeout(600)  # mypy without a cache reads the whole package
@pytest.mark.parametrize("check", [said_by_mypy, said_by_pyright])
def test_the_python_of_every_page_passes_type_checkers(check, programs):
    folder, files = programs
    wrong, mistakes = [], set()
    for name, number, code, message in check(folder):
        page = files[name]
        line = (ROOT / page).read_text().splitlines()[number - 1].strip()
        ignored = LENIENT | (UNTYPED if page.startswith(WITHOUT_FRAMEWORK) else set())
        shown = {mistake for mistake in SHOWN_AS_MISTAKES if mistake[0] == page and mistake[1] in line}
        mistakes |= shown
        if not shown and code not in ignored:
            wrong.append(f"{page}:{number}: {message}\n    {line}")
    assert wrong == [], "\n".join(wrong)
    assert mistakes == SHOWN_AS_MISTAKES


def test_every_function_of_a_page_has_types():
    untyped = []
    for block in of_kind("python", "py"):
        if block.page in (*GENERATED, SIGNATURES):
            continue
        for function in ast.walk(ast.parse(block.text)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            given = function.args
            arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            bare = [each for each in arguments if each and not each.annotation and each.arg not in ("self", "cls")]
            if bare or function.returns is None:
                untyped.append(f"{block.page}:{block.line + function.lineno}: def {function.name}")
    assert untyped == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_hookline_new_writes_passes_mypy_strict(tmp_path):
    for kind, name in (("hook", "keep_files"), ("tool", "count"), ("plugin", "word-watch"), ("agent", "clerk")):
        subprocess.run([sys.executable, "-m", "hookline", "new", kind, name], cwd=tmp_path, check=True)
    files = [*tmp_path.rglob("*.py")]
    assert (len(files), run("mypy", "--strict", "--no-error-summary", *files)) == (9, "")
