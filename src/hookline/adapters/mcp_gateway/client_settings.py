"""The MCP settings of coding agents: their servers behind the gateway, and back.

Nothing is stored beside the settings: an entry contains the command of the server, after the ``--`` of the gateway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec

from ..._base.errors import HooklineError
from ..._base.text import did_you_mean, error_text

COMMAND = "mcp-gateway"
Entry = MutableMapping[str, Any]


class SettingsError(HooklineError):
    """Settings that cannot be changed. The message says what to do instead."""


class Rewritten(msgspec.Struct, frozen=True):
    """Changed settings: the new text, the servers that were changed, and why others were not."""

    text: str
    changed: tuple[str, ...]
    skipped: Mapping[str, str]


class SettingsForm(msgspec.Struct, frozen=True):
    """Where an agent keeps its MCP servers, and in which form.

    Args:
        files: the files, relative to the home folder (``~``) or to the project.
        key: the name of the table of servers.
        is_toml: whether the file is TOML; otherwise it is JSON.
        is_list: whether ``command`` is a list with the arguments; otherwise they are in ``args``.
        nested: whether tables of servers may also be deeper, such as those of projects.
    """

    files: tuple[str, ...]
    key: str = "mcpServers"
    is_toml: bool = False
    is_list: bool = False
    nested: bool = False


AGENTS: Mapping[str, SettingsForm] = {
    "claude": SettingsForm((".mcp.json", "~/.claude.json"), nested=True),
    "codex": SettingsForm(("~/.codex/config.toml", ".codex/config.toml"), "mcp_servers", is_toml=True),
    "copilot": SettingsForm(("~/.copilot/mcp-config.json",)),
    "cursor": SettingsForm(("~/.cursor/mcp.json", ".cursor/mcp.json")),
    "gemini": SettingsForm(("~/.gemini/settings.json", ".gemini/settings.json")),
    "opencode": SettingsForm(("~/.config/opencode/opencode.json", "opencode.json"), "mcp", is_list=True),
    "qwen": SettingsForm(("~/.qwen/settings.json", ".qwen/settings.json")),
}


def wrap(agent: str, text: str, gateway: Sequence[str]) -> Rewritten:
    """Put the gateway in front of all servers that are commands. An entry that has it already gets it anew.

    Args:
        agent: the coding agent.
        text: its settings.
        gateway: the command of the gateway without server: ``["/usr/bin/hookline", "mcp-gateway", "--rules", "r.py"]``.

    Raises:
        SettingsError: the settings cannot be changed.

    Example::

        path.write_text(wrap("claude", path.read_text(), ["hookline", "mcp-gateway", "--rules", "rules.py"]).text)
    """
    if COMMAND not in gateway or "--" in gateway:
        raise SettingsError(f"{' '.join(gateway)!r:.200} is not the command of a gateway")

    def wrapped(name: str, command: list[str]) -> list[str] | None:
        return [*gateway, "--name", name, "--", *(_server_of(command) or command)]

    return _rewrite(agent, text, wrapped)


def unwrap(agent: str, text: str) -> Rewritten:
    """Remove the gateway from the settings.

    Raises:
        SettingsError: the settings cannot be changed.
    """
    return _rewrite(agent, text, lambda name, command: _server_of(command))


def _rewrite(agent: str, text: str, change: Callable[[str, list[str]], list[str] | None]) -> Rewritten:
    form = AGENTS.get(agent)
    if form is None:
        raise SettingsError(f"{agent!r:.80} is not known.{did_you_mean(agent, AGENTS)} Known: {', '.join(AGENTS)}")
    document = _read(form, text)
    changed: list[str] = []
    skipped: dict[str, str] = {}
    for servers in _tables(document, form):
        for name, entry in servers.items():
            problem = _change_entry(form, str(name), entry, change, changed)
            if problem:
                skipped[str(name)] = problem
    return Rewritten(_write(form, document, text) if changed else text, tuple(changed), skipped)


def _change_entry(
    form: SettingsForm,
    name: str,
    entry: Any,
    change: Callable[[str, list[str]], list[str] | None],
    changed: list[str],
) -> str:
    """Change one server. Return why it was not changed, or an empty string."""
    if not isinstance(entry, MutableMapping):
        return "it is not a table"
    command = _command_of(form, entry)
    if command is None:
        remote = any(key in entry for key in ("url", "httpUrl", "serverUrl"))
        return "it is not a command of this machine" if remote else "it has no command"
    new = change(name, command)
    if new is not None and new != command:
        if form.is_list:
            entry["command"] = new
        else:
            entry["command"], entry["args"] = new[0], new[1:]
            if not new[1:]:
                del entry["args"]
        changed.append(name)
    return ""


def _command_of(form: SettingsForm, entry: Entry) -> list[str] | None:
    command, args = entry.get("command"), entry.get("args", [])
    words = command if form.is_list else [command, *(args if isinstance(args, list) else [None])]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return None
    return [str(word) for word in words]


def _server_of(command: Sequence[str]) -> list[str] | None:
    """Return the command of the server behind a gateway; ``None`` if there is no gateway."""
    words = list(command)
    if COMMAND in words[:6] and "--" in words and words.index(COMMAND) < words.index("--"):
        return words[words.index("--") + 1 :] or None
    return None


def _tables(document: Any, form: SettingsForm) -> list[Entry]:
    found: list[Entry] = []
    here = document.get(form.key)
    if isinstance(here, MutableMapping):
        found.append(here)
    projects = document.get("projects") if form.nested else None
    for project in projects.values() if isinstance(projects, Mapping) else ():
        deeper = project.get(form.key) if isinstance(project, Mapping) else None
        if isinstance(deeper, MutableMapping):
            found.append(deeper)
    return found


def _read(form: SettingsForm, text: str) -> Any:
    try:
        if form.is_toml:
            import tomlkit

            return tomlkit.parse(text)
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if form.is_toml else "JSON without comments"
        raise SettingsError(
            f"the settings are not {kind} ({error_text(error)}): put the gateway before the commands by hand"
        ) from None
    if not isinstance(document, dict):
        raise SettingsError("the settings are not a JSON object")
    return document


def _write(form: SettingsForm, document: Any, before: str) -> str:
    if form.is_toml:
        import tomlkit

        return tomlkit.dumps(document)
    indent = re.search(r"\n([ \t]+)\S", before)
    end = "\n" if before.endswith("\n") else ""
    return json.dumps(document, indent=indent[1] if indent else None, ensure_ascii=False) + end
