"""The TypeScript client, in node, against a real server; and curl."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.server.decide.api import CLIENT
from tests.pages.blocks import blocks_in

ROOT = Path(__file__).parents[3]
KITS = ROOT / "tests" / "kits"
PROGRAM = "decide_client.ts"


def node():
    """A node that runs TypeScript, or nothing: the one on the path, or that of `make test-kits`."""
    own = ROOT / "bench" / "venvs" / "kit_decide_client" / "node_modules" / "node" / "bin" / "node"
    for found in (shutil.which("node"), str(own)):
        if found is None or not Path(found).exists():
            continue
        version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
        major, minor = map(int, re.findall(r"\d+", version)[:2])
        if (major, minor) >= (22, 6):
            return found
    return None


NODE = node()


@pytest.fixture
def server(monkeypatch):
    """The server of `make test-kits`, in a process of its own."""
    monkeypatch.syspath_prepend(str(KITS))
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), *sys.path]))
    monkeypatch.delitem(sys.modules, "run", raising=False)
    import importlib.util

    spec = importlib.util.spec_from_file_location("kits_run", KITS / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.served() as url:
        yield url


needs_node = pytest.mark.skipif(
    NODE is None, reason="node 22.6 or later is not installed: make test-kits ONLY=decide_client"
)


def run(folder, program):
    """Run a program in a folder with the client, and return what it prints."""
    (folder / "package.json").write_text('{"type": "module"}')
    command = [NODE, "--experimental-strip-types", "--no-warnings", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_node
def test_the_client_does_what_its_program_expects(server, tmp_path, monkeypatch):
    shutil.copy(KITS / PROGRAM, tmp_path)
    shutil.copy(CLIENT, tmp_path)
    monkeypatch.setenv("KIT_URL", server)
    found = json.loads(run(tmp_path, PROGRAM)[-1])
    assert {name: answer for name, answer in found.items() if answer != "yes"} == {}


@needs_node
def test_the_program_of_the_guide_runs(server, tmp_path):
    blocks = [block.text for block in blocks_in((ROOT / "docs/guides/decide.md").read_text()) if block.kind == "ts"]
    (tmp_path / "guide.ts").write_text("\n".join(blocks).replace("http://127.0.0.1:8420", server))
    shutil.copy(CLIENT, tmp_path / "hookline.ts")
    assert run(tmp_path, "guide.ts")[0] == "sent to ann@example.com"
