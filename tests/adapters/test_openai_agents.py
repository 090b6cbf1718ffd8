"""The adapter of the OpenAI Agents SDK: what is special about this framework. The rest is in ``test_behaviours.py``."""

import asyncio
import json
from typing import Any

import pytest

sdk = pytest.importorskip("agents")

from agents.mcp import MCPServer  # noqa: E402
from mcp.types import CallToolResult, TextContent  # noqa: E402
from mcp.types import Tool as McpTool  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from hookline import Agent as OuterAgent  # noqa: E402
from hookline import HookRegistry, HookResult, RunFailedError, guard, hook, observer  # noqa: E402
from hookline.adapters._openai_items import Conversation, reader  # noqa: E402
from hookline.adapters.openai_agents import HooklineRunner  # noqa: E402
from hookline.errors import HooklineError, RegistrationError  # noqa: E402
from hookline.models import ScriptedModel, call, reply  # noqa: E402
from hookline.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_RUN_END, ON_STOP  # noqa: E402

from .drivers.openai_agents import CONFIG, Scripted  # noqa: E402
from .loops import in_thread  # noqa: E402

ran: list[str] = []


@sdk.function_tool
def shell(command: str) -> str:
    """Run a command."""
    ran.append(command)
    return f"ran {command}"


@guard(BEFORE_TOOL, tools="*")
def no_sudo(ctx, request):
    return HookResult.block("No sudo here.") if "sudo" in str(request.arguments) else None


@guard(BEFORE_TOOL)
def enough(ctx, request):
    return HookResult.end("That is enough.")


def agent(script: list[Any], **fields: Any) -> Any:
    fields = {"name": "agent", "tools": [shell], **fields}
    return sdk.Agent(model=Scripted(ScriptedModel(script)), **fields)


def texts(given: Any) -> list[str]:
    """Return the texts of the last request to the model of an agent."""
    return [message.content for message in given.model.script.requests[-1].messages]


@pytest.fixture(autouse=True)
def _nothing_ran():
    ran.clear()


SUDO = [call("shell", command="sudo ls"), reply("I may not.")]


async def test_the_agent_itself_is_not_changed():
    mine = agent(SUDO)
    before = dict(vars(mine))
    await HooklineRunner(no_sudo).run(mine, "Go.", run_config=CONFIG)
    assert vars(mine) == before


async def test_the_last_agent_of_a_result_takes_the_next_task_under_the_same_hooks():
    runner, mine = HooklineRunner(no_sudo), agent([reply("Hello."), *SUDO])
    first = await runner.run(mine, "Hi.", run_config=CONFIG)
    task = [*first.to_input_list(), {"role": "user", "content": "Go."}]
    second = await runner.run(first.last_agent, task, run_config=CONFIG)
    assert (second.final_output, ran) == ("I may not.", [])


async def test_the_last_agent_of_a_result_is_refused_by_the_runner_of_the_sdk():
    made = await HooklineRunner(no_sudo).run(agent([reply("ok"), reply("unguarded")]), "Go.", run_config=CONFIG)
    with pytest.raises(HooklineError, match="'agent' is a copy that belongs to a finished run .* give it to that"):
        await sdk.Runner.run(made.last_agent, "Go on.", run_config=CONFIG)


async def test_a_second_runner_around_the_same_agent_is_refused():
    first = await HooklineRunner(no_sudo).run(agent([reply("Hello.")]), "Hi.", run_config=CONFIG)
    with pytest.raises(RegistrationError, match="already attached to the agent 'agent'"):
        await HooklineRunner(enough).run(first.last_agent, "Go.", run_config=CONFIG)


async def test_an_unsupported_version_is_refused_with_the_supported_range(monkeypatch):
    monkeypatch.setattr("hookline.adapters._foreign.version", lambda package: "0.99.1")
    with pytest.raises(RegistrationError, match=r"OpenAI Agents 0\.99\.1 is not supported: .* >=0\.24,<0\.25"):
        HooklineRunner(no_sudo)


