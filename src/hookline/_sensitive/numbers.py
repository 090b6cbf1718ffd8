"""Personal numbers in text: payment cards, bank accounts, telephone numbers, network addresses, US SSNs.

``python-stdnum`` and ``phonenumbers`` decide whether a number is valid. Finding the candidates is our own code: it must
work on text that is still being streamed, without cutting a number in two, and in linear time. The matcher of
``phonenumbers`` does neither, and ``python-stdnum`` has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import chain
from typing import AnyStr

from .._base.errors import NotInstalledError

Span = tuple[int, int, str]
"""The start and end of a number, and its label."""

_AFTER = "(?![0-9A-Za-z]|:[0-9])"

_SHAPE = bytes(
    48 if 48 <= byte < 58 else 45 if byte in b" -_/" else 97 if byte < 128 and chr(byte).isalpha() else 32
    for byte in range(256)
)
_LONG = b"0" * 13
_CARD_SHAPES = (b"0000-0000", b"0000--0000", b"0000---0000", b"0-0-0-0-0-0-0-0")
_DOTTED_CARD = re.compile(r"\.[0-9]{4,6}\.[0-9]{4,5}(?:\.[0-9]{4})?(?![0-9A-Za-z.])")
_LONE_CARD = re.compile(r"(?<![0-9A-Za-z])(?<![0-9]\.)(?<![0-9A-Za-z]-)[2-68][0-9]{12,18}(?![0-9A-Za-z])")
_STRETCH = re.compile("[0-9 _/-]+")
_BEFORE_HIT = 40
_LARGEST_GAP = 3
_MAX_GROUPS = 64  # more small groups are a table
_FIRST_DIGITS = "234568"
DIGIT, _GROUP = re.compile("[0-9]"), re.compile("[0-9]+")
_BRANDS: tuple[tuple[str, re.Pattern[str], frozenset[int]], ...] = (
    ("visa", re.compile("4"), frozenset({13, 16, 19})),
    ("mastercard", re.compile("5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"), frozenset({16})),
    ("amex", re.compile("3[47]"), frozenset({15})),
    ("diners", re.compile("30[0-5]|309|36|38|39"), frozenset({14, 16})),
    ("discover", re.compile("6011|64[4-9]|65"), frozenset({16, 17, 18, 19})),
    ("jcb", re.compile("35(?:2[89]|[3-8])"), frozenset({16, 17, 18, 19})),
    ("unionpay", re.compile("62|81"), frozenset({16, 17, 18, 19})),
    ("maestro", re.compile("5018|5020|5038|5893|6304|6759|676[1-3]"), frozenset({16, 17, 18, 19})),
    ("mir", re.compile("220[0-4]"), frozenset({16, 17, 18, 19})),
)

_LETTER_AND_TEN, _FOURS = b"a0000000000", b"0000-0000"
_IBAN_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}")
_IBAN_REST = re.compile(r"(?:[ -]?+[A-Za-z0-9]){11,30}")
_SHORTEST_IBAN = 15
_IBAN_VALUES = {sign: str(int(sign, 36)) for sign in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"}

_DIALLED = r"(?:[ .\-/()]{0,3}+[0-9])"
_PLUS = re.compile(rf"\+\(?[1-9]{_DIALLED}{{6,16}}{_AFTER}")
_ZEROS = re.compile(rf"00(?<![0-9A-Za-z.,:\-/+_]00)(?<![0-9] 00)[1-9]{_DIALLED}{{8,14}}{_AFTER}")
_BRACKETS = re.compile(rf"\([2-9][0-9]{{2}}\)[ .-]{{0,2}}[0-9]{{3}}[ .-][0-9]{{4}}{_AFTER}")
_DASHES = re.compile(r"-[0-9]{3}-[0-9]{4}(?![0-9A-Za-z_/-])")
_DOTS = re.compile(r"\.[0-9]{3}\.[0-9]{4}(?![0-9A-Za-z_/-])")
_AREA = re.compile(r"(?<![0-9A-Za-z._+/-])(?:1[-. ])?[0-9]{3}\Z")
_TRUNK = re.compile(r"(?<![0-9A-Za-z._+/-])1[-. ]?\Z")
_NAMED = re.compile(
    r"(?i)(?:phone|mobile|fax|tel(?:efon|\.)?)(?:[ _-]?(?:number|num|no|nr)\b\.?)?[\"']?(?: is| at)?"
    rf"[ \t]{{0,2}}[:.#=]?[ \t]{{0,3}}[\"']?(\(?[0-9]{_DIALLED}{{6,13}}){_AFTER}"
)
_SHORTEST_PHONE, _LONGEST_PHONE = 9, 17  # digits with the country code; some countries have more than E.164 allows
_SMALLEST_NATIONAL = 100_000  # smaller numbers are mostly zeros
_NAMES = ("phone", "mobile", "fax", "tel")
_DATE = re.compile(r"(?:19|20)[0-9]{2}[-./ ](?:0?[1-9]|1[0-2])[-./ ]|[0-9]{1,2}[./-][0-9]{1,2}[./-](?:19|20)[0-9]{2}")

_V4 = re.compile(r"\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?![0-9A-Za-z_]|\.[0-9]|-(?![0-9]+\.)\w)")
_V4_HEAD = re.compile(r"(?<![0-9A-Za-z._])[0-9]{1,3}\Z")
_V6 = re.compile(r":(?::|(?:[0-9A-Fa-f]{1,4}:){6})")
_V6_HEAD = re.compile(r"(?<![0-9A-Za-z:._])(?:[0-9A-Fa-f]{1,4}:){0,6}[0-9A-Fa-f]{1,4}\Z")
_V6_WHOLE = re.compile(r"[0-9A-Fa-f:]{4,39}(?:%\w+)?(?![0-9A-Za-z:])")
_VERSION_BEFORE = re.compile(
    r"(?i)(?:version|release|build|firmware|revision|rev|ver|section|chapter|rfc)\b[\"']?[ :=.#v\"']{0,4}\Z"
)
_SSN = re.compile(
    r"[0-9](?<![0-9A-Za-z.-][0-9])[0-9]{2}(?:-[0-9]{2}-|(?<![0-9] [0-9]{3}) [0-9]{2} )[0-9]{4}(?![0-9A-Za-z-]| [0-9])"
)  # with dashes or spaces only, and not within a row of more numbers: nine digits alone are too common

_IN_NUMBERS = "0123456789 .-_/()"  # the end of the text is in it too: "" is part of every text
_BEFORE_NUMBER = re.compile(r"(?s:.*)[^0-9 .\-_/()]")
_SSN_NAMES = ("ssn", "social security")
_NAMED_SSN = re.compile(
    r"(?i)(?:ssn|social security(?: number| no\.?)?)[\"']?(?: is)?[ \t]{0,2}[:#=]?[ \t]{0,3}[\"']?"
    r"([0-9]{9})(?![0-9A-Za-z]|[.-][0-9])"
)
_NUMBER = re.compile(r"( *+)[ .\-_/()]*+[0-9]")
_OPEN_IBAN = re.compile(r"(?i)(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]){0,30}[ -]?\Z")


def check_installed(kinds: Iterable[str]) -> None:
    """Check that the libraries for these kinds are installed. They are imported with the first candidate.

    Raises:
        NotInstalledError: one is missing.
    """
    if "phone" in kinds and find_spec("phonenumbers") is None:
        raise NotInstalledError("phonenumbers", "sensitive")
    if not {"card", "iban", "ssn"}.isdisjoint(kinds) and find_spec("stdnum") is None:
        raise NotInstalledError("python-stdnum", "sensitive")


def open_iban_from(text: str) -> int:
    """Return the start of a bank account that may continue after the text; else the length of the text."""
    found = _OPEN_IBAN.search(text, max(0, len(text) - 80))
    return found.start() if found else len(text)


def start_of_number(text: str, at: int) -> int:
    """Return the start of the digits and separators around ``at``; ``at`` itself if no number can be cut there."""
    if text[at - 1 : at] != " " or text[at : at + 1] not in _IN_NUMBERS:
        return at
    found = _BEFORE_NUMBER.match(text, 0, at)
    digits = _NUMBER.match(text, found.end() if found else 0, at)
    return digits.end(1) if digits else at


def positions(raw: AnyStr, word: AnyStr) -> Iterator[int]:
    """Yield the positions of a word."""
    at = raw.find(word)
    while at >= 0:
        yield at
        at = raw.find(word, at + len(word))


def shape_of(raw: bytes) -> bytes:
    """Classify bytes: ``0`` for digits, ``a`` for letters, ``-`` for separators of groups, else a space."""
    return raw.translate(_SHAPE)


def cards_in(text: str, shape: bytes) -> Iterator[Span]:
    """Yield payment cards: known brand, its length, valid check digit; in one piece, groups of four or equal groups."""
    for at in positions(shape, _LONG):
        lone = _LONE_CARD.match(text, at)
        if lone is not None and (brand := _brand(lone[0])):
            yield *lone.span(), brand
    for pattern in _CARD_SHAPES:
        at = shape.find(pattern)
        while at >= 0:
            end = _STRETCH.match(text, at).end()  # type: ignore[union-attr]
            yield from _cards_between(text, max(0, at - _BEFORE_HIT), end)
            at = shape.find(pattern, end)
    for found in _DOTTED_CARD.finditer(text):
        start = found.start() - 4
        alone = start >= 0 and text[start : start + 4].isdigit() and not _follows(text, start, ".")
        if alone and (brand := _brand(text[start : found.end()].replace(".", ""))):
            yield start, found.end(), brand


def _cards_between(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield the cards in the digits, spaces and dashes before ``end``."""
    before = text[start:end]
    start = end - len(before) + len(before.rstrip("0123456789 -_/"))
    groups = [group.span() for group in _GROUP.finditer(text, start, end)]
    if groups and (_follows(text, groups[0][0]) or _is_part_of_more(text, groups[0][0])):
        groups = groups[1:]
    if groups and groups[-1][1] == end and _is_sign(text[end : end + 1]):
        groups = groups[:-1]
    first = 0
    for index in range(1, len(groups) + 1):
        if index == len(groups) or groups[index][0] - groups[index - 1][1] > _LARGEST_GAP:
            yield from _cards_of(text, groups[first:index])
            first = index


