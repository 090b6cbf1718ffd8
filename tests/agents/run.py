"""Install the coding agents from npm, each in a folder of its own, and test ``hookline agent-hook`` in them.

Example::

    make test-agents                # all agents
    make test-agents ONLY=gemini    # one of them
"""

import argparse
import json
import os
import shutil
import subprocess
import sys

from tests.agents.agents import AGENTS, ROOT, Agent


def install(agent: Agent) -> str:
    """Install an agent. Return the problem, or nothing."""
    mark = agent.folder / ".done"
    if mark.exists() and mark.read_text() == agent.package:
        return ""
    if shutil.which("npm") is None:
        return "npm is not installed"
    agent.folder.mkdir(parents=True, exist_ok=True)
    (agent.folder / "package.json").write_text(json.dumps({"private": True}))
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", agent.package]
    done = subprocess.run(command, cwd=agent.folder, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()[-300:]
    mark.write_text(agent.package)
    return ""


def main() -> int:
    """Install the agents and run the tests. Return 0 if all is well."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("only", nargs="*", help=f"names of agents, of {', '.join(AGENTS)}; by default all")
    given = options.parse_args()
    if unknown := [name for name in given.only if name not in AGENTS]:
        options.error(f"{unknown[0]} is not one of {', '.join(AGENTS)}")
    names = given.only or list(AGENTS)
    for name in names:
        print(f"{name}: {AGENTS[name].package}", flush=True)
        if problem := install(AGENTS[name]):
            print(f"{name} cannot be installed: {problem}")
            return 1
    command = [sys.executable, "-m", "pytest", "-v", "tests/agents"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "TEST_AGENTS": " ".join(names)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
