"""What ``python -m build`` makes works by itself, in an environment with nothing but what Hookline needs."""

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


def ran(*command, cwd=ROOT):
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=cwd, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built as a release is: a source distribution first, and the wheel from that."""
    out = tmp_path_factory.mktemp("dist")
    done = ran(sys.executable, "-m", "build", "--no-isolation", "--outdir", out)
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
