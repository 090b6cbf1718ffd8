"""AuditLogHook: records of runs in the audit log."""

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from datetime import datetime
from importlib import import_module
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookline.hooks.audit_log as module
import hookline.stores.audit.file as audit_file
from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_TOOL,
    ON_ERROR,
    ON_TOKEN,
    Agent,
    AgentContext,
    Event,
    HookResult,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._base.frozen import digest
from hookline.events import TaskTaken, ToolStarted
from hookline.hooks import AuditLogHook, MetricsHook, SensitiveDataHook, shadow
from hookline.payloads import Usage
from hookline.stores import AuditLog, verify_audit
from hookline.stores.audit.format import line_hash
from hookline.stores.audit.records import LOG_RECORDS, RECORD_TYPES
from hookline.testing import fire_hook, scripted_agent
from tests.properties import examples
from tests.waiting import wait_until

IDS = ["run_id", "task_id", "correlation_id", "session_id", "agent", "parent_run_id"]
posix = pytest.mark.skipif(os.name == "nt", reason="not on Windows")


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def run_records(path):
    """The records of runs, without those of the log itself."""
    return [line for line in lines(path) if line["type"] != "open"]


def types(path):
    return [line["type"] for line in run_records(path)]


def of(path, type):
    return [line for line in lines(path) if line["type"] == type]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "logs" / "audit.jsonl"


def run(path, turns, hooks=(), given=None, tools=(add,), **options):
    audit = AuditLogHook(path, **(given or {}))
    agent = scripted_agent(turns, tools=tools, hooks=[audit, *hooks])
    try:
        return agent.run("the task", **options)
    finally:
        assert audit.flush(10)


# Records.


def test_a_run_is_recorded_from_start_to_end_with_its_ids(path):
    result = run(path, [call("add", a=1, b=2), reply("three")], task_id="t1", correlation_id="c1")
    assert types(path) == ["run_start", "task", "model", "tool", "model", "stop", "run_end"]
    for line in run_records(path):
        assert list(line)[:4] == ["v", "seq", "time", "type"]
        assert list(line)[4:10] == IDS
        assert list(line)[-1] == "prev"
        assert (line["run_id"], line["task_id"], line["correlation_id"]) == (result.ids.run_id, "t1", "c1")
        assert line["session_id"] == result.ids.session_id
        assert len(line["time"]) == len("2026-01-01T00:00:00.000Z")
        datetime.fromisoformat(line["time"])
    assert verify_audit(path).ok


def test_a_model_record_has_the_cost_and_the_provider(path):
    turn = reply("hi", usage=Usage(7, 3, 2), model="m-1", provider="p", cost=0.5, organization_id="org")
    run(path, [turn])
    (line,) = of(path, "model")
    assert (line["provider"], line["model"], line["organization_id"]) == ("p", "m-1", "org")
    assert (line["input_tokens"], line["output_tokens"], line["cached_tokens"], line["cost"]) == (7, 3, 2, 0.5)
    assert (line["purpose"], line["hop"], line["attempt"], line["source"]) == ("step", 0, 1, "model")
    assert (line["finish_reason"], line["verb"], line["tool_calls"]) == ("stop", "cont", [])


def test_a_tool_record_has_a_digest_of_the_arguments(path):
    run(path, [call("add", a=1, b=2), reply("three")])
    model, (line,) = of(path, "model")[0], of(path, "tool")
    assert (model["tool_calls"], model["call_ids"]) == (["add"], [line["call_id"]])
    assert line["digest"] == digest(["add", {"a": 1, "b": 2}])
    assert (line["tool"], line["outcome"], line["attempt"]) == ("add", "ok", 1)
    assert line["duration_ms"] >= 0


