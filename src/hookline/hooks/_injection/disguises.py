"""Other readings of a text: normalised characters, undone respellings, decoded and invisible passages."""

from __future__ import annotations

import binascii
import html
import re
from base64 import b32decode, b64decode
from collections.abc import Collection, Iterable, Iterator
from unicodedata import normalize
from urllib.parse import unquote_to_bytes

from .control_tokens import visible

MAX_LENGTH = 8_000
"""Maximum number of characters of one encoded passage that are decoded."""
MAX_PASSAGES = 24
"""Maximum number of encoded passages of each encoding that are decoded."""

_LOOKALIKES = str.maketrans(
    "авезікмнорстухѕјԁɡһӏոսвαβεικνορτυχγηɑıᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ",
    "abeeikmhopctyxsjdghlnubabeiknoptuxynaiabcdefghijklmnoprstuvwyz",
) | {
    first + offset: chr(97 + offset)
    for first in (0x1F130, 0x1F150, 0x1F170, 0x1F1E6)  # letters in squares, circles and flags
    for offset in range(26)
}
_MARKS = re.compile("[\u0300-\u036f]+")
_LEET = [str.maketrans("0134579@$!|", f"o{one}east9as{one}l") for one in "il"]
_MIXED = re.compile(r"[a-z][0-9@$!|]|[0-9@$!|][a-z]")
_SIGNS = re.compile(r"[@$!|](?=[a-z])|(?<=[a-z])[@$|]")
_WORD = re.compile(r"[\w@$!|]+")
_SPACED = re.compile(r"(?<!\w)(?:\w[ .\-_*|/·~+]){3,200}\w(?!\w)")
_SEPARATORS = re.compile(r"[ .\-_*|/·~+]")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{20,}(?:\r?\n[A-Za-z0-9+/_-]{20,}){0,100}(?:\r?\n[A-Za-z0-9+/_-]{1,80})?={0,2}")
_BASE32 = re.compile(r"[A-Z2-7]{32,}={0,6}")
_HEX = re.compile(r"(?:(?:0x|\\x|%)?[0-9a-fA-F]{2}[ ,:\-]?){12,}")
_BITS = re.compile(r"(?:[01]{8}[ ,]?){8,}")
_DECIMALS = re.compile(r"(?:\b(?:3[2-9]|[4-9]\d|1[01]\d|12[0-6])\b[ ,]{1,2}){10,}")
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})")
_LONG = 20  # characters of a word that may be encoded
_NUMBERS = re.compile(r"[0-9\\%]{2}|[0-9a-fA-F\\%]{8}")  # among the first characters of all words
_LENGTHS = (7, 5, 4, 3, 2)
_TAGS = re.compile("[\U000e0020-\U000e007e]{10,}")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{8,}")


def folded(text: str) -> str:
    """Normalise a text: lower case, compatible characters, no accents, no invisible characters."""
    text = visible(text)
    if text.isascii():
        return text.lower().replace("a.i.", "ai")
    text = normalize("NFKC", text).casefold()
    return normalize("NFC", _MARKS.sub("", normalize("NFD", text))).replace("a.i.", "ai")


def word_starts(words: Iterable[str]) -> set[str]:
    """Return the prefixes of words, in a few lengths."""
    different = set(words)
    return set().union(*([word[:length] for word in different] for length in _LENGTHS))


