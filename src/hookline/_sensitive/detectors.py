"""Finding sensitive values in text: e-mail addresses, personal numbers and secrets."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

from .._base.frozen import Frozen
from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from .._kernel.validation import check_bool, check_names
from .assignments import lower, may_name_a_secret
from .credentials import open_secret_from, private_keys_in, secrets_in, url_login
from .lazy_patterns import lazily
from .lookalikes import NormalizedText
from .numbers import (
    Span,
    cards_in,
    check_installed,
    ibans_in,
    ips_in,
    open_iban_from,
    phones_in,
    shape_of,
    ssns_in,
    start_of_number,
)

KINDS = ("secret", "card", "iban", "email", "phone", "ip", "ssn")
"""The kinds of values. Of two findings with the same span, the kind that comes first here is used."""

Extra = Mapping[str, re.Pattern[str]]

_BEFORE_AT = re.compile(r"[A-Za-z0-9À-ɏ._%+'-]{1,64}\Z")
_AT = re.compile(r"@(?=[A-Za-z0-9À-ɏ])")
_DOMAIN = re.compile(
    r"(?:[A-Za-z0-9À-ɏ](?:[A-Za-z0-9À-ɏ-]{0,62})\.){1,8}(?:xn--[a-z0-9-]{2,59}|[A-Za-zÀ-ɏ]{2,24})(?![A-Za-z0-9])"
)
_NO_DOMAIN = re.compile(r"(?i)[1-9]x\.[a-z]{2,4}\Z")
BREAK = lazily(r"[\s⺀-\U0010ffff]")
"""Characters after which a text may be cut: only quoted values continue after them."""
_LAST_BREAK = lazily(r"(?s:.*)[\s⺀-\U0010ffff]")
_PLAIN = r"(?:[A-Za-z.,;()/_-]|(?<=[A-Za-z])'(?=[A-Za-z])){0,19}+[!?]{0,3}+"
_PLAIN_WORDS = re.compile(rf"(?:{_PLAIN}[ \n])*+{_PLAIN}")
"""Text that cannot contain a value, unless a name of a secret is in it: short words without digits."""
_SHORT = 1000
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
    return find_in(NormalizedText(text), kinds, extra, private_ips)


def find_in(plain: NormalizedText, kinds: tuple[str, ...], extra: Extra, private_ips: bool) -> list[SensitiveValue]:
    """Find values like :func:`find` in a text that is already normalised."""
    text = plain.text
    if len(text) <= _SHORT and not extra and _PLAIN_WORDS.fullmatch(text) and not may_name_a_secret(text.lower()):
        return []
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
    low, shape = lower(text), shape_of(raw)
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
        yield from (("ssn", span) for span in ssns_in(text, low))


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
    kept: list[SensitiveValue] = []  # in the order of the text, so that only the neighbours can overlap
    for one in sorted(group, key=lambda one: (one.start - one.end, order[one.kind], one.start, one.label)):
        at = bisect_left(kept, one.start, key=lambda other: other.start)
        if (at == 0 or kept[at - 1].end <= one.start) and (at == len(kept) or one.end <= kept[at].start):
            kept.insert(at, one)
    return kept


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


def last_break(text: str, start: int, whole_lines: bool) -> int:
    """Find the last position at which streamed text can be cut without cutting a value in two.

    Args:
        text: the normalised text so far.
        start: the end of the text that was emitted before.
        whole_lines: whether to cut only at the ends of lines.

    Returns:
        The position; ``start`` if there is none.
    """
    position = min(open_secret_from(text, start), open_iban_from(text))
    while position > start:
        if whole_lines:
            at = text.rfind("\n", start, position) + 1
        else:
            found = _LAST_BREAK().match(text, start, position)
            at = found.end() if found else 0
        if at <= start:
            break
        position = start_of_number(text, at)
        if position == at:
            return at
    return start
