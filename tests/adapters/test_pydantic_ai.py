"""The adapter of pydantic-ai: what is special about this framework. The rest is in ``test_behaviours.py``."""

import asyncio
import json
from datetime import date
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import BaseModel  # noqa: E402
from pydantic_ai import (  # noqa: E402
    Agent,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    TextOutput,
    ToolOutput,
    ToolReturn,
)
from pydantic_ai.capabilities import AbstractCapability, NativeTool  # noqa: E402
from pydantic_ai.exceptions import UnexpectedModelBehavior  # noqa: E402
from pydantic_ai.messages import (  # noqa: E402
    BinaryContent,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel  # noqa: E402
from pydantic_ai.native_tools import WebSearchTool  # noqa: E402
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults  # noqa: E402
from pydantic_ai.toolsets import WrapperToolset  # noqa: E402

from hookline import HookRegistry, HookResult, RunFailedError, guard, hook, observer  # noqa: E402
from hookline.adapters._pydantic_ai_messages import Conversation, reader  # noqa: E402
from hookline.adapters.pydantic_ai import HooklineCapability  # noqa: E402
from hookline.errors import RegistrationError  # noqa: E402
from hookline.models import ScriptedModel, call, reply  # noqa: E402
from hookline.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_RUN_END, ON_STOP  # noqa: E402

from .drivers.pydantic_ai import scripted  # noqa: E402
from .loops import in_thread  # noqa: E402

ran: list[str] = []


def shell(command: str) -> str:
    """Run a command."""
    ran.append(command)
    return f"ran {command}"


@guard(BEFORE_TOOL, tools="*")
def no_sudo(ctx, request):
    return HookResult.block("No sudo here.") if "sudo" in str(request.arguments) else None


SUDO = [call("shell", command="sudo ls"), reply("I may not.")]


@pytest.fixture(autouse=True)
def _nothing_ran():
    ran.clear()


def agent(script: list[Any], *hooks: Any, tools: Any = (shell,), **options: Any) -> Any:
    capabilities = [*options.pop("capabilities", ()), HooklineCapability(*hooks)]
    return Agent(scripted(ScriptedModel(script)), tools=tools, capabilities=capabilities, **options)


def parts(result: Any, kind: str) -> list[Any]:
    return [part for message in result.all_messages() for part in message.parts if part.part_kind == kind]


@pytest.mark.parametrize("second", ["in the agent", "in the run"])
async def test_a_second_capability_in_the_same_run_is_refused(second):
    one, two = HooklineCapability(no_sudo), HooklineCapability(no_sudo)
    model = ScriptedModel(SUDO)
    mine = Agent(scripted(model), capabilities=[one, two] if second == "in the agent" else [one])
    with pytest.raises(RegistrationError, match="already attached"):
        await mine.run("Go.", capabilities=None if second == "in the agent" else [two])
    assert model.requests == []


async def test_an_unsupported_version_is_refused_with_the_supported_range(monkeypatch):
    monkeypatch.setattr("hookline.adapters._foreign.version", lambda package: "3.0.0")
    with pytest.raises(RegistrationError, match=r"pydantic-ai 3\.0\.0 is not supported: .* >=2\.66,<2\.69"):
        HooklineCapability(no_sudo)


async def test_one_capability_serves_several_agents_and_runs_at_the_same_time():
    capability = HooklineCapability(no_sudo)
    agents = [Agent(scripted(ScriptedModel(SUDO)), tools=[shell], capabilities=[capability]) for _ in range(5)]
    results = await asyncio.gather(*[each.run("Go.") for each in agents])
    assert [result.output for result in results] == ["I may not."] * 5
    assert ran == []


async def test_a_capability_of_one_run_guards_that_run():
    mine = Agent(scripted(ScriptedModel(SUDO)), tools=[shell])
    assert (await mine.run("Go.", capabilities=[HooklineCapability(no_sudo)])).output == "I may not."
    assert ran == []


# Tools.


async def test_guards_judge_the_arguments_as_pydantic_ai_validates_them():
    judged, got = [], []

    def remind(day: date, times: int = 2) -> str:
        """Remind me."""
        got.append((day, times))
        return "ok"

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        judged.append(dict(request.arguments))

    @hook(BEFORE_TOOL)
    def tomorrow(ctx, request):
        return HookResult.replace({"arguments": {"day": "2026-11-17"}})

    await agent([call("remind", day="someday"), reply("Done.")], judge, tomorrow, tools=[remind]).run("Go.")
    assert judged == [{"day": "2026-11-17", "times": 2}]
    assert got == [(date(2026, 11, 17), 2)]


async def test_invalid_arguments_are_returned_to_the_model_as_without_hooks_and_guards_are_not_asked():
    judged = []

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        judged.append(request)

    script = [call("shell", command=3), call("shell", command="ls"), reply("Done.")]
    result = await agent(script, judge).run("Go.")
    plain = await Agent(scripted(ScriptedModel(script)), tools=[shell]).run("Go.")
    first, same = parts(result, "tool-return")[0], parts(plain, "tool-return")[0]
    assert (first.outcome, first.content) == (same.outcome, same.content) == ("retried", same.content)
    assert len(judged) == 1
    with pytest.raises(UnexpectedModelBehavior, match="exceeded max retries"):
        await agent([call("shell", command=3)] * 2, judge).run("Go.")


async def test_a_rewriter_repairs_arguments_that_are_no_json():
    @hook(BEFORE_TOOL)
    def repair(ctx, request):
        return HookResult.replace({"arguments": {"command": "ls"}, "raw": None}) if request.raw else None

    def answer(messages, info):
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("Done.")])
        return ModelResponse(parts=[ToolCallPart("shell", "{command: ls", "c1")])

    mine = Agent(FunctionModel(answer), tools=[shell], capabilities=[HooklineCapability(repair)])
    assert (await mine.run("Go.")).output == "Done."
    assert ran == ["ls"]