def test_a_verdict_record_names_the_hook_and_the_reason(path):
    @guard(BEFORE_TOOL)
    def no(ctx, request):
        return HookResult.block("not that", reason="rules")

    run(path, [call("add", a=1, b=2), reply("three")], [no])
    (line,) = of(path, "verdict")
    assert (line["hook"], line["point"], line["phase"], line["verb"]) == ("no", "before_tool", "guard", "block")
    assert line["reason"] == "rules"
    assert of(path, "tool")[0]["outcome"] == "blocked"
    assert of(path, "error")[0]["error_type"] == "Blocked"


def test_rejected_and_ended_replies_are_recorded_as_model_calls(path):
    @hook(AFTER_LLM)
    def judge(ctx, got):
        return HookResult.retry("again") if got.attempt == 1 else HookResult.end("over", reason="bad words")

    run(path, [reply("one", usage=Usage(5, 5)), reply("two", usage=Usage(6, 6))], [judge])
    assert [(line["attempt"], line["verb"], line["input_tokens"]) for line in of(path, "model")] == [
        (1, "retry", 5),
        (2, "end", 6),
    ]
    (end,) = of(path, "run_end")
    assert (end["status"], end["hook_ended"], end["input_tokens"]) == ("ended", "bad words", 11)


def test_a_generation_that_a_hook_ends_is_recorded_as_a_model_call(path):
    @hook(ON_TOKEN)
    def enough(ctx, token):
        return HookResult.end("enough")

    run(path, [reply("one two three")], [enough])
    assert [line["verb"] for line in of(path, "model")] != []


def test_approval_questions_and_decisions_are_recorded_with_the_digest_of_the_call(path):
    @guard(BEFORE_TOOL)
    def careful(ctx, request):
        return HookResult.ask("Sure?")

    @hook("approval_requested")
    def person(ctx, asked):
        return HookResult.edit({"a": 5, "b": 5}, by="ann")

    run(path, [call("add", a=1, b=2), reply("ten")], [careful, person])
    (asked,), (decided,), (done,) = of(path, "approval_asked"), of(path, "approval"), of(path, "tool")
    assert asked["digest"] == digest(["add", {"a": 1, "b": 2}])
    assert (decided["decision"], decided["by"], decided["digest"]) == ("edited", "ann", done["digest"])
    assert done["digest"] == digest(["add", {"a": 5, "b": 5}])


def test_failures_of_models_tools_and_hooks_are_recorded(path):
    @tool
    def crash() -> None:
        """Crash."""
        raise LookupError("gone")

    @observer(BEFORE_TOOL)
    def weak(ctx, request):
        raise ZeroDivisionError("oops")

    with pytest.raises(RunFailedError):
        run(path, [call("crash"), OSError("down")], [weak], tools=[crash])
    assert {(line["where"], line["error_type"], line["source"]) for line in of(path, "error")} == {
        ("hook", "ZeroDivisionError", "weak"),
        ("tool", "LookupError", "crash"),
        ("model", "OSError", "scripted"),
    }
    assert [(line["hook"], line["verb"]) for line in of(path, "verdict")] == [("weak", "failed")]
    (end,) = of(path, "run_end")
    assert (end["status"], end["errors"]) == ("failed", 3)


def test_steering_stops_and_shadow_hooks_are_recorded(path):
    audit = AuditLogHook(path)

    @hook(AFTER_LLM)
    def stopper(ctx, got):
        return HookResult.stop("enough", reason="said so")

    trial = shadow(guard(BEFORE_TOOL, name="strict")(lambda ctx, request: HookResult.block("no", reason="never")))
    agent = scripted_agent([call("add", a=1, b=2), reply("x")], tools=[add], hooks=[audit, trial, stopper])

    async def go():
        handle = agent.start("x")
        handle.steer("and hurry")
        await handle.result()

    asyncio.run(go())
    audit.flush()
    assert [line["chars"] for line in of(path, "steered")] == [len("and hurry")]
    assert {"kind": "stop_requested", "hook": "stopper"}.items() <= of(path, "stop")[0].items()
    assert all((line["hook"], line["verb"]) == ("strict", "block") for line in of(path, "shadow"))


