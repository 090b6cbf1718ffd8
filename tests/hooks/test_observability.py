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
    ON_TOKEN,
    Agent,
    AgentContext,
    HookResult,
    Limits,
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
from hookline.hooks import ObservabilityHook
from hookline.hooks import observability as module
from hookline.models import ModelResponse
from hookline.payloads import ToolCall, Usage
from hookline.points import BEFORE_TICKET_COMPLETE
from hookline.stores import RunStore, StoreError, TicketBoard, run_stats, sqlite, ticket_tools
from hookline.teams import Team
from hookline.testing import FakeClock, scripted_agent
from tests.environment import with_source
from tests.properties import examples
from tests.waiting import wait_until

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


def facts(recorder, kind, *fields):
    """The recorded facts of one kind, in order: the values of some fields."""
    assert recorder.flush(10)
    found = [fact for run in recorder.store.runs(1000) for fact in recorder.store.facts(run.id) if fact.kind == kind]
    return [tuple(getattr(fact, field) for field in fields) for fact in sorted(found, key=lambda fact: fact.at)]


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
    fields = (
        "hop attempt purpose model provider organization_id source verb outcome input_tokens output_tokens "
        "cached_tokens cost"
    )
    assert facts(seen, "model", *fields.split()) == [
        (0, 1, "step", "gpt-x", "openai", "org-1", "model", "cont", "length", 12, 5, 3, 0.25)
    ]


def test_a_rejected_reply_is_recorded_too(seen):
    @hook(AFTER_LLM)
    def no_maybe(ctx, answer):
        return HookResult.retry("Be sure.", reason="unsure") if answer.content == "maybe" else None

    result = scripted_agent(["maybe", "yes"], hooks=[seen, no_maybe]).run("x")
    assert facts(seen, "model", "attempt", "verb", "refused") == [(1, "retry", True), (2, "cont", False)]
    (verdict,) = seen.store.verdicts(result.ids.run_id)
    assert (verdict.hook, verdict.point, verdict.phase) == ("no_maybe", "after_llm", "rewrite")
    assert (verdict.verb, verdict.reason, verdict.call_id) == ("retry", "unsure", "")
    assert run_stats(seen.store).totals.input_tokens == result.usage.input_tokens


