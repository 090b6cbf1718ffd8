"""``scripted:FILE``: a scripted model whose turns stand in a JSON or JSONL file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..base.names import describe
from ..kernel.errors import RegistrationError
from ..models.scripted import ScriptedModel, Turn, call


def make(path: str, *, delay: float = 0.0, loop: bool = False) -> ScriptedModel:
    """The model for ``scripted:PATH``.

    Each turn is a text, or ``{"tool": NAME, "arguments": {...}}``, or a list of these; the file is a
    JSON list of turns, or has one turn on each line.

    Raises:
        RegistrationError: the file is missing or holds something else.
    """
    if not path:
        raise RegistrationError("scripted:FILE needs a file of turns, such as scripted:turns.json")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RegistrationError(f"cannot read the script {path!r}: {describe(error)}") from error
    try:
        if text.lstrip().startswith("["):
            turns = msgspec.json.decode(text)
        else:
            turns = [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
        return ScriptedModel([_turn(turn) for turn in turns], delay=delay, name=Path(path).name, loop=loop)
    except (msgspec.DecodeError, ValueError) as error:
        raise RegistrationError(f"the script {path!r} is not a list of turns: {error}") from error


def _turn(turn: Any) -> Turn:
    if isinstance(turn, str):
        return turn
    if isinstance(turn, dict) and isinstance(turn.get("tool"), str):
        return call(turn["tool"], **turn.get("arguments", {}))
    if isinstance(turn, list):
        return [_turn(part) for part in turn]
    raise ValueError(f'a turn is a text, {{"tool": NAME, "arguments": {{...}}}}, or a list of these; not {turn!r:.80}')