def _is_part_of_more(text: str, start: int) -> bool:
    """Whether the digits are decimals of a number or part of an identifier with letters, such as a UUID."""
    before, sign = text[max(0, start - 2) : start - 1], text[max(0, start - 1) : start]
    return bool(before) and ((sign == "." and before.isdigit()) or (sign == "-" and _is_sign(before)))


def _cards_of(text: str, groups: list[tuple[int, int]]) -> Iterator[Span]:
    index, small = 0, len(groups) <= _MAX_GROUPS
    while index < len(groups):
        first, end = groups[index]
        width, size, step = end - first, end - first, 1
        if text[first] in _FIRST_DIGITS and (width >= 4 or small):
            for number in range(index + 1, len(groups)):
                start, end = groups[number]
                size += end - start
                alike = width >= 4 or groups[number - 1][1] - groups[number - 1][0] == width
                if size > 19 or not alike:
                    break
                if (
                    size >= 13
                    and (end - start <= 4 or width >= 4)
                    and (brand := _brand("".join(filter(str.isdigit, text[first:end]))))
                ):
                    yield first, end, brand
                    step = number - index + 1
                    break
                if end - start < 4 <= width:
                    break
        index += step


def _brand(digits: str) -> str:
    size = len(digits)
    brand = next((name for name, head, sizes in _BRANDS if size in sizes and head.match(digits)), "")
    if not brand or len(set(digits)) == 1:
        return ""
    from stdnum import ean, luhn

    is_card = luhn.is_valid(digits) and not (size == 13 and ean.is_valid(digits))
    return brand if is_card else ""


