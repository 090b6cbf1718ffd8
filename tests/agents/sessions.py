"""Sessions of real coding agents with a model of ours, under rules of ours, in folders of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hookline.adapters.coding_agents.protection.loopback_model import Call, LoopbackModel, serving
from hookline.adapters.coding_agents.protection.proof import FOLDERS

from .agents import MCP_SERVER, ROOT, Agent, environment
from .payloads import IS_RECORDING, save, with_recorder

RULES = Path(__file__).parent / "rules.py"
CONFIGURATION = 'folder = "."\nwrite = true\nruns = "runs.db"\n'
SECONDS = 15
"""The time that hooks have. The agents wait for 5 s more."""
LIMIT = 300
"""The time for a session, on a busy machine."""


class Outcome(NamedTuple):
    """What a session left behind."""

    project: Path
    home: Path
    model: LoopbackModel
    output: str

    @property
    def made(self) -> set[str]:
        """The files that commands have made in the project."""
        known = ("rules.py", "hookline.toml", "runs.db", "opencode.json", "words")
        return {path.name for path in self.project.iterdir() if not path.name.startswith((".", *known))}

    @property
    def words(self) -> list[str]:
        """The words that the MCP server was asked for."""
        file = self.project.parent / "words"
        return file.read_text().splitlines() if file.exists() else []

    def hookline(self, *args: str) -> str:
        """Run a command of Hookline in the project."""
        return hookline(self.home, self.project, *args)


def hookline(home: Path, project: Path, *args: str) -> str:
    """Run a command of Hookline in the project, and return what it prints."""
    command = [sys.executable, "-P", "-m", "hookline", *args]
    done = subprocess.run(
        command,
        cwd=project,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout


def session(
    agent: Agent,
    folder: Path,
    prompt: str,
    scripts: Mapping[str, Sequence[Call]],
    rules: str | None = None,
    gateway: Sequence[str] = (),
) -> Outcome:
    """Run one session of an agent.

    Args:
        agent: the agent.
        folder: an empty folder.
        prompt: what the user writes.
        scripts: the calls of the model (:class:`LoopbackModel`).
        rules: the text of the rules while the session runs; by default those of ``rules.py``.
        gateway: what is put before the command of the MCP server.
    """
    home, project = folder / "home", folder / "project"
    project.mkdir(mode=0o755)
    for name in FOLDERS.values():
        (home / name).mkdir(parents=True, mode=0o700)
    shutil.copy(RULES, project)
    (project / "hookline.toml").write_text(CONFIGURATION)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    hookline(home, project, "trust", "--yes", "hookline.toml")
    flags = ("--timeout", str(SECONDS), "--idle", "30", "--tool", f"{agent.mcp_name}=lookup")
    files = (str(project / "rules.py"), str(project / "hookline.toml"))
    settings = hookline(home, project, "agent-hook", "--agent", agent.name, *files, *flags, "--print-settings")
    if IS_RECORDING:
        settings = with_recorder(settings, folder / "recorded")
    if rules is not None:
        (project / "rules.py").write_text(rules)
    with serving(scripts) as model:
        mcp = [*gateway, sys.executable, str(MCP_SERVER), str(folder / "words")]
        agent.configure(home, project, model.url, settings, mcp)
        done = subprocess.run(
            [agent.path, *agent.command(project, prompt)],
            cwd=project,
            env={**environment(home), **agent.variables(home, project, model.url)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    return Outcome(project, home, model, done.stdout)


def record(agent: Agent, folder: Path) -> None:
    """Write the events of the session in a folder to the file of this version of the agent."""
    names = {
        folder / "project": "/shop",
        folder / "home": "/home/ada",
        folder: "/tmp",
        Path(sys.prefix): "/venv",
        ROOT: "/hookline",
    }
    save(agent.name, agent.package.rpartition("@")[2], folder / "recorded", names)