@pytest.mark.parametrize("given", [None, "agent", 3])
async def test_something_else_than_an_agent_is_refused(given):
    with pytest.raises(TypeError, match="expected an Agent"):
        await HooklineRunner(no_sudo).run(given, "Go.")


async def test_a_model_in_the_run_configuration_is_called_under_the_hooks_too():
    @hook(AFTER_LLM)
    def sign(ctx, answer):
        return HookResult.replace({"content": answer.content + " -- the agent"})

    config = sdk.RunConfig(tracing_disabled=True, model=Scripted(ScriptedModel([reply("Hi.")])))
    result = await HooklineRunner(sign).run(agent([]), "Go.", run_config=config)
    assert result.final_output == "Hi. -- the agent"


async def test_a_configuration_may_be_a_mapping():
    result = await HooklineRunner(no_sudo).run(agent(SUDO), "Go.", run_config={"tracing_disabled": True})
    assert result.final_output == "I may not."


# Handoffs.


async def test_an_agent_that_is_reached_by_a_handoff_runs_under_the_hooks():
    other = agent(SUDO, name="other")
    first = agent([call("transfer_to_other")], handoffs=[other])
    result = await HooklineRunner(no_sudo).run(first, "Go.", run_config=CONFIG)
    assert (result.final_output, result.last_agent.name, ran) == ("I may not.", "other", [])


async def test_agents_may_hand_over_to_each_other():
    one = agent([call("transfer_to_two"), *SUDO], name="one")
    two = agent([call("transfer_to_one")], name="two", handoffs=[one])
    one.handoffs = [two]
    result = await HooklineRunner(no_sudo).run(one, "Go.", run_config=CONFIG)
    assert (result.final_output, result.last_agent.name, ran) == ("I may not.", "one", [])


async def test_a_blocked_handoff_leaves_the_conversation_with_its_agent_and_the_model_reads_why():
    @guard(BEFORE_TOOL, tools="transfer_*")
    def stay(ctx, request):
        return HookResult.block("Stay here.")

    other = agent([reply("Never.")], name="other")
    first = agent([call("transfer_to_other"), reply("I stay.")], handoffs=[sdk.handoff(other)])
    result = await HooklineRunner(stay).run(first, "Go.", run_config=CONFIG)
    assert (result.final_output, result.last_agent.name) == ("I stay.", "agent")
    assert texts(first)[-1] == "Stay here."
    assert other.model.script.requests == []


# Tools.


class Server(MCPServer):
    """An MCP server inside this process."""

    name = "files"

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    async def connect(self) -> None: ...
    async def cleanup(self) -> None: ...
    async def list_prompts(self) -> Any: ...
    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...

    async def list_tools(self, *args: Any) -> list[McpTool]:
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        return [McpTool(name="delete", description="Delete a file.", input_schema=schema)]

    async def call_tool(self, tool_name: str, arguments: Any, *args: Any, **more: Any) -> CallToolResult:
        self.called.append(arguments["path"])
        return CallToolResult(content=[TextContent(type="text", text="deleted")])


async def test_the_tools_of_an_mcp_server_are_judged():
    server = Server()
    script = [[call("delete", path="sudoers"), call("delete", path="a.txt")], reply("Done.")]
    mine = agent(script, tools=[], mcp_servers=[server])
    await HooklineRunner(no_sudo).run(mine, "Go.", run_config=CONFIG)
    assert server.called == ["a.txt"]
    assert "No sudo here." in texts(mine)


def other_tools():
    hosted = sdk.WebSearchTool()
    inner = agent([reply("Done.")], name="inner").as_tool("ask_inner", "Ask another agent.")
    return [pytest.param(hosted, "is no function", id="hosted"), pytest.param(inner, "another agent", id="agent")]