def ibans_in(text: str, shape: bytes) -> Iterator[Span]:
    """Yield bank accounts whose structure and check digits are valid in their country."""
    heads = chain(
        (
            head
            for at in positions(shape, _LETTER_AND_TEN)
            for head in _IBAN_HEAD.finditer(text, max(0, at - 30), at + 3)
        ),
        (head for at in positions(shape, _FOURS) for head in _IBAN_HEAD.finditer(text, max(0, at - 32), at + 4)),
    )
    done = set[int]()  # the windows overlap
    for head in heads:
        if head.start() in done:
            continue
        done.add(head.start())
        rest = _IBAN_REST.match(text, head.end())
        if rest and (end := _end_of_iban(text, head.start(), rest.end())):
            yield head.start(), end, head[0][:2].upper()


def _end_of_iban(text: str, start: int, end: int) -> int:
    """Return the end of the account that begins at ``start``, in one word or in groups of four; 0 if there is none."""
    from stdnum import iban

    signs, separators = "", set()
    for index in range(start, end):
        if not text[index].isalnum():
            separators.add(text[index])
            if len(signs) % 4 or len(separators) > 1:
                return 0
            continue
        signs += text[index].upper()
        following = text[index + 1 : index + 2]
        if len(signs) < _SHORTEST_IBAN or _is_sign(following):
            continue
        alone = following not in ("-", "_") or not _is_sign(text[index + 2 : index + 3])
        if (
            (alone or following in separators)
            and _has_check_digits(signs)
            and iban.is_valid(signs, check_country=False)
        ):
            return index + 1 if alone else 0
    return 0


def _has_check_digits(signs: str) -> bool:
    """Whether the number modulo 97 is 1. ``python-stdnum`` also checks the structure, in a hundred times the time."""
    return int("".join(_IBAN_VALUES[sign] for sign in signs[4:] + signs[:4])) % 97 == 1


