"""How much a text looks as if it were written to give orders to a model: pure, repeatable, in linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...base.frozen import Frozen
from .disguises import decoded, folded, smuggled, spellings, turned
from .rules import CORE, HOT, RULES

LOOKED_AT = 100_000
"""How many characters of a longer text are scored: its head, its tail, and what lies around words that attacks need."""

_WINDOW = 600
_DEPTH = 2
_TURNED = 20_000
_EXCERPT = 120
_BETWEEN = re.compile(r"[^\w]+")
_NO_LETTERS = re.compile(r"[\W_]+")
_SPACE = re.compile(r"\s+")
_QUOTED = re.compile(
    r"""(["`“”„«»「」『』])(?:(?!\1)[^\n“”„«»「」『』]){3,300}["`“”„«»「」『』]|(?<!\w)'[^'\n]{3,300}'(?!\w)"""
)
_ABOUT_ATTACKS = re.compile(
    r"(?<![a-z])(?:injections?|jailbreak\w*|attack(?:er|ers|s)?|phishing|malicious|adversar\w+|vulnerab\w+|researchers?|"
    r"red team\w*|owasp|paper|detect\w*|rule ?set|defen[cs]es?)(?![a-z])"
)
_HIDDEN = re.compile(
    r"<!--(?P<comment>.{3,2000}?)-->"
    r"|<\w+(?=[^>]{0,300}(?:display\s*:\s*none|visibility\s*:\s*hidden|opacity\s*:\s*0(?![.\d])|font-size\s*:\s*[01](?![\d.])"
    r"|color\s*:\s*(?:white|#fff|transparent)|\shidden[\s>=]|aria-hidden))[^>]{1,300}>(?P<element>[^<]{3,2000})"
    r"|\s(?:alt|title|aria-label)\s*=\s*(?P<quote>[\"'])(?P<label>[^\"']{20,1000})(?P=quote)"
    r"|\[//\]:\s*#\s*(?P<markdown>[^\n]{3,1000})"
    r"|(?P<white>\\color\{white\}[^\n]{3,500})",
    re.IGNORECASE | re.DOTALL,
)
_CALMED = 0.6


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
    if found.signs and looked_at.lstrip()[:1] not in ("{", "[") and _ABOUT_ATTACKS.search(folded(looked_at)):
        outside = _Found()
        _read(_QUOTED.sub(" ", looked_at), outside, _DEPTH)
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
    readings = (plain, *spellings(plain))
    for reading in readings:
        _match(reading, found)
    for reading in (*readings, *turned(plain[:_TURNED])):
        letters = _NO_LETTERS.sub("", reading)
        for kind, pattern in CORE:
            if core := pattern.search(letters):
                found.add(kind, pattern, 0.6, core[0])
    if not depth:
        return
    for hidden in smuggled(text):
        found.add("hidden", "smuggled", 0.6, hidden)
        _read(hidden, found, 0)
    for inner, kind in ((decoded(text), "encoded"), (_hidden(text), "hidden")):
        for piece in inner:
            inside = _Found()
            _read(piece, inside, depth - 1)
            if inside.score >= (0.3 if kind == "encoded" else 0.2):
                found.add(kind, kind, 0.45, inside.excerpt)
                for name, signs in inside.signs.items():
                    for sign, weight in signs.items():
                        found.add(name, sign, weight, inside.excerpt)


def _match(plain: str, found: _Found) -> None:
    words = _BETWEEN.sub(" ", plain)
    texts: dict[str, tuple[str, ...]] = {"lines": (plain,), "text": (_SPACE.sub(" ", plain),), "words": (words,)}
    if "_" in words:
        texts["words"] = (words, words.replace("_", " "))
    for rule in RULES:
        if rule in found.signs.get(rule.kind, ()) or not rule.may_match(plain):
            continue
        for text in texts[rule.on]:
            if match := rule.pattern.search(text):
                found.add(rule.kind, rule, rule.weight, match[0].strip())
                break


def _hidden(text: str) -> Iterator[str]:
    for count, found in enumerate(_HIDDEN.finditer(text)):
        if count == 50:
            return
        groups = found.groupdict()
        yield next(groups[name] for name in ("comment", "element", "label", "markdown", "white") if groups[name])


def _part_of(text: str) -> str:
    if len(text) <= LOOKED_AT:
        return text
    half = LOOKED_AT // 4
    parts, last, room = [text[:half]], half, LOOKED_AT // 2
    for hot in HOT.finditer(text, half, len(text) - half):
        if hot.start() < last:
            continue
        start = max(last, hot.start() - _WINDOW // 2)
        last = hot.end() + _WINDOW
        parts.append(text[start:last])
        room -= last - start
        if room <= 0:
            break
    return "\n".join([*parts, text[-half:]])
