"""Attachments: images, PDF, audio and other files in messages and in tool results.

An attachment is described by its digest, media type, size and name. Its content is kept beside the value, never in its
JSON form, so that sessions, tapes, records, events and the audit log contain the description only. Types are recognised
by the first bytes with a small table: libraries that do this know hundreds of types that no model accepts, or need a C
library.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self
from weakref import WeakValueDictionary

import msgspec

from .errors import PlainError
from .frozen import Frozen

MAX_SIZE = 20_000_000
"""Default limit for the size of an attachment in bytes. Vendors accept requests of 20 to 50 MB."""

UNKNOWN = "application/octet-stream"
ANY_IMAGE = "image/*"
"""The type of an image at a URL that does not say which kind of image it is."""


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of some bytes in hexadecimal."""
    from hashlib import sha256

    return sha256(data).hexdigest()


_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"%PDF-", "application/pdf"),
    (8, b"WAVE", "audio/wav"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"PK\x03\x04", "application/zip"),
)
_SIGNED = frozenset(kind for _, _, kind in _SIGNATURES if kind != "application/zip")
"""Types whose content must have their signature. Many other formats are ZIP files too."""
_ALIASES = {
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
    "audio/x-flac": "audio/flac",
    "image/jpg": "image/jpeg",
}
_WITHOUT_HEADER = frozenset(("audio/mpeg",))  # an MP3 file may begin with a frame instead of a tag
_TEXTS = frozenset(("application/json", "application/xml", "application/yaml", "application/toml", "application/x-sh"))


class AttachmentError(PlainError, ValueError):
    """A file cannot be attached, or the content of an attachment is not available. The message says what to do."""


class Content:
    """The bytes of attachments with one digest: in memory, or read when they are first used."""

    __slots__ = ("__weakref__", "_data", "_read", "digest")

    def __init__(self, digest: str, data: bytes | None = None, read: Callable[[], bytes] | None = None) -> None:
        self.digest, self._data, self._read = digest, data, read
        _contents[digest] = self

    def bytes(self) -> bytes:
        """Return the bytes.

        Raises:
            OSError: they cannot be read.
            ValueError: they do not have this digest.
        """
        if self._data is None:
            assert self._read is not None  # it has data or a function that reads it
            data = self._read()
            if sha256_of(data) != self.digest:
                raise ValueError("its stored content was changed")
            self._data = data
        return self._data


_contents: WeakValueDictionary[str, Content] = WeakValueDictionary()
"""The known contents by digest. Attachments keep theirs alive, so a copy or a decoded attachment finds it again."""


