"""Other readings of a text: what it says once its disguise is taken off."""

from __future__ import annotations

import binascii
import html
import re
from base64 import b32decode, b64decode
from collections.abc import Collection, Iterator
from unicodedata import normalize
from urllib.parse import unquote_to_bytes

from .control_tokens import visible
from .rule import starts_of

LONGEST = 8_000
"""How much of one encoded piece is decoded."""
MOST = 24
"""How many encoded pieces of each kind are decoded."""

_LOOKALIKES = str.maketrans(
    "авезікмнорстухѕјԁɡһӏոսвαβεικνορτυχγηɑıᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ",
    "abeeikmhopctyxsjdghlnubabeiknoptuxynaiabcdefghijklmnoprstuvwyz",
) | {
    first + offset: chr(97 + offset)
    for first in (0x1F130, 0x1F150, 0x1F170, 0x1F1E6)  # letters in boxes, circles and flags
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
_LONG = 20
_NUMBERS = re.compile(r"[0-9\\%]{2}|[0-9a-fA-F\\%]{8}")  # in the first characters of the words
_TAGS = re.compile("[\U000e0020-\U000e007e]{10,}")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{8,}")


def folded(text: str) -> str:
    """A text in which case, forms of characters, accents and unseen characters do not matter."""
    text = visible(text)
    if text.isascii():
        return text.lower().replace("a.i.", "ai")
    text = normalize("NFKC", text).casefold()
    return normalize("NFC", _MARKS.sub("", normalize("NFD", text))).replace("a.i.", "ai")


def spellings(text: str, telling: frozenset[str], words: Collection[str]) -> Iterator[str]:
    """Other ways to read a folded text: letters of other alphabets, digits for letters, letters set apart.

    Args:
        text: the folded text.
        telling: beginnings of words; digits are read as letters only if that makes a word which begins so.
        words: its words.
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
            if not telling.isdisjoint(starts_of(respelt.values()) - starts_of(mixed)):
                yield _WORD.sub(lambda word, respelt=respelt: respelt.get(word[0], word[0]), text)  # type: ignore[misc]
    if "\1\1\1\1" in "".join(map(chr, map(len, words))) and _SPACED.search(text):
        yield _SPACED.sub(lambda run: _SEPARATORS.sub("", run[0]), text)


def smuggled(text: str) -> Iterator[str]:
    """What a text holds in characters that nobody sees."""
    if text.isascii() or max(text) < "\ufe00":
        return
    for run in _some(_TAGS, text):
        yield "".join(chr(ord(character) - 0xE0000) for character in run)
    for run in _some(_SELECTORS, text):
        codes = map(ord, run)
        told = _told(bytes(code - 0xFE00 if code < 0xE0000 else code - 0xE0100 + 16 for code in codes))
        if told:
            yield told


def decoded(text: str) -> Iterator[str]:
    """What the encoded pieces of a text say: base64, base32, hex, bits, numbers, escapes, entities."""
    if "&" in text and (plain := html.unescape(text[:LONGEST])) != text[:LONGEST]:
        yield plain
    if "\\" in text and _ESCAPED.search(text):
        yield _ESCAPED.sub(lambda found: chr(int(found[1] or found[2], 16)), text[:LONGEST])
    if text.count("%") > 8:
        yield unquote_to_bytes(text[:LONGEST]).decode(errors="replace")
    words = text.split()
    long = [word for word in words if len(word) >= _LONG]
    numbers = _NUMBERS.search("".join([word[0] for word in words]))
    for pattern, decode in _DECODERS:
        if not (numbers and decode in _OF_NUMBERS) and not any(map(pattern.search, long)):
            continue
        for run in _some(pattern, text):
            try:
                told = _told(decode(run))
            except (ValueError, binascii.Error):
                continue
            if told:
                yield told


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
_OF_NUMBERS = (_hex, _bits, _decimals)  # may stand in a row, as words of their own


def _some(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    for count, found in enumerate(pattern.finditer(text)):
        if count == MOST:
            return
        yield found[0][:LONGEST]


def _told(data: bytes) -> str:
    """Decoded bytes as text; empty if they are none."""
    text = data.decode("utf-8", "replace")
    if "\x00" in text[1::2]:
        text = data.decode("utf-16-le", "replace")
    readable = sum(character.isalnum() or character.isspace() or character in ",.:;!?'\"-_/@()" for character in text)
    return text if text and readable >= 0.85 * len(text) else ""
