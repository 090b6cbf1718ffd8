"""Detects the coding agent that called ``hookline claude-hook``, because agents obey different answers.

Other agents than Claude Code load its settings too, and understand only a part of its answers: Codex runs a call if
the answer is a question. So no other agent gets the answers of Claude Code. One that is not recognised gets exit code 2
with a reason on stderr, which all obey.

Imports are minimal, because every call loads this module.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    Host = Literal["claude-code", "codex", "other"]

CLAUDE_CODE: Host = "claude-code"
CODEX: Host = "codex"
OTHER: Host = "other"

_VARIABLES = ("CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SESSION_ID", "CLAUDE_CONFIG_DIR")


def environment() -> str:
    """Return what the environment of this call says about the agent that made it, for :func:`detect`."""
    return "\0".join(os.environ.get(name, "") for name in _VARIABLES)


def detect(variables: str, given: Any) -> Host:
    """Return the agent that sent an event.

    A program inherits the variables of the agent that started it: Codex in a terminal of Claude Code has those of
    Claude Code. So variables are no evidence without an event that fits them.

    Args:
        variables: the result of :func:`environment` where the agent called.
        given: the event, which may be anything.
    """
    if not isinstance(given, dict):
        return OTHER
    entrypoint, session, config = variables.split("\0")
    ident, transcript = given.get("session_id"), given.get("transcript_path")
    if isinstance(ident, str) and ident:
        if ident == session:
            return CLAUDE_CODE
        # Earlier versions set no variable with the id. Others than Claude Code keep their transcripts elsewhere.
        if entrypoint and isinstance(transcript, str) and _is_transcript(transcript, ident, config):
            return CLAUDE_CODE
    texts = (given.get("turn_id"), given.get("model"), given.get("cwd"))
    has_texts = all(isinstance(text, str) and text for text in texts)
    return CODEX if has_texts and "transcript_path" in given and _is_rollout(transcript) else OTHER


def _is_transcript(path: str, session: str, config: str) -> bool:
    """Return whether this is where Claude Code keeps the transcript of a session."""
    folder, inner = _parts(path)[:-3], _parts(path)[-3:]
    own = folder[-1:] == [".claude"] or (config != "" and folder == _parts(config.rstrip("/\\")))
    return own and inner[0] == "projects" and inner[-1] == f"{session}.jsonl"


def _is_rollout(path: Any) -> bool:
    """Return whether this is a transcript of Codex, or ``None``, which Codex sends if it keeps none."""
    return path is None or (isinstance(path, str) and _parts(path)[-1].startswith("rollout-"))


def _parts(path: str) -> list[str]:
    return path.replace("\\", "/").split("/")
