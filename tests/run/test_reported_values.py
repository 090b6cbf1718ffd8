"""Every field of the payloads, events and results of a run (DESIGN 3, 6.5)."""

import pytest
from msgspec.structs import replace

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    ON_TOKEN,
    SESSION_START,
    Agent,
    AgentContext,
    AgentResult,
    ApprovalRequest,
    ErrorReport,
    HookResult,
    Message,
    ModelReply,
    ModelRequest,
    Progress,
    PromptBuild,
    Session,
    SessionStart,
    Stopping,
    TokenDelta,
    ToolCallRequest,
    ToolCallResult,
    guard,
    hook,
    observer,
    tool,
)
from hookline._base.errors import PlainError
from hookline.events import (
    ApprovalAsked,
    ApprovalDecided,
    Discarded,
    Failed,
    HookExecuted,
    ModelCalled,
    ModelReplied,
    PointFired,
    RunFinished,
    RunStarted,
    Signalled,
    StepFinished,
    StepStarted,
    TaskTaken,
    TextDelta,
    ToolEnded,
    ToolProgressed,
    ToolSettled,
    ToolStarted,
)
from hookline.models import ModelResponse
from hookline.payloads import (
    ApprovalDecision,
    ErrorInfo,
    Ids,
    Question,
    RunStart,
    Step,
    StepStart,
    StopSignal,
    ToolCall,
    ToolPath,
    ToolSpec,
    Usage,
)
from hookline.points import APPROVAL_DECIDED, TOOL_END_WITH_PATH
from hookline.testing import EventLog

IDS = Ids("run-2", "task", "corr", "s", "teller", "")
EVERYWHERE = (
    SESSION_START,
    ON_RUN_START,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_LLM,
    ON_TOKEN,
    AFTER_LLM,
    BEFORE_TOOL,
    APPROVAL_REQUESTED,
    APPROVAL_DECIDED,
    ON_PROGRESS,
    AFTER_TOOL,
    TOOL_END_WITH_PATH,
    AFTER_STEP,
    ON_STOP,
    ON_ERROR,
    ON_RUN_END,
)


class Clock:
    """A clock that only the model and the tools advance."""

    def __init__(self):
        self.now = 100.0

    def time(self):
        return 1_700_000_000.0

    def monotonic(self):
        return self.now


class Model:
    """Returns the given replies, each after half a second."""

    name, provider = "m", "prov"

    def __init__(self, clock, *replies):
        self.clock, self.replies = clock, list(replies)

    async def complete(self, request):
        self.clock.now += 0.5
        said = self.replies.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    async def stream(self, request):
        said = await self.complete(request)
        for word in said.content.split():
            yield word
        yield said

    def count_tokens(self, content):
        return 1


class Watch:
    """Records every payload by point."""

    points = EVERYWHERE
    phase = "observe"

    def __init__(self):
        self.seen = {}

    def __call__(self, point, ctx, payload):
        self.seen.setdefault(point, []).append(payload)


READ = ToolCall("c1", "read", {"path": "a.txt"})
CALLS = ModelResponse("", (READ,), Usage(7, 3, 1), "tool_calls", 0.25, "m-1", "other", "org")
WORDS = ModelResponse("all good", (), Usage(9, 2, 2), "stop", 0.5)


def make_agent(*replies, hooks=(), fails=False):
    """Create an agent with one tool that takes two seconds, and a context with known ids and times."""
    clock = Clock()

    @tool
    def read(path: str, ctx) -> str:
        """Read a file."""
        clock.now += 2.0
        ctx.progress(0.5, "half")
        if fails:
            raise ValueError("no such file")
        return "text"

    agent = Agent(
        "teller",
        "",
        "Be brief.",
        llm=Model(clock, *replies),
        tools=[read],
        hooks=hooks,
        params={"temperature": 0},
        response_format={"type": "object"},
    )
    numbers = iter(range(1, 99))
    ctx = AgentContext(
        session=Session("s", key="k", platform="web", personality_id="p"),
        clock=clock,
        new_id=lambda prefix: f"{prefix}-{next(numbers)}",
    )
    ctx.new_id("warm")
    return agent, ctx