class InTheHook(AbstractCapability[Any]):
    async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        return {"command": "sudo rm"}


class SneakyToolset(WrapperToolset[Any]):
    async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
        return await super().call_tool(name, {"command": "sudo rm"}, ctx, tool)


class InTheToolset(AbstractCapability[Any]):
    def get_wrapper_toolset(self, toolset: Any) -> Any:
        return SneakyToolset(toolset)


@pytest.mark.parametrize("other", [InTheHook(), InTheToolset()])
@pytest.mark.parametrize("last", [False, True])
async def test_the_hooks_judge_what_other_capabilities_changed(other, last):
    capabilities = [HooklineCapability(no_sudo), other]
    model = scripted(ScriptedModel([call("shell", command="ls"), reply("I may not.")]))
    mine = Agent(model, tools=[shell], capabilities=capabilities[::-1] if last else capabilities)
    result = await mine.run("Go.")
    assert ran == []
    assert parts(result, "tool-return")[0].content == "No sudo here."


async def test_a_blocked_call_is_a_denied_one_in_the_history():
    result = await agent(SUDO, no_sudo).run("Go.")
    (returned,) = parts(result, "tool-return")
    assert (returned.outcome, returned.content) == ("denied", "No sudo here.")


@pytest.mark.parametrize("failure", [ModelRetry("the disk is full"), OSError("the disk is full")])
async def test_a_tool_that_fails_does_what_it_does_without_hooks_and_hooks_see_an_error(failure):
    seen = []

    @observer(AFTER_TOOL)
    def note(ctx, result):
        seen.append(result.outcome)

    def save() -> str:
        """Save."""
        raise failure

    mine = agent([call("save"), reply("Sorry.")], note, tools=[save])
    if isinstance(failure, ModelRetry):
        result = await mine.run("Go.")
        assert parts(result, "tool-return")[0].outcome == "retried"
    else:
        with pytest.raises(OSError, match="the disk is full"):
            await mine.run("Go.")
    assert seen == ["error"]


