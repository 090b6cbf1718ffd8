"""TokenBudgetHook: requests stay within a number of tokens."""

import math

import pytest

from hookline import (
    AFTER_LLM,
    BEFORE_LLM,
    ON_RUN_START,
    ON_STOP,
    Agent,
    AgentContext,
    HookResult,
    Limits,
    Message,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    hook,
    observer,
    reply,
    tool,
)
from hookline.hooks import StepsLimitHook, TokenBudgetHook
from hookline.payloads import ToolCall
from hookline.testing import EventLog, scripted_agent


@tool
def words(n: int) -> str:
    """Give n words."""
    return " ".join(f"w{i}" for i in range(n))


def talk(turns, each=10):
    """A conversation of so many turns, with so many words in each message."""
    return [
        Message(role, " ".join([f"{role}{turn}"] * each)) for turn in range(turns) for role in ("user", "assistant")
    ]


def asked(agent):
    return [[message.content.split(" ")[0] for message in request.messages] for request in agent.model.requests]


class Counted(ScriptedModel):
    counts = 0

    def count_request(self, request):
        self.counts += 1
        return self.count_tokens(request.messages)


def test_a_request_that_fits_is_unchanged_and_counted_once():
    model = Counted([reply("ok")])
    log = EventLog()
    Agent("a", llm=model, hooks=[TokenBudgetHook(5)], sinks=[log]).run("one two three four five")
    assert model.counts == 1
    assert not [e for e in log if getattr(e, "verb", "") == "replace"]


def test_the_oldest_messages_are_removed_from_the_request_only():
    session = Session("s", talk(5))
    agent = scripted_agent([reply("ok")], instructions="be good", hooks=[TokenBudgetHook(45)])
    result = agent.run("now", session=session)
    assert asked(agent) == [["be", "user3", "assistant3", "user4", "assistant4", "now"]]
    assert result.status == "completed"
    assert len(session.messages) == 12


def test_the_remaining_messages_begin_with_a_user_message():
    agent = scripted_agent([reply("ok")], hooks=[TokenBudgetHook(35)])
    agent.run("now", session=Session("s", talk(5)))
    assert asked(agent) == [["user4", "assistant4", "now"]], "assistant3 would have fitted, but not its question"


def test_a_note_of_another_hook_removes_neither_the_newest_results_nor_the_task():
    @hook(BEFORE_LLM, priority=50)
    def redact(ctx, request):
        return request.replace(
            messages=[m.replace(content=m.content.replace("secret", "***")) for m in request.messages]
        )

    hooks = [redact, StepsLimitHook(2, soft_limit=0.4), TokenBudgetHook(60)]
    agent = scripted_agent([call("words", n=200), reply("ok")], tools=[words], hooks=hooks)
    agent.run("the secret task", session=Session("s", talk(2)))
    task, calls, result, note = agent.model.requests[1].messages
    assert (task.content, len(calls.tool_calls)) == ("the *** task", 1)
    assert "characters left out" in result.content
    assert note.content.startswith("You have used 1 of 2 steps.")


def test_calls_are_removed_with_all_their_results():
    history = [Message("user", "old")]
    for i in range(3):
        calls = tuple(ToolCall(f"c{i}{j}", "words", {"n": 10}) for j in range(2))
        history += [Message("assistant", f"calling{i}", calls)]
        history += [Message("tool", f"result{i} " + "x " * 9, (), c.id, "words") for c in calls]
    history += [Message("user", "thanks")]
    agent = scripted_agent([reply("ok")], hooks=[TokenBudgetHook(30)])
    agent.run("now", session=Session("s", history))
    assert asked(agent) == [["thanks", "now"]], "a result without its call would have fitted"


def test_steps_of_a_long_run_are_removed_before_its_task():
    agent = scripted_agent([call("words", n=20)] * 6 + [reply("ok")], tools=[words], hooks=[TokenBudgetHook(60)])
    assert agent.run("the task").status == "completed"
    for messages in asked(agent):
        assert messages[0] == "the"
        assert len(messages) <= 5