def test_a_judgement_before_a_rewrite_is_recorded_as_a_notice(path):
    early = hook(BEFORE_TOOL, name="early", priority=5)(lambda ctx, request: None)
    late = hook(BEFORE_TOOL, name="late")(lambda ctx, request: request.replace(arguments={"a": 9, "b": 9}))
    run(path, [call("add", a=1, b=2), reply("x")], [early, late])
    (line,) = of(path, "notice")
    assert (line["kind"], line["hook"], line["about"]) == ("judged_before_rewrite", "late", "early")


def test_the_run_of_a_subagent_names_its_parent(path):
    audit = AuditLogHook(path)
    inner = scripted_agent([reply("in")], hooks=[audit])

    @tool
    async def delegate(ctx) -> str:
        """Delegate."""
        return (await inner.arun("y", ctx=ctx)).reply

    outer = scripted_agent([call("delegate"), reply("out")], tools=[delegate], hooks=[audit])
    result = outer.run("x")
    audit.flush()
    parents = [line["parent_run_id"] for line in of(path, "run_start")]
    assert parents == ["", result.ids.run_id]


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_ids_and_reasons_that_are_not_text_lose_no_record(path, mode):
    @guard(BEFORE_TOOL)
    def no(ctx, got):
        return HookResult.block(reason=5)

    given = {"on_failure": mode}
    got = run(path, [call("add", a=1, b=2), reply("x")], [no], given, correlation_id=UUID(int=7), task_id=8)
    assert [e.type for e in got.errors] == ["Blocked"]
    assert [line["reason"] for line in of(path, "verdict")] == ["5"]
    assert {(line["task_id"], line["correlation_id"]) for line in run_records(path)} == {("8", str(UUID(int=7)))}


def test_silent_hook_calls_are_not_recorded_as_verdicts(path, tmp_path):
    @guard(BEFORE_TOOL)
    def silent(ctx, got):
        return None

    @guard(BEFORE_TOOL)
    def explains(ctx, got):
        return HookResult.cont(reason="looks fine")

    watch = MetricsHook(every_call=True)
    run(path, [call("add", a=1, b=2), reply("x")], [watch, silent, explains])
    assert [(line["hook"], line["verb"]) for line in of(path, "verdict")] == [("explains", "cont")]


def test_a_cancelled_run_has_an_end_record(path):
    audit = AuditLogHook(path)

    async def go():
        agent = Agent("a", llm=ScriptedModel([reply("ok")], delay=60), hooks=[audit])
        handle = agent.start("x")
        await wait_until(lambda: agent.model.requests)
        handle.cancel()
        await handle.result()

    asyncio.run(go())
    audit.flush()
    (end,) = of(path, "run_end")
    assert (end["status"], end["stop"]) == ("cancelled", "user_requested")


def test_records_use_the_clock_of_the_context(path):
    clock = SimpleNamespace(time=lambda: 1.5, monotonic=lambda: 0.0)
    run(path, [reply("ok")], ctx=AgentContext(clock=clock))
    assert {line["time"] for line in run_records(path)} == {"1970-01-01T00:00:01.500Z"}


RECORDED = AuditLogHook.events | {ToolStarted}
OTHERWISE = {
    "ModelReplied",
    "ToolEnded",
    "ToolSettled",
    "ModelCalled",
    "TextDelta",
    "Discarded",
    "StepStarted",
    "StepFinished",
    "ToolProgressed",
    "PointFired",
    "SubagentEvent",
    "ApprovalPending",
    "RunAccepted",
    "RunClosed",
    "OutputChecked",
}


def test_every_type_of_event_is_recorded_or_explicitly_excluded():
    for name in ("hooks.approvals", "server.events"):
        import_module(f"hookline.{name}")
    kinds = {kind for kind in Event.__subclasses__() if kind.__module__.startswith("hookline.")}
    assert {kind.__name__ for kind in kinds - RECORDED} == OTHERWISE


