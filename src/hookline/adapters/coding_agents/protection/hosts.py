"""Where each coding agent has its settings, what it does with hooks, and how to start it without an account.

Each fact was seen in a run of the agent or read in its code or documentation; ``make test-agents`` checks most of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..codecs import codec_of
from ..codecs.claude import MANAGED
from .json_edit import JsonText, JsonTextError
from .loopback_model import Call
from .settings import Entry, own_entries

OPEN = "open: a call runs if this command is missing, crashes or takes too long"
MODEL = "fake"
"""The name of the model on loopback."""


class Found(NamedTuple):
    """A coding agent on this machine.

    Args:
        host: the agent.
        program: its program on the path, if there is one.
        folder: the folder of its settings, if there is one.
    """

    host: Host
    program: str | None
    folder: Path | None


class Place(NamedTuple):
    """Temporary folders for one run of an agent, and the address of the model on loopback."""

    home: Path
    project: Path
    url: str


class Host(ABC):
    """One coding agent.

    Class variables:
        name: its name for ``--agent``.
        programs: the names of its program; the first one on the path is used.
        folder_name: the folder of its settings, below the home folder.
        folder_variable: the variable that names another folder.
        user_settings: the file of settings in that folder.
        project_settings: the file of settings in a project.
        comments: whether the agent reads comments in its settings.
        failing: what the agent does if the command of a hook fails.
        off_switch: what switches hooks off, besides what can be read in files.
        project_note: what it needs to use the settings of a project.
        next_step: what the user must do after the settings were written.
        not_provable: why a denial cannot be proved without an account.
    """

    name: ClassVar[str]
    programs: ClassVar[tuple[str, ...]]
    folder_name: ClassVar[str]
    folder_variable: ClassVar[str] = ""
    user_settings: ClassVar[str]
    project_settings: ClassVar[str]
    comments: ClassVar[bool] = False
    failing: ClassVar[str] = OPEN
    off_switch: ClassVar[str] = ""
    project_note: ClassVar[str] = ""
    next_step: ClassVar[str] = ""
    not_provable: ClassVar[str] = ""

    @property
    def title(self) -> str:
        """The name of the program for people."""
        return codec_of(self.name).title

    @property
    def is_plugin(self) -> bool:
        """Whether the settings are a plugin, and not JSON."""
        return self.user_settings.endswith(".js")

    def folder(self, env: Mapping[str, str]) -> Path:
        """Return the folder of the user's settings."""
        given = env.get(self.folder_variable) if self.folder_variable else None
        return Path(given) if given else Path(env.get("HOME") or Path.home()) / self.folder_name

    def user_file(self, env: Mapping[str, str]) -> Path:
        """Return the file of the user's settings."""
        return self.folder(env) / self.user_settings

    def project_file(self, project: Path) -> Path:
        """Return the file of a project's settings."""
        return project / self.project_settings

    def project_of(self, file: Path) -> Path:
        """Return the folder of the project that a file of settings belongs to."""
        return file.parents[len(Path(self.project_settings).parts) - 1]

    def find(self, env: Mapping[str, str]) -> Found | None:
        """Return where this agent is; ``None`` if it is not on this machine."""
        path = env.get("PATH")
        program = next(filter(None, (shutil.which(name, path=path) for name in self.programs)), None)
        folder = self.folder(env)
        there = folder if folder.is_dir() else None
        return Found(self, program, there) if program or there else None

    def switched_off(self, env: Mapping[str, str], project: Path) -> Iterator[str]:
        """Yield what switches the hooks off, as far as that can be read."""
        yield from ()

    def trust(self, env: Mapping[str, str], file: Path, entries: Sequence[Entry]) -> str:
        """Return whether the user has agreed to the hooks in a file, if the agent needs that and it can be read."""
        return ""

    @abstractmethod
    def arguments(self, project: Path, prompt: str, *, trusted: bool = False) -> list[str]:
        """Return the arguments of the program that answer a prompt without asking anybody.

        Args:
            project: the working folder.
            prompt: what the user writes.
            trusted: whether the hooks of the project must be used, as if the user trusted the project.
        """

    @abstractmethod
    def variables(self, place: Place, *, trusted: bool = False) -> Mapping[str, str]:
        """Return the variables for the model on loopback."""

    @abstractmethod
    def model_settings(self, place: Place) -> tuple[Path, Any]:
        """Return a file of settings for the model on loopback: its path, and its text or the object in it."""

    @abstractmethod
    def shell(self, command: str) -> Call:
        """Return a call of the shell."""

    def kept_settings(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of the settings that decides about hooks: no account, no program of anybody else."""
        kept = {key: value for key, value in settings.items() if key in ("version", "disableAllHooks", "hooksConfig")}
        hooks: dict[str, Any] = {}
        for entry in own_entries(settings, self.name):
            hooks.setdefault(entry.event, []).append(entry.whole if entry.number < 0 else _only(entry))
        return {**kept, "hooks": hooks}


def _only(entry: Entry) -> Any:
    return {**entry.whole, "hooks": [entry.handler]}


class ClaudeCode(Host):
    """Claude Code."""

    name, programs = "claude", ("claude",)
    folder_name, folder_variable = ".claude", "CLAUDE_CONFIG_DIR"
    user_settings, project_settings = "settings.json", ".claude/settings.json"
    failing = "closed from version 2.1.295 on: a call is blocked if this command fails. Before: open, the call runs"
    project_note = "Claude Code uses them in a project that you trust: it asks once"

    def switched_off(self, env: Mapping[str, str], project: Path) -> Iterator[str]:
        """Yield what switches the hooks off."""
        managed = Path(MANAGED)
        files = [self.user_file(env), self.project_file(project), project / ".claude" / "settings.local.json"]
        yield from _disabled((*files, managed))
        if _read_json(managed).get("allowManagedHooksOnly") is True:
            yield f"{managed} has allowManagedHooksOnly"

    def arguments(self, project: Path, prompt: str, *, trusted: bool = False) -> list[str]:
        """Return the arguments of the program."""
        return ["-p", prompt, "--model", "claude-sonnet-4-5", "--allowedTools", "Bash"]

    def variables(self, place: Place, *, trusted: bool = False) -> Mapping[str, str]:
        """Return the variables for the model on loopback."""
        return {
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": place.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def model_settings(self, place: Place) -> tuple[Path, Any]:
        """Return no more settings."""
        return self.folder({"HOME": str(place.home)}) / self.user_settings, {}

    def shell(self, command: str) -> Call:
        """Return a call of the shell."""
        return Call("Bash", {"command": command, "description": "Do it."})


class Codex(Host):
    """Codex."""

    name, programs = "codex", ("codex",)
    folder_name, folder_variable = ".codex", "CODEX_HOME"
    user_settings, project_settings = "hooks.json", ".codex/hooks.json"
    project_note = "Codex uses them in a project that you trust, and only after /hooks"
    next_step = "start codex, type /hooks and trust them: until then, Codex skips them without a word"

    def switched_off(self, env: Mapping[str, str], project: Path) -> Iterator[str]:
        """Yield what switches the hooks off."""
        for file in (self.folder(env) / "config.toml", project / ".codex" / "config.toml"):
            features = _read_toml(file).get("features")
            if isinstance(features, dict) and features.get("hooks") is False:
                yield f"{file} has hooks = false in [features]"
        file = Path("/etc/codex/requirements.toml")
        if _read_toml(file).get("allow_managed_hooks_only") is True:
            yield f"{file} has allow_managed_hooks_only"

    def trust(self, env: Mapping[str, str], file: Path, entries: Sequence[Entry]) -> str:
        """Return whether the user has trusted the hooks, which Codex keeps in its configuration with their digests."""
        hooks = _read_toml(self.folder(env) / "config.toml").get("hooks")
        states = hooks.get("state") if isinstance(hooks, dict) else None
        known = [_codex_state(states, file, entry) for entry in entries]
        if known and all(state == "trusted" for state in known):
            return "trusted"
        if "off" in known:
            return "switched off in /hooks"
        what = "changed since you trusted them" if {"trusted", "changed"} & set(known) else "not trusted yet"
        return f"{what}: Codex skips them. Type /hooks in codex"

    def arguments(self, project: Path, prompt: str, *, trusted: bool = False) -> list[str]:
        """Return the arguments of the program."""
        flags = ["--dangerously-bypass-hook-trust", "--dangerously-bypass-approvals-and-sandbox"]
        if trusted:
            flags += ["-c", f'projects={{{json.dumps(str(project))}={{trust_level="trusted"}}}}']
        return ["exec", *flags, "--skip-git-repo-check", "-C", str(project), prompt]

    def variables(self, place: Place, *, trusted: bool = False) -> Mapping[str, str]:
        """Return the variables for the model on loopback."""
        return {"CODEX_HOME": str(place.home / self.folder_name), "LOOPBACK_KEY": "none"}

    def model_settings(self, place: Place) -> tuple[Path, Any]:
        """Return the configuration."""
        text = (
            f'model = "gpt-5.5"\nmodel_provider = "{MODEL}"\n[model_providers.{MODEL}]\nname = "{MODEL}"\n'
            f'base_url = "{place.url}/v1"\nwire_api = "responses"\nenv_key = "LOOPBACK_KEY"\n'
        )
        return place.home / self.folder_name / "config.toml", text

    def shell(self, command: str) -> Call:
        """Return a call of the shell."""
        return Call("exec_command", {"cmd": command})


def _codex_state(states: Any, file: Path, entry: Entry) -> str:
    """Return ``trusted``, ``changed``, ``new`` or ``off`` for a hook: its digest is that of its normalised settings."""
    label = re.sub(r"(?<!^)(?=[A-Z])", "_", entry.event).lower()
    state = states.get(f"{file}:{label}:{entry.group}:{max(entry.number, 0)}") if isinstance(states, dict) else None
    if not isinstance(state, dict):
        return "new"
    if state.get("enabled") is False:
        return "off"
    timeout = max(int(entry.handler.get("timeout", 600)), 1)
    command = {"type": "command", "command": entry.handler["command"], "async": False}
    command["timeout"] = min(timeout, 3) if entry.event == "SessionEnd" else timeout
    text = json.dumps(
        {"event_name": label, "hooks": [command]}, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "trusted" if state.get("trusted_hash") == f"sha256:{digest}" else "changed"


class CopilotCli(Host):
    """Copilot CLI."""

    name, programs = "copilot", ("copilot",)
    folder_name, folder_variable = ".copilot", "COPILOT_HOME"
    user_settings, project_settings = "hooks/hookline.json", ".github/hooks/hookline.json"
    failing = "closed if this command is missing or crashes; open, so that the call runs, if it takes too long"
    project_note = "Copilot CLI uses them in a folder that you trust, and skips them in others without a word"

    def switched_off(self, env: Mapping[str, str], project: Path) -> Iterator[str]:
        """Yield what switches the hooks off."""
        own = project / ".github" / "copilot"
        yield from _disabled((self.folder(env) / "settings.json", own / "settings.json", own / "settings.local.json"))

    def arguments(self, project: Path, prompt: str, *, trusted: bool = False) -> list[str]:
        """Return the arguments of the program."""
        return ["-p", prompt, "--allow-all-tools", "--allow-all-paths", *(["--trust-folder"] if trusted else [])]

    def variables(self, place: Place, *, trusted: bool = False) -> Mapping[str, str]:
        """Return the variables for the model on loopback."""
        return {
            "COPILOT_HOME": str(place.home / self.folder_name),
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": f"{place.url}/v1",
            "COPILOT_MODEL": MODEL,
            "COPILOT_AUTO_UPDATE": "false",
        }

    def model_settings(self, place: Place) -> tuple[Path, Any]:
        """Return no more settings."""
        return place.home / self.folder_name / "mcp-config.json", {}

    def shell(self, command: str) -> Call:
        """Return a call of the shell."""
        return Call("bash", {"command": command, "description": "Do it."})


class Cursor(Host):
    """Cursor."""

    name, programs = "cursor", ("cursor-agent", "cursor")
    folder_name = ".cursor"
    user_settings, project_settings = "hooks.json", ".cursor/hooks.json"
    failing = "closed: a call is denied (failClosed)"
    not_provable = "its models need an account"

    def arguments(self, project: Path, prompt: str, *, trusted: bool = False) -> list[str]:
        """Cursor cannot be started so."""
        raise NotImplementedError

    def variables(self, place: Place, *, trusted: bool = False) -> Mapping[str, str]:
        """Cursor cannot be started so."""
        raise NotImplementedError

    def model_settings(self, place: Place) -> tuple[Path, Any]:
        """Cursor cannot be started so."""
        raise NotImplementedError

    def shell(self, command: str) -> Call:
        """Return a call of the shell."""
        return Call("Shell", {"command": command})


class GeminiCli(Host):
    """Gemini CLI."""

    name, programs = "gemini", ("gemini",)
    folder_name = ".gemini"
    user_settings, project_settings = "settings.json", ".gemini/settings.json"
    comments = True
    project_note = "Gemini CLI skips them in a folder that you do not trust, without a word"

    def folder(self, env: Mapping[str, str]) -> Path:
        """Return the folder of the user's settings. The variable names what is above it."""
        return Path(env.get("GEMINI_CLI_HOME") or env.get("HOME") or Path.home()) / self.folder_name

    def switched_off(self, env: Mapping[str, str], project: Path) -> Iterator[str]:
        """Yield what switches the hooks off."""
        for file in (self.user_file(env), self.project_file(project), Path("/etc/gemini-cli/settings.json")):
            switches = _read_json(file).get("hooksConfig")
            if isinstance(switches, dict):
                if switches.get("enabled") is False:
                    yield f"{file} has hooksConfig.enabled = false"
                if "hookline" in (switches.get("disabled") or ()):
                    yield f"{file} has hookline in hooksConfig.disabled"

    def arguments(self, project: Path, prompt: str, *, trusted: bool = False) -> list[str]:
        """Return the arguments of the program."""
        return [*([] if trusted else ["--skip-trust"]), "--yolo", "-m", "gemini-2.5-pro", "-p", prompt]

    def variables(self, place: Place, *, trusted: bool = False) -> Mapping[str, str]:
        """Return the variables for the model on loopback."""
        trust = {"GEMINI_CLI_TRUST_WORKSPACE": "true"} if trusted else {}
        return {
            "GEMINI_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": place.url,
            "GEMINI_CLI_NO_RELAUNCH": "true",
            **trust,
        }

    def model_settings(self, place: Place) -> tuple[Path, Any]:
        """Return settings that name no account."""
        auth = {"auth": {"selectedType": "gemini-api-key"}}
        return place.home / self.folder_name / self.user_settings, {"security": auth, **_SILENT}

    def shell(self, command: str) -> Call:
        """Return a call of the shell."""
        return Call("run_shell_command", {"command": command, "description": "Do it."})


class OpenCode(Host):
    """opencode."""

    name, programs = "opencode", ("opencode",)
    folder_name = ".config/opencode"
    user_settings, project_settings = "plugin/hookline.js", ".opencode/plugin/hookline.js"
    failing = "closed: a call is denied. But open if the plugin cannot be loaded: opencode skips it"
    off_switch = "opencode --pure runs without plugins"

    def folder(self, env: Mapping[str, str]) -> Path:
        """Return the folder of the user's settings. The variable names what is above it."""
        above = env.get("XDG_CONFIG_HOME")
        return Path(above) / "opencode" if above else Path(env.get("HOME") or Path.home()) / self.folder_name

    def arguments(self, project: Path, prompt: str, *, trusted: bool = False) -> list[str]:
        """Return the arguments of the program."""
        return ["run", prompt]

    def variables(self, place: Place, *, trusted: bool = False) -> Mapping[str, str]:
        """Return the variables for the model on loopback."""
        return {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}

    def model_settings(self, place: Place) -> tuple[Path, Any]:
        """Return settings of the project that name the model."""
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
            "models": {MODEL: {"tool_call": True}},
        }
        names = {"model": f"{MODEL}/{MODEL}", "small_model": f"{MODEL}/{MODEL}"}
        own = {"provider": {MODEL: provider}, **names, "autoupdate": False, "share": "disabled"}
        return place.project / "opencode.json", own

    def shell(self, command: str) -> Call:
        """Return a call of the shell."""
        return Call("bash", {"command": command, "description": "Do it."})


