"""Measure one fire of each built-in hook beside a hook that does nothing.

Each row of the tables is a hook with its name, constructor, point and payload. The hook and a no-op of the same kind
(sync or async) fire alternately through a registry, in one process and an empty folder.
"""

# ruff: noqa: PLW0108 - a hook is imported when its turn comes

import asyncio
import inspect
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    AgentContext,
    AgentResult,
    ApprovalRequest,
    ErrorReport,
    HookRegistry,
    Message,
    ModelReply,
    ModelRequest,
    ScriptedModel,
    ToolCallRequest,
    ToolCallResult,
    guard,
    hooks,
    stores,
    tool,
)
from hookline._kernel.scope import HookState, Scope
from hookline._kernel.state import AgentState
from hookline._run.context import build_context, services_of
from hookline.models import GatedModel
from hookline.payloads import ErrorInfo, Ids, Question, RunStart, Step, StepStart, Ticket, ToolCall, Usage
from hookline.points import BEFORE_TICKET_COMPLETE
from hookline.tools import ToolRegistry

h: Any = hooks


@tool(effects=["read"])
def read_file(path: str) -> str:
    """Read a text file."""
    return path


def _turn(n: int) -> tuple[Message, ...]:
    """Return a question, a tool call, its 2 KB result and the model's reply."""
    return (
        Message("user", f"What is in the file number {n}? Be brief, and say if there is anything unusual in it."),
        Message("assistant", "", (ToolCall(f"c{n}", "read_file", {"path": f"notes/{n}.txt"}),)),
        Message("tool", "all work and no play. " * 93, call_id=f"c{n}", name="read_file"),
        Message("assistant", "It holds the same sentence again and again, which is unusual for a file of notes."),
    )


MESSAGES = (Message("system", "You are a careful assistant."), *_turn(1), *_turn(2), Message("user", "And the third?"))
TOOLS = ToolRegistry([read_file])
REQUEST = ModelRequest(MESSAGES, TOOLS.specs, "bench", 2)
READING = REQUEST.replace(tools=(*TOOLS.specs, *ToolRegistry([stores.SkillStore("skills")]).specs))
REPLY = ModelReply("It is empty. " * 20, hop=2, usage=Usage(1500, 60), cost=0.01, model="bench", request=REQUEST)
CALL = ToolCallRequest("c3", "read_file", {"path": "notes/3.txt"}, 2)
ASKED = ApprovalRequest(CALL, (Question("May read_file run?", "PlanModeHook"),), CALL.digest)
COMMAND = ToolCallRequest("c3", "shell", {"command": "grep -rn 'all work' notes | sort | head -20"}, 2)
TICKET_CALL = ToolCallRequest("c3", "ticket_comment", {"id": "T-3", "text": "It is empty."}, 2)
TICKET = Ticket("T-3", "I looked at the file.", tier="auto", assignee="bench")
RESULT = ToolCallResult("c3", "read_file", {"path": "notes/3.txt"}, "all work and no play. " * 93, duration=0.01, hop=2)
FAILED = RESULT.replace(result=None, error="ValueError: no such file", outcome="error")
LIMITED = ErrorInfo("model", "RateLimitError", "slow down", "bench", fatal=True, retry_after=999.0)
FAILURE = ErrorReport((LIMITED,), "model", True, "step", 2, 1, REQUEST)
START, STEP, STEPPED = RunStart("And the third?"), StepStart(2), Step(2, "It is empty.", finish_reason="stop")
DONE = AgentResult("It is empty.", steps=(STEPPED,), usage=Usage(1500, 60), messages=MESSAGES)


class Case(NamedTuple):
    """One row: a hook at a point."""

    name: str
    make: Callable[[], Any]
    point: str
    payload: Any


class Pass:
    """A guard that allows everything, for ``shadow``."""

    points, phase = frozenset({BEFORE_TOOL}), "guard"

    def __call__(self, point: str, ctx: Any, request: Any) -> None:
        pass


def _named(*tools: str) -> Any:
    """Return a guard of these tools that allows everything."""

    def allow(ctx: Any, request: Any) -> None:
        pass

    return guard(BEFORE_TOOL, tools=tools)(allow)


def _warm_cache() -> Any:
    cache = h.ResponseCacheHook()
    asyncio.run(_fire(HookRegistry([cache]), AFTER_LLM, REPLY, _ctx())())
    return cache


def _granted() -> Any:
    """Return a store that has a standing permission for the requested call."""
    store = stores.ApprovalStore(":memory:")
    row = store.ask(ASKED, seconds=3600, ids=Ids())
    store.decide(row.id, decision="approve", digest=row.digest, by="bench", remember="always")
    return store