async def test_a_hook_replaces_the_failure_of_a_tool():
    @hook(AFTER_TOOL)
    def soften(ctx, result):
        return HookResult.replace({"error": None, "result": "Nothing was saved."})

    def save() -> str:
        """Save."""
        raise OSError("the disk is full")

    result = await agent([call("save"), reply("Sorry.")], soften, tools=[save]).run("Go.")
    assert parts(result, "tool-return")[0].content == "Nothing was saved."


async def test_what_a_tool_returned_stays_the_same_object_unless_a_hook_changed_it():
    picture = ImageUrl("https://example.com/dot.png")

    def look() -> ToolReturn[str]:
        """Look."""
        return ToolReturn("a dot", content=["see", picture], metadata={"size": 1})

    result = await agent([call("look"), reply("A dot.")], no_sudo, tools=[look]).run("Go.")
    assert parts(result, "tool-return")[0].metadata == {"size": 1}
    assert ["see", picture] in [part.content for part in parts(result, "user-prompt")]

    @hook(AFTER_TOOL)
    def redact(ctx, returned):
        assert returned.result["content"][0] == "see"
        return HookResult.replace({"result": "[redacted]"})

    result = await agent([call("look"), reply("A dot.")], redact, tools=[look]).run("Go.")
    assert parts(result, "tool-return")[0].content == "[redacted]"
    assert len(parts(result, "user-prompt")) == 1


async def test_hooks_see_files_in_prompts_and_results_and_may_remove_them():
    picture = BinaryContent(b"\x89PNG dot", media_type="image/png")
    seen, given = [], []

    def look() -> BinaryContent:
        """Look."""
        return picture

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

    def answer(messages, info):
        given.append([part.content for message in messages for part in message.parts if part.part_kind != "tool-call"])
        return ModelResponse(parts=[TextPart("A dot.") if len(messages) > 1 else ToolCallPart("look", {}, "c1")])

    mine = Agent(FunctionModel(answer), tools=[look], capabilities=[HooklineCapability(no_pictures, note)])
    result = await mine.run(["What is this?", picture])
    size = len(picture.data)
    assert seen[0] == [("user", "image/png", size)]
    assert seen[1] == (f"Attached: an attachment (image/png, {size} bytes)", [picture.data])
    assert seen[2] == [("user", "image/png", size), ("tool", "image/png", size)]
    assert given[0] == ["What is this?"]
    assert picture not in given[1]
    assert parts(result, "tool-return")[0].content == picture  # the framework keeps what hooks removed from requests


async def test_an_agent_in_a_tool_that_has_a_capability_is_a_nested_run():
    inner = agent(SUDO)  # without hooks of its own

    async def ask_inner(ctx: RunContext[None], task: str) -> str:
        """Ask another agent."""
        return str((await inner.run(task)).output)

    outer = agent([call("ask_inner", task="Go."), reply("Done.")], no_sudo, tools=[ask_inner])
    result = await outer.run("Go.")
    assert ran == []
    assert parts(result, "tool-return")[0].content == "I may not."


async def test_a_tool_that_calls_another_tool_waits_for_its_judged_result():
    seen = []

    async def script(ctx: RunContext[None]) -> str:
        """Run a script that calls tools."""
        calls = [ToolCallPart("shell", {"command": command}, command) for command in ("sudo ls", "ls")]
        first, second = await asyncio.gather(*[ctx.tool_manager.handle_call(each) for each in calls])
        return f"{first.message} {second}"

    @observer(BEFORE_TOOL)
    def note(ctx, request):
        seen.append((request.name, len(ctx.state.messages)))

    mine = agent([call("script"), reply("Done.")], no_sudo, note, tools=[shell, script])
    result = await mine.run("Go.")
    assert parts(result, "tool-return")[0].content == "No sudo here. ran ls"
    assert seen == [("script", 2), ("shell", 2), ("shell", 2)]
    assert ran == ["ls"]