def reported(*replies, hooks=(), fails=False, sinks=()):
    watch = Watch()
    agent, ctx = make_agent(*replies, hooks=[watch, *hooks], fails=fails)
    result = agent.run("go", ctx=ctx, task_id="task", correlation_id="corr", sinks=sinks)
    return watch.seen, result, agent


def request_of(agent, *messages, hop=0):
    return ModelRequest(
        (Message("system", "Be brief."), *messages),
        agent.tools.specs,
        "m",
        hop,
        1,
        "step",
        {"type": "object"},
        None,
        {"temperature": 0},
        IDS,
    )


def test_the_payloads_of_a_run_are_exact():
    seen, result, agent = reported(CALLS, WORDS)
    user, asked = Message("user", "go"), Message("assistant", "", (READ,))
    answered = Message("tool", "text", (), "c1", "read")
    first, second = request_of(agent, user), request_of(agent, user, asked, answered, hop=1)
    made = ToolCallRequest("c1", "read", {"path": "a.txt"}, 0, 1, None, IDS)
    done = ToolCallResult("c1", "read", {"path": "a.txt"}, "text", None, "ok", 2.0, 0, 1, IDS)
    steps = (
        Step(0, "", ("read",), ("ok",), Usage(7, 3, 1), "tool_calls", 2.5),
        Step(1, "all good", (), (), Usage(9, 2, 2), "stop", 0.5),
    )
    assert seen == {
        SESSION_START: [SessionStart("s", "k", "web", "p", IDS)],
        ON_RUN_START: [RunStart("go", IDS)],
        BEFORE_PROMPT_BUILD: [PromptBuild((user,), "p", IDS)],
        BEFORE_STEP: [StepStart(0, IDS), StepStart(1, IDS)],
        BEFORE_LLM: [first, second],
        ON_TOKEN: [
            TokenDelta("", "", 0, True, "step", IDS, 1),
            TokenDelta("all", "all", 1, False, "step", IDS, 2),
            TokenDelta("good", "allgood", 1, False, "step", IDS, 2),
            TokenDelta("", "allgood", 1, True, "step", IDS, 2),
        ],
        AFTER_LLM: [
            ModelReply(
                "",
                (READ,),
                0,
                1,
                "step",
                Usage(7, 3, 1),
                0.25,
                "tool_calls",
                "m-1",
                "other",
                "org",
                0.5,
                first,
                "model",
                IDS,
            ),
            ModelReply(
                "all good", (), 1, 1, "step", Usage(9, 2, 2), 0.5, "stop", "m", "prov", "", 0.5, second, "model", IDS
            ),
        ],
        BEFORE_TOOL: [made],
        ON_PROGRESS: [
            Progress("tool_start", "c1", "read", "read: a.txt", ids=IDS),
            Progress("progress", "c1", "read", "read: half (50%)", 0.5, ids=IDS),
            Progress("tool_end", "c1", "read", "read finished in 2.0 s", outcome="ok", ids=IDS),
        ],
        AFTER_TOOL: [done],
        TOOL_END_WITH_PATH: [ToolPath("read", "a.txt", seen[TOOL_END_WITH_PATH][0].working_dir, "c1", IDS)],
        AFTER_STEP: list(steps),
        ON_STOP: [Stopping((StopSignal("completed"),), IDS)],
        ON_RUN_END: [result],
    }
    assert result == AgentResult(
        "all good",
        "completed",
        StopSignal("completed"),
        None,
        "go",
        steps,
        Usage(16, 5, 3),
        0.75,
        1,
        ("read",),
        1,
        (user, asked, answered, Message("assistant", "all good")),
        (),
        3.0,
        IDS,
        "all good",
    )


