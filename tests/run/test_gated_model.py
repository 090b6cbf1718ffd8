"""ctx.llm: the gated model for hooks and tools (DESIGN 4.8, 7.9)."""

import pytest

from hookline import (
    AFTER_LLM,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_START,
    ON_STOP,
    ON_TOKEN,
    AgentContext,
    Budget,
    HooklineError,
    HookResult,
    Limits,
    Message,
    ModelRequest,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._run.context import GatedModel
from hookline.errors import CallRefusedError
from hookline.events import PointFired
from hookline.payloads import Compaction, ToolSpec, Usage
from hookline.points import BEFORE_COMPACTION
from hookline.testing import EventLog, scripted_agent


@tool
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


@guard(BEFORE_TOOL)
async def judge(ctx, request):
    verdict = await ctx.llm.complete(f"Is {request.name} fine?", purpose="judge")
    return None if verdict.content == "yes" else HookResult.block("The judge said no.")


def test_a_hook_may_call_the_model_and_its_call_passes_hooks_and_budget():
    seen = []

    @observer(BEFORE_LLM, AFTER_LLM)
    def watch(point, ctx, payload):
        seen.append((str(point), payload.purpose, payload.hop))

    turns = [call("pay", amount=1), reply("yes", usage=Usage(10, 1)), reply("done")]
    agent = scripted_agent(turns, tools=[pay], hooks=[judge, watch])
    result = agent.run("x")
    assert result.steps[0].outcomes == ("ok",)
    assert seen[2:4] == [("before_llm", "judge", 0), ("after_llm", "judge", 0)]
    assert result.steps[0].usage.input_tokens >= 10
    assert agent.model.requests[1].messages == (Message("user", "Is pay fine?"),)
    assert agent.model.requests[1].tools == ()


def test_a_hook_may_reject_a_reply_after_a_model_call():
    result = scripted_agent([call("pay", amount=1), reply("no"), reply("ok")], tools=[pay], hooks=[judge]).run("x")
    assert result.steps[0].outcomes == ("blocked",)


def test_a_hook_is_not_called_again_inside_its_own_model_call():
    entered = []

    @hook(BEFORE_LLM)
    async def summarise(ctx, request):
        entered.append(request.purpose)
        answer = await ctx.llm.complete("sum up", purpose="compaction")
        await ctx.llm.complete("and again", purpose="compaction")
        return request.replace(messages=[Message("user", answer.content)])

    others = []

    @hook(BEFORE_LLM)
    def other(ctx, request):
        others.append(request.purpose)

    scripted_agent([reply("short"), reply("x"), reply("final")], hooks=[summarise, other]).run("x")
    assert entered == ["step"]
    assert others == ["compaction", "compaction", "step"]


def test_a_model_call_from_a_sync_hook_raises_with_advice():
    @hook(BEFORE_STEP)
    def wrong(ctx, payload):
        ctx.llm.complete("hm")

    with pytest.raises(RunFailedError, match="define this hook or tool with 'async def'"):
        scripted_agent([reply("x")], hooks=[wrong]).run("x")


def test_a_model_call_from_a_sync_tool_is_an_error_result():
    @tool
    def think(ctx) -> str:
        """Think."""
        return ctx.llm.complete("hm")

    result = scripted_agent([call("think"), reply("x")], tools=[think]).run("x")
    assert "async def" in result.messages[2].content


def test_an_async_tool_may_call_the_model():
    @tool
    async def think(ctx) -> str:
        """Think."""
        return (await ctx.llm.complete("hm", purpose="tool")).content

    result = scripted_agent([call("think"), reply("deep thought"), reply("x")], tools=[think]).run("x")
    assert result.messages[2].content == "deep thought"


def test_the_purpose_step_is_reserved():
    @hook(BEFORE_STEP)
    async def pretend(ctx, payload):
        await ctx.llm.complete("hm", purpose="step")

    with pytest.raises(RunFailedError, match="reserved for calls of the loop"):
        scripted_agent([reply("x")], hooks=[pretend]).run("x")
    with pytest.raises(HooklineError, match='^the purpose "step" is reserved for calls of the loop: use another one$'):
        GatedModel(ScriptedModel(), lambda model, request: None).complete("hm", purpose="step")


def test_tokens_can_be_counted_from_anywhere():
    seen = []

    @hook(BEFORE_LLM)
    def count(ctx, request):
        seen.append((ctx.llm.count_tokens("a b c"), ctx.llm.estimate_tokens(request.messages), ctx.llm.name))

    scripted_agent([reply("x")], hooks=[count]).run("one two")
    assert seen == [(3, 2, "scripted")]


# When the call is refused


@guard(BEFORE_LLM)
def no_judges(ctx, request):
    return HookResult.end("No judging here.", reason="no judges") if request.purpose == "judge" else None


def test_an_ended_call_that_leaves_the_hook_ends_the_run_and_the_action_does_not_happen():
    result = scripted_agent([call("pay", amount=1)], tools=[pay], hooks=[judge, no_judges]).run("x")
    assert (result.status, result.reply, result.hook_ended) == ("ended", "No judging here.", "no judges")
    assert result.steps[0].outcomes == ("cancelled",)


def test_a_refused_call_can_be_caught_and_the_run_continues():
    @guard(BEFORE_TOOL)
    async def careful(ctx, request):
        try:
            await ctx.llm.complete("fine?", purpose="judge")
        except CallRefusedError as refused:
            return HookResult.block(f"refused: {refused.status}")

    result = scripted_agent([call("pay", amount=1), reply("x")], tools=[pay], hooks=[careful, no_judges]).run("x")
    assert (result.status, result.messages[2].content) == ("completed", "refused: ended")


def test_out_of_budget_the_call_is_rejected_and_the_run_is_stopped():
    ctx = AgentContext(budget=Budget(Limits(tokens=3)))

    @hook(AFTER_LLM)
    async def judge_reply(ctx, answer):
        await ctx.llm.complete("fine?", purpose="judge")

    agent = scripted_agent([reply("many words in this reply"), reply("yes")], hooks=[judge_reply])
    result = agent.run("x", ctx=ctx)
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")
    assert len(agent.model.requests) == 1
    assert [m.role for m in result.messages] == ["user"]


def test_a_failed_call_fails_the_run_and_on_error_does_not_fire_again():
    seen = []

    @observer(ON_ERROR)
    def watch(ctx, failure):
        seen.append((failure.where, failure.purpose))

    with pytest.raises(RunFailedError, match="judge down"):
        scripted_agent([call("pay", amount=1), OSError("judge down")], tools=[pay], hooks=[judge, watch]).run("x")
    assert seen == [("model", "judge")]


def test_on_error_can_answer_a_failed_call_of_a_hook():
    @hook(ON_ERROR)
    def fallback(ctx, failure):
        return HookResult.answer("yes") if failure.purpose == "judge" else None

    turns = [call("pay", amount=1), OSError("judge down"), reply("done")]
    result = scripted_agent(turns, tools=[pay], hooks=[judge, fallback]).run("x")
    assert result.steps[0].outcomes == ("ok",)


def test_a_recorded_stop_refuses_the_call():
    @hook(ON_RUN_START, priority=1)
    def stop(ctx, payload):
        return HookResult.stop("not now")

    @hook(BEFORE_STEP)
    async def never(ctx, payload):
        raise AssertionError("no step begins")

    result = scripted_agent([reply("x")], hooks=[stop, never]).run("x")
    assert result.status == "stopped"


def test_progress_outside_a_tool_raises_with_advice():
    @hook(BEFORE_STEP)
    def wrong(ctx, payload):
        ctx.progress(0.5)

    with pytest.raises(RunFailedError, match="works only with the context of a tool call"):
        scripted_agent([reply("x")], hooks=[wrong]).run("x")


def test_another_model_has_the_same_hooks_and_budget():
    other = ScriptedModel([reply("from the other", usage=Usage(7, 3))])
    seen = []

    @observer(BEFORE_LLM)
    def watch(ctx, request):
        seen.append((request.model, request.purpose, request.tool_choice))

    @hook(ON_RUN_START)
    async def ask(ctx, start):
        answer = await ctx.llm.using(other).complete("hello", purpose="second", tool_choice="none")
        return {"task": answer.content}

    result = scripted_agent([reply("ok", usage=Usage(1, 1))], hooks=[ask, watch]).run("x")
    assert result.task == "from the other"
    assert seen[0] == (other.name, "second", "none")
    assert result.usage == Usage(8, 4)


async def test_a_whole_request_is_counted_with_its_tools():
    counted = []

    @hook(BEFORE_LLM)
    async def count(ctx, request):
        bare = await ctx.llm.count_request(request.replace(tools=()))
        counted.append((bare, await ctx.llm.count_request(request), ctx.llm.count_tokens(request.messages)))

    await scripted_agent([reply("ok")], tools=[pay], hooks=[count]).arun("some words")
    ((bare, whole, messages),) = counted
    assert bare == messages < whole


def test_a_hook_fires_a_point_and_all_hooks_of_the_run_but_itself_take_part():
    seen = []

    @hook(BEFORE_COMPACTION)
    def shorten(ctx, compaction):
        seen.append(compaction.reason)
        return compaction.replace(messages=compaction.messages[:1])

    @hook(ON_RUN_START, BEFORE_COMPACTION)
    async def fold(point, ctx, payload):
        assert point == ON_RUN_START
        verdict = await ctx.fire("before_compaction", Compaction((Message("user", "a"), Message("user", "b")), "long"))
        seen.append(len(verdict.payload.messages))

    log = EventLog()
    scripted_agent([reply("ok")], hooks=[fold], sinks=[log]).run("x", hooks=[shorten])
    assert seen == ["long", 1]
    assert any(event.point == BEFORE_COMPACTION for event in log.of(PointFired))


def test_a_point_fired_by_a_hook_fails_closed():
    @hook(BEFORE_COMPACTION)
    def broken(ctx, compaction):
        raise ValueError("broken")

    @hook(ON_RUN_START)
    async def fold(ctx, start):
        await ctx.fire(BEFORE_COMPACTION, Compaction((), "long"))

    with pytest.raises(RunFailedError, match="broken"):
        scripted_agent([reply("ok")], hooks=[fold, broken]).run("x")


async def test_fire_outside_a_run_raises():
    with pytest.raises(HooklineError, match=r"registry\.fire"):
        await AgentContext().fire(BEFORE_COMPACTION, Compaction(()))


async def test_a_request_is_counted_by_the_model_itself_where_it_can_and_part_by_part_where_it_cannot():
    class Counts(ScriptedModel):
        def count_request(self, request):
            return 41.0 + len(request.tools)

    spec = ToolSpec("pay", "Pay money.", {"type": "object"})
    request = ModelRequest((Message("user", "one two"),), (spec, spec))
    asked = []
    exact = GatedModel(Counts(name="exact"), lambda model, request: asked.append((model, request)))
    assert await exact.count_request(request) == 43
    rough = exact.using(ScriptedModel(name="rough"))
    assert await rough.count_request(request) == 2 + rough.count_tokens('pay Pay money. {"type":"object"}\n' * 2)
    assert await rough.count_request(request.replace(tools=())) == 2
    assert (exact.name, rough.name, rough.provider, rough.model.name) == ("exact", "rough", "scripted", "rough")
    assert rough.estimate_tokens("a b c") == 3
    rough.complete([{"role": "system", "content": "s"}, Message("user", "u")])
    model, made = asked[0]
    assert model is rough.model
    assert made == ModelRequest((Message("system", "s"), Message("user", "u")), (), "rough", purpose="hook")


async def test_the_parts_of_a_request_are_its_messages_and_one_line_for_each_tool():
    counted = []

    class Letters(ScriptedModel):
        def count_tokens(self, content):
            counted.append(content)
            return len(content)

    specs = (ToolSpec("pay", "Pay money.", {"type": "object"}), ToolSpec("ask", "Ask.", {"type": "object"}))
    request = ModelRequest((Message("user", "one"),), specs)
    model = GatedModel(Letters(), lambda model, request: None)
    await model.count_request(request)
    assert counted[1:] == ['pay Pay money. {"type":"object"}\nask Ask. {"type":"object"}\n']
    counted.clear()
    await model.count_request(request.replace(tools=()))
    assert counted == [request.messages]


@pytest.mark.parametrize("point", [ON_TOKEN, AFTER_LLM], ids=str)
@pytest.mark.parametrize("phase", ["rewrite", "guard", "observe"])
@pytest.mark.parametrize("answered", [False, True], ids=["model", "answered by a hook"])
def test_a_model_call_of_a_hook_at_a_limit_stops_the_run_at_every_point_of_a_reply(point, phase, answered):
    """The limit is reached by the call of the hook itself, so that the run stops and has not failed."""
    errors, stops = [], []

    async def judge_text(ctx, payload):
        if payload.purpose == "step":
            await ctx.llm.complete("Is this fine?", purpose="judge")
            await ctx.llm.complete("Really?", purpose="judge")

    @hook(BEFORE_LLM)
    def answer(ctx, request):
        return HookResult.answer("from a cache") if answered and request.purpose == "step" else None

    @observer(ON_ERROR)
    def see_error(ctx, failure):
        errors.append(failure)

    @observer(ON_STOP)
    def see_stop(ctx, stopping):
        stops.append([signal.kind for signal in stopping.signals])

    turns = [] if answered else [reply("a")]
    turns += [reply("yes", usage=Usage(50, 50)), reply("b")]
    agent = scripted_agent(turns, hooks=[answer, see_error, see_stop])
    agent.hooks.on(point, judge_text, phase=phase, on_failure="closed")
    result = agent.run("x", ctx=AgentContext(budget=Budget(Limits(tokens=60))))
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")
    assert (errors, stops) == ([], [["token_limit"]])
