"""What is special about Google ADK: callbacks, toolsets, confirmations, and agents that call agents."""

import asyncio

import pytest

pytest.importorskip("google.adk")

from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent
from google.adk.apps import App
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionResult
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, google_search, url_context
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_toolset import BaseToolset
from google.genai import types

from hookline import HookResult, guard, hook, observer
from hookline.adapters.google_adk import HooklinePlugin
from hookline.errors import RegistrationError, RunFailedError
from hookline.models import ScriptedModel, call, reply
from hookline.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_RUN_END, ON_RUN_START

from .drafts import WRITE_DRAFT, only_drafts, writer
from .drivers.google_adk import Scripted


@pytest.fixture
def write(tmp_path):
    return writer(tmp_path)


def model_of(*turns):
    return Scripted(model="scripted", script=ScriptedModel(turns))


class Conversation:
    """One session with an agent, in a runner with these plugins."""

    def __init__(self, agent, *plugins):
        self.runner = InMemoryRunner(app=App(name="tests", root_agent=agent, plugins=list(plugins)))
        self.session = None

    async def say(self, *parts, **options):
        sessions = self.runner.session_service
        if self.session is None:
            self.session = await sessions.create_session(app_name="tests", user_id="ada")
        parts = [part if isinstance(part, types.Part) else types.Part(text=part) for part in parts]
        message = types.Content(role="user", parts=parts)
        given = {"user_id": "ada", "session_id": self.session.id, "new_message": message}
        return [event async for event in self.runner.run_async(**given, **options)]


def texts(events):
    return [part.text for event in events for part in event.content.parts if part.text]


def results(events):
    return [each.response for event in events for each in event.get_function_responses()]


async def test_a_callback_as_a_guard_does_not_see_what_a_later_callback_makes_of_the_arguments(write, tmp_path):
    """Google ADK without Hookline, for comparison."""
    judged = []

    def only_drafts(tool, args, tool_context):
        judged.append(args["path"])
        return None if args["path"].startswith("draft") else {"error": "Only drafts may be written."}

    def elsewhere(tool, args, tool_context):
        args["path"] = "passwords.txt"

    callbacks = [only_drafts, elsewhere]
    agent = LlmAgent(name="a", model=model_of(*WRITE_DRAFT), tools=[write], before_tool_callback=callbacks)
    await Conversation(agent).say("Write.")
    assert judged == ["draft.txt"]
    assert [file.name for file in tmp_path.iterdir()] == ["passwords.txt"]


async def test_a_guard_judges_what_a_callback_of_the_agent_made_of_the_arguments(write, tmp_path):
    def elsewhere(tool, args, tool_context):
        args["path"] = "passwords.txt"

    agent = LlmAgent(name="a", model=model_of(*WRITE_DRAFT), tools=[write], before_tool_callback=elsewhere)
    events = await Conversation(agent, HooklinePlugin(only_drafts)).say("Write.")
    assert list(tmp_path.iterdir()) == []
    assert results(events) == [{"error": "Only drafts may be written."}]


async def test_a_guard_judges_what_a_later_plugin_made_of_the_arguments(write, tmp_path):
    class Elsewhere(BasePlugin):
        async def before_tool_callback(self, *, tool, tool_args, tool_context):
            tool_args["path"] = "passwords.txt"

    agent = LlmAgent(name="a", model=model_of(*WRITE_DRAFT), tools=[write])
    await Conversation(agent, HooklinePlugin(only_drafts), Elsewhere(name="elsewhere")).say("Write.")
    assert list(tmp_path.iterdir()) == []


async def test_hooks_see_the_request_as_a_callback_of_the_agent_changed_it():
    seen = []

    @observer(BEFORE_LLM)
    def note(ctx, request):
        seen.append(request.messages[-1].content)

    def louder(callback_context, llm_request):
        llm_request.contents[-1].parts[0].text += "!!!"

    agent = LlmAgent(name="a", model=model_of(reply("Hi.")), before_model_callback=louder)
    await Conversation(agent, HooklinePlugin(note)).say("Hello")
    assert seen == ["Hello!!!"]


