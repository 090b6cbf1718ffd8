"""ObservabilityHook: runs recorded in a SQLite file."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    Agent,
    AgentContext,
    HookResult,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.hooks import ObservabilityHook
from hookline.hooks import observability as module
from hookline.models import ModelResponse
from hookline.payloads import ToolCall, Usage
from hookline.points import BEFORE_TICKET_COMPLETE
from hookline.stores import RunStore, TicketBoard, run_stats, sqlite, ticket_tools
from hookline.testing import FakeClock, scripted_agent
from tests.environment import with_source
from tests.properties import examples

ROOT = Path(__file__).parents[2]
fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def broken(key: str = "") -> str:
    """Fail."""
    raise ValueError(f"secret {key}")


@pytest.fixture
def seen(tmp_path):
    made = ObservabilityHook(tmp_path / "runs.db")
    yield made
    made.flush(10)
    made.store.close()


def rows(recorder, table, *columns):
    assert recorder.flush(10)
    with recorder.store.db.transaction() as db:
        return db.execute(f"SELECT {', '.join(columns) or '*'} FROM {table} ORDER BY rowid").fetchall()


def test_a_run_is_recorded_with_its_ids_and_numbers(seen):
    agent = scripted_agent([call("add", a=1, b=2), reply("done", cost=0.5)], tools=[add], hooks=[seen], name="helper")
    result = agent.run("x", task_id="task-1", correlation_id="corr-1")
    ids = ["run_id", "task_id", "correlation_id", "session_id", "agent", "parent_run_id", "pid"]
    given = result.ids
    assert rows(seen, "runs", *ids) == [(given.run_id, "task-1", "corr-1", given.session_id, "helper", "", os.getpid())]
    numbers = ["status", "stop", "error", "steps", "tool_calls", "input_tokens", "output_tokens", "cost", "elapsed"]
    used = result.usage
    assert rows(seen, "runs", *numbers) == [
        ("completed", "completed", "", 2, 1, used.input_tokens, used.output_tokens, result.cost, result.elapsed)
    ]
    ((started, ended),) = rows(seen, "runs", "started", "ended")
    assert started <= ended


def test_a_model_call_is_recorded_with_all_fields(seen):
    turn = ModelResponse("x", (), Usage(12, 5, 3), "length", 0.25, "gpt-x", "openai", "org-1")
    scripted_agent([turn], hooks=[seen]).run("x")
    columns = (
        "hop attempt purpose model provider organization_id source verdict finish_reason input_tokens output_tokens "
        "cached_tokens cost"
    )
    assert rows(seen, "model_calls", *columns.split()) == [
        (0, 1, "step", "gpt-x", "openai", "org-1", "model", "cont", "length", 12, 5, 3, 0.25)
    ]


def test_a_rejected_reply_is_recorded_too(seen):
    @hook(AFTER_LLM)
    def no_maybe(ctx, answer):
        return HookResult.retry("Be sure.", reason="unsure") if answer.content == "maybe" else None

    result = scripted_agent(["maybe", "yes"], hooks=[seen, no_maybe]).run("x")
    assert rows(seen, "model_calls", "attempt", "verdict") == [(1, "retry"), (2, "cont")]
    assert rows(seen, "verdicts", "hook", "point", "phase", "verb", "reason", "call_id") == [
        ("no_maybe", "after_llm", "rewrite", "retry", "unsure", "")
    ]
    assert run_stats(seen.store).totals.input_tokens == result.usage.input_tokens


def test_an_answer_of_a_hook_names_it_and_costs_nothing(seen):
    canned = hook(BEFORE_LLM, name="cache")(lambda ctx, request: HookResult.answer(ModelResponse("x", (), Usage(9, 9))))
    result = scripted_agent([], hooks=[seen, canned]).run("x")
    assert rows(seen, "model_calls", "source") == [("cache",)]
    totals = run_stats(seen.store).totals
    assert (totals.model_calls, totals.input_tokens) == (0, result.usage.input_tokens) == (0, 0)


def test_prevented_actions_are_listed_and_nothing_else(seen, tmp_path):
    @hook(AFTER_TOOL)
    def enough(ctx, result):
        return HookResult.end("Seven.") if result.name == "add" else None

    @guard(BEFORE_TOOL)
    def asks(ctx, request):
        return HookResult.ask("May it?") if request.name == "broken" else None

    @hook(BEFORE_TICKET_COMPLETE)
    def strict(ctx, ticket):
        return HookResult.claim(reason="too short")

    @guard(BEFORE_TOOL, on_failure="block", tools="ticket_show")
    def shaky(ctx, request):
        raise OSError("gone")

    @hook(BEFORE_STEP, on_failure="open")
    def careless(ctx, step):
        raise OSError("gone")

    board = TicketBoard(tmp_path / "board.db")
    board.create("x", by="ann")
    done = call("ticket_complete", id="T-1", summary="done")
    turns = [call("ticket_start", id="T-1"), done, call("broken"), call("ticket_show", id="T-1"), call("add", a=3, b=4)]
    scripted_agent(
        turns, tools=[add, broken, *ticket_tools(board)], hooks=[seen, enough, asks, strict, shaky, careless]
    ).run("x")
    seen.flush()
    messages = {(one.hook, one.verb, one.tool or one.point, one.reason) for one in run_stats(seen.store).refusals}
    assert messages == {
        ("strict", "claim", "before_ticket_complete", "too short"),
        ("", "denied", "broken", ""),
        ("shaky", "failed", "ticket_show", ""),
    }


def test_a_closed_failure_is_listed_as_a_prevented_action(seen):
    @hook(BEFORE_LLM, on_failure="closed")
    def brittle(ctx, request):
        raise OSError("gone")

    with suppress(RunFailedError):
        scripted_agent(["x"], hooks=[seen, brittle]).run("x")
    seen.flush()
    assert [(one.hook, one.verb) for one in run_stats(seen.store).refusals] == [("brittle", "failed")]


def test_every_outcome_of_a_call_is_recorded(seen):
    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        return {1: HookResult.block("no", reason="ones"), 2: HookResult.answer(7)}.get(request.arguments.get("a"))

    turns = [call("add", a=1, b=1), call("add", a=2, b=2), call("add", a=3, b=3), call("broken"), call("nowhere")]
    scripted_agent([turns, "x"], tools=[add, broken], hooks=[seen, judge]).run("x")
    assert sorted(rows(seen, "tool_calls", "tool", "outcome", "attempt")) == [
        ("add", "answered", 1),
        ("add", "blocked", 1),
        ("add", "ok", 1),
        ("broken", "error", 1),
        ("nowhere", "error", 1),
    ]
    assert [(refusal.hook, refusal.tool) for refusal in run_stats(seen.store).refusals] == [("judge", "add")]
    assert sorted(rows(seen, "errors", "place", "type", "source", "fatal")) == [
        ("tool", "Blocked", "judge", 0),
        ("tool", "InvalidCall", "nowhere", 0),
        ("tool", "ValueError", "broken", 0),
    ]


def test_approvals_are_recorded_with_person_and_duration(seen):
    clock = FakeClock()

    @hook(APPROVAL_REQUESTED)
    def person(ctx, request):
        clock.advance(5)
        return HookResult.deny("no")

    ask = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.ask("may it?"))
    agent = scripted_agent([call("add", a=1, b=2), "x"], tools=[add], hooks=[seen, ask, person])
    agent.run("x", ctx=AgentContext(clock=clock))
    assert rows(seen, "approvals", "tool", "decision", "decided_by", "waited") == [("add", "denied", "person", 5.0)]


def test_a_failed_run_is_recorded_with_the_type_of_its_error(seen):
    with pytest.raises(RunFailedError):
        scripted_agent([TimeoutError("too late")], hooks=[seen]).run("x")
    assert rows(seen, "runs", "status", "error") == [("failed", "TimeoutError")]
    assert rows(seen, "errors", "place", "type", "source", "fatal") == [("model", "TimeoutError", "scripted", 1)]


def test_runs_inside_a_run_are_recorded_with_their_parent_and_counted_once(seen):
    inner = scripted_agent(["inner"], name="inner")

    @tool
    async def delegate(ctx) -> str:
        """Ask another agent."""
        return (await inner.arun("y", ctx=ctx, hooks=[seen])).reply

    result = scripted_agent([call("delegate"), "outer"], tools=[delegate], hooks=[seen], name="outer").run("x")
    parents = dict(rows(seen, "runs", "agent", "parent_run_id"))
    assert parents == {"outer": "", "inner": result.ids.run_id}
    totals = run_stats(seen.store).totals
    assert (totals.input_tokens, totals.output_tokens) == (result.usage.input_tokens, result.usage.output_tokens)


def test_texts_arguments_and_results_are_nowhere_in_the_file(seen, tmp_path):
    secret = "s3cr3t"

    @guard(BEFORE_TOOL, tools="add")
    def no(ctx, request):
        return HookResult.block(secret, reason="r" * 1000)

    turns = [[call("add", a=1, b=2), call("broken", key=secret)], ModelResponse(secret)]
    scripted_agent(turns, tools=[add, broken], hooks=[seen, no], instructions=secret).run(secret)
    assert seen.flush(10)
    seen.store.close()
    assert secret.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"r" * 200 in (tmp_path / "runs.db").read_bytes()
    assert b"r" * 201 not in (tmp_path / "runs.db").read_bytes()


def test_durations_of_hooks_are_recorded_with_every_call(tmp_path):
    silent = hook(BEFORE_LLM, name="silent")(lambda ctx, request: None)
    for every_call, expected in ((False, 0), (True, 1)):
        recorder = ObservabilityHook(tmp_path / f"{every_call}.db", every_call=every_call)
        scripted_agent(["x"], hooks=[recorder, silent]).run("x")
        found = [duration for name, duration in rows(recorder, "verdicts", "hook", "duration") if name == "silent"]
        assert len(found) == expected
        assert all(duration > 0 for duration in found)
        recorder.store.close()


def test_invalid_unicode_from_a_model_is_recorded(seen):
    turn = ModelResponse("", (ToolCall("c\ud800", "tool\ud800" + "x" * 10**6, {}),), Usage(2**80, 1))
    scripted_agent([turn, "x"], hooks=[seen]).run("x")
    ((name, call_id),) = rows(seen, "tool_calls", "tool", "call_id")
    assert name.startswith("tool?x")
    assert len(name) == 200
    assert call_id == "c?"
    assert rows(seen, "runs", "status") == [("completed",)]
    assert seen.problem() is None


def test_a_run_in_progress_is_already_in_the_file(seen):
    @tool
    def look() -> str:
        """Look into the file."""
        return rows(seen, "runs", "status", "ended")[0]

    result = scripted_agent([call("look"), "x"], tools=[look], hooks=[seen]).run("x")
    assert result.messages[2].content == '["running",null]'


def test_one_hook_records_concurrent_runs(seen):
    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[seen])

    async def many():
        await asyncio.gather(*(agent.arun("x") for _ in range(50)))

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(seen, "runs", "status") == [("completed",)] * 200
    assert len(rows(seen, "model_calls", "run_id")) == 200


def test_a_store_can_be_given():
    store = RunStore(":memory:")
    recorder = ObservabilityHook(store)
    scripted_agent(["x"], hooks=[recorder]).run("x")
    assert recorder.flush(10)
    assert len(store.runs()) == 1
    with pytest.raises(RegistrationError, match="keep_days belongs to the store"):
        ObservabilityHook(store, keep_days=3)


@pytest.mark.parametrize(
    ("path", "options", "match"),
    [
        ("", {}, "path must be a SQLite file"),
        (None, {}, "path must be a SQLite file"),
        (3, {}, "path must be a SQLite file"),
        ("a\0b", {}, "path must be a SQLite file"),
        ("x.db", {"keep_days": 0}, "number of days must be"),
        ("x.db", {"keep_days": "7"}, "number of days must be"),
        ("x.db", {"every_call": "yes"}, "every_call must be True or False"),
    ],
)
def test_invalid_arguments_are_rejected(path, options, match):
    with pytest.raises(RegistrationError, match=match):
        ObservabilityHook(path, **options)


# If the file cannot be written, the run continues and the error is reported.


def reported(recorder, caplog):
    """Make two runs, and return the errors in the result of the second."""
    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[recorder])
    assert agent.run("x").reply == "x"
    assert recorder.flush(20)
    second = agent.run("x")
    assert (second.status, second.reply) == ("completed", "x")
    assert "records of runs were lost" in caplog.text
    recorder.flush(20)
    recorder.store.close()
    return [error.message for error in second.errors if error.source == "ObservabilityHook"]


def test_a_damaged_file_is_reported_and_the_run_continues(tmp_path, caplog):
    (tmp_path / "runs.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    (message,) = reported(ObservabilityHook(tmp_path / "runs.db"), caplog)
    assert "records of runs were lost" in message
    assert "move it away" in message


def test_a_path_that_is_a_folder_is_reported_and_the_run_continues(tmp_path, caplog):
    (message,) = reported(ObservabilityHook(tmp_path), caplog)
    assert "give the path of a file" in message


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported_and_the_run_continues(tmp_path, caplog):
    tmp_path.chmod(0o500)
    (message,) = reported(ObservabilityHook(tmp_path / "runs.db"), caplog)
    assert "write" in message


def test_a_locked_file_is_waited_for_and_then_reported(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    recorder = ObservabilityHook(tmp_path / "runs.db")
    recorder.store.open()
    holder = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    (message,) = reported(recorder, caplog)
    assert "was locked for" in message
    holder.close()


def test_a_full_disk_is_reported_and_later_records_are_written(tmp_path, caplog):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    recorder.store.open()
    with recorder.store.db.transaction() as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count={pages}")
    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[recorder])
    results = [agent.run("x") for _ in range(60)]  # the writer may meet the full disk during any of them
    assert recorder.flush(20)
    results.append(agent.run("x"))
    assert {result.reply for result in results} == {"x"}
    assert "the disk is full: free some space" in caplog.text
    assert any("the disk is full" in error.message for result in results for error in result.errors)
    recorder.flush(20)
    recorder.store.close()
    again = ObservabilityHook(tmp_path / "runs.db")
    scripted_agent(["x"], hooks=[again]).run("x")
    assert again.flush(20)
    assert again.problem() is None
    again.store.close()


def test_records_beyond_the_limit_are_lost_and_the_loss_is_reported(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 2)
    recorder, gate = ObservabilityHook(tmp_path / "runs.db"), threading.Event()
    keep = recorder.store.add
    recorder.store.add = lambda *given: gate.wait(20) and keep(*given)
    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[recorder])
    results = [agent.run("x") for _ in range(9)]
    gate.set()
    messages = [error.message for result in results for error in result.errors]
    assert any("more than 2 records wait to be written" in message for message in messages)
    assert "records of runs were lost" in caplog.text
    recorder.flush(10)
    recorder.store.close()


def test_the_same_problem_is_logged_once_not_for_every_batch(tmp_path, caplog):
    recorder = ObservabilityHook(tmp_path)
    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[recorder])
    for _ in range(5):
        agent.run("x")
        recorder.flush(10)
    assert sum(record.message.startswith("records of runs were lost") for record in caplog.records) == 1


def test_a_program_that_exits_immediately_has_recorded_its_run(tmp_path):
    code = (
        "import sys\nfrom hookline import Agent, ScriptedModel\nfrom hookline.hooks import ObservabilityHook\n"
        "Agent('a', llm=ScriptedModel(['x']), hooks=[ObservabilityHook(sys.argv[1])]).run('x')\n"
    )
    env = with_source()
    subprocess.run([sys.executable, "-c", code, tmp_path / "runs.db"], env=env, check=True, timeout=60)
    store = RunStore(tmp_path / "runs.db")
    assert [run.status for run in store.runs()] == ["completed"]
    store.close()


def test_the_run_of_a_killed_program_is_shown_as_interrupted(tmp_path):
    code = (
        "import os, sys\nfrom hookline import Agent, ScriptedModel, call\n"
        "from hookline.hooks import ObservabilityHook\n"
        "h = ObservabilityHook(sys.argv[1])\n"
        "def die() -> str:\n    'Die.'\n    h.flush(); os.kill(os.getpid(), 9)\n"
        "Agent('a', llm=ScriptedModel([call('die')]), tools=[die], hooks=[h]).run('x')\n"
    )
    env = with_source()
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "runs.db"], env=env, check=False, timeout=60)
    assert done.returncode == -9
    store = RunStore(tmp_path / "runs.db")
    (run,) = store.runs()
    assert run.status == "interrupted"
    assert [call.kind for call in store.calls(run.id)] == ["model"]
    store.close()


@fork
def test_a_forked_process_records_its_own_runs_only(tmp_path):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[recorder])
    agent.run("x")
    child = os.fork()
    if not child:
        try:
            asyncio.new_event_loop().run_until_complete(agent.arun("y"))
            os._exit(0 if recorder.flush(10) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    agent.run("x")
    pids = [pid for (pid,) in rows(recorder, "runs", "pid")]
    assert sorted(pids) == sorted([os.getpid(), os.getpid(), child])
    recorder.store.close()


# Random runs.


def speaking(input_tokens, output_tokens, cost):
    return ModelResponse("text", usage=Usage(input_tokens, output_tokens, input_tokens // 2), cost=cost)


def calling(names):
    calls = tuple(ToolCall("", name, {"a": 1, "b": 2} if name == "add" else {}) for name in names)
    return ModelResponse("", calls, Usage(3, 4), cost=0.5)


tokens = st.integers(0, 10**6)
turn = st.one_of(
    st.builds(speaking, tokens, tokens, st.none() | st.floats(0, 10)),
    st.lists(st.sampled_from(["add", "broken", "nowhere"]), min_size=1, max_size=3).map(calling),
    st.sampled_from(["maybe", RuntimeError("down")]),
)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(turn, min_size=1, max_size=5), min_size=1, max_size=4), st.booleans())
def test_the_totals_of_random_runs_are_the_sums_over_their_results(runs, mend):
    @hook(AFTER_LLM)
    def no_maybe(ctx, answer):
        return HookResult.retry() if answer.content == "maybe" else None

    @hook(ON_ERROR)
    def again(ctx, failure):
        return HookResult.retry() if failure.where == "model" and mend else None

    folder = tempfile.mkdtemp()
    recorder, results = ObservabilityHook(Path(folder) / "runs.db"), []
    for turns in runs:
        agent = scripted_agent([*turns, "the end"], tools=[add, broken], hooks=[recorder, no_maybe, again], max_steps=4)
        try:
            results.append(agent.run("x"))
        except RunFailedError as failed:
            results.append(failed.result)
    assert recorder.flush(20)
    totals = run_stats(recorder.store).totals
    recorder.store.close()
    shutil.rmtree(folder)
    assert totals.runs == len(results)
    assert totals.statuses == {s: n for s in totals.statuses if (n := sum(r.status == s for r in results))}
    assert totals.input_tokens == sum(result.usage.input_tokens for result in results)
    assert totals.output_tokens == sum(result.usage.output_tokens for result in results)
    assert totals.cached_tokens == sum(result.usage.cached_tokens for result in results)
    if totals.unpriced == 0:
        assert totals.cost == pytest.approx(sum(result.cost for result in results))
    assert (totals.unpriced > 0) == any(result.cost is None for result in results)
    assert totals.tool_calls == sum(result.tool_calls for result in results)


def test_a_run_does_not_wait_for_the_file(tmp_path):
    recorder, gate = ObservabilityHook(tmp_path / "runs.db"), threading.Event()
    keep = recorder.store.add
    recorder.store.add = lambda *given: gate.wait(20) and keep(*given)
    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[recorder])
    for _ in range(3):
        assert agent.run("x").reply == "x"  # it would hang here
        time.sleep(0.01)
    gate.set()
    assert len(rows(recorder, "runs")) == 3
    recorder.store.close()
