"""Counters, histograms and gauges on top of ``prometheus-client``, with a bounded number of label values.

``prometheus-client`` has the registry and writes the text. Label values come from models and callers, so this module
adds a limit on their number and escapes control characters in them. It also keeps a failing gauge from hiding the other
metrics, and begins at zero in a forked process.
"""

from __future__ import annotations

import logging
import re
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf, isfinite, isnan
from typing import TYPE_CHECKING, Any, TypeVar

from .._base.errors import NotInstalledError
from .._base.text import error_text, is_number
from .._kernel.errors import RegistrationError

if TYPE_CHECKING:
    from prometheus_client import Metric

log = logging.getLogger("hookline")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
"""The label value that replaces new ones once a metric has reached its limit."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""The default bucket bounds of a histogram of seconds."""

Labels = tuple[str, ...]
Reading = Callable[[], float | Mapping[Any, float]]

_MAX_LABEL = 100
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class _Metric(ABC):
    """A collector for ``prometheus-client`` with at most ``limit`` sets of label values.

    The last ``fixed`` labels are never replaced. The numbers are kept here, because those of the library take a lock
    and several calls each.
    """

    def __init__(self, metrics: Metrics, name: str, text: str, labels: Sequence[str], fixed: int = 0) -> None:
        self._metrics, self.name, self.text = metrics, name, text
        self.labels, self._open = tuple(labels), len(labels) - fixed
        self.reset()

    def reset(self) -> None:
        """Begin at zero."""
        self._cells: dict[Labels, list[float]] = {}

    @abstractmethod
    def describe(self) -> list[Metric]:
        """Return the metric without numbers."""

    @abstractmethod
    def collect(self) -> Iterator[Metric]:
        """Yield the metric with its numbers."""

    def label_sets(self) -> list[Labels]:
        """Return the sets of label values so far."""
        with self._metrics.lock:
            return list(self._cells)

    def key(self, given: tuple[Any, ...], known: Mapping[Labels, Any]) -> Labels:
        """Return the label values to count under: cleaned, or ``other`` if ``known`` is full."""
        if len(given) != len(self.labels):
            raise TypeError(f"{self.name} takes {len(self.labels)} labels ({', '.join(self.labels)}), not {len(given)}")
        clean = tuple(map(_clean, given))
        if clean in known or len(known) < self._metrics.limit:
            return clean
        return (OTHER,) * self._open + clean[self._open :]

    def _cell(self, given: tuple[Any, ...], size: int) -> list[float]:
        """Return the numbers for label values that were not given in this form before. The caller has the lock."""
        key = self.key(given, self._cells)
        found = self._cells.get(key)
        if found is None:
            found = self._cells[key] = [0.0] * size
        return found

    def _read(self) -> list[tuple[Labels, list[float]]]:
        with self._metrics.lock:
            return [(key, cell.copy()) for key, cell in self._cells.items()]


M = TypeVar("M", bound=_Metric)


class Counter(_Metric):
    """A number for each set of label values that only grows."""

    def reset(self) -> None:
        """Begin at zero. Without labels, the number exists from the beginning."""
        super().reset()
        if not self.labels:
            self._cell((), 1)

    def describe(self) -> list[Metric]:
        """Return the metric without numbers."""
        from prometheus_client.core import CounterMetricFamily

        return [CounterMetricFamily(self.name, self.text, labels=self.labels)]

    def collect(self) -> Iterator[Metric]:
        """Yield the metric with its numbers."""
        (family,) = self.describe()
        for key, (number,) in self._read():
            family.add_metric(key, number)  # type: ignore[attr-defined]
        yield family

    def add(self, *labels: Any, by: float = 1) -> None:
        """Add ``by`` under the given label values."""
        if not 0 <= by < inf:
            raise ValueError(f"{self.name} can only grow, by a finite number: not by {by!r}")
        with self._metrics.lock:
            cell = self._cells.get(labels) or self._cell(labels, 1)
            cell[0] += by