def test_every_record_has_exactly_the_fields_of_its_type(path):
    @guard(BEFORE_TOOL)
    def careful(ctx, request):
        return HookResult.ask("Sure?")

    turns = [[call("add", a=1, b=2), call("none")], reply("x")]
    run(path, turns, [careful], {"content": True, "on_failure": "closed"})
    by_type = {kind.type: kind for kind in RECORD_TYPES}
    for line in lines(path):
        kind = by_type[line["type"]]
        ids = [] if kind in LOG_RECORDS else IDS
        names = [name for name in line if name not in ("v", "seq", "time", "type", "prev", *ids)]
        assert set(names) <= set(kind.__struct_fields__)
        assert set(kind.__struct_fields__) - set(names) <= kind.texts | {"attachments"}  # written if there are any


# Texts.


def secretive(path, **given):
    @tool
    def secret_tool(key: str) -> str:
        """Fail or give."""
        if key == "secret-2":
            raise ValueError("secret-3")
        return "secret-4"

    @guard(BEFORE_TOOL)
    def careful(ctx, request):
        return HookResult.ask("secret-11") if request.arguments.get("key") == "secret-1" else None

    @hook("approval_requested")
    def person(ctx, asked):
        return HookResult.approve(by="ann")

    @observer(AFTER_LLM)
    def weak(ctx, got):
        raise ValueError("secret-12")

    audit = AuditLogHook(path, **given)
    turns = [["secret-7", call("secret_tool", key="secret-1"), call("secret_tool", key="secret-2")], reply("secret-5")]
    agent = scripted_agent(turns, tools=[secret_tool], hooks=[audit, careful, person, weak])
    result = agent.run("secret-6")
    audit.flush()
    return result


def test_no_text_is_recorded_by_default(path):
    secretive(path)
    assert b"secret-" not in path.read_bytes()
    assert of(path, "task")[0]["chars"] == 8
    assert {line["error_type"] for line in of(path, "error")} == {"ValueError"}


def test_with_content_every_text_is_recorded(path):
    secretive(path, content=True)
    text = path.read_text()
    assert all(f"secret-{n}" in text for n in (1, 2, 3, 4, 5, 6, 7, 11, 12))
    assert json.loads(of(path, "model")[0]["arguments"][0]) == {"key": "secret-1"}


@pytest.mark.parametrize("kind", ["function", "object"])
def test_every_text_is_redacted(path, kind):
    def redact(text):
        return text.replace("secret", "s*****")

    secretive(path, content=True, redact=redact if kind == "function" else SimpleNamespace(apply=redact))
    assert b"secret-" not in path.read_bytes()
    assert b"s*****-1" in path.read_bytes()


def test_sensitive_data_is_redacted_by_default(path):
    no = guard(BEFORE_TOOL, name="no")(lambda ctx, request: HookResult.block("No.", reason="asked by ada@example.com"))
    turns = [call("add", a=1, b=2), reply("Write to ada@example.com, card 4111 1111 1111 1111.")]
    run(path, turns, [no], {"content": True})
    text = path.read_text()
    assert "ada@example.com" not in text
    assert "4111" not in text
    assert "asked by [email]" in text
    assert "Write to [email], card [card]." in text


def test_reasons_are_redacted_too(path):
    @guard(BEFORE_TOOL)
    def no(ctx, request):
        return HookResult.block("x", reason="key sk-123 found")

    @hook(AFTER_LLM)
    def ends(ctx, got):
        return HookResult.end("x", reason="sk-123") if got.content else None

    run(path, [call("add", a=1, b=2), reply("x")], [no, ends], {"redact": lambda text: text.replace("sk-123", "…")})
    assert b"sk-123" not in path.read_bytes()
    assert of(path, "verdict")[0]["reason"] == "key … found"


def test_a_secret_where_a_text_is_cut_is_redacted_completely(path):
    def redact(text):
        return text.replace("SECRETSECRET", "###")

    run(
        path, [reply("x" * 95 + "SECRETSECRET" + "y" * 500)], given={"content": True, "max_text": 100, "redact": redact}
    )
    content = of(path, "model")[0]["content"]
    assert content == "x" * 95 + "###" + "yy" + "…(+498)"
    assert "SECRET" not in path.read_text()