@pytest.mark.parametrize(("tool", "message"), other_tools())
async def test_a_tool_whose_calls_no_hook_could_judge_is_refused_before_the_run(tool, message):
    mine = agent([reply("Done.")], tools=[shell, tool])
    with pytest.raises(RegistrationError, match=message) as refused:
        await HooklineRunner(no_sudo).run(mine, "Go.", run_config=CONFIG)
    assert f"unguarded=['{tool.name}']" in str(refused.value)
    assert mine.model.script.requests == []
    result = await HooklineRunner(no_sudo, unguarded=[tool.name]).run(mine, "Go.", run_config=CONFIG)
    assert result.final_output == "Done."


@pytest.mark.parametrize("mode", ["run", "run_sync", "run_streamed"])
@pytest.mark.parametrize("point", [BEFORE_LLM, AFTER_LLM, AFTER_TOOL])
async def test_an_agent_as_a_tool_is_refused_by_every_hook_around_calls(point, mode):
    @hook(point)
    def judge(ctx, payload):
        return None

    inner = agent([reply("Done.")], name="inner")
    mine = agent([reply("Done.")], tools=[inner.as_tool("ask_inner", "Ask another agent.")])
    runner = HooklineRunner(judge)
    with pytest.raises(RegistrationError, match=f"runs another agent: hooks at {point} cannot judge its calls"):
        match mode:
            case "run":
                await runner.run(mine, "Go.", run_config=CONFIG)
            case "run_sync":
                await in_thread(runner.run_sync, mine, "Go.", run_config=CONFIG)
            case "run_streamed":
                runner.run_streamed(mine, "Go.", run_config=CONFIG)
    assert inner.model.script.requests == mine.model.script.requests == []


async def test_a_hosted_tool_is_refused_by_a_hook_that_judges_results():
    @hook(AFTER_TOOL)
    def judge(ctx, result):
        return None

    mine = agent([reply("Done.")], tools=[sdk.WebSearchTool()])
    with pytest.raises(RegistrationError, match="is no function: hooks at after_tool cannot judge its calls"):
        await HooklineRunner(judge).run(mine, "Go.", run_config=CONFIG)


async def test_the_hooks_of_an_outer_run_refuse_a_tool_that_they_cannot_judge():
    mine = agent([reply("Done.")], tools=[sdk.WebSearchTool()])

    async def ask() -> str:
        """Ask another agent."""
        return (await HooklineRunner().run(mine, "Go.", run_config=CONFIG)).final_output

    model = ScriptedModel([call("ask"), reply("Done.")])
    await OuterAgent("outer", llm=model, tools=[ask], hooks=[no_sudo]).arun("Go.")
    assert "is no function: hooks at before_tool cannot judge its calls" in model.requests[1].messages[-1].content
    assert mine.model.script.requests == []


@pytest.mark.parametrize("case", ["without", "with"])
async def test_a_tool_that_runs_agents_without_the_hooks_is_reported_once(case, caplog):
    runner = HooklineRunner(no_sudo)
    inner = agent([reply("42")] * 2, name="inner")

    @sdk.function_tool
    async def ask_bare() -> str:
        """Ask another agent."""
        return (await sdk.Runner.run(inner, "Go.", run_config=CONFIG)).final_output

    @sdk.function_tool
    async def ask() -> str:
        """Ask another agent."""
        return (await runner.run(inner, "Go.", run_config=CONFIG)).final_output

    mine = agent([reply("Done.")] * 2, tools=[ask_bare if case == "without" else ask])
    for _ in range(2):
        await runner.run(mine, "Go.", run_config=CONFIG)
    found = [text for each in caplog.records if "do not judge" in (text := each.getMessage())]
    assert len(found) == (1 if case == "without" else 0)
    if found:
        assert "the tool 'ask_bare' of agent 'agent' uses the SDK's Runner, whose calls Hookline's hooks do" in found[0]
        assert "unguarded=['ask_bare']" in found[0]


async def test_hooks_that_judge_no_tools_need_no_list_of_unguarded_tools():
    mine = agent([reply("Done.")], tools=[sdk.WebSearchTool()])
    seen = []

    @observer(AFTER_LLM)
    def note(ctx, answer):
        seen.append(answer.content)

    await HooklineRunner(note).run(mine, "Go.", run_config=CONFIG)
    assert seen == ["Done."]


