"""``scripted:FILE``: a scripted model with its turns in a JSON or JSONL file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from .._base.text import describe
from .._kernel.errors import RegistrationError
from ..models import errors
from ..models.scripted import ScriptedModel, Turn, call

_ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.ProviderError)
}


def script_model(path: str, *, delay: float = 0.0, loop: bool = False) -> ScriptedModel:
    """Make the model for ``scripted:PATH``.

    Each turn is a text, or ``{"tool": NAME, "arguments": {...}}``, or a list of these, or
    ``{"error": NAME, "message": TEXT}`` with the name of a :class:`~hookline.models.ProviderError`. The file is a
    JSON list of turns, or ``{"turns": [...], "delay": SECONDS, "loop": true}``, or has one turn per line.

    Raises:
        RegistrationError: the file is missing or is not a list of turns.
    """
    if not path:
        raise RegistrationError("scripted:FILE needs a file of turns, such as scripted:turns.json")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RegistrationError(f"scripted:{path}: the file {path!r} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RegistrationError(f"cannot read the script {path!r}: {describe(error)}") from error
    try:
        script = _script(text)
        turns = [_turn(turn) for turn in script.turns]
        return ScriptedModel(turns, delay=delay or script.delay, name=Path(path).name, loop=loop or script.loop)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise RegistrationError(f"the script {path!r} is not a list of turns: {error}") from error


class _Script(msgspec.Struct, forbid_unknown_fields=True):
    turns: list[Any]
    delay: float = 0.0
    loop: bool = False


def _script(text: str) -> _Script:
    try:
        whole = msgspec.json.decode(text)
    except msgspec.DecodeError:
        whole = [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
    if isinstance(whole, dict) and "turns" in whole:
        return msgspec.convert(whole, _Script)
    return _Script(whole if isinstance(whole, list) else [whole])


def _turn(turn: Any) -> Turn:
    if isinstance(turn, str):
        return turn
    if isinstance(turn, dict) and isinstance(turn.get("tool"), str):
        arguments = turn.get("arguments", {})
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments for {turn['tool']!r} must be an object, not {arguments!r:.80}")
        return call(turn["tool"], **arguments)
    if isinstance(turn, dict) and "error" in turn:
        kind = _ERRORS.get(turn["error"]) if isinstance(turn["error"], str) else None
        if kind is None:
            raise ValueError(f"unknown error {turn['error']!r:.80}; use one of {', '.join(_ERRORS)}")
        return kind(str(turn.get("message", "scripted")))
    if isinstance(turn, list):
        return [_turn(part) for part in turn]
    raise ValueError(f'a turn is a text, {{"tool": NAME, "arguments": {{...}}}}, or a list of these; not {turn!r:.80}')
