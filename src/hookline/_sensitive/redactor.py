"""Redactor: replaces sensitive values in texts, JSON values and streams.

No library is used for streaming: libraries for redaction work on complete texts, but a reply must be redacted while it
is shown, with the same result as the redaction of the whole text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Literal, get_args

from .._kernel.errors import RegistrationError
from .._kernel.validation import check_bool
from .assignments import is_secret, name_of_secret
from .credentials import END_OF_KEY
from .detectors import BREAK, KINDS, SensitiveValue, check_kinds, find_in, last_break
from .lookalikes import NormalizedText

Action = Literal["redact", "mask", "hash", "block"]

ACTIONS: tuple[Action, ...] = get_args(Action)
_CONTEXT = 480
_SHORTEST_KEY = 16
_LONGEST_NUMBER = 10**20
_NUMBERS = ("card", "phone", "iban", "ssn")
_PROCESS_KEY = secrets.token_bytes(32)
_LONGEST_END = 80
_END_OF_LINE = re.compile("\n")
_LEAVES_APART = "\x1e"


class Redactor:
    """Finds and replaces sensitive values. It can be shared between threads.

    ``redact`` writes the kind (``[email]``), ``mask`` keeps a recognisable part (``j***@example.com``, ``****1111``),
    and ``hash`` writes a tag that is the same for equal values (``[email:3f2a91]``, made with a secret key). ``block``
    is for hooks; in a text it is the same as ``redact``.

    Example:
        >>> Redactor(["email"]).apply("Write to bob@example.com")
        'Write to [email]'

    Args:
        kinds: the kinds to look for: ``secret``, ``card``, ``iban``, ``email``, ``phone``, ``ip``, ``ssn``.
        action: the replacement of values.
        actions: the replacement of values of single kinds.
        extra: further kinds and regular expressions for them, each within one line.
        allow: values to keep: the value itself, a domain for its e-mail addresses, or a compiled expression for the
            whole value.
        key: the key for ``hash``, at least 16 characters; with it, tags are the same in other processes.
        private_ips: whether addresses of private networks count as ``ip``.

    Raises:
        RegistrationError: a kind or action is unknown, or an argument is invalid.
        NotInstalledError: a library for a kind of numbers is missing.
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
        self.kinds, self.extra = check_kinds(kinds), _extra(extra)
        if not self.kinds and not self.extra:
            raise RegistrationError(f"kinds must name at least one of {', '.join(KINDS)}")
        self.actions = self._by_kind(action, actions)
        self._values, self._patterns = _allowed(allow)
        self._key, self.private_ips = _key(key), check_bool(private_ips, "private_ips")

    def with_actions(self, action: Action, actions: Mapping[str, Action] | None = None) -> Redactor:
        """Return a redactor that finds the same values, with other actions."""
        other = copy(self)
        other.actions = self._by_kind(action, actions)
        return other

    def find(self, text: str) -> list[SensitiveValue]:
        """Find the sensitive values in a text, except allowed ones."""
        return self._find(text, NormalizedText(text))

    def _find(self, text: str, plain: NormalizedText) -> list[SensitiveValue]:
        found = find_in(plain, self.kinds, self.extra, self.private_ips)
        if found and (self._values or self._patterns):
            found = [one for one in found if not self._is_allowed(one.kind, text[one.start : one.end])]
        return found

    def apply(self, text: str) -> str:
        """Replace the sensitive values in a text."""
        return self.clean(text)[0]

    def apply_to(self, value: Any) -> Any:
        """Replace the sensitive values in a JSON value: in its texts, keys, and numbers as long as card numbers."""
        return self.clean_value(value)[0]

    def stream(self) -> RedactedStream:
        """Make a stream that replaces values in a text that comes in pieces."""
        return RedactedStream(self)

    def clean(self, text: str) -> tuple[str, frozenset[str]]:
        """Replace values like :meth:`apply`, and also return the kinds that were found."""
        found = self.find(text)
        return (self.render(text, found), frozenset(one.kind for one in found)) if found else (text, frozenset())

    def clean_value(self, value: Any) -> tuple[Any, frozenset[str]]:
        """Replace values like :meth:`apply_to`, and also return the kinds that were found."""
        if isinstance(value, str):
            return self.clean(value)
        leaves: list[str] = []
        if not self._collect(value, leaves) and not self.find(_LEAVES_APART.join(leaves)):
            return value, frozenset()
        kinds: set[str] = set()
        cleaned = self._walk(value, kinds)
        return (cleaned, frozenset(kinds)) if kinds else (value, frozenset())

    def blocked(self, kinds: Iterable[str]) -> list[str]:
        """Return the kinds among these whose action is ``block``, sorted."""
        return sorted(kind for kind in kinds if self.actions[kind] == "block")

    def render(self, text: str, found: Sequence[SensitiveValue], start: int = 0, end: int | None = None) -> str:
        """Return a part of the text with its findings replaced."""
        parts, at, end = [], start, len(text) if end is None else end
        for one in found:
            if at < one.end and one.start < end:
                parts += [text[at : max(at, one.start)], self.replacement(one.kind, text[one.start : one.end])]
                at = one.end
        return "".join([*parts, text[at:end]])

    def _by_kind(self, action: Any, actions: Any) -> dict[str, Action]:
        by_kind: dict[str, Action] = dict.fromkeys((*self.kinds, *self.extra), _action(action, "an action"))
        for kind, special in _mapping(actions, "actions").items():
            if kind not in by_kind:
                raise RegistrationError(f"actions: {kind!r} is not among the kinds {', '.join(by_kind)}")
            by_kind[kind] = _action(special, f"the action for {kind!r}")
        return by_kind

    def replacement(self, kind: str, value: str) -> str:
        """Return the text that replaces a value of this kind."""
        action, plain = self.actions[kind], NormalizedText(value).text
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
        value = NormalizedText(value).text
        same = value.casefold()
        if same in self._values or any(pattern.fullmatch(value) for pattern in self._patterns):
            return True
        domain = same.replace("%40", "@").rpartition("@")[2] if kind == "email" else ""
        return any(domain == name or domain.endswith(f".{name}") for name in self._values if domain)

    def _collect(self, value: Any, leaves: list[str]) -> bool:
        """Collect the texts in a value. Return whether one of them is a secret because of the name of its field."""
        if isinstance(value, str):
            leaves.append(value)
        elif isinstance(value, Mapping):
            leaves.extend(key for key in value if isinstance(key, str))
            found = [self.is_named_secret(key, item) or self._collect(item, leaves) for key, item in value.items()]
            return any(found)
        elif isinstance(value, (list, tuple)):
            found = [self._collect(item, leaves) for item in value]
            return any(found)
        elif is_long_number(value):
            leaves.append(str(value))
        return False

    def is_named_secret(self, field: Any, value: Any) -> bool:
        """Whether a text is a secret because of the name of its field, such as ``password``."""
        if "secret" not in self.actions or not isinstance(field, str) or not isinstance(value, str):
            return False
        name = name_of_secret(field)
        return bool(name) and is_secret(name, value) and not self._is_allowed("secret", value)

    def _walk(self, value: Any, kinds: set[str]) -> Any:
        if isinstance(value, Mapping):
            cleaned: dict[Any, Any] = {}
            counts: dict[Any, int] = {}
            for key, item in value.items():
                named = self.is_named_secret(key, item)
                kinds.update(("secret",) if named else ())
                cleaned[_fresh(self._walk(key, kinds), cleaned, counts)] = (
                    self.replacement("secret", item) if named else self._walk(item, kinds)
                )
            return cleaned
        if isinstance(value, (list, tuple)):
            return [self._walk(item, kinds) for item in value]
        if not isinstance(value, str) and not is_long_number(value):
            return value
        text, found = self.clean(str(value))
        kinds |= found
        return text if found else value


