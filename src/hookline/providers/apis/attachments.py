"""Attachments in the vendors' APIs."""

from __future__ import annotations

from base64 import b64encode

from ..._base.attachment import ANY_IMAGE, Attachment, AttachmentError
from ..._kernel.values import Message
from ...models.attachments import DOWNLOAD
from ...models.errors import BadRequestError

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The images that all vendors take."""

PDF = "application/pdf"


def base64_of(attachment: Attachment) -> str:
    """Return the content in Base64.

    Raises:
        BadRequestError: the content is not available.
    """
    return b64encode(data_of(attachment)).decode()


def data_of(attachment: Attachment) -> bytes:
    """Return the content.

    Raises:
        BadRequestError: the content is not available.
    """
    try:
        return attachment.data
    except AttachmentError as error:
        raise BadRequestError(f"nothing was sent to the model: {error}") from error


def data_url(attachment: Attachment) -> str:
    """Return a URL with the content, or the URL of the attachment, which the vendor's server fetches."""
    return attachment.url or f"data:{attachment.media_type};base64,{base64_of(attachment)}"


def file_text(attachment: Attachment) -> str:
    """Return a text file as a text with its name."""
    name = attachment.name or "attachment"
    return f"File {name}:\n{data_of(attachment).decode(errors='replace')}"


def file_name(attachment: Attachment) -> str:
    """Return a file name, which some APIs require."""
    return attachment.name or f"attachment.{attachment.media_type.rpartition('/')[2]}"


def is_image(attachment: Attachment) -> bool:
    """Return whether an attachment is an image that vendors take. An SVG file is sent as text."""
    return attachment.media_type in IMAGES or attachment.media_type == ANY_IMAGE


def about_result(message: Message) -> str:
    """Return a text before the attachments of a tool result, for an API whose results are text."""
    return f"Attachments of the result of {message.name or 'the tool'} (call {message.call_id}):"


def unsupported(attachment: Attachment, api: str) -> BadRequestError:
    """Return the error for an attachment that an API does not take."""
    if attachment.url:  # such as a type that a program told the model to take
        return BadRequestError(f"{api} does not take {attachment} at a URL. Nothing was sent. {DOWNLOAD}")
    return BadRequestError(f"{api} does not take {attachment}. Nothing was sent")