def test_a_retry_keeps_the_task_and_the_note_about_it():
    @hook(AFTER_LLM)
    def once_more(ctx, got):
        return HookResult.retry("better please") if got.attempt == 1 else None

    budget = TokenBudgetHook(12)
    agent = scripted_agent([reply("bad " * 10), reply("ok")], hooks=[once_more, budget])
    agent.run("the task", session=Session("s", talk(2)))
    assert asked(agent) == [["the"], ["the", "better"]]


def test_a_keep_going_note_stays_and_does_not_remove_the_task():
    notes = []

    @hook(ON_STOP)
    def more(ctx, stopping):
        notes.append(1)
        return HookResult.keep_going("go on") if len(notes) == 1 else None

    turns = [reply("long " * 80), call("words", n=200), reply("ok")]
    agent = scripted_agent(turns, tools=[words], hooks=[more, TokenBudgetHook(50)])
    agent.run("the task", session=Session("s", talk(3)))
    assert [messages[-1] for messages in asked(agent)] == ["the", "go", "w0"]
    assert asked(agent)[1:] == [["the", "go"], ["the", "go", "", "w0"]]


def test_long_results_of_the_newest_group_are_shortened_and_marked():
    agent = scripted_agent(
        [[call("words", n=500), call("words", n=3)], reply("ok")], tools=[words], hooks=[TokenBudgetHook(100)]
    )
    session = Session("s")
    result = agent.run("the task", session=session)
    assert result.status == "completed"
    long, short = agent.model.requests[1].messages[-2:]
    assert long.content.startswith("w0 w1")
    assert "characters left out" in long.content
    assert long.content.endswith("w499")
    assert short.content == "w0 w1 w2"
    assert 80 <= agent.model.count_tokens(agent.model.requests[1].messages) <= 100, "as much as fits is kept"
    assert "left out" not in session.messages[2].content


def test_a_huge_result_is_shortened_with_few_counts():
    class Chars(Counted):
        longest = 0

        def count_tokens(self, content):
            size = len(content) if isinstance(content, str) else sum(len(m.content) for m in content)
            self.longest += size
            return size

    @tool
    def huge() -> str:
        """Give much."""
        return "x" * 50_000_000

    model = Chars([call("huge"), reply("ok")])
    Agent("a", llm=model, tools=[huge], hooks=[TokenBudgetHook(5000)]).run("the task")
    assert 4500 < len(model.requests[1].messages[-1].content) <= 5000
    assert model.counts < 25
    assert model.longest < 3 * 50_000_000, "what is far too long is counted twice at most, and once for usage"


def test_the_run_stops_before_the_model_call_if_nothing_fits():
    agent = scripted_agent([reply("never")], instructions="one two three", hooks=[TokenBudgetHook(5)])
    result = agent.run("four five six", session=Session("s", talk(2)))
    assert (result.status, result.stop.kind, result.stop.hook) == ("stopped", "token_limit", "TokenBudgetHook")
    assert result.stop.message == "Context limit: the messages that must stay have 6 tokens, and 5 are allowed."
    assert agent.model.requests == []


def test_a_long_call_cannot_be_shortened():
    class WithCalls(Counted):
        def count_tokens(self, content):
            return len(content) if isinstance(content, str) else sum(len(m.to_json()) for m in content)

    @tool
    def write(text: str) -> str:
        """Write."""
        return "ok"

    model = WithCalls([call("write", text="x" * 5000), reply("never")])
    result = Agent("a", llm=model, tools=[write], hooks=[TokenBudgetHook(3000)]).run("the task")
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")
    assert len(model.requests) == 1


def test_tools_count_too():
    counted = []

    @observer(BEFORE_LLM)
    async def count(ctx, request):
        counted.append(await ctx.llm.count_request(request))

    agent = scripted_agent([reply("ok")], tools=[words], hooks=[TokenBudgetHook(13), count])
    agent.run("now", session=Session("s", talk(2, each=2)))
    assert counted[0] <= 13
    assert len(agent.model.requests[0].messages) < 5


def test_the_reserve_is_kept_free():
    whole, trimmed = (scripted_agent([reply("ok")], hooks=[TokenBudgetHook(21, reserve=n)]) for n in (0, 1))
    for agent in (whole, trimmed):
        agent.run("now", session=Session("s", talk(1)))
    assert [len(request.messages) for request in (*whole.model.requests, *trimmed.model.requests)] == [3, 1]