async def test_an_agent_in_a_function_tool_is_a_nested_run_under_the_same_hooks():
    runner, inner = HooklineRunner(no_sudo), agent(SUDO, name="inner")

    @sdk.function_tool
    async def ask_inner(task: str) -> str:
        """Ask another agent."""
        return str((await runner.run(inner, task, run_config=CONFIG)).final_output)

    outer = agent([call("ask_inner", task="Go."), reply("Done.")], tools=[ask_inner])
    await runner.run(outer, "Go.", run_config=CONFIG)
    assert ran == []
    assert texts(inner)[-1] == "No sudo here."
    assert texts(outer)[-1] == "I may not."


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "An error occurred while running the tool. Please try again."),
        ({"failure_error_function": lambda ctx, error: f"sorry: {error}"}, "sorry: the disk is full"),
    ],
)
async def test_a_failed_tool_gives_the_model_the_text_of_the_sdk_and_hooks_see_an_error(options, text):
    outcomes = []

    @observer(AFTER_TOOL)
    def note(ctx, result):
        outcomes.append((result.outcome, result.error))

    @sdk.function_tool(**options)
    def save() -> str:
        """Save."""
        raise OSError("the disk is full")

    mine = agent([call("save"), reply("Done.")], tools=[save])
    await HooklineRunner(note).run(mine, "Go.", run_config=CONFIG)
    assert outcomes == [("error", text)]
    assert texts(mine)[-1] == text


async def test_a_tool_whose_failure_ends_the_run_still_does():
    @sdk.function_tool(failure_error_function=None)
    def save() -> str:
        """Save."""
        raise OSError("the disk is full")

    ended = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append(result.status)

    with pytest.raises(sdk.UserError, match="the disk is full"):
        await HooklineRunner(note).run(agent([call("save")], tools=[save]), "Go.", run_config=CONFIG)
    assert ended == ["failed"]


async def test_a_tool_that_changes_during_a_run_is_described_and_called_as_it_is_now():
    seen = []

    @hook(BEFORE_LLM)
    def look(ctx, request):
        (tool,) = request.tools
        seen.append((tool.description, tool.parameters["properties"]["text"].get("maxLength")))

    async def later(context, arguments):
        return f"later: {arguments}"

    @sdk.function_tool
    def save(text: str) -> str:
        """Save."""
        save.description, save.on_invoke_tool = "Save later.", later
        save.params_json_schema["properties"]["text"]["maxLength"] = 5
        return "saved"

    mine = agent([call("save", text="a"), call("save", text="b"), reply("Done.")], tools=[save])
    await HooklineRunner(look).run(mine, "Go.", run_config=CONFIG)
    assert seen == [("Save.", None), ("Save later.", 5), ("Save later.", 5)]
    assert texts(mine)[-1] == 'later: {"text": "b"}'


async def test_what_a_tool_returned_reaches_the_model_as_it_was_unless_a_hook_changed_it():
    picture = sdk.ToolOutputImage(image_url="data:image/png;base64,AA==")

    @sdk.function_tool
    def look() -> Any:
        """Look."""
        return picture

    given = []

    class Model(Scripted):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> Any:
            given.append(input)
            return await super().get_response(system_instructions, input)

    mine = sdk.Agent(name="agent", model=Model(ScriptedModel([call("look"), reply("A dot.")])), tools=[look])
    await HooklineRunner(no_sudo).run(mine, "Go.", run_config=CONFIG)
    assert given[1][-1]["output"] == [{"type": "input_image", "image_url": picture.image_url}]


