"""What people are told to do about a package that is missing."""

import shutil
import subprocess
import sys
from pathlib import Path

import hookline._base.installing as installing
from hookline._base.installing import NotInstalledError

ROOT = Path(installing.__file__).parents[3]


def test_a_checkout_is_installed_from_its_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert str(NotInstalledError("mcp", "mcp")) == f"mcp is not installed: pip install -e '{ROOT}[mcp]'"
    monkeypatch.chdir(ROOT)
    assert str(NotInstalledError("mcp", "mcp")) == "mcp is not installed: pip install -e '.[mcp]'"


def test_an_installed_package_is_installed_by_its_name(tmp_path):
    folder = tmp_path / "lib" / "site-packages"
    shutil.copytree(ROOT / "src" / "hookline" / "_base", folder / "hookline" / "_base")
    (folder / "hookline" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    code = "from hookline._base.installing import install_command\nprint(install_command('mcp'))\n"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "pip install 'hookline[mcp]'\n"