CASES = [
    Case("StepsLimitHook", lambda: h.StepsLimitHook(10), BEFORE_STEP, STEP),
    Case("TokenUsageLimitHook", lambda: h.TokenUsageLimitHook(10**9), BEFORE_STEP, STEP),
    Case("ExecutionTimeLimitHook", lambda: h.ExecutionTimeLimitHook(10**6), BEFORE_STEP, STEP),
    Case("CostLimitHook", lambda: h.CostLimitHook(10**6), BEFORE_STEP, STEP),
    Case("ToolCallsLimitHook", lambda: h.ToolCallsLimitHook(10**9), BEFORE_STEP, STEP),
    Case("FinishReasonHook", lambda: h.FinishReasonHook(["length"]), AFTER_STEP, STEPPED),
    Case("ApplyContextConfigHook", lambda: h.ApplyContextConfigHook("You are brief."), ON_RUN_START, START),
    Case("RateLimitHook", lambda: h.RateLimitHook(10**9), BEFORE_TOOL, CALL),
    Case("RoleBasedAccessHook", lambda: h.RoleBasedAccessHook({"deploy": "admin"}), BEFORE_TOOL, CALL),
    Case("SafetyGuardrailHook", lambda: h.SafetyGuardrailHook(["launch codes", "poison"]), ON_RUN_START, START),
    Case("PlanModeHook", lambda: h.PlanModeHook(["delete_*"]), BEFORE_TOOL, CALL),
    Case("ApprovalsHook, a permission", lambda: h.ApprovalsHook(_granted()), APPROVAL_REQUESTED, ASKED),
    Case("AuditTrailHook", lambda: h.AuditTrailHook(), AFTER_TOOL, RESULT),
    Case("TokenBudgetHook, it fits", lambda: h.TokenBudgetHook(10**6), BEFORE_LLM, REQUEST),
    Case("TokenBudgetHook, trimming", lambda: h.TokenBudgetHook(600), BEFORE_LLM, REQUEST),
    Case("ToolOutputTruncatorHook, short enough", lambda: h.ToolOutputTruncatorHook(4000), AFTER_TOOL, RESULT),
    Case("ToolOutputTruncatorHook, truncating", lambda: h.ToolOutputTruncatorHook(1000), AFTER_TOOL, RESULT),
    Case("ContextCompactionHook, short enough", lambda: h.ContextCompactionHook(h.Compactor(10**6)), BEFORE_STEP, STEP),
    Case("AuditLogHook", lambda: h.AuditLogHook("audit.jsonl"), AFTER_TOOL, RESULT),
    Case("TimingHook", lambda: h.TimingHook(), AFTER_TOOL, RESULT),
    Case("EchoingHook", lambda: h.EchoingHook(write=len), AFTER_TOOL, RESULT),
    Case("MemoryInjectionHook", lambda: h.MemoryInjectionHook(_memory()), BEFORE_LLM, REQUEST),
    Case("NotesInjectorHook", lambda: h.NotesInjectorHook(_notes()), BEFORE_LLM, REQUEST),
    Case("EpisodeLoggerHook", lambda: h.EpisodeLoggerHook(_memory()), AFTER_TOOL, RESULT),
    Case("SkillsHook", lambda: h.SkillsHook(_skills()), BEFORE_LLM, READING),
    Case("SkillEvolverHook, a run with few calls", lambda: h.SkillEvolverHook(_skills()), ON_RUN_END, DONE),
    Case("PersistSessionHook", lambda: h.PersistSessionHook(stores.JsonSessionStore("sessions")), ON_RUN_END, DONE),
    Case("LoopDetectorHook", lambda: h.LoopDetectorHook(), BEFORE_TOOL, CALL),
    Case("EchoedPayloadHook", lambda: h.EchoedPayloadHook(), AFTER_LLM, REPLY),
    Case("GroundedReplyHook", lambda: h.GroundedReplyHook(), AFTER_LLM, REPLY),
    Case("SchemaRetryHook", lambda: h.SchemaRetryHook(), AFTER_TOOL, FAILED),
    Case("PathGuard", lambda: h.PathGuard("."), BEFORE_TOOL, CALL),
    Case("EgressGuard", lambda: h.EgressGuard(["example.com"]), BEFORE_TOOL, CALL),
    Case("SensitiveDataHook, a clean result of 2 KB", lambda: h.SensitiveDataHook(), AFTER_TOOL, RESULT),
    Case("SensitiveDataHook, a clean call", lambda: h.SensitiveDataHook(), BEFORE_TOOL, CALL),
    Case("InjectionGuard, a trusted result", lambda: h.InjectionGuard(), AFTER_TOOL, RESULT),
    Case("InjectionGuard, an untrusted result", lambda: h.InjectionGuard(["read_*"]), AFTER_TOOL, RESULT),
    Case("InjectionGuard, a call", lambda: h.InjectionGuard(), BEFORE_TOOL, CALL),
    Case("ProvenanceGuard, an untrusted result", lambda: h.ProvenanceGuard(), AFTER_TOOL, RESULT),
    Case("ProvenanceGuard, a call", lambda: h.ProvenanceGuard(), BEFORE_TOOL, CALL),
    Case("TerminalGuard", lambda: h.TerminalGuard("."), BEFORE_TOOL, COMMAND),
    Case("ModelRetryHook, giving up", lambda: h.ModelRetryHook(), ON_ERROR, FAILURE),
    Case(
        "FallbackModelHook, without the other model's own call",
        lambda: h.FallbackModelHook(_model()),
        ON_ERROR,
        FAILURE,
    ),
    Case("ToolRetryHook, a good result", lambda: h.ToolRetryHook(), AFTER_TOOL, RESULT),
    Case("ToolRetryHook, an error that it leaves alone", lambda: h.ToolRetryHook(on=["OSError"]), AFTER_TOOL, FAILED),
    Case("ResponseCacheHook, a miss", lambda: h.ResponseCacheHook(), BEFORE_LLM, REQUEST),
    Case("ResponseCacheHook, a hit", _warm_cache, BEFORE_LLM, REQUEST),
    Case("ResponseCacheHook, keeping", lambda: h.ResponseCacheHook(), AFTER_LLM, REPLY),
    Case("TicketRules", lambda: h.TicketRules(":memory:", {"create": ["lead"]}), BEFORE_TOOL, TICKET_CALL),
    Case("TicketJudgeHook, no criteria", lambda: h.TicketJudgeHook(), BEFORE_TICKET_COMPLETE, TICKET),
    Case("shadow, of a guard that lets pass", lambda: h.shadow(Pass()), BEFORE_TOOL, CALL),
    Case("your own guard with tools=, called", lambda: _named("read_*", "shell"), BEFORE_TOOL, CALL),
    Case("your own guard with tools=, not called", lambda: _named("delete_*", "shell"), BEFORE_TOOL, CALL),
]


