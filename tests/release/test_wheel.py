"""What ``python -m build`` makes works by itself, in an environment with nothing but what Hookline needs."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import hookline

from .surface import public_modules

ROOT = Path(__file__).parents[2]


REPOSITORY = "https://example.com/team/hookline"


def ran(*command, cwd=ROOT, **more):
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | more,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built as a release is: a source distribution first, and the wheel from that."""
    out = tmp_path_factory.mktemp("dist")
    done = ran(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, HOOKLINE_REPOSITORY=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.whl")
    assert found.name == f"hookline-{hookline.__version__}-py3-none-any.whl"
    return found


@pytest.fixture(scope="module")
def empty(wheel, tmp_path_factory):
    """An environment with the wheel and what it requires without extras, and nothing else: not even pip."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for name in needed("hookline"):
        copy(name, packages)
    return folder / "bin" / "python"


def needed(name, *, seen=frozenset()):
    """The names of all distributions that one needs, and theirs."""
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.name not in seen and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            seen |= {requirement.name}
            seen |= needed(requirement.name, seen=seen)
    return seen


def copy(name, packages):
    for file in distribution(name).files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)


def test_the_wheel_has_the_types_the_license_and_every_module_and_no_tests(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    here = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert {name for name in here if "__pycache__" not in name} <= names
    assert "hookline/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hookline"}


def test_it_works_in_an_empty_environment_without_extras(empty, tmp_path):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    done = ran(empty, "-I", "-c", block, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Mail goes to colleagues only. I may not. completed\n"), done.stderr


def test_every_public_name_is_there_without_extras_or_says_what_to_install(empty, tmp_path):
    code = (
        "from importlib import import_module\n"
        "from hookline.errors import NotInstalledError\n"
        f"for path in {list(public_modules())}:\n"
        "    module = import_module(path)\n"
        "    for name in module.__all__:\n"
        "        try: getattr(module, name)\n"
        "        except NotInstalledError as error: assert 'pip install' in str(error), name\n"
    )
    done = ran(empty, "-I", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_program_tells_its_version_and_what_it_lacks(empty, tmp_path):
    told = ran(empty, "-I", "-m", "hookline", "--version", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (0, f"hookline {hookline.__version__}\n")
    lacking = ran(empty, "-I", "-m", "hookline", "run", "hello", cwd=tmp_path)
    assert lacking.returncode == 2
    assert "pip install 'hookline[cli]'" in lacking.stderr


def test_a_release_links_to_its_repository_and_its_readme_leads_to_files_of_this_version(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    assert f"Project-URL: Source, {REPOSITORY}\n" in metadata
    links = set(re.findall(r"\]\(([^)]+)\)", metadata)) | set(re.findall(r"(?:src|srcset|href)=\"([^\"]+)", metadata))
    assert f"{REPOSITORY}/blob/v{hookline.__version__}/SECURITY.md" in links
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.slow
def test_the_tag_of_a_release_is_its_version_and_has_its_changes_written_down(tmp_path):
    copy = tmp_path / "copy"
    assert ran("git", "clone", "-q", "--local", ROOT, copy).returncode == 0
    assert ran("git", "tag", "v9.8.7", cwd=copy).returncode == 0
    command = (sys.executable, "tests/release/dist.py", "--only-build")
    refused = ran(*command, cwd=copy)
    assert (refused.returncode, refused.stderr) == (1, "CHANGELOG.md has no heading '## 9.8.7 (YYYY-MM-DD)'\n")
    changes = copy / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("## Unreleased", "## 9.8.7 (2026-11-19)"))
    done = ran(*command, cwd=copy)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (copy / "dist").iterdir()} >= {
        "hookline-9.8.7.tar.gz",
        "hookline-9.8.7-py3-none-any.whl",
    }


def test_the_workflow_of_a_release_is_valid_and_runs_what_the_makefile_runs():
    workflow = ROOT / ".github/workflows/release.yml"
    done = ran(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", workflow)
    assert done.returncode == 0, done.stdout
    targets = set(re.findall(r"run: make (\S+)", workflow.read_text()))
    assert targets == {"test", "dist"} <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
