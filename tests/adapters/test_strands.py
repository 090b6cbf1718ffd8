"""What is special about Strands: its middleware, its events, its interrupts and its retries."""

import asyncio

import pytest

pytest.importorskip("strands")

from pydantic import BaseModel
from strands import Agent, ToolContext, tool
from strands.event_loop._retry import ModelRetryStrategy
from strands.hooks import BeforeToolCallEvent
from strands.middleware import ExecuteToolStage, InvokeModelStage
from strands.multiagent import GraphBuilder
from strands.types.exceptions import ModelThrottledException

from hookline import HookResult, Message, guard, hook, observer
from hookline.adapters.strands import HooklinePlugin
from hookline.errors import HooklineError, RegistrationError, RunFailedError
from hookline.models import ScriptedModel, call, reply
from hookline.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_RUN_END

from .drafts import WRITE_DRAFT, only_drafts, writer
from .drivers.strands import Scripted


@pytest.fixture
def write(tmp_path):
    return tool(writer(tmp_path))


def agent_of(turns, tools, *hooks, **options):
    model = Scripted(ScriptedModel(turns))
    return Agent(model=model, tools=tools, plugins=[HooklinePlugin(*hooks)], callback_handler=None, **options)


async def test_a_guard_judges_what_middleware_made_of_the_arguments(write, tmp_path):
    agent = agent_of(WRITE_DRAFT, [write], only_drafts)

    async def elsewhere(context, next_fn):
        use = {**context.tool_use, "input": {"path": "passwords.txt"}}
        async for event in next_fn(context.replace(tool_use=use)):
            yield event

    agent.add_middleware(ExecuteToolStage, elsewhere)  # added after Hookline, so inside of it if nothing prevents that
    await agent.invoke_async("Write.")
    assert list(tmp_path.iterdir()) == []


async def test_middleware_that_replaces_the_invocation_state_does_not_evade_a_guard(write, tmp_path):
    agent = agent_of([call("write", path="passwords.txt"), reply("Done.")], [write], only_drafts)

    async def forgetful(context, next_fn):
        async for event in next_fn(context.replace(invocation_state={})):
            yield event

    agent.add_middleware(ExecuteToolStage, forgetful)
    agent.add_middleware(InvokeModelStage, forgetful)
    await agent.invoke_async("Write.")
    assert list(tmp_path.iterdir()) == []


async def test_a_guard_judges_what_a_hook_of_strands_made_of_the_arguments(write, tmp_path):
    agent = agent_of(WRITE_DRAFT, [write], only_drafts)

    def elsewhere(event):
        event.tool_use = {**event.tool_use, "input": {"path": "passwords.txt"}}

    agent.add_hook(elsewhere, BeforeToolCallEvent)
    await agent.invoke_async("Write.")
    assert list(tmp_path.iterdir()) == []


async def test_hooks_see_the_request_as_other_middleware_changed_it():
    seen = []

    @observer(BEFORE_LLM)
    def note(ctx, request):
        seen.append(request.messages[0].content)

    agent = agent_of([reply("Hi.")], [], note, system_prompt="Be kind.")
    agent.add_middleware(InvokeModelStage.Input, lambda context: context.replace(system_prompt="Be rude."))
    agent.add_middleware(InvokeModelStage, shouting)
    await agent.invoke_async("Hello.")
    assert seen == ["Be rude.!"]


async def shouting(context, next_fn):
    async for event in next_fn(context.replace(system_prompt=f"{context.system_prompt}!")):
        yield event


async def test_calls_of_one_reply_run_at_the_same_time():
    both = asyncio.Barrier(2)

    @tool
    async def meet(name: str) -> str:
        """Wait for the other one."""
        await both.wait()
        return f"{name} met"

    agent = agent_of([[call("meet", name="ada"), call("meet", name="bob")], reply("Done.")], [meet], only_drafts)
    await asyncio.wait_for(agent.invoke_async("Meet."), 20)
    results = [block["toolResult"]["content"][0]["text"] for block in agent.messages[2]["content"]]
    assert results == ["ada met", "bob met"]


