"""Fixtures for the tests of pages: one process whose forks run the programs of all pages."""

import subprocess
import sys
from pathlib import Path

import pytest

from .forks import CLIENT

PROGRAMS = ("hookline", "python", "pytest", "twice")


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """A folder with programs that start at once, for PATH."""
    folder = tmp_path_factory.mktemp("bin")
    path = folder / "socket"  # short, as the paths of sockets must be
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("forks.py"), path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout.readline() == b"ready\n"
    for name in PROGRAMS:
        (folder / name).write_text(CLIENT.format(python=sys.executable, path=str(path)))
        (folder / name).chmod(0o755)
    yield folder
    server.stdin.close()
    server.wait(10)
    server.stdout.close()
