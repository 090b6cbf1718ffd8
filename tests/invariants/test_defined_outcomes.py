"""One agent with all built-in hooks: every problem around it has a defined outcome."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sqlite3
import time
from collections import Counter
from contextlib import suppress
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from hookline import (
    BEFORE_TOOL,
    ON_PROGRESS,
    ON_RUN_END,
    Agent,
    AgentContext,
    AgentResult,
    Message,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    observer,
    reply,
)
from hookline.events import Failed, ModelReplied, ToolEnded, ToolStarted
from hookline.hooks import (
    ApplyContextConfigHook,
    AuditLogHook,
    AuditTrailHook,
    Compactor,
    ContextCompactionHook,
    CostLimitHook,
    EchoedPayloadHook,
    EchoingHook,
    EpisodeLoggerHook,
    ExecutionTimeLimitHook,
    FinishReasonHook,
    GroundedReplyHook,
    LoopDetectorHook,
    MemoryInjectionHook,
    ModelRetryHook,
    NotesInjectorHook,
    PathGuard,
    PersistSessionHook,
    PlanModeHook,
    RateLimitHook,
    ResponseCacheHook,
    RoleBasedAccessHook,
    SafetyGuardrailHook,
    SchemaRetryHook,
    SkillEvolverHook,
    SkillsHook,
    StepsLimitHook,
    TimingHook,
    TokenBudgetHook,
    TokenUsageLimitHook,
    ToolCallsLimitHook,
    ToolOutputTruncatorHook,
    ToolRetryHook,
)
from hookline.hooks._catalog import BUILTINS, load_builtin
from hookline.models import OverloadedError
from hookline.payloads import ErrorInfo
from hookline.stores import (
    ArtifactStore,
    JsonSessionStore,
    MemoryStore,
    NotesFile,
    SqliteSessionStore,
    StoreError,
    sqlite,
    verify_audit,
)
from hookline.testing import EventLog
from tests.cases import each_case

from .strategies import check_transcript
from .test_lifecycle import check_pairs

CONTEXT = 2000
"""How many words a request may have."""


class Harness:
    """An agent with every built-in hook and tools of many kinds."""

    def __init__(self, folder: Path, model: ScriptedModel, **given: Any) -> None:
        self.folder, self.model = folder, model
        self.memory = given.pop("memory", None) or MemoryStore(folder / "memory.db")
        self.sessions = given.pop("sessions", None) or JsonSessionStore(folder / "sessions")
        self.notes, self.artifacts = NotesFile(folder / "notes.md"), ArtifactStore(folder / "artifacts")
        self.audit, self.lines = folder / "audit.jsonl", []
        self.auditor = AuditLogHook(self.audit)
        self.trail, self.timing = AuditTrailHook(), TimingHook()
        self.executed: list[tuple[str, str]] = []
        self.judged: list[tuple[str, str]] = []
        self.failed: list[ErrorInfo] = []
        self.ends: Counter[str] = Counter()
        self.reports: dict[str, list[Any]] = {}
        self.tries: Counter[str] = Counter()
        self.agent = Agent("all", "", given.pop("instructions", "Be good."), llm=model, tools=self.tools(), **given)
        for hook in [*self.built_ins(), *self.watchers()]:
            self.agent.register_hook(hook)

    def built_ins(self) -> list[Any]:
        return [
            SafetyGuardrailHook(["bomb"]),
            PlanModeHook(["pay"], lambda request: request.call.arguments["amount"] < 100),
            RoleBasedAccessHook({"deploy": "admin"}),
            PathGuard(self.folder.parent),
            StepsLimitHook(15),
            TokenUsageLimitHook(1_000_000),
            ExecutionTimeLimitHook(300),
            CostLimitHook(5.0),
            ToolCallsLimitHook(40),
            RateLimitHook(50, per_tool={"read": 20}, per_minute=100_000),
            FinishReasonHook(["content_filter"]),
            ApplyContextConfigHook(),
            MemoryInjectionHook(self.memory),
            NotesInjectorHook(self.notes),
            TokenBudgetHook(CONTEXT, reserve=100),
            ToolOutputTruncatorHook(1000, artifacts=self.artifacts),
            ContextCompactionHook(Compactor(CONTEXT * 3 // 4, keep_last=4)),
            LoopDetectorHook(),
            EchoedPayloadHook(),
            GroundedReplyHook(),
            SchemaRetryHook(),
            ModelRetryHook(base_delay=0),
            ToolRetryHook(base_delay=0, tools="flaky"),
            ResponseCacheHook(),
            self.auditor,
            self.trail,
            self.timing,
            EchoingHook(self.lines.append),
            PersistSessionHook(self.sessions),
            EpisodeLoggerHook(self.memory),
            SkillsHook(self.folder / "skills"),
            SkillEvolverHook(self.folder / "skills", delay=3600),
        ]

    def watchers(self) -> list[Any]:
        @guard(BEFORE_TOOL, priority=-1000)
        def judge(ctx: Any, request: Any) -> None:
            self.judged.append((request.name, json.dumps(dict(request.arguments))))

        @observer(ON_RUN_END)
        def ended(ctx: Any, result: Any) -> None:
            self.ends[ctx.run_id] += 1

        @observer(ON_PROGRESS)
        def report(ctx: Any, progress: Any) -> None:
            reported = (progress.phase, progress.call_id, progress.attempt, progress.outcome)
            self.reports.setdefault(ctx.run_id, []).append(reported)

        return [judge, ended, report]

    def tools(self) -> list[Any]:
        def did(name: str, **arguments: Any) -> None:
            self.executed.append((name, json.dumps(arguments)))

        def read(topic: str) -> dict[str, Any]:
            did("read", topic=topic)
            return {"topic": topic, "lines": 3}

        def pay(amount: int, to: str) -> str:
            did("pay", amount=amount, to=to)
            return f"paid {amount} to {to}"

        def deploy() -> str:
            did("deploy")
            return "deployed"

        def flaky(ctx: Any) -> str:
            did("flaky")
            self.tries[ctx.run_id] += 1
            if self.tries[ctx.run_id] == 1:
                raise OSError("try again")
            return "worked"

        def big(size: int) -> str:
            did("big", size=size)
            return "0123456789abcde " * (size // 16)

        def listed(size: int) -> list[str]:
            did("listed", size=size)
            return ["0123456789abc"] * (size // 16)

        def raw(kind: str) -> Any:
            did("raw", kind=kind)
            return {"bytes": b"\xff\xfe\0caf\xe9", "surrogate": "\ud800 \udfff", "control": "\0\x1b\x85\u2028"}[kind]

        async def wait() -> str:
            did("wait")
            await asyncio.sleep(60)
            return "never"

        return [read, pay, deploy, flaky, big, listed, raw, wait, self.artifacts]

    def check(self, result: AgentResult, log: EventLog, session: Session) -> None:
        """Check the invariants of a run (DESIGN 7)."""
        run_id = result.ids.run_id
        assert self.ends[run_id] == 1
        check_transcript(session.messages)
        check_transcript(result.messages)
        for request in self.model.requests:
            check_transcript(request.messages)
        check_pairs(self.reports.get(run_id, []))
        kinds = {ToolStarted: "tool_start", ToolEnded: "tool_end"}
        events = [event for event in log if type(event) in kinds]
        check_pairs([(kinds[type(e)], e.call_id, e.attempt, getattr(e, "outcome", None)) for e in events])
        assert [event.seq for event in log] == list(range(1, len(log) + 1))
        assert result.usage.total_tokens == sum(event.usage.total_tokens for event in log.of(ModelReplied))
        assert Counter(self.executed) <= Counter(self.judged)
        self.failed += [event.error for event in log.of(Failed)]

    def run(self, task: str, session: Session | None = None, **options: Any) -> AgentResult:
        return asyncio.run(self.arun(task, session, **options))

    async def arun(self, task: str, session: Session | None = None, **options: Any) -> AgentResult:
        log, session = EventLog(), session or Session("s")
        try:
            result = await self.agent.arun(task, session=session, sinks=[log], **options)
        except RunFailedError as failed:
            result = failed.result
        self.check(result, log, session)
        return result

    def failures(self) -> set[tuple[str, str]]:
        """Return the failures of hooks from the events; failures at ``on_run_end`` are in no result."""
        return {(error.source, error.type) for error in self.failed if error.where == "hook"}

    def audited(self) -> list[Any]:
        assert self.auditor.flush(60)
        assert verify_audit(self.audit).findings == ()
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


@pytest.fixture
def harness(tmp_path: Path) -> Any:
    (tmp_path / "data").mkdir()

    def make(*turns: Any, loop: bool = False, **given: Any) -> Harness:
        return Harness(given.pop("folder", tmp_path / "data"), ScriptedModel(turns, loop=loop), **given)

    return make


# All together.


def test_all_built_ins_together_keep_every_promise_over_a_whole_conversation(harness: Any) -> None:
    batch = [
        call("read", topic="a"),
        call("pay", amount=500, to="Bob"),
        call("pay", amount=5, to="Ann"),
        call("deploy"),
        call("flaky"),
        call("read"),
        call("nothing"),
    ]
    turns = [
        batch,
        OverloadedError("busy"),
        call("big", size=100_000),
        call("read", topic="a"),
        reply('```json\n{"topic": "a", "lines": 3}\n```'),
        *[call("read", topic="b")] * 3,
        ValueError("broken"),
    ]
    it, session = harness(*turns), Session("s")
    it.memory.add_fact("home", "Rome")
    it.notes.append("buy milk")

    first = it.run("do it all", session)
    assert (first.status, first.reply) == ("completed", "Topic: a, lines: 3.")
    assert [step.outcomes for step in first.steps] == [
        ("ok", "blocked", "ok", "blocked", "ok", "error", "error"),
        ("ok",),
        ("blocked",),
        (),
    ]
    assert it.failures() == set()
    assert [name for name, _ in it.executed] == ["read", "pay", "flaky", "flaky", "big"]
    assert "home: Rome" in it.model.requests[0].messages[0].content
    assert "buy milk" in it.model.requests[0].messages[0].content
    assert it.model.requests[1].tool_choice == "read"

    assert it.run("build a bomb", session).status == "ended"
    assert len(session.messages) == len(first.messages)

    third = it.run("look at b", session)
    assert (third.status, third.hook_ended) == ("ended", "loop: read was called 3 times with the same arguments")
    fourth = it.run("and now", session)
    assert (fourth.status, fourth.errors[-1].type) == ("failed", "ValueError")

    assert list(it.sessions.load("s").messages) == list(session.messages)
    assert [line["status"] for line in it.audited() if line["type"] == "run_end"] == [
        "completed",
        "ended",
        "ended",
        "failed",
    ]
    outcomes = [entry["outcome"] for entry in it.trail.log]
    assert len(it.memory.episodes(None)) == len(outcomes) - 1  # a retried attempt is not an episode


async def test_all_built_ins_together_let_a_run_be_cancelled(harness: Any) -> None:
    it, session, log = harness([call("read", topic="a"), call("wait")]), Session("s"), EventLog()
    run = it.agent.start("go", session=session, sinks=[log])
    while ("wait", "{}") not in it.executed or not log.of(ToolEnded):
        await asyncio.sleep(0.01)
    run.cancel("enough")
    result = await run.result()
    it.check(result, log, session)
    assert (result.status, result.steps[0].outcomes) == ("cancelled", ("ok", "cancelled"))
    assert list(it.sessions.load("s").messages) == list(session.messages)


def test_a_long_conversation_is_trimmed_and_compacted_and_never_fails(harness: Any) -> None:
    numbers = iter(range(1000))

    def turn(request: Any) -> Any:
        if request.purpose == "compaction":
            return "They looked at a lot."
        if request.messages[-1].role == "user":
            return [call("big", size=900 + next(numbers)) for _ in range(3)]
        return "Seen 0123456789abcde."

    it, session = harness(turn, loop=True), Session("s")
    for number in range(12):
        assert it.run(f"look {number} " + "word " * 100, session).status == "completed"
    assert any(request.purpose == "compaction" for request in it.model.requests)
    assert max(it.model.count_tokens(request.messages) for request in it.model.requests) <= CONTEXT - 100


# What is too large, empty or wild.


def test_a_system_prompt_larger_than_the_budget_stops_the_run_before_the_model_is_asked(harness: Any) -> None:
    it = harness(reply("never"), instructions="word " * 3000)
    result = it.run("hello")
    assert (result.status, result.stop.kind, it.model.requests) == ("stopped", "token_limit", [])
    assert it.sessions.load("s") is not None


@pytest.mark.parametrize("task", ["", " ", "\0", "\ud800"])
def test_empty_histories_and_unusual_tasks_work(harness: Any, task: str) -> None:
    it = harness(reply("hello"), instructions="")
    result = it.run(task)
    assert (result.status, result.reply) == ("completed", "hello")
    assert it.failures() == set()


@pytest.mark.parametrize("tool", ["big", "listed"])
def test_a_result_of_50_mb_is_cut_for_the_model_and_kept_whole(harness: Any, tool: str) -> None:
    it = harness(call(tool, size=50_000_000), reply("That was long: 0123456789abcde."))
    result = it.run("go")
    assert (result.status, result.steps[0].outcomes, it.failures()) == ("completed", ("ok",), set())
    assert len(result.messages[2].content) <= 1000
    (kept,) = it.artifacts.list()
    assert kept.size >= 49_000_000
    assert it.audited()
    assert it.audit.stat().st_size < 100_000


@pytest.mark.slow
def test_a_result_of_50_mb_is_shortened_only_for_the_request(harness: Any) -> None:
    it = harness(call("big", size=50_000_000), reply("That was long: 0123456789abcde."))
    for hook in list(it.agent.hooks):
        if isinstance(hook, ToolOutputTruncatorHook):
            it.agent.hooks.unregister(hook)
    result = it.run("go")
    assert (result.status, it.failures()) == ("completed", set())
    assert len(result.messages[2].content) == 50_000_000
    assert it.model.count_tokens(it.model.requests[1].messages) <= CONTEXT - 100


@pytest.mark.parametrize("kind", ["bytes", "surrogate", "control"])
def test_bytes_and_text_that_are_not_valid_are_results_like_any_other(harness: Any, kind: str) -> None:
    it = harness(call("raw", kind=kind), reply("seen"))
    result = it.run("go \ud800")
    assert (result.status, it.failures()) == ("completed", set())
    assert len(it.sessions.load("s").messages) == 4
    main = [line["type"] for line in it.audited() if line["type"] in ("model", "tool", "run_end")]
    assert main == ["model", "tool", "model", "run_end"]
    assert len(it.memory.episodes()) == 1


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "..\\..\\x", "a/../../../x", "~/x", "\0", "con", "x" * 500])
def test_session_ids_and_artifact_names_stay_inside(harness: Any, tmp_path: Path, name: str) -> None:
    turns = [call(name), call("save_artifact", name=name, content="x"), call("big", size=100_000), reply("done")]
    it = harness(*turns)
    before = outside(it, tmp_path)
    with suppress(StoreError):  # a name may be rejected
        it.artifacts.save(name, "x")
    result = it.run("go", Session(name))
    assert (result.status, it.failures()) == ("completed", set())
    assert list(it.sessions.load(name).messages) == list(result.messages)
    assert outside(it, tmp_path) == before
    assert not (tmp_path.parent / "x").exists()


def outside(it: Harness, folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if it.folder not in path.parents}


# Stores that cannot be used.


def garbage(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"this is no database at all" * 100)
    return path.read_bytes()


def test_a_corrupt_memory_is_reported_kept_and_the_run_completes(harness: Any, tmp_path: Path) -> None:
    before = garbage(tmp_path / "data" / "memory.db")
    it = harness(call("read", topic="a"), reply("3 lines on a."))
    result = it.run("go")
    assert (result.status, result.reply) == ("completed", "3 lines on a.")
    assert it.failures() == {("MemoryInjectionHook", "StoreError"), ("EpisodeLoggerHook", "StoreError")}
    assert (tmp_path / "data" / "memory.db").read_bytes() == before
    assert len(it.sessions.load("s").messages) == 4


def test_a_locked_memory_is_reported_and_the_run_completes(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    it = harness(call("read", topic="a"), reply("3 lines on a."))
    it.memory.add_fact("home", "Rome")
    holder = sqlite3.connect(it.memory.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    result = it.run("go")
    holder.close()
    assert (result.status, result.reply) == ("completed", "3 lines on a.")
    assert it.failures() == {("EpisodeLoggerHook", "LockedFileError")}
    assert "home: Rome" in it.model.requests[0].messages[0].content


@pytest.mark.parametrize("kind", ["json", "sqlite"])
def test_corrupt_sessions_are_reported_kept_and_the_run_completes(harness: Any, tmp_path: Path, kind: str) -> None:
    if kind == "json":
        store: Any = JsonSessionStore(tmp_path / "data" / "sessions")
        store.save(Session("s", [Message("user", "precious")]))
        (file,) = (tmp_path / "data" / "sessions").glob("session-*.json")
    else:
        store, file = SqliteSessionStore(tmp_path / "data" / "s.db"), tmp_path / "data" / "s.db"
    before = garbage(file)
    it = harness(reply("ok"), sessions=store)
    result = it.run("go")
    assert (result.status, it.failures()) == ("completed", {("PersistSessionHook", "StoreError")})
    assert file.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_reported_and_the_run_completes(harness: Any, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):  # root can write to every folder
        folder.rmdir()
        folder.write_text("a file in its place")
    it = harness(call("read", topic="a"), reply("3 lines on a."), folder=folder)
    result = it.run("go")
    assert (result.status, result.reply) == ("completed", "3 lines on a.")
    assert {source for source, _ in it.failures()} >= {"AuditLogHook", "EpisodeLoggerHook", "PersistSessionHook"}


# Time and numbers.


class Jumping:
    """A wall clock that jumps at every call, with a real monotonic clock."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, *times: float) -> None:
        self.times, self.looks = times, 0

    def time(self) -> float:
        self.looks += 1
        return self.times[self.looks % len(self.times)]


