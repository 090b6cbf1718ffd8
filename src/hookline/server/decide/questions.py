"""The questions that callers ask: one for each point of a run that a program can announce.

Their types are made from the payload classes: the same fields, but those that only the server knows. A field that does
not exist is an error at any depth, because a guard would not see what a misspelt field says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from ..._base.attachment import Attachment
from ..._base.frozen import Frozen
from ..._kernel.points import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    BEFORE_COMPACTION,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_TOKEN,
    Point,
)
from ..._kernel.values import ToolCall, ToolSpec
from ..api import attachments_of
from ..errors import ApiError
from ..views import END, AttachmentInput, Files, IdText, Name, Wait

SessionName = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=rf"^[^\u0000-\u001f\u007f]*{END}")]

ASKED: tuple[Point[Any], ...] = (
    ON_RUN_START,
    BEFORE_STEP,
    BEFORE_LLM,
    ON_TOKEN,
    AFTER_LLM,
    BEFORE_TOOL,
    AFTER_TOOL,
    AFTER_STEP,
    ON_ERROR,
    BEFORE_COMPACTION,
    ON_RUN_END,
)
"""The points that a caller asks about, in the order of a run. The others of a run fire by themselves.

So ``on_run_start`` also fires ``before_prompt_build``, and ``on_run_end`` begins with ``on_stop``.
"""

_OWN = frozenset(("ids", "source", "raw", "request", "organization_id", "hook", "hop", "attempt", "generation"))
"""Fields that the server fills in, or that only it can know."""
_CALL = ("id", "name", "arguments")
_ONLY: Mapping[str, frozenset[str]] = {
    BEFORE_TOOL: frozenset(_CALL),
    AFTER_TOOL: frozenset((*_CALL, "result", "error", "duration")),
    ON_RUN_END: frozenset(("reply", "errors")),
}
"""The fields of a payload that a caller gives, where the run knows the others."""
_NEEDED = {(ON_RUN_END, "reply")}
_OBJECTS = {(ToolCall, "arguments"), (ToolSpec, "parameters")}
"""Fields that are JSON objects, although their classes also accept text that a model wrote."""


class _Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every question has.

    ``run`` is the run that the caller believes to be in: if another one is open, the question is refused.
    """

    session: SessionName
    agent: Name = ""
    run: IdText = ""


class Asked(NamedTuple):
    """A question, with the payload that hooks get."""

    point: Point[Any]
    session: str
    payload: Any
    agent: str = ""
    run: str = ""
    wait: float = 0.0