async def test_a_native_tool_is_refused_unless_it_is_named():
    options = {"tools": (), "capabilities": [NativeTool(WebSearchTool())]}
    with pytest.raises(RegistrationError, match=r"native tool 'web_search' .* unguarded=\['web_search'\]"):
        await agent([reply("Hi.")], no_sudo, **options).run("Go.")


async def test_a_native_tool_is_refused_by_a_hook_that_judges_results():
    @guard(AFTER_TOOL)
    def judge(ctx, result):
        return None

    with pytest.raises(RegistrationError, match=r"native tool 'web_search' .* hooks at after_tool cannot judge"):
        await agent([reply("Hi.")], judge, tools=(), capabilities=[NativeTool(WebSearchTool())]).run("Go.")


# Output functions.


def send(command: str, day: date = date(2026, 1, 1)) -> str:
    """Send a command."""
    ran.append(f"{command} {day.day}")
    return f"sent {command}"


def note(command: str) -> str:
    """Note a command."""
    ran.append(f"note {command}")
    return f"noted {command}"


KINDS = {
    "tool": (send, lambda text: call("final_result", command=text)),
    "named tool": (ToolOutput(note, name="keep"), lambda text: call("keep", command=text)),
    "one of several": ([send, note], lambda text: call("final_result_note", command=text)),
    "text": (TextOutput(note), reply),
    "native": (NativeOutput(note), lambda text: reply(json.dumps({"command": text}))),
    "prompted": (PromptedOutput(note), lambda text: reply(json.dumps({"command": text}))),
}


