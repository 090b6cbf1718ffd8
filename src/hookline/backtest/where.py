"""The filter of ``--where``: which runs and moments are judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from .._base.text import did_you_mean
from .._kernel.points import resolve
from ..records.format import RunInfo
from .errors import BacktestError

_TERM = re.compile(r"(?P<name>\w+)(?P<how>!=|=|~)(?P<value>.*)", re.DOTALL)
_OF_MOMENT = ("tool", "point")
_OF_RUN: dict[str, Callable[[RunInfo], str]] = {
    "agent": lambda run: run.ids.agent,
    "model": lambda run: run.model,
    "provider": lambda run: run.provider,
    "task": lambda run: run.task,
    "run": lambda run: run.ids.run_id,
    "session": lambda run: run.ids.session_id,
}
_NAMES = (*_OF_MOMENT, *_OF_RUN, "status")


class Where:
    """A filter made of terms such as ``tool=shell``, ``agent!=test*``, ``task~invoice`` and ``status=failed``.

    ``=`` and ``!=`` compare with a glob, ``~`` looks for a text and ignores case. All terms must hold. ``status`` is
    that of the outermost run.

    Raises:
        BacktestError: a term is invalid.
    """

    def __init__(self, terms: Iterable[str] = ()) -> None:
        self._moment: list[tuple[str, str, str]] = []
        self._run: list[tuple[str, str, str]] = []
        self._status: list[tuple[str, str, str]] = []
        for text in terms:
            for term in text.split(" and ") if " and " in text else [text]:
                self._add(term.strip())
        self.filters_moments = bool(self._moment)
        self.filters_runs = bool(self._run)
        self.filters_status = bool(self._status)

    def _add(self, term: str) -> None:
        found = _TERM.fullmatch(term)
        if found is None:
            raise BacktestError(f"--where {term!r}: write for example tool=shell, agent!=test*, task~invoice")
        name, how, value = found["name"], found["how"], found["value"].strip()
        if name not in _NAMES:
            raise BacktestError(f"--where {term!r}: there is no {name!r}.{did_you_mean(name, _NAMES)}")
        if name == "point" and how != "~" and not set(value) & set("*?["):
            value = str(resolve(value))
        kept = self._moment if name in _OF_MOMENT else self._status if name == "status" else self._run
        kept.append((name, how, value))

    def wants_moment(self, point: str, tool: str) -> bool:
        """Whether moments of this point and tool are judged."""
        return all(_holds(tool if name == "tool" else point, how, value) for name, how, value in self._moment)

    def wants_run(self, run: RunInfo) -> bool:
        """Whether the moments of this run are judged."""
        return all(_holds(_OF_RUN[name](run), how, value) for name, how, value in self._run)

    def wants_status(self, status: str) -> bool:
        """Whether an outermost run that ended like this counts; empty for a run whose end was not recorded."""
        return all(_holds(status, how, value) for _, how, value in self._status)


def _holds(text: str, how: str, value: str) -> bool:
    if how == "~":
        return value.lower() in text.lower()
    return fnmatchcase(text, value) is (how == "=")
