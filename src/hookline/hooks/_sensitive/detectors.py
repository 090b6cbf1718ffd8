"""Finding sensitive values in text: e-mail addresses, personal numbers and secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from ..._base.frozen import Frozen
from ..._base.text import did_you_mean
from ..._kernel.errors import RegistrationError
from .._support.validation import check_bool, check_names
from .credentials import holds_from, is_open, private_keys_in, secrets_in, url_login
from .lookalikes import NormalizedText
from .numbers import Span, cards_in, check_installed, ibans_in, ips_in, is_open_number, phones_in, shape_of, ssns_in

KINDS = ("secret", "card", "iban", "email", "phone", "ip", "ssn")
"""The kinds of values. Of two findings with the same span, the kind that comes first here is used."""

Extra = Mapping[str, re.Pattern[str]]

_BEFORE_AT = re.compile(r"[A-Za-z0-9À-ɏ._%+'-]{1,64}\Z")
_AT = re.compile(r"@(?=[A-Za-z0-9À-ɏ])")
_DOMAIN = re.compile(
    r"(?:[A-Za-z0-9À-ɏ](?:[A-Za-z0-9À-ɏ-]{0,62})\.){1,8}(?:xn--[a-z0-9-]{2,59}|[A-Za-zÀ-ɏ]{2,24})(?![A-Za-z0-9])"
)
_NO_DOMAIN = re.compile(r"(?i)[1-9]x\.[a-z]{2,4}\Z")
BREAK = re.compile(r"[\s⺀-\U0010ffff]")
"""Characters after which a text may be cut: only quoted values continue after them."""
_TAIL = 320
_PLAIN_WORDS = re.compile(r"(?:[A-Za-z.,;'()!?/_-]{1,19}(?: |\Z))*")
"""Text that cannot contain a value: short words without digits, such as the reasons of hooks."""
_SHORT = 300
_PIECE = 131_072


class SensitiveValue(Frozen, frozen=True):
    """A sensitive value in a text: its kind, start and end, and a more specific label if known."""

    kind: str
    start: int
    end: int
    label: str = ""


def find_sensitive(
    text: str, kinds: Iterable[str] = KINDS, *, extra: Extra | None = None, private_ips: bool = False
) -> list[SensitiveValue]:
    """Find the sensitive values in a text, in order. Of two that overlap, the longer one is used.

    Look-alikes of ASCII characters count as ASCII, and invisible characters are ignored.

    Example:
        >>> find_sensitive("Write to bob@example.com")
        [SensitiveValue(kind='email', start=9, end=24, label='')]

    Args:
        text: any text.
        kinds: the kinds to look for: ``secret``, ``card``, ``iban``, ``email``, ``phone``, ``ip``, ``ssn``.
        extra: further kinds and regular expressions for them, each within one line.
        private_ips: whether addresses of private networks count too.

    Raises:
        RegistrationError: a kind is unknown.
        NotInstalledError: a library for a kind of numbers is missing.
    """
    return find(text, check_kinds(kinds), extra or {}, check_bool(private_ips, "private_ips"))


def check_kinds(kinds: Iterable[str]) -> tuple[str, ...]:
    """Check that kinds exist and their libraries are installed."""
    given = check_names(kinds, "kinds", 0)
    for kind in given:
        if kind not in KINDS:
            raise RegistrationError(
                f"there is no kind {kind!r}.{did_you_mean(kind, KINDS)} There are: {', '.join(KINDS)}"
            )
    check_installed(given)
    return given


def find(text: str, kinds: tuple[str, ...], extra: Extra, private_ips: bool) -> list[SensitiveValue]:
    """Find values like :func:`find_sensitive`, with arguments that are already checked."""
    if len(text) <= _SHORT and not extra and _PLAIN_WORDS.fullmatch(text):
        return []
    plain = NormalizedText(text)
    found = list(_found(plain.text, kinds, private_ips)) if kinds else []
    if extra:
        found += _extra(plain.text, extra)
    if not found:
        return found
    order = {kind: rank for rank, kind in enumerate((*KINDS, *extra))}
    return [
        SensitiveValue(one.kind, plain.origin(one.start), plain.origin(one.end - 1) + 1, one.label)
        for one in _without_overlaps(found, order)
    ]


def _found(text: str, kinds: tuple[str, ...], private_ips: bool) -> Iterator[SensitiveValue]:
    if "secret" in kinds:
        yield from (SensitiveValue("secret", *span) for span in private_keys_in(text))
    start = 0
    while start < len(text):  # in pieces that fit the processor's cache; only private keys span lines
        end = text.find("\n", start + _PIECE) + 1 or len(text)
        piece = text[start:end]
        for kind, (first, last, label) in _in_lines(piece, kinds, private_ips):
            yield SensitiveValue(kind, start + first, start + last, label)
        start = end


def _in_lines(text: str, kinds: tuple[str, ...], private_ips: bool) -> Iterator[tuple[str, Span]]:
    raw = text.encode("latin-1", "replace")
    low, shape = raw.lower(), shape_of(raw)
    if "email" in kinds or "secret" in kinds:
        yield from _at_signs(text, "email" in kinds, "secret" in kinds)
    if "secret" in kinds:
        yield from (("secret", span) for span in secrets_in(text, raw, low))
    if "card" in kinds:
        yield from (("card", span) for span in cards_in(text, shape))
    if "iban" in kinds:
        yield from (("iban", span) for span in ibans_in(text, shape))
    if "phone" in kinds:
        yield from (("phone", span) for span in phones_in(text, low))
    if "ip" in kinds:
        yield from (("ip", span) for span in ips_in(text, private_ips))
    if "ssn" in kinds:
        yield from (("ssn", span) for span in ssns_in(text))


def _extra(text: str, extra: Extra) -> Iterator[SensitiveValue]:
    start = 0
    for line in text.split("\n"):
        for kind, pattern in extra.items():
            for found in pattern.finditer(line):
                if found.end() > found.start():
                    yield SensitiveValue(kind, start + found.start(), start + found.end())
        start += len(line) + 1


def _without_overlaps(found: list[SensitiveValue], order: Mapping[str, int]) -> Iterator[SensitiveValue]:
    """Yield findings that do not overlap: of each overlapping group, the longest one and those beside it."""
    found.sort(key=lambda one: (one.start, one.end))
    group: list[SensitiveValue] = []
    end = -1
    for one in found:
        if one.start >= end and group:
            yield from _longest(group, order)
            group = []
        group.append(one)
        end = max(end, one.end)
    yield from _longest(group, order)


def _longest(group: list[SensitiveValue], order: Mapping[str, int]) -> list[SensitiveValue]:
    if len(group) == 1:
        return group
    kept: list[SensitiveValue] = []
    for one in sorted(group, key=lambda one: (one.start - one.end, order[one.kind], one.start, one.label)):
        if all(one.end <= other.start or other.end <= one.start for other in kept):
            kept.append(one)
    return sorted(kept, key=lambda one: one.start)


def _at_signs(text: str, emails: bool, secrets: bool) -> Iterator[tuple[str, Span]]:
    for found in _AT.finditer(text) if "@" in text else ():
        yield from _around(text, found.start(), found.end(), emails, secrets)
    at = text.find("%40") if emails and "%" in text else -1
    while at >= 0:
        yield from _around(text, at, at + 3, emails, False)
        at = text.find("%40", at + 3)


def _around(text: str, at: int, after: int, emails: bool, secrets: bool) -> Iterator[tuple[str, Span]]:
    """Yield the e-mail address, or the login in a URL, around an ``@``."""
    login = url_login(text, at)
    if login is not None:
        if secrets:
            yield "secret", (*login, "login")
        return
    start = max(0, at - 64, text.rfind("@", max(0, at - 64), at) + 1)
    before = _BEFORE_AT.search(text, start, at) if emails else None
    domain = _DOMAIN.match(text, after) if before else None
    if before is None or domain is None or _NO_DOMAIN.match(domain[0]):
        return
    start = at - len(before[0].lstrip(".'%+-"))
    user = text[start:at]
    if (
        user
        and text[max(0, start - 3) : start] != "://"
        and (user != "git" or text[domain.end() : domain.end() + 1] != ":")
    ):
        yield "email", (start, domain.end(), "")


def last_break(text: str, start: int, checked: int, whole_lines: bool) -> tuple[int, int]:
    """Find the last position at which streamed text can be cut without cutting a value in two.

    Args:
        text: the normalised text so far.
        start: the end of the text that was emitted before.
        checked: the end of the text in which no such position was found before.
        whole_lines: whether to cut only at the ends of lines.

    Returns:
        The position (``start`` if there is none), and the end of the text that was checked.
    """
    key = holds_from(text, start)
    end = len(text) if key is None else key
    for position in range(end, max(start, checked - 1), -1):
        if BREAK.match(text, position - 1) and (not whole_lines or text[position - 1] == "\n"):
            tail = text[max(0, position - _TAIL) : position]
            if not is_open(tail) and not is_open_number(tail, text[position : position + 1]):
                return position, end
    return start, end
