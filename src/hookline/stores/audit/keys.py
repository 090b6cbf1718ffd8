"""Ed25519 keys in PEM files, for signed audit logs."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._base.errors import NotInstalledError
from ..._base.own_files import OwnFile, register_own_file
from ..errors import StoreError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class Signer:
    """Sign data with a private key; ``key`` is the id of the public key."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self.sign = private.sign
        self.key = _id(private.public_key())


class Verifier:
    """Verify signatures with a public key; ``key`` is its id."""

    def __init__(self, public: Ed25519PublicKey) -> None:
        self._public = public
        self.key = _id(public)

    def is_valid(self, signature: bytes, data: bytes) -> bool:
        """Whether a signature in Base64 belongs to the data."""
        from base64 import b64decode
        from binascii import Error

        from cryptography.exceptions import InvalidSignature

        try:
            self._public.verify(b64decode(signature, validate=True), data)
        except (InvalidSignature, Error, ValueError):
            return False
        return True


def _id(public: Ed25519PublicKey) -> str:
    return sha256(public.public_bytes_raw()).hexdigest()[:16]


def load_signer(path: str | os.PathLike[str]) -> Signer:
    """Load a private key from a PEM file.

    Raises:
        StoreError: the file does not contain a usable key.
        NotInstalledError: the package ``cryptography`` is missing.
    """
    ed25519, serialization = _crypto()
    data = _read(path)
    try:
        private = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{path} does not contain a private key without a password ({error}): "
            "make one with hookline audit keygen FILE"
        ) from None
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise StoreError(f"{path} is not an Ed25519 key: make one with hookline audit keygen FILE")
    signer = Signer(private)
    register_own_file(signer, OwnFile(os.fspath(path), "the key that signs the audit log"))
    return signer


def load_verifier(path: str | os.PathLike[str]) -> Verifier:
    """Load a public key from a PEM file, which may also hold the private key.

    Raises:
        StoreError: the file does not contain a usable key.
        NotInstalledError: the package ``cryptography`` is missing.
    """
    ed25519, serialization = _crypto()
    data = _read(path)
    try:
        if b"PRIVATE KEY" in data:
            public = serialization.load_pem_private_key(data, password=None).public_key()
        else:
            public = serialization.load_pem_public_key(data)
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{path} does not contain a public key ({error}): give the .pub file that hookline audit keygen made"
        ) from None
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise StoreError(f"{path} is not an Ed25519 key: give the .pub file that hookline audit keygen made")
    return Verifier(public)


def make_keys(path: str | os.PathLike[str]) -> tuple[Path, Path, str]:
    """Create a private key at ``path``, readable by its owner only, and the public key beside it (``.pub``).

    Returns:
        Both paths, and the id of the public key.

    Raises:
        StoreError: a file exists already, or cannot be written.
        NotInstalledError: the package ``cryptography`` is missing.
    """
    ed25519, serialization = _crypto()
    private = ed25519.Ed25519PrivateKey.generate()
    private_path, public_path = Path(path), Path(f"{os.fspath(path)}.pub")
    pem, raw = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    plain = serialization.NoEncryption()
    _write(private_path, private.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), 0o600)
    _write(public_path, private.public_key().public_bytes(pem, raw), 0o644)
    return private_path, public_path, _id(private.public_key())


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
    except FileExistsError:
        raise StoreError(f"{path} exists already: give another path, or move the file away") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror or error})") from None


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise StoreError(f"the key {os.fspath(path)!r} cannot be read ({why})") from None


def _crypto() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise NotInstalledError("cryptography", "sign") from None
    return ed25519, serialization