def test_an_answer_of_a_hook_names_it_and_costs_nothing(seen):
    canned = hook(BEFORE_LLM, name="cache")(lambda ctx, request: HookResult.answer(ModelResponse("x", (), Usage(9, 9))))
    result = scripted_agent([], hooks=[seen, canned]).run("x")
    assert facts(seen, "model", "source") == [("cache",)]
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
    assert sorted(facts(seen, "tool", "tool", "outcome", "attempt")) == [
        ("add", "answered", 1),
        ("add", "blocked", 1),
        ("add", "ok", 1),
        ("broken", "error", 1),
        ("nowhere", "error", 1),
    ]
    assert [(refusal.hook, refusal.tool) for refusal in run_stats(seen.store).refusals] == [("judge", "add")]
    assert sorted(facts(seen, "error", "place", "outcome", "source", "fatal")) == [
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
    assert facts(seen, "approval", "tool", "outcome", "source", "duration") == [("add", "denied", "person", 5.0)]


def test_a_failed_run_is_recorded_with_the_type_of_its_error(seen):
    with pytest.raises(RunFailedError):
        scripted_agent([TimeoutError("too late")], hooks=[seen]).run("x")
    assert rows(seen, "runs", "status", "error") == [("failed", "TimeoutError")]
    assert facts(seen, "error", "place", "outcome", "source", "fatal") == [("model", "TimeoutError", "scripted", 1)]


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


def test_each_fire_is_recorded_with_the_hooks_it_passed_and_their_durations(seen):
    @guard(BEFORE_TOOL)
    def first(ctx, request):
        return None

    @guard(BEFORE_TOOL)
    def second(ctx, request):
        return HookResult.block("no", reason="a rule") if request.arguments["a"] == 9 else None

    third = guard(BEFORE_TOOL, name="third")(lambda ctx, request: None)
    turns = [[call("add", a=1, b=1), call("add", a=9, b=9)], "x"]
    result = scripted_agent(turns, tools=[add], hooks=[seen, first, second, third]).run("x")
    assert seen.flush(10)
    passed, blocked = (f for f in seen.store.facts(result.ids.run_id) if f.point == "before_tool")
    assert (passed.verb, passed.refused, passed.tool, passed.call_id != blocked.call_id) == ("cont", False, "add", True)
    assert [(gate.hook, gate.verb, gate.refused) for gate in passed.gates] == [
        ("first", "cont", False),
        ("second", "cont", False),
        ("third", "cont", False),
    ]
    assert (blocked.hook, blocked.verb, blocked.refused, blocked.reason) == ("second", "block", True, "a rule")
    assert [(gate.hook, gate.verb) for gate in blocked.gates] == [("first", "cont"), ("second", "block")]
    assert sum(gate.microseconds for gate in blocked.gates) <= blocked.duration * 1e6
    by_hook = {stats.hook: stats for stats in run_stats(seen.store).hooks}
    assert (by_hook["first"].calls, by_hook["second"].verbs) == (2, {"cont": 1, "block": 1})
    assert 0 < by_hook["first"].share <= 1
    assert by_hook["first"].p50 <= by_hook["first"].p95
    assert "ObservabilityHook" not in by_hook


def test_every_verdict_has_the_digest_of_the_hooks_of_its_agent(seen):
    def digests(*hooks):
        run = scripted_agent([call("add", a=1, b=2), "x"], tools=[add], hooks=[seen, *hooks]).run("x")
        assert seen.flush(10)
        return {fact.run.rules for fact in seen.store.facts(run.ids.run_id)}

    no = guard(BEFORE_TOOL, name="no")(lambda ctx, request: HookResult.block("no"))
    later = guard(BEFORE_TOOL, name="no", priority=-1)(lambda ctx, request: HookResult.block("no"))
    (first,), (again,), (other,), (none,) = digests(no), digests(no), digests(later), digests()
    assert first == again
    assert len({first, other, ""}) == 3
    assert none == ""


def test_sensitive_data_in_reasons_is_redacted(seen, tmp_path):
    @guard(BEFORE_TOOL)
    def no(ctx, request):
        return HookResult.block(
            "no", reason="not for ann@example.com, key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
        )

    scripted_agent([call("add", a=1, b=2), "x"], tools=[add], hooks=[seen, no]).run("x")
    assert seen.flush(10)
    (refusal,) = run_stats(seen.store).refusals
    assert refusal.reason.startswith("not for a***@example.com, key [")
    seen.store.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"ann@example" not in stored
    assert b"abcdefghijkl" not in stored


def test_pieces_of_text_and_fires_that_only_observers_heard_are_counted_and_have_no_row(seen):
    @hook(ON_TOKEN)
    def shout(ctx, token):
        return token.replace(delta=token.delta.upper())

    watching = observer(BEFORE_LLM, name="watching")(lambda ctx, request: None)
    result = scripted_agent(["one two three"], hooks=[seen, shout, watching]).run("x", sinks=[lambda event: None])
    assert seen.flush(10)
    assert {fact.kind for fact in seen.store.facts(result.ids.run_id)} == {"model", "run"}
    calls = {stats.hook: stats.calls for stats in run_stats(seen.store).hooks}
    assert calls["watching"] == 1
    assert calls["shout"] >= 3


def test_the_facts_of_a_subagent_name_its_run_its_caller_and_the_agent_that_was_asked(seen):
    inner = scripted_agent(["inner"], name="inner")

    @tool
    async def delegate(ctx) -> str:
        """Ask another agent."""
        return (await inner.arun("y", ctx=ctx)).reply

    agent = scripted_agent([call("delegate"), "outer"], tools=[delegate], hooks=[seen], name="outer")
    result = agent.run("x", metadata={"caller_id": "ann"})
    assert seen.flush(10)
    (nested,) = (run for run in seen.store.runs() if run.agent == "inner")
    for run_id in (nested.id, result.ids.run_id):
        assert {(fact.run.asked, fact.run.owner) for fact in seen.store.facts(run_id)} == {("outer", "ann")}
    assert {fact.run.parent_run_id for fact in seen.store.facts(nested.id)} == {result.ids.run_id}
    assert run_stats(seen.store, agent="inner").totals.model_calls == 1
    assert run_stats(seen.store, owner="ann").models[0].calls == 3
    assert run_stats(seen.store, owner="bob").models == ()


def test_invalid_unicode_from_a_model_is_recorded(seen):
    turn = ModelResponse("", (ToolCall("c\ud800", "tool\ud800" + "x" * 10**6, {}),), Usage(2**80, 1))
    scripted_agent([turn, "x"], hooks=[seen]).run("x")
    ((name, call_id),) = facts(seen, "tool", "tool", "call_id")
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
    assert len(facts(seen, "model", "at")) == 200


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


def broken_store(recorder, monkeypatch):
    """Let the store refuse all writes, until the returned function is called."""
    write = recorder.store.add

    def refuse(*given):
        raise StoreError("the disk is full")

    monkeypatch.setattr(recorder.store, "add", refuse)
    return lambda: monkeypatch.setattr(recorder.store, "add", write)


def test_a_gap_in_the_records_is_visible_when_the_file_can_be_written_again(seen, monkeypatch):
    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[seen])
    mend = broken_store(seen, monkeypatch)
    agent.run("x")
    assert seen.flush(10)
    mend()
    agent.run("x")
    assert seen.flush(10)
    totals = run_stats(seen.store).totals
    assert (totals.runs, totals.model_calls) == (1, 1)
    assert totals.lost >= 3
    agent.run("x")
    assert seen.flush(10)
    assert run_stats(seen.store).totals.lost == totals.lost


