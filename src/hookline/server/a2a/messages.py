"""What callers say: text and data for the agent, or a decision about a call that waits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from a2a.types import Message
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import MessageToDict

from ...stores.approvals import ApprovalRow
from ..headers import is_correlation_id

SHORTEST = 9
"""How much of a call's id names it: ``appr_`` and four characters."""

_YES = frozenset(("approve", "approved", "yes", "y", "allow", "ok"))
_NO = frozenset(("deny", "denied", "no", "n", "reject"))
_SAFE = 2**53


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a call, as a program sends it."""

    decision: Literal["approve", "deny", "edit"]
    approval: str = ""
    digest: str = ""
    message: str = ""
    arguments: dict[str, Any] | None = None
    remember: Literal["once", "session", "always"] = "once"
    pattern: dict[str, str] | None = None


class Said(msgspec.Struct, frozen=True):
    """A message in its parts."""

    texts: tuple[str, ...]
    data: tuple[Any, ...]

    @property
    def text(self) -> str:
        """All of it as text for the agent; data as JSON."""
        return "\n\n".join((*self.texts, *(json.dumps(each, ensure_ascii=False) for each in self.data)))


def said_in(message: Message) -> Said:
    """What a message says.

    Raises:
        ContentTypeNotSupportedError: it has a file in it.
        InvalidParamsError: it says nothing.
    """
    texts, data = [], []
    for part in message.parts:
        kind = part.WhichOneof("content")
        if kind == "text":
            texts.append(part.text)
        elif kind == "data":
            data.append(_whole(MessageToDict(part.data)))
        elif kind is not None:
            raise ContentTypeNotSupportedError("files are not taken: send text or data parts")
    if not data and not any(text.strip() for text in texts):
        raise InvalidParamsError("the message is empty: send a text or data part with something in it")
    return Said(tuple(texts), tuple(data))


def _whole(value: Any) -> Any:
    """The protocol has no whole numbers; what could be one becomes one again."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _SAFE else value
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return {key: _whole(each) for key, each in value.items()} if isinstance(value, dict) else value


def correlation_in(message: Message) -> str:
    """The correlation id that a message names in its metadata; empty if there is none that can be one."""
    given = MessageToDict(message.metadata).get("correlation_id")
    return given if isinstance(given, str) and is_correlation_id(given) else ""


class Unclear(Exception):
    """What was said decides nothing; the words tell what to send instead."""


def decision_in(said: Said, rows: Sequence[ApprovalRow], *, sure: bool = True) -> tuple[ApprovalRow, Answer]:
    """The decision that a message is, and the call it is about.

    Args:
        said: the message.
        rows: the calls that wait.
        sure: whether a plain yes can only be meant for the one that waits: no other ended behind the caller's back.

    Raises:
        Unclear: it is none.
    """
    if not rows:
        raise Unclear("A call waits for somebody else's approval: it cannot be decided here.")
    answers = [each for each in said.data if isinstance(each, Mapping) and "decision" in each]
    if len(answers) > 1:
        raise Unclear(f"One message is one decision. {how_to(rows)}")
    if not answers:
        return _in_words(said, rows, sure)
    try:
        answer = msgspec.convert(answers[0], Answer)
    except msgspec.ValidationError as error:
        raise Unclear(f"This is no decision: {error}. {how_to(rows)}") from None
    found = [row for row in rows if row.id == answer.approval or not answer.approval]
    if len(found) != 1:
        raise Unclear(f"No such call waits, or more than one: name it. {how_to(rows)}")
    if not answer.digest:
        raise Unclear(f"Name the digest of the call that you saw. {how_to(rows)}")
    return found[0], answer


def _in_words(said: Said, rows: Sequence[ApprovalRow], sure: bool) -> tuple[ApprovalRow, Answer]:
    words = said.text.strip()
    first, _, rest = words.partition(" ")
    verb = first.strip(".,:;!").lower()
    name, _, behind = rest.strip().partition(" ")
    name = name.strip(".,:;!")
    named = [row for row in rows if len(name) >= SHORTEST and row.id.startswith(name)]
    if len(named) == 1:
        rows, rest = named, behind
    elif verb in _YES | _NO and len(rows) > 1:
        raise Unclear(f"{len(rows)} calls wait: say which one you mean. {how_to(rows)}")
    elif verb in _YES | _NO and not sure:
        raise Unclear(f"Another call was decided or expired meanwhile: say that you mean this one. {how_to(rows)}")
    if verb in _YES and not rest.strip():
        return rows[0], Answer(decision="approve", digest=rows[0].digest)
    if verb in _NO:
        return rows[0], Answer(decision="deny", digest=rows[0].digest, message=rest.strip())
    raise Unclear(f"That decides nothing. {how_to(rows)}")


def how_to(rows: Sequence[ApprovalRow]) -> str:
    """What to send to decide about a call."""
    form = {"approval": rows[0].id, "decision": "approve", "digest": rows[0].digest}
    words = f" or the text approve {rows[0].id[: SHORTEST + 4]}, or deny {rows[0].id[: SHORTEST + 4]} and why"
    return f"Send a data part such as {json.dumps(form)} (or deny, or edit with arguments),{words}."
