"""Section: import time and installed size."""

import os
import resource
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from environments import HERE, OURS, VENVS
from figures import number, prose, ratio, shown, spread, table
from lab import Lab, title
from section import Section

IMPORTS = {
    "agent_framework_": "from agent_framework import Agent",
    "blinker_": "import blinker",
    "google_adk_": "from google.adk.agents import LlmAgent; from google.adk.runners import InMemoryRunner",
    "hookline": "from hookline import Agent",
    "langchain_": "from langchain.agents import create_agent",
    "llama_index_": "from llama_index.core.instrumentation import get_dispatcher",
    "openai_agents_": "from agents import Agent, Runner",
    "pluggy_": "import pluggy",
    "pydantic_ai_": "from pydantic_ai import Agent",
    "smolagents_": "from smolagents import ToolCallingAgent",
    "strands_": "from strands import Agent",
}
STARTS = {
    "`import hookline`": ["-c", "import hookline"],
    "`from hookline import Agent`": ["-c", "from hookline import Agent"],
    "`import asyncio, msgspec`, most of that": ["-c", "import asyncio, msgspec"],
    "`hookline --help`, the whole of it": ["-m", "hookline", "--help"],
    "`hookline run`, with a scripted model": ["-m", "hookline", "run", "--model", "scripted:script.json", "hi"],
    "`hookline serve`, until it answers": [
        "-c",
        """
import os, signal, socket, sys, threading, time, urllib.request
with socket.create_server(("127.0.0.1", 0)) as listener:
    port = listener.getsockname()[1]
def stop_when_it_answers():
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz").read()
            return os.kill(os.getpid(), signal.SIGINT)
        except OSError:
            time.sleep(0.05)
threading.Thread(target=stop_when_it_answers, daemon=True).start()
sys.argv = ["hookline", "serve", "--model", "scripted:script.json", "--port", str(port)]
from hookline.cli.main import main
main()
""",
    ],
}
"""Ways to start Hookline, each measured separately."""


def measure(lab: Lab) -> dict[str, Any]:
    installed = {name: python for name, python in lab.pythons.items() if name in IMPORTS or name in OURS}
    pythons = {"hookline": sys.executable} | lab.pick(installed, {})
    every: dict[str, tuple[str, list[str]]] = {
        name: (python, ["-c", IMPORTS[name]]) for name, python in pythons.items() if name in IMPORTS
    }
    ours = pythons.get("hookline_all", sys.executable)
    every |= {name: (ours, arguments) for name, arguments in STARTS.items()}
    taken: dict[str, list[float]] = {name: [] for name in every}
    for name in lab.turns(every, lab.pick(9, 1)):
        python, arguments = every[name]
        nothing = cpu(python, ["-c", "pass"]) if arguments[0] == "-c" else 0.0
        taken[name].append(cpu(python, arguments) - nothing)
    return {
        "import": {name: spread(times) for name, times in taken.items() if name in IMPORTS},
        "starts": {name: spread(times) for name, times in taken.items() if name in STARTS},
        "size": {name: size(packages(python)) for name, python in lab.pick(installed, pythons).items()},
    }


def cpu(python: str, arguments: list[str]) -> float:
    """Return the CPU milliseconds of a whole process."""
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    env["PYTHONPATH"] = "" if Path(python).is_relative_to(VENVS) else str(HERE.parent / "src")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.json").write_text('["hello"]')
        env["HOME"] = folder
        done = subprocess.run(
            [python, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=folder,
            check=False,
        )
        if done.returncode not in (0, 130):  # 130: the signal that ends a server came while it was stopping
            raise RuntimeError(f"{arguments[-1]:.80} ended with {done.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def packages(python: str) -> Path:
    """Return the site-packages folder of an interpreter."""
    return next((Path(python).parent.parent / "lib").glob("python*/site-packages"))


def size(folder: Path) -> dict[str, float]:
    """Return megabytes on disk and the number of distributions, without those of an empty environment."""
    begun = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
    tops = [top for top in folder.iterdir() if not top.name.startswith(begun)]
    files = [path for top in tops for path in ([top] if top.is_file() else top.rglob("*"))]
    found = {each.name for each in distributions(path=[str(folder)])} - {"pip", "setuptools"}
    return {"mb": sum(path.lstat().st_size for path in files) / 1e6, "distributions": len(found)}


def render(data: Any) -> str:
    imports, sizes, ours = data["import"], data["size"], data["import"]["hookline"]
    order = sorted({**imports, **sizes}, key=lambda name: imports[name]["median"] if name in imports else float("inf"))
    rows = [
        [
            named(name),
            f"`{IMPORTS[name]}`" if name in imports else "",
            shown(imports[name], "ms") if name in imports else "",
            ratio(imports[name], ours) if name in imports else "",
            f"{number(sizes[name]['mb'])} MB" if name in sizes else "",
            f"{sizes[name]['distributions']:.0f}" if name in sizes else "",
        ]
        for name in order
    ]
    head = ["", "import", "CPU", "to Hookline", "installed", "distributions"]
    starts = [[name, shown(time, "ms")] for name, time in data["starts"].items()]
    return (
        prose(
            "CPU time of a process that imports, less that of one that does nothing, each in an environment of "
            "its own, with compiled files. Installed is what such an environment holds, compiled files too, "
            "beyond an empty one; and how many distributions that are, its own among them."
        )
        + table(head, rows)
        + "\nHookline's own start, with everything installed:\n\n"
        + table(["", "CPU"], starts)
    )


def named(name: str) -> str:
    return {"hookline": "hookline", "hookline_all": "hookline[all]"}.get(name, title(name))


SECTION = Section("start", "Import time and installed size", measure, render)
