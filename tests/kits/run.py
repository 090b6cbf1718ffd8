"""Run programs that others wrote against a real server, each installed in an environment of its own.

Example::

    make test-kits                 # all kits of kits.txt
    make test-kits ONLY=llm        # one of them
    make test-kits RESULTS=1       # and write what they find to results.json
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RESULTS = HERE / "results.json"
SECONDS = 300
CLIENT = ROOT / "src" / "hookline" / "server" / "decide" / "client.ts"
TYPES = {
    "strict": True,
    "noEmit": True,
    "target": "es2022",
    "module": "nodenext",
    "lib": ["es2024", "dom"],
    "allowImportingTsExtensions": True,
}
"""The options of the TypeScript compiler, which only checks types: node removes them."""
sys.path.insert(0, str(ROOT / "bench"))

from environments import VENVS, Environment  # noqa: E402


class Kit(NamedTuple):
    """One kit: where it comes from, the program that drives it, and what is installed."""

    name: str
    registry: str
    program: str
    install: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The environment."""
        return VENVS / f"kit_{self.name}"

    def make(self) -> str:
        """Install the kit. Return the problem, or nothing."""
        if self.registry == "pypi":
            environment = Environment(f"kit_{self.name}", self.install)
            return "" if environment.made else environment.make()
        mark = self.folder / ".done"
        if mark.exists() and mark.read_text() == " ".join(self.install):
            return ""
        if shutil.which("npm") is None:
            return "npm is not installed"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "package.json").write_text('{"private": true, "type": "module"}')
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", *self.install]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            mark.write_text(" ".join(self.install))
        return "" if done.returncode == 0 else done.stderr.strip()[-300:]

    def command(self) -> list[str]:
        """Return the command that drives the kit.

        Raises:
            SystemExit: the types of its program are wrong.
        """
        if self.program.endswith(".ts"):  # node removes the types, and tsc checks them
            program = shutil.copy(str(HERE / self.program), str(self.folder))
            shutil.copy(str(CLIENT), str(self.folder))
            bin = self.folder / "node_modules" / ".bin"
            about = {"compilerOptions": TYPES, "files": [self.program]}
            (self.folder / "tsconfig.json").write_text(json.dumps(about))
            checked = subprocess.run([bin / "tsc"], cwd=self.folder, capture_output=True, text=True, check=False)
            if checked.returncode:
                raise SystemExit(checked.stdout)
            return [str(bin / "node"), "--experimental-strip-types", "--no-warnings", str(program)]
        if self.program.endswith(".mjs"):  # it imports what is installed beside it
            return ["node", str(shutil.copy(str(HERE / self.program), str(self.folder)))]
        own = sys.executable if self.registry == "npm" else str(self.folder / "bin" / "python")
        return [own, str(HERE / self.program)]


def kits() -> Iterator[Kit]:
    """Read ``kits.txt``."""
    for line in (HERE / "kits.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, registry, program, *install = line.split()
            yield Kit(name, registry, program, tuple(install))


@contextmanager
def served() -> Iterator[str]:
    """Start ``hookline serve`` and yield its URL."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(HERE / "server", folder, dirs_exist_ok=True)
        env = {**os.environ, "OPENAI_API_KEY": "none", "HOME": folder, "XDG_DATA_HOME": folder}
        log = Path(folder) / "log.jsonl"
        with log.open("w") as out:
            command = [sys.executable, "-m", "hookline", "serve", "--trust"]
            server = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            until = time.monotonic() + SECONDS
            while not (started := [line for line in log.read_text().splitlines() if "listening at" in line]):
                if server.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
                time.sleep(0.1)
            yield json.loads(started[0])["message"].split()[2].rstrip(",")
        finally:
            server.terminate()
            server.wait()


def found_by(kit: Kit, url: str) -> dict[str, str]:
    """Run a kit and return what it found."""
    env = {**os.environ, "KIT_URL": url, "KIT_FOLDER": str(kit.folder)}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(kit.command(), env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"runs": f"no: {done.stderr.strip()[-300:]}"}
    found: dict[str, str] = json.loads(lines[-1])
    return found


def main() -> int:
    """Install and run the kits. Return the number of kits that found a fault, or something else than is documented."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("only", nargs="*", help="names of kits; by default all")
    options.add_argument("--write-results", action="store_true", help="write what the kits find to results.json")
    given = options.parse_args()
    known = {kit.name: kit for kit in kits()}
    if unknown := [name for name in given.only if name not in known]:
        options.error(f"{unknown[0]} is not in kits.txt, which has {', '.join(known)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = 0
    with served() as url:
        for name in given.only or known:
            kit = known[name]
            print(f"{name}: {' '.join(kit.install)}", flush=True)
            if problem := kit.make():
                print(f"{name} cannot be installed: {problem}", flush=True)
                failed += 1
                continue
            found = {"installed": list(kit.install), "cases": found_by(kit, url)}
            for case, answer in found["cases"].items():  # type: ignore[attr-defined]
                print(f"  {case}: {answer}", flush=True)
            if given.write_results:
                results[name] = found
            failed += results.get(name) != found or set(found["cases"].values()) != {"yes"}  # type: ignore[attr-defined]
    if given.write_results:
        ordered = {name: results[name] for name in known if name in results}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