async def test_agents_of_a_graph_that_work_side_by_side_have_runs_of_their_own():
    both = asyncio.Barrier(2)

    @tool
    async def meet(name: str) -> str:
        """Wait for the other one."""
        await both.wait()
        return f"{name} met"

    ends = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ends.append((result.reply, result.status, len(result.steps)))

    plugin, builder = HooklinePlugin(note), GraphBuilder()
    for name in ("ada", "bob"):
        model = Scripted(ScriptedModel([call("meet", name=name), reply(f"{name} is done.")]))
        builder.add_node(Agent(name=name, model=model, tools=[meet], plugins=[plugin], callback_handler=None), name)
        builder.set_entry_point(name)
    builder.set_execution_timeout(20)
    await builder.build().invoke_async("Meet.")
    assert sorted(ends) == [("ada is done.", "completed", 2), ("bob is done.", "completed", 2)]


async def test_what_a_tool_streams_is_shown_while_it_runs():
    shown = asyncio.Event()

    @tool
    async def count() -> str:
        """Count."""
        yield "one"
        await shown.wait()  # the consumer has got it
        yield "done"

    agent = agent_of([call("count"), reply("Done.")], [count], only_drafts)
    async for event in agent.stream_async("Count."):
        if event.get("tool_stream_event", {}).get("data") == "one":
            shown.set()
    assert agent.messages[-2]["content"][0]["toolResult"]["content"] == [{"text": "done"}]


async def test_an_interrupt_of_a_tool_pauses_the_agent_and_the_resumed_call_is_judged(tmp_path):
    @tool(context=True)
    def write(path: str, tool_context: ToolContext) -> str:
        """Write a file, if somebody says yes."""
        answer = tool_context.interrupt("sure", reason="Really?")
        (tmp_path / path).write_text(answer)
        return "ok"

    judged = []

    @guard(BEFORE_TOOL)
    def note(ctx, request):
        judged.append(request.arguments["path"])

    agent = agent_of(WRITE_DRAFT, [write], note)
    paused = await agent.invoke_async("Write.")
    assert paused.stop_reason == "interrupt"
    assert list(tmp_path.iterdir()) == []
    answer = {"interruptResponse": {"interruptId": paused.interrupts[0].id, "response": "yes"}}
    result = await agent.invoke_async([answer])
    assert str(result) == "Done.\n"
    assert (tmp_path / "draft.txt").read_text() == "yes"
    assert judged == ["draft.txt", "draft.txt"]


async def test_a_throttled_model_is_retried_by_the_strategy_of_the_agent():
    strategy = ModelRetryStrategy(initial_delay=0)
    turns = [ModelThrottledException("slow down"), ModelThrottledException("slow down"), reply("Hi.")]
    agent = agent_of(turns, [], only_drafts, retry_strategy=strategy)
    assert str(await agent.invoke_async("Hello.")) == "Hi.\n"


async def test_an_error_of_the_model_reaches_the_program_as_it_is():
    ends = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ends.append(result.status)

    agent = agent_of([ConnectionResetError("the line is cut")], [], note)
    with pytest.raises(ConnectionResetError, match="the line is cut"):
        await agent.invoke_async("Hello.")
    assert ends == ["failed"]


async def test_a_guard_at_the_end_of_a_run_fails_closed():
    @guard(ON_RUN_END)
    def broken(ctx, result):
        raise ValueError("the guard is broken")

    agent = agent_of([reply("Hi.")], [], broken)
    with pytest.raises(RunFailedError, match="the guard is broken"):
        await agent.invoke_async("Hello.")


@pytest.mark.parametrize("point", [BEFORE_LLM, BEFORE_TOOL])
async def test_a_guard_that_fails_closed_raises_its_error_and_the_tool_does_not_run(point, write, tmp_path):
    @guard(point)
    def broken(ctx, payload):
        raise ValueError("the guard is broken")

    with pytest.raises(RunFailedError, match="hook 'broken' failed at .*the guard is broken") as raised:
        await agent_of(WRITE_DRAFT, [write], broken).invoke_async("Write.")
    assert raised.value.result.status == "failed"
    assert list(tmp_path.iterdir()) == []


