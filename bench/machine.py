"""Describe the machine."""

import os
import platform
import subprocess
from pathlib import Path


def machine() -> dict[str, str]:
    """Return the facts that matter for the figures."""
    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "memory": memory(),
        "system": system(),
        "python": platform.python_version(),
    }


def one_line(known: dict[str, str]) -> str:
    """Format the facts in one line."""
    return "{processor}, {cores} cores, {memory} of memory, {system}, Python {python}".format(**known)


def processor() -> str:
    """Return the CPU model, if the system reports it."""
    try:
        listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.machine()
    found = dict(line.split(":", 1) for line in listed.splitlines() if ":" in line)
    model = found.get("Model name", "").strip()
    return f"{model} ({platform.machine()})" if model.strip("-") else platform.machine()


def memory() -> str:
    """Return the size of the memory."""
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return "an unknown amount"
    return f"{pages / 2**30:.1f} GiB"


def system() -> str:
    """Return the operating system and its kernel version."""
    release = Path("/etc/os-release")
    named = (
        dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line) if release.exists() else {}
    )
    name = named.get("PRETTY_NAME", platform.system()).strip('"')
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{name}, {platform.system()} {kernel}"
