"""The format of recorded moments: lines of JSON arrays (DESIGN 6.13).

A file of moments contains whole runs, one after the other. A run with its nested runs is one block of lines::

    ["hookline", {"format": 1, "hookline": "1.0", "time": 1790000000.0}]      the first line of a file
    ["hooks", "3f2a91", [{"name": "no_sudo", "points": {…}, …}]]              hooks, before the first run that has them
    ["run", 0, {"ids": {…}, "time": 1790000000.1, "task": "…", "hooks": "3f2a91", …}]
    ["before_tool", "shell", 0, 12, 0.0123, 0.0001, {payload}, [decisions], [verdict], {notes}]
    ["run", 1, {…}]                                                           a nested run
    ["label", "shell", 0, 12, {"label": "denied", "call_id": "call_1", "by": "ann"}]
    ["end", 1, {…}]
    ["end", 0, {"status": "completed", …}]

Every line after the first belongs to the run whose number it contains; 0 is the outermost run of the block. A moment
begins with its point and its tool, so that a reader can skip it by its first bytes. Payloads are as they arrived at the
point, before any hook saw them. They do not contain the ids (they are in the line of the run), fields that have their
default value, and the messages that the previous request of the run already contained (``kept``).

A tape contains the same lines among its own entries, so everything that reads moments reads tapes too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from .._base.errors import PlainError
from .._base.frozen import Frozen
from .._kernel.values import Ids, Usage

VERSION = 1
"""The version of the format. A reader rejects files with a higher one."""

SUFFIX = ".moments"
TAPE_SUFFIX = ".tape"
TAPE_VERSION = 5
"""The version of the format of tapes. Tapes of other versions are not read."""

MAIN_POINTS = frozenset(
    (
        "on_run_start",
        "before_llm",
        "after_llm",
        "before_tool",
        "after_tool",
        "on_run_end",
        # These fire rarely, so recording them costs nothing in a usual step.
        "on_stop",
        "on_error",
        "before_compaction",
        "approval_requested",
        "approval_decided",
        "subagent_spawning",
        "subagent_ended",
        "personality_switched",
        "before_ticket_complete",
    )
)
"""The points that are recorded by default: those at which guards decide, without the frequent ones of a step."""

Inexact = Literal["", "redacted", "cut", "partial"]
"""Why a recorded payload differs from the payload that hooks saw: sensitive values were replaced, it was too long, or
it was imported from a source that does not contain all fields."""


class RecordError(PlainError):
    """A record cannot be read or written. The message says what to do."""


class TapeHead(msgspec.Struct, frozen=True):
    """The part of the first line of a tape that every version of its format has. ``time`` is the start of the tape."""

    entry: str
    version: int
    time: float = 0.0

    @property
    def problem(self) -> str:
        """Why this version of Hookline does not read the tape; empty if it does."""
        if self.version == TAPE_VERSION:
            return ""
        return (
            f"version {self.version} of the tape format, and this version of Hookline reads only version "
            f"{TAPE_VERSION}: record it again, or use the version of Hookline that wrote it"
        )


class Header(Frozen, frozen=True, omit_defaults=True):
    """The first line of a file. ``source`` is the system that an import came from; empty for Hookline's own runs."""

    format: int = 0
    hookline: str = ""
    time: float = 0.0
    source: str = ""


class HookInfo(Frozen, frozen=True, omit_defaults=True):
    """A registered hook: its phase, priority, globs and failure policy at each point, and a digest of its rule."""

    name: str
    points: Mapping[str, HookAtPoint] = {}
    source: str = ""
    """Digest of the code and the arguments."""
    module: str = ""
    plugin: str = ""


class HookAtPoint(Frozen, frozen=True, omit_defaults=True):
    """The options of a hook at one point. ``order`` is its position among all hooks of the point."""

    phase: str = "rewrite"
    priority: float = 0
    tools: tuple[str, ...] = ()
    on_failure: str = "closed"
    order: int = 0


class ToolInfo(Frozen, frozen=True, omit_defaults=True):
    """A tool that the run could call.

    ``effects`` is ``None`` if the tool declares nothing; ``sandbox`` is the sandbox in which it runs commands, if any.
    """

    name: str
    effects: tuple[str, ...] | None = None
    untrusted: bool = False
    dangerous: bool = False
    sandbox: str = ""


class RunInfo(Frozen, frozen=True, omit_defaults=True):
    """The line of a run: its input. ``outer`` is the number of the run that started it; ``call_id`` the tool call."""

    ids: Ids = Ids()
    time: float = 0.0
    """Unix time of the start."""
    task: str = ""
    system: str = ""
    model: str = ""
    provider: str = ""
    metadata: Any = None
    tools: tuple[ToolInfo, ...] = ()
    hooks: str = ""
    """The digest of the line with the hooks."""
    rules: str = ""
    """The digest of the rules: of the hooks that do not only observe, with their code, arguments and order."""
    points: tuple[str, ...] = ()
    """The points that are recorded; empty for all main points."""
    outer: int | None = None
    call_id: str = ""
    at: float = 0.0
    """Seconds from the start of the outermost run to the start of this one."""
    goes_on: bool = False
    """Whether an earlier record of the run has its beginning: the host of the run has asked another process since."""


