"""The JSONL file of what happened."""

import asyncio
import errno
import json
import os
import stat
import subprocess
import sys
import threading
from datetime import datetime
from types import SimpleNamespace

import pytest

from hookline import (
    AFTER_LLM,
    ON_ERROR,
    Agent,
    AgentContext,
    AuditLogHook,
    HookResult,
    RegistrationError,
    RunFailed,
    ScriptedModel,
    Usage,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.builtin.audit_log import request_digest
from hookline.testing import scripted_agent


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "logs" / "audit.jsonl"


def run(path, turns, content=True, hooks=(), **options):
    agent = scripted_agent(turns, tools=[add], hooks=[AuditLogHook(path, content=content), *hooks])
    return agent, agent.run("the task", **options)


def test_every_reply_result_and_run_is_a_line_with_its_ids(path):
    _, result = run(path, [call("add", a=1, b=2), reply("three")], task_id="t1", correlation_id="c1")
    written = lines(path)
    assert [line["point"] for line in written] == ["after_llm", "after_tool", "after_llm", "on_run_end"]
    for line in written:
        assert (line["task_id"], line["correlation_id"], line["run_id"]) == ("t1", "c1", result.ids.run_id)
        assert line["session_id"] == result.ids.session_id
        assert line["verdict"] == "cont"
        assert line["time"].endswith("Z")
        assert len(line["time"]) == len("2026-01-01T00:00:00.000Z")
        datetime.fromisoformat(line["time"])


def test_a_line_holds_what_a_replay_needs(path):
    agent, _ = run(path, [call("add", a=1, b=2), reply("three", usage=Usage(7, 3, 2), model="m-1")])
    first, tool_line, second, end = lines(path)
    assert (first["content"], first["finish_reason"], first["purpose"]) == ("", "tool_calls", "step")
    assert first["tool_calls"][0]["name"] == "add"
    assert first["tool_calls"][0]["arguments"] == {"a": 1, "b": 2}
    assert first["tool_calls"][0]["id"] == tool_line["call_id"]
    assert first["tool_calls"][0]["digest"] == tool_line["digest"]
    assert first["request_digest"] == request_digest(agent.model.requests[0])
    assert (tool_line["tool"], tool_line["result"], tool_line["outcome"]) == ("add", 3, "ok")
    assert (second["content"], second["model"], second["provider"]) == ("three", "m-1", "scripted")
    assert second["usage"] == {"input_tokens": 7, "output_tokens": 3, "cached_tokens": 2}
    assert (end["status"], end["reply"], end["task"], end["steps"]) == ("completed", "three", "the task", 2)


def test_a_digest_knows_a_request_again_and_no_other():
    agents = [scripted_agent([reply("ok")], instructions="be good") for _ in range(3)]
    for agent, task in zip(agents, ["x", "x", "y"], strict=True):
        agent.run(task)
    a, b, c = (request_digest(agent.model.requests[0]) for agent in agents)
    assert a == b != c


def test_verdicts_say_which_hook_and_why(path):
    @guard("before_tool")
    def no(ctx, request):
        return HookResult.block("not that", reason="rules")

    @hook(AFTER_LLM)
    def change(ctx, got):
        return HookResult.replace(got.replace(content="changed")) if got.content else None

    run(path, [call("add", a=1, b=2), reply("three")], hooks=[no, change])
    _, judged, blocked, changed, _ = lines(path)
    assert (judged["point"], judged["verdict"], judged["hook"]) == ("before_tool", "block", "no")
    assert (judged["reason"], judged["message"], judged["call_id"]) == ("rules", "not that", blocked["call_id"])
    assert (blocked["outcome"], blocked["error"]) == ("blocked", "not that")
    assert (changed["verdict"], changed["hook"], changed["content"]) == ("replace", "change", "changed")


def test_who_asked_and_who_approved_are_lines_with_the_digest_of_the_call(path):
    @guard("before_tool")
    def careful(ctx, request):
        return HookResult.ask("Sure?")

    @hook("approval_requested")
    def person(ctx, asked):
        return HookResult.edit({"a": 5, "b": 5}, by="ann")

    run(path, [call("add", a=1, b=2), reply("ten")], hooks=[careful, person])
    _, asked, decided, again, result, *_ = lines(path)
    assert asked["asks"] == [{"hook": "careful", "question": "Sure?"}]
    assert (decided["point"], decided["decision"], decided["by"]) == ("approval_decided", "edited", "ann")
    assert decided["digest"] == again["digest"] == result["digest"] != asked["digest"]


def test_a_call_that_nobody_minds_has_no_line_before_it_runs(path):
    run(path, [call("add", a=1, b=2), reply("three")])
    assert [line["point"] for line in lines(path)] == ["after_llm", "after_tool", "after_llm", "on_run_end"]


def test_a_retry_and_an_end_are_lines_too(path):
    @hook(AFTER_LLM)
    def judge(ctx, got):
        return HookResult.retry("again") if got.attempt == 1 else HookResult.end("over", reason="bad words")

    run(path, [reply("one"), reply("two")], hooks=[judge])
    first, second, end = lines(path)
    assert (first["verdict"], first["attempt"]) == ("retry", 1)
    assert (second["verdict"], second["reason"], second["attempt"]) == ("end", "bad words", 2)
    assert (end["status"], end["hook_ended"]) == ("ended", "bad words")


def test_a_failed_run_has_its_errors(path):
    with pytest.raises(RunFailed):
        run(path, [OSError("down")])
    (end,) = lines(path)
    assert end["status"] == "failed"
    assert end["errors"][0]["type"] == "OSError"
    assert end["errors"][0]["message"] == "down"


def test_without_content_no_text_is_written(path):
    @tool
    def secret_tool(key: str) -> str:
        """Fail or give."""
        if key == "secret-2":
            raise ValueError("secret-3")
        return "secret-4"

    turns = [[call("secret_tool", key="secret-1"), call("secret_tool", key="secret-2")], reply("secret-5")]

    @hook("on_stop")
    async def ask(ctx, stopping):
        await ctx.llm.complete("secret-7", purpose="judge")

    @hook(AFTER_LLM)
    def end(ctx, got):
        return HookResult.end("secret-8", reason="secret-9") if got.purpose == "judge" else None

    agent = scripted_agent([*turns, reply("secret-10")], tools=[secret_tool])
    for one in (AuditLogHook(path, content=False), ask, end):
        agent.register_hook(one)
    assert agent.run("secret-6").hook_ended == "secret-9"
    text = path.read_text()
    assert "secret-" not in text
    first, ok, bad, second, _, end = lines(path)
    assert (ok["result_chars"], second["content_chars"], end["task_chars"]) == (8, 8, 8)
    assert bad["outcome"] == "error"
    assert first["tool_calls"][0]["digest"] == ok["digest"]
    assert end["errors"][0]["type"] == "ValueError"


def test_a_hooks_own_model_calls_are_lines_too(path):
    @hook("on_run_start")
    async def ask(ctx, start):
        await ctx.llm.complete("hello", purpose="judge")

    run(path, [reply("yes"), reply("ok")], hooks=[ask])
    assert [line["purpose"] for line in lines(path)[:2]] == ["judge", "step"]


def test_surrogates_newlines_and_megabytes_stay_on_one_line(path):
    run(path, [reply("a\nb\u2028\ud800" + "x" * 5_000_000)])
    raw = path.read_bytes()
    assert raw.count(b"\n") == 2
    first = json.loads(raw.split(b"\n")[0])
    assert first["content"].startswith("a\nb\u2028")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029", "\x1c", "\x0b", "\r"])
def test_what_some_readers_take_for_the_end_of_a_line_stays_inside_one(path, mark):
    scripted_agent([reply(f"a{mark}b")], hooks=[AuditLogHook(path)]).run("x")
    first, _ = path.read_bytes().decode().splitlines()
    assert json.loads(first)["content"] == f"a{mark}b"


def test_file_and_folder_belong_to_their_owner_alone(path):
    run(path, [reply("ok")])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_second_program_appends(path):
    for _ in range(2):
        run(path, [reply("ok")])
    assert len(lines(path)) == 4


def test_half_a_line_that_another_program_left_spoils_no_other(path):
    path.parent.mkdir()
    path.write_text('{"time":"20')
    run(path, [reply("one")])
    half, *whole = path.read_text().splitlines()
    assert half == '{"time":"20'
    assert [json.loads(line)["point"] for line in whole] == ["after_llm", "on_run_end"]


def test_a_tool_that_changes_the_working_folder_does_not_move_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    @tool
    def wander() -> None:
        """Go elsewhere."""
        os.chdir("elsewhere")

    scripted_agent([call("wander"), reply("ok")], tools=[wander], hooks=[AuditLogHook("audit.jsonl")]).run("x")
    assert [line["point"] for line in lines(tmp_path / "audit.jsonl")][-1] == "on_run_end"
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_concurrent_runs_write_whole_lines(path):
    agent = Agent("a", llm=ScriptedModel([reply("x" * 20_000)], loop=True), hooks=[AuditLogHook(path)])
    await asyncio.gather(*(agent.arun(f"task {i}") for i in range(40)))
    assert len(lines(path)) == 80


def test_threads_and_processes_write_whole_lines(path):
    code = (
        "import sys; from hookline import Agent, AuditLogHook, ScriptedModel, reply\n"
        "agent = Agent('a', llm=ScriptedModel([reply('x' * 20000)], loop=True), hooks=[AuditLogHook(sys.argv[1])])\n"
        "[agent.run('go') for _ in range(30)]"
    )
    others = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    agent = Agent("a", llm=ScriptedModel([reply("y" * 20_000)], loop=True), hooks=[AuditLogHook(path)])
    threads = [threading.Thread(target=lambda: [agent.run("go") for _ in range(10)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait(timeout=60) for other in others] == [0, 0]
    assert len(lines(path)) == 2 * (2 * 30 + 3 * 10)


class Watch:
    points = frozenset({ON_ERROR})
    phase = "observe"

    def __init__(self):
        self.told = []

    def __call__(self, point, ctx, failure):
        self.told.append((failure.errors[0].source, failure.errors[0].type, failure.fatal))


@pytest.fixture
def a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("x")
    return tmp_path / "file" / "audit.jsonl"


def test_a_line_that_cannot_be_written_is_reported_and_the_run_goes_on(a_file_in_the_way):
    watch = Watch()
    _, result = run(a_file_in_the_way, [reply("ok")], hooks=[watch])
    assert result.status == "completed"
    assert watch.told[0][0] == "AuditLogHook"
    assert watch.told[0][2] is False
    assert {error.source for error in result.errors} == {"AuditLogHook"}


def test_it_can_be_told_to_fail_closed(a_file_in_the_way):
    agent = scripted_agent([reply("ok")])
    agent.register_hook(AuditLogHook(a_file_in_the_way), on_failure="closed")
    with pytest.raises(RunFailed, match="AuditLogHook"):
        agent.run("x")


def test_a_full_disk_is_reported_and_the_line_after_a_torn_one_is_whole(path, monkeypatch):
    real, full = os.write, [True]

    def write(file, data):
        if full and data.startswith(b'{"time"'):
            full.clear()
            return real(file, data[:10])
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    _, result = run(path, [reply("ok")])
    assert result.status == "completed"
    assert "only a part of a line" in result.errors[0].message
    torn, whole = path.read_text().splitlines()
    assert len(torn) == 10
    assert json.loads(whole)["point"] == "on_run_end"


def test_no_space_left_is_reported(path, monkeypatch):
    def write(file, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    _, result = run(path, [reply("ok")])
    assert result.status == "completed"
    assert all("No space left" in error.message for error in result.errors)
    assert len(result.errors) == 2, "that of the reply, and that of the end of the run"


def test_time_is_that_of_the_context(path):
    clock = SimpleNamespace(time=lambda: 1.5, monotonic=lambda: 0.0)
    run(path, [reply("ok")], ctx=AgentContext(clock=clock))
    assert {line["time"] for line in lines(path)} == {"1970-01-01T00:00:01.500Z"}


def test_a_cancelled_run_has_its_line(path):
    async def go():
        agent = Agent("a", llm=ScriptedModel([reply("ok")], delay=60), hooks=[AuditLogHook(path)])
        handle = agent.start("x")
        await asyncio.sleep(0.02)
        handle.cancel()
        await handle.result()

    asyncio.run(go())
    (end,) = lines(path)
    assert (end["status"], end["stop"]["kind"]) == ("cancelled", "user_requested")


@pytest.mark.parametrize("bad", ["", None, 5, b""])
def test_nonsense_is_refused_at_once(bad):
    with pytest.raises(RegistrationError, match="path="):
        AuditLogHook(bad)


def test_a_folder_is_refused_at_once(tmp_path):
    with pytest.raises(RegistrationError, match="is a folder"):
        AuditLogHook(tmp_path)


def test_it_decides_nothing(path):
    seen = []

    @observer(AFTER_LLM)
    def watch(ctx, got, verdict):
        seen.append(str(verdict.action))

    run(path, [reply("ok")], hooks=[watch])
    assert seen == ["cont"]
