"""Counters, histograms and gauges, and the text in which Prometheus reads them (its exposition format 0.0.4)."""

from __future__ import annotations

import logging
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf, isfinite, isnan
from typing import Any, TypeVar

from .._base.text import error_text, is_number
from .._kernel.errors import RegistrationError

log = logging.getLogger("hookline")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
"""Where label sets are counted for which there is no room."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""The bounds of a histogram of seconds, if no others are given."""

Labels = tuple[str, ...]
Reading = Callable[[], float | Mapping[Any, float]]

_LONGEST = 100
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class _Family:
    """All samples of one name. Of its labels, the last ``fixed`` have few values, known beforehand."""

    kind = ""

    def __init__(self, metrics: Metrics, name: str, text: str, labels: Sequence[str], fixed: int = 0) -> None:
        self._metrics, self.name, self._text = metrics, name, text
        self.labels, self._open = tuple(labels), len(labels) - fixed
        self.values: dict[Labels, Any] = {}

    def key(self, given: tuple[Any, ...], known: Mapping[Labels, Any]) -> Labels:
        """The label set that these are counted under, where they are no known one."""
        if len(given) != len(self.labels):
            raise TypeError(
                f"{self.name} has the labels {', '.join(self.labels) or '(none)'}, not {len(given)} of them"
            )
        clean = tuple(map(_clean, given))
        if clean in known or len(known) < self._metrics.limit:
            return clean
        return (OTHER,) * self._open + clean[self._open :]

    def lines(self) -> Iterator[str]:
        """Its part of the text."""
        yield f"# HELP {self.name} {_escaped(self._text)}"
        yield f"# TYPE {self.name} {self.kind}"
        for key, value in self.snapshot().items():
            yield from self._samples(
                [f'{name}="{_quoted(text)}"' for name, text in zip(self.labels, key, strict=True)], value
            )

    def snapshot(self) -> dict[Labels, Any]:
        """What it holds at one moment."""
        raise NotImplementedError

    def _samples(self, labels: list[str], value: Any) -> Iterator[str]:
        yield _sample(self.name, labels, value)


F = TypeVar("F", bound=_Family)


class Counter(_Family):
    """A number for each set of labels, which only grows."""

    kind = "counter"

    def add(self, *labels: Any, by: float = 1) -> None:
        """Count one more, or ``by`` more, under the values of its labels."""
        if not 0 <= by < inf:
            raise ValueError(f"{self.name} can only grow, by a finite number: not by {by!r}")
        with self._metrics.lock:
            self.put(labels, by)

    def put(self, labels: tuple[Any, ...], by: float = 1) -> Labels:
        """The same for whoever has the lock; what it was counted under."""
        values = self.values
        try:
            values[labels] += by
        except KeyError:
            labels = self.key(labels, values)
            values[labels] = values.get(labels, 0) + by
        return labels

    def snapshot(self) -> dict[Labels, Any]:
        """What was counted."""
        with self._metrics.lock:
            return dict(self.values) if self.values or self.labels else {(): 0}


class Histogram(_Family):
    """How many values were at most so large, for each set of labels."""

    kind = "histogram"

    def __init__(self, *args: Any, bounds: Sequence[float]) -> None:
        super().__init__(*args)
        self._bounds = tuple(map(float, bounds))
        self._marks = [f'le="{_number(bound)}"' for bound in (*self._bounds, inf)]

    def observe(self, value: float, *labels: Any) -> None:
        """Count a value under the values of its labels. One below 0 counts as 0; NaN does not count."""
        with self._metrics.lock:
            self.put(labels, value)

    def put(self, labels: tuple[Any, ...], value: float) -> None:
        """The same for whoever has the lock."""
        if not value >= 0:
            if isnan(value):
                return
            value = 0.0
        counts = self.values.get(labels)
        if counts is None:
            counts = self.values.setdefault(self.key(labels, self.values), [0] * (len(self._bounds) + 1) + [0.0])
        counts[bisect_left(self._bounds, value)] += 1
        counts[-1] += value

    def snapshot(self) -> dict[Labels, Any]:
        """What was counted, not yet added up, and the sum."""
        with self._metrics.lock:
            found = {key: counts.copy() for key, counts in self.values.items()}
        return found if found or self.labels else {(): [0] * (len(self._bounds) + 1) + [0.0]}

    def _samples(self, labels: list[str], value: Any) -> Iterator[str]:
        *counts, total = value
        for mark, count in zip(self._marks, accumulate(counts), strict=True):
            yield _sample(f"{self.name}_bucket", [*labels, mark], count)
        yield _sample(f"{self.name}_sum", labels, total)
        yield _sample(f"{self.name}_count", labels, sum(counts))