def test_a_secret_that_json_escapes_is_redacted(path):
    @tool
    def keep(key: str, more: list[str]) -> dict[str, str]:
        """Keep."""
        return {"key": key}

    def redact(text):
        return text.replace('BEGIN\n"KEY"\nEND', "###")

    secret = 'a BEGIN\n"KEY"\nEND b'
    run(
        path,
        [call("keep", key=secret, more=[secret]), reply("x")],
        tools=[keep],
        given={"content": True, "redact": redact},
    )
    assert "KEY" not in path.read_text()
    assert path.read_text().count("a ### b") == 3


def test_a_redactor_that_fails_withholds_the_text_and_loses_no_record(path):
    def redact(text):
        raise ValueError("broken")

    secretive(path, content=True, redact=redact)
    assert b"secret-" not in path.read_bytes()
    assert "withheld" in of(path, "model")[0]["content"]
    assert types(path)[-1] == "run_end"


@pytest.mark.parametrize("shape", ["text", "list", "deep"])
@pytest.mark.slow
def test_huge_results_are_shortened(path, shape):
    @tool
    def big() -> object:
        """Much."""
        return {"text": "x" * 5_000_000, "list": ["y" * 10] * 300_000, "deep": {"a": [{"b": "z" * 2_000_000}]}}[shape]

    run(path, [call("big"), reply("x")], tools=[big], given={"content": True})
    assert path.stat().st_size < 20_000
    assert "…" in of(path, "tool")[0]["result"]


def test_a_huge_tool_name_is_shortened(path):
    run(path, [call("n" * 1_000_000), reply("x")])
    assert path.stat().st_size < 20_000
    assert of(path, "model")[0]["tool_calls"][0].startswith("nnn")


