# mypy: allow-untyped-defs, allow-untyped-calls
"""Learns how much the words of a text say about whether it gives orders to a model, and measures it writer by writer.

Writes `src/hookline/hooks/_injection/weights.json` and `tests/hooks/injection/left_out.json`; the same texts give
the same files. What is measured on a writer was learned from the others.
"""

import hashlib
import json
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

from hookline.hooks._injection.concepts import CONCEPTS
from hookline.hooks._injection.patterns import material
from hookline.hooks._injection.words import Weights, chance

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests/hooks/injection"
WEIGHTS = ROOT / "src/hookline/hooks/_injection/weights.json"
LEFT_OUT = CORPUS / "left_out.json"
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
FALSE_ALARMS = 0.04  # the share at 0.5, over all writers left out
LEAST_TEXTS, LEAST_WRITERS = 3, 2  # who has a word for himself says nothing about others
L2, RATE, EPOCHS = 0.002, 0.3, 12
STEEPNESS = 1.5
OWN = "own"  # pieces of our own pages and code: learned from, and measured apart


def corpus():
    """The texts that may be learned from, attacks first."""
    for name in ("attacks", "harmless"):
        for line in (CORPUS / f"{name}.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            if row["set"] == "dev":
                yield row | {"attack": name == "attacks"}


def digest():
    """What the weights depend on, in short."""
    return hashlib.sha256(json.dumps([list(corpus()), CONCEPTS], sort_keys=True).encode()).hexdigest()


def train(rows):
    """Logistic regression: first on whole texts, then on each attack's worst window and every harmless one."""
    texts: Counter[str] = Counter()
    writers = defaultdict(set)
    for row in rows:
        for feature in frozenset().union(*row["windows"]):
            texts[feature] += 1
            writers[feature].add(row["by"])
    kept = {name for name in texts if texts[name] >= LEAST_TEXTS and len(writers[name]) >= LEAST_WRITERS}
    known = [(row["attack"], [sorted(kept & window) for window in row["windows"]]) for row in rows]
    found = descend([(attack, sorted(set().union(*windows))) for attack, windows in known], kept)
    worst = [(True, max(windows, key=found.logit)) for attack, windows in known if attack]
    return descend(worst + [(False, window) for attack, windows in known if not attack for window in windows], kept)


def descend(examples, kept):
    """AdaGrad with L2, in an order that is always the same."""
    weights, squares = dict.fromkeys(sorted(kept), 0.0), dict.fromkeys(kept, 0.01)
    bias, bias_squares, order = 0.0, 0.01, random.Random(1)
    examples = list(examples)
    for _ in range(EPOCHS):
        order.shuffle(examples)
        for attack, names in examples:
            scale = 1 / math.sqrt(len(names) + 5)
            says = bias + scale * sum([weights[name] for name in names])
            error = 1 / (1 + math.exp(-max(-30.0, min(30.0, says)))) - attack
            bias_squares += error * error
            bias -= RATE * error / math.sqrt(bias_squares)
            for name in names:
                slope = error * scale + L2 * weights[name]
                squares[name] += slope * slope
                weights[name] -= RATE * slope / math.sqrt(squares[name])
    return Weights(bias, weights)


def says(weights, row):
    """The logit of a text: that of its worst window."""
    most = max((weights.logit(window & weights.weights.keys()) for window in row["windows"]), default=-math.inf)
    return most - chance(len(row["windows"])) / STEEPNESS


def main():
    rows = list(corpus())
    for row in rows:
        row["forms"], windows = material(row["text"])
        row["windows"] = [frozenset(window.features) for window in windows]
    names = sorted({row["by"] for row in rows})
    for name in names:
        weights = train([row for row in rows if row["by"] != name])
        for row in rows:
            if row["by"] == name:
                row["says"] = says(weights, row)
    harmless = [row for row in rows if not row["attack"] and row["by"] != OWN]
    room = int(FALSE_ALARMS * len(harmless)) - sum(row["forms"] >= 0.5 for row in harmless)
    middle = sorted((row["says"] for row in harmless if row["forms"] < 0.5), reverse=True)[max(0, room)] + 1e-6
    for row in rows:
        row["score"] = max(row["forms"], 1 / (1 + math.exp(-STEEPNESS * (row["says"] - middle))))
    figures = {"made from": digest(), "writers": {name: counts(rows, "by", name) for name in names}}
    others = [row for row in rows if row["by"] != OWN]
    figures["all"] = {str(least): counts(others, None, None, least) for least in THRESHOLDS}
    figures["kinds"] = {kind: counts(others, "kind", kind) for kind in sorted({row["kind"] for row in others})}
    figures["languages"] = {
        "English": counts([row for row in others if row["lang"] == "en"], None, None),
        "others": counts([row for row in others if row["lang"] != "en"], None, None),
    }
    LEFT_OUT.write_text(json.dumps(figures, indent=1) + "\n")
    final = train(rows)
    stored = {name: round(100 * STEEPNESS * weight) for name, weight in sorted(final.weights.items())}
    stored = {name: weight for name, weight in stored.items() if weight}
    head = {"made from": digest(), "bias": round(STEEPNESS * (final.bias - middle), 3)}
    WEIGHTS.write_text(json.dumps(head | {"weights": stored}, ensure_ascii=False, indent=0) + "\n", "utf-8")
    print(json.dumps(figures["writers"]), json.dumps(figures["all"]), json.dumps(figures["languages"]), sep="\n")
    print(len(stored), "weights,", WEIGHTS.stat().st_size, "bytes")


def counts(rows, field, value, least=0.5):
    """Attacks caught, attacks, false alarms, harmless texts."""
    some = [row for row in rows if field is None or row[field] == value]
    caught = sum(row["score"] >= least for row in some if row["attack"])
    alarms = sum(row["score"] >= least for row in some if not row["attack"])
    attacks = sum(row["attack"] for row in some)
    return [caught, attacks, alarms, len(some) - attacks]


if __name__ == "__main__":
    main()