class Attachment(Frozen, frozen=True, dict=True, gc=True):
    """An image, a PDF, audio or another file in a message or in a tool result.

    Make one with :meth:`of`. ``digest`` is the SHA-256 of the content; for a URL that was not fetched it is the digest
    of the URL, and ``size`` is 0. The JSON form contains these fields and not the content.

    Example::

        photo = Attachment.of("photo.jpg")
        result = agent.run("What is in this picture?", attachments=[photo])
        print(photo.media_type, photo.size, photo.digest)
    """

    media_type: str
    digest: str
    size: int = 0
    name: str = ""
    url: str = ""

    def __post_init__(self) -> None:
        content = _contents.get(self.digest)
        if content is not None:
            vars(self)["_content"] = content

    @classmethod
    def of(
        cls, value: object, media_type: str | None = None, name: str | None = None, max_size: int | None = MAX_SIZE
    ) -> Self:
        """Make an attachment of a file, of bytes, or of a URL.

        A file is read here, once. So the digest that a guard or an approver saw is that of the content that is sent,
        even if the file changes in the meantime. A URL (``http:`` or ``https:``) is not read: the vendor's server
        fetches it.

        Args:
            value: a path, bytes, a URL, an attachment, or a mapping of its fields.
            media_type: the type, such as ``image/png``; if omitted, found from the first bytes and the name.
            name: the file name for the model and for people; by default that of the path or URL.
            max_size: maximum size in bytes; ``None`` for no limit.

        Raises:
            AttachmentError: the file cannot be read, is empty or too large, or its content is not of this type.
            TypeError: the value is of another type.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return cls._of_bytes(bytes(value), media_type, name or "", max_size)
        if isinstance(value, str) and value[:8].lower().startswith(("http://", "https://")):
            return cls._of_url(value, media_type, name)
        if isinstance(value, (str, os.PathLike)):
            path = os.fspath(value)
            if not isinstance(path, str):
                raise TypeError(f"an attachment takes a path as text, not {path!r:.80}")
            shown = os.path.basename(path) if name is None else name
            return cls._of_bytes(_read_file(path, max_size), media_type, shown, max_size)
        if isinstance(value, Mapping):
            return super().of(value)
        raise TypeError(f"an attachment is a path, bytes, a URL or an Attachment, not {type(value).__name__}")

    @classmethod
    def _of_bytes(cls, data: bytes, media_type: str | None, name: str, max_size: int | None) -> Self:
        shown = repr(name) if name else "the attachment"
        if not data:
            raise AttachmentError(f"{shown} is empty: attach a file with content")
        check_size(len(data), shown, max_size)
        kind = _media_type(data, media_type, name, shown)
        content = Content(sha256_of(data), data)
        made = cls(kind, content.digest, len(data), name)
        vars(made)["_content"] = content
        return made

    @classmethod
    def _of_url(cls, url: str, media_type: str | None, name: str | None) -> Self:
        from urllib.parse import unquote, urlsplit

        try:
            parts = urlsplit(url)
            if not parts.hostname or parts.username is not None or any(c.isspace() or ord(c) < 32 for c in url):
                raise ValueError("it needs a host, and no user name or spaces")
        except ValueError as error:
            raise AttachmentError(f"{url!r:.200} is not a URL that can be attached: {error}") from None
        found = os.path.basename(unquote(parts.path)) if name is None else name
        kind = _normal(media_type) if media_type else _guess(found)
        if not kind:
            raise AttachmentError(f"the type of {url!r:.200} is unknown: give media_type=, such as 'image/png'")
        return cls(kind, sha256_of(url.encode()), 0, found, url)

    @property
    def data(self) -> bytes:
        """The content.

        Raises:
            AttachmentError: it is not available: the attachment is a URL, or the stored file is missing or changed.
        """
        content: Content | None = self.__dict__.get("_content") or _contents.get(self.digest)
        if content is None:
            if self.url:
                raise AttachmentError(f"the content of {self.url} was not fetched: download it, and attach the file")
            raise AttachmentError(f"the content of {self} (SHA-256 {self.digest}) is not stored here: attach it again")
        try:
            return content.bytes()
        except FileNotFoundError:
            raise AttachmentError(
                f"the content of {self} (SHA-256 {self.digest}) was deleted from its store: attach it again"
            ) from None
        except (OSError, ValueError) as error:
            raise AttachmentError(f"the content of {self} cannot be used: {error}. Attach it again") from error

    @property
    def is_text(self) -> bool:
        """Whether the content is text, which every model accepts."""
        return is_text_type(self.media_type)

    def __str__(self) -> str:
        """Describe the attachment in words: ``photo.jpg (image/jpeg, 120 kB)``."""
        size = f", {size_text(self.size)}" if self.size else ""
        return f"{self.name or 'an attachment'} ({self.media_type}{size})"

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        content: Content | None = self.__dict__.get("_content")
        try:
            data = None if content is None else content.bytes()
        except (OSError, ValueError):
            data = None  # the copy says so when it is used
        return _restored, (msgspec.structs.astuple(self), data)


def _restored(fields: tuple[Any, ...], data: bytes | None) -> Attachment:
    content = None if data is None else Content(fields[1], data)
    made = Attachment(*fields)
    if content is not None:
        vars(made)["_content"] = content
    return made


def check_size(size: int, shown: str, max_size: int | None) -> None:
    """Check the size of an attachment.

    Raises:
        AttachmentError: it is too large.
    """
    if max_size is not None and size > max_size:
        raise AttachmentError(
            f"{shown} has {size_text(size)}, but the limit for an attachment is {size_text(max_size)}: "
            "attach a smaller file, or raise the limit"
        )


def attachments_of(given: object, max_size: int | None = MAX_SIZE) -> tuple[Attachment, ...]:
    """Return the attachments in a list of attachments, paths, bytes or URLs.

    Raises:
        TypeError: it is not a list, or contains something else.
        AttachmentError: one of them cannot be attached, or is too large.
    """
    if isinstance(given, (str, bytes, os.PathLike, Attachment, Mapping)) or not isinstance(given, Iterable):
        raise TypeError(f"attachments= takes a list such as [Attachment.of('photo.jpg')], not {type(given).__name__}")
    found = tuple(Attachment.of(each, max_size=max_size) for each in given)
    for each in found:
        check_size(each.size, str(each), max_size)
    return found


def size_text(size: int) -> str:
    """Return a size for people: ``120 kB``."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


def is_text_type(media_type: str) -> bool:
    """Return whether a media type stands for text."""
    return media_type.startswith("text/") or media_type in _TEXTS or media_type.endswith(("+json", "+xml"))


