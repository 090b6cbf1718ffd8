"""Prove that a denial arrives: start the agent with the settings as they were written, and let it make a harmless call.

The agent runs in temporary folders with a temporary home, without the user's variables, and with a model on loopback:
neither an account nor the user's own settings are touched. Of the settings, only Hookline's entries and what switches
hooks off are used, because the rest could start other programs. The call (:data:`~..proving.PROOF`) is denied by a rule
that is part of every protected session, so the user's rules are loaded as always.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...._base.files import user_folder
from ..proving import PROOF, REASON
from .hosts import Found, Host, Place
from .json_edit import JsonText
from .loopback_model import LoopbackModel, serving

SECONDS = 180.0
"""The time for one proof. Some agents take a minute for their first start."""
VERSION_SECONDS = 20.0
PROMPT = f"Run the command: touch {PROOF}"
FOLDERS = {
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_CACHE_HOME": ".cache",
    "XDG_STATE_HOME": ".local/state",
    "XDG_RUNTIME_DIR": "run",
    "TMPDIR": "tmp",
}
"""Variables with folders, which are below a temporary home."""
_KEPT = re.compile(r"PATH|LANG|LC_\w+|PYTHON\w*|VIRTUAL_ENV|SYSTEMROOT|PATHEXT|COMSPEC|HOOKLINE_TRUST")
"""Variables that the agent and the hooks need. Others may name an account."""

State = Literal["denied", "ran", "unknown"]


class Proof(NamedTuple):
    """What came of a proof.

    Args:
        state: ``denied`` if the call did not run and the model read the reason, ``ran`` if the call ran, ``unknown`` if
            there is no proof.
        details: why, if it is not ``denied``.
        version: the version of the agent.
    """

    state: State
    details: str = ""
    version: str = ""


def prove(found: Found, settings: str, *, project: bool = False, seconds: float = SECONDS) -> Proof:
    """Start an agent with settings, and see whether the denial of a call arrives.

    Args:
        found: the agent.
        settings: the text of the file of settings.
        project: whether these are the settings of a project.
        seconds: the time limit.
    """
    host = found.host
    if host.not_provable:
        return Proof("unknown", host.not_provable)
    if not hasattr(os, "killpg"):
        return Proof("unknown", "a proof is not possible on this system")
    if found.program is None:
        return Proof("unknown", f"there is no program {host.programs[0]} on the path")
    with temporary_place() as (home, folder):
        version = _version(found.program, home)
        with serving({PROOF: [host.shell(f"touch {PROOF}")]}) as model:
            place = Place(home, folder, model.url)
            env = {**environment(home), **host.variables(place, trusted=project)}
            prepare(host, place, settings, project=project)
            ended, output = _run(
                [found.program, *host.arguments(folder, PROMPT, trusted=project)], folder, env, model, seconds
            )
        return _outcome(host, model, folder, ended, output)._replace(version=version)


def version_of(program: str) -> str:
    """Return the version of a program, as it prints it; empty if it prints none."""
    with temporary_place() as (home, _):
        return _version(program, home)


def prepare(host: Host, place: Place, settings: str, *, project: bool) -> None:
    """Write the settings of an agent, as far as they decide about hooks, and those for the model on loopback."""
    env = environment(place.home)
    target = host.project_file(place.project) if project else host.user_file(env)
    model_file, model_settings = host.model_settings(place)
    texts: dict[Path, Any] = {model_file: model_settings}
    if host.is_plugin:
        texts[target] = settings
    else:
        kept = host.kept_settings(JsonText(settings, comments=host.comments).root.plain())
        texts[target] = {**kept, **texts[target]} if target in texts else kept
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if isinstance(text, str) else json.dumps(text, indent=2), "utf-8")
    trusted = user_folder("data") / "trust.json"  # rules in a hookline.toml must be trusted there too
    if trusted.is_file() and sys.platform != "win32":
        copy = _data_folder(place.home) / "trust.json"
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copy(trusted, copy)


def environment(home: Path) -> dict[str, str]:
    """Return the variables of an agent that runs with a temporary home."""
    kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
    folders = {name: str(home / folder) for name, folder in FOLDERS.items()}
    base = site.getuserbase()  # Hookline may be installed there, below the home folder
    return {"LANG": "C.UTF-8", "PYTHONUSERBASE": base, **kept, "HOME": str(home), "USERPROFILE": str(home), **folders}


@contextmanager
def temporary_place() -> Iterator[tuple[Path, Path]]:
    """Yield a home folder and the folder of a project. At the end, nothing in them is left, and no process."""
    top = Path(tempfile.mkdtemp(prefix="hookline-proof-")).resolve()
    home, project = top / "home", top / "project"
    try:
        project.mkdir(mode=0o755)
        for name in FOLDERS.values():
            (home / name).mkdir(parents=True, mode=0o700)
        yield home, project
    finally:
        for _ in range(20):
            _end_processes(home)
            shutil.rmtree(top, ignore_errors=True)  # without its socket, the process with the hooks ends by itself
            if not top.exists():
                break
            time.sleep(0.1)


def _data_folder(home: Path) -> Path:
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "hookline"
    return home / FOLDERS["XDG_DATA_HOME"] / "hookline"


def _version(program: str, home: Path) -> str:
    try:
        done = subprocess.run(
            [program, "--version"],
            cwd=home,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\d+(?:\.\d+)+[\w.+-]*", done.stdout)
    return found[0].rstrip(".") if found else ""


def _run(
    command: list[str], folder: Path, env: Mapping[str, str], model: LoopbackModel, seconds: float
) -> tuple[int | None, str]:
    """Run an agent until it ends or its model has read the result of the call. Return its exit code and output."""
    log = Path(env["TMPDIR"], "output")  # a file, because a process that is left over may keep a pipe open
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + seconds
    try:
        while process.poll() is None and not model.results[PROOF] and time.monotonic() < deadline:
            time.sleep(0.05)
        return process.poll(), log.read_text("utf-8", errors="replace")
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an agent with the processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(2)


def _end_processes(home: Path) -> None:
    """End the processes that have this home folder: the one with the hooks has left the group of the agent."""
    mark = f"HOME={home}".encode()
    for entry in os.scandir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)


def _outcome(host: Host, model: LoopbackModel, folder: Path, ended: int | None, output: str) -> Proof:
    if (folder / PROOF).exists():
        return Proof("ran", f"{host.title} ran the call")
    read = " ".join(model.results[PROOF])
    if REASON[:40] in read:
        return Proof("denied")
    if read:
        return Proof("unknown", f"the call did not run, for another reason: {read[:300]}")
    output = re.sub(r"\x1b\[[0-9;]*m", "", output)
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "nothing was printed")
    how = "did not make the call in time" if ended is None else f"ended with exit code {ended} before the call"
    return Proof("unknown", f"{host.title} {how}: {last[:200]}")
