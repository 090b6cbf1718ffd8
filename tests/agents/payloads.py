"""Events that real coding agents sent, for tests without the agents: one file for each version of each agent.

``make test-agents RECORD=1`` writes them, and ``make test-adapters ONLY=claude_real RECORD=1`` those of Claude Code.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "adapters" / "coding_agents" / "payloads"
RECORDER = Path(__file__).with_name("recorder.py")
IS_RECORDING = bool(os.environ.get("RECORD"))

_IDENT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TIME = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def with_recorder(settings: str, folder: Path) -> str:
    """Return settings of an agent whose command keeps each event in a folder."""
    folder.mkdir()
    command = [sys.executable, "-I", "-S"]
    recorder = [sys.executable, str(RECORDER), str(folder)]
    for between in (" ", '", "'):  # a command for a shell, or a list in a plugin
        settings = settings.replace(between.join(command), between.join((*recorder, *command)))
    return settings


def save(agent: str, version: str, folder: Path, names: Mapping[str, str]) -> None:
    """Write the events of a session to the file of a version of an agent: one of each kind.

    Args:
        agent: the agent.
        version: its version.
        folder: where the events were kept.
        names: folders and secrets of this machine, each with a name for it.
    """
    chosen: dict[tuple[Any, ...], Any] = {}
    for file in sorted(folder.iterdir()):
        text = file.read_text()
        for found, instead in sorted(names.items(), key=lambda each: -len(each[0])):
            text = text.replace(found, instead)
            text = text.replace(
                re.sub("[^a-zA-Z0-9]", "-", found), instead.replace("/", "-")
            )  # in names of transcripts
        kept = json.loads(text)
        event = kept["event"]
        name, tool = event.get("hook_event_name", event.get("event")), event.get("tool_name", event.get("tool"))
        chosen.setdefault((name, tool, *sorted(event), "SECRET" in text), kept)
    text = json.dumps({"agent": agent, "version": version, "events": list(chosen.values())}, indent=2)
    idents: dict[str, str] = {}
    text = _IDENT.sub(lambda found: idents.setdefault(found[0], f"00000000-0000-4000-8000-{len(idents):012}"), text)
    text = _TIME.sub("2026-01-01T00:00:00.000Z", text)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{agent}-{version}.json").write_text(f"{text}\n")