def test_a_long_history_takes_few_counts():
    model = Counted([reply("ok")])
    Agent("a", llm=model, hooks=[TokenBudgetHook(500)]).run("now", session=Session("s", talk(1000)))
    assert model.counts <= 3 + math.ceil(math.log2(1000))
    assert len(model.requests[0].messages) == 49, "as many as fit: 24 turns of 20 words and the task"


def test_requests_of_hooks_are_kept_short_too():
    @hook(ON_RUN_START)
    async def ask(ctx, start):
        await ctx.llm.complete([Message("user", "a b c"), Message("assistant", "d e f"), Message("user", "g")])

    agent = scripted_agent([reply("ok"), reply("ok")], hooks=[ask, TokenBudgetHook(3)])
    agent.run("now", session=Session("s", talk(1)))
    assert asked(agent) == [["g"], ["now"]]


def test_a_request_of_a_hook_that_cannot_fit_stops_the_run():
    @hook(ON_RUN_START)
    async def ask(ctx, start):
        await ctx.llm.complete("a b c d")

    result = scripted_agent([], hooks=[ask, TokenBudgetHook(3)]).run("now")
    assert (result.status, result.stop.kind) == ("stopped", "token_limit")


def test_a_request_without_messages_or_user_is_accepted():
    @hook(ON_RUN_START)
    async def ask(ctx, start):
        await ctx.llm.complete([])
        await ctx.llm.complete([Message("assistant", "a b"), Message("assistant", "c d")])

    agent = scripted_agent([reply("ok")] * 3, hooks=[ask, TokenBudgetHook(3)])
    agent.run("now")
    assert asked(agent) == [[], ["c"], ["now"]]


def test_a_request_that_a_hook_answers_is_not_counted():
    @hook(BEFORE_LLM)
    def cached(ctx, request):
        return HookResult.answer("known")

    model = Counted([])
    assert Agent("a", llm=model, hooks=[cached, TokenBudgetHook(1)]).run("one two three").reply == "known"
    assert model.counts == 0


def test_a_tokenizer_that_fails_blocks_the_request():
    class Broken(ScriptedModel):
        def count_request(self, request):
            raise OSError("no tokenizer")

    model = Broken([reply("never")])
    with pytest.raises(RunFailedError, match="no tokenizer"):
        Agent("a", llm=model, hooks=[TokenBudgetHook(5)]).run("x")
    assert model.requests == []


async def test_concurrent_runs_keep_their_own_tasks():
    import asyncio

    agent = Agent("a", llm=ScriptedModel([lambda request: request.messages[-1].content], loop=True))
    agent.register_hook(TokenBudgetHook(11))
    ctx = [AgentContext(session=Session(f"s{i}", talk(2))) for i in range(20)]
    results = await asyncio.gather(*(agent.arun(f"task {i}", ctx=ctx[i]) for i in range(20)))
    assert [result.reply for result in results] == [f"task {i}" for i in range(20)]


@pytest.mark.parametrize(
    ("tokens", "reserve"), [(0, 0), (-1, 0), ("5", 0), (5.0, 0), (True, 0), (None, 0), (5, -1), (5, 5), (5, "1")]
)
def test_invalid_arguments_are_rejected(tokens, reserve):
    with pytest.raises(RegistrationError):
        TokenBudgetHook(tokens, reserve=reserve)


@pytest.mark.slow
def test_the_prompts_of_the_embedded_model_stay_within_the_budget():
    pytest.importorskip("xllamacpp")
    replies = []

    @observer(AFTER_LLM)
    def note(ctx, got):
        replies.append(got)

    @tool
    def look_up(word: str) -> str:
        """Look up a word."""
        return "nothing found " * 200

    agent = Agent(
        "a",
        "",
        "You help.",
        llm="local",
        tools=[look_up],
        hooks=[TokenBudgetHook(180), note],
        limits=Limits(steps=1),
        params={"max_tokens": 8, "temperature": 0},
    )
    result = agent.run("Look up the word hook.", session=Session("s", talk(8)))
    assert result.status in ("completed", "stopped")
    assert replies
    for got in replies:
        assert 0 < got.usage.input_tokens <= 180
        assert got.request.messages[0].content == "You help."
    assert len(replies[0].request.messages) < 18
    assert replies[0].usage.input_tokens > 120, "no more is left out than need be"
