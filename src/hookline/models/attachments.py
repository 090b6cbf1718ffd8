"""Check whether a model takes the attachments of a request, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .._base.attachment import ANY_IMAGE, Attachment
from .._kernel.payloads import ModelRequest
from .._kernel.values import Message
from .errors import BadRequestError

ANY_TYPE = ("*/*",)
"""The ``attachment_types`` of a model that takes everything."""

DOWNLOAD = "Download it, and attach the file: its path, or its bytes"
"""What to do if a model does not take an attachment at a URL."""


def check_attachments(model: Any, messages: Iterable[Message]) -> None:
    """Check that a model takes all attachments in these messages, except those of tool results.

    A model without the attribute ``attachment_types`` takes none: it would send the texts and drop the files. The text
    of a tool result names its attachments, and a model that does not take them gets that text: an error would let a
    tool end the run.

    Raises:
        BadRequestError: it does not take one of them, or they are not in a message of a user.
    """
    types: Sequence[str] = getattr(model, "attachment_types", ())
    if types is ANY_TYPE:
        return
    for message in messages:
        if message.attachments and message.role != "tool":
            if message.role != "user":
                raise BadRequestError(
                    f"a message of the role {message.role} cannot have attachments ({message.attachments[0]}): "
                    "put them in a user message. Nothing was sent"
                )
            for each in message.attachments:
                if each.url and accepts(types, each) and not accepts(_url_types(model), each):
                    raise BadRequestError(
                        f"the model {model.name!r} ({model.provider}) does not take {each} at a URL. Nothing was sent. "
                        + DOWNLOAD
                    )
                if not accepts(types, each):
                    known = f"it takes {', '.join(types)}" if types else "it takes text only"
                    raise BadRequestError(
                        f"the model {model.name!r} ({model.provider}) does not take {each}: {known}. "
                        "Nothing was sent. Use another model, or describe the file in words"
                    )


def _url_types(model: Any) -> Sequence[str]:
    """Return the types that a model takes at a URL: all of its types, unless it says otherwise."""
    types: Sequence[str] = getattr(model, "attachment_url_types", model.attachment_types)
    return types


def with_usable_attachments(model: Any, request: ModelRequest) -> ModelRequest:
    """Return a request whose tool results have only attachments that a model takes, and name the others in words."""
    if not any(message.attachments for message in request.messages if message.role == "tool"):
        return request
    return msgspec.structs.replace(request, messages=tuple(_usable(model, message) for message in request.messages))


def _usable(model: Any, message: Message) -> Message:
    if message.role != "tool" or not message.attachments:
        return message
    wrong = [each for each in message.attachments if not accepts(model.attachment_types, each)]
    remote = [
        each for each in message.attachments if each.url and each not in wrong and not accepts(_url_types(model), each)
    ]
    notes = [f"[Not shown, because you cannot read this type: {', '.join(map(str, wrong))}]"] if wrong else []
    notes += [f"[Not shown, because you cannot read URLs: {', '.join(each.url for each in remote)}]"] if remote else []
    if not notes:
        return message
    note, wrong = "\n".join(notes), [*wrong, *remote]
    usable = tuple(each for each in message.attachments if each not in wrong)
    return msgspec.structs.replace(message, content=f"{message.content}\n{note}".strip(), attachments=usable)


def accepts(types: Sequence[str], attachment: Attachment) -> bool:
    """Return whether one of these types, such as ``image/*``, covers an attachment."""
    kind = "text/plain" if attachment.is_text and "text/*" in types else attachment.media_type
    family = kind.partition("/")[0]
    if kind == ANY_IMAGE:  # at a URL; the vendor's server finds out which kind it is
        return any(each.startswith("image/") for each in types)
    return any(each in ("*/*", kind, f"{family}/*") for each in types)