class Histogram(_Metric):
    """The distribution of a number, for each set of label values."""

    def __init__(self, *args: Any, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._size = len(bounds) + 2
        """The number of values up to each bound, of those above all bounds, and the sum of the values."""
        super().__init__(*args)

    def reset(self) -> None:
        """Begin at zero. Without labels, the numbers exist from the beginning."""
        super().reset()
        if not self.labels:
            self._cell((), self._size)

    def describe(self) -> list[Metric]:
        """Return the metric without numbers."""
        from prometheus_client.core import HistogramMetricFamily

        return [HistogramMetricFamily(self.name, self.text, labels=self.labels)]

    def collect(self) -> Iterator[Metric]:
        """Yield the metric with its numbers."""
        from prometheus_client.utils import floatToGoString

        (family,) = self.describe()
        names = [floatToGoString(bound) for bound in (*self._bounds, inf)]  # type: ignore[no-untyped-call]
        for key, (*counts, total) in self._read():
            buckets = list(zip(names, accumulate(counts), strict=True))
            family.add_metric(key, buckets, sum_value=total)  # type: ignore[attr-defined]
        yield family

    def observe(self, value: float, *labels: Any) -> None:
        """Count a value under the given label values. A negative value counts as 0; NaN is ignored."""
        if isnan(value):
            return
        if value < 0:
            value = 0.0
        with self._metrics.lock:
            cell = self._cells.get(labels) or self._cell(labels, self._size)
            cell[bisect_left(self._bounds, value)] += 1
            cell[-1] += value


class _Gauge(_Metric):
    """A collector that reads a number whenever the metrics are exported. A name with ``_total`` makes it a counter."""

    def __init__(self, *args: Any, read: Reading) -> None:
        super().__init__(*args)
        self._value, self._failing = read, False

    def describe(self) -> list[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        family = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        return [family(self.name, self.text, labels=self.labels)]

    def collect(self) -> Iterator[Metric]:
        (family,) = self.describe()
        values: dict[Labels, float] = {}
        try:
            read = self._value()
            for given, value in (read if isinstance(read, Mapping) else {(): read}).items():
                key = self.key(given if isinstance(given, tuple) else (given,), values)
                values[key] = values.get(key, 0) + float(value)
        except Exception as error:  # noqa: BLE001 - the other metrics are still exported
            if not self._failing:
                log.warning("the gauge %s cannot be read: %s: %s", self.name, type(error).__name__, error_text(error))
            self._failing = True
            yield family
            return
        self._failing = False
        for key, number in values.items():
            family.add_metric(key, number)  # type: ignore[attr-defined]
        yield family


class Metrics:
    """A registry of metrics, each with at most ``limit`` sets of label values besides ``other``.

    Raises:
        NotInstalledError: ``prometheus-client`` is missing.
    """

    def __init__(self, limit: int) -> None:
        try:
            import prometheus_client  # noqa: F401
        except ImportError:
            raise NotInstalledError("prometheus-client", "metrics") from None
        self.limit = limit
        self._metrics: list[_Metric] = []
        self.reset()

    def counter(self, name: str, text: str, labels: Sequence[str] = (), fixed: int = 0) -> Counter:
        """Make a counter."""
        if not isinstance(name, str) or not name.endswith("_total"):
            raise RegistrationError(f"the name of a counter must end with _total, not {name!r:.80}")
        return self._add(Counter(self, name, text, _label_names(labels), fixed))

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS
    ) -> Histogram:
        """Make a histogram."""
        labels = _label_names(labels)
        if "le" in labels:
            raise RegistrationError("a histogram has its own label le: choose another name")
        ordered = list(bounds)
        if (
            not ordered
            or not all(is_number(bound) and isfinite(bound) for bound in ordered)
            or ordered != sorted(set(ordered))
        ):
            raise RegistrationError(f"bounds must be finite numbers in ascending order, not {ordered!r:.80}")
        return self._add(Histogram(self, name, text, labels, bounds=ordered))

    def gauge(self, name: str, text: str, read: Reading, labels: Sequence[str] = ()) -> None:
        """Make a gauge."""
        if not callable(read):
            raise RegistrationError(f"read must be a function that returns the value of the gauge, not {read!r:.80}")
        self._add(_Gauge(self, name, text, _label_names(labels), read=read))

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self).decode()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics without the times of their creation, which would double the number of series."""
        for metric in self.registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric

    def reset(self) -> None:
        """Begin at zero, with new locks: after a fork, another thread of the parent may have held the old ones."""
        from prometheus_client import CollectorRegistry

        self.lock = threading.RLock()  # reentrant, because a finalizer may log, and a handler may count log records
        self.registry = CollectorRegistry()
        for metric in self._metrics:
            metric.reset()
            self.registry.register(metric)

    def _add(self, metric: M) -> M:
        if not isinstance(metric.name, str) or not _NAME.fullmatch(metric.name):
            raise RegistrationError(f"the name of a metric has letters, digits and '_', not {metric.name!r:.80}")
        try:
            self.registry.register(metric)
        except ValueError:  # the library's error lists the series
            raise RegistrationError(f"there is already a metric {metric.name}: choose another name") from None
        self._metrics.append(metric)
        return metric


def _label_names(labels: Any) -> tuple[str, ...]:
    if isinstance(labels, str):
        raise RegistrationError(f"labels must be a list of names: [{labels!r:.80}]")
    names = tuple(labels)
    if len(set(names)) < len(names) or not all(isinstance(name, str) and _LABEL.fullmatch(name) for name in names):
        raise RegistrationError(f"labels must be different names of letters, digits and '_', not {labels!r:.80}")
    return names


def _clean(value: Any) -> str:
    """Return a label value of bounded length, with control characters escaped."""
    text = str(value)[:_MAX_LABEL]
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
