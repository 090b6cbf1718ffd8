"""What the words of a text say: the features of its sentences, and the weights that were learned for them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.resources import files
from itertools import combinations, pairwise

from .concepts import CONCEPTS
from .disguises import folded
from .rule import starts_of

SENTENCES = 3
"""How many sentences are looked at together."""

_SENTENCE = re.compile(r"(?<=[.!?])\s+|[。！？]|\n+|(?<=[>|;])\s|(?=<)")
_LONGEST = 1_000  # characters of one sentence
_EASTERN = r"\u3040-\u30ff\u4e00-\u9fff"
_TOKEN = re.compile(
    r"(?P<url>https?://[^\s\"'<>)\]]{1,500})|(?P<mail>[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64})"
    r"|(?P<path>(?:~|\.{1,2})?/[\w./-]{2,200})|(?P<name>[a-z]+(?:_[a-z]+)+)|(?P<number>\d+)"
    rf"|(?P<eastern>[{_EASTERN}]+)|(?P<word>[^\W\d_{_EASTERN}]+)|(?P<mark>[<{{\[`:?!\",#(])"
)
_PAUSES = frozenset(":,")


def _listed() -> Iterator[tuple[str, str]]:
    for concept, words in CONCEPTS.items():
        for word in words.split():
            yield folded(word), concept


_BY_WORD: dict[str, set[str]] = {}
for _word, _concept in _listed():
    _BY_WORD.setdefault(_word, set()).add(_concept)
_IS_EASTERN = re.compile(f"[{_EASTERN}]")
_IN_EASTERN = re.compile("|".join(sorted(filter(_IS_EASTERN.match, _BY_WORD), key=lambda word: (-len(word), word))))
_BEGINNINGS = sorted({len(word) for word in _BY_WORD if word.endswith("*")})

TELLING = frozenset(start for word in _BY_WORD for start in starts_of([word.rstrip("*")]) if len(start) > 3)
"""The beginnings of the longer words that stand for something."""


@lru_cache(20_000)
def concepts_of(word: str) -> tuple[str, ...]:
    """What a folded word stands for."""
    found = set(_BY_WORD.get(word, ()))
    for length in _BEGINNINGS:
        found |= _BY_WORD.get(f"{word[: length - 1]}*", set())
    return tuple(sorted(found))


def sentences(text: str) -> list[str]:
    """The sentences of a folded text; one that is too long, in pieces."""
    found = (sentence.strip() for sentence in _SENTENCE.split(text))
    return [piece[at : at + _LONGEST] for piece in found if piece for at in range(0, len(piece), _LONGEST)]


def features(sentence: str) -> set[str]:
    """The words and word pairs of a folded sentence, and the concepts in it: alone, together, and in a row."""
    found: set[str] = set()
    words: list[str] = ["^"]
    row: list[tuple[str, ...]] = [("^",)]
    for token in _TOKEN.finditer(sentence):
        sort, text = token.lastgroup, token[0]
        if sort == "word":
            words.append(text)
            if concepts := concepts_of(text):
                row.append(concepts)
        elif sort == "mark":
            words.append(text)
            if text in _PAUSES:
                row.append((text,))
        elif sort == "eastern":
            words.append("EASTERN")
            found.update(map("".join, pairwise(text)))
            row.extend(tuple(sorted(_BY_WORD[match])) for match in _IN_EASTERN.findall(text))
        else:
            words.append(str(sort).upper())
            row.append((str(sort).upper(),))
    found.update(words[1:])
    found.update([f"{first} {second}" for first, second in pairwise(words)])
    held = sorted({concept for concepts in row[1:] for concept in concepts})
    found.update([f"#{concept}" for concept in held])
    held = [concept for concept in held if concept not in _PAUSES]
    found.update([f"#{one}&{other}" for one, other in combinations(held, 2)])
    row.append(())
    for place in zip(row, row[1:], [*row[2:], ()], strict=False):
        found.update(_in_a_row(*place))
    return found


@lru_cache(20_000)
def _in_a_row(first: tuple[str, ...], second: tuple[str, ...], third: tuple[str, ...]) -> list[str]:
    pairs = [f"#{a}>{b}" for a in first for b in second]
    return pairs + [f"{pair}>{c}" for pair in pairs for c in third]


def chance(windows: int) -> float:
    """What the worst of many windows must say more than the only one, as chance has more to choose from."""
    return 0.5 * math.log(max(1.0, windows / 4))


class Weights:
    """What was learned: how much each feature says, and what is added to all."""

    def __init__(self, bias: float, weights: dict[str, float]) -> None:
        self.bias, self.weights = bias, weights

    def logit(self, known: Iterable[str]) -> float:
        """How much some features say together; ``known`` holds each once, and only those that have a weight."""
        values = [self.weights[feature] for feature in known]
        return self.bias + math.fsum(values) / math.sqrt(len(values) + 5)


@cache
def learned() -> Weights:
    """The weights that come with the package."""
    stored = json.loads(files(__name__.rpartition(".")[0]).joinpath("weights.json").read_text("utf-8"))
    return Weights(stored["bias"], {feature: weight / 100 for feature, weight in stored["weights"].items()})
