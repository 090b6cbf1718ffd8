"""Redaction of what is recorded: the texts in payloads, decisions, tasks and replies.

The same texts come back again and again: a reply, its arguments and the result of a tool are in the next request too.
So each text is searched once and remembered. The rules are those of :class:`~hookline.hooks.Redactor`, which the audit
log and the guards use.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import msgspec

from .._base.errors import NotInstalledError
from .._base.frozen import FrozenDict, FrozenList, History, freeze, json_encoder
from .._kernel.errors import RegistrationError
from .._kernel.validation import check_integer
from .._kernel.values import Ids, Step, ToolCall, ToolSpec, Usage
from .._sensitive.redactor import Action, Redactor, is_long_number
from .format import Inexact

log = logging.getLogger("hookline")

MAX_TEXT = 100_000
WINDOW = 10_000
"""Number of characters beyond ``max_text`` that are redacted, so that no secret is cut in two before that."""
_MAX_KNOWN = 4096
_MAX_KNOWN_SIZE = 4_000_000

_NEEDS_NO_LIBRARY = ("secret", "email", "ip")
NEVER_SENSITIVE = frozenset(
    [
        "id",
        "call_id",
        "role",
        "model",
        "provider",
        "organization_id",
        "finish_reason",
        "purpose",
        "outcome",
        "outcomes",
        "digest",
        "media_type",
        "decision",
        "phase",
        "verb",
        "hook",
        "where",
        "type",
        "kind",
        "status",
        "personality_id",
        "run_id",
        "session_id",
        "platform",
        "ids",
        "usage",
    ]
)
"""Fields of payloads with ids and words of Hookline, which hooks and readers need as they are. The names of tools are
not among them: a model may call a tool that does not exist, by any name."""

_OWN_ID = re.compile("(run|session)_[0-9a-f]{24}")
"""Ids that Hookline makes. Each is new, and the search of such a text takes longer than the rest of a short record."""

RedactText = Callable[[str], str]
T = TypeVar("T", bound=msgspec.Struct)

_encode = json_encoder.encode


class Redaction:
    """Replaces sensitive texts and shortens long ones. The texts that it has seen are shared by all runs.

    Args:
        redact: ``None`` for a :class:`Redactor` of all kinds that masks e-mail addresses
            (``a***@example.com``), another ``Redactor``, a function from text to text, an
            object with such a method ``apply``, or ``False`` to redact nothing.
        max_text: maximum number of characters of each text.
    """

    def __init__(self, redact: Any = None, max_text: int = MAX_TEXT) -> None:
        self.max_text = check_integer(max_text, "max_text")
        is_default = redact is None
        if is_default:
            redact = _default_redactor()
        self.redactor = redact if isinstance(redact, Redactor) else None
        self._apply = None if redact is False else _function(redact)
        self._knows_ids = is_default
        self.texts: set[str] = set()
        """Texts in which nothing is replaced."""
        self._changed: dict[str, tuple[str, Inexact]] = {}
        self.objects: set[bytes] = set()
        """JSON objects, encoded, in which nothing is replaced."""
        self._size = 0
        self.tools: tuple[ToolSpec, ...] = ()
        """The last tools in whose descriptions nothing is replaced."""
        self._first: tuple[Redaction, ...] = ()
        self._combined: Redaction | None = None

    @classmethod
    def complete(cls, redactor: Redactor) -> Self:
        """Return a redaction that shortens nothing, for values that a run continues with."""
        made = cls(redactor, sys.maxsize)
        made._knows_ids = True
        return made

    def clean(self, value: Any) -> Any:
        """Return a value with its texts replaced; the same object if there is nothing to replace."""
        return Redacted(self).value(value)

    def after(self, first: tuple[Redaction, ...]) -> Redaction:
        """Return this redaction with others before it: those that the hooks of a run declare.

        A redaction of nothing (``redact=False``) stays one.
        """
        if not first or self._apply is None:
            return self
        combined = self._combined
        if combined is None or combined._first != first:
            combined = Redaction(self.redactor or self._apply, self.max_text)
            combined._first, combined._knows_ids = first, self._knows_ids
            self._combined = combined
        return combined

    def look_up(self, text: str) -> tuple[str, Inexact] | None:
        """Return the text to record and how it differs, or ``None`` if it is recorded as it is."""
        if text in self.texts:
            return None
        found = self._changed.get(text)
        if found is None:
            found = self._searched(text)
            self._make_room(len(text))
            if found is None:
                self.texts.add(text)
            else:
                self._changed[text] = found
        return found

    def remember(self, encoded: bytes) -> None:
        """Remember an encoded JSON object in which nothing is replaced."""
        self._make_room(len(encoded))
        self.objects.add(encoded)

    def _make_room(self, size: int) -> None:
        known = len(self.texts) + len(self.objects) + len(self._changed)
        if known >= _MAX_KNOWN or self._size > _MAX_KNOWN_SIZE:
            self.texts.clear()
            self.objects.clear()
            self._changed.clear()
            self._size = 0
        self._size += size

    def _searched(self, text: str) -> tuple[str, Inexact] | None:
        if self._knows_ids and _OWN_ID.fullmatch(text):
            return None
        shown = text[: self.max_text + WINDOW]
        clean = shown
        if self._apply is not None:
            try:
                for each in self._first:
                    clean = each.clean(clean)
                clean = str(self._apply(clean))
            except Exception as error:
                log.exception("the redactor of the records failed")
                clean = f"[withheld: the redactor failed with {type(error).__name__}]"
        how: Inexact = "redacted" if clean != shown else ""
        if len(text) > self.max_text:
            # A secret that the end of ``shown`` cuts in two is not recognized. It is in the last part of ``clean``,
            # which may be shorter than ``max_text``, because of what was replaced before it.
            end = self.max_text if len(shown) == len(text) else min(self.max_text, max(0, len(clean) - WINDOW))
            over = len(text) - len(shown) + max(0, len(clean) - end)
            clean, how = f"{clean[:end]}…(+{over})", how or "cut"
        return (clean, how) if how else None


class Redacted:
    """The redaction of one run. ``how`` tells whether the values since its last reset were changed."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self.texts, self._objects = redaction.texts, redaction.objects
        self._redactor = redaction.redactor
        self.how: Inexact = ""
        self._calls: Any = None
        self._clean: Any = None
        """The last immutable object in which nothing is replaced."""

    def calls(self, calls: tuple[ToolCall, ...]) -> Any:
        """Replace texts in the arguments of tool calls. Those of a reply are also in the next request."""
        if calls is self._calls:
            return calls
        for call in calls:
            is_clean = call.raw is None and (call.name in self.texts or self.value(call.name) is call.name)
            if not is_clean or self.object(call.arguments) is not call.arguments:
                return self._sequence(calls)
        self._calls = calls
        return calls

    def tools(self, tools: tuple[ToolSpec, ...]) -> Any:
        """Replace texts in descriptions of tools, which are the same in all runs of an agent."""
        redaction = self._redaction
        if tools is redaction.tools:
            return tools
        clean = self._sequence(tools)
        if clean is tools:
            redaction.tools = tools
        return clean

    def steps(self, steps: Sequence[Step]) -> Any:
        """Replace texts in the steps of a run. They are those of its replies, so most are known."""
        for step in steps:
            text, names = step.content, step.tool_names
            if (text and self.value(text) is not text) or (names and self._sequence(names) is not names):
                return self._sequence(steps)
        return steps

    def replaced(self, struct: T, names: tuple[str, ...]) -> T:
        """Return a struct with the texts in these fields replaced."""
        changed = {}
        for name in names:
            value = getattr(struct, name)
            if value:
                clean = self.value(value)
                if clean is not value:
                    changed[name] = clean
        return msgspec.structs.replace(struct, **changed) if changed else struct

    def fields(self, struct: Any, names: tuple[str, ...]) -> None:
        """Replace texts in these fields of a struct, in place."""
        for name in names:
            value = getattr(struct, name)
            if value and (type(value) is not str or value not in self.texts):
                clean = self.value(value)
                if clean is not value:
                    setattr(struct, name, clean)

    def value(self, value: Any) -> Any:
        """Return a value with its texts replaced; the same object if there is nothing to replace."""
        kind = type(value)
        if kind is str:
            found = None if value in self.texts else self._redaction.look_up(value)
            if found is None:
                return value
            if self.how != "redacted":
                self.how = found[1]
            return found[0]
        visit = _VISITS.get(kind)
        if visit is None:
            visit = _VISITS[kind] = _visit_of(kind)
        return visit(self, value)

    def object(self, value: Mapping[str, Any]) -> Any:
        """Return a JSON object with its texts replaced; the same object if there is nothing to replace."""
        # The same arguments come in a reply, before and after the call: to encode them is faster than to visit them.
        if value is self._clean:
            return value
        try:
            encoded = _encode(value)
        except (TypeError, UnicodeEncodeError):
            return self._visited(value)
        if encoded not in self._objects:
            visited = self._visited(value)
            if visited is not value:
                return visited
            self._redaction.remember(encoded)
        if type(value) is FrozenDict:
            self._clean = value
        return value

    def _visited(self, value: Mapping[Any, Any]) -> Any:
        changed: dict[Any, Any] | None = None
        redactor = self._redactor
        for key, item in value.items():
            new_key, new = self.value(key), item
            if type(item) is str and redactor is not None and redactor.is_named_secret(key, item):
                new = redactor.replacement("secret", item)
                self.how = "redacted"
            elif item is not None:
                new = self.value(item)
            if new is not item or new_key is not key:
                changed = dict(value) if changed is None else changed
                if new_key is not key:
                    del changed[key]
                    while new_key in changed:  # two keys may be equal after redaction
                        new_key += "_"
                changed[new_key] = new
        if changed is None:
            return value
        return freeze(changed) if type(value) is FrozenDict else changed

    def _sequence(self, value: Any) -> Any:
        changed: list[Any] | None = None
        for index, item in enumerate(value):
            new = self.value(item)
            if new is not item:
                changed = list(value) if changed is None else changed
                changed[index] = new
        return value if changed is None else _SEQUENCES.get(type(value), list)(changed)

    def _struct(self, value: Any) -> Any:
        return self.replaced(value, text_fields(type(value)))

    def _number(self, value: int) -> Any:
        if self._redactor is None or not is_long_number(value):
            return value
        text = self.value(str(value))
        return text if text != str(value) else value

    def _same(self, value: Any) -> Any:
        return value


