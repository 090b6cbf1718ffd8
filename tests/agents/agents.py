"""The coding agents of ``make test-agents``: how to start each one with nothing of the user's own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from .fake_model import Call

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
        settings: where the settings belong that ``--print-settings`` prints, below the home folder.
        mcp_name: the agent's name of the tool ``lookup`` of the MCP server ``words``.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    program: ClassVar[str]
    settings: ClassVar[str]
    mcp_name: ClassVar[str] = "mcp__words__lookup"

    @property
    def folder(self) -> Path:
        """Where the package is installed."""
        return INSTALLED / self.name

    @property
    def path(self) -> Path:
        """The program."""
        return self.folder / "node_modules" / self.program

    def configure(self, home: Path, project: Path, url: str, settings: str, mcp: Sequence[str]) -> None:
        """Write the settings of the agent: for the hooks, the model and an MCP server."""
        raise NotImplementedError

    def command(self, project: Path, prompt: str) -> list[str]:
        """Return the arguments of the program that answer a prompt without asking anybody."""
        raise NotImplementedError

    def variables(self, home: Path, url: str) -> Mapping[str, str]:
        """Return the variables for the model on loopback, beside ``HOME``."""
        raise NotImplementedError

    def shell(self, command: str) -> Call:
        """Return a call of the shell."""
        raise NotImplementedError

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

    def put_settings(self, home: Path, text: str) -> None:
        """Write a file of settings."""
        place = home / self.settings
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


class Codex(Agent):
    name, package = "codex", "@openai/codex@0.169.0"
    program, settings = ".bin/codex", "hooks.json"

    def configure(self, home: Path, project: Path, url: str, settings: str, mcp: Sequence[str]) -> None:
        self.put_settings(home, settings)
        server = f"command = {json.dumps(mcp[0])}\nargs = {json.dumps(mcp[1:])}\nrequired = true\n"
        (home / "config.toml").write_text(
            'model = "gpt-5.5"\nmodel_provider = "fake"\n[model_providers.fake]\nname = "fake"\n'
            f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "FAKE_KEY"\n[mcp_servers.words]\n{server}'
        )

    def command(self, project: Path, prompt: str) -> list[str]:
        flags = ("--dangerously-bypass-hook-trust", "--dangerously-bypass-approvals-and-sandbox")
        return ["exec", *flags, "--skip-git-repo-check", "-C", str(project), prompt]

    def variables(self, home: Path, url: str) -> Mapping[str, str]:
        return {"CODEX_HOME": str(home), "FAKE_KEY": "none"}

    def shell(self, command: str) -> Call:
        return Call("exec_command", {"cmd": command})

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
    program, settings = ".bin/copilot", ".copilot/hooks/hookline.json"
    mcp_name = "words-lookup"

    def configure(self, home: Path, project: Path, url: str, settings: str, mcp: Sequence[str]) -> None:
        self.put_settings(home, settings)
        server = {"type": "local", "command": mcp[0], "args": list(mcp[1:]), "tools": ["*"]}
        (home / ".copilot/mcp-config.json").write_text(json.dumps({"mcpServers": {"words": server}}))

    def command(self, project: Path, prompt: str) -> list[str]:
        return ["-p", prompt, "--allow-all-tools", "--allow-all-paths"]

    def variables(self, home: Path, url: str) -> Mapping[str, str]:
        return {
            "COPILOT_HOME": str(home / ".copilot"),
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
            "COPILOT_MODEL": "fake",
            "COPILOT_AUTO_UPDATE": "false",
        }

    def shell(self, command: str) -> Call:
        return Call("bash", {"command": command, "description": "Do it."})

    def write(self, path: str) -> Call:
        return Call("create", {"path": path, "file_text": "written"})

    def subagent(self, task: str) -> list[Call]:
        return [Call("task", {"description": "Helps", "prompt": task, "agent_type": "task", "name": "helper"})]


class Gemini(Agent):
    name, package = "gemini", "@google/gemini-cli@0.61.0"
    program, settings = ".bin/gemini", ".gemini/settings.json"
    mcp_name = "mcp_words_lookup"

    def configure(self, home: Path, project: Path, url: str, settings: str, mcp: Sequence[str]) -> None:
        own = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "mcpServers": {"words": {"command": mcp[0], "args": list(mcp[1:]), "trust": True}},
        }
        self.put_settings(home, json.dumps(json.loads(settings) | own))

    def command(self, project: Path, prompt: str) -> list[str]:
        return ["--skip-trust", "--yolo", "-m", "gemini-2.5-pro", "-p", prompt]

    def variables(self, home: Path, url: str) -> Mapping[str, str]:
        return {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_CLI_NO_RELAUNCH": "true"}

    def shell(self, command: str) -> Call:
        return Call("run_shell_command", {"command": command, "description": "Do it."})

    def write(self, path: str) -> Call:
        return Call("write_file", {"file_path": path, "content": "written"})

    def subagent(self, task: str) -> list[Call]:
        return [Call("invoke_agent", {"agent_name": "generalist", "prompt": task})]


class Qwen(Agent):
    name, package = "qwen", "@qwen-code/qwen-code@0.24.4"
    program, settings = ".bin/qwen", ".qwen/settings.json"

    def configure(self, home: Path, project: Path, url: str, settings: str, mcp: Sequence[str]) -> None:
        own = {
            "security": {"auth": {"selectedType": "openai"}},
            "privacy": {"usageStatisticsEnabled": False},
            "mcpServers": {"words": {"command": mcp[0], "args": list(mcp[1:]), "trust": True}},
        }
        self.put_settings(home, json.dumps(json.loads(settings) | own))

    def command(self, project: Path, prompt: str) -> list[str]:
        return ["--yolo", "-p", prompt]

    def variables(self, home: Path, url: str) -> Mapping[str, str]:
        return {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "fake"}

    def shell(self, command: str) -> Call:
        return Call("run_shell_command", {"command": command, "description": "Do it.", "is_background": False})

    def write(self, path: str) -> Call:
        return Call("write_file", {"file_path": path, "content": "written"})

    def subagent(self, task: str) -> list[Call]:
        return [Call("agent", {"description": "Helps", "prompt": task, "subagent_type": "general-purpose"})]


class OpenCode(Agent):
    name, package = "opencode", "opencode-ai@1.18.33"
    program, settings = ".bin/opencode", ".config/opencode/plugin/hookline.js"
    mcp_name = "words_lookup"

    def configure(self, home: Path, project: Path, url: str, settings: str, mcp: Sequence[str]) -> None:
        self.put_settings(home, settings)
        provider: dict[str, Any] = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
            "models": {"fake": {"tool_call": True}},
        }
        own = {
            "provider": {"fake": provider},
            "model": "fake/fake",
            "small_model": "fake/fake",
            "autoupdate": False,
            "share": "disabled",
            "mcp": {"words": {"type": "local", "command": list(mcp), "enabled": True}},
        }
        (project / "opencode.json").write_text(json.dumps(own))

    def command(self, project: Path, prompt: str) -> list[str]:
        return ["run", prompt]

    def variables(self, home: Path, url: str) -> Mapping[str, str]:
        return {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}

    def shell(self, command: str) -> Call:
        return Call("bash", {"command": command, "description": "Do it."})

    def write(self, path: str) -> Call:
        return Call("write", {"filePath": path, "content": "written"})

    def subagent(self, task: str) -> list[Call]:
        return [Call("task", {"description": "Helps", "prompt": task, "subagent_type": "general"})]


AGENTS: Mapping[str, Agent] = {each.name: each for each in (Codex(), Copilot(), Gemini(), Qwen(), OpenCode())}


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a session, which has nothing of the user's own."""
    folders = {name: str(home / folder) for name, folder in FOLDERS.items()}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return {"HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT / "src"), "LANG": "C.UTF-8", **folders}


FOLDERS = {
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_CACHE_HOME": ".cache",
    "XDG_STATE_HOME": ".local/state",
    "XDG_RUNTIME_DIR": "run",
    "TMPDIR": "tmp",
}