class QwenCode(Host):
    """Qwen Code."""

    name, programs = "qwen", ("qwen",)
    folder_name = ".qwen"
    user_settings, project_settings = "settings.json", ".qwen/settings.json"
    comments = True
    project_note = "Qwen Code skips them in a folder that you do not trust, if trust is switched on"

    def switched_off(self, env: Mapping[str, str], project: Path) -> Iterator[str]:
        """Yield what switches the hooks off."""
        yield from _disabled((self.user_file(env), self.project_file(project)))

    def arguments(self, project: Path, prompt: str, *, trusted: bool = False) -> list[str]:
        """Return the arguments of the program."""
        return ["--yolo", "-p", prompt]

    def variables(self, place: Place, *, trusted: bool = False) -> Mapping[str, str]:
        """Return the variables for the model on loopback."""
        return {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{place.url}/v1", "OPENAI_MODEL": MODEL}

    def model_settings(self, place: Place) -> tuple[Path, Any]:
        """Return settings that name no account."""
        auth = {"auth": {"selectedType": "openai"}}
        return place.home / self.folder_name / self.user_settings, {"security": auth, **_SILENT}

    def shell(self, command: str) -> Call:
        """Return a call of the shell."""
        return Call("run_shell_command", {"command": command, "description": "Do it.", "is_background": False})


_SILENT = {"privacy": {"usageStatisticsEnabled": False}}

HOSTS: Mapping[str, Host] = {
    each.name: each for each in (ClaudeCode(), Codex(), CopilotCli(), Cursor(), GeminiCli(), OpenCode(), QwenCode())
}
"""All agents that Hookline knows, by their names."""


def find_hosts(env: Mapping[str, str] = os.environ) -> list[Found]:
    """Return the coding agents on this machine."""
    return [found for host in HOSTS.values() if (found := host.find(env)) is not None]


def _disabled(files: Sequence[Path]) -> Iterator[str]:
    for file in files:
        if _read_json(file).get("disableAllHooks") is True:
            yield f"{file} has disableAllHooks"


def _read_json(file: Path) -> dict[str, Any]:
    """Return the settings in a file; nothing if it cannot be read."""
    try:
        found: dict[str, Any] = JsonText(file.read_text("utf-8"), comments=True).root.plain()
    except (OSError, UnicodeDecodeError, JsonTextError):
        return {}
    return found


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}