def spellings(text: str, prefixes: frozenset[str], words: Collection[str]) -> Iterator[str]:
    """Yield readings of a folded text with look-alike letters, leetspeak or spaced letters undone.

    Args:
        text: the folded text.
        prefixes: prefixes of words; digits are read as letters only if a word with such a prefix results.
        words: the words of the text.
    """
    if not text.isascii() and (latin := text.translate(_LOOKALIKES)) != text:
        yield latin
        if _MIXED.search(latin):
            text, words = latin, _WORD.findall(latin)
    signs = any(sign in text for sign in "@$!|") and _SIGNS.search(text)
    if signs or not all(word.isalpha() or word.isdigit() for word in set(words)):
        mixed = {word for word in _WORD.findall(text) if not word.isalpha() and _MIXED.search(word)}
        for table in _LEET:
            respelt = {word: word.translate(table) for word in mixed}
            if not prefixes.isdisjoint(word_starts(respelt.values()) - word_starts(mixed)):
                yield _WORD.sub(lambda word, respelt=respelt: respelt.get(word[0], word[0]), text)  # type: ignore[misc]
    if "\1\1\1\1" in "".join(map(chr, map(len, words))) and _SPACED.search(text):
        yield _SPACED.sub(lambda run: _SEPARATORS.sub("", run[0]), text)


def smuggled(text: str) -> Iterator[str]:
    """Yield the texts that are encoded in invisible characters (Unicode tags, variation selectors)."""
    if text.isascii() or max(text) < "\ufe00":
        return
    for run in _passages(_TAGS, text):
        yield "".join(chr(ord(character) - 0xE0000) for character in run)
    for run in _passages(_SELECTORS, text):
        codes = map(ord, run)
        plain = _as_text(bytes(code - 0xFE00 if code < 0xE0000 else code - 0xE0100 + 16 for code in codes))
        if plain:
            yield plain


def decoded(text: str) -> Iterator[str]:
    """Yield the decoded passages of a text: base64, base32, hex, bits, decimal codes, escapes, HTML entities."""
    if "&" in text and (plain := html.unescape(text[:MAX_LENGTH])) != text[:MAX_LENGTH]:
        yield plain
    if "\\" in text and _ESCAPED.search(text):
        yield _ESCAPED.sub(lambda found: chr(int(found[1] or found[2], 16)), text[:MAX_LENGTH])
    if text.count("%") > 8:
        yield unquote_to_bytes(text[:MAX_LENGTH]).decode(errors="replace")
    words = text.split()
    long = [word for word in words if len(word) >= _LONG]
    numbers = _NUMBERS.search("".join([word[0] for word in words]))
    for pattern, decode in _DECODERS:
        if not (numbers and decode in _OF_NUMBERS) and not any(map(pattern.search, long)):
            continue
        for run in _passages(pattern, text):
            try:
                plain = _as_text(decode(run))
            except (ValueError, binascii.Error):
                continue
            if plain:
                yield plain


def _base64(run: str) -> bytes:
    run = "".join(run.split()).rstrip("=").translate(str.maketrans("-_", "+/"))
    run = run[: len(run) - (len(run) % 4 == 1)]
    return b64decode(run + "=" * (-len(run) % 4))


def _base32(run: str) -> bytes:
    run = run.rstrip("=")
    return b32decode(run + "=" * (-len(run) % 8))


def _hex(run: str) -> bytes:
    return bytes.fromhex("".join(re.findall(r"(?:0x|\\x|%)?([0-9a-fA-F]{2})[ ,:\-]?", run)))


def _bits(run: str) -> bytes:
    return bytes(int(bits, 2) for bits in re.findall("[01]{8}", run))


def _decimals(run: str) -> bytes:
    return bytes(map(int, re.findall(r"\d+", run)))


_DECODERS = ((_BASE64, _base64), (_BASE32, _base32), (_HEX, _hex), (_BITS, _bits), (_DECIMALS, _decimals))
_OF_NUMBERS = (_hex, _bits, _decimals)  # their codes may be separate words


def _passages(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    for count, found in enumerate(pattern.finditer(text)):
        if count == MAX_PASSAGES:
            return
        yield found[0][:MAX_LENGTH]


def _as_text(data: bytes) -> str:
    """Decode bytes; empty if the result is not mostly readable text."""
    text = data.decode("utf-8", "replace")
    if "\x00" in text[1::2]:
        text = data.decode("utf-16-le", "replace")
    readable = sum(character.isalnum() or character.isspace() or character in ",.:;!?'\"-_/@()" for character in text)
    return text if text and readable >= 0.85 * len(text) else ""
