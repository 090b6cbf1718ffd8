"""Two of a kind: two equal hooks, two budgets, two calls with one id, two equal messages."""

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_TOKEN,
    Agent,
    Budget,
    HookResult,
    Limits,
    Message,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._run.session import added_messages
from hookline.models import ModelResponse
from hookline.payloads import ToolCall, Usage
from hookline.testing import scripted_agent


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_nested_run_has_its_own_guard_beside_one_of_the_same_kind():
    asked = []

    @guard(BEFORE_TOOL)
    def outer(ctx, request):
        asked.append(("outer", request.name))

    @guard(BEFORE_TOOL)
    def inner(ctx, request):
        asked.append(("inner", request.name))

    inside = scripted_agent([call("add", a=1, b=2), reply("3")], name="inside", tools=[add], hooks=[inner])

    @tool
    async def ask_inside(ctx) -> str:
        """Ask another agent."""
        return (await inside.arun("add", ctx=ctx)).reply

    agent = scripted_agent([call("ask_inside"), reply("done")], tools=[ask_inside], hooks=[outer])
    await agent.arun("go")
    assert asked == [("outer", "ask_inside"), ("outer", "add"), ("inner", "add")]


def test_the_limits_of_a_parent_hold_for_a_budget_with_limits_of_its_own():
    parent = Budget(Limits(cost=1.0, steps=1))
    budget = Budget(Limits(tokens=1000), parent=parent)
    parent.steps = 5
    assert budget.exceeded() is None  # steps count only in their own run
    budget.charge(Usage(1, 1), 2.0)
    assert budget.exceeded().kind == "cost_limit"


async def test_two_calls_with_the_same_id_get_different_ids():
    same = (ToolCall("x", "add", {"a": 1, "b": 2}), ToolCall("x", "add", {"a": 3, "b": 4}))
    result = await scripted_agent([ModelResponse("", same), reply("ok")], tools=[add]).arun("go")
    results = [message for message in result.messages if message.role == "tool"]
    assert [message.content for message in results] == ["3", "7"]
    assert len({message.call_id for message in results}) == 2


def test_a_repeated_message_is_not_counted_as_added():
    yes = Message("user", "yes")
    assert list(added_messages([yes, yes], [yes, yes])) == []
    assert list(added_messages([yes, yes], [yes, yes, yes])) == [yes]


async def test_guards_do_not_judge_a_reply_that_was_interrupted():
    asked = []

    @hook(ON_TOKEN)
    def break_off(ctx, token):
        return HookResult.end("enough")

    @guard(AFTER_LLM)
    def judge(ctx, payload):
        asked.append("guard")
        return HookResult.end("judged")

    @observer(AFTER_LLM)
    def look(ctx, payload):
        asked.append("observer")

    result = await scripted_agent([reply("a b c")], hooks=[break_off, judge, look]).arun("go")
    assert (result.reply, asked) == ("enough", ["observer"])


async def test_a_model_without_stream_is_called_with_complete_even_if_pieces_are_wanted():
    class Plain:
        name, provider = "plain", "ours"

        def count_tokens(self, text):
            return 1

        async def complete(self, request):
            return reply(f"heard {request.messages[-1].content}")

    pieces = []

    @observer(ON_TOKEN)
    def listen(ctx, token):
        pieces.append(token.text)

    result = await Agent("a", llm=Plain(), hooks=[listen]).arun("hello")
    assert result.reply == "heard hello"
    assert pieces[-1] == "heard hello"


async def test_a_run_cancelled_between_two_steps_starts_no_other():
    begun = []

    @hook(BEFORE_STEP)
    def count(ctx, payload):
        begun.append(payload.index)

    @observer(AFTER_STEP)
    def cancel(ctx, payload):
        ctx.interrupt.cancel("now")

    agent = Agent("a", llm=ScriptedModel([call("add", a=1, b=2)], loop=True), tools=[add], hooks=[count, cancel])
    result = await agent.arun("go")
    assert result.status == "cancelled"
    assert len(begun) == 1