async def test_hooks_see_images_and_a_hook_that_changes_the_text_keeps_them():
    seen = []

    @hook(BEFORE_LLM)
    def redact(ctx, request):
        seen.extend(request.messages[-1].attachments)
        changed = [each.replace(content=each.content.replace("Ada", "[name]")) for each in request.messages]
        return request.replace(messages=changed)

    @hook(BEFORE_LLM, priority=-1)
    def remove(ctx, request):
        return request.replace(messages=[each.replace(attachments=()) for each in request.messages])

    class Looking(Scripted):
        async def stream(self, messages, *args, **options):
            self.got = messages[-1]["content"]
            async for chunk in super().stream(messages, *args, **options):
                yield chunk

    image = {"image": {"format": "png", "source": {"bytes": b"pixels"}}}
    for hooks, expected in (([redact], [{"text": "This is [name]."}, image]), ([remove], [{"text": "This is Ada."}])):
        model = Looking(ScriptedModel([reply("Hi.")]))
        agent = Agent(model=model, plugins=[HooklinePlugin(*hooks)], callback_handler=None)
        await agent.invoke_async([{"text": "This is Ada."}, image])
        assert model.got == expected
    (file,) = seen
    assert (file.media_type, file.size) == ("image/png", 6)


async def test_the_next_invocation_is_a_run_of_the_same_conversation():
    seen = []

    @observer(AFTER_LLM)
    def note(ctx, answer):
        seen.append([message.content for message in ctx.state.messages])

    agent = agent_of([reply("Hi Ada."), reply("You are Ada.")], [], note)
    await agent.invoke_async("I am Ada.")
    await agent.invoke_async("Who am I?")
    assert seen == [["I am Ada."], ["I am Ada.", "Hi Ada.", "Who am I?"]]


async def test_an_unknown_tool_is_an_error_for_the_model_and_for_hooks():
    outcomes = []

    @observer(AFTER_TOOL)
    def note(ctx, result):
        outcomes.append((result.name, result.outcome, result.error))

    agent = agent_of([call("fly", to="Rome"), reply("I cannot fly.")], [], note)
    assert str(await agent.invoke_async("Fly.")) == "I cannot fly.\n"
    assert outcomes == [("fly", "error", "Unknown tool: fly")]


async def test_settings_of_one_call_do_not_change_the_model():
    @hook(BEFORE_LLM)
    def brief(ctx, request):
        return request.replace(params={"max_tokens": 5})

    class Configured(Scripted):
        def __init__(self, script):
            super().__init__(script)
            self.config = {"model_id": "m"}

        def update_config(self, **config):
            self.config.update(config)

        def get_config(self):
            return self.config

        async def stream(self, *args, **options):
            used.append(dict(self.config))
            async for chunk in super().stream(*args, **options):
                yield chunk

    used = []
    model = Configured(ScriptedModel([reply("Hi.")]))
    agent = Agent(model=model, plugins=[HooklinePlugin(brief)], callback_handler=None)
    await agent.invoke_async("Hello.")
    assert used == [{"model_id": "m", "max_tokens": 5}]
    assert model.config == {"model_id": "m"}


def test_attaching_twice_is_an_error():
    with pytest.raises(RegistrationError, match="already attached to this agent"):
        Agent(model=Scripted(ScriptedModel()), plugins=[HooklinePlugin(only_drafts), HooklinePlugin(only_drafts)])


def test_one_plugin_serves_several_agents(write):
    plugin = HooklinePlugin(only_drafts)
    agents = [
        Agent(model=Scripted(ScriptedModel(WRITE_DRAFT)), tools=[write], plugins=[plugin], callback_handler=None)
        for _ in range(2)
    ]
    assert [str(agent("Write.")) for agent in agents] == ["Done.\n", "Done.\n"]


