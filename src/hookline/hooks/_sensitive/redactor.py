"""Sensitive values taken out of texts, JSON and streams."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Literal, get_args

from ..._kernel.errors import RegistrationError
from .._support.validation import check_bool
from .credentials import is_secret, name_of_secret
from .detectors import BREAK, KINDS, SensitiveValue, find, kinds_of, last_break
from .lookalikes import Plain

Action = Literal["redact", "mask", "hash", "block"]

ACTIONS: tuple[Action, ...] = get_args(Action)
_CONTEXT = 480
_SHORTEST_KEY = 16
_LONGEST_NUMBER = 10**20
_NUMBERS = ("card", "phone", "iban", "ssn")
_PROCESS_KEY = secrets.token_bytes(32)
_LEAVES_APART = "\x1e"


class Redactor:
    """Finds sensitive values and puts something else in their place. Safe to share between threads.

    ``redact`` puts the kind there (``[email]``), ``mask`` leaves a little to recognise it by (``j***@example.com``,
    ``****1111``), ``hash`` tells equal values from others (``[email:3f2a91]``, under a key that nobody else has), and
    ``block`` is for a hook to act upon; in a text it is the same as ``redact``.

    Args:
        kinds: what to look for, see :data:`KINDS`.
        action: what becomes of a value.
        actions: what becomes of values of one kind.
        extra: further kinds and the expressions that find them, each within one line.
        allow: values that are left alone: the value itself, a domain whose addresses are meant, or an expression for
            all of it.
        key: the key for ``hash``, at least 16 characters, for tags that stay the same after this process.
        private_ips: whether addresses of private networks count as ``ip``.

    Raises:
        RegistrationError: an unknown kind or action, or a value that makes no sense.
    """

    def __init__(
        self,
        kinds: Iterable[str] = KINDS,
        action: Action = "redact",
        *,
        actions: Mapping[str, Action] | None = None,
        extra: Mapping[str, str | re.Pattern[str]] | None = None,
        allow: Iterable[str | re.Pattern[str]] = (),
        key: str | bytes | None = None,
        private_ips: bool = False,
    ) -> None:
        self.kinds, self.extra = kinds_of(kinds), _extra(extra)
        if not self.kinds and not self.extra:
            raise RegistrationError(f"kinds names what to look for: {', '.join(KINDS)}")
        self.actions = self._by_kind(action, actions)
        self._values, self._patterns = _allowed(allow)
        self._key, self.private_ips = _key(key), check_bool(private_ips, "private_ips")

    def acting(self, action: Action, actions: Mapping[str, Action] | None = None) -> Redactor:
        """One that finds the same values, and does something else with them."""
        other = copy(self)
        other.actions = self._by_kind(action, actions)
        return other

    def find(self, text: str) -> list[SensitiveValue]:
        """The sensitive values in a text, without those that are allowed."""
        found = find(text, self.kinds, self.extra, self.private_ips)
        if found and (self._values or self._patterns):
            found = [one for one in found if not self._is_allowed(one.kind, text[one.start : one.end])]
        return found

    def apply(self, text: str) -> str:
        """The text with something else in the place of every sensitive value."""
        return self.clean(text)[0]

    def apply_to(self, value: Any) -> Any:
        """The same for a JSON value: all texts in it, its keys, and numbers that are too long to be only numbers."""
        return self.clean_value(value)[0]

    def stream(self) -> RedactedStream:
        """The same for a text that comes in pieces."""
        return RedactedStream(self)

    def clean(self, text: str) -> tuple[str, frozenset[str]]:
        """The text as :meth:`apply` gives it, and the kinds that were found."""
        found = self.find(text)
        return (self.render(text, found), frozenset(one.kind for one in found)) if found else (text, frozenset())

    def clean_value(self, value: Any) -> tuple[Any, frozenset[str]]:
        """The value as :meth:`apply_to` gives it, and the kinds that were found."""
        if isinstance(value, str):
            return self.clean(value)
        leaves: list[str] = []
        if not self._collect(value, leaves) and not self.find(_LEAVES_APART.join(leaves)):
            return value, frozenset()
        kinds: set[str] = set()
        cleaned = self._walk(value, kinds)
        return (cleaned, frozenset(kinds)) if kinds else (value, frozenset())

    def blocked(self, kinds: Iterable[str]) -> list[str]:
        """Those of these kinds that are to be blocked."""
        return sorted(kind for kind in kinds if self.actions[kind] == "block")

    def render(self, text: str, found: Sequence[SensitiveValue], start: int = 0, end: int | None = None) -> str:
        """A part of the text with something else in the place of the findings in it."""
        parts, at, end = [], start, len(text) if end is None else end
        for one in found:
            if at < one.end and one.start < end:
                parts += [text[at : max(at, one.start)], self._instead(one.kind, text[one.start : one.end])]
                at = one.end
        return "".join([*parts, text[at:end]])

    def _by_kind(self, action: Any, actions: Any) -> dict[str, Action]:
        by_kind: dict[str, Action] = dict.fromkeys((*self.kinds, *self.extra), _action(action, "an action"))
        for kind, special in _mapping(actions, "actions").items():
            if kind not in by_kind:
                raise RegistrationError(f"actions: {kind!r} is not looked for; there are {', '.join(by_kind)}")
            by_kind[kind] = _action(special, f"the action for {kind!r}")
        return by_kind

    def _instead(self, kind: str, value: str) -> str:
        action, plain = self.actions[kind], Plain(value).text
        if action == "mask":
            return _mask(kind, plain)
        return f"[{kind}:{self._tag(kind, plain)}]" if action == "hash" else f"[{kind}]"

    def _tag(self, kind: str, value: str) -> str:
        from hashlib import sha256
        from hmac import digest

        same = "".join(filter(str.isalnum, value)).upper().removeprefix("00") if kind in _NUMBERS else value
        same = same.replace("%40", "@").casefold() if kind == "email" else same
        return digest(self._key, f"{kind}:{same}".encode("utf-8", "surrogatepass"), sha256).hex()[:6]

    def _is_allowed(self, kind: str, value: str) -> bool:
        value = Plain(value).text
        same = value.casefold()
        if same in self._values or any(pattern.fullmatch(value) for pattern in self._patterns):
            return True
        domain = same.replace("%40", "@").rpartition("@")[2] if kind == "email" else ""
        return any(domain == name or domain.endswith(f".{name}") for name in self._values if domain)

    def _collect(self, value: Any, leaves: list[str]) -> bool:
        """Gather the texts in a value; whether one of them is a secret for the name of its field alone."""
        if isinstance(value, str):
            leaves.append(value)
        elif isinstance(value, Mapping):
            leaves.extend(key for key in value if isinstance(key, str))
            found = [self._is_named(key, item) or self._collect(item, leaves) for key, item in value.items()]
            return any(found)
        elif isinstance(value, (list, tuple)):
            found = [self._collect(item, leaves) for item in value]
            return any(found)
        elif _is_long(value):
            leaves.append(str(value))
        return False

    def _is_named(self, field: Any, value: Any) -> bool:
        if "secret" not in self.actions or not isinstance(field, str) or not isinstance(value, str):
            return False
        name = name_of_secret(field)
        return bool(name) and is_secret(name, value) and not self._is_allowed("secret", value)

    def _walk(self, value: Any, kinds: set[str]) -> Any:
        if isinstance(value, Mapping):
            cleaned: dict[Any, Any] = {}
            for key, item in value.items():
                named = self._is_named(key, item)
                kinds.update(("secret",) if named else ())
                cleaned[_fresh(self._walk(key, kinds), cleaned)] = (
                    self._instead("secret", item) if named else self._walk(item, kinds)
                )
            return cleaned
        if isinstance(value, (list, tuple)):
            return [self._walk(item, kinds) for item in value]
        if not isinstance(value, str) and not _is_long(value):
            return value
        text, found = self.clean(str(value))
        kinds |= found
        return text if found else value


class RedactedStream:
    """A text that comes in pieces and is given out without its sensitive values.

    What could still become part of a value is held back, so that the pieces given out are together what
    :meth:`Redactor.apply` makes of the whole text.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._text, self._pieces = "", [""]
        self._shown = self._checked = 0
        self.blocked: list[str] = []
        """The kinds, if a value came that is to be blocked: nothing is given out any more."""

    def feed(self, piece: str) -> str:
        """Take in a piece; what can be given out now."""
        self._pieces.append(piece)
        return self._give() if BREAK.search(piece) else ""

    def finish(self) -> str:
        """What is left when nothing more comes."""
        return self._give(final=True)

    def _give(self, *, final: bool = False) -> str:
        if self.blocked:
            return ""
        text = self._text + "".join(self._pieces)
        self._text, self._pieces = text, []
        plain, start, redactor = Plain(text), self._shown, self._redactor
        cut, place = len(text), len(plain.text)
        if not final:
            place, self._checked = last_break(plain.text, plain.index(start), self._checked, bool(redactor.extra))
            cut = plain.origin(place)
        if cut <= start:
            return ""
        found = [one for one in redactor.find(text) if one.end > start]
        for one in found:
            if one.start < cut < one.end:
                cut, place = max(start, one.start), plain.index(max(start, one.start))
        inside = [one for one in found if one.start < cut]
        self.blocked = redactor.blocked(one.kind for one in inside)
        given = "" if self.blocked else redactor.render(text, inside, start, cut)
        kept = max(0, place - _CONTEXT)
        first = plain.origin(kept) if kept else 0
        self._text, self._shown, self._checked = text[first:], cut - first, max(0, self._checked - kept)
        return given


