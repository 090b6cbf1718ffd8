"""What machine this is."""

import os
import platform
import subprocess
from pathlib import Path


def machine() -> dict[str, str]:
    """What a reader must know of it."""
    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "memory": memory(),
        "system": system(),
        "python": platform.python_version(),
    }


def said(known: dict[str, str]) -> str:
    """In one line."""
    return "{processor}, {cores} cores, {memory} of memory, {system}, Python {python}".format(**known)


def processor() -> str:
    """The model of the CPU, as far as the system knows it."""
    try:
        listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.machine()
    found = dict(line.split(":", 1) for line in listed.splitlines() if ":" in line)
    model = found.get("Model name", "").strip()
    return f"{model} ({platform.machine()})" if model.strip("-") else platform.machine()


def memory() -> str:
    """How much there is."""
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return "an unknown amount"
    return f"{pages / 2**30:.1f} GiB"


def system() -> str:
    """The operating system and its kernel."""
    release = Path("/etc/os-release")
    named = (
        dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line) if release.exists() else {}
    )
    name = named.get("PRETTY_NAME", platform.system()).strip('"')
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{name}, {platform.system()} {kernel}"