class RedactedStream:
    """Redacts a text that comes in pieces.

    Text that may still become part of a value is held back, so that the output is the same as :meth:`Redactor.apply`
    of the whole text.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._text, self._pieces = "", [""]
        self._shown = self._held = self._enough = 0
        self._may_cut, self._recent, self._end = False, "", _END_OF_LINE
        self.blocked: list[str] = []
        """The kinds of a value that must be blocked, if one was found. There is no more output then."""

    def feed(self, piece: str) -> str:
        """Add a piece, and return the text that can be shown now."""
        self._pieces.append(piece)
        self._held += len(piece)
        self._may_cut = self._may_cut or BREAK().search(piece) is not None
        if self._held < self._enough:
            self._recent = (self._recent + piece)[-_LONGEST_END - len(piece) :]
            if self._end.search(self._recent) is None:
                return ""
        return self._emit() if self._may_cut else ""

    def finish(self) -> str:
        """Return the rest of the text after the last piece."""
        return self._emit(final=True)

    def _emit(self, *, final: bool = False) -> str:
        if self.blocked:
            return ""
        text = self._text + "".join(self._pieces)
        self._text, self._pieces, self._may_cut = text, [], False
        plain, start, redactor = NormalizedText(text), self._shown, self._redactor
        cut, index = len(text), len(plain.text)
        if not final:
            index = last_break(plain.text, plain.index(start), bool(redactor.extra))
            cut = plain.origin(index)
        found = [one for one in redactor._find(text, plain) if one.end > start] if cut > start else []
        for one in found:
            if one.start < cut < one.end:
                cut, index = max(start, one.start), plain.index(max(start, one.start))
        cut = max(cut, start)
        inside = [one for one in found if one.start < cut]
        self.blocked = redactor.blocked(one.kind for one in inside)
        output = "" if self.blocked else redactor.render(text, inside, start, cut)
        context = plain.text[max(0, index - _CONTEXT) : index]
        self._text, self._shown = context + text[cut:], len(context)
        self._held = len(text) - cut
        if self._held <= _CONTEXT:
            self._enough = 0
        else:  # a long text is searched again when it ends or has grown by half, so that the work stays linear
            self._enough, self._recent = self._held + self._held // 2, text[-_LONGEST_END:]
            self._end = END_OF_KEY if "-----BEGIN" in plain.text[index:] else _END_OF_LINE
        return output


def _mask(kind: str, value: str) -> str:
    if kind == "email":
        user, _, domain = value.replace("%40", "@").rpartition("@")
        return f"{user[:1]}***@{domain}"
    if kind not in _NUMBERS:
        return f"[{kind}]"
    signs = "".join(filter(str.isalnum, value))
    return "****" + signs[-4 if len(signs) > 8 else -2 :]


def _fresh(key: Any, taken: Mapping[Any, Any], counts: dict[Any, int]) -> Any:
    """Return a key that is not used yet, because two keys may be equal after redaction."""
    name = key
    while name in taken:
        counts[key] = counts.get(key, 1) + 1
        name = f"{key} {counts[key]}"
    return name


def is_long_number(value: Any) -> bool:
    """Whether a number is as long as the number of a card."""
    return isinstance(value, int) and not isinstance(value, bool) and 10**12 <= value < _LONGEST_NUMBER


def _action(value: Any, name: str) -> Action:
    if value not in ACTIONS:
        raise RegistrationError(f"{name} must be one of {', '.join(ACTIONS)}, not {value!r:.80}")
    return value  # type: ignore[no-any-return]


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise RegistrationError(f"{name} must be a mapping of kinds, not {value!r:.80}")
    return value or {}


def _extra(extra: Any) -> dict[str, re.Pattern[str]]:
    for kind in _mapping(extra, "extra"):
        if not isinstance(kind, str) or not re.fullmatch(r"[\w-]+", kind) or kind in KINDS:
            raise RegistrationError(f"extra: a kind must have a new name of letters, digits and '_', not {kind!r:.80}")
    return {kind: _pattern(kind, pattern) for kind, pattern in (extra or {}).items()}


def _pattern(kind: str, pattern: Any) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise RegistrationError(f"extra: {kind!r} is not a valid regular expression: {error}") from None
    if not isinstance(compiled.pattern, str) or not compiled.pattern:
        raise RegistrationError(f"extra: {kind!r} needs a regular expression for text, not {pattern!r:.80}")
    return compiled


def _allowed(allow: Any) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    if isinstance(allow, (str, re.Pattern, Mapping)) or not isinstance(allow, Iterable):
        raise RegistrationError(f"allow must be a list of values, domains and expressions: [{allow!r:.80}]")
    entries = tuple(allow)
    for entry in entries:
        is_text = isinstance(entry, str) and bool(entry.strip("@. "))
        if not is_text and not (isinstance(entry, re.Pattern) and isinstance(entry.pattern, str)):
            raise RegistrationError(f"allow: an entry must be a value, a domain or re.compile(...), not {entry!r:.80}")
    values = frozenset(entry.casefold().lstrip("@") for entry in entries if isinstance(entry, str))
    return values, tuple(entry for entry in entries if isinstance(entry, re.Pattern))


def _key(key: Any) -> bytes:
    if key is None:
        return _PROCESS_KEY
    if not isinstance(key, (str, bytes)) or len(key) < _SHORTEST_KEY:
        raise RegistrationError(f"key must be text or bytes of at least {_SHORTEST_KEY} characters")
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