@given(text=st.text(st.characters(max_codepoint=0x2100) | st.characters(categories=["Cs"]), max_size=30))
@settings(max_examples=examples(25), deadline=None)
def test_any_text_becomes_one_line_that_verifies(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("texts") / "audit.jsonl"
    run(path, [call("add", a=text), reply(text or "x")], given={"content": True, "fsync": "never"}, task_id=text)
    assert verify_audit(path, head=line_hash(path.read_bytes().split(b"\n")[-2])).findings == ()
    assert len(path.read_bytes().decode().splitlines()) == len(lines(path))


# Writing.


def test_a_tool_that_changes_the_working_folder_does_not_move_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    @tool
    def wander() -> None:
        """Go elsewhere."""
        os.chdir("elsewhere")

    run("audit.jsonl", [call("wander"), reply("ok")], tools=[wander])
    assert types(tmp_path / "audit.jsonl")[-1] == "run_end"
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_concurrent_runs_share_one_log(path, monkeypatch):
    monkeypatch.setattr("hookline.hooks.audit_log.OPEN_SECONDS", 60.0)  # a busy disk is no failure here
    audit = AuditLogHook(path)
    agent = Agent("a", llm=ScriptedModel([reply("x" * 20_000)], loop=True), hooks=[audit])
    results = await asyncio.gather(*(agent.arun(f"task {i}") for i in range(40)))
    audit.flush()
    assert verify_audit(path).ok
    for result in results:
        mine = [line["type"] for line in run_records(path) if line["run_id"] == result.ids.run_id]
        assert mine == ["run_start", "task", "model", "stop", "run_end"]
    assert audit._runs == {}


def test_two_hooks_and_a_server_may_share_one_log(path):
    log = AuditLog(path)
    for _ in range(2):
        scripted_agent([reply("x")], hooks=[AuditLogHook(log)]).run("x")
    log.record("auth", user="ann")
    log.close()
    assert types(path) == [*["run_start", "task", "model", "stop", "run_end"] * 2, "auth"]
    assert verify_audit(path).ok


def test_a_hook_registered_twice_records_everything_once(path):
    audit = AuditLogHook(path)
    agent = scripted_agent([call("add", a=1, b=2), reply("x")], tools=[add], hooks=[audit])
    agent.run("x", ctx=AgentContext(hooks=[audit]))
    audit.flush()
    assert types(path) == ["run_start", "task", "model", "tool", "model", "stop", "run_end"]


def test_replies_and_results_of_runs_are_recorded_without_a_hook_call(path):
    metrics = MetricsHook(every_call=True)
    run(path, [call("add", a=1, b=2), reply("x")], [metrics])
    assert types(path) == ["run_start", "task", "model", "tool", "model", "stop", "run_end"]
    called = [line for line in metrics.text().splitlines() if 'hook="AuditLogHook"' in line]
    assert called
    assert all('point="on_run_end"' in line for line in called)


def test_outside_of_runs_it_is_called_with_the_result_of_a_tool(path):
    audit = AuditLogHook(path)
    fire_hook(audit, AFTER_TOOL, id="c1", name="add", arguments={"a": 1}, result=3)
    assert audit.flush(10)
    (record,) = of(path, "tool")
    assert (record["tool"], record["call_id"], record["outcome"]) == ("add", "c1", "ok")


def test_it_decides_nothing(path):
    seen = []

    @observer(AFTER_LLM)
    def watch(ctx, got, verdict):
        seen.append(str(verdict.action))

    run(path, [reply("ok")], [watch])
    assert seen == ["cont"]


# Write failures.


class Watch:
    points = frozenset({ON_ERROR})
    phase = "observe"

    def __init__(self):
        self.failures = []

    def __call__(self, point, ctx, failure):
        self.failures.append((failure.errors[0].source, failure.errors[0].type, failure.fatal))


@pytest.fixture
def a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("x")
    return tmp_path / "file" / "audit.jsonl"


def test_a_log_that_cannot_be_written_is_reported_and_the_run_goes_on(a_file_in_the_way, caplog):
    watch = Watch()
    result = run(a_file_in_the_way, [reply("ok")], [watch])
    assert result.status == "completed"
    assert watch.failures == [("AuditLogHook", "AuditError", False)]
    (error,) = result.errors
    assert "records of the audit log were lost" in error.message
    assert caplog.text.count("are being lost") == 1


@posix
def test_a_full_disk_is_reported_and_the_run_goes_on():
    result = run("/dev/full", [reply("ok")])
    assert result.status == "completed"
    assert "No space left" in result.errors[0].message


def test_after_a_failure_later_runs_report_no_loss(a_file_in_the_way):
    audit = AuditLogHook(a_file_in_the_way)
    agent = scripted_agent([reply("ok")] * 2, hooks=[audit])
    assert agent.run("x").errors
    audit.flush()
    a_file_in_the_way.parent.unlink()
    audit.log.record("test")
    audit.flush()
    assert not agent.run("x").errors
    audit.flush()
    assert [line["type"] for line in lines(a_file_in_the_way)][:2] == ["open", "lost"]
    assert verify_audit(a_file_in_the_way).ok


def test_a_slow_first_write_is_no_failure(path):
    audit = AuditLogHook(path)
    write = audit.log._background._write
    audit.log._background._write = lambda items: (time.sleep(0.4), write(items))
    assert scripted_agent([reply("ok")], hooks=[audit]).run("x").errors == ()


def test_a_writer_that_hangs_does_not_block_a_run(path, monkeypatch):
    monkeypatch.setattr(module, "OPEN_SECONDS", 0.01)
    audit, gate = AuditLogHook(path), threading.Event()
    write = audit.log._background._write
    audit.log._background._write = lambda items: gate.wait(30) and write(items)
    result = scripted_agent([reply("ok")], hooks=[audit]).run("x")
    assert (result.status, len(result.errors)) == ("completed", 1)
    assert "not written" in result.errors[0].message
    gate.set()
    audit.flush()
    assert types(path)[-1] == "run_end"


def counting(ran):
    @tool
    def work() -> str:
        """Work."""
        ran.append(1)
        return "worked"

    return work


def test_closed_nothing_happens_without_a_record(a_file_in_the_way):
    ran, audit = [], AuditLogHook(a_file_in_the_way, on_failure="closed")
    agent = scripted_agent([call("work"), reply("x")], tools=[counting(ran)], hooks=[audit])
    with pytest.raises(RunFailedError, match="AuditLogHook") as caught:
        agent.run("x")
    assert caught.value.result.status == "failed"
    assert (ran, agent.model.requests) == ([], [])


def test_closed_no_tool_runs_once_the_log_breaks(path):
    ran, audit = [], AuditLogHook(path, on_failure="closed")

    @hook(AFTER_LLM)
    def breaks(ctx, got):
        audit.log._file.path = path / "file" / "x"
        audit.log._file.close()

    agent = scripted_agent([call("work"), reply("x")], tools=[counting(ran)], hooks=[audit, breaks])
    with pytest.raises(RunFailedError, match="AuditLogHook"):
        agent.run("x")
    assert ran == []


def test_closed_the_start_of_a_tool_is_on_the_disk_before_it_runs(path):
    seen = []

    @tool
    def look() -> str:
        """Look at the log."""
        seen.extend(types(path))
        return "seen"

    run(path, [call("look"), reply("x")], tools=[look], given={"on_failure": "closed"})
    assert seen == ["run_start", "task", "model", "tool_start"]
    assert of(path, "tool_start")[0]["digest"] == of(path, "tool")[0]["digest"]


def test_closed_a_writer_that_hangs_fails_the_run(path, monkeypatch):
    monkeypatch.setattr(module, "CLOSED_SECONDS", 0.05)
    audit, gate = AuditLogHook(path, on_failure="closed"), threading.Event()
    audit.log._background._write = lambda items: gate.wait(30)
    agent = scripted_agent([reply("ok")], hooks=[audit])
    with pytest.raises(RunFailedError, match="not written"):
        agent.run("x")
    gate.set()
    assert agent.model.requests == []


def test_closed_a_failed_fsync_stops_the_run_even_if_the_disk_works_again(path, monkeypatch):
    ran, broken = [], []
    audit = AuditLogHook(path, on_failure="closed")

    def sync(fd):
        if broken:
            broken.clear()
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(audit_file, "_sync", sync)

    @hook(AFTER_LLM)
    def breaks(ctx, got):
        broken.append(1)
        audit.log.record("somebody", n=1)
        audit.flush(10)
        audit.log.record("somebody", n=2)
        audit.flush(10)

    agent = scripted_agent([call("work"), reply("x")], tools=[counting(ran)], hooks=[audit, breaks])
    with pytest.raises(RunFailedError, match="may not be on the disk: Input/output"):
        agent.run("x")
    assert ran == []


def test_closed_an_event_that_cannot_be_recorded_stops_the_run(path, monkeypatch, caplog):
    audit = AuditLogHook(path, on_failure="closed")
    monkeypatch.setitem(audit._records._makers, TaskTaken, lambda event: {}["no such"])
    agent = scripted_agent([reply("x")], hooks=[audit])
    with pytest.raises(RunFailedError, match="1 records of the audit log were lost: KeyError"):
        agent.run("x")
    assert agent.model.requests == []


def test_closed_a_logger_that_drops_the_records_stops_the_run(caplog):
    caplog.set_level(logging.WARNING, "my.audit")
    agent = scripted_agent([reply("x")], hooks=[AuditLogHook(None, logger="my.audit", on_failure="closed")])
    with pytest.raises(RunFailedError, match="the logger discards INFO"):
        agent.run("x")
    assert agent.model.requests == []


async def test_closed_many_runs_at_once_wait_without_a_thread_each(path):
    audit = AuditLogHook(path, on_failure="closed", fsync="never")
    agent = Agent("a", llm=ScriptedModel([reply("x")], loop=True), hooks=[audit])
    before = threading.active_count()
    await asyncio.gather(*(agent.arun("x") for _ in range(200)))
    assert threading.active_count() < before + 20
    audit.flush()
    assert len(of(path, "run_end")) == 200


def test_a_program_that_ends_at_once_leaves_a_complete_log(path):
    code = (
        "import sys; from hookline import Agent, ScriptedModel, reply; from hookline.hooks import AuditLogHook\n"
        "Agent('a', llm=ScriptedModel([reply('x')]), hooks=[AuditLogHook(sys.argv[1])]).run('go')"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert types(path)[-1] == "run_end"
    assert verify_audit(path).warnings == ()


# Logger, rotation, signatures.


def test_a_logger_gets_the_records_with_a_file_or_without(path, caplog):
    with caplog.at_level(logging.INFO, "hookline.audit"):
        run(None, [reply("ok")], given={"logger": "hookline.audit"})
        run(path, [reply("ok")], given={"logger": "hookline.audit"})
    logged = [record for record in caplog.records if record.name == "hookline.audit"]
    names = [record.audit["type"] for record in logged if record.audit["type"] != "checkpoint"]
    assert names == ["run_start", "task", "model", "stop", "run_end"] * 2
    assert {record.levelname for record in logged} == {"INFO"}
    assert json.loads(logged[2].getMessage())["type"] == "model"


def test_files_are_rotated_and_signed(path, tmp_path):
    from hookline.stores.audit.keys import make_keys

    private, public, _ = make_keys(tmp_path / "key")
    for _ in range(3):
        run(path, [reply("x")] * 2, given={"max_bytes": 4096, "sign": private, "checkpoint": tmp_path / "head"})
    report = verify_audit(path, key=public, checkpoint=tmp_path / "head")
    assert report.findings == ()
    assert len(report.files) > 1


# Invalid arguments.


@pytest.mark.parametrize("bad", ["", 5, b""])
def test_an_invalid_path_is_rejected(bad):
    with pytest.raises(RegistrationError, match="path must be"):
        AuditLogHook(bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"path": None},
        {"content": "no"},
        {"redact": 5},
        {"redact": str},
        {"max_text": 0},
        {"logger": ""},
        {"on_failure": "block"},
        {"max_bytes": 10},
        {"max_bytes": True},
        {"fsync": "no"},
        {"sign": "none"},
        {"sign": 5},
        {"checkpoint": ""},
    ],
)
def test_invalid_arguments_are_rejected(path, bad):
    with pytest.raises(RegistrationError):
        AuditLogHook(**{"path": path, **bad})