def kinds(log, *without):
    return [event for event in log if not isinstance(event, (PointFired, HookExecuted, *without))]


def test_the_events_of_a_run_are_exact():
    log = EventLog()
    _, result, _ = reported(CALLS, WORDS, sinks=[log])
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    made = {"call_id": "c1", "tool": "read"}
    expected = [
        RunStarted(ids=IDS),
        TaskTaken(task="go"),
        StepStarted(index=0),
        ModelCalled(model="m", messages=2, tools=("read",), provider="prov"),
        ModelReplied(
            tool_calls=(READ,),
            usage=Usage(7, 3, 1),
            cost=0.25,
            finish_reason="tool_calls",
            model="m-1",
            provider="other",
            organization_id="org",
            duration=0.5,
        ),
        ToolStarted(**made, arguments={"path": "a.txt"}, message="read: a.txt"),
        ToolProgressed(**made, fraction=0.5, message="read: half (50%)"),
        ToolEnded(**made, duration=2.0, message="read finished in 2.0 s"),
        ToolSettled(**made, text="text"),
        StepFinished(index=0, tool_names=("read",), usage=Usage(7, 3, 1)),
        StepStarted(index=1),
        ModelCalled(model="m", hop=1, messages=4, tools=("read",), provider="prov"),
        TextDelta(text="all", hop=1),
        TextDelta(text="good", hop=1),
        ModelReplied(
            content="all good",
            hop=1,
            usage=Usage(9, 2, 2),
            cost=0.5,
            finish_reason="stop",
            model="m",
            provider="prov",
            duration=0.5,
        ),
        Signalled(signal=StopSignal("completed")),
        StepFinished(index=1, usage=Usage(9, 2, 2)),
        RunFinished(result=result),
    ]
    found = kinds(log)
    at = {"at": 1_700_000_000.0, "run_id": "run-2"}
    assert found == [event.replace(seq=real.seq, **at) for event, real in zip(expected, found, strict=True)]


def test_the_failure_of_a_tool_is_reported_with_its_call():
    log = EventLog()
    seen, result, _ = reported(CALLS, WORDS, fails=True, sinks=[log])
    error = ErrorInfo("tool", "ValueError", "no such file", "read", "c1")
    assert seen[ON_ERROR] == [ErrorReport((error,), "tool", ids=IDS)]
    assert [event.error for event in log.of(Failed)] == [error]
    assert result.errors == (error,)
    (done,) = seen[AFTER_TOOL]
    assert (done.outcome, done.duration, done.result) == ("error", 2.0, None)
    assert result.messages[2] == Message("tool", "ValueError: no such file", (), "c1", "read", True)
    assert (result.tool_calls, result.successful_tool_calls) == (1, 0)
    assert [(p.phase, p.message, p.outcome) for p in seen[ON_PROGRESS]][-1] == (
        "tool_end",
        "read failed after 2.0 s",
        "error",
    )
    assert [path.call_id for path in seen[TOOL_END_WITH_PATH]] == ["c1"]


@hook(ON_ERROR)
def again(ctx, failure):
    return HookResult.retry("once more") if failure.where == "model" else None


def test_the_failure_of_a_model_is_reported_with_its_request():
    seen, _, agent = reported(RuntimeError("offline"), WORDS, hooks=[again])
    first = request_of(agent, Message("user", "go"))
    error = ErrorInfo("model", "RuntimeError", "offline", "m", fatal=True)
    assert seen[ON_ERROR] == [ErrorReport((error,), "model", True, "step", 0, 1, first, IDS)]
    second = replace(first, attempt=2, messages=(*first.messages, Message("user", "once more")))
    assert seen[BEFORE_LLM] == [first, second]
    assert [(reply.attempt, reply.request, reply.content) for reply in seen[AFTER_LLM]] == [(2, second, "all good")]