class _Gauge(_Family):
    """What is read when the text is made."""

    kind = "gauge"

    def __init__(self, *args: Any, read: Reading) -> None:
        super().__init__(*args)
        self._read, self._failing = read, False

    def snapshot(self) -> dict[Labels, Any]:
        """What is there now."""
        values: dict[Labels, float] = {}
        try:
            read = self._read()
            for given, value in (read if isinstance(read, Mapping) else {(): read}).items():
                key = self.key(given if isinstance(given, tuple) else (given,), values)
                values[key] = values.get(key, 0) + float(value)
        except Exception as error:  # noqa: BLE001 - the other numbers are still worth reading
            if not self._failing:
                log.warning("the gauge %s cannot be read: %s: %s", self.name, type(error).__name__, error_text(error))
            self._failing = True
            return {}
        self._failing = False
        return values


class Metrics:
    """Families of samples under one lock. At most ``limit`` sets of labels each, and those of ``other``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lock = threading.RLock()  # a finalizer may log, and whoever counts what is logged would wait for himself
        self._families: dict[str, _Family] = {}
        self._taken: set[str] = set()

    def counter(self, name: str, text: str, labels: Sequence[str] = (), fixed: int = 0) -> Counter:
        """A new counter."""
        if not isinstance(name, str) or not name.endswith("_total"):
            raise RegistrationError(f"the name of a counter ends with _total, not {name!r:.80}")
        return self._add(Counter(self, name, text, _labels(labels), fixed), (name,))

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS
    ) -> Histogram:
        """A new histogram."""
        labels = _labels(labels)
        if "le" in labels:
            raise RegistrationError("a histogram has a label le of its own: choose another name")
        ordered = list(bounds)
        if (
            not ordered
            or not all(is_number(bound) and isfinite(bound) for bound in ordered)
            or ordered != sorted(set(ordered))
        ):
            raise RegistrationError(f"bounds are finite numbers, each above the one before, not {ordered!r:.80}")
        made = Histogram(self, name, text, labels, bounds=ordered)
        return self._add(made, (name, f"{name}_bucket", f"{name}_sum", f"{name}_count"))

    def gauge(self, name: str, text: str, read: Reading, labels: Sequence[str] = ()) -> None:
        """A new gauge."""
        if not callable(read):
            raise RegistrationError(f"a gauge is read by calling a function, not {read!r:.80}")
        self._add(_Gauge(self, name, text, _labels(labels), read=read), (name,))

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        with self.lock:
            families = list(self._families.values())
        return "".join(f"{line}\n" for family in families for line in family.lines())

    def reset(self) -> None:
        """Start anew in a forked process: what was counted is the parent's, and nobody here holds its lock."""
        self.lock = threading.RLock()
        for family in self._families.values():
            family.values = {}

    def _add(self, family: F, names: tuple[str, ...]) -> F:
        if not isinstance(family.name, str) or not _NAME.fullmatch(family.name):
            raise RegistrationError(f"a metric is named with letters, digits and '_', not {family.name!r:.80}")
        with self.lock:
            for name in names:
                if name in self._taken:
                    raise RegistrationError(f"there is a metric called {name} already: choose another name")
            self._taken.update(names)
            self._families[family.name] = family
        return family


def _labels(labels: Any) -> tuple[str, ...]:
    if isinstance(labels, str):
        raise RegistrationError(f"labels is a list of names: [{labels!r:.80}]")
    names = tuple(labels)
    if len(set(names)) < len(names) or not all(isinstance(name, str) and _LABEL.fullmatch(name) for name in names):
        raise RegistrationError(f"labels are different names of letters, digits and '_', not {labels!r:.80}")
    return names


def _clean(value: Any) -> str:
    """A label as it is shown: short, and without what could deceive a reader or cannot be written."""
    text = str(value)[:_LONGEST]
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _sample(name: str, labels: list[str], value: float) -> str:
    return f"{name}{{{','.join(labels)}}} {_number(value)}" if labels else f"{name} {_number(value)}"