class RunEnd(Frozen, frozen=True, omit_defaults=True):
    """The line at the end of a run."""

    status: str = ""
    stop: str = ""
    stop_message: str = ""
    reply: str = ""
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cost: float | None = None
    elapsed: float = 0.0
    errors: int = 0


class Decision(Frozen, frozen=True, array_like=True):
    """The verdict of one hook on a moment. Only hooks that returned something or failed have one.

    ``changed`` contains the new values of the fields that a rewriter changed, relative to the payload before it;
    changed messages as ``{"kept": n, "new": […]}``. ``state`` is the same for a returned ``state=``.
    """

    hook: str
    phase: str
    verb: str
    reason: str = ""
    value: Any = None
    """The message, answer, question, note, reply, merged fields or claim."""
    changed: Mapping[str, Any] | None = None
    state: Mapping[str, Any] | None = None
    error: str | None = None
    took: float = 0.0
    """Seconds."""
    refused: bool | None = None
    """Whether the hook prevented something (``HookExecuted.refused``); ``None`` in imports and older records."""

    @property
    def is_refusal(self) -> bool:
        """Whether the hook prevented something. If the record does not say it, the verb does."""
        return self.verb in ("block", "end") if self.refused is None else self.refused


class RecordedVerdict(Frozen, frozen=True, array_like=True):
    """The verdict of a point, if it is not simply ``cont``: the verb, the hook and its reason."""

    verb: str
    hook: str = ""
    reason: str = ""


class Notes(Frozen, frozen=True, omit_defaults=True):
    """Notes for the reader of a payload."""

    kept: int = 0
    """The number of messages that are left out at the beginning. At ``before_llm``, the previous request began with
    them; at ``on_run_end``, they are the last ones of the previous request."""
    tools_kept: bool = False
    """At ``before_llm``: the tools are those of the previous request of the run."""
    checked: Any = None
    """At ``before_tool``: the validated arguments, which the guards judged, if validation changed them."""
    inexact: Inexact = ""
    missing: tuple[str, ...] = ()
    """Fields of the payload that the source did not contain."""


NO_NOTES = Notes()


class Label(Frozen, frozen=True, omit_defaults=True):
    """A person's decision about a call: ``approved``, ``denied``, ``good`` or ``bad``."""

    label: Literal["approved", "denied", "good", "bad"]
    call_id: str = ""
    by: str = ""
    note: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether the call should not have run."""
        return self.label in ("denied", "bad")


class HeaderLine(Frozen, frozen=True, array_like=True):
    """``["hookline", {…}]``."""

    kind: Literal["hookline"]
    header: Header


class HooksLine(Frozen, frozen=True, array_like=True):
    """``["hooks", digest, […]]``."""

    kind: Literal["hooks"]
    digest: str
    hooks: tuple[HookInfo, ...]


class RunLine(Frozen, frozen=True, array_like=True):
    """``["run", number, {…}]``."""

    kind: Literal["run"]
    run: int
    info: RunInfo


class EndLine(Frozen, frozen=True, array_like=True):
    """``["end", number, {…}]``."""

    kind: Literal["end"]
    run: int
    end: RunEnd


class LabelLine(Frozen, frozen=True, array_like=True):
    """``["label", tool, run, n, {…}]``. ``n`` is the position of the labelled moment; -1 if only the call is known."""

    kind: Literal["label"]
    tool: str
    run: int
    n: int
    label: Label


class Place(Frozen, frozen=True, array_like=True):
    """The place of a moment in a tape, as that of an :class:`~hookline.tape.format.TapeEntry`."""

    lane: str = ""
    inside: str = ""
    readings: tuple[tuple[str, Any], ...] = ()


class MomentLine(Frozen, frozen=True, array_like=True):
    """One fire of a point: ``[point, tool, run, n, at, took, payload, decisions, verdict, notes]``.

    ``n`` numbers the moments of the block from 0. ``at`` is the time in seconds since the outermost run started, and
    ``took`` the time that the hooks of the point needed. ``decisions``, ``verdict`` and ``notes`` are ``null`` if there
    is nothing to say, and may be left out at the end of the line.
    """

    point: str
    tool: str
    run: int
    n: int
    at: float
    took: float
    payload: msgspec.Raw
    decisions: tuple[Decision, ...] | None = None
    verdict: RecordedVerdict | None = None
    notes: Notes | None = None
    place: Place | None = None
    """In a tape only: where the moment belongs in a replay."""


NOT_MOMENTS = ("hookline", "hooks", "run", "end", "label")
"""The first items of lines that are not moments."""
OTHER_LINES = tuple(f'["{kind}",'.encode() for kind in NOT_MOMENTS)
"""How these lines begin."""