def test_a_rejected_reply_and_the_note_are_only_in_the_next_request():
    @hook(AFTER_LLM)
    def reject(ctx, answer):
        return HookResult.retry("in words") if answer.attempt == 1 else None

    log = EventLog()
    seen, result, agent = reported(replace(CALLS, content="look"), WORDS, hooks=[reject], sinks=[log])
    first = request_of(agent, Message("user", "go"))
    rejected = Message("assistant", 'look\nread({"path":"a.txt"})')
    second = replace(first, attempt=2, messages=(*first.messages, rejected, Message("user", "in words")))
    assert seen[BEFORE_LLM] == [first, second]
    assert result.messages == (Message("user", "go"), Message("assistant", "all good"))
    assert [(event.hop, event.attempt, event.purpose) for event in log.of(Discarded)] == [(0, 1, "step")]
    assert [event.attempt for event in log.of(ModelCalled)] == [1, 2]
    assert [(event.attempt, event.content) for event in log.of(ModelReplied)] == [(2, "all good")]
    assert result.usage == Usage(16, 5, 3)
    assert result.steps[0].usage == Usage(16, 5, 3)


def test_an_answer_is_reported_with_its_hook():
    @hook(BEFORE_LLM, name="shortcut")
    def shortcut(ctx, request):
        return HookResult.answer("from me")

    log = EventLog()
    seen, result, agent = reported(hooks=[shortcut], sinks=[log])
    first = request_of(agent, Message("user", "go"))
    assert seen[AFTER_LLM] == [
        ModelReply("from me", cost=0.0, model="m", provider="prov", request=first, source="shortcut", ids=IDS)
    ]
    assert seen[ON_TOKEN] == [TokenDelta("from me", "from me", 0, True, "step", IDS, 1)]
    assert log.of(ModelCalled) == []
    assert [(event.source, event.content) for event in log.of(ModelReplied)] == [("shortcut", "from me")]
    assert (result.usage, result.cost, result.reply) == (Usage(), 0.0, "from me")


class Boss:
    """An approver with a fixed answer."""

    def __init__(self, answer):
        self.points, self.answer = (APPROVAL_REQUESTED,), answer

    def __call__(self, point, ctx, payload):
        return self.answer


@guard(BEFORE_TOOL, name="careful")
def careful(ctx, request):
    return HookResult.ask("Really?", reason="rule 7") if request.arguments["path"] == "a.txt" else None


def approval(answer, *hooks):
    log = EventLog()
    seen, result, _ = reported(CALLS, WORDS, hooks=[careful, Boss(answer), *hooks], sinks=[log])
    return seen, result, log


def test_approvers_get_the_question_and_observers_the_decision():
    seen, result, log = approval(HookResult.approve(by="ada"))
    made = ToolCallRequest("c1", "read", {"path": "a.txt"}, 0, 1, None, IDS)
    digest = made.digest
    assert seen[APPROVAL_REQUESTED] == [ApprovalRequest(made, (Question("Really?", "careful", "rule 7"),), digest)]
    assert seen[APPROVAL_DECIDED] == [ApprovalDecision("c1", "approved", "ada", digest, "", IDS)]
    (asked,), (decided,) = log.of(ApprovalAsked), log.of(ApprovalDecided)
    assert (asked.call_id, asked.tool, asked.arguments) == ("c1", "read", {"path": "a.txt"})
    assert (asked.questions, asked.digest) == (("Really?",), digest)
    assert (decided.call_id, decided.decision, decided.by, decided.digest, decided.message) == (
        "c1",
        "approved",
        "ada",
        digest,
        "",
    )
    assert result.messages[2].content == "text"