def test_settings_belong_to_a_given_log(path):
    with pytest.raises(RegistrationError, match="settings to the AuditLog"):
        AuditLogHook(AuditLog(path), fsync="never")


def test_a_folder_is_rejected_as_path(tmp_path):
    with pytest.raises(RegistrationError, match="is a folder"):
        AuditLogHook(tmp_path)


def test_a_hook_that_holds_back_streamed_text_does_not_fill_the_log(path):
    run(path, [reply("Nothing to see in any of these words, and no address.")], [SensitiveDataHook()])
    assert of(path, "verdict") == []


def test_a_reason_given_for_a_streamed_chunk_is_recorded(path):
    cut = hook(ON_TOKEN, name="cut")(lambda ctx, token: HookResult.replace({"delta": ""}, reason="too long"))
    run(path, [reply("hello there")], [cut])
    assert {record["reason"] for record in of(path, "verdict")} == {"too long"}


def test_a_secret_that_is_cut_in_two_is_not_written_although_replacements_shorten_the_text(path):
    def redact(text):
        return re.sub("(SECRETSECRET)+", "#", text)

    begin = "SECRETSECRET" * (module.WINDOW // 12)
    text = begin.ljust(module.WINDOW + 100 - 5, ".") + "SECRETSECRET" + "more" * 100
    turns = [call("add", a=text, b=2), reply(text)]
    run(path, turns, given={"content": True, "max_text": 100, "redact": redact})
    assert of(path, "model")[1]["content"].startswith("…(+")
    assert "SECRE" not in path.read_text()
