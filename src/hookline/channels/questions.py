"""How a call that waits for approval is put to people: a short code, and everything that is to be known of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from ..stores.approvals import ApprovalRow
from ..stores.mailbox import OutboxItem
from .splitting import joined

SHORTEST = 4
"""Characters of a code, at least."""

MAX_SHOWN = 30_000
"""Characters of arguments that are shown in a conversation; a call with more is for an operator to look at."""

_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_LABEL = 40
_SHORT = 160


class Open(msgspec.Struct):
    """A call that waits in a conversation.

    ``answerable``: somebody there may decide. ``parcels`` are the messages that show it; ``whole``: nothing of it was
    held back. ``answered``: it is being decided in this conversation, whose answer tells so.
    """

    key: str
    row: ApprovalRow
    code: str
    answerable: bool
    parcels: list[OutboxItem] = []
    whole: bool = False
    answered: bool = False


def code_of(key: str, id: str) -> str:
    """All of the code of a call in a conversation; people are given its beginning. Elsewhere it has another."""
    return "".join(_LETTERS[byte % 32] for byte in sha256(f"{key} {id}".encode()).digest())


def short_code(key: str, id: str, others: Iterable[Open]) -> str:
    """As much of the code as tells it from those that wait too."""
    code, size = code_of(key, id), SHORTEST
    while any(code_of(key, other.row.id).startswith(code[:size]) for other in others):
        size += 1
    return code[:size]


def shown(
    question: Open, *, secret: bool = False, limit: int | None = None, length: Callable[[str], int] = len
) -> tuple[list[str], bool]:
    """The messages that put a call to people, and whether all of its arguments are in them.

    A model has a say in most of it, so nothing can begin a line of its own or end the block that it stands in, and what
    cannot be seen is written as JSON does it. Arguments are never cut: what a message does not hold goes into the next.

    Args:
        question: the call.
        secret: leave the arguments out.
        limit: how long a message may be.
        length: how long a text is, as the platform counts.
    """
    row, code = question.row, question.code
    head = f"{code}: {plain(row.agent) or 'the agent'} wants to call `{plain(row.tool)}`"
    tail = "\n".join([*_reasons(row), *_how_to_answer(question)])
    arguments = exact(row.arguments)
    if secret:
        return [f"{head}.\n{tail}"], False
    if len(arguments) > MAX_SHOWN:
        told = f"Its arguments have {len(arguments):,} characters, too many to be shown here"
        return [f"{head}. {told}: an operator can look at them and decide (`hookline approvals`).\n{tail}"], False
    whole = f"{head} with\n```\n{arguments}\n```\n{tail}"
    if limit is None or length(whole) <= limit:
        return [whole], True
    parts = _pieces(arguments, max(_LABEL, limit - _LABEL), length)
    count = len(parts)
    middle = [f"{code}, {i} of {count}:\n```\n{part}\n```" for i, part in enumerate(parts, 1)]
    return [f"{head}, with arguments in {count} parts:", *middle, f"{code}, `{plain(row.tool)}`:\n{tail}"], True


def listed(question: Open, *, secret: bool) -> str:
    """One line about a call that waits."""
    row = question.row
    arguments = "" if secret else f" {exact(row.arguments, None)}"
    if len(arguments) > _SHORT:
        arguments = f"{arguments[:_SHORT]}… (cut: it is in the question, above)"
    return f"{question.code}: {plain(row.tool)}{arguments}, until {clock(row.expires)}"


def _reasons(row: ApprovalRow) -> list[str]:
    lines = []
    for question in row.questions:
        why = f" ({plain(question.reason)})" if question.reason else ""
        lines.append(f"{plain(question.hook) or 'A hook'} asks: {plain(question.text)}{why}")
    return lines


def _how_to_answer(question: Open) -> list[str]:
    code, until = question.code, clock(question.row.expires)
    if not question.answerable:
        return [f"An operator must approve it, until {until} (`hookline approvals`); else it does not run."]
    return [
        f"Answer until {until}: `/approve {code}`, or `/deny {code} why`. Without an answer it does not run.",
        f"If nothing else waits, yes or no will do. `/approve {code} session` allows it in all of this conversation.",
    ]


def exact(arguments: Mapping[str, Any], indent: int | None = 2) -> str:
    """Arguments as JSON, in which everything can be seen."""
    text = json.dumps(arguments, ensure_ascii=False)
    if indent is not None and len(text) > 80:
        text = json.dumps(arguments, ensure_ascii=False, indent=indent)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def plain(text: str) -> str:
    """A text as one line, in which everything can be seen, and which cannot end a quote."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).replace("`", "'")


def clock(at: float) -> str:
    """A time of day, with the date if it is not today, and the zone."""
    when = datetime.fromtimestamp(at).astimezone()
    today = when.date() == datetime.fromtimestamp(time.time()).date()
    return when.strftime("%H:%M %Z" if today else "%Y-%m-%d %H:%M %Z").strip()


def _pieces(text: str, room: int, length: Callable[[str], int]) -> Sequence[str]:
    """A text in pieces, cut between lines; at a cut inside a line a space cannot get lost, nor a block end."""
    pieces: list[str] = []
    piece = ""
    for line in text.split("\n"):
        longer = f"{piece}\n{line}" if piece else line
        if length(longer) <= room:
            piece = longer
            continue
        if piece:
            pieces.append(piece)
        *full, piece = _pieces_of_line(line, room, length)
        pieces += full
    return [*pieces, piece]


def _pieces_of_line(rest: str, room: int, length: Callable[[str], int]) -> Iterator[str]:
    while length(rest) > room:
        end = _cut(rest, room - 2 * len("\\u0020"), length)
        piece, rest = rest[:end], rest[end:]
        yield piece[:-1] + "\\u0020" if piece.endswith(" ") else piece
        rest = f"\\u{ord(rest[0]):04x}{rest[1:]}" if rest[0] in " `" else rest
    yield rest


def _cut(line: str, room: int, length: Callable[[str], int]) -> int:
    end = min(len(line) - 1, max(room, 1))
    while end > 1 and length(line[:end]) > room:
        end -= max(1, (length(line[:end]) - room) // 2)
    fits = max(1, end)
    while end > max(1, fits - 20) and (joined(line, end) or _in_escape(line, end)):
        end -= 1
    return end if not joined(line, end) else fits


def _in_escape(line: str, at: int) -> bool:
    """Whether what JSON writes with a backslash is cut there."""
    start = line.rfind("\\", max(0, at - 5), at)
    if start < 0:
        return False
    before = start
    while before > 0 and line[before - 1] == "\\":
        before -= 1
    if (start - before) % 2:  # the second of a pair: a backslash itself
        return False
    return at < start + (6 if line[start + 1 : start + 2] == "u" else 2)
