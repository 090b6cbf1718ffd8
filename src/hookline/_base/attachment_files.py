"""The contents of attachments in folders: one file for each, named by its digest, which only its owner may read.

A module of its own, because the kernel uses attachments and does not depend on files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .attachment import Attachment, AttachmentError, Content, is_digest, known_content
from .files import replace_file

ATTACHMENTS_SUFFIX = ".attachments"
"""The end of the path of the folder, beside a tape, with the contents of its attachments."""

_writing = threading.Lock()


def save_contents(folder: str | os.PathLike[str], attachments: Iterable[Attachment]) -> None:
    """Save the contents of attachments in a folder, each in a file named by its digest that only its owner may read.

    Contents that the folder has, URLs, and contents that are not available are skipped.

    Raises:
        OSError: a file cannot be written.
    """
    for each in attachments:
        path = Path(folder) / each.digest
        with _writing:
            if not is_digest(each.digest) or path.exists() or (data := available_data(each)) is None:
                continue
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, data, 0o600)


def available_data(attachment: Attachment) -> bytes | None:
    """Return the content of an attachment to save it; ``None`` if there is none: a URL, or a file that is missing."""
    try:
        return None if attachment.url else attachment.data
    except AttachmentError:
        return None


def folder_contents(folder: str | os.PathLike[str]) -> list[Content]:
    """Return the contents that :func:`save_contents` saved in a folder, to be read when needed.

    Attachments that are decoded while the list exists find their content in it.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [known_content(name, (Path(folder) / name).read_bytes) for name in names if is_digest(name)]


def remove_contents(folder: str | os.PathLike[str], keep: Iterable[str] = ()) -> None:
    """Delete the contents that :func:`save_contents` saved in a folder, except those with the digests in ``keep``.

    The folder is deleted too if it is empty then.

    Raises:
        OSError: a file cannot be deleted.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    kept = frozenset(keep)
    for name in names:
        if is_digest(name) and name not in kept:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
    with suppress(OSError):  # it is not empty
        os.rmdir(folder)