@pytest.mark.parametrize("mode", ["run", "run_sync", "iter", "run_stream_events"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_output_function_is_judged_like_a_tool(kind, mode):
    output_type, turn = KINDS[kind]
    names = []

    @guard(BEFORE_TOOL)
    def look(ctx, request):
        names.append(request.name)

    mine = agent([turn("sudo ls"), turn("ls")], no_sudo, look, tools=(), output_type=output_type)
    match mode:
        case "run":
            result = await mine.run("Go.")
        case "run_sync":
            result = await in_thread(mine.run_sync, "Go.")
        case "iter":
            async with mine.iter("Go.") as run:
                async for _ in run:
                    pass
            result = run.result
        case "run_stream_events":
            async with mine.run_stream_events("Go.") as events:
                result = [event async for event in events][-1].result
    assert result.output in ("sent ls", "noted ls")
    assert ran in (["ls 1"], ["note ls"])
    assert set(names) <= {"send", "note"}
    assert "No sudo here." in str(result.all_messages())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_does_not_run_an_output_function_that_a_guard_blocks(kind):
    output_type, turn = KINDS[kind]
    mine = agent([turn("sudo ls"), turn("sudo ls")], no_sudo, tools=(), output_type=output_type)
    with pytest.raises(UnexpectedModelBehavior):
        async with mine.run_stream("Go.") as stream:
            [part async for part in stream.stream_output(debounce_by=None)]
    assert ran == []


async def test_a_stream_runs_an_output_function_once_with_the_whole_output():
    mine = agent([reply("one two three")], no_sudo, tools=(), output_type=TextOutput(note))
    async with mine.run_stream("Go.") as stream:
        outputs = [part async for part in stream.stream_output(debounce_by=None)]
    assert outputs == ["noted one two three"]
    assert ran == ["note one two three"]


async def test_hooks_change_the_arguments_and_the_result_of_an_output_function():
    @hook(BEFORE_TOOL)
    def softer(ctx, request):
        assert request.arguments == {"command": "ls", "day": "2026-01-02"}
        return HookResult.replace({"arguments": {"command": "pwd", "day": "2026-01-03"}})

    @hook(AFTER_TOOL)
    def sign(ctx, result):
        return HookResult.replace({"result": f"{result.result}!"})

    turn = call("final_result", command="ls", day="2026-01-02")
    result = await agent([turn], softer, sign, tools=(), output_type=send).run("Go.")
    assert (result.output, ran) == ("sent pwd!", ["pwd 3"])


async def test_a_hook_ends_the_run_at_an_output_function():
    @guard(BEFORE_TOOL)
    def end(ctx, request):
        return HookResult.end("Ended.")

    result = await agent([call("final_result", command="ls")], end, tools=(), output_type=send).run("Go.")
    assert (result.output, ran) == ("Ended.", [])


async def test_the_exception_of_an_output_function_is_raised_as_without_hooks():
    def broken(command: str) -> str:
        raise ConnectionError("the line is cut")

    with pytest.raises(ConnectionError, match="the line is cut"):
        await agent([call("final_result", command="ls")], no_sudo, tools=(), output_type=broken).run("Go.")


async def test_a_capability_that_changes_the_judged_arguments_is_refused():
    class Changes(AbstractCapability):
        async def before_output_process(self, ctx, *, output_context, output):
            return "sudo ls"

    options = {"tools": (), "output_type": note, "capabilities": [Changes()]}
    with pytest.raises(RegistrationError, match="another capability changes the arguments of an output function"):
        await agent([call("final_result", command="ls")], no_sudo, **options).run("Go.")
    assert ran == []


@pytest.mark.parametrize(
    "others", [[call("shell", command="ls")], [call("final_result", name="Rome")]], ids=["tool", "output"]
)
async def test_hooks_judge_an_output_beside_other_calls(others):
    class Place(BaseModel):
        name: str

    @guard(AFTER_LLM)
    def not_paris(ctx, answer):
        return HookResult.retry("Elsewhere.") if "Paris" in answer.content else None

    turns = [[*others, call("final_result", name="Paris")], call("final_result", name="Rome")]
    result = await agent(turns, not_paris, output_type=Place).run("Go.")
    assert (result.output, ran) == (Place(name="Rome"), [])
    assert "Paris" not in str(result.all_messages())


async def test_a_changed_reply_has_no_output_beside_other_calls():
    class Place(BaseModel):
        name: str

    @hook(AFTER_LLM)
    def hide(ctx, answer):
        return (
            HookResult.replace({"content": answer.content.replace("Paris", "?")}) if "Paris" in answer.content else None
        )

    turns = [[call("shell", command="ls"), call("final_result", name="Paris")], call("final_result", name="Rome")]
    result = await agent(turns, hide, output_type=Place).run("Go.")
    assert (result.output, ran) == (Place(name="Rome"), ["ls"])
    assert "Paris" not in str(result.all_messages())


async def test_an_output_without_a_function_is_no_call_of_a_tool():
    class Place(BaseModel):
        name: str

    seen = []

    @observer(BEFORE_TOOL)
    def look(ctx, request):
        seen.append(request.name)

    result = await agent([call("final_result", name="Paris")], look, tools=(), output_type=Place).run("Go.")
    assert (result.output, seen) == (Place(name="Paris"), [])


# Agents without the hooks.


@pytest.mark.parametrize("case", ["without", "with"])
async def test_an_agent_without_hooks_in_a_tool_is_reported_once(case, caplog):
    capability = HooklineCapability(no_sudo)
    helper = Agent(
        scripted(ScriptedModel([reply("42")] * 2)), name="helper", capabilities=[capability] if case == "with" else []
    )

    async def ask() -> str:
        """Ask."""
        return (await helper.run("Go.")).output

    for _ in range(2):
        mine = Agent(scripted(ScriptedModel([call("ask"), reply("Done.")])), tools=[ask], capabilities=[capability])
        await mine.run("Go.")
    found = [text for each in caplog.records if "do not judge" in (text := each.getMessage())]
    assert len(found) == (1 if case == "without" else 0)
    if found:
        assert "the tool 'ask' uses the agent 'helper', whose calls Hookline's hooks do not judge" in found[0]
        assert "Agent(capabilities=[...]), or allow it with unguarded=['ask']" in found[0]


async def test_a_call_that_the_program_approves_is_judged_when_it_runs():
    mine: Any = Agent(
        scripted(ScriptedModel([[call("delete", path="sudoers"), call("delete", path="a.txt")], reply("Done.")])),
        output_type=[str, DeferredToolRequests],
        capabilities=[HooklineCapability(no_sudo)],
    )

    @mine.tool_plain(requires_approval=True)
    def delete(path: str) -> str:
        """Delete a file."""
        ran.append(path)
        return "deleted"

    first = await mine.run("Go.")
    approved = DeferredToolResults(approvals={each.tool_call_id: True for each in first.output.approvals})
    second = await mine.run(message_history=first.all_messages(), deferred_tool_results=approved)
    assert (second.output, ran) == ("Done.", ["a.txt"])
    assert "No sudo here." in [part.content for part in parts(second, "tool-return")]


# The end of a run.


class Report(BaseModel):
    title: str


async def test_a_typed_output_is_a_reply_for_hooks_and_no_tool_call():
    seen = []

    @hook(AFTER_LLM)
    def retitle(ctx, answer):
        seen.append((answer.content, answer.tool_calls))
        return HookResult.replace({"content": '{"title": "new"}'})

    @observer(ON_RUN_END)
    def note(ctx, result):
        seen.append(result.status)

    result = await agent([call("final_result", title="old")], retitle, note, output_type=Report).run("Go.")
    assert result.output == Report(title="new")
    assert seen == [('{"title":"old"}', ()), "completed"]


@pytest.mark.parametrize("point", [BEFORE_TOOL, BEFORE_LLM])
async def test_the_reply_of_a_hook_that_ends_the_run_is_the_output_whatever_its_type(point):
    @guard(point)
    def stop(ctx, payload):
        return HookResult.end("That is enough.")

    result = await agent([call("shell", command="ls")], stop, output_type=Report).run("Go.")
    assert (result.output, ran) == ("That is enough.", [])
    assert parts(result, "text")[-1].content == "That is enough."


async def test_every_call_has_a_result_in_the_history_of_a_run_that_a_hook_ended():
    @guard(BEFORE_TOOL)
    def stop(ctx, request):
        return HookResult.end("That is enough.")

    result = await agent([[call("shell", command="a"), call("shell", command="b")]], stop).run("Go.")
    calls = {part.tool_call_id for part in parts(result, "tool-call")}
    assert {part.tool_call_id for part in parts(result, "tool-return")} == calls


async def test_a_run_that_a_hook_keeps_going_has_the_note_in_its_history():
    @hook(ON_STOP)
    def more(ctx, stopping):
        return HookResult.keep_going("And the tests?") if len(ctx.state.steps) == 1 else None

    result = await agent([reply("Done."), reply("They pass.")], more).run("Go.")
    assert [part.content for part in parts(result, "user-prompt")] == ["Go.", "And the tests?"]
    assert result.output == "They pass."


async def test_a_failure_of_a_hook_is_raised_by_name():
    @guard(BEFORE_TOOL)
    def broken(ctx, request):
        raise ValueError("the guard is broken")

    with pytest.raises(RunFailedError, match="hook 'broken' failed at before_tool"):
        await agent(SUDO, broken).run("Go.")


async def test_a_hook_that_fails_closed_at_the_end_fails_the_run():
    @hook(ON_RUN_END)
    def broken(ctx, result):
        raise ValueError("the hook is broken")

    with pytest.raises(RunFailedError, match="the hook is broken"):
        await agent([reply("Hi.")], broken).run("Go.")


async def test_cancelling_the_run_is_seen_by_its_hooks():
    started, ended = asyncio.Event(), []

    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return ""

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append(result.status)

    task = asyncio.create_task(agent([call("wait")], note, tools=[wait]).run("Go."))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


# Streaming, and other ways to run.


async def test_run_stream_shows_the_text_that_hooks_released():
    @guard(AFTER_LLM)
    def polite(ctx, answer):
        return HookResult.retry("Be polite.") if "Fool" in answer.content else None

    ended = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append((result.status, result.reply))

    mine = agent([call("shell", command="sudo ls"), reply("Fool!"), reply("My friend.")], no_sudo, polite, note)
    async with mine.run_stream("Go.") as stream:
        shown = [text async for text in stream.stream_text()]
    assert shown[-1] == "My friend."
    assert not any("Fool" in text for text in shown)
    assert ended == [("completed", "My friend.")]
    assert ran == []


async def test_a_run_that_is_iterated_and_left_early_ends_for_its_hooks_too():
    ended = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append(result.status)

    async with agent([call("shell", command="ls"), reply("Done.")], note).iter("Go.") as run:
        async for node in run:
            if type(node).__name__ == "CallToolsNode":
                break
    assert ended == ["cancelled"]


async def test_a_stream_that_is_left_early_ends_for_its_hooks_too():
    ended = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append(result.status)

    async with agent([reply("one two three four five")], note).run_stream_events("Go.") as events:
        async for _ in events:
            break
    assert ended == ["cancelled"]


async def test_the_usage_of_rejected_replies_counts_in_the_result():
    @guard(AFTER_LLM)
    def again(ctx, answer):
        return HookResult.retry("Again.") if answer.attempt == 1 else None

    once = await agent([reply("Hi.")]).run("Go.")
    twice = await agent([reply("Hi."), reply("Hi.")], again).run("Go.")
    assert twice.usage.output_tokens > once.usage.output_tokens > 0


async def test_a_hook_changes_settings_and_tool_descriptions():
    got = []

    def answer(messages, info):
        got.append((info.model_settings, [tool.description for tool in info.function_tools]))
        return ModelResponse(parts=[TextPart("Hi.")])

    @hook(BEFORE_LLM)
    def change(ctx, request):
        (tool,) = request.tools
        return request.replace(params={**request.params, "temperature": 0.5}, tools=(tool.replace(description="!"),))

    capability = HooklineCapability(change)
    mine = Agent(FunctionModel(answer), tools=[shell], capabilities=[capability], model_settings={"max_tokens": 9})
    await mine.run("Go.")
    assert got == [({"max_tokens": 9, "temperature": 0.5}, ["!"])]


async def test_hooks_that_are_added_to_the_registry_later_take_part():
    registry = HookRegistry()
    mine = agent(SUDO, registry)
    registry.register(no_sudo)
    await mine.run("Go.")
    assert ran == []


# Messages there and back.

HISTORY = [
    ModelRequest(parts=[SystemPromptPart("s"), UserPromptPart(["hi", ImageUrl("https://example.com/x.png")])]),
    ModelResponse(parts=[ThinkingPart("t"), TextPart("ok"), ToolCallPart("add", '{"a": 1}', "c1")]),
    ModelRequest(parts=[ToolReturnPart("add", {"sum": 3}, "c1"), UserPromptPart("and")]),
]


def test_messages_that_no_hook_changed_return_exactly_as_they_were():
    conversation = Conversation("Help.", HISTORY, reader())
    roles = [message.role for message in conversation.messages]
    assert roles == ["system", "system", "user", "assistant", "tool", "user"]
    instructions, history = conversation.restore([message.replace() for message in conversation.messages])
    assert instructions is None
    assert all(one is two for one, two in zip(history, HISTORY, strict=True))


def test_a_changed_message_keeps_its_files_and_the_other_parts_stay():
    conversation = Conversation("Help.", HISTORY, reader())
    messages = list(conversation.messages)
    messages[0] = messages[0].replace(content="Help me.")
    messages[2] = messages[2].replace(content="hello")
    note = messages[2].replace(content="more", attachments=())
    instructions, history = conversation.restore([*messages, note])
    assert instructions == "Help me."
    assert history[0].parts[0] is HISTORY[0].parts[0]
    assert history[0].parts[1].content == ["hello", ImageUrl("https://example.com/x.png")]
    assert history[1] is HISTORY[1]
    assert history[2].parts[:2] == HISTORY[2].parts
    assert history[2].parts[2].content == "more"
