"""The TypeScript client, in node, against a real server; and curl."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.skipif(NODE is None, reason="node 22.6 or later is not installed: make test-kits ONLY=decide_client")
def test_the_client_does_what_its_program_expects(server, tmp_path):
    shutil.copy(KITS / PROGRAM, tmp_path)
    shutil.copy(ROOT / "src/hookline/server/decide/client.ts", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    command = [NODE, "--experimental-strip-types", "--no-warnings", PROGRAM]
    env = {**os.environ, "KIT_URL": server}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: answer for name, answer in found.items() if answer != "yes"} == {}