def test_a_denial_is_reported_with_its_message_and_is_no_failure():
    seen, result, log = approval(HookResult.deny("not today", by="ada"))
    made = ToolCallRequest("c1", "read", {"path": "a.txt"}, 0, 1, None, IDS)
    assert seen[APPROVAL_DECIDED] == [ApprovalDecision("c1", "denied", "ada", made.digest, "not today", IDS)]
    (decided,) = log.of(ApprovalDecided)
    assert (decided.decision, decided.by, decided.message) == ("denied", "ada", "not today")
    assert seen[AFTER_TOOL] == [
        ToolCallResult("c1", "read", {"path": "a.txt"}, None, "not today", "blocked", 0.0, 0, 1, IDS)
    ]
    assert result.messages[2] == Message("tool", "not today", (), "c1", "read", True)
    assert result.errors == (ErrorInfo("tool", "Blocked", "not today", "ada", "c1"),)
    assert [(p.phase, p.message, p.outcome) for p in seen[ON_PROGRESS]] == [
        ("tool_end", "read was denied by ada", "blocked"),
    ]
    assert ON_ERROR not in seen
    assert TOOL_END_WITH_PATH not in seen


def test_an_edited_call_is_decided_judged_again_and_run_as_it_was_edited():
    seen, result, log = approval(HookResult.edit({"path": "b.txt"}, by="ada"))
    made = ToolCallRequest("c1", "read", {"path": "a.txt"}, 0, 1, None, IDS)
    edited = ToolCallRequest("c1", "read", {"path": "b.txt"}, 0, 1, None, IDS)
    assert seen[APPROVAL_DECIDED] == [ApprovalDecision("c1", "edited", "ada", edited.digest, "", IDS)]
    assert seen[BEFORE_TOOL] == [made, edited]
    assert [event.arguments for event in log.of(ToolStarted)] == [{"path": "b.txt"}]
    assert seen[AFTER_TOOL][0].arguments == {"path": "b.txt"}
    assert [path.file_path for path in seen[TOOL_END_WITH_PATH]] == ["b.txt"]
    assert result.errors == ()


def test_an_invalid_edit_is_an_error_and_is_reported():
    seen, result, _ = approval(HookResult.edit({"path": [1]}, by="ada"))
    assert [done.outcome for done in seen[AFTER_TOOL]] == ["error"]
    (error,) = result.errors
    assert (error.where, error.type, error.source, error.call_id) == ("tool", "InvalidCall", "read", "c1")
    assert error.message == result.messages[2].content
    assert seen[ON_ERROR] == [ErrorReport((error,), "tool", ids=IDS)]


def test_a_call_without_approval_is_denied():
    seen, result, _ = reported(CALLS, WORDS, hooks=[careful])
    assert [(d.decision, d.by) for d in seen[APPROVAL_DECIDED]] == [("denied", "")]
    assert result.messages[2].is_error
    assert seen[AFTER_TOOL][0].outcome == "blocked"


def test_a_failing_approver_denies_and_is_reported_as_not_fatal():
    @hook(APPROVAL_REQUESTED, name="broken")
    def broken(ctx, payload):
        raise ValueError("no line")

    seen, result, _ = reported(CALLS, WORDS, hooks=[careful, broken])
    assert [(d.decision, d.by) for d in seen[APPROVAL_DECIDED]] == [("denied", "broken")]
    failed, blocked = result.errors
    assert (failed.where, failed.type, failed.source, failed.fatal) == ("hook", "ValueError", "broken", False)
    assert (blocked.type, blocked.source, blocked.call_id) == ("Blocked", "broken", "c1")
    assert seen[ON_ERROR] == [ErrorReport((failed,), "hook", False, ids=IDS)]
    assert (result.status, result.messages[2].is_error) == ("completed", True)


def test_a_block_is_reported_with_its_hook():
    @guard(BEFORE_TOOL, name="wall")
    def wall(ctx, request):
        return HookResult.block("not here")

    seen, result, _ = reported(CALLS, WORDS, hooks=[wall])
    assert seen[AFTER_TOOL] == [
        ToolCallResult("c1", "read", {"path": "a.txt"}, None, "not here", "blocked", 0.0, 0, 1, IDS)
    ]
    assert result.errors == (ErrorInfo("tool", "Blocked", "not here", "wall", "c1"),)
    assert [(p.phase, p.message) for p in seen[ON_PROGRESS]] == [
        ("tool_end", "read was blocked by wall"),
    ]