async def test_hooks_see_files_in_prompts_and_results_and_may_remove_them():
    url = "data:image/png;base64,iVBORw=="
    seen, given = [], []

    @sdk.function_tool
    def look() -> Any:
        """Look."""
        return sdk.ToolOutputImage(image_url=url)

    @hook(BEFORE_LLM)
    def no_pictures(ctx, request):
        messages = request.messages
        seen.append(
            [(message.role, file.media_type, file.size) for message in messages for file in message.attachments]
        )
        return request.replace(messages=[message.replace(attachments=()) for message in messages])

    @observer(AFTER_TOOL)
    def note(ctx, result):
        seen.append((result.result, [file.data for file in result.attachments]))

    class Model(Scripted):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> Any:
            given.append(json.dumps(input))
            return await super().get_response(system_instructions, input)

    mine = sdk.Agent(name="agent", model=Model(ScriptedModel([call("look"), reply("A dot.")])), tools=[look])
    task = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url}]
    await HooklineRunner(no_pictures, note).run(mine, [{"role": "user", "content": task}], run_config=CONFIG)
    assert seen[0] == [("user", "image/png", 4)]
    assert seen[1] == ("Attached: an attachment (image/png, 4 bytes)", [b"\x89PNG"])
    assert seen[2] == [("user", "image/png", 4), ("tool", "image/png", 4)]
    assert "What is this?" in given[0]
    assert not any("base64" in request for request in given)


async def test_a_tool_gets_the_rewritten_arguments_in_its_context_too():
    seen = []

    @sdk.function_tool
    def shell(ctx: sdk.RunContextWrapper[Any], command: str) -> str:
        """Run a command."""
        seen.append((command, json.loads(ctx.tool_arguments)))
        return "ok"

    @hook(BEFORE_TOOL)
    def quiet(ctx, request):
        return HookResult.replace({"arguments": {"command": "ls -q"}})

    mine = agent([call("shell", command="ls"), reply("Done.")], tools=[shell])
    await HooklineRunner(quiet).run(mine, "Go.", run_config=CONFIG)
    assert seen == [("ls -q", {"command": "ls -q"})]


# The end of a run.


class Report(BaseModel):
    title: str


async def test_a_typed_output_is_read_after_the_hooks():
    @hook(AFTER_LLM)
    def retitle(ctx, answer):
        return HookResult.replace({"content": '{"title": "new"}'})

    mine = agent([reply('{"title": "old"}')], output_type=Report)
    result = await HooklineRunner(retitle).run(mine, "Go.", run_config=CONFIG)
    assert result.final_output == Report(title="new")


@pytest.mark.parametrize("point", [BEFORE_TOOL, BEFORE_LLM])
async def test_the_reply_of_a_hook_that_ends_the_run_is_the_final_output_whatever_its_type(point):
    @guard(point)
    def stop(ctx, payload):
        return HookResult.end("That is enough.")

    mine = agent([call("shell", command="ls")], output_type=Report)
    result = await HooklineRunner(stop).run(mine, "Go.", run_config=CONFIG)
    assert (result.final_output, ran) == ("That is enough.", [])


@pytest.mark.parametrize("behavior", ["run_llm_again", "stop_on_first_tool", {"stop_at_tool_names": ["shell"]}])
async def test_the_end_of_a_hook_comes_before_what_the_agent_does_with_tool_results(behavior):
    mine = agent([call("shell", command="ls")], tool_use_behavior=behavior)
    result = await HooklineRunner(enough).run(mine, "Go.", run_config=CONFIG)
    assert result.final_output == "That is enough."


@pytest.mark.parametrize(
    ("behavior", "output"),
    [
        ("stop_on_first_tool", "ran ls"),
        ({"stop_at_tool_names": ["shell"]}, "ran ls"),
        ({"stop_at_tool_names": ["other"]}, "Done."),
        (lambda ctx, results: sdk.ToolsToFinalOutputResult(is_final_output=True, final_output="mine"), "mine"),
    ],
)
async def test_what_the_agent_does_with_tool_results_stays_as_it_is(behavior, output):
    mine = agent([call("shell", command="ls"), reply("Done.")], tool_use_behavior=behavior)
    assert (await HooklineRunner(no_sudo).run(mine, "Go.", run_config=CONFIG)).final_output == output


