"""Compactor and ContextCompactionHook: summaries of long conversations."""

import pytest

from hookline import (
    AFTER_LLM,
    BEFORE_LLM,
    ON_ERROR,
    ON_RUN_START,
    ON_STOP,
    Agent,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    Message,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.hooks import Compactor, ContextCompactionHook, SafetyGuardrailHook, TokenBudgetHook
from hookline.hooks.compaction import MARK, RETRY_AFTER_MESSAGES
from hookline.points import BEFORE_COMPACTION
from hookline.testing import EventLog


@tool
def words(n: int) -> str:
    """Give n words."""
    return " ".join(f"w{i}" for i in range(n))


def talk(turns, each=10):
    return [
        Message(role, " ".join([f"{role}{turn}"] * each)) for turn in range(turns) for role in ("user", "assistant")
    ]


def model(*steps, summary="they talked"):
    """Plays the steps; asked for a summary it gives this one, or what this function makes of the request."""
    left = iter(steps or ("ok",))

    def turn(request):
        if request.purpose != "compaction":
            return next(left)
        return summary(request) if callable(summary) else summary

    return ScriptedModel([turn], loop=True)


def compacting(llm, max_tokens=60, hooks=(), keep_last=2, **options):
    options = {"instructions": "Shorten this.", "max_summary_tokens": 10, "keep_last": keep_last, **options}
    compactor = Compactor(max_tokens, **options)
    return Agent("a", "", "be good", llm=llm, tools=[words], hooks=[*hooks, ContextCompactionHook(compactor)])


def asked(llm, purpose="compaction"):
    return [request for request in llm.requests if request.purpose == purpose]


def firsts(messages):
    return [message.content.split(" ")[0] for message in messages]


def test_a_short_history_is_left_alone():
    llm, session = model(), Session("s", talk(2))
    compacting(llm).run("now", session=session)
    assert asked(llm) == []
    assert len(session.messages) == 6


def test_the_middle_of_a_long_history_becomes_a_summary_in_the_transcript():
    llm, session = model(), Session("s", talk(5))
    result = compacting(llm).run("now", session=session)
    assert result.reply == "ok"
    assert firsts(session.messages) == ["[Summary", "assistant4", "now", "ok"]
    summary = session.messages[0]
    assert (summary.role, summary.content) == ("user", f"{MARK}\nthey talked")
    (request,) = asked(llm, "step")
    assert firsts(request.messages) == ["be", "[Summary", "assistant4", "now"]


def test_the_summary_request_has_the_middle_and_no_tools():
    llm = model()
    compacting(llm, max_tokens=99, keep_last=5).run("now", session=Session("s", talk(5)))
    (request,) = asked(llm)
    system, user = request.messages
    assert (system.role, system.content) == ("system", "Shorten this.")
    assert user.content.startswith("User: user0 user0")
    assert "\nAssistant: assistant2" in user.content
    assert "user3" not in user.content
    assert request.params["max_tokens"] == 10
    assert request.tools == ()


def test_the_default_instructions_say_what_matters():
    assert "what is still open" in Compactor(100).instructions


def test_calls_and_results_are_read_as_text():
    def bad() -> str:
        raise ValueError("broken")

    llm, session = model([call("words", n=3), call("bad")], "first", "ok"), Session("s", talk(1))
    agent = Agent("a", llm=llm, tools=[words, bad], hooks=[ContextCompactionHook(Compactor(200, keep_last=0))])
    agent.run("one", session=session)
    agent.hooks.register(ContextCompactionHook(Compactor(20, keep_last=0, max_summary_tokens=5)))
    agent.run("two", session=session)
    text = "\n".join(request.messages[1].content for request in asked(llm))
    assert '(calls words with {"n":3}) (calls bad with {})' in text
    assert "Result of words: w0 w1 w2" in text
    assert "Error of bad: ValueError: broken" in text


def test_an_earlier_summary_becomes_part_of_the_new_one():
    llm, session = model(*["ok " * 30] * 6), Session("s", talk(5))
    agent = compacting(llm)
    for turn in range(6):
        agent.run(f"turn{turn}", session=session)
    later = asked(llm)[1:]
    assert later
    assert all(request.messages[1].content.startswith("Earlier summary: they talked") for request in later)
    assert sum(message.content.startswith(MARK) for message in session.messages) == 1


def test_a_long_run_is_compacted_and_keeps_its_task_and_newest_results():
    llm = model(*[call("words", n=20)] * 8, "ok")
    result = compacting(llm).run("the task")
    assert result.status == "completed"
    assert len(asked(llm)) >= 2
    for request in asked(llm, "step"):
        assert llm.count_tokens(request.messages) <= 62
        assert Message("user", "the task") in request.messages
        assert [m for m in request.messages if m.role == "user"][-1].content == "the task"
        assert request.messages[-1].role in ("user", "tool")
        assert "left out" not in request.messages[-1].content
    assert firsts(result.messages)[:2] == ["[Summary", "the"]


def test_the_history_is_not_checked_again_before_the_first_step():
    looked = []

    @hook(BEFORE_COMPACTION)
    def not_now(ctx, compaction):
        looked.append(compaction.reason)
        return HookResult.block("not now")

    compacting(model(), hooks=[not_now]).run("now", session=Session("s", talk(5)))
    assert looked == ["101 tokens, and 60 are allowed"]


def test_a_task_that_a_guard_refuses_costs_no_summary():
    session, llm = Session("s", talk(6)), model()
    result = compacting(llm, hooks=[SafetyGuardrailHook(["bomb"])]).run("a bomb", session=session)
    assert (result.status, llm.requests, len(session.messages)) == ("ended", [], 12)


def test_block_postpones_the_summary():
    blocks = []

    @hook(BEFORE_COMPACTION)
    def not_now(ctx, compaction):
        blocks.append(len(compaction.messages))
        return HookResult.block("not now") if len(blocks) < 3 else None

    llm, session = model(call("words", n=1), call("words", n=1), call("words", n=1), "ok"), Session("s", talk(5))
    result = compacting(llm, max_tokens=99, keep_last=5, hooks=[not_now]).run("now", session=session)
    assert result.status == "completed"
    assert len(blocks) == 3
    assert asked(llm)
    assert result.errors == ()


def test_replace_changes_the_source_of_the_summary():
    @hook(BEFORE_COMPACTION)
    def hide(ctx, compaction):
        return compaction.replace(messages=[m for m in compaction.messages if "user1" not in m.content])

    llm = model()
    compacting(llm, max_tokens=90, hooks=[hide]).run("now", session=Session("s", talk(5)))
    text = "".join(request.messages[1].content for request in asked(llm))
    assert "user0" in text
    assert "user1" not in text


def test_an_empty_replacement_removes_the_middle_without_a_summary():
    @hook(BEFORE_COMPACTION)
    def forget(ctx, compaction):
        return compaction.replace(messages=[])

    llm, session = model(), Session("s", talk(5))
    compacting(llm, hooks=[forget]).run("now", session=session)
    assert asked(llm) == []
    assert firsts(session.messages) == ["assistant4", "now", "ok"]


def test_a_hook_that_fails_closed_at_before_compaction_fails_the_run():
    @hook(BEFORE_COMPACTION)
    def broken(ctx, compaction):
        raise OSError("no disk")

    llm, session = model(), Session("s", talk(5))
    with pytest.raises(RunFailedError, match="no disk"):
        compacting(llm, hooks=[broken]).run("now", session=session)
    assert llm.requests == []


@pytest.mark.parametrize(
    "summary", [OSError("model down"), "", "  \n", "long " * 200], ids=["fails", "empty", "blank", "too long"]
)
def test_without_a_usable_summary_the_error_is_reported_and_the_run_goes_on(summary):
    reported = []

    @observer(ON_ERROR)
    def watch(ctx, failure):
        reported.append((failure.where, failure.errors[0].type))

    llm, session = model(summary=lambda request: summary), Session("s", talk(5))
    result = compacting(llm, hooks=[watch]).run("now", session=session)
    assert (result.status, result.reply) == ("completed", "ok")
    assert list(session.messages)[:10] == talk(5)
    assert reported[-1] == ("hook", "CompactionError")
    assert "was not compacted" in result.errors[-1].message


def test_after_a_failure_it_does_not_retry_at_every_step():
    llm = model(*[call("words", n=3)] * 12, "ok", summary=lambda request: OSError("down"))
    compacting(llm).run("now", session=Session("s", talk(5)))
    steps, messages_per_step = 13, 2
    assert 2 <= len(asked(llm)) <= 1 + steps * messages_per_step // RETRY_AFTER_MESSAGES


@pytest.mark.parametrize("is_async", [False, True])
def test_a_fallback_makes_the_summary_if_the_model_fails(is_async):
    async def later(messages):
        return f"{len(messages)} messages"

    fallback = later if is_async else lambda messages: f"{len(messages)} messages"
    llm, session = model(summary=lambda request: OSError("down")), Session("s", talk(5))
    result = compacting(llm, fallback=fallback).run("now", session=session)
    assert session.messages[0].content == f"{MARK}\n9 messages"
    assert [error.type for error in result.errors] == ["OSError"]


@pytest.mark.parametrize("given", ["", None, 5])
def test_a_fallback_that_returns_nothing_is_a_failure(given):
    llm, session = model(summary=""), Session("s", talk(5))
    result = compacting(llm, fallback=lambda messages: given).run("now", session=session)
    assert result.status == "completed"
    assert list(session.messages)[:10] == talk(5)
    assert result.errors[-1].type == "CompactionError"


@pytest.mark.parametrize("point", [BEFORE_LLM, AFTER_LLM])
def test_a_hook_that_ends_the_summary_call_ends_the_run(point):
    @hook(point)
    def end(ctx, payload):
        return HookResult.end("enough") if payload.purpose == "compaction" else None

    llm, session = model(), Session("s", talk(5))
    result = compacting(llm, hooks=[end], fallback=lambda messages: "x").run("now", session=session)
    assert (result.status, result.reply) == ("ended", "enough")
    assert list(session.messages) == talk(5)
    assert asked(llm, "step") == []


def test_a_hook_that_stops_the_summary_call_stops_the_run():
    @hook(BEFORE_LLM)
    def stop(ctx, request):
        return HookResult.stop("enough") if request.purpose == "compaction" else None

    llm = model()
    result = compacting(llm, hooks=[stop], fallback=lambda messages: "x").run("now", session=Session("s", talk(5)))
    assert (result.status, result.stop.message) == ("stopped", "enough")
    assert llm.requests == []


def test_a_budget_that_is_used_up_by_summaries_stops_the_run():
    llm, session = model(), Session("s", talk(5))
    ctx = AgentContext(session=session, budget=Budget(Limits(tokens=20)))
    result = compacting(llm, fallback=lambda messages: "x").run("now", ctx=ctx)
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")
    assert len(asked(llm)) == 1, "the second chapter was refused"
    assert list(session.messages)[:10] == talk(5)


def test_a_guard_that_fails_closed_at_the_summary_call_fails_the_run():
    @guard(BEFORE_LLM)
    def broken(ctx, request):
        if request.purpose == "compaction":
            raise OSError("no policy")

    llm = model()
    with pytest.raises(RunFailedError, match="no policy"):
        compacting(llm, hooks=[broken], fallback=lambda messages: "x").run("now", session=Session("s", talk(5)))
    assert llm.requests == []


def test_on_error_may_answer_the_summary_call():
    @hook(ON_ERROR)
    def mend(ctx, failure):
        return HookResult.answer("mended") if failure.purpose == "compaction" else None

    llm, session = model(summary=lambda request: OSError("down")), Session("s", talk(5))
    compacting(llm, hooks=[mend]).run("now", session=session)
    assert session.messages[0].content == f"{MARK}\nmended"


def test_a_keep_going_note_does_not_remove_the_task():
    reported = []

    @hook(ON_STOP)
    def more(ctx, stopping):
        reported.append(1)
        return HookResult.keep_going("go on") if len(reported) == 1 else None

    llm = model("long " * 80, call("words", n=30), "ok")
    compacting(llm, hooks=[more]).run("the task")
    last = asked(llm, "step")[-1]
    assert [m.content for m in last.messages if m.role == "user"] == [f"{MARK}\nthey talked", "the task", "go on"]


def test_fewer_of_the_last_messages_are_kept_when_they_alone_are_too_long():
    llm, session = model(), Session("s", talk(5))
    compacting(llm, max_tokens=45, keep_last=8).run("now", session=session)
    assert firsts(session.messages) == ["[Summary", "assistant3", "user4", "assistant4", "now", "ok"]


def test_a_summary_alone_is_not_summarised():
    llm = model("ok")
    history = [Message("user", f"{MARK}\n" + "old " * 50), Message("assistant", "a " * 30)]
    compacting(llm, keep_last=2).run("now", session=Session("s", history))
    assert asked(llm) == []


def test_system_messages_of_the_transcript_stay_at_the_head():
    llm, session = model(), Session("s", [Message("system", "rule1"), *talk(3), Message("system", "rule2"), *talk(3)])
    compacting(llm, keep_last=1).run("now", session=session)
    assert firsts(session.messages) == ["rule1", "rule2", "[Summary", "now", "ok"]


def test_a_history_too_long_for_one_request_is_summarised_in_chunks():
    llm, session = model(), Session("s", [*talk(20), Message("user", "x " * 5000), *talk(3)])
    agent = compacting(llm, max_tokens=150)
    agent.register_hook(TokenBudgetHook(170))
    result = agent.run("now", session=session)
    assert result.status == "completed"
    chapters = asked(llm)
    assert len(chapters) > 3
    assert all(llm.count_tokens(request.messages) <= 170 for request in chapters)
    assert all("Earlier summary: they talked" in request.messages[1].content for request in chapters[1:])
    assert any("characters left out" in request.messages[1].content for request in chapters)


def test_messages_added_during_the_summary_are_not_lost():
    @hook(BEFORE_LLM)
    def note(ctx, request):
        if request.purpose == "compaction":
            return HookResult.cont(state=ctx.state.with_messages(Message("assistant", "meanwhile")))
        return None

    llm, session = model(), Session("s", talk(5))
    result = compacting(llm, max_tokens=99, keep_last=5, hooks=[note]).run("now", session=session)
    assert result.errors == ()
    kept = ["[Summary", "user3", "assistant3", "user4", "assistant4"]
    assert firsts(session.messages) == [*kept, "meanwhile", "now", "ok"]


def test_a_transcript_that_changed_meanwhile_is_not_compacted():
    @hook(BEFORE_LLM)
    def rewrite(ctx, request):
        if request.purpose == "compaction":
            return HookResult.cont(state=ctx.state.replace(messages=ctx.state.messages[2:]))
        return None

    llm, session = model(), Session("s", talk(5))
    result = compacting(llm, max_tokens=99, keep_last=5, hooks=[rewrite]).run("now", session=session)
    assert result.errors == ()
    assert firsts(session.messages)[0] == "user1"


def test_the_summary_is_in_the_budget_and_passes_the_hooks():
    seen = []

    @observer(AFTER_LLM)
    def watch(ctx, got):
        seen.append((got.purpose, got.usage.total_tokens))

    result = compacting(model(), hooks=[watch]).run("now", session=Session("s", talk(5)))
    assert {purpose for purpose, _ in seen} == {"compaction", "step"}
    assert result.usage.total_tokens == sum(tokens for _, tokens in seen)


def test_the_events_have_the_reason():
    log = EventLog()
    compacting(model()).run("now", session=Session("s", talk(5)), sinks=[log])
    (done,) = [e for e in log if getattr(e, "hook", "") == "ContextCompactionHook"]
    assert (done.point, done.reason) == (ON_RUN_START, "10 messages became 2")


def test_a_number_is_accepted_as_compactor():
    assert ContextCompactionHook(500).compactor.max_tokens == 500


def test_a_custom_compactor_is_used():
    class Forgetful:
        async def compact(self, ctx, messages, keep=()):
            return tuple(messages[-1:])

    session = Session("s", talk(2))
    Agent("a", llm=model(), hooks=[ContextCompactionHook(Forgetful())]).run("now", session=session)
    assert firsts(session.messages) == ["now", "ok"]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0},
        {"max_tokens": "9"},
        {"max_tokens": True},
        {"max_tokens": 9.5},
        {"keep_last": -1},
        {"keep_last": None},
        {"max_summary_tokens": 0},
        {"instructions": " "},
        {"instructions": None},
        {"fallback": "text"},
    ],
)
def test_invalid_arguments_are_rejected(options):
    with pytest.raises(RegistrationError):
        Compactor(**{"max_tokens": 100, **options})


@pytest.mark.parametrize("compactor", [None, "500", 0, True, object()])
def test_only_a_compactor_is_accepted(compactor):
    with pytest.raises(RegistrationError):
        ContextCompactionHook(compactor if compactor is not True else -1)


@pytest.mark.slow
def test_the_embedded_model_shortens_a_conversation():
    pytest.importorskip("xllamacpp")
    session = Session("s", talk(3, each=3))
    compactor = Compactor(80, keep_last=2, max_summary_tokens=8, instructions="Summarise this.")
    agent = Agent("a", llm="local", hooks=[ContextCompactionHook(compactor)], params={"max_tokens": 8})
    before = agent.model.count_tokens(session.messages)
    result = agent.run("Say hello.", session=session)
    assert result.status == "completed"
    assert session.messages[0].content.startswith(MARK)
    assert [m.role for m in session.messages] == ["user", "assistant", "user", "assistant"]
    assert session.messages[-2].content == "Say hello."
    assert agent.model.count_tokens(session.messages) < before