def _strict(kind: Any, *, sent: bool) -> Any:
    """Return a type for values of callers that has the fields of ``kind`` and rejects others."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, sent)
    if origin in (Union, UnionType):
        return Union[tuple(_strict(each, sent=sent) for each in arguments)]  # noqa: UP007 - made at run time
    if origin is Annotated:
        return Annotated[(_strict(arguments[0], sent=sent), *arguments[1:])]
    if origin is Literal or not arguments:
        return kind
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[str, Any]
    if isinstance(origin, type) and issubclass(origin, (tuple, Sequence)):
        if sent and arguments[0] is Attachment:
            return Files
        return tuple.__class_getitem__((_strict(arguments[0], sent=sent), ...))
    raise TypeError(f"a caller cannot send {kind!r}")


_made: dict[type, type[Any]] = {}
"""The classes of payloads and of values in them, by the type that callers send."""
_forms: dict[tuple[type, bool, str], type[msgspec.Struct]] = {}
"""The types that were made, by class, whether callers send them, and point."""


def _struct(kind: type[msgspec.Struct], sent: bool, point: str = "") -> type[msgspec.Struct]:
    """Return the form of a struct that callers send, or get."""
    if (known := _forms.get((kind, sent, point))) is not None:
        return known
    only = _ONLY.get(point) if sent or point != ON_RUN_END else frozenset(("reply",))
    fields: list[Any] = []
    for each in msgspec.structs.fields(kind):
        if each.name in _OWN or (only is not None and each.name not in only):
            continue
        strict = dict[str, Any] if (kind, each.name) in _OBJECTS else _strict(each.type, sent=sent)
        if not sent or each.required or (point, each.name) in _NEEDED:
            fields.append((each.name, strict))
        elif each.default is not msgspec.NODEFAULT:
            fields.append((each.name, strict, _default(each.default)))
        else:
            fields.append((each.name, strict, msgspec.field(default_factory=each.default_factory)))
    made = msgspec.defstruct(
        kind.__name__ if sent else f"Judged{kind.__name__}",
        fields,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        module=__name__,
        namespace={"__doc__": _summary(kind)},
    )
    _made[made], _forms[kind, sent, point] = kind, made
    return made


def _default(value: Any) -> Any:
    """Return the default of a field in the type that callers send."""
    if not isinstance(value, msgspec.Struct):
        return value
    made = _struct(type(value), True)
    return made(**{name: getattr(value, name) for name in made.__struct_fields__})


def _summary(kind: type[Any]) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0].partition(". ")[0].rstrip(".") + "."


def _built(value: Any) -> Any:
    """Return a value of a caller as hooks get it."""
    if isinstance(value, tuple):
        files = value and isinstance(value[0], AttachmentInput)
        return tuple(attachments_of(value) if files else map(_built, value))
    if isinstance(value, msgspec.Struct):
        return _made[type(value)](**{name: _built(getattr(value, name)) for name in value.__struct_fields__})
    return value


PAYLOADS: dict[Point[Any], type[msgspec.Struct]] = {point: _struct(point.payload, True, str(point)) for point in ASKED}
"""What a caller sends as the payload of each point."""
SHOWN: dict[Point[Any], type[msgspec.Struct]] = {point: _struct(point.payload, False, str(point)) for point in ASKED}
"""What a caller gets back: the payload after the hooks, in which files are described."""


def _question(point: Point[Any]) -> type[msgspec.Struct]:
    name = "".join(map(str.title, point.split("_")))
    fields: list[Any] = [("payload", PAYLOADS[point])]
    if not PAYLOADS[point].__struct_fields__:
        fields = [("payload", PAYLOADS[point], msgspec.field(default_factory=PAYLOADS[point]))]
    if point == BEFORE_TOOL:
        fields.append(("wait", Wait, 0.0))
    made: type[msgspec.Struct] = msgspec.defstruct(
        name,
        fields,
        bases=(_Common,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        tag_field="point",
        tag=str(point),
        module=__name__,
        namespace={"__doc__": f"A question about ``{point}``: {point.when}."},
    )
    return made


QUESTIONS: dict[Point[Any], type[msgspec.Struct]] = {point: _question(point) for point in ASKED}
"""The body of a question about each point."""
_BY_NAME = {str(point): point for point in ASKED}
Question: Any = Union[tuple(QUESTIONS.values())]  # noqa: UP007 - made at run time
"""The body of any question."""


def asked(body: Any) -> Asked:
    """Return a question from its body.

    Raises:
        ApiError: a file cannot be used, or JSON is nested too deep.
    """
    point, given = _BY_NAME[body.__struct_config__.tag], body.payload
    try:
        payload = point.payload(**{name: _built(getattr(given, name)) for name in given.__struct_fields__})
    except (TypeError, ValueError) as error:
        raise ApiError(422, "bad_field", f"payload: {error}") from None
    return Asked(point, body.session, payload, body.agent, body.run, getattr(body, "wait", 0.0))


def shown(point: Point[Any], value: Frozen) -> msgspec.Struct:
    """Return a payload after the hooks as callers see it; at a merge point, the fields that hooks merged."""
    made: msgspec.Struct = _seen(value, SHOWN[point])
    return made


def _seen(value: Any, kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {each.name: _seen(getattr(value, each.name), each.type) for each in msgspec.structs.fields(kind)}
        return kind(**fields)
    if get_origin(kind) is tuple:
        return tuple([_seen(item, get_args(kind)[0]) for item in value])
    return value


def is_changed(point: Point[Any], before: Frozen, after: Frozen) -> bool:
    """Whether hooks have changed what a caller sees of a payload."""
    names = before.editable or before.__struct_fields__
    return any(
        getattr(before, name) != getattr(after, name) for name in SHOWN[point].__struct_fields__ if name in names
    )
