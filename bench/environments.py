"""Virtual environments under bench/venvs: one for each peer in bench/peers.txt, and two for Hookline itself."""

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
VENVS = HERE / "venvs"
OURS = {"hookline": "", "hookline_all": "[all]"}
"""Hookline as it is installed: the core, and with all that can be left out."""
PIP = ("-m", "pip", "--disable-pip-version-check", "-q")


class Environment(NamedTuple):
    """One virtual environment and the requirements installed in it; ``source`` identifies code without a version."""

    name: str
    install: tuple[str, ...]
    source: str = ""

    @property
    def folder(self) -> Path:
        return VENVS / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    @property
    def mark(self) -> Path:
        return self.folder / ".done"

    @property
    def wanted(self) -> str:
        return "\n".join((*self.install, self.source))

    @property
    def made(self) -> bool:
        return self.mark.exists() and self.mark.read_text() == self.wanted

    def make(self) -> str:
        """Create and fill the environment. Return the error message, or nothing."""
        if not self.mark.exists():  # an interrupted installation may have left a partial environment
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.folder)], check=True, capture_output=True)
        if self.source:
            subprocess.run([str(self.python), *PIP, "uninstall", "-y", "hookline"], check=False, capture_output=True)
        command = [str(self.python), *PIP, "install", *self.install]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return errors[-1] if errors else f"pip ended with {done.returncode}"
        self.mark.write_text(self.wanted)
        return ""


def peers() -> Iterator[Environment]:
    """Read ``peers.txt``."""
    for line in (HERE / "peers.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, *install = line.split()
            yield Environment(name, tuple(install))


def ours() -> Iterator[Environment]:
    """Return the environments of the current Hookline."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    for name, extra in OURS.items():
        yield Environment(name, ("-c", "constraints.txt", f".{extra}"), digest.hexdigest())


def make_all(told: Callable[[str], None]) -> dict[str, Environment]:
    """Create all environments. Report those that fail, and return the others."""
    there: dict[str, Environment] = {}
    wanted = [*peers(), *ours()]
    with ThreadPoolExecutor(2) as pool:
        for each, failed in zip(wanted, pool.map(_made, wanted), strict=True):
            if failed:
                told(f"{each.name} is left out: {failed}")
            else:
                there[each.name] = each
    return there


def _made(each: Environment) -> str:
    return "" if each.made else each.make()


def versions(each: Environment) -> dict[str, str]:
    """Return the installed packages with versions, without pip and setuptools."""
    found = {item.name: item.version for item in distributions(path=[str(each.packages)])}
    return {name: found[name] for name in sorted(found, key=str.lower) if name not in ("pip", "setuptools")}