def _mask(kind: str, value: str) -> str:
    if kind == "email":
        user, _, domain = value.replace("%40", "@").rpartition("@")
        return f"{user[:1]}***@{domain}"
    if kind not in _NUMBERS:
        return f"[{kind}]"
    signs = "".join(filter(str.isalnum, value))
    return "****" + signs[-4 if len(signs) > 8 else -2 :]


def _fresh(key: Any, taken: Mapping[Any, Any]) -> Any:
    """A key that is not taken: two that became equal stay two."""
    name, count = key, 1
    while name in taken:
        count += 1
        name = f"{key} {count}"
    return name


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 10**12 <= value < _LONGEST_NUMBER


def _action(value: Any, name: str) -> Action:
    if value not in ACTIONS:
        raise RegistrationError(f"{name} is one of {', '.join(ACTIONS)}, not {value!r:.80}")
    return value  # type: ignore[no-any-return]


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise RegistrationError(f"{name} is a mapping of kinds, not {value!r:.80}")
    return value or {}


def _extra(extra: Any) -> dict[str, re.Pattern[str]]:
    for kind in _mapping(extra, "extra"):
        if not isinstance(kind, str) or not re.fullmatch(r"[\w-]+", kind) or kind in KINDS:
            raise RegistrationError(
                f"extra: a kind has a name of its own, in letters, digits and '_', not {kind!r:.80}"
            )
    return {kind: _pattern(kind, pattern) for kind, pattern in (extra or {}).items()}


