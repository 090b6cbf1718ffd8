"""Encryption of what has to be stored exactly as it was: journals, tapes, and messages to runs (DESIGN 6.20).

The keys are those of the operator. They come from the environment, so that every door of a program has the same ones:
``HOOKLINE_DATA_KEYS`` has the keys, separated by commas, or ``HOOKLINE_DATA_KEY_FILE`` names a file with one in each
line. The first key writes and all of them read: a new key is put first, and an old one stays as long as its data does.

The recipe is Fernet of the package ``cryptography``: it encrypts, and recognizes changed data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from typing import BinaryIO

from .._base.errors import HooklineError, NotInstalledError
from .._base.own_files import DATA_KEY_FILE

KEYS_VARIABLE, FILE_VARIABLE = "HOOKLINE_DATA_KEYS", DATA_KEY_FILE
_MARK = b"hookline-encrypted:"


class DataKeyError(HooklineError):
    """Stored data is encrypted, and this process has no key for it; or the keys cannot be used."""


class DataKeys:
    """Encrypt with the first key, and decrypt with any of them.

    Args:
        keys: keys that ``hookline db key`` or ``Fernet.generate_key()`` made.

    Raises:
        DataKeyError: a key is not valid.
        NotInstalledError: the package ``cryptography`` is missing.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        try:
            from cryptography.fernet import Fernet, MultiFernet
        except ImportError as error:
            raise NotInstalledError("cryptography", "sign") from error
        try:
            self._fernet = MultiFernet([Fernet(key) for key in keys])
        except ValueError:
            raise DataKeyError("a key for stored data is not valid: make one with hookline db key") from None
        self.ids = tuple(sha256(key.encode()).hexdigest()[:8] for key in keys)
        """Short names of the keys, which messages may show."""

    def encrypt(self, data: bytes) -> bytes:
        """Return encrypted data, which names its key."""
        return b"%b%b:%b" % (_MARK, self.ids[0].encode(), self._fernet.encrypt(data))

    def decrypt(self, token: bytes, what: str) -> bytes:
        """Return the data of :meth:`encrypt`; see :func:`decrypted`."""
        from cryptography.fernet import InvalidToken

        try:
            return self._fernet.decrypt(token)
        except InvalidToken:
            raise DataKeyError(f"{what} is damaged: its key is here, but the encrypted data was changed") from None


def make_key() -> str:
    """Return a new key.

    Raises:
        NotInstalledError: the package ``cryptography`` is missing.
    """
    try:
        from cryptography.fernet import Fernet
    except ImportError as error:
        raise NotInstalledError("cryptography", "sign") from error
    return Fernet.generate_key().decode()


def data_keys(env: Mapping[str, str] = os.environ) -> DataKeys | None:
    """Return the keys of this process, or ``None`` if it has none.

    Raises:
        DataKeyError: a key is not valid, or the file of the keys cannot be read.
        NotInstalledError: the package ``cryptography`` is missing.
    """
    given, path = env.get(KEYS_VARIABLE, ""), env.get(FILE_VARIABLE, "")
    if not given and not path:
        return None
    try:
        changed = os.stat(path).st_mtime_ns if path else 0
    except OSError as error:
        raise DataKeyError(f"{FILE_VARIABLE}: {path} cannot be read ({error.strerror or error})") from None
    return _loaded(given, path, changed)


@lru_cache(maxsize=8)
def _loaded(given: str, path: str, changed: int) -> DataKeys:
    """Return the keys of a variable and a file. ``changed`` is the time of the file."""
    text = given
    if path:
        try:
            with open(path, encoding="ascii") as file:
                text = f"{given},{file.read()}"
        except (OSError, UnicodeDecodeError) as error:
            raise DataKeyError(f"{FILE_VARIABLE}: {path} cannot be read ({error})") from None
    keys = text.replace(",", " ").split()
    if not keys:
        raise DataKeyError(f"{KEYS_VARIABLE if given else path} has no key: make one with hookline db key")
    return DataKeys(keys)


def encrypted(data: bytes) -> bytes:
    """Return data as it is to be stored: encrypted if this process has a key.

    Raises:
        DataKeyError, NotInstalledError: see :func:`data_keys`.
    """
    keys = data_keys()
    return data if keys is None else keys.encrypt(data)


def encrypted_lines(lines: bytes) -> bytes:
    """Return lines as they are to be added to a file: encrypted as one line if this process has a key.

    Raises:
        DataKeyError, NotInstalledError: see :func:`data_keys`.
    """
    keys = data_keys()
    return lines if keys is None or not lines else keys.encrypt(lines) + b"\n"


def open_lines(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file of lines for reading. The lines of an encrypted file are decrypted first.

    Raises:
        DataKeyError: the file is encrypted and this process does not have the key, or the data was changed.
        OSError: the file cannot be read.
    """
    stream = open(path, "rb")  # noqa: SIM115 - the caller closes it
    if stream.read(len(_MARK)) != _MARK:
        stream.seek(0)
        return stream
    with stream:
        stream.seek(0)
        *lines, rest = stream.read().split(b"\n")
    # What was cut off stays an incomplete line.
    return BytesIO(b"".join([decrypted(line, os.fspath(path)) for line in lines]) + (b"?" if rest else b""))


def is_encrypted(data: bytes) -> bool:
    """Whether data was stored by a process with a key."""
    return data.startswith(_MARK)


def decrypted(data: bytes, what: str) -> bytes:
    """Return stored data as it was.

    Args:
        data: the stored data, encrypted or not.
        what: names the data in messages, such as ``the journal of run run_7``.

    Raises:
        DataKeyError: this process does not have the key, or the data was changed.
    """
    if not data.startswith(_MARK):
        return data
    name, _, token = data[len(_MARK) :].partition(b":")
    id, keys = name.decode("ascii", "replace"), data_keys()
    if keys is None or id not in keys.ids:
        raise DataKeyError(
            f"{what} is encrypted with the key {id:.20}, which this process does not have: add it to {KEYS_VARIABLE}, "
            f"or to the file that {FILE_VARIABLE} names. If that key is lost, {what} cannot be read any more"
        )
    return keys.decrypt(token, what)
