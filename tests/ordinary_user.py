"""Run tests as an ordinary user, for tests that run as root: permissions do not bind root."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_PYTHON = "/usr/bin/python3"
_NOBODY = 65534


def run_python(options, folder="/"):
    """Run Python as an ordinary user, with Hookline and the packages of this environment.

    Without a Python of this version for ordinary users, or if they cannot read this repository, the test is skipped.
    """
    here = sys.version_info[:2]
    version = subprocess.run([_PYTHON, "-V"], capture_output=True, text=True, check=False).stdout
    if not version.startswith(f"Python {here[0]}.{here[1]}."):
        pytest.skip("ordinary users have no Python of this version")
    packages = os.path.dirname(os.path.dirname(sys.modules["msgspec"].__file__))
    command = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", _PYTHON, *options]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT / 'src'}:{packages}", "HOME": "/nonexistent"}
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    if "ModuleNotFoundError" in done.stderr or "PermissionError" in done.stderr:
        pytest.skip("ordinary users cannot read this repository")
    return done


def run_as_an_ordinary_user(file, names):
    """Run the tests of a file whose names match, as an ordinary user."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:  # that of pytest is private
        os.chown(folder, _NOBODY, _NOBODY)
        options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/tests", "-k", names, file]
        return run_python(options, ROOT)
