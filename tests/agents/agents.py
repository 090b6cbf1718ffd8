"""The coding agents of ``make test-agents``: where they are installed, and the calls that their tests make."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hookline.adapters.coding_agents.protection.hosts import HOSTS, Host, Place
from hookline.adapters.coding_agents.protection.loopback_model import Call
from hookline.adapters.coding_agents.protection.proof import environment as temporary_environment

ROOT = Path(__file__).parent.parent.parent
INSTALLED = ROOT / ".venv" / "agents"
"""One folder for each package."""
MCP_SERVER = Path(__file__).parent / "mcp_server.py"


class Agent:
    """One coding agent.

    Class variables:
        name: its name for ``hookline agent-hook --agent``.
        package: the package of npm with its version.
        program: the program, below the folder of the package.
        mcp_name: the agent's name of the tool ``lookup`` of the MCP server ``words``.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    program: ClassVar[str]
    mcp_name: ClassVar[str] = "mcp__words__lookup"

    @property
    def folder(self) -> Path:
        """Where the package is installed."""
        return INSTALLED / self.name

    @property
    def path(self) -> Path:
        """The program."""
        return self.folder / "node_modules" / self.program

    @property
    def host(self) -> Host:
        """How Hookline starts it."""
        return HOSTS[self.name]

    def configure(self, home: Path, project: Path, url: str, settings: str, mcp: Sequence[str]) -> None:
        """Write the settings of the agent: for the hooks, the model and an MCP server."""
        texts: dict[Path, Any] = {}
        user_file = self.host.user_file({"HOME": str(home)})
        given = settings if self.host.is_plugin else json.loads(settings)
        for file, more in (
            self.host.model_settings(Place(home, project, url)),
            self.mcp_settings(home, project, mcp),
            (user_file, given),
        ):
            before = texts.get(file, "" if isinstance(more, str) else {})
            texts[file] = before + more if isinstance(more, str) else before | more
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text if isinstance(text, str) else json.dumps(text))

    def mcp_settings(self, home: Path, project: Path, mcp: Sequence[str]) -> tuple[Path, Any]:
        """Return a file of settings for an MCP server: its path, and its text or the object in it."""
        raise NotImplementedError

    def command(self, project: Path, prompt: str) -> list[str]:
        """Return the arguments of the program that answer a prompt without asking anybody."""
        return self.host.arguments(project, prompt)

    def variables(self, home: Path, project: Path, url: str) -> Mapping[str, str]:
        """Return the variables for the model on loopback, beside ``HOME``."""
        return self.host.variables(Place(home, project, url))

    def shell(self, command: str) -> Call:
        """Return a call of the shell."""
        return self.host.shell(command)

    def write(self, path: str) -> Call:
        """Return a call that writes a file."""
        raise NotImplementedError

    def lookup(self, word: str) -> Call:
        """Return a call of the MCP server."""
        return Call(self.mcp_name, {"word": word})

    def subagent(self, task: str) -> list[Call]:
        """Return the calls that start a subagent and wait for it."""
        raise NotImplementedError

    def others(self, outside: Path) -> Mapping[str, Call]:
        """Return calls that only this agent can make, none of which may run. The path is outside of the project."""
        return {}


class Codex(Agent):
    name, package = "codex", "@openai/codex@0.169.0"
    program = ".bin/codex"

    def mcp_settings(self, home: Path, project: Path, mcp: Sequence[str]) -> tuple[Path, Any]:
        server = f"command = {json.dumps(mcp[0])}\nargs = {json.dumps(mcp[1:])}\nrequired = true\n"
        return home / ".codex" / "config.toml", f"[mcp_servers.words]\n{server}"

    def write(self, path: str) -> Call:
        return Call("apply_patch", f"*** Begin Patch\n*** Add File: {path}\n+written\n*** End Patch\n")

    def lookup(self, word: str) -> Call:
        return Call("lookup", {"word": word}, "mcp__words")

    def subagent(self, task: str) -> list[Call]:
        def agent_of(results: Sequence[str]) -> Mapping[str, Any]:
            return {"targets": [json.loads(results[-1])["agent_id"]], "timeout_ms": 60_000}

        group = "multi_agent_v1"
        return [Call("spawn_agent", {"message": task}, group), Call("wait_agent", agent_of, group)]

    def others(self, outside: Path) -> Mapping[str, Call]:
        patch = f"*** Begin Patch\n*** Add File: {outside}\n+written\n*** End Patch"
        return {"patch": self.shell(f"apply_patch <<'EOF'\n{patch}\nEOF"), "interactive": self.shell("bash")}


class Copilot(Agent):
    name, package = "copilot", "@github/copilot@1.0.102"
    program = ".bin/copilot"
    mcp_name = "words-lookup"

    def mcp_settings(self, home: Path, project: Path, mcp: Sequence[str]) -> tuple[Path, Any]:
        server = {"type": "local", "command": mcp[0], "args": list(mcp[1:]), "tools": ["*"]}
        return home / ".copilot" / "mcp-config.json", {"mcpServers": {"words": server}}

    def write(self, path: str) -> Call:
        return Call("create", {"path": path, "file_text": "written"})

    def subagent(self, task: str) -> list[Call]:
        return [Call("task", {"description": "Helps", "prompt": task, "agent_type": "task", "name": "helper"})]


class Gemini(Agent):
    name, package = "gemini", "@google/gemini-cli@0.61.0"
    program = ".bin/gemini"
    mcp_name = "mcp_words_lookup"

    def mcp_settings(self, home: Path, project: Path, mcp: Sequence[str]) -> tuple[Path, Any]:
        server = {"command": mcp[0], "args": list(mcp[1:]), "trust": True}
        return home / ".gemini/settings.json", {"mcpServers": {"words": server}}

    def write(self, path: str) -> Call:
        return Call("write_file", {"file_path": path, "content": "written"})

    def subagent(self, task: str) -> list[Call]:
        return [Call("invoke_agent", {"agent_name": "generalist", "prompt": task})]


class Qwen(Agent):
    name, package = "qwen", "@qwen-code/qwen-code@0.24.4"
    program = ".bin/qwen"

    def mcp_settings(self, home: Path, project: Path, mcp: Sequence[str]) -> tuple[Path, Any]:
        server = {"command": mcp[0], "args": list(mcp[1:]), "trust": True}
        return home / ".qwen/settings.json", {"mcpServers": {"words": server}}

    def write(self, path: str) -> Call:
        return Call("write_file", {"file_path": path, "content": "written"})

    def subagent(self, task: str) -> list[Call]:
        return [Call("agent", {"description": "Helps", "prompt": task, "subagent_type": "general-purpose"})]


class OpenCode(Agent):
    name, package = "opencode", "opencode-ai@1.18.33"
    program = ".bin/opencode"
    mcp_name = "words_lookup"

    def mcp_settings(self, home: Path, project: Path, mcp: Sequence[str]) -> tuple[Path, Any]:
        server = {"type": "local", "command": list(mcp), "enabled": True}
        return project / "opencode.json", {"mcp": {"words": server}}

    def write(self, path: str) -> Call:
        return Call("write", {"filePath": path, "content": "written"})

    def subagent(self, task: str) -> list[Call]:
        return [Call("task", {"description": "Helps", "prompt": task, "subagent_type": "general"})]


AGENTS: Mapping[str, Agent] = {each.name: each for each in (Codex(), Copilot(), Gemini(), Qwen(), OpenCode())}


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a session, which has nothing of the user's own."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return temporary_environment(home) | {"PATH": path, "PYTHONPATH": str(ROOT / "src")}