def _read_file(path: str, max_size: int | None) -> bytes:
    try:
        with open(path, "rb", opener=_open_quickly) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise AttachmentError(f"{path!r} is not a regular file, so it cannot be attached")
            check_size(about.st_size, repr(path), max_size)
            return file.read() if max_size is None else file.read(max_size + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, AttachmentError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise AttachmentError(f"{path!r} cannot be attached: {reason}") from error


def _open_quickly(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a named pipe without a writer must not block


def _media_type(data: bytes, given: str | None, name: str, shown: str) -> str:
    """Return the type of some bytes. A type that the first bytes contradict is rejected: guards rely on it."""
    signed = next((kind for at, start, kind in _SIGNATURES if data.startswith(start, at)), "")
    claimed = _normal(given) if given else _guess(name)
    if given:
        missing = claimed in _SIGNED and claimed not in _WITHOUT_HEADER and signed != claimed
        if missing or (signed in _SIGNED and not _agree(signed, claimed)):
            really = f"is {signed}" if signed else "does not begin like such a file"
            raise AttachmentError(f"{shown} was given as {claimed}, but its content {really}: correct media_type=")
        return claimed
    if signed in _SIGNED:
        return claimed if _agree(signed, claimed) else signed
    if claimed in _SIGNED and claimed not in _WITHOUT_HEADER:
        claimed = ""  # the name is wrong
    if claimed:
        return claimed
    if b"\0" not in data:
        try:
            data.decode()
        except UnicodeDecodeError:
            return signed or UNKNOWN
        return "text/plain"
    return signed or UNKNOWN


def _agree(signed: str, claimed: str) -> bool:
    """Whether content with this signature may have the claimed type: some formats share a container."""
    return signed == claimed or (signed == "audio/ogg" and claimed in ("video/ogg", "application/ogg"))


def _guess(name: str) -> str:
    from mimetypes import guess_type

    if not name:
        return ""
    kind, encoding = guess_type(f"x{os.path.splitext(name)[1]}")
    return _ALIASES.get(kind, kind) if kind and not encoding else ""


def _normal(media_type: str) -> str:
    """Return a media type in lower case and without parameters.

    Raises:
        AttachmentError: it is not a media type.
    """
    kind = media_type.partition(";")[0].strip().lower()
    family, slash, form = kind.partition("/")
    if not (slash and family and form) or not kind.isascii() or not kind.isprintable() or " " in kind or "/" in form:
        raise AttachmentError(f"{media_type!r:.80} is not a media type: use one such as image/png")
    return _ALIASES.get(kind, kind)


def file_part(part: Any, path: str) -> Attachment | None:
    """Return the attachment in a part of a message in OpenAI's format; ``None`` if it is not a part with a file.

    Raises:
        TypeError: the part is malformed.
        AttachmentError: its content cannot be attached.
    """
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("image_url", "input_audio", "file"):
        return None
    value = part.get(kind)
    if kind == "image_url" and isinstance(value, str):
        value = {"url": value}
    if not isinstance(value, Mapping):
        raise TypeError(f"{path}.{kind}: expected a mapping, got {type(value).__name__}")
    name = value.get("filename")
    if kind == "input_audio":
        return attachment_of_base64(value.get("data"), f"audio/{value.get('format')}", None, f"{path}.{kind}.data")
    key = "url" if kind == "image_url" else "file_data"
    source = value.get(key)
    if not isinstance(source, str):
        raise TypeError(f"{path}.{kind}.{key}: expected text, got {type(source).__name__}")
    if not source.startswith("data:"):
        if kind == "image_url" and source.startswith(("http://", "https://")):
            return Attachment.of(source, _image_type(source))
        raise TypeError(f"{path}.{kind}.{key}: expected a URL that begins with data:, or https: for an image")
    header, comma, data = source[5:].partition(",")
    if not comma or not header.endswith(";base64"):
        raise TypeError(f"{path}.{kind}.{key}: expected data:TYPE;base64,DATA")
    return attachment_of_base64(data, header.removesuffix(";base64"), name, f"{path}.{kind}.{key}")


def attachment_of_base64(
    data: Any, media_type: str | None, name: Any, path: str, max_size: int | None = MAX_SIZE
) -> Attachment:
    """Return the attachment in a text in Base64; ``path`` says in error messages where it comes from.

    Raises:
        TypeError: it is not Base64, or the name is not text.
        AttachmentError: the content cannot be attached.
    """
    from base64 import b64decode

    if not isinstance(data, str):
        raise TypeError(f"{path}: expected text in Base64, got {type(data).__name__}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{path}: the file name must be text, not {type(name).__name__}")
    check_size(len(data) * 3 // 4, name or "the attachment", None if max_size is None else max_size + 2)
    try:
        content = b64decode(data, validate=True)
    except ValueError:
        raise TypeError(f"{path}: expected text in Base64") from None
    return Attachment.of(content, media_type or None, file_name(name or ""), max_size)


def file_name(name: str) -> str:
    """Return the last part of a file name from outside, as one line of at most 200 characters."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in last if c.isprintable())[:200]


def _image_type(url: str) -> str:
    """Return the type of an image at a URL by the end of its path; ``image/*`` if it is unknown."""
    kind = _guess(url.partition("?")[0].partition("#")[0])
    return kind if kind.startswith("image/") else ANY_IMAGE


def known_content(digest: str, read: Callable[[], bytes]) -> Content:
    """Return the content with a digest: the known one, or one that is read when needed."""
    return _contents.get(digest) or Content(digest, read=read)


def is_digest(text: str) -> bool:
    """Return whether a text is a SHA-256 digest in hexadecimal, and so can be a file name."""
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)
