"""Count the commands of a developer's agent that the default guards of ``hookline run`` interrupt."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hookline import Agent, HookResult, ScriptedModel, call, reply
from hookline.config.factory import build_hooks
from hookline.config.settings import Settings
from hookline.points import APPROVAL_REQUESTED
from hookline.tools import Tool

LISTS = Path(__file__).parents[1] / "commands"
FILES = """
README.md CHANGELOG.md pyproject.toml Cargo.toml Makefile requirements.txt requirements-dev.txt package.json setup.cfg
src/app/__init__.py src/app/main.py src/app/views.py src/app/models.py tests/test_main.py data/users.csv data/blob.bin
data/config.json data/app.db logs/app.log dist/app-1.0.tar.gz dist/app-1.0-py3-none-any.whl scripts/run.sh fix.patch
.github/workflows/ci.yml .env .env.example .gitignore server.pid docs/index.md build/out node_modules/x/index.js
""".split()  # noqa: SIM905


def interrupted(name: str, sandboxed: bool) -> dict[str, dict[str, int]]:
    """Judge a list of commands, and count by half: those that are tuned on, and those set aside.

    Nothing is run: the tool only says which sandbox it has.
    """
    lines = (LISTS / f"{name}.txt").read_text().splitlines()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        _project(folder)
        outcomes = _outcomes([line.replace("↵", "\n") for line in lines], folder, sandboxed)
    return {half: _count(outcomes[first::2]) for first, half in enumerate(("seen", "set aside"))}


def _project(folder: Path) -> None:
    for file in FILES:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("x\n")
    git = ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=folder, check=True)


def _outcomes(commands: list[str], folder: Path, sandboxed: bool) -> list[str]:
    """Return "ran", "asked" or "blocked" for each command."""
    asked: set[str] = set()

    class Nobody:
        points = frozenset({APPROVAL_REQUESTED})

        def __call__(self, point: str, ctx: Any, request: Any) -> HookResult:
            asked.add(request.call.id)
            return HookResult.deny("Nobody is here.")

    def shell(command: str) -> str:
        """Run a command line."""
        return "ran"

    tool = Tool(shell, folder=folder, effects=["execute"], texts=["command"])
    tool.sandbox = "bubblewrap" if sandboxed else ""
    registry, _ = build_hooks(Settings(folder=str(folder), shell=True, write=True), folder)
    registry.register(Nobody())
    turns = [[call("shell", command=command) for command in commands], reply("Done.")]
    agent = Agent("bench", llm=ScriptedModel(turns), tools=[tool], hooks=registry)
    result = agent.run("Work")
    ids = [each.id for each in result.messages[1].tool_calls]
    found = zip(ids, result.steps[0].outcomes, strict=True)
    return ["ran" if outcome == "ok" else "asked" if id in asked else "blocked" for id, outcome in found]


def _count(outcomes: list[str]) -> dict[str, int]:
    return {"commands": len(outcomes), **{verb: outcomes.count(verb) for verb in ("asked", "blocked")}}