async def test_the_agent_of_the_program_stays_as_it_is(write):
    model = model_of(*WRITE_DRAFT)
    agent = LlmAgent(name="a", model=model, tools=[write])
    await Conversation(agent, HooklinePlugin(only_drafts)).say("Write.")
    assert agent.model is model
    assert "generate_content_async" not in vars(model)
    assert agent.tools == [write]


async def test_tools_of_a_toolset_are_judged_under_their_prefixed_name(write, tmp_path):
    @guard(BEFORE_TOOL, tools="files_*")
    def never(ctx, request):
        return HookResult.block("Never.")

    agent = LlmAgent(
        name="a",
        model=model_of(call("files_write", path="x"), reply("Done.")),
        tools=[Toolset(FunctionTool(write), tool_name_prefix="files")],
    )
    assert results(await Conversation(agent, HooklinePlugin(never)).say("Write.")) == [{"error": "Never."}]
    assert list(tmp_path.iterdir()) == []


async def test_calls_of_one_reply_run_at_the_same_time():
    both = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        """Wait for the other one."""
        await both.wait()
        return f"{name} met"

    model = model_of([call("meet", name="ada"), call("meet", name="bob")], reply("Done."))
    agent = LlmAgent(name="a", model=model, tools=[meet])
    events = await asyncio.wait_for(Conversation(agent, HooklinePlugin(only_drafts)).say("Meet."), 20)
    assert results(events) == [{"result": "ada met"}, {"result": "bob met"}]


@pytest.mark.parametrize("in_toolset", [False, True])
async def test_a_call_that_a_person_confirms_later_is_judged_then(write, tmp_path, in_toolset):
    allowed = []

    @guard(BEFORE_TOOL)
    def when_allowed(ctx, request):
        return None if allowed else HookResult.block("Not allowed.")

    tool = FunctionTool(write, require_confirmation=True)
    tools = [Toolset(tool)] if in_toolset else [tool]
    for expected in ([], ["draft.txt"]):
        agent = LlmAgent(name="a", model=model_of(*WRITE_DRAFT), tools=tools)
        conversation = Conversation(agent, HooklinePlugin(when_allowed))
        paused = await conversation.say("Write.")
        assert list(tmp_path.iterdir()) == []
        await conversation.say(confirmation(paused))
        assert [file.name for file in tmp_path.iterdir()] == expected  # first the guard does not agree
        allowed.append(True)


class Toolset(BaseToolset):
    """A set of these tools."""

    def __init__(self, *tools, **options):
        super().__init__(**options)
        self.tools = tools

    async def get_tools(self, readonly_context=None):
        return list(self.tools)


def confirmation(events):
    """Return the answer of a person who agrees to the call."""
    asked = [each for event in events for each in event.get_function_calls() if "confirmation" in each.name]
    return types.Part(
        function_response=types.FunctionResponse(id=asked[0].id, name=asked[0].name, response={"confirmed": True})
    )


async def test_an_agent_that_takes_over_is_judged_too(write, tmp_path):
    writer = LlmAgent(
        name="writer",
        description="Writes.",
        model=model_of(call("write", path="passwords.txt"), reply("I may not.")),
        tools=[write],
    )
    root = LlmAgent(name="root", model=model_of(call("transfer_to_agent", agent_name="writer")), sub_agents=[writer])
    ends = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ends.append((result.reply, len(result.steps)))

    events = await Conversation(root, HooklinePlugin(only_drafts, note)).say("Write.")
    assert list(tmp_path.iterdir()) == []
    assert texts(events)[-1] == "I may not."
    assert ends == [("I may not.", 3)]  # one run, with the steps of both agents


