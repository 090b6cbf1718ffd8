"""How much a text looks as if it were written to give orders to a model: pure, repeatable, in linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ...base.frozen import Frozen
from .control_tokens import control_tokens
from .disguises import decoded, folded, smuggled, spellings
from .rule import On
from .rules import CANDIDATES, CORE, HOT, TELLING
from .stems import Held

LOOKED_AT = 100_000
"""How many characters of a longer text are scored: its head, its tail, and what lies around words that attacks need."""

_WINDOW = 600
_DEPTH = 2
_MOST_HIDDEN = 50
_EXCERPT = 120
_QUOTED = re.compile(
    r"""(["`“”„«»「」『』])(?:(?!\1)[^\n“”„«»「」『』]){3,300}["`“”„«»「」『』]|(?<!\w)'[^'\n]{3,300}'(?!\w)"""
)
_ABOUT_ATTACKS = re.compile(
    r"(?<![a-z.@/])(?:injections?|jailbreak\w*|attack(?:er|ers|s)?|phishing|malicious|adversar\w+|vulnerab\w+|researchers?|"
    r"red team\w*|owasp|paper|detect\w*|rule ?set|defen[cs]es?)(?![a-z@/]|\.[a-z])"
)
_HIDDEN = (  # what must be there, and what is then looked for: the hidden text is the last group
    ("<!--", re.compile(r"<!--(.{3,2000}?)-->", re.DOTALL)),
    ("=", re.compile(r"\s(?:alt|title|aria-label)\s*=\s*([\"'])([^\"']{20,1000})\1", re.IGNORECASE)),
    ("[//]", re.compile(r"\[//\]:\s*#\s*([^\n]{3,1000})")),
    ("\\color", re.compile(r"(\\color\{white\}[^\n]{3,500})", re.IGNORECASE)),
)
_ELEMENT = re.compile(r"<\w+([^<>]{1,300})>([^<]{3,2000})")
_UNSEEN = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|opacity\s*:\s*0(?![.\d])|font-size\s*:\s*[01](?![\d.])"
    r"|color\s*:\s*(?:white|#fff|transparent)|\shidden(?:[\s=>]|$)|aria-hidden",
    re.IGNORECASE,
)
_CALMED = 0.6
_NEVER_TALK = ("hidden", "encoded")  # who writes about attacks does so in the open


class Suspicion(Frozen, frozen=True):
    """How suspicious a text is, from 0 to 1, what kinds of attack it looks like, and the words that say so."""

    score: float = 0.0
    kinds: tuple[str, ...] = ()
    excerpt: str = ""


def suspicion(text: str) -> Suspicion:
    """Score a text."""
    looked_at = _part_of(text)
    found = _Found()
    _read(looked_at, found, _DEPTH)
    _look_for_tokens(looked_at, found)
    talks = looked_at.lstrip()[:1] not in ("{", "[") and found.signs.keys().isdisjoint(_NEVER_TALK)
    if found.signs and talks and _ABOUT_ATTACKS.search(folded(looked_at)):
        outside = _Found()
        unquoted = _QUOTED.sub(" ", looked_at)
        _read(unquoted, outside, _DEPTH)
        _look_for_tokens(unquoted, outside)
        if outside.score < found.score:
            found.calm = max(_CALMED, outside.score / found.score)
    return Suspicion(round(found.score * found.calm, 2), found.kinds, found.excerpt)


class _Found:
    """The signs found so far, by kind; the two strongest of a kind count."""

    def __init__(self) -> None:
        self.signs: dict[str, dict[Any, float]] = {}
        self.calm = 1.0
        self.excerpt, self._strongest = "", 0.0

    def add(self, kind: str, sign: Any, weight: float, words: str) -> None:
        self.signs.setdefault(kind, {})[sign] = weight
        if weight > self._strongest:
            self._strongest, self.excerpt = weight, words[:_EXCERPT]

    @property
    def weights(self) -> dict[str, float]:
        weights = {}
        for kind, signs in self.signs.items():
            first, second = sorted((0.0, *signs.values()))[:-3:-1]
            weights[kind] = 1 - (1 - first) * (1 - second / 2)
        return weights

    @property
    def score(self) -> float:
        left = 1.0
        for weight in self.weights.values():
            left *= 1 - weight
        return 1 - left

    @property
    def kinds(self) -> tuple[str, ...]:
        weights = self.weights
        return tuple(sorted(weights, key=lambda kind: -weights[kind]))


def _read(text: str, found: _Found, depth: int) -> None:
    """Look for signs in a text, and in what it becomes once disguises are taken off."""
    plain = folded(text)[: 2 * LOOKED_AT]
    held = Held(plain)
    _match(held, found)
    _look_for_core(held, found, turned=True)
    for reading in spellings(plain, TELLING, held.words):
        respelt = Held(reading)
        _match(respelt, found)
        _look_for_core(respelt, found)
    if not depth:
        return
    for hidden in smuggled(text):
        found.add("hidden", "smuggled", 0.6, hidden)
        _read(hidden, found, 0)
    for inner, kind in ((decoded(text), "encoded"), (_hidden(text), "hidden")):
        for piece in inner:
            inside = _Found()
            _read(piece.strip(), inside, depth - 1)
            if inside.score >= (0.3 if kind == "encoded" else 0.2):
                found.add(kind, kind, 0.45, inside.excerpt)
                for name, signs in inside.signs.items():
                    for sign, weight in signs.items():
                        found.add(name, sign, weight, inside.excerpt)


def _match(held: Held, found: _Found) -> None:
    for rule in CANDIDATES.of(held):
        if rule in found.signs.get(rule.kind, ()):
            continue
        for text in _texts(held, rule.on):
            if match := rule.pattern.search(text):
                found.add(rule.kind, rule, rule.weight, match[0].strip())
                break


def _texts(held: Held, on: On) -> tuple[str, ...]:
    """What a rule looks at: the text as it is, as one line, or its words alone."""
    if on == "lines":
        return (held.text,)
    if on == "text":
        return (held.line,)
    return (held.spaced, held.spaced.replace("_", " ")) if "_" in held.spaced else (held.spaced,)


def _look_for_core(held: Held, found: _Found, *, turned: bool = False) -> None:
    letters = "".join(held.words)
    for core in CORE:
        for words in core.found(letters, turned=turned):
            found.add(core.kind, core, 0.6, words)


def _look_for_tokens(text: str, found: _Found) -> None:
    """Count the control tokens that no rule has seen; nobody who is honest spells one in a way that hides it."""
    for token in islice(control_tokens(text), _MOST_HIDDEN):
        if token.disguised:
            found.add("delimiter", "disguised", 0.55, token.text)
        elif "delimiter" not in found.signs:
            found.add("delimiter", "token", 0.4, token.text)


def _hidden(text: str) -> Iterator[str]:
    """What a page holds and does not show."""
    for mark, pattern in _HIDDEN:
        if mark in text:
            yield from (found[found.lastindex or 0] for found in islice(pattern.finditer(text), _MOST_HIDDEN))
    if "<" in text and _UNSEEN.search(text):
        hidden = (found[2] for found in _ELEMENT.finditer(text) if _UNSEEN.search(found[1]))
        yield from islice(hidden, _MOST_HIDDEN)


def _small(text: str) -> str:
    """A text in small letters, each where it was."""
    small = text.lower()
    return small if len(small) == len(text) else "".join(c if len(c.lower()) > 1 else c.lower() for c in text)


def _part_of(text: str) -> str:
    if len(text) <= LOOKED_AT:
        return text
    half = LOOKED_AT // 4
    parts, last, room = [text[:half]], half, LOOKED_AT // 2
    for hot in HOT.finditer(_small(text), half, len(text) - half):
        if hot.start() < last:
            continue
        start = max(last, hot.start() - _WINDOW // 2)
        last = hot.end() + _WINDOW
        parts.append(text[start:last])
        room -= last - start
        if room <= 0:
            break
    return "\n".join([*parts, text[-half:]])