def _pattern(kind: str, pattern: Any) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise RegistrationError(f"extra: {kind!r} needs an expression: {error}") from None
    if not isinstance(compiled.pattern, str) or not compiled.pattern:
        raise RegistrationError(f"extra: {kind!r} needs an expression of text, not {pattern!r:.80}")
    return compiled


def _allowed(allow: Any) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    if isinstance(allow, (str, re.Pattern, Mapping)) or not isinstance(allow, Iterable):
        raise RegistrationError(f"allow is a list of values, domains and expressions: [{allow!r:.80}]")
    entries = tuple(allow)
    for entry in entries:
        is_text = isinstance(entry, str) and bool(entry.strip("@. "))
        if not is_text and not (isinstance(entry, re.Pattern) and isinstance(entry.pattern, str)):
            raise RegistrationError(
                f"allow: an entry is a value, a domain or re.compile(...) of text, not {entry!r:.80}"
            )
    values = frozenset(entry.casefold().lstrip("@") for entry in entries if isinstance(entry, str))
    return values, tuple(entry for entry in entries if isinstance(entry, re.Pattern))


def _key(key: Any) -> bytes:
    if key is None:
        return _PROCESS_KEY
    if not isinstance(key, (str, bytes)) or len(key) < _SHORTEST_KEY:
        raise RegistrationError(f"key is a text or bytes of at least {_SHORTEST_KEY} characters")
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