def _model() -> ScriptedModel:
    return ScriptedModel(["It is empty."], loop=True)


def _memory() -> Any:
    memory = stores.MemoryStore()
    for n in range(10):
        memory.add_fact(f"fact {n}", "The user likes short answers.")
    return memory


def _skills() -> Any:
    skills = stores.SkillStore("skills")
    for number in range(10):
        if skills.propose(stores.Skill(f"skill-{number}", "What the user wants done.", "1. Do it.")):
            skills.accept(f"skill-{number}")
    return skills


def _notes() -> Any:
    notes = stores.NotesFile("notes.md")
    for _ in range(10):
        notes.append("The user likes short answers.")
    return notes


def _ctx() -> AgentContext:
    """Return a context like that of a run."""

    async def ask(model: Any, request: ModelRequest) -> ModelReply:
        return REPLY

    ctx = AgentContext()
    services_of(ctx).tools = TOOLS
    services_of(ctx).llm = GatedModel(_model(), ask)
    state = AgentState(messages=MESSAGES[1:], system_prompt="You are a careful assistant.")
    return build_context(services_of(ctx), Scope(ctx, state), hook_state=HookState(), scratch={})


def _fire(registry: HookRegistry, point: str, payload: Any, ctx: AgentContext) -> Callable[[], Any]:
    async def fire(times: int = 1) -> None:
        for _ in range(times):
            ctx.hook_state.clear()
            await registry.fire(point, payload, ctx=ctx)

    return fire


def _noop_like(hook: Any, point: str) -> HookRegistry:
    """Return a registry with a no-op hook of the same kind and phase."""

    async def later(ctx: Any, payload: Any) -> None:
        pass

    def at_once(ctx: Any, payload: Any) -> None:
        pass

    phase = HookRegistry([hook]).stack.entries(point)[0].phase
    registry = HookRegistry()
    registry.on(point, later if inspect.iscoroutinefunction(type(hook).__call__) else at_once, phase=phase)
    return registry


def fires(reps: int) -> dict[str, dict[str, list[float]]]:
    """Return CPU microseconds for one fire of each hook and of its no-op, per repetition."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        taken = {case.name: _measured(case, reps) for case in CASES}
        os.chdir(os.sep)
    return taken


def _measured(case: Case, reps: int) -> dict[str, list[float]]:
    aio, hook = asyncio.new_event_loop(), case.make()

    def cpu(fire: Callable[..., Any], times: int) -> float:
        began = time.process_time()
        aio.run_until_complete(fire(times))
        return (time.process_time() - began) * 1e6 / times

    registries = {"hook": HookRegistry([hook]), "noop": _noop_like(hook, case.point)}
    fires = {name: _fire(registry, case.point, case.payload, _ctx()) for name, registry in registries.items()}
    times = {name: max(3, int(2000 / max(cpu(fire, 3), 0.1))) if reps > 3 else 3 for name, fire in fires.items()}
    taken: dict[str, list[float]] = {name: [] for name in fires}
    for _ in range(reps):
        for name, fire in fires.items():
            taken[name].append(cpu(fire, times[name]))
    aio.close()
    return taken