def test_messages_keep_their_role_and_their_error():
    from hookline.adapters._strands_messages import reader

    use = {"toolUse": {"toolUseId": "1", "name": "read", "input": {"path": "a"}}}
    result = {"toolResult": {"toolUseId": "1", "status": "error", "content": [{"json": {"code": 5}}]}}
    given = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result, {"text": "And?"}]}]
    messages = reader().read(given).messages
    assert messages[1] == Message("tool", '{"code": 5}', (), "1", "read", is_error=True)
    assert messages[2] == Message("user", "And?")


# Structured output.


class Weather(BaseModel):
    """The weather."""

    place: str


PARIS = call("Weather", place="Paris")


@pytest.mark.parametrize("mode", ["async", "sync", "stream"])
async def test_structured_output_is_the_reply_that_hooks_judge(mode):
    seen = []

    @observer(AFTER_LLM, ON_RUN_END)
    def note(ctx, payload):
        seen.append(payload.content if hasattr(payload, "content") else payload.reply)

    @guard(BEFORE_TOOL)
    def nothing(ctx, request):
        return HookResult.block("No tools.")

    agent = agent_of([PARIS], [], note, nothing)
    if mode == "async":
        result = await agent.invoke_async("Where?", structured_output_model=Weather)
    elif mode == "sync":
        result = await asyncio.to_thread(agent, "Where?", structured_output_model=Weather)
    else:
        async for event in agent.stream_async("Where?", structured_output_model=Weather):
            result = event.get("result")
    assert result.structured_output == Weather(place="Paris")
    assert seen == ['{"place":"Paris"}', '{"place":"Paris"}']


async def test_a_rail_that_rejects_structured_output_gets_another_reply():
    @guard(AFTER_LLM)
    def not_paris(ctx, answer):
        return HookResult.retry("Elsewhere.") if "Paris" in answer.content else None

    agent = agent_of([PARIS, call("Weather", place="Rome")], [], not_paris)
    result = await agent.invoke_async("Where?", structured_output_model=Weather)
    assert result.structured_output == Weather(place="Rome")


@pytest.mark.parametrize("point", [AFTER_LLM, ON_RUN_END])
async def test_structured_output_is_as_hooks_change_it(point):
    @hook(point)
    def hide(ctx, payload):
        return HookResult.replace({"content" if point == AFTER_LLM else "reply": '{"place":"?"}'})

    agent = agent_of([PARIS], [], hide)
    result = await agent.invoke_async("Where?", structured_output_model=Weather)
    assert result.structured_output == Weather(place="?")
    if point == AFTER_LLM:
        assert "Paris" not in str(agent.messages)


async def test_structured_output_that_does_not_fit_after_a_hook_is_not_returned():
    @hook(ON_RUN_END)
    def hide(ctx, result):
        return HookResult.replace({"reply": "Secret."})

    with pytest.raises(HooklineError, match="replaced structured output by a text that is no Weather"):
        await agent_of([PARIS], [], hide).invoke_async("Where?", structured_output_model=Weather)


async def test_a_hook_that_ends_the_run_ends_it_without_structured_output():
    @guard(AFTER_LLM)
    def end(ctx, answer):
        return HookResult.end("Ended.")

    result = await agent_of([PARIS], [], end).invoke_async("Where?", structured_output_model=Weather)
    assert (str(result).strip(), result.structured_output) == ("Ended.", None)


@pytest.mark.filterwarnings("ignore:Agent.structured_output")
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("point", [BEFORE_LLM, AFTER_LLM])
async def test_the_old_method_for_structured_output_is_refused_with_the_alternative(mode, point):
    @hook(point)
    def judge(ctx, payload):
        return None

    agent = agent_of([PARIS], [], judge)
    with pytest.raises(RegistrationError, match=r"Use agent\(prompt, structured_output_model=...\) instead"):
        if mode == "async":
            await agent.structured_output_async(Weather, "Where?")
        else:
            await asyncio.to_thread(agent.structured_output, Weather, "Where?")
    assert agent.model.script.requests == []


# Calls by the program itself.


