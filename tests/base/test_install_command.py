"""The message about a missing package contains the command that installs it."""

import shutil
import subprocess
import sys
from pathlib import Path

from hookline._base import errors
from hookline._base.errors import NotInstalledError

ROOT = Path(errors.__file__).parents[3]


def test_the_command_names_the_folder_of_the_checkout(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert str(NotInstalledError("mcp", "mcp")) == f"mcp is not installed: pip install -e '{ROOT}[mcp]'"
    monkeypatch.chdir(ROOT)
    assert str(NotInstalledError("mcp", "mcp")) == "mcp is not installed: pip install -e '.[mcp]'"


def installed(folder, code):
    """What code prints if Hookline is installed as a package."""
    packages = folder / "lib" / "site-packages"
    shutil.copytree(ROOT / "src" / "hookline" / "_base", packages / "hookline" / "_base")
    (packages / "hookline" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    code = f"import sys\nfrom hookline._base.errors import install_command\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(packages)}, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_without_a_checkout_the_command_names_the_package(tmp_path):
    assert installed(tmp_path, "print(install_command('mcp'))") == "pip install 'hookline[mcp]'\n"


def test_in_an_environment_of_pipx_the_command_is_one_of_pipx(tmp_path):
    (tmp_path / "pipx_metadata.json").touch()
    code = f"sys.prefix = {str(tmp_path)!r}\nprint(install_command('cli'))\nprint(install_command('mcp'))"
    assert installed(tmp_path, code).splitlines() == [
        "pipx install --force 'hookline[cli]'",
        "pipx runpip hookline install 'hookline[mcp]'",
    ]
