"""What ``hookline doctor`` says about each coding agent on this machine: its hooks, and whether they can work."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from .._base.text import error_text
from .output import print_facts, short_path, time_text
from .protect import is_of_this_installation, own_commands, settings_path
from .text import counted, printable

if TYPE_CHECKING:
    from ..adapters.coding_agents.protection.hosts import Found

Fact = tuple[str, str]


def show_agents() -> None:
    """Print the coding agents on this machine, if there are any. Nothing of theirs is changed."""
    from ..adapters.coding_agents.protection.hosts import find_hosts
    from ..adapters.coding_agents.protection.proof import version_of

    found = find_hosts()
    if not found:
        return
    with ThreadPoolExecutor(len(found)) as threads:
        versions = list(threads.map(lambda each: version_of(each.program) if each.program else "", found))
    sys.stdout.write("\n")
    for each, version in zip(found, versions, strict=True):
        print_facts(f"{each.host.title} {version}".rstrip(), agent_facts(each))


def agent_facts(found: Found) -> Iterator[Fact]:
    """Yield what is known of the hooks of an agent."""
    from ..adapters.coding_agents.last_call import load_last_call
    from ..adapters.coding_agents.protection.changes import ProtectError, entries_in

    host = found.host
    levels = {"user": settings_path(host, project=False), "project": settings_path(host, project=True)}
    if levels["user"] == levels["project"]:  # in the home folder
        del levels["project"]
    commands = {}
    for level, path in levels.items():
        try:
            commands[level] = own_commands(host, path)
        except ProtectError as error:
            yield f"{level} hooks", error_text(error)
            return
    if not any(commands.values()):
        yield "hooks", f"none of Hookline: hookline protect {host.name}"
    for level, path in levels.items():
        if commands[level]:
            yield f"{level} hooks", _hooks_text(host.name, path, commands[level])
            if trust := host.trust(os.environ, path, entries_in(host, path)):
                yield "trust", trust
    if any(commands.values()):
        switched = list(host.switched_off(os.environ, Path.cwd()))
        yield "switched off", "; ".join(map(short_path, switched)) if switched else host.off_switch or "no"
        yield "on failure", host.failing
        if commands.get("project") and host.project_note:
            yield "project", host.project_note
    last = load_last_call(host.name)
    if last is not None:
        yield "last call", f"{last.decision}: {printable(last.tool, keep='')}, {time_text(last.at)}"
    elif any(commands.values()):
        yield "last call", "none seen: start a session, and ask it to run: touch hookline-proof"


def _hooks_text(agent: str, path: Path, commands: Sequence[Sequence[str]]) -> str:
    """Return where the hooks are, and whether what they start is there."""
    shown = f"{short_path(str(path))}, {counted(len(commands), 'event')}"
    if path.suffix == ".js":
        shown = short_path(str(path))
    if missing := sorted({word for words in commands for word in words if _is_missing(word)}):
        return f"{shown}. MISSING: {', '.join(map(short_path, missing))}: hookline protect {agent}"
    if not all(is_of_this_installation(words, agent) for words in commands):
        return f"{shown}, of another installation of Hookline: {short_path(commands[0][0])}"
    return f"{shown}, of this installation"


def _is_missing(word: str) -> bool:
    """Return whether a word of a command is the full path of a program or of rules that does not exist."""
    path = re.sub(r"(\.py|\.toml):.*", r"\1", word)
    return os.path.isabs(path) and not os.path.exists(path)
