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


def test_without_a_checkout_the_command_names_the_package(tmp_path):
    folder = tmp_path / "lib" / "site-packages"
    shutil.copytree(ROOT / "src" / "hookline" / "_base", folder / "hookline" / "_base")
    (folder / "hookline" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    code = "from hookline._base.errors import install_command\nprint(install_command('mcp'))\n"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "pip install 'hookline[mcp]'\n"