def test_runs_stop_while_records_cannot_be_written_if_the_hook_fails_closed(tmp_path, monkeypatch):
    recorder = ObservabilityHook(tmp_path / "runs.db", on_failure="closed")
    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[recorder])
    mend = broken_store(recorder, monkeypatch)
    agent.run("x")  # nothing was lost when it began
    assert recorder.flush(10)
    with pytest.raises(RunFailedError, match="records of runs cannot be written: the disk is full"):
        agent.run("x")
    mend()
    assert agent.run("x").reply == "x"
    recorder.flush(10)
    recorder.store.close()
    with pytest.raises(RegistrationError, match="on_failure must be 'open' or 'closed'"):
        ObservabilityHook(tmp_path / "runs.db", on_failure="block")


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
    subprocess.run([sys.executable, "-c", code, tmp_path / "runs.db"], env=env, check=True)
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
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "runs.db"], env=env, check=False)
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
        agent = scripted_agent(
            [*turns, "the end"], tools=[add, broken], hooks=[recorder, no_maybe, again], limits=Limits(steps=4)
        )
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


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a subagent"])
@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
async def test_a_run_that_waits_for_a_person_is_listed_as_waiting(tmp_path, durable, inside):
    store = RunStore(tmp_path / "runs.db")
    decided, asked = asyncio.Event(), asyncio.Event()

    @guard("before_tool", tools="look")
    def ask(ctx, request):
        return HookResult.ask("Look?")

    @hook("approval_requested")
    async def person(ctx, request):
        asked.set()
        await decided.wait()
        return HookResult.approve(by="ann")

    @tool(effects=[])
    def look() -> str:
        """Look."""
        return "seen"

    hooks = [ask, person, ObservabilityHook(store)]
    agent = Agent("worker", llm=ScriptedModel([call("look"), reply("Done.")]), tools=[look], hooks=hooks)
    if inside:
        start = call("delegate", to="worker", task="Look.")
        agent = Agent("boss", llm=ScriptedModel([start, reply("Fine.")]), tools=[Team([agent])], hooks=hooks)
    run = agent.start("Go.", **({"durable": store} if durable else {}))
    await asked.wait()
    id = run.id
    await wait_until(lambda: (found := store.get(id)) is not None and found.status == "waiting")
    assert [each.id for each in store.runs(outermost=True, states=["waiting"])] == [id]
    assert store.runs(outermost=True, states=["running"]) == []
    assert run_stats(store).totals.statuses == {"waiting": 2 if inside else 1}
    decided.set()
    assert (await run.result()).status == "completed"
    await wait_until(lambda: store.get(id).status == "completed")
    assert run_stats(store).totals.statuses == {"completed": 2 if inside else 1}
