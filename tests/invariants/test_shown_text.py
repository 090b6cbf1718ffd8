"""Text that a hook rejects is never shown, and what was shown and is void is taken back (DESIGN 7.14)."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AFTER_LLM,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_TOKEN,
    Agent,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    RunFailedError,
    ScriptedModel,
    call,
    get_model,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.errors import ModelError, RegistrationError
from hookline.events import Discarded, ModelReplied, RunFinished, SubagentEvent, TextDelta
from hookline.hooks import (
    EchoedPayloadHook,
    GroundedReplyHook,
    PassThrough,
    ResponseCacheHook,
    SensitiveDataHook,
    shadow,
)
from hookline.models import ModelResponse
from hookline.testing import EventLog, FakeClock, scripted_agent
from tests.properties import examples

DECISIONS = ("allow", "allow", "replace", "append", "retry", "end", "stop", "raise", "cancel")


class Decider:
    """A hook at ``after_llm``, and also at ``on_token`` if it judges tokens, that takes these decisions in turn."""

    def __init__(self, name, decisions, *, phase, tokens):
        self.name, self.phase, self.decisions = name, {AFTER_LLM: phase}, list(decisions)
        self.points = (AFTER_LLM, ON_TOKEN) if tokens else (AFTER_LLM,)

    def __call__(self, point, ctx, payload):
        if point == ON_TOKEN:
            return None
        decision = self.decisions.pop(0) if self.decisions else "allow"
        if decision in ("replace", "append") and self.phase[AFTER_LLM] == "guard":
            decision = "retry"
        if decision == "raise":
            raise RuntimeError("the rail is down")
        if decision == "cancel":
            ctx.interrupt.cancel("enough")
        if decision == "replace":
            return payload.replace(content=f"<{self.name} {len(self.decisions)}>")
        if decision == "append":
            return payload.replace(content=payload.content + f" +{self.name}")
        verbs = {
            "retry": HookResult.retry,
            "end": lambda: HookResult.end("No."),
            "stop": lambda: HookResult.stop("later"),
        }
        return verbs[decision]() if decision in verbs else None


class Pieces(ScriptedModel):
    """A model that streams numbered replies word by word; some of them break off."""

    def __init__(self, turns):
        super().__init__([])
        self.turns, self.made = list(turns), 0

    async def stream(self, request):
        self.made += 1
        kind, words = self.turns.pop(0) if self.turns else ("text", 1)
        pieces = [f"w{self.made}.{number} " for number in range(words)]
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece
        if kind == "broken":
            raise ModelError("the connection broke")
        calls = call("look").tool_calls if kind == "call" else ()
        yield ModelResponse("".join(pieces), calls)


@tool
def look() -> str:
    """Look."""
    return "seen"


@hook(ON_ERROR)
def try_again(ctx, failure):
    return HookResult.retry() if failure.where == "model" else None


deciders = st.builds(
    lambda number, decisions, phase, tokens: Decider(f"d{number}", decisions, phase=phase, tokens=tokens),
    st.integers(0, 9),
    st.lists(st.sampled_from(DECISIONS), max_size=5),
    st.sampled_from(["rewrite", "guard"]),
    st.booleans(),
)
turns = st.lists(st.tuples(st.sampled_from(["text", "call", "broken"]), st.integers(0, 4)), max_size=5)


def events_of(agent, **options):
    """All events of a run, whatever its status."""
    log = EventLog()
    try:
        agent.run("Go.", sinks=[log], **options)
    except RunFailedError:
        pass
    return list(log)


def kept_text(events):
    """The text that a reader has at the end who takes back what is discarded."""
    kept, current = "", ""
    for event in events:
        if isinstance(event, TextDelta) and event.purpose == "step":
            current += event.text
        elif isinstance(event, Discarded) and event.purpose == "step":
            current = ""
        elif isinstance(event, ModelReplied) and event.purpose == "step":
            kept, current = kept + current, ""
    return kept, current


def settled_text(events):
    return "".join(event.content for event in events if isinstance(event, ModelReplied) and event.purpose == "step")


def shown_text(events):
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.purpose == "step")


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(deciders, max_size=3), turns, st.sampled_from(["safe", "live"]))
def test_text_shown_and_not_discarded_is_the_settled_text(hooks, script, mode):
    agent = Agent("a", llm=Pieces(script), tools=[look], hooks=[*hooks, try_again], limits=Limits(steps=6))
    events = events_of(agent, stream=mode)
    assert kept_text(events) == (settled_text(events), "")


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(deciders, min_size=1, max_size=3), turns)
def test_text_that_a_hook_rejects_is_never_shown(hooks, script):
    judge = Decider("late", [], phase="guard", tokens=False)  # at least one does not judge on_token
    agent = Agent("a", llm=Pieces(script), tools=[look], hooks=[*hooks, judge, try_again], limits=Limits(steps=6))
    events = events_of(agent)
    assert shown_text(events) == settled_text(events)


def test_a_reply_that_a_guard_rejects_over_the_retry_limit_is_neither_used_nor_shown():
    @guard(AFTER_LLM)
    def never(ctx, answer):
        return HookResult.retry()

    for mode in ("safe", "live"):
        agent = scripted_agent([reply("bad one"), reply("bad two"), reply("bad three")], hooks=[never])
        events = events_of(agent, stream=mode)
        result = events[-1].result
        assert (result.status, result.stop.kind, result.reply) == ("stopped", "retry_limit", "")
        assert kept_text(events) == ("", "")
        assert shown_text(events) == ("" if mode == "safe" else "bad onebad twobad three")


# When text is held


@hook(AFTER_LLM)
def rewrite(ctx, answer):
    return None


@guard(AFTER_LLM)
def rail(ctx, answer):
    return None


@observer(AFTER_LLM)
def watch(ctx, answer):
    return None


@hook(AFTER_LLM, ON_TOKEN)
def both(point, ctx, payload):
    return None


class Declared(Decider):
    def __init__(self, holds_text, *, tokens=False):
        super().__init__("declared", [], phase="guard", tokens=tokens)
        self.holds_text = holds_text


@pytest.mark.parametrize(
    ("hooks", "pieces"),
    [
        ([], 2),
        ([watch], 2),
        ([both], 2),
        ([rewrite], 1),
        ([rail], 1),
        ([both, rail], 1),
        ([shadow(rail)], 2),
        ([Declared(False)], 2),
        ([Declared(True, tokens=True)], 1),
        ([ResponseCacheHook()], 2),
        ([SensitiveDataHook()], 2),
        ([SensitiveDataHook(where=["arguments"])], 2),
        ([GroundedReplyHook()], 1),
        ([EchoedPayloadHook()], 1),
    ],
    ids=lambda value: (
        ",".join(getattr(each, "name", type(each).__name__) for each in value) if isinstance(value, list) else None
    ),
)
def test_text_is_held_only_if_a_hook_decides_at_after_llm_without_judging_on_token(hooks, pieces):
    log = EventLog()
    assert scripted_agent([reply("one two")], hooks=hooks, sinks=[log]).run("x").reply == "one two"
    assert len(log.of(TextDelta)) == pieces
    assert shown_text(log) == "one two"


def test_an_interceptor_holds_text_because_it_is_called_at_every_point():
    class Watch(PassThrough):
        pass

    class Streams(PassThrough):
        holds_text = False

    for interceptor, pieces in ((Watch(), 1), (Streams(), 2), (PassThrough(), 2)):
        log = EventLog()
        scripted_agent([reply("one two")], hooks=[interceptor], sinks=[log]).run("x")
        assert len(log.of(TextDelta)) == pieces


def test_a_guard_that_is_registered_while_text_streams_holds_the_rest():
    log, agent = EventLog(), scripted_agent([reply("one two three"), reply("fine")], sinks=())

    @hook(ON_TOKEN)
    def register(ctx, token):
        if token.delta.strip() == "two":
            agent.register_hook(reject)

    @guard(AFTER_LLM)
    def reject(ctx, answer):
        return HookResult.retry() if "three" in answer.content else None

    agent.register_hook(register)
    agent.run("x", sinks=[log])
    assert "three" not in shown_text(log)
    assert kept_text(log) == ("fine", "")


def test_hooks_at_on_token_judge_held_text_at_once_and_observers_see_it_when_it_is_shown():
    seen = []

    @hook(ON_TOKEN)
    def judge(ctx, token):
        seen.append(("judge", token.delta, token.final))
        return token.replace(delta=token.delta.upper())

    @observer(ON_TOKEN)
    def show(ctx, token):
        seen.append(("show", token.delta, token.final))

    @guard(AFTER_LLM)
    def reject(ctx, answer):
        seen.append(("rail", answer.content))
        return HookResult.retry() if answer.attempt == 1 else None

    scripted_agent([reply("bad"), reply("so good")], hooks=[judge, show, reject]).run("x")
    assert seen == [
        ("judge", "bad", False),
        ("judge", "", True),
        ("rail", "bad"),
        ("judge", "so", False),
        ("judge", " good", False),
        ("judge", "", True),
        ("rail", "so good"),
        ("show", "SO GOOD", True),
    ]


def test_an_end_at_on_token_aborts_a_held_reply_and_nothing_of_it_is_shown():
    @hook(ON_TOKEN)
    def stop(ctx, token):
        return HookResult.end("No.") if "two" in token.text else None

    events = events_of(scripted_agent([reply("one two three")], hooks=[stop, rail]))
    assert shown_text(events) == ""
    assert events[-1].result.reply == "No."


def test_replaced_text_passes_on_token_before_it_is_shown():
    @hook(AFTER_LLM)
    def add_mail(ctx, answer):
        return answer.replace(content=answer.content + " ann@example.com")

    @hook(ON_TOKEN)
    def hide(ctx, token):
        return token.replace(delta=token.delta.replace("ann@example.com", "[email]"))

    for mode in ("safe", "live"):
        events = events_of(scripted_agent([reply("Ask")], hooks=[add_mail, hide]), stream=mode)
        assert shown_text(events) == "Ask [email]"
        assert not [event for event in events if isinstance(event, Discarded)], "the shown text was only continued"


def test_a_cached_reply_is_held_like_any_other():
    cache, verdicts = ResponseCacheHook(), [None, HookResult.end("No.")]

    @guard(AFTER_LLM)
    def late(ctx, answer):
        return verdicts.pop(0)

    agent = scripted_agent([reply("one two")], hooks=[cache, late])
    assert shown_text(events_of(agent)) == "one two"
    again = events_of(agent)
    assert (cache.hits, shown_text(again), again[-1].result.reply) == (1, "", "No.")


def test_the_text_of_other_model_calls_is_held_too_except_from_the_hook_that_makes_them():
    @guard(AFTER_LLM)
    def no_secrets(ctx, answer):
        return HookResult.end("No.") if "secret" in answer.content else None

    @guard(BEFORE_TOOL)
    async def ask_model(ctx, request):
        await ctx.llm.complete("May it look?", purpose="judge")

    turns = [call("look"), reply("a secret"), reply("done")]
    log = EventLog()
    scripted_agent(turns, tools=[look], hooks=[no_secrets, ask_model], sinks=[log]).run("x")
    assert not log.of(TextDelta)


# Discarded


@pytest.mark.parametrize(
    ("hooks", "reason"),
    [
        ([Decider("d", ["retry"], phase="guard", tokens=False)], "retry"),
        ([Decider("d", ["replace"], phase="rewrite", tokens=False)], "replaced"),
        ([Decider("d", ["end"], phase="guard", tokens=False)], "rejected"),
        ([Decider("d", ["raise"], phase="guard", tokens=False)], "rejected"),
    ],
    ids=["retry", "replace", "end", "raise"],
)
def test_live_text_that_is_rejected_is_discarded(hooks, reason):
    events = events_of(scripted_agent([reply("one two"), reply("fine")], hooks=hooks), stream="live")
    discarded = [event for event in events if isinstance(event, Discarded)]
    assert [(event.hop, event.attempt, event.reason) for event in discarded] == [(0, 1, reason)]
    assert shown_text(events).startswith("one two")
    assert kept_text(events) == (settled_text(events), "")


def test_text_of_a_cancelled_run_is_discarded():
    @observer(ON_TOKEN)
    def cancel(ctx, token):
        if "w1.1" in token.text:
            ctx.interrupt.cancel("enough")

    events = events_of(Agent("a", llm=Pieces([("text", 5)]), hooks=[cancel]))
    assert events[-1].result.status == "cancelled"
    assert shown_text(events) == "w1.0 w1.1 "
    assert [event.reason for event in events if isinstance(event, Discarded)] == ["interrupted"]


def test_text_of_a_reply_that_a_time_limit_interrupts_is_discarded():
    clock = FakeClock()

    class Slow(ScriptedModel):
        async def stream(self, request):
            yield "one"
            clock.advance(1)
            await asyncio.sleep(60)

    ctx = AgentContext(budget=Budget(Limits(seconds=0.05), clock=clock), clock=clock)
    events = events_of(Agent("a", llm=Slow([])), ctx=ctx)
    assert events[-1].result.status == "stopped"
    assert [event.reason for event in events if isinstance(event, Discarded)] == ["interrupted"]


@pytest.mark.parametrize("outcome", ["fails", "ends"])
def test_text_of_a_model_that_fails_is_discarded_even_if_a_hook_then_ends_the_run(outcome):
    @hook(ON_ERROR)
    def end(ctx, failure):
        return HookResult.end("Sorry.") if outcome == "ends" else None

    events = events_of(Agent("a", llm=Pieces([("broken", 2)]), hooks=[end]))
    assert shown_text(events) == "w1.0 w1.1 "
    assert kept_text(events) == ("", "")


def test_text_that_a_hook_replaces_at_the_end_of_the_run_is_discarded():
    @hook(ON_RUN_END)
    def last(ctx, result):
        return result.replace(reply="Something else.")

    events = events_of(scripted_agent([reply("one two")], hooks=[last]))
    assert [event.reason for event in events if isinstance(event, Discarded)] == ["replaced"]
    assert isinstance(events[-1], RunFinished)
    assert events[-1].result.reply == "Something else."


def test_an_answer_after_a_failed_model_does_not_continue_its_text():
    hidden = SensitiveDataHook(kinds=["email"])

    @hook(ON_ERROR)
    def answer(ctx, failure):
        return HookResult.answer("all good")

    class Breaks(ScriptedModel):
        async def stream(self, request):
            yield "Write to ann@exam"
            raise ModelError("gone")

    events = events_of(Agent("a", llm=Breaks([]), hooks=[hidden, answer]))
    assert kept_text(events) == ("all good", "")


# Modes


def test_the_mode_of_a_run_comes_before_that_of_the_agent():
    def pieces(agent_mode, **options):
        agent = scripted_agent([reply("one two")], hooks=[rail], stream=agent_mode)
        return len([event for event in events_of(agent, **options) if isinstance(event, TextDelta)])

    assert (pieces("safe"), pieces("live")) == (1, 2)
    assert (pieces("safe", stream="live"), pieces("live", stream="safe")) == (2, 1)


def test_an_unknown_mode_is_rejected():
    with pytest.raises(RegistrationError, match="stream must be one of safe, live, not 'fast'"):
        scripted_agent([], stream="fast")
    with pytest.raises(TypeError, match="stream must be one of safe, live, not 'fast'"):
        scripted_agent([]).run("x", stream="fast")


@pytest.mark.parametrize(
    ("outer", "inner", "pieces"), [("safe", None, 1), ("safe", "live", 1), ("live", None, 2), ("live", "safe", 1)]
)
def test_the_text_of_a_nested_run_is_live_only_if_the_outer_run_is(outer, inner, pieces):
    options = {} if inner is None else {"stream": inner}
    child = scripted_agent([reply("one two")], name="child", stream=inner or "safe")

    @tool
    async def ask() -> str:
        """Ask the child."""
        return (await child.arun("x", **options)).reply

    events = events_of(scripted_agent([call("ask"), reply("done")], tools=[ask], hooks=[rail]), stream=outer)
    nested = [event.event for event in events if isinstance(event, SubagentEvent)]
    assert len([event for event in nested if isinstance(event, TextDelta)]) == pieces


def test_the_text_of_a_nested_run_is_judged_by_the_hooks_of_the_outer_run_before_it_is_shown():
    @guard(AFTER_LLM)
    def no_secrets(ctx, answer):
        return HookResult.end("No.") if "secret" in answer.content else None

    child = scripted_agent([reply("a secret")], name="child")

    @tool
    async def ask() -> str:
        """Ask the child."""
        return (await child.arun("x")).reply

    events = events_of(scripted_agent([call("ask"), reply("done")], tools=[ask], hooks=[no_secrets]))
    nested = [event.event for event in events if isinstance(event, SubagentEvent)]
    assert [event.result.reply for event in nested if isinstance(event, RunFinished)] == ["No."]
    assert "secret" not in shown_text(nested)


# Readers


class Rail:
    """An output rail: it rejects the word ``secret``, after a moment."""

    points, phase = (AFTER_LLM,), "guard"

    async def __call__(self, ctx, answer):
        await asyncio.sleep(0)
        return HookResult.retry("Do not tell.") if "secret" in answer.content else None


TURNS = [reply("the secret is out"), reply("nothing to see")]


async def test_a_stream_of_events_has_no_rejected_text():
    agent = scripted_agent(TURNS, hooks=[Rail()])
    text = "".join([event.text async for event in agent.stream("x") if isinstance(event, TextDelta)])
    assert text == "nothing to see"


async def test_the_events_of_a_run_have_no_rejected_text():
    run = scripted_agent(TURNS, hooks=[Rail()]).start("x")
    text = "".join([event.text async for event in run.events() if isinstance(event, TextDelta)])
    assert text == "nothing to see"


def test_a_hook_that_reads_events_gets_no_rejected_text():
    class Listener:
        points = ()
        events = frozenset({TextDelta})
        text = ""

        def __call__(self, ctx, payload):
            return None

        def on_event(self, event):
            self.text += event.text

    listener = Listener()
    ctx = AgentContext()
    ctx.hooks.register(listener, points=[ON_RUN_END], phase="observe")
    scripted_agent(TURNS, hooks=[Rail()]).run("x", ctx=ctx)
    assert listener.text == "nothing to see"


@pytest.mark.slow
def test_text_of_the_embedded_model_is_held_and_taken_back():
    pytest.importorskip("xllamacpp")

    def events(mode):
        verdicts = [HookResult.retry("Again.")]

        @guard(AFTER_LLM)
        def first_is_bad(ctx, answer):
            return verdicts.pop() if verdicts else None

        agent = Agent("a", llm=get_model("local"), hooks=[first_is_bad], params={"max_tokens": 12, "temperature": 0})
        return events_of(agent, stream=mode)

    safe, live = events("safe"), events("live")
    assert shown_text(safe) == settled_text(safe) != ""
    assert len([event for event in live if isinstance(event, TextDelta)]) > 2
    assert kept_text(live) == (settled_text(live), "")
