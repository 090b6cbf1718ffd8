"""Read the messages of callers: text and data for the agent, or a decision about a waiting call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from a2a.types import Message, Part
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import MessageToDict

from ..._base.attachment import Attachment, AttachmentError, file_name
from ...models.attachments import accepts
from ...stores.approvals import ApprovalRow
from ..routing import is_correlation_id

MIN_ID_PREFIX = 9
"""Minimum length of an abbreviated approval id: ``appr_`` and four more characters."""

_YES = frozenset(("approve", "approved", "yes", "y", "allow", "ok"))
_NO = frozenset(("deny", "denied", "no", "n", "reject"))
_MAX_INTEGER = 2**53


class DecisionData(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a waiting call, as a data part of a message."""

    decision: Literal["approve", "deny", "edit"]
    approval: str = ""
    digest: str = ""
    message: str = ""
    arguments: dict[str, Any] | None = None
    remember: Literal["once", "session", "always"] = "once"
    pattern: dict[str, str] | None = None


class MessageContent(msgspec.Struct, frozen=True):
    """The text, data and file parts of a message."""

    texts: tuple[str, ...]
    data: tuple[Any, ...]
    attachments: tuple[Attachment, ...] = ()

    @property
    def text(self) -> str:
        """The whole message as text for the agent, with data parts as JSON."""
        return "\n\n".join((*self.texts, *(json.dumps(each, ensure_ascii=False) for each in self.data)))


def content_of(message: Message, types: Sequence[str]) -> MessageContent:
    """Return the content of a message.

    Args:
        message: the message.
        types: the media types of the files that the agent takes.

    Raises:
        ContentTypeNotSupportedError: the message contains a file that cannot be attached, or that the agent does not
            take.
        InvalidParamsError: the message is empty.
    """
    texts, data, files = [], [], []
    for part in message.parts:
        kind = part.WhichOneof("content")
        if kind == "text":
            texts.append(part.text)
        elif kind == "data":
            data.append(_restore_integers(MessageToDict(part.data)))
        elif kind is not None:
            files.append(_file(part, kind, types))
    if not data and not files and not any(text.strip() for text in texts):
        raise InvalidParamsError("the message is empty: send a part with content")
    return MessageContent(tuple(texts), tuple(data), tuple(files))


def _file(part: Part, kind: str, types: Sequence[str]) -> Attachment:
    try:
        if kind == "url" and not part.url.lower().startswith(("http://", "https://")):
            raise TypeError("its URL must begin with https:// or http://")
        source: object = part.url if kind == "url" else part.raw
        found = Attachment.of(source, part.media_type or None, file_name(part.filename) or None, max_size=None)
    except (TypeError, AttachmentError) as error:
        raise ContentTypeNotSupportedError(f"a file of the message is not supported: {error}") from None
    if not accepts(types, found):
        known = f"it takes {', '.join(types)}" if types else "it takes text only"
        raise ContentTypeNotSupportedError(f"this agent does not take {found}: {known}")
    return found


def _restore_integers(value: Any) -> Any:
    """Convert floats with an integer value to integers, because the protocol has floats only."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _MAX_INTEGER else value
    if isinstance(value, list):
        return [_restore_integers(each) for each in value]
    return {key: _restore_integers(each) for key, each in value.items()} if isinstance(value, dict) else value


def correlation_id_of(message: Message) -> str:
    """Return the correlation id in the metadata of a message; empty if it is missing or not acceptable."""
    given = MessageToDict(message.metadata).get("correlation_id")
    return given if isinstance(given, str) and is_correlation_id(given) else ""


class UnclearDecisionError(Exception):
    """The message is not a decision. The text says what to send instead."""


def decision_of(
    content: MessageContent, rows: Sequence[ApprovalRow], *, unambiguous: bool = True
) -> tuple[ApprovalRow, DecisionData]:
    """Return the decision in a message, and the call that it is about.

    Args:
        content: the content of the message.
        rows: the waiting calls.
        unambiguous: whether a plain "yes" can only mean the waiting call, because no other call was decided meanwhile
            without the caller's knowledge.

    Raises:
        UnclearDecisionError: the message is not a decision.
    """
    if not rows:
        raise UnclearDecisionError("The waiting call needs the approval of another person and cannot be decided here.")
    decisions = [each for each in content.data if isinstance(each, Mapping) and "decision" in each]
    if len(decisions) > 1:
        raise UnclearDecisionError(f"Send one decision per message. {how_to_decide(rows)}")
    if not decisions:
        return _decision_in_text(content, rows, unambiguous)
    try:
        decision = msgspec.convert(decisions[0], DecisionData)
    except msgspec.ValidationError as error:
        raise UnclearDecisionError(f"This is not a valid decision: {error}. {how_to_decide(rows)}") from None
    found = [row for row in rows if row.id == decision.approval or not decision.approval]
    if len(found) != 1:
        raise UnclearDecisionError(f"No such call waits, or more than one: give its id. {how_to_decide(rows)}")
    if not decision.digest:
        raise UnclearDecisionError(f"Give the digest of the call that you saw. {how_to_decide(rows)}")
    return found[0], decision


def _decision_in_text(
    content: MessageContent, rows: Sequence[ApprovalRow], unambiguous: bool
) -> tuple[ApprovalRow, DecisionData]:
    first, _, rest = content.text.strip().partition(" ")
    verb = first.strip(".,:;!").lower()
    name, _, behind = rest.strip().partition(" ")
    name = name.strip(".,:;!")
    named = [row for row in rows if len(name) >= MIN_ID_PREFIX and row.id.startswith(name)]
    if len(named) == 1:
        rows, rest = named, behind
    elif verb in _YES | _NO and len(rows) > 1:
        raise UnclearDecisionError(f"{len(rows)} calls wait: say which one you mean. {how_to_decide(rows)}")
    elif verb in _YES | _NO and not unambiguous:
        raise UnclearDecisionError(
            f"Another call was decided or expired meanwhile: give the id of this one. {how_to_decide(rows)}"
        )
    if verb in _YES and not rest.strip():
        return rows[0], DecisionData(decision="approve", digest=rows[0].digest)
    if verb in _NO:
        return rows[0], DecisionData(decision="deny", digest=rows[0].digest, message=rest.strip())
    raise UnclearDecisionError(f"This is not a decision. {how_to_decide(rows)}")


def how_to_decide(rows: Sequence[ApprovalRow]) -> str:
    """Return instructions for deciding about a call."""
    form = {"approval": rows[0].id, "decision": "approve", "digest": rows[0].digest}
    text = f" or the text approve {rows[0].id[: MIN_ID_PREFIX + 4]}, or deny {rows[0].id[: MIN_ID_PREFIX + 4]} and why"
    return f"Send a data part such as {json.dumps(form)} (or deny, or edit with arguments),{text}."