@pytest.mark.parametrize("path", ["passwords.txt", "draft.txt"])
async def test_a_call_by_the_program_is_judged_in_a_run_of_its_own(write, tmp_path, path):
    ended, results = [], []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append(result.status)

    @observer(AFTER_TOOL)
    def look(ctx, result):
        results.append(result.outcome)

    agent = agent_of([reply("Done.")], [write], only_drafts, note, look)
    result = await asyncio.to_thread(lambda: agent.tool.write(path=path))
    allowed = path == "draft.txt"
    assert result["status"] == ("success" if allowed else "error")
    assert bool(list(tmp_path.iterdir())) == allowed
    assert ended == ["completed"]
    assert results == ["ok" if allowed else "blocked"]
    assert str(await agent.invoke_async("Go on.")).strip() == "Done."


async def test_a_call_by_the_program_whose_guard_fails_raises(write, tmp_path):
    @guard(BEFORE_TOOL)
    def broken(ctx, request):
        raise ValueError("the guard is broken")

    agent = agent_of([], [write], broken)
    result = await asyncio.to_thread(call_or_error, agent)
    assert "the guard is broken" in str(result)
    assert list(tmp_path.iterdir()) == []


def call_or_error(agent):
    try:
        return agent.tool.write(path="draft.txt")
    except Exception as error:  # noqa: BLE001
        return error


# What hooks cannot see.


def helper_of(*plugins):
    model = Scripted(ScriptedModel([reply("42")] * 2))
    return Agent(model=model, name="helper", plugins=list(plugins), callback_handler=None)


@pytest.mark.parametrize("point", [BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL])
@pytest.mark.parametrize("form", ["agent", "as_tool"])
async def test_an_agent_without_the_plugin_as_a_tool_is_refused_unless_it_is_named(form, point):
    @hook(point)
    def judge(ctx, payload):
        return None

    helper = helper_of()
    tools = [helper if form == "agent" else helper.as_tool()]
    agent = agent_of([reply("Done.")], tools, judge)
    message = rf"the tool 'helper' runs the agent 'helper': hooks at {point} .*plugins.*unguarded=\['helper'\]"
    with pytest.raises(RegistrationError, match=message):
        await agent.invoke_async("Go.")
    assert agent.model.script.requests == []
    model, plugin = Scripted(ScriptedModel([reply("Done.")])), HooklinePlugin(judge, unguarded=["helper"])
    agent = Agent(model=model, tools=[helper_of()], plugins=[plugin], callback_handler=None)
    assert str(await agent.invoke_async("Go.")).strip() == "Done."


async def test_an_agent_with_the_plugin_is_a_tool():
    plugin = HooklinePlugin(only_drafts)
    model = Scripted(ScriptedModel([reply("Done.")]))
    agent = Agent(model=model, tools=[helper_of(plugin)], plugins=[plugin], callback_handler=None)
    assert str(await agent.invoke_async("Go.")).strip() == "Done."


@pytest.mark.parametrize("case", ["without", "with"])
async def test_an_agent_without_hooks_in_the_function_of_a_tool_is_reported_once(case, caplog):
    plugin = HooklinePlugin(only_drafts)
    helper = helper_of(*([plugin] if case == "with" else []))

    @tool
    async def ask() -> str:
        """Ask."""
        return str(await helper.invoke_async("Go."))

    agent = Agent(
        model=Scripted(ScriptedModel([call("ask"), reply("Done.")] * 2)),
        tools=[ask],
        plugins=[plugin],
        callback_handler=None,
    )
    for _ in range(2):
        await agent.invoke_async("Go.")
    found = [text for each in caplog.records if "do not judge" in (text := each.getMessage())]
    assert len(found) == (1 if case == "without" else 0)
    if found:
        assert "the tool 'ask' uses the agent 'helper', whose calls Hookline's hooks do not judge" in found[0]


@pytest.mark.parametrize(
    "config",
    [
        {"anthropic_tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"params": {"tools": [{"type": "web_search"}]}},
    ],
)
async def test_a_tool_that_the_provider_runs_is_refused(config, monkeypatch):
    agent = agent_of([reply("Done.")], [], only_drafts)
    monkeypatch.setattr(agent.model, "get_config", lambda: config)
    with pytest.raises(RegistrationError, match="'web_search' is run by the provider: hooks at before_tool cannot"):
        await agent.invoke_async("Go.")