def test_an_answered_call_is_reported_with_its_hook():
    @hook(BEFORE_TOOL, name="cache")
    def cache(ctx, request):
        return HookResult.answer({"known": 1})

    seen, result, _ = reported(CALLS, WORDS, hooks=[cache])
    assert seen[AFTER_TOOL] == [
        ToolCallResult("c1", "read", {"path": "a.txt"}, {"known": 1}, None, "answered", 0.0, 0, 1, IDS)
    ]
    assert [(p.phase, p.message, p.outcome) for p in seen[ON_PROGRESS]] == [
        ("tool_end", "read was answered by cache", "answered"),
    ]
    assert result.messages[2] == Message("tool", '{"known":1}', (), "c1", "read")
    assert (result.tool_calls, result.successful_tool_calls, result.steps[0].outcomes) == (1, 0, ("answered",))


def test_the_answer_of_an_asked_call_is_used_only_after_approval():
    @hook(BEFORE_TOOL, name="cache")
    def cache(ctx, request):
        return HookResult.answer("known")

    seen, result, _ = approval(HookResult.approve(by="ada"), cache)
    assert [(done.outcome, done.result) for done in seen[AFTER_TOOL]] == [("answered", "known")]
    assert result.messages[2].content == "known"
    seen, result, _ = approval(HookResult.deny("no", by="ada"), cache)
    assert [done.outcome for done in seen[AFTER_TOOL]] == ["blocked"]
    seen, result, _ = approval(HookResult.edit({"path": "b.txt"}, by="ada"), cache)
    assert [(done.outcome, done.result) for done in seen[AFTER_TOOL]] == [("ok", "text")]


def test_a_second_attempt_of_a_call_is_reported_as_one():
    @hook(AFTER_TOOL)
    def retry(ctx, done):
        return HookResult.retry() if done.attempt == 1 else None

    log = EventLog()
    seen, result, _ = reported(CALLS, WORDS, hooks=[retry], sinks=[log])
    assert [(r.id, r.hop, r.attempt) for r in seen[BEFORE_TOOL]] == [("c1", 0, 1), ("c1", 0, 2)]
    assert [(d.hop, d.attempt, d.duration) for d in seen[AFTER_TOOL]] == [(0, 1, 2.0), (0, 2, 2.0)]
    assert [(p.phase, p.attempt) for p in seen[ON_PROGRESS]] == [
        ("tool_start", 1),
        ("progress", 1),
        ("tool_end", 1),
        ("tool_start", 2),
        ("progress", 2),
        ("tool_end", 2),
    ]
    assert [event.attempt for event in log.of(ToolStarted)] == [1, 2]
    assert [event.attempt for event in log.of(ToolProgressed)] == [1, 2]
    assert [event.attempt for event in log.of(ToolEnded)] == [1, 2]
    assert [event.attempt for event in log.of(ToolSettled)] == [2]
    assert result.tool_calls == 1
    assert [path.call_id for path in seen[TOOL_END_WITH_PATH]] == ["c1"]


