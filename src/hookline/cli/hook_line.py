"""The hook line on a terminal: a call is a line, and hooks are gates on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from ..explain.gates import GateCall
from ..explain.words import SIGNS, tone_of

TONES = {"red": "red", "amber": "yellow", "violet": "magenta", "blue": "cyan", "grey": "dim"}
"""The colours of pages as colours of a terminal."""

MAX_GATES = 12
"""With more gates, those of a side that passed are folded into one with their number."""

Piece = tuple[str, str]
"""A text and its style."""

_CALLS = {"ok": ("■", "#", ""), "no": ("□", "_", "dim"), "error": ("✗", "x", "red")}
_ENDING = ("blocked", "denied", "waits", "unanswered")


def is_ascii(out: IO[str] | None) -> bool:
    """Whether a stream cannot show the signs of the hook line."""
    try:
        "".join((*(sign.glyph for sign in SIGNS.values()), "─┄■□")).encode(getattr(out, "encoding", None) or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return True
    return False


def style_of(word: str) -> str:
    """Return the style of a status, an outcome, a decision or a verb."""
    return TONES[tone_of(word)]


def sign(state: str, *, ascii: bool = False) -> Piece:
    """Return the sign of a gate."""
    known = SIGNS[state]
    return known.ascii if ascii else known.glyph, TONES[known.tone]


def hook_line(gates: Sequence[GateCall], call: str, *, ascii: bool = False) -> list[Piece]:
    """Return the line of a call, such as ``─○─◆─■─○─``: the hooks before it, the call, and the hooks after it.

    Args:
        gates: its gates, in firing order.
        call: what became of the call: ``ok``, ``no`` if it did not happen, or ``error``.
        ascii: whether to use ASCII characters only.
    """
    return list(_pieces(gates, call, ascii))


def _pieces(gates: Sequence[GateCall], call: str, ascii: bool) -> Iterator[Piece]:
    wire, cut = ("-", ".") if ascii else ("─", "┄")
    mark, plain, style = _CALLS[call]
    before = [gate for gate in gates if gate.key[0] <= 1]
    after = [gate for gate in gates if gate.key[0] > 1]
    is_cut = False
    yield wire, "dim"
    for side in (before, None, after):
        if side is None:
            yield plain if ascii else mark, style
            yield cut if is_cut else wire, "dim"
            continue
        folds = len(gates) > MAX_GATES
        if folds and (passed := sum(not gate.spoke for gate in side)):
            glyph, tone = sign("passed", ascii=ascii)
            yield f"{glyph}{passed}", tone
            yield wire, "dim"
        for gate in side:
            if folds and not gate.spoke:
                continue
            yield sign(gate.state, ascii=ascii)
            ends = gate.state in _ENDING or (gate.state == "failed" and gate.refused)
            is_cut = is_cut or (ends and (call == "no" or side is after))
            yield cut if is_cut else wire, "dim"
