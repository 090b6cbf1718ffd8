"""An event of a coding agent and the answer to it, in the words of no agent in particular.

The module needs nothing but the standard library, because an event must be refused whatever is broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "session_start",
    "session_end",
    "prompt",
    "before_tool",
    "permission",
    "after_tool",
    "compaction",
    "stop",
    "ignored",
]
"""What an event is about. Nothing happens at one that is ``ignored``."""

BEGINNINGS: tuple[Kind, ...] = ("prompt", "before_tool", "permission")
"""The events at which something begins: they are refused while a stop switch is on."""


class _Same:
    """The type of :data:`SAME`."""

    def __repr__(self) -> str:
        return "SAME"


SAME = _Same()
"""In place of a result: the result stays as it is."""


class AgentEvent(NamedTuple):
    """An event of a coding agent.

    Args:
        kind: what it is about.
        name: the agent's own name of the event.
        session: the id of the session.
        cwd: the working folder of the session.
        run: the id of the prompt that the event belongs to, if the agent has such ids.
        subagent: the id of the subagent that the event belongs to.
        tool: the agent's own name of the tool of a call.
        input: the arguments of the call, under their own names.
        call_id: the id of the call.
        result: the result of a call that ended.
        result_type: what the agent calls a result of this kind, if it has words for that.
        error: the error of a call that failed.
        seconds: how long the call took.
        prompt: what the user wrote.
        reply: the last reply of the model.
        trigger: why a compaction begins.
        asks_nobody: whether the agent runs all calls without asking its user.
    """

    kind: Kind
    name: str
    session: str
    cwd: str = ""
    run: str | None = None
    subagent: str = ""
    tool: str = ""
    input: Mapping[str, Any] = {}
    call_id: str = ""
    result: Any = None
    result_type: str = ""
    error: str | None = None
    seconds: float = 0.0
    prompt: str = ""
    reply: str = ""
    trigger: str = ""
    asks_nobody: bool = False


class Answer(NamedTuple):
    """The answer of the hooks to an event. Without any field, they have no opinion.

    Args:
        deny: why the call, prompt, permission or compaction is prevented.
        stop: why the agent must not go on at all.
        ask: a question for the user of the agent, about a call.
        changed: the new arguments of a call, under the agent's names.
        is_free: whether a changed call may run without a question.
        allow: whether an approver has given a permission.
        result: what the model reads in place of the result.
        note: a note for the model beside a result.
        context: a text for the model beside a prompt.
        go_on: why the agent must go on although it is about to stop.
        notice: a text for the user.
    """

    deny: str | None = None
    stop: str | None = None
    ask: str | None = None
    changed: dict[str, Any] | None = None
    is_free: bool = False
    allow: bool = False
    result: Any = SAME
    note: str | None = None
    context: str = ""
    go_on: str | None = None
    notice: str = ""


NOTHING = Answer()
"""The hooks have no opinion."""


class CommandOutput(NamedTuple):
    """What the command prints, and its exit code."""

    stdout: bytes = b""
    stderr: bytes = b""
    code: int = 0


class Fields:
    """The fields of an event, with checked types.

    Each method raises ``ValueError`` if a field has another type.
    """

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise ValueError("it is not a JSON object")
        self._given = given

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def text(self, *names: str, needed: bool = False) -> str:
        """Return the first of these fields that is there. ``null`` is an empty text."""
        for name in names:
            value = self._given.get(name)
            if isinstance(value, str):
                if value or not needed:
                    return value
            elif value is not None:
                raise ValueError(f"{name} is not a text")
        if needed:
            raise ValueError(f"{names[0]} is missing")
        return ""

    def object(self, name: str) -> Mapping[str, Any]:
        """Return a field that is an object, which must be there."""
        value = self._given.get(name)
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is {'missing' if value is None else 'not an object'}")
        return value

    def number(self, name: str) -> float:
        """Return a field that is a number; 0 if it is missing."""
        value = self._given.get(name)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name} is not a number")
        return float(value)

    def any(self, name: str) -> Any:
        """Return a field of any type, which must be there."""
        if name not in self._given:
            raise ValueError(f"{name} is missing")
        return self._given[name]
