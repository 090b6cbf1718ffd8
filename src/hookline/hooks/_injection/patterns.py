"""How much a text looks as if it were written to give orders to a model: pure, repeatable, in linear time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Set
from itertools import islice
from typing import Any, NamedTuple

from ..._base.frozen import Frozen
from .control_tokens import control_tokens
from .disguises import decoded, folded, smuggled, spellings
from .rule import Held
from .rules import CORE, HOT, RULES
from .words import SENTENCES, TELLING, Weights, chance, features, learned, sentences

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
_SHOWN = 0.2  # a lower score of the words alone is not worth a word
_SAYS_SOMETHING = 3  # how many concepts make a reading more than noise
_NEVER_TALK = ("hidden", "encoded")  # who writes about attacks does so in the open


class Suspicion(Frozen, frozen=True):
    """How suspicious a text is, from 0 to 1, what kinds of attack it looks like, and the words that say so."""

    score: float = 0.0
    kinds: tuple[str, ...] = ()
    excerpt: str = ""


class Window(NamedTuple):
    """A few sentences, where they were found, and their features."""

    sentences: tuple[str, ...]
    how: str
    features: set[str]


def suspicion(text: str) -> Suspicion:
    """Score a text."""
    looked_at = _part_of(text)
    found, forms = _forms(looked_at)
    window, says = _worst(found, learned())
    score = 1 / (1 + math.exp(-says))
    kinds = list(found.kinds) if forms >= _SHOWN else []
    if window is None or score < _SHOWN:
        return Suspicion(round(forms, 2), found.kinds, found.excerpt)
    wording = [window.how, "wording"] if window.how in _NEVER_TALK else ["wording"]
    kinds = [*kinds, *wording] if forms >= score else [*wording, *kinds]
    excerpt = (found.excerpt if forms >= score else "") or " ".join(window.sentences)[:_EXCERPT]
    return Suspicion(round(max(forms, score), 2), tuple(dict.fromkeys(kinds)), excerpt)


def material(text: str) -> tuple[float, list[Window]]:
    """What the weights are learned from (bench/injection_weights.py): the score of the forms, and all windows."""
    found, forms = _forms(_part_of(text))
    return forms, [window for reading in found.readings for window in _windows(reading, found, None)]


def _forms(text: str) -> tuple[_Found, float]:
    found = _seen_in(text)
    return found, found.score * _calm(text, found)


def _seen_in(text: str) -> _Found:
    found = _Found()
    _read(text, found, _DEPTH)
    _look_for_tokens(text, found)
    return found


def _calm(text: str, found: _Found) -> float:
    """Less than 1 if the forms of an attack are only quoted, in a text about attacks."""
    talks = text.lstrip()[:1] not in ("{", "[") and found.signs.keys().isdisjoint(_NEVER_TALK)
    if not (found.signs and talks and found.about):
        return 1.0
    outside = _seen_in(_QUOTED.sub(" ", text))
    return max(_CALMED, outside.score / found.score) if outside.score < found.score else 1.0


def _worst(found: _Found, weights: Weights) -> tuple[Window | None, float]:
    """The window whose words say most, and how much."""
    worst, most, count = None, -math.inf, 0
    for reading in found.readings:
        for window in _windows(reading, found, weights.weights.keys()):
            count += 1
            if (says := weights.logit(window.features)) > most:
                worst, most = window, says
    return worst, most - chance(count)


def _windows(reading: tuple[str, str], found: _Found, known: Set[str] | None) -> Iterator[Window]:
    """The windows of one reading of a text, with all features or with those that are known."""
    text, how = reading
    parts = sentences(text)
    held = [features(part) for part in parts]
    if how and len({name for each in held for name in each if name[0] == "#" and name[1:].isalpha()}) < _SAYS_SOMETHING:
        return
    whole = {f"!{kind}" for kind in found.signs} | ({f"@{how}"} if how else set())
    if found.about and how not in _NEVER_TALK:
        whole.add("%about")
    if known is not None:
        held, whole = [each & known for each in held], whole & known
    for at in range(max(1, len(parts) - SENTENCES + 1)):
        yield Window(tuple(parts[at : at + SENTENCES]), how, whole.union(*held[at : at + SENTENCES]))


class _Found:
    """The signs found so far, by kind; the two strongest of a kind count."""

    def __init__(self) -> None:
        self.signs: dict[str, dict[Any, float]] = {}
        self.readings: list[tuple[str, str]] = []
        self.about = False
        self.excerpt, self._strongest = "", 0.0

    def add(self, kind: str, sign: Any, weight: float, words: str) -> None:
        self.signs.setdefault(kind, {})[sign] = weight
        if words and weight > self._strongest:
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


def _read(text: str, found: _Found, depth: int, how: str = "") -> None:
    """Look for signs in a text, and in what it becomes once disguises are taken off."""
    plain = folded(text)[: 2 * LOOKED_AT]
    held = Held(plain)
    found.readings.append((plain, how))
    found.about = found.about or (not how and _ABOUT_ATTACKS.search(plain) is not None)
    _match(held, found)
    _look_for_core(held, found, turned=True)
    for reading in spellings(plain, TELLING, held.words):
        respelt = Held(reading)
        found.readings.append((reading, how or "respelt"))
        _match(respelt, found)
        _look_for_core(respelt, found)
    if not depth:
        return
    for hidden in smuggled(text):
        found.add("hidden", "smuggled", 0.6, hidden)
        _read(hidden, found, 0, "hidden")
    for inner, kind in ((decoded(text), "encoded"), (_hidden(text), "hidden")):
        for piece in inner:
            inside = _Found()
            _read(piece.strip(), inside, depth - 1, kind)
            found.readings += inside.readings
            if inside.score >= (0.3 if kind == "encoded" else 0.2):
                found.add(kind, kind, 0.45, inside.excerpt)
                for name, signs in inside.signs.items():
                    for sign, weight in signs.items():
                        found.add(name, sign, weight, inside.excerpt)


def _match(held: Held, found: _Found) -> None:
    for rule in RULES:
        if rule not in found.signs.get(rule.kind, ()) and (words := rule.found(held)) is not None:
            found.add(rule.kind, rule, rule.weight, words)


def _look_for_core(held: Held, found: _Found, *, turned: bool = False) -> None:
    letters = "".join(held.words)
    for core in CORE:
        if any(core.found(letters, turned=turned)):
            found.add(core.kind, core, 0.55, "")


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