@pytest.mark.filterwarnings("ignore:ParallelAgent is deprecated")  # it is still what most programs use
async def test_agents_that_work_side_by_side_have_nested_runs_of_their_own():
    met = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        """Wait for the other agent."""
        await met.wait()
        return f"{name} met"

    names = ("ada", "bob")
    turns = {name: model_of(call("meet", name=name), reply(f"{name} is done.")) for name in names}
    agents = [LlmAgent(name=name, model=turns[name], tools=[meet]) for name in names]
    ends, outcomes = [], []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ends.append((result.reply, bool(result.ids.parent_run_id)))

    @observer(AFTER_TOOL)
    def tool_note(ctx, result):
        outcomes.append(result.outcome)

    root = ParallelAgent(name="root", sub_agents=agents)
    await asyncio.wait_for(Conversation(root, HooklinePlugin(note, tool_note)).say("Meet."), 20)
    assert sorted(ends) == [("", False), ("ada is done.", True), ("bob is done.", True)]
    assert outcomes == ["ok", "ok"]


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated")  # ADK itself uses it for the inner runner
async def test_an_agent_as_a_tool_is_a_nested_run_with_the_same_guards(write, tmp_path):
    writer = LlmAgent(
        name="writer",
        description="Writes.",
        model=model_of(call("write", path="passwords.txt"), reply("I may not.")),
        tools=[write],
    )
    root = LlmAgent(
        name="root", model=model_of(call("writer", request="Write."), reply("It may not.")), tools=[AgentTool(writer)]
    )
    runs = []

    @observer(ON_RUN_START)
    def note(ctx, start):
        runs.append(start.ids)

    events = await Conversation(root, HooklinePlugin(only_drafts, note)).say("Write.")
    assert list(tmp_path.iterdir()) == []
    assert texts(events)[-1] == "It may not."
    outer, inner = runs
    assert inner.parent_run_id == outer.run_id


async def test_an_unknown_tool_is_an_error_for_the_model_and_for_hooks(write):
    outcomes = []

    @observer(AFTER_TOOL)
    def note(ctx, result):
        outcomes.append((result.name, result.outcome))

    agent = LlmAgent(name="a", model=model_of(call("fly", to="Rome"), reply("I cannot fly.")), tools=[write])
    events = await Conversation(agent, HooklinePlugin(note)).say("Fly.")
    assert "no tool with that name" in results(events)[0]["error"]
    assert outcomes == [("fly", "error")]


async def test_an_error_of_the_model_reaches_the_program_as_it_is():
    ends = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ends.append(result.status)

    agent = LlmAgent(name="a", model=model_of(ConnectionResetError("the line is cut")))
    with pytest.raises(ConnectionResetError, match="the line is cut"):
        await Conversation(agent, HooklinePlugin(note)).say("Hello.")
    assert ends == ["failed"]


async def test_an_error_of_a_tool_is_handled_as_adk_does_without_hooks():
    def fail() -> str:
        """Fail."""
        raise ValueError("boom")

    def sorry(tool, args, tool_context, error):
        return {"result": f"It failed: {error}"}

    agent = LlmAgent(name="a", model=model_of(call("fail"), reply("Done.")), tools=[fail], on_tool_error_callback=sorry)
    events = await Conversation(agent, HooklinePlugin(only_drafts)).say("Go.")
    assert results(events) == [{"result": "It failed: boom"}]


async def test_a_guard_at_the_end_of_a_run_fails_closed():
    @guard(ON_RUN_END)
    def broken(ctx, result):
        raise ValueError("the guard is broken")

    agent = LlmAgent(name="a", model=model_of(reply("Hi.")))
    with pytest.raises(RuntimeError, match="the guard is broken") as error:  # as ADK reports errors of plugins
        await Conversation(agent, HooklinePlugin(broken)).say("Hello.")
    assert isinstance(error.value.__cause__, RunFailedError)


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

    got = []

    class Looking(Scripted):
        async def generate_content_async(self, llm_request, stream=False):
            got.append([part.text or part.inline_data.data for part in llm_request.contents[-1].parts])
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Hi.")]))

    image = types.Part(inline_data=types.Blob(data=b"pixels", mime_type="image/png"))
    for changing in (redact, remove):
        agent = LlmAgent(name="a", model=Looking(model="m", script=None))
        await Conversation(agent, HooklinePlugin(changing)).say("This is Ada.", image)
    assert got == [["This is [name].", b"pixels"], ["This is Ada."]]
    (file,) = seen
    assert (file.media_type, file.size) == ("image/png", 6)