async def test_a_failure_of_a_hook_is_raised_by_name_and_not_as_an_error_of_the_tool():
    @guard(BEFORE_TOOL)
    def broken(ctx, request):
        raise ValueError("the guard is broken")

    with pytest.raises(RunFailedError, match="hook 'broken' failed at before_tool"):
        await HooklineRunner(broken).run(agent(SUDO), "Go.", run_config=CONFIG)


async def test_a_limit_of_the_sdk_ends_the_run_and_hooks_see_the_failure():
    ended = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append(result.status)

    mine = agent([call("shell", command="ls")] * 3)
    with pytest.raises(sdk.MaxTurnsExceeded):
        await HooklineRunner(note).run(mine, "Go.", max_turns=2, run_config=CONFIG)
    assert ended == ["failed"]


async def test_a_hook_that_fails_closed_at_the_end_fails_the_run():
    @hook(ON_RUN_END)
    def broken(ctx, result):
        raise ValueError("the hook is broken")

    with pytest.raises(RunFailedError, match="the hook is broken"):
        await HooklineRunner(broken).run(agent([reply("Hi.")]), "Go.", run_config=CONFIG)


async def test_cancelling_the_run_is_seen_by_its_hooks():
    started, ended = asyncio.Event(), []

    @sdk.function_tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return ""

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append(result.status)

    mine = agent([call("wait")], tools=[wait])
    task = asyncio.create_task(HooklineRunner(note).run(mine, "Go.", run_config=CONFIG))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


async def test_a_stream_that_is_left_early_ends_for_its_hooks_too():
    ended = asyncio.Event()

    @observer(ON_RUN_END)
    def note(ctx, result):
        assert result.status == "cancelled"
        ended.set()

    result = HooklineRunner(note).run_streamed(agent([reply("one two three")]), "Go.", run_config=CONFIG)
    events = result.stream_events()
    async for event in events:
        if event.type == "raw_response_event":
            break
    await events.aclose()
    await ended.wait()


async def test_a_run_that_waits_for_an_approval_of_the_sdk_continues_under_the_hooks():
    @sdk.function_tool(needs_approval=True)
    def delete(path: str) -> str:
        """Delete a file."""
        ran.append(path)
        return "deleted"

    script = [[call("delete", path="sudoers"), call("delete", path="a.txt")], reply("Done.")]
    runner, mine = HooklineRunner(no_sudo), agent(script, tools=[delete])
    result = await runner.run(mine, "Go.", run_config=CONFIG)
    state = result.to_state()
    for item in result.interruptions:
        state.approve(item)
    result = await runner.run(mine, state, run_config=CONFIG)
    assert (result.final_output, ran) == ("Done.", ["a.txt"])
    assert "No sudo here." in texts(mine)


async def test_a_saved_state_from_elsewhere_is_refused():
    @sdk.function_tool(needs_approval=True)
    def delete(path: str) -> str:
        """Delete a file."""
        return "deleted"

    mine = agent([call("delete", path="a.txt")], tools=[delete])
    result = await sdk.Runner.run(mine, "Go.", run_config=CONFIG)
    state = await sdk.RunState.from_json(mine, result.to_state().to_json())
    with pytest.raises(RegistrationError, match="was not made by this HooklineRunner"):
        await HooklineRunner(no_sudo).run(mine, state, run_config=CONFIG)


# Model calls.


async def test_a_run_that_a_hook_keeps_going_remembers_the_note_in_later_requests():
    @hook(ON_STOP)
    def more(ctx, stopping):
        return HookResult.keep_going("And the tests?") if len(ctx.state.steps) == 1 else None

    mine = agent([reply("Done."), call("shell", command="test"), reply("They pass.")])
    result = await HooklineRunner(more).run(mine, "Go.", run_config=CONFIG)
    assert result.final_output == "They pass."
    assert texts(mine) == ["Go.", "Done.", "And the tests?", "ran test"]