def test_the_model_call_of_a_hook_is_reported_like_every_call():
    spec = ToolSpec("look", "Look.", {"type": "object"})

    @hook(BEFORE_STEP)
    async def judge(ctx, step):
        if step.index == 1:
            return
        answer = await ctx.llm.complete(
            "fine?", purpose="judge", tools=[spec], response_format={"a": 1}, tool_choice="none", params={"b": 2}
        )
        answers.append(answer)

    answers = []
    log = EventLog()
    verdict = ModelResponse("yes", (), Usage(4, 1, 0), "stop", 0.125)
    seen, result, agent = reported(verdict, CALLS, WORDS, hooks=[judge], sinks=[log])
    asked = ModelRequest((Message("user", "fine?"),), (spec,), "m", 0, 1, "judge", {"a": 1}, "none", {"b": 2}, IDS)
    assert seen[BEFORE_LLM][0] == asked
    assert answers == [
        ModelReply("yes", (), 0, 1, "judge", Usage(4, 1, 0), 0.125, "stop", "m", "prov", "", 0.5, asked, "model", IDS)
    ]
    assert seen[AFTER_LLM][0] == answers[0]
    assert [token.purpose for token in seen[ON_TOKEN]] == ["judge", "judge", "step", "step", "step", "step"]
    called = log.of(ModelCalled)[0]
    assert (called.purpose, called.messages, called.tools) == ("judge", 1, ("look",))
    assert [event.purpose for event in log.of(ModelReplied)] == ["judge", "step", "step"]
    assert [event.purpose for event in log.of(TextDelta)] == ["judge", "step", "step"]
    assert (result.usage, result.cost) == (Usage(20, 6, 3), 0.875)
    assert result.steps[0].usage == Usage(11, 4, 1)
    assert result.messages[0] == Message("user", "go")


def silent(*replies, hooks=(), fails=False, sinks=()):
    """Run without a consumer of all events."""
    agent, ctx = make_agent(*replies, hooks=hooks, fails=fails)
    return agent.run("go", ctx=ctx, task_id="task", correlation_id="corr", sinks=sinks)


@pytest.mark.parametrize(
    "kind",
    [ModelCalled, ModelReplied, ToolStarted, ToolProgressed, ToolEnded, ToolSettled, StepFinished, RunFinished],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_consumer_of_one_type_gets_the_same_events_as_a_consumer_of_all(kind, fails):
    every, single = EventLog(), EventLog()
    single.events = frozenset((kind,))
    silent(CALLS, WORDS, fails=fails, sinks=[every])
    silent(CALLS, WORDS, fails=fails, sinks=[single])
    assert len(single) == len(every.of(kind)) > 0
    assert [event.replace(seq=0) for event in single] == [event.replace(seq=0) for event in every.of(kind)]


def test_a_call_with_a_single_hook_has_the_same_result():
    seen = []

    @observer(AFTER_TOOL)
    def watch(ctx, done):
        seen.append(done)

    result = silent(CALLS, WORDS, hooks=[watch])
    assert seen == [ToolCallResult("c1", "read", {"path": "a.txt"}, "text", None, "ok", 2.0, 0, 1, IDS)]
    assert result == silent(CALLS, WORDS)


def test_tool_settled_contains_the_outcome_and_the_text_for_the_model():
    @hook(AFTER_TOOL)
    def reword(ctx, done):
        return done.replace(error="try later")

    log = EventLog()
    _, result, _ = reported(CALLS, WORDS, hooks=[reword], fails=True, sinks=[log])
    (event,) = log.of(ToolSettled)
    assert (event.call_id, event.tool, event.outcome, event.text) == ("c1", "read", "error", "try later")
    assert result.messages[2].content == "try later"


def test_the_message_of_a_plain_error_is_passed_on_unchanged():
    @tool
    def refuse() -> str:
        """Refuse."""
        raise PlainError("closed on Sundays")

    agent, ctx = make_agent(replace(CALLS, tool_calls=(ToolCall("c1", "refuse"),)), WORDS)
    agent = Agent("a", llm=agent.model, tools=[refuse])
    result = agent.run("go", ctx=ctx)
    assert result.messages[2].content == "closed on Sundays"


def test_wrap_gets_the_judged_request():
    class Around:
        points = (ON_RUN_START,)

        def __init__(self):
            self.seen = []

        def __call__(self, point, ctx, payload):
            return None

        def wrap(self, ctx, payload):
            self.seen.append(payload)

    outside = Around()
    seen, _, _ = reported(CALLS, WORDS, hooks=[outside])
    first, second = seen[BEFORE_LLM]
    assert outside.seen == [RunStart("go", IDS), first, seen[BEFORE_TOOL][0], second]