async def test_hooks_change_settings_and_tools_of_one_request(write):
    @hook(BEFORE_LLM)
    def brief(ctx, request):
        assert request.params == {"temperature": 0.5}
        spec = request.tools[0].replace(description="Write a draft.")
        return request.replace(params={"max_tokens": 5}, tools=(spec,), tool_choice="none")

    got = []

    class Looking(Scripted):
        async def generate_content_async(self, llm_request, stream=False):
            got.append(llm_request.config)
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Hi.")]))

    settings = types.GenerateContentConfig(temperature=0.5)
    agent = LlmAgent(name="a", model=Looking(model="m", script=None), tools=[write], generate_content_config=settings)
    await Conversation(agent, HooklinePlugin(brief)).say("Hello.")
    (config,) = got
    assert (config.temperature, config.max_output_tokens) == (None, 5)
    assert config.tools[0].function_declarations[0].description == "Write a draft."
    assert config.tool_config.function_calling_config.mode.name == "NONE"


async def test_the_next_message_is_a_run_of_the_same_conversation():
    seen = []

    @observer(AFTER_LLM)
    def note(ctx, answer):
        seen.append([message.content for message in ctx.state.messages])

    agent = LlmAgent(name="a", model=model_of(reply("Hi Ada."), reply("You are Ada.")))
    conversation = Conversation(agent, HooklinePlugin(note))
    await conversation.say("I am Ada.")
    await conversation.say("Who am I?")
    assert seen == [["I am Ada."], ["I am Ada.", "Hi Ada.", "Who am I?"]]


async def test_calls_without_an_id_are_matched_with_their_results(write):
    seen = []

    @observer(BEFORE_LLM)
    def note(ctx, request):
        seen.append([(message.call_id, [each.id for each in message.tool_calls]) for message in request.messages[2:]])

    class WithoutIds(Scripted):
        async def generate_content_async(self, llm_request, stream=False):
            if len(llm_request.contents) == 1:
                made = types.FunctionCall(name="write", args={"path": "draft.txt"})
                parts = [types.Part(function_call=made)]
            else:
                parts = [types.Part(text="Done.")]
            yield LlmResponse(content=types.Content(role="model", parts=parts))

    agent = LlmAgent(name="a", model=WithoutIds(model="m", script=None), tools=[write], instruction="Write.")
    events = await Conversation(agent, HooklinePlugin(note)).say("Go.")
    assert results(events) == [{"result": "ok"}]
    (assistant, result) = seen[1]
    assert assistant[1] == [result[0]]


def test_attaching_twice_is_an_error():
    agent = LlmAgent(name="a", model=model_of())
    with pytest.raises(ValueError, match="'hookline' already registered"):
        Conversation(agent, HooklinePlugin(only_drafts), HooklinePlugin(only_drafts))


def test_a_hook_that_replaces_the_final_reply_is_refused_when_it_is_attached():
    @hook(ON_RUN_END)
    def sign(ctx, result):
        return HookResult.replace({"reply": "Signed."})

    with pytest.raises(RegistrationError, match="Google ADK cannot do 'replace' there. ADK has sent the last event"):
        HooklinePlugin(sign)


# What hooks cannot see.


async def say_go(agent, *plugins):
    try:
        await Conversation(agent, *plugins).say("Go.")
    except RegistrationError as error:
        return str(error)
    except RuntimeError as error:  # ADK makes one of all errors of a plugin
        return str(error.__cause__)
    return None


class Notes(BaseCodeExecutor):
    """Notes the code that it is to run."""

    ran: list[str] = []

    def execute_code(self, invocation_context, code_execution_input):
        self.ran.append(code_execution_input.code)
        return CodeExecutionResult(stdout="done")


CODE = reply("```python\nprint(1)\n```")


@pytest.mark.parametrize("point", [BEFORE_TOOL, AFTER_TOOL])
async def test_a_code_executor_is_refused_unless_it_is_named(point):
    @hook(point)
    def judge(ctx, payload):
        return None

    model, executor = model_of(CODE, reply("Done.")), Notes()
    agent = LlmAgent(name="a", model=model, code_executor=executor)
    error = await say_go(agent, HooklinePlugin(judge))
    assert f"the code executor 'Notes' of agent 'a' runs code in replies of the model: hooks at {point}" in error
    assert "Run code in a function tool, or allow it with unguarded=['Notes']" in error
    assert (model.script.requests, executor.ran) == ([], [])
    assert await say_go(agent, HooklinePlugin(judge, unguarded=["Notes"])) is None
    assert len(executor.ran) == 1