JUMPS = (1.8e9, 0.0, 4e9, -86400.5, 1.8e9 - 3600, 1.8e9 + 3600)


def test_a_wall_clock_that_jumps_changes_nothing_but_timestamps(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [[call("read", topic="a"), call("flaky")], reply("3 lines on a."), call("read", topic="a"), reply("a: 3.")]
    it, session, clock = harness(*turns), Session("s"), Jumping(*JUMPS)
    monkeypatch.setattr(time, "time", Jumping(*JUMPS).time)
    for _ in range(2):
        result = it.run("go", ctx=AgentContext(clock=clock, session=session), session=session)
        assert (result.status, it.failures()) == ("completed", set())
        assert 0 <= result.elapsed < 60
    assert clock.looks > 0
    assert list(it.sessions.load("s").messages) == list(session.messages)
    assert len({line["time"] for line in it.audited()}) > 2
    assert all(0 <= line.get("duration_ms", 0) < 60_000 for line in it.audited())
    assert all(0 <= row.total < 60 for row in it.timing.summary())
    recorded = [episode.recorded_at for episode in it.memory.episodes(None)]
    assert recorded == sorted(recorded, reverse=True)


def test_an_impossible_wall_clock_is_reported_and_the_run_completes(harness: Any) -> None:
    it = harness(call("read", topic="a"), reply("3 lines on a."))
    result = it.run("go", ctx=AgentContext(clock=Jumping(1e18)))
    assert (result.status, result.reply) == ("completed", "3 lines on a.")
    assert {source for source, _ in it.failures()} == {"AuditTrailHook"}


@pytest.mark.slow
async def test_a_thousand_runs_at_once_share_one_memory_and_one_session_store(harness: Any, tmp_path: Path) -> None:
    def turn(request: Any) -> Any:
        topic = next(m.content for m in request.messages if m.role == "user")
        return call("read", topic=topic) if request.messages[-1].role == "user" else f"3 lines on {topic}."

    sessions = SqliteSessionStore(tmp_path / "data" / "sessions.db")
    it = harness(turn, loop=True, sessions=sessions)
    it.memory.add_fact("home", "Rome")
    made = [Session(f"s{number}") for number in range(1000)]
    results = await asyncio.gather(*(it.agent.arun(f"t{n}", session=session) for n, session in enumerate(made)))
    assert Counter((result.status, len(result.errors)) for result in results) == {("completed", 0): 1000}
    assert [result.reply for result in results] == [f"3 lines on t{number}." for number in range(1000)]
    assert set(it.ends.values()) == {1}
    assert len(it.ends) == 1000
    for session in made:
        check_transcript(session.messages)
        assert list(sessions.load(session.id).messages) == list(session.messages)
    for reports in it.reports.values():
        check_pairs(reports)
    episodes = it.memory.episodes(None)
    assert len({episode.run_id for episode in episodes}) == len(episodes) == 1000
    counted = Counter(line["type"] for line in it.audited())
    assert [counted[type] for type in ("model", "tool", "run_end", "lost")] == [2000, 1000, 1000, 0]


# Constructors.

NEEDED: dict[str, Any] = {
    "board": ":memory:",
    "compactor": 100,
    "confirm": ["x"],
    "folder": ".",
    "hook": guard(BEFORE_TOOL)(lambda ctx, request: None),
    "hosts": ["good.com"],
    "max_context_tokens": 10,
    "max_cost": 1,
    "max_seconds": 3,
    "max_steps": 3,
    "max_tokens": 100,
    "max_tool_calls": 1,
    "max_total_tokens": 3,
    "model": ScriptedModel(),
    "notes": "n.md",
    "path": "a.jsonl",
    "rules": ["x"],
    "stop_reasons": ["stop"],
    "store": "sessions",
}
"""Something sensible for each argument that cannot be left out."""

CLAUDE = {"settings": str(Path(__file__).parent / "claude_settings.json")}
RULES = {"path": str(Path(__file__).parent / "rules.toml")}
BESIDES: dict[str, dict[str, Any]] = {
    "ClaudeHooks.folder": CLAUDE,
    "ClaudeHooks.on_failure": CLAUDE,
    "ClaudeHooks.skip": CLAUDE,
    "ClaudeHooks.tools": CLAUDE,
    "ClaudeHooks.transcripts": CLAUDE,
    "PlanModeHook.approver": {"confirm": ["x"]},
    "PlanModeHook.question": {"confirm": ["x"]},
    "load_rules.tools": RULES,
    "load_rules.store": RULES,
    "RateLimitHook.max_calls_per_run": {"per_minute": 10},
    "SafetyGuardrailHook.allowlist": {"blocklist": ["x"]},
    "SafetyGuardrailHook.reply": {"blocklist": ["x"]},
    "SpendingLimit.usd": {"tokens": 1000},
    **{f"SpendingLimit.{name}": {"usd": 1.0} for name in ("tokens", "store", "reserve_usd", "account")},
}
"""Where something else must be given for an argument to make sense."""

NONSENSE: dict[str, Any] = {
    "an object": object(),
    "-1": -1,
    "NaN": nan,
    "infinity": inf,
    "10**400": 10**400,
    "1.5": 1.5,
    "0": 0,
    "True": True,
    "None": None,
    "text": "text",
    "no text": "",
    "NUL": "\0",
    "bytes": b"text",
    "[]": [],
    "[None]": [None],
    "[1]": [1],
    "['']": [""],
    "{}": {},
    "a mapping": {"text": object()},
    "a mapping of numbers": {1: 1},
    "a class": MemoryStore,
}

TEXTS = {
    "ApplyContextConfigHook.system_prompt",
    "ApprovalsHook.asked_by",
    "ApprovalsHook.owner",
    "ApprovalsHook.root_id",
    "Compactor.instructions",
    "EchoedPayloadHook.fallback",
    "EgressGuard.tools",
    "EpisodeLoggerHook.scope",
    "MemoryInjectionHook.scope",
    "PersistSessionHook.session_id",
    "PathGuard.commands",
    "PlanModeHook.question",
    "SpendingLimit.account",
    "RoleBasedAccessHook.key",
    "TicketRules.key",
    "SafetyGuardrailHook.reply",
    "SensitiveDataHook.reply",
    "TerminalGuard.argument",
    "TerminalGuard.tools",
    "ToolRetryHook.tools",
}
PATHS = {
    "ApprovalsHook.store",
    "AuditLogHook.checkpoint",
    "AuditLogHook.index",
    "AuditLogHook.logger",
    "AuditLogHook.path",
    "ClaudeHooks.transcripts",
    "EpisodeLoggerHook.memory",
    "MemoryInjectionHook.memory",
    "NotesInjectorHook.notes",
    "ObservabilityHook.path",
    "PersistSessionHook.store",
    "RecordHook.folder",
    "SkillEvolverHook.folder",
    "SkillsHook.folder",
    "SpendingLimit.store",
    "TapeHook.path",
    "TicketRules.board",
    "ToolOutputTruncatorHook.artifacts",
}
FLAGS = {
    "AuditLogHook.content",
    "ChannelGuard.attachments",
    "EgressGuard.resolve",
    "InjectionGuard.judge",
    "InjectionGuard.task",
    "LoopDetectorHook.answer",
    "MetricsHook.every_call",
    "OpenTelemetryHook.content",
    "PathGuard.write",
    "SchemaRetryHook.any_error",
    "SchemaRetryHook.grounded",
    "SensitiveDataHook.private_ips",
    "SensitiveDataHook.requests",
    "TerminalGuard.writes",
    "TicketJudgeHook.evidence",
    "ToolOutputTruncatorHook.artifacts",
}
FUNCTIONS = {
    "Compactor.fallback",
    "EchoedPayloadHook.fallback",
    "EchoingHook.write",
    "FinishReasonHook.finish_reason_resolver",
    "PlanModeHook.approver",
    "StepsLimitHook.step_counter",
}
AMOUNTS = {
    "RecordHook.max_age",
    "ApprovalsHook.hold_seconds",
    "ApprovalsHook.seconds",
    "ChannelGuard.loop_window",
    "InjectionGuard.judge_timeout",
    "CostLimitHook.max_cost",
    "ExecutionTimeLimitHook.max_seconds",
    "ModelRetryHook.base_delay",
    "ModelRetryHook.max_delay",
    "ObservabilityHook.keep_days",
    "ResponseCacheHook.ttl",
    "SkillEvolverHook.delay",
    "SkillEvolverHook.max_seconds",
    "SpendingLimit.reserve_usd",
    "SpendingLimit.usd",
    "TicketJudgeHook.timeout",
    "ToolRetryHook.base_delay",
    "ToolRetryHook.max_delay",
    "limits_plugin.max_cost",
    "limits_plugin.max_execution_time",
}

SENSIBLE: dict[str, set[str]] = {
    "text": TEXTS | PATHS | {"load_rules.store"},
    "NUL": TEXTS,
    "no text": {
        "ApplyContextConfigHook.system_prompt",
        "ApprovalsHook.asked_by",
        "ApprovalsHook.owner",
        "ApprovalsHook.root_id",
        "EpisodeLoggerHook.scope",
        "MemoryInjectionHook.scope",
        "SafetyGuardrailHook.reply",
        "SensitiveDataHook.reply",
    },
    "True": FLAGS,
    "1.5": AMOUNTS,
    "0": {
        "InjectionGuard.taint_steps",
        "Compactor.keep_last",
        "MemoryInjectionHook.max_facts",
        "MemoryInjectionHook.max_episodes",
        "ModelRetryHook.base_delay",
        "SkillEvolverHook.delay",
        "TokenBudgetHook.reserve",
        "ToolRetryHook.base_delay",
    },
    "None": {
        "RecordHook.max_age",
        "RecordHook.max_size",
        "ChannelGuard.loop_turns",
        "ChannelGuard.max_length",
        "ChannelGuard.per_conversation",
        "ChannelGuard.per_sender",
        "InjectionGuard.taint_steps",
        "RateLimitHook.max_calls_per_run",
        "limits_plugin.finish_reasons",
        "limits_plugin.max_execution_time",
        "limits_plugin.max_steps",
        "limits_plugin.max_tokens",
    },
    "[]": {
        "load_rules.tools",
        "ClaudeHooks.skip",
        "ChannelGuard.allow",
        "ChannelGuard.blocklist",
        "ChannelGuard.bots",
        "ChannelGuard.deny",
        "ChannelGuard.links",
        "ChannelGuard.redact",
        "EgressGuard.hosts",
        "EgressGuard.local",
        "InjectionGuard.dangerous",
        "InjectionGuard.untrusted",
        "PathGuard.protect",
        "PathGuard.read",
        "PathGuard.search_tools",
        "PathGuard.commands",
        "PathGuard.secrets",
        "PathGuard.write",
        "PathGuard.write_tools",
        "ProvenanceGuard.trusted",
        "SafetyGuardrailHook.allowlist",
        "SensitiveDataHook.allow",
        "Strict.allow",
        "TerminalGuard.allow",
        "TerminalGuard.ask",
        "TerminalGuard.deny",
        "TerminalGuard.protect",
        "TerminalGuard.secrets",
        "limits_plugin.finish_reasons",
    },
    "{}": {
        "load_rules.tools",
        "ClaudeHooks.tools",
        "ApplyContextConfigHook.response_format",
        "RateLimitHook.per_tool",
        "SensitiveDataHook.actions",
        "SensitiveDataHook.arguments",
        "SensitiveDataHook.extra",
        "TicketRules.may",
    },
    "a class": FUNCTIONS,
}
"""What makes sense after all, as the docstrings say; ``None`` also does where it is the default or a soft limit."""

MADE = {**{name: load_builtin(name) for name in BUILTINS}, "Compactor": Compactor}
PARAMETERS = [(name, parameter) for name, made in MADE.items() for parameter in inspect.signature(made).parameters]


def needed(name: str) -> dict[str, Any]:
    parameters = inspect.signature(MADE[name]).parameters.values()
    return {p.name: NEEDED[p.name] for p in parameters if p.default is p.empty}


def is_sensible(label: str, name: str, parameter: str) -> bool:
    default = inspect.signature(MADE[name]).parameters[parameter].default
    may_be_none = label == "None" and (default is None or parameter == "soft_limit")
    return may_be_none or f"{name}.{parameter}" in SENSIBLE.get(label, set())


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS, ids=lambda value: value)
def test_every_constructor_rejects_invalid_values_with_a_reason(
    name: str, parameter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    swallowed: list[str] = []
    problems: list[str] = []
    for label, value in NONSENSE.items():
        given = {**needed(name), **BESIDES.get(f"{name}.{parameter}", {}), parameter: value}
        if is_sensible(label, name, parameter):
            MADE[name](**given)
            continue
        try:
            MADE[name](**given)
        except RegistrationError as error:
            problems.append(str(error))
        else:
            swallowed.append(label)
    assert swallowed == []
    assert all(15 < len(problem) < 500 for problem in problems), problems
    assert list(tmp_path.iterdir()) == []


@each_case("name", [name for name in MADE if needed(name)])
def test_required_arguments_cannot_be_omitted(name: str) -> None:
    with pytest.raises(TypeError, match="missing"):
        MADE[name]()
