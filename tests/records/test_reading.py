"""Reading records: payloads come back as they arrived, and a time selects the files."""

import os

import msgspec
import pytest
from msgspec.inspect import (
    AnyType,
    BoolType,
    CollectionType,
    DictType,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    NoneType,
    StructType,
    UnionType,
    VarTupleType,
    type_info,
)

from hookline import AFTER_LLM, BEFORE_LLM, Agent, ErrorReport, ScriptedModel, hook, reply
from hookline._kernel.fire_observers import FireReport
from hookline._kernel.results import Verdict
from hookline.payloads import Ids
from hookline.points import POINTS
from hookline.records import RecordHook, read_runs
from hookline.records.encoding import MomentEncoder, RunTree, encode_line
from hookline.records.format import VERSION, Header, HeaderLine, RunInfo
from hookline.records.reading import record_files
from hookline.testing import sample

SHARED = ("ids", "purpose")
"""Fields that a reply has in common with its request."""


def filled(kind, name=""):
    """Return a JSON value of a type in which no field has its default value."""
    match kind:
        case StructType():
            return {
                f.encode_name: filled(f.type, f.name if f.name in SHARED else f"{name}.{f.name}") for f in kind.fields
            }
        case UnionType():
            return filled(next(each for each in kind.types if not isinstance(each, NoneType)), name)
        case CollectionType() | ListType() | VarTupleType():
            return [filled(kind.item_type, name)]
        case DictType():
            return {"key": filled(kind.value_type, name)}
        case LiteralType():
            return kind.values[-1]
        case BoolType():
            return True
        case IntType():
            return 3
        case FloatType():
            return 0.5
        case AnyType():
            return {"a": [1, "two", None]}
        case _:
            return f"the {name}"


def full(cls):
    """Return a payload in which no field has its default value."""
    return msgspec.convert(filled(type_info(cls)), cls)


def samples():
    for point in POINTS.values():
        if point.payload is ErrorReport:
            failed = full(ErrorReport)
            yield pytest.param(point, failed.replace(where="model"), id="on_error-model")
            yield pytest.param(point, failed.replace(where="tool", purpose="", request=None), id="on_error-tool")
        else:
            yield pytest.param(point, full(point.payload), id=f"{point}-full")
        yield pytest.param(point, sample(point), id=f"{point}-empty")


@pytest.mark.parametrize(("point", "payload"), list(samples()))
def test_a_payload_of_every_point_is_restored(tmp_path, point, payload):
    lines = [encode_line(HeaderLine("hookline", Header(VERSION)))]
    encoder = MomentEncoder(RunTree(lines.append), RunInfo(getattr(payload, "ids", Ids())), frozenset(POINTS))
    request = getattr(payload, "request", None)
    if request is not None:
        encoder.fire_ended(FireReport(BEFORE_LLM, request, Verdict(request)))
    encoder.fire_ended(FireReport(point, payload, Verdict(payload)))
    encoder.finish(None)
    (tmp_path / "a.moments").write_bytes(b"".join(lines))
    (run,) = read_runs([tmp_path])
    restored = run.moments[-1].payload
    assert type(restored) is point.payload
    assert restored == payload


def test_a_reply_contains_its_own_request_although_a_hook_has_called_the_model_since(tmp_path):
    @hook(AFTER_LLM)
    async def check(ctx, answer):
        if answer.purpose == "step":
            await ctx.llm.complete("Is it polite?", purpose="check")

    model = ScriptedModel([reply("Hello."), reply("Yes.")])
    Agent("greeter", llm=model, hooks=[check, RecordHook(tmp_path)]).run("Greet")
    (run,) = read_runs([tmp_path])
    replies = [moment.payload for moment in run.moments if moment.point == AFTER_LLM]
    assert [(each.content, each.purpose) for each in replies] == [("Yes.", "check"), ("Hello.", "step")]
    assert [each.request.messages[-1].content for each in replies] == ["Is it polite?", "Greet"]


def write_runs(file, *times):
    """Write a record of empty runs that started at these times."""
    lines = [encode_line(HeaderLine("hookline", Header(VERSION)))]
    for at in times:
        MomentEncoder(RunTree(lines.append), RunInfo(time=at), frozenset(POINTS)).finish(None)
    file.write_bytes(b"".join(lines))


def test_only_runs_that_started_since_a_time_are_read(tmp_path):
    write_runs(tmp_path / "a.moments", 1000.0, 2000.0, 3000.0)
    assert [run.info.time for run in read_runs([tmp_path], since=2000.0)] == [2000.0, 3000.0]


def test_a_run_is_found_although_the_clock_of_its_file_is_behind(tmp_path):
    file = tmp_path / "a.moments"
    write_runs(file, 1000.5)
    os.utime(file, (999.0, 999.0))
    assert [run.info.time for run in read_runs([tmp_path], since=1000.25)] == [1000.5]


def test_a_file_that_was_last_written_long_before_a_time_is_left_out(tmp_path):
    write_runs(tmp_path / "a.moments", 1000.0)
    os.utime(tmp_path / "a.moments", (1001.0, 1001.0))
    assert record_files([tmp_path], since=2000.0) == []