async def test_the_usage_of_rejected_replies_counts_in_the_result():
    @guard(AFTER_LLM)
    def again(ctx, answer):
        return HookResult.retry("Again.") if answer.attempt == 1 else None

    once = await HooklineRunner(no_sudo).run(agent([reply("Hi.")]), "Go.", run_config=CONFIG)
    twice = await HooklineRunner(again).run(agent([reply("Hi."), reply("Hi.")]), "Go.", run_config=CONFIG)
    assert twice.context_wrapper.usage.requests == 2 * once.context_wrapper.usage.requests == 2


async def test_a_hook_changes_parameters_and_tool_descriptions():
    got = []

    class Model(Scripted):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> Any:
            got.append((more["model_settings"], more["tools"]))
            return await super().get_response(system_instructions, input)

    @hook(BEFORE_LLM)
    def change(ctx, request):
        (tool,) = request.tools
        params = {**request.params, "temperature": 0.5, "seed": 7}
        return request.replace(params=params, tools=(tool.replace(description="Careful."),), tool_choice="required")

    mine = sdk.Agent(name="agent", model=Model(ScriptedModel([reply("Hi.")])), tools=[shell])
    await HooklineRunner(change).run(mine, "Go.", run_config=CONFIG)
    ((settings, tools),) = got
    assert (settings.temperature, settings.extra_args, settings.tool_choice) == (0.5, {"seed": 7}, "required")
    assert [tool.description for tool in tools] == ["Careful."]


async def test_hooks_that_are_added_to_the_registry_later_take_part():
    registry = HookRegistry()
    runner = HooklineRunner(registry)
    registry.register(no_sudo)
    await runner.run(agent(SUDO), "Go.", run_config=CONFIG)
    assert ran == []


async def test_runs_at_the_same_time_do_not_mix():
    runner, agents = HooklineRunner(no_sudo), [agent(SUDO, name=f"a{number}") for number in range(5)]
    results = await asyncio.gather(*[runner.run(each, "Go.", run_config=CONFIG) for each in agents])
    assert [result.last_agent.name for result in results] == [each.name for each in agents]
    assert ran == []


# Items there and back.

ITEMS: list[Any] = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": "x"}]},
    {"type": "reasoning", "id": "r1", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me", "annotations": []}]},
    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":  1}'},
    {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "not json"},
    {"type": "function_call_output", "call_id": "c1", "output": "1"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
    {"type": "message", "role": "assistant", "content": "done"},
    {"type": "message", "role": "assistant", "content": "really"},
    {"role": "developer", "content": "be brief"},
]


def test_items_that_no_hook_changed_return_exactly_as_they_were():
    conversation = Conversation("Help.", ITEMS, reader())
    roles = [message.role for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "assistant", "system"]
    assert [call.raw for call in conversation.messages[2].tool_calls] == [None, "not json"]
    assert conversation.restore(conversation.messages) == ("Help.", ITEMS)


def test_a_first_item_that_is_no_message_is_sent_beside_instructions():
    items = [{"type": "item_reference", "id": "1"}, {"role": "user", "content": "hi"}]
    conversation = Conversation("Help.", items, reader())
    changed = [
        conversation.messages[0],
        *[each.replace(content=f"{each.content}!") for each in conversation.messages[2:]],
    ]
    assert conversation.restore(conversation.messages) == ("Help.", items)
    assert conversation.restore([*conversation.messages[:2], *changed[1:]]) == (
        "Help.",
        [items[0], {"role": "user", "content": "hi!"}],
    )


def test_a_changed_message_keeps_its_images_and_the_other_items_stay():
    conversation = Conversation("Help.", ITEMS, reader())
    messages = list(conversation.messages)
    messages[1] = messages[1].replace(content="hello")
    instructions, items = conversation.restore([*messages[1:], messages[0].replace(role="user", content="more")])
    assert instructions is None
    assert items[0]["content"] == [{"type": "input_text", "text": "hello"}, {"type": "input_image", "image_url": "x"}]
    assert items[1:-1] == ITEMS[1:]
    assert items[-1] == {"role": "user", "content": "more"}
