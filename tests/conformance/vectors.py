"""The vectors: cases as data, each with the one story that every door must tell about it.

A vector is a table in a file of ``vectors/``. It says what the model says, which hooks judge it, and what must happen.
A story is what a door shows of a run: the verdicts of hooks, the calls of tools, the approvals and the end.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

FOLDER = Path(__file__).parent / "vectors"


class _Data(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """Base of everything that is read from a file."""


class Told(_Data, frozen=True):
    """Base of the parts of a story. ``agent`` is the agent whose run it is."""


class HookVerdict(Told, frozen=True):
    """What one hook decided. ``verb`` is ``failed`` if it failed; ``error`` says how."""

    point: str
    verb: str
    hook: str = "rule"
    reason: str = ""
    tool: str = ""
    refused: bool = False
    error: str = ""
    agent: str = "main"


class PointVerdict(Told, frozen=True):
    """What all hooks of a point decided together, if they did not simply let it pass."""

    point: str
    verb: str
    hook: str = "rule"
    reason: str = ""
    agent: str = "main"


class CallTold(Told, frozen=True):
    """A tool call. ``ran`` are the arguments of each time that the tool began; ``read`` is what the model reads."""

    tool: str
    outcome: str
    read: str = ""
    ran: tuple[dict[str, Any], ...] = ()
    agent: str = "main"


class ApprovalTold(Told, frozen=True):
    """The decision about a call that a hook asked about."""

    decision: str
    tool: str = "shell"
    by: str = ""
    message: str = ""
    agent: str = "main"


class Attempt(Told, frozen=True):
    """One attempt of a tool call, which statistics count."""

    tool: str
    outcome: str


class Refusal(Told, frozen=True):
    """Something that was prevented: by a hook, or by an approver that denied a call.

    ``why`` is the reason, the error of a hook that failed, or the message of the approver.
    """

    hook: str
    point: str
    verb: str
    tool: str = ""
    reason: str = ""
    why: str = ""
    agent: str = "main"


class Story(_Data, frozen=True):
    """What a door tells about a run.

    ``shown`` is the text that readers of a stream keep. ``heard`` is the last message that the model really got, and
    ``ran`` the calls that tools really got; both are known where the run is executed.
    """

    status: str = "completed"
    stop: str = ""
    reply: str = ""
    shown: str = ""
    heard: str | None = None
    ran: tuple[tuple[str, dict[str, Any]], ...] = ()
    verdicts: tuple[HookVerdict, ...] = ()
    points: tuple[PointVerdict, ...] = ()
    calls: tuple[CallTold, ...] = ()
    approvals: tuple[ApprovalTold, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    attempts: tuple[Attempt, ...] = ()


class Expected(_Data, frozen=True):
    """The story as a vector writes it. ``points`` is needed where it does not follow from the verdicts."""

    status: str = "completed"
    stop: str = ""
    reply: str = "Done."
    shown: str | None = None
    heard: str | None = None
    verdicts: tuple[HookVerdict, ...] = ()
    points: tuple[PointVerdict, ...] | None = None
    calls: tuple[CallTold, ...] = ()
    approvals: tuple[ApprovalTold, ...] = ()

    @property
    def story(self) -> Story:
        """The whole story."""
        points = self.points
        if points is None:
            points = tuple(
                PointVerdict(each.point, each.verb, each.hook, each.reason, each.agent) for each in self.verdicts
            )
        stop = self.stop or ("completed" if self.status == "completed" else "")
        shown = self.reply if self.shown is None else self.shown
        ran = [(each.tool, arguments) for each in self.calls for arguments in each.ran if each.tool != "delegate"]
        refusals = [
            Refusal(v.hook, v.point, v.verb, v.tool, v.reason, v.reason or v.error, v.agent)
            for v in self.verdicts
            if v.refused
        ]
        denied = [each for each in self.approvals if each.decision == "denied"]
        refusals += [Refusal(a.by, "approval_requested", "denied", a.tool, "", a.message, a.agent) for a in denied]
        return Story(
            self.status,
            stop,
            self.reply,
            shown,
            self.heard,
            tuple(sorted(ran, key=repr)),
            self.verdicts,
            points,
            self.calls,
            self.approvals,
            tuple(refusals),
            tuple(Attempt(each.tool, each.outcome) for each in self.calls for _ in range(max(1, len(each.ran)))),
        )


class RuleData(_Data, frozen=True):
    """A hook: what it returns at its point, or does instead.

    ``verb`` is a verb of the point, or ``raise``, ``hang``, ``nonsense`` or ``cancel``. ``when`` are fields that the
    payload must have for that; ``once`` limits it to the first time in a run, and ``agent`` to the runs of one agent.
    """

    point: str
    verb: str
    value: Any = None
    reason: str = ""
    by: str = ""
    name: str = "rule"
    phase: Literal["rewrite", "guard", "observe", ""] = ""
    on_failure: str = ""
    timeout: float | None = None
    tools: tuple[str, ...] = ()
    when: dict[str, Any] = {}
    once: bool = False
    agent: str = ""


class Vector(_Data, frozen=True):
    """One case.

    ``model`` are the turns of the model: a text, a call (``{tool, arguments}``), a list of calls, or ``{error}``.
    ``helper`` are those of a subagent, which the tool ``delegate`` starts. ``approval_seconds`` adds the store of
    approvals, in which nobody decides for so long. ``compacts`` adds the compaction of long histories.
    """

    name: str
    says: str
    expect: Expected
    model: tuple[Any, ...] = ("Done.",)
    helper: tuple[Any, ...] = ()
    hooks: tuple[RuleData, ...] = ()
    limits: dict[str, float] = {}
    approval_seconds: float = 0
    compacts: bool = False
    group: str = ""

    @property
    def id(self) -> str:
        """The group and the name."""
        return f"{self.group}/{self.name}"

    @property
    def needs(self) -> frozenset[str]:
        """The points of its hooks, and the verbs and changed fields there: ``before_tool``, ``before_tool.replace``."""
        found = {rule.point for rule in self.hooks}
        for rule in self.hooks:
            found.add(f"{rule.point}.{rule.verb}")
            if rule.verb == "replace":
                found |= {f"{rule.point}.{field}" for field in rule.value}
        return frozenset(found)


class _File(_Data, frozen=True):
    title: str
    vector: tuple[Vector, ...]


ORDER = (
    "on_run_start",
    "before_prompt_build",
    "before_step",
    "before_llm",
    "on_token",
    "after_llm",
    "before_tool",
    "approvals",
    "after_tool",
    "after_step",
    "on_stop",
    "on_error",
    "on_run_end",
    "before_compaction",
    "failures",
    "parallel",
    "subagents",
    "budgets",
)
"""The groups in the order of the page."""


@cache
def groups() -> dict[str, tuple[str, tuple[Vector, ...]]]:
    """Return the groups by name, each with its title and its vectors."""
    found = {}
    for name in ORDER:
        with (FOLDER / f"{name}.toml").open("rb") as file:
            data = msgspec.convert(tomllib.load(file), _File)
        found[name] = data.title, tuple(msgspec.structs.replace(each, group=name) for each in data.vector)
    return found


def vectors() -> tuple[Vector, ...]:
    """Return all vectors."""
    return tuple(each for _, some in groups().values() for each in some)


_PARTS: dict[str, type[Told]] = {
    "verdicts": HookVerdict,
    "points": PointVerdict,
    "calls": CallTold,
    "approvals": ApprovalTold,
    "refusals": Refusal,
    "attempts": Attempt,
}


def project(story: Story, shows: Iterable[str], *, ordered: bool = True) -> dict[str, Any]:
    """Return the part of a story that a door shows.

    Args:
        story: the story.
        shows: what it shows: ``status``, ``calls``, or only some fields of a part, such as ``verdicts.reason``.
        ordered: whether the door shows in which order things happened. Otherwise the parts are sorted.
    """
    parts: dict[str, list[str]] = {}
    seen: dict[str, Any] = {}
    for name in shows:
        part, _, field = name.partition(".")
        if part in _PARTS:
            parts.setdefault(part, []).extend([field] if field else _PARTS[part].__struct_fields__)
        else:
            seen[part] = getattr(story, part)
    for part, fields in parts.items():
        rows = [{field: _without_ids(getattr(each, field)) for field in fields} for each in getattr(story, part)]
        seen[part] = rows if ordered else sorted(rows, key=repr)
    return seen


def _without_ids(value: Any) -> Any:
    """Return a text without random ids."""
    return re.sub(r"appr_[0-9a-f]+", "appr_…", value) if isinstance(value, str) else value


class Cannot(_Data, frozen=True):
    """Vectors that a door cannot run, by globs of their ids, and the reason.

    ``refused`` says that a framework refuses their hooks when they are attached.
    """

    vectors: tuple[str, ...]
    reason: str
    refused: bool = False


class Partly(_Data, frozen=True):
    """Vectors of which a door shows less than usual: only these fields, or all but these, and the reason."""

    vectors: tuple[str, ...]
    reason: str
    shows: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()


class Omits(_Data, frozen=True):
    """Points and verbs whose verdicts a door does not show, and the reason."""

    reason: str
    points: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()


class DoorData(_Data, frozen=True):
    """A door: a way to run agents, or to see what they did. ``kind`` is its part of the page.

    ``shows`` is the part of a story that it shows; ``ordered`` whether it shows the order. A door ``like`` another one
    shows the same, if it does not say what it shows, and cannot do what that one cannot do; what it says about a vector
    itself comes first. ``can`` are exceptions from ``cannot``.
    """

    id: str
    name: str
    says: str
    kind: Literal["own", "framework", "agent"] = "own"
    shows: tuple[str, ...] = ()
    like: str = ""
    ordered: bool = True
    can: tuple[str, ...] = ()
    cannot: tuple[Cannot, ...] = ()
    omits: tuple[Omits, ...] = ()
    partly: tuple[Partly, ...] = ()

    def shown_part(self, vector: Vector, story: Story) -> dict[str, Any]:
        """Return the part of a story about a vector that the door shows."""
        hidden = {point for each in self.omits for point in each.points}
        verbs = {verb for each in self.omits for verb in each.verbs}
        less = _first(self.partly, vector)
        shown = self.shows if less is None else less.shows or _without(self.shows, less.hides)
        shows = [name for name in shown if name != "heard" or vector.expect.heard is not None]
        kept = msgspec.structs.replace(
            story,
            verdicts=tuple(each for each in story.verdicts if each.point not in hidden and each.verb not in verbs),
            points=tuple(each for each in story.points if each.point not in hidden),
            refusals=tuple(each for each in story.refusals if each.point not in hidden),
        )
        return project(kept, shows, ordered=self.ordered)

    def why_not(self, vector: Vector) -> Cannot | None:
        """Return why the door cannot run a vector; ``None`` if it can."""
        return None if vector.id in self.can else _first(self.cannot, vector)

    def notes(self, vector: Vector) -> list[str]:
        """Return why the door shows less than usual of a vector."""
        points = {each.point for each in (*vector.expect.verdicts, *(vector.expect.points or ()))}
        verbs = {each.verb for each in vector.expect.verdicts}
        found = [
            each.reason for each in self.omits if not points.isdisjoint(each.points) or not verbs.isdisjoint(each.verbs)
        ]
        less = _first(self.partly, vector)
        return found if less is None else [*found, less.reason]


def _without(shows: Iterable[str], hides: Sequence[str]) -> list[str]:
    """Return the fields that are not hidden, by themselves or with their part."""
    return [name for name in shows if name not in hides and name.partition(".")[0] not in hides]


_Listed = TypeVar("_Listed", Cannot, Partly)


def _first(lists: Iterable[_Listed], vector: Vector) -> _Listed | None:
    """Return the first of these lists that names a vector."""
    for each in lists:
        if any(fnmatchcase(vector.id, glob) for glob in each.vectors):
            return each
    return None


@cache
def doors() -> dict[str, DoorData]:
    """Return the doors of ``doors.toml`` by id, in the order of the page."""
    with (FOLDER.parent / "doors.toml").open("rb") as file:
        found = msgspec.convert(tomllib.load(file)["door"], list[DoorData])
    known: dict[str, DoorData] = {}
    for door in found:
        known[door.id] = door
        if door.like:
            other = known[door.like]
            known[door.id] = msgspec.structs.replace(
                door,
                kind=other.kind,
                shows=door.shows or other.shows,
                ordered=other.ordered,
                cannot=(*door.cannot, *other.cannot),
                partly=(*door.partly, *other.partly),
                omits=(*door.omits, *other.omits),
            )
    return known