def phones_in(text: str, low: str) -> Iterator[Span]:
    """Yield telephone numbers: with a country code, in North American notation, or after a word such as "phone"."""
    for found in _PLUS.finditer(text) if "+" in text else ():
        if not _follows(text, found.start(), "+"):
            yield from _international(text, found.start(), found.end(), found.start() + 1)
    for found in _ZEROS.finditer(text):
        if not found[0].isdigit():
            yield from _international(text, found.start(), found.end(), found.start() + 2)
    for found in _BRACKETS.finditer(text) if "(" in text else ():
        trunk = _TRUNK.search(text, max(0, found.start() - 4), found.start())
        if trunk or not _follows(text, found.start(), "."):
            yield trunk.start() if trunk else found.start(), found.end(), "us"
    for pattern in (_DASHES, _DOTS):
        for found in pattern.finditer(text):
            area = _AREA.search(text, max(0, found.start() - 6), found.start())
            if area is not None:
                yield area.start(), found.end(), "us"
    for name in _NAMES:
        for at in positions(low, name):
            named = _NAMED.match(text, at)
            if named is not None and not _DATE.match(named[1]) and (name == "phone" or not _follows(text, at)):
                yield *named.span(1), "named"


def _follows(text: str, start: int, signs: str = "") -> bool:
    return start > 0 and (_is_sign(text[start - 1]) or text[start - 1] in signs)


def _is_sign(character: str) -> bool:
    """Whether a character is an ASCII letter or digit. Characters of other scripts end a number."""
    return character.isascii() and character.isalnum()


def _international(text: str, start: int, end: int, code: int) -> Iterator[Span]:
    """Yield the number from ``code`` on, without last groups that make it too long for its country."""
    groups = [group.span() for group in _GROUP.finditer(text, code, end)]
    while groups:
        digits = "".join(text[first:last] for first, last in groups)
        if groups[-1][1] - groups[-1][0] > 1 and _is_phone(digits):
            yield start, groups[-1][1], "international"
            return
        groups.pop()


def _is_phone(digits: str) -> bool:
    """Whether digits with a country code can be a telephone number of that country.

    A possible length is enough for most numbers: redacting too much is better than missing a number of a new range.
    """
    from phonenumbers import NumberParseException, ValidationResult, is_possible_number_with_reason, parse

    if not _SHORTEST_PHONE <= len(digits) <= _LONGEST_PHONE:
        return False
    try:
        number = parse(f"+{digits}")
    except NumberParseException:
        return False
    has_area = (number.national_number or 0) >= _SMALLEST_NATIONAL
    return has_area and is_possible_number_with_reason(number) == ValidationResult.IS_POSSIBLE


def ips_in(text: str, private: bool) -> Iterator[Span]:
    """Yield IP addresses of hosts; those of private networks only with ``private``."""
    for found in _V4.finditer(text):
        head = _V4_HEAD.search(text, max(0, found.start() - 4), found.start())
        parts = text[head.start() : found.end()].split(".") if head else []
        if head and all(int(part) < 256 and (part == "0" or part[0] != "0") for part in parts):
            first, second = int(parts[0]), int(parts[1])
            usable = 0 < first < 224 and first != 127 and not _is_a_version(text, head.start())
            inner = first == 10 or (first, second) in ((192, 168), (169, 254)) or (first == 172 and 16 <= second < 32)
            if usable and (private or not inner):
                yield head.start(), found.end(), "v4"
    done = 0
    for found in _V6.finditer(text):
        head = _V6_HEAD.search(text, max(done, found.start() - 35), found.start())
        whole = _V6_WHOLE.match(text, head.start()) if head else None
        if whole is not None and _is_v6(whole[0], private):
            yield *whole.span(), "v6"
            done = whole.end()


def _is_a_version(text: str, start: int) -> bool:
    before, sign = text[max(0, start - 2) : start - 1], text[start - 1 : start]
    return (
        sign == "§"
        or (sign in ("-", "/") and before.isalpha())
        or (_VERSION_BEFORE.search(text, max(0, start - 24), start) is not None)
    )


def _is_v6(address: str, private: bool) -> bool:
    from ipaddress import IPv6Address

    try:
        value = int(IPv6Address(address.partition("%")[0]))
    except ValueError:
        return False
    return value >> 125 == 1 or (private and (value >> 121 == 0x7E or value >> 118 == 0x3FA))


def ssns_in(text: str, low: str) -> Iterator[Span]:
    """Yield US social security numbers that can have been issued."""
    named = (_NAMED_SSN.match(text, at) for name in _SSN_NAMES for at in positions(low, name))
    for found in chain(_SSN.finditer(text), filter(None, named)):
        from stdnum.us import ssn

        first, last = found.span(found.lastindex or 0)
        digits = "".join(filter(str.isdigit, text[first:last]))
        if ssn.is_valid(f"{digits[:3]}-{digits[3:5]}-{digits[5:]}"):
            yield first, last, "us"