_SEQUENCES: Mapping[type, Callable[[list[Any]], Any]] = {tuple: tuple, History: History, FrozenList: freeze}
"""How changed items become a sequence of the same type: a run goes on with cleaned messages."""
_VISITS: dict[type, Callable[[Redacted, Any], Any]] = {}


def _visit_of(kind: type) -> Callable[[Redacted, Any], Any]:
    if issubclass(kind, (bool, float, type(None))):
        return Redacted._same
    if issubclass(kind, int):
        return Redacted._number
    if issubclass(kind, Mapping):
        return Redacted.object
    if issubclass(kind, (list, tuple, History)):
        return Redacted._sequence
    if issubclass(kind, msgspec.Struct):
        return Redacted._struct
    if issubclass(kind, str):
        return lambda cleaning, value: cleaning.value(str.__str__(value))
    return Redacted._same


_known_text_fields: dict[type, tuple[str, ...]] = {}


def text_fields(cls: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a struct that may contain sensitive texts."""
    if cls not in _known_text_fields:
        plain = (Ids, Usage, int, float, bool)
        _known_text_fields[cls] = tuple(
            field.name
            for field in msgspec.structs.fields(cls)
            if field.name not in NEVER_SENSITIVE and field.type not in plain
        )
    return _known_text_fields[cls]


def _default_redactor() -> Redactor:
    """Return the usual redactor. Addresses keep their domain, because rules about recipients look at it."""
    mask: Mapping[str, Action] = {"email": "mask"}
    try:
        return Redactor(actions=mask)
    except NotInstalledError as error:
        log.warning("records are written without redaction of card, phone and account numbers: %s", error)
        return Redactor(_NEEDS_NO_LIBRARY, actions=mask)


def _function(redact: Any) -> RedactText:
    apply = redact if callable(redact) else getattr(redact, "apply", None)
    if isinstance(redact, type) or not callable(apply):
        raise RegistrationError(
            "redact must be a function from text to text, an object with such a method apply, or False, "
            f"not {redact!r:.80}"
        )
    return apply  # type: ignore[no-any-return]
