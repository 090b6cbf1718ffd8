"""Calls that wait for a person's yes, and what was allowed for good: the rows, and which calls a grant covers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from .._base.frozen import scrub
from .._kernel.payloads import Question
from .errors import StoreError

MAX_GLOB = 1000
MAX_NAMES = 100


class ApprovalRow(msgspec.Struct, frozen=True):
    """A call that was put to people, with its exact arguments, and what became of it.

    ``status``: ``pending``, ``approved``, ``denied``, ``edited``, ``expired`` or ``cancelled``. ``digest`` is of the
    tool's name and the arguments: a decision must name it. ``root_id`` is the run that was started, ``run_id`` the one
    that asks, which may be inside it. ``remember``: ``once``, ``session`` or ``always``.
    """

    id: str
    run_id: str
    root_id: str
    call_id: str
    attempt: int
    tool: str
    arguments: dict[str, Any]
    questions: tuple[Question, ...]
    digest: str
    agent: str
    session_id: str
    owner: str
    correlation_id: str
    asked: float
    expires: float
    status: str
    decided: float | None
    by: str
    message: str
    edit: dict[str, Any] | None
    remember: str

    @property
    def hooks(self) -> tuple[str, ...]:
        """The names of the hooks that ask."""
        return tuple(sorted({question.hook for question in self.questions}))


class GrantRow(msgspec.Struct, frozen=True):
    """A standing permission, which answers later calls of a tool.

    ``scope``: ``session``, in the session ``session_id``; or ``always``, in every session. Either way only for runs of
    the agent ``agent`` and of ``owner``, and only the questions of ``hooks``. It is for the calls that ``pattern``
    covers; if that is empty, for those with exactly ``arguments``.
    """

    id: str
    scope: str
    session_id: str
    agent: str
    owner: str
    tool: str
    pattern: dict[str, str]
    arguments: dict[str, Any] | None
    digest: str
    hooks: tuple[str, ...]
    by: str
    at: float

    def covers(self, digest: str, arguments: Mapping[str, Any], hooks: Iterable[str]) -> bool:
        """Whether it answers all that these hooks ask about a call of its tool."""
        if not set(hooks) <= set(self.hooks):
            return False
        return matches(self.pattern, arguments) if self.pattern else digest == self.digest


class DecisionRefusedError(StoreError):
    """A decision that does not count.

    ``code`` is ``gone`` (it was decided, or is over), ``digest`` (what was shown is not what waits) or ``bad`` (such a
    decision cannot be made). ``row`` is the call as it is now, if it was looked at.
    """

    def __init__(self, code: str, message: str, row: ApprovalRow | None = None) -> None:
        super().__init__(message)
        self.code, self.row = code, row


def matches(pattern: Mapping[str, str], arguments: Mapping[str, Any]) -> bool:
    """Whether a pattern covers these arguments.

    Every argument must match the glob of its name, or else that of ``*``; a name in the pattern must be among the
    arguments. Text is compared as it is, every other value as JSON.
    """
    return not uncovered(pattern, arguments)


def uncovered(pattern: Mapping[str, str], arguments: Mapping[str, Any]) -> str:
    """Why a pattern does not cover these arguments; nothing, if it does."""
    for name in pattern:
        if name != "*" and name not in arguments:  # it may have a default, which nobody looked at
            return f"it has no argument {name!r:.80}"
    for name, value in arguments.items():
        glob = pattern.get(name, pattern.get("*"))
        if glob is None:
            return f"there is no glob for {name!r:.80}, nor one for all others, '*'"
        if not fnmatchcase(_text(value), glob):
            return f"{name!r:.80} is not like {glob!r:.80}"
    return ""


def checked_pattern(pattern: object) -> dict[str, str]:
    """A pattern that can be used.

    Raises:
        DecisionRefusedError: it cannot (``bad``).
    """
    if not isinstance(pattern, Mapping) or not 0 < len(pattern) <= MAX_NAMES:
        raise DecisionRefusedError("bad", 'a pattern is argument names with globs, such as {"path": "notes/*"}')
    for name, glob in pattern.items():
        if not isinstance(name, str) or not isinstance(glob, str) or not name or len(glob) > MAX_GLOB:
            raise DecisionRefusedError("bad", f"in a pattern, {name!r:.80} needs a glob, a text of at most {MAX_GLOB}")
    return dict(pattern)


def _text(value: Any) -> str:
    value = scrub(value)
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