async def test_the_code_executor_of_a_subagent_is_refused():
    helper = LlmAgent(name="helper", model=model_of(CODE), description="Helps.", code_executor=Notes())
    turn = call("transfer_to_agent", agent_name="helper")
    agent = LlmAgent(name="a", model=model_of(turn), sub_agents=[helper])

    @guard(BEFORE_TOOL, tools="shell")
    def judge(ctx, request):
        return None

    assert "the code executor 'Notes' of agent 'helper'" in await say_go(agent, HooklinePlugin(judge))
    assert helper.code_executor.ran == []


def searching(tool):
    model = Scripted(model="gemini-2.5-flash", script=ScriptedModel([reply("Done.")]))
    return LlmAgent(name="a", model=model, tools=[tool])


@pytest.mark.parametrize("point", [BEFORE_TOOL, AFTER_TOOL])
@pytest.mark.parametrize(("tool", "name"), [(google_search, "google_search"), (url_context, "url_context")])
async def test_a_tool_that_the_provider_runs_is_refused_unless_it_is_named(tool, name, point):
    @hook(point)
    def judge(ctx, payload):
        return None

    agent = searching(tool)
    error = await say_go(agent, HooklinePlugin(judge))
    assert f"the tool {name!r} is run by the provider: hooks at {point} cannot judge its calls" in error
    assert f"unguarded=[{name!r}]" in error
    assert agent.model.script.requests == []
    assert await say_go(agent, HooklinePlugin(judge, unguarded=[name])) is None


async def test_a_tool_of_the_provider_that_a_callback_adds_is_refused():
    def add(callback_context, llm_request):
        llm_request.config.tools = [types.Tool(google_search=types.GoogleSearch())]

    agent = LlmAgent(name="a", model=model_of(reply("Done.")), before_model_callback=add)
    assert "'google_search' is run by the provider" in await say_go(agent, HooklinePlugin(only_drafts))


async def test_an_agent_as_a_tool_without_plugins_is_refused(write, tmp_path):
    helper = LlmAgent(name="helper", model=model_of(call("write", path="passwords.txt"), reply("Done.")), tools=[write])
    agent = LlmAgent(name="a", model=model_of(reply("Hi.")), tools=[AgentTool(helper, include_plugins=False)])
    error = await say_go(agent, HooklinePlugin(only_drafts))
    assert "the tool 'helper' of agent 'a' runs another agent without plugins: hooks at before_tool cannot" in error
    assert "Leave out include_plugins=False, or allow it with unguarded=['helper']" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["without", "with"])
async def test_an_agent_without_hooks_in_the_function_of_a_tool_is_reported_once(case, caplog):
    plugin = HooklinePlugin(only_drafts)
    helper = LlmAgent(name="helper", model=model_of(reply("42")))
    runner = InMemoryRunner(app=App(name="other", root_agent=helper, plugins=[plugin] if case == "with" else []))

    async def ask() -> str:
        """Ask."""
        await runner.run_debug("Go.", quiet=True)
        return "42"

    agent = LlmAgent(name="a", model=model_of(reply("Done."), reply("Done.")), tools=[ask])
    conversation = Conversation(agent, plugin)
    await conversation.say("Go.")
    await conversation.say("Go on.")
    found = [text for each in caplog.records if "do not judge" in (text := each.getMessage())]
    assert len(found) == (1 if case == "without" else 0)
    if found:
        assert "the tool 'ask' uses the agent 'helper', whose calls Hookline's hooks do not judge" in found[0]


async def test_an_agent_that_calls_models_elsewhere_is_reported(caplog):
    class RemoteA2aAgent(BaseAgent):
        """Stands for the agent of ADK of this name, which needs another package."""

        async def _run_async_impl(self, ctx):
            return
            yield

    await Conversation(RemoteA2aAgent(name="far"), HooklinePlugin(only_drafts)).say("Go.")
    found = [text for each in caplog.records if "do not judge" in (text := each.getMessage())]
    assert len(found) == 1
    assert "the agent 'far' is a RemoteA2aAgent, whose calls Hookline's hooks do not judge" in found[0]
