"""What is special about Microsoft Agent Framework: its three kinds of middleware, streams, sessions and approvals."""

import asyncio

import pytest

pytest.importorskip("agent_framework")

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddleware,
    ChatResponse,
    Content,
    FunctionMiddleware,
    tool,
)
from agent_framework import Message as ChatMessage

from hookline import HookResult, guard, hook, observer
from hookline.adapters.agent_framework import HooklineMiddleware
from hookline.errors import RegistrationError, RunFailedError
from hookline.models import ScriptedModel, call, reply
from hookline.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_RUN_END, ON_RUN_START, ON_STOP

from .drafts import WRITE_DRAFT, only_drafts, writer
from .drivers.agent_framework import Scripted


@pytest.fixture
def write(tmp_path):
    return tool(writer(tmp_path), approval_mode="never_require")


def agent_of(turns, tools, *middleware, **options):
    return Agent(client=Scripted(ScriptedModel(turns)), tools=tools, middleware=list(middleware), **options)


def results(response):
    contents = [content for message in response.messages for content in message.contents]
    return [content.result for content in contents if content.type == "function_result"]


class Elsewhere(FunctionMiddleware):
    """A middleware that has files written elsewhere."""

    async def process(self, context, call_next):
        context.arguments = {"path": "passwords.txt"}
        await call_next()


async def test_middleware_as_a_guard_does_not_see_what_later_middleware_makes_of_the_arguments(write, tmp_path):
    """Agent Framework without Hookline, for comparison."""
    judged = []

    class OnlyDrafts(FunctionMiddleware):
        async def process(self, context, call_next):
            path = dict(context.arguments)["path"]
            judged.append(path)
            if path.startswith("draft"):
                await call_next()

    await agent_of(WRITE_DRAFT, [write], OnlyDrafts(), Elsewhere()).run("Write.")
    assert judged == ["draft.txt"]
    assert [file.name for file in tmp_path.iterdir()] == ["passwords.txt"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_guard_judges_what_later_middleware_made_of_the_arguments(write, tmp_path, stream):
    agent = agent_of(WRITE_DRAFT, [write], HooklineMiddleware(only_drafts), Elsewhere())
    response = await (agent.run("Write.", stream=True).get_final_response() if stream else agent.run("Write."))
    assert list(tmp_path.iterdir()) == []
    assert results(response) == ["Only drafts may be written."]


async def test_a_guard_judges_what_middleware_of_the_client_or_of_one_run_made_of_the_arguments(write, tmp_path):
    agent = agent_of(WRITE_DRAFT * 2, [write], HooklineMiddleware(only_drafts))
    await agent.run("Write.", middleware=[Elsewhere()])
    agent.client.function_middleware.append(Elsewhere())
    await agent.run("Write.")
    assert list(tmp_path.iterdir()) == []


async def test_hooks_see_the_request_as_later_middleware_changed_it():
    seen = []

    @observer(BEFORE_LLM)
    def note(ctx, request):
        seen.append(request.messages[-1].content)

    class Louder(ChatMiddleware):
        async def process(self, context, call_next):
            context.messages = [*context.messages, ChatMessage(role="user", contents=["!!!"])]
            await call_next()

    await agent_of([reply("Hi.")], [], HooklineMiddleware(note), Louder()).run("Hello")
    assert seen == ["!!!"]


async def test_calls_of_one_reply_run_at_the_same_time():
    both = asyncio.Barrier(2)

    @tool(approval_mode="never_require")
    async def meet(name: str) -> str:
        """Wait for the other one."""
        await both.wait()
        return f"{name} met"

    turns = [[call("meet", name="ada"), call("meet", name="bob")], reply("Done.")]
    response = await asyncio.wait_for(agent_of(turns, [meet], HooklineMiddleware(only_drafts)).run("Meet."), 20)
    assert results(response) == ["ada met", "bob met"]


async def test_a_call_that_a_person_approves_later_is_judged_then(tmp_path):
    allowed = []

    @guard(BEFORE_TOOL)
    def when_allowed(ctx, request):
        return None if allowed else HookResult.block("Not allowed.")

    @tool(approval_mode="always_require")
    def write(path: str) -> str:
        """Write a file."""
        (tmp_path / path).write_text("written")
        return "ok"

    for expected in ([], ["draft.txt"]):
        agent = agent_of(WRITE_DRAFT, [write], HooklineMiddleware(when_allowed))
        session = agent.create_session()
        paused = await agent.run("Write.", session=session)
        assert list(tmp_path.iterdir()) == []
        (asked,) = paused.user_input_requests
        answer = ChatMessage(role="user", contents=[asked.to_function_approval_response(approved=True)])
        response = await agent.run(answer, session=session)
        assert response.messages[-1].text == "Done."
        assert [file.name for file in tmp_path.iterdir()] == expected  # first the guard does not agree
        allowed.append(True)


async def test_an_error_of_a_tool_is_told_to_the_model_as_without_hooks():
    @tool(approval_mode="never_require")
    def fail() -> str:
        """Fail."""
        raise ValueError("a secret")

    failures = []

    @observer(AFTER_TOOL)
    def note(ctx, result):
        failures.append(result.error)

    response = await agent_of([call("fail"), reply("Done.")], [fail], HooklineMiddleware(note)).run("Go.")
    assert results(response) == ["Error: Function failed."]
    assert failures == ["ValueError: a secret"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_the_model_reaches_the_program_as_it_is(stream):
    ends = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ends.append(result.status)

    agent = agent_of([ConnectionResetError("the line is cut")], [], HooklineMiddleware(note))
    with pytest.raises(ConnectionResetError, match="the line is cut"):
        await (agent.run("Hello.", stream=True).get_final_response() if stream else agent.run("Hello."))
    assert ends == ["failed"]


async def test_a_stream_that_nobody_reads_to_its_end_cancels_the_run():
    ends = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ends.append(result.status)

    agent = agent_of([reply("One two three four.")], [], HooklineMiddleware(note))
    async with agent.run("Count.", stream=True) as stream:
        async for _ in stream:
            break
    async with asyncio.timeout(20):
        while not ends:
            await asyncio.sleep(0)
    assert ends == ["cancelled"]


async def test_a_guard_at_the_end_of_a_run_fails_closed():
    @guard(ON_RUN_END)
    def broken(ctx, result):
        raise ValueError("the guard is broken")

    agent = agent_of([reply("Hi.")] * 2, [], HooklineMiddleware(broken))
    with pytest.raises(RunFailedError, match="the guard is broken"):
        await agent.run("Hello.")
    with pytest.raises(RunFailedError, match="the guard is broken"):
        await agent.run("Hello.", stream=True).get_final_response()


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
        def _inner_get_response(self, *, messages, **options):
            got.append({content.type: content.text or content.uri for content in messages[-1].contents})
            return super()._inner_get_response(messages=messages, **options)

    image = Content.from_data(b"pixels", media_type="image/png")
    for changing in (redact, remove):
        agent = Agent(client=Looking(ScriptedModel([reply("Hi.")])), middleware=[HooklineMiddleware(changing)])
        await agent.run(ChatMessage(role="user", contents=["This is Ada.", image]))
    assert got == [{"text": "This is [name].", "data": image.uri}, {"text": "This is Ada."}]
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
        def _inner_get_response(self, *, options, **others):
            got.append(options)
            return super()._inner_get_response(options=options, **others)

    agent = Agent(
        client=Looking(ScriptedModel([reply("Hi.")])),
        tools=[write],
        middleware=[HooklineMiddleware(brief)],
        default_options={"temperature": 0.5},
    )
    await agent.run("Hello.")
    (options,) = got
    assert ("temperature" in options, options["max_tokens"], options["tool_choice"]) == (False, 5, "none")
    assert [each.description for each in options["tools"]] == ["Write a draft."]
    assert write.description == "Write a file."


async def test_a_call_cannot_be_redirected_to_another_tool(write, tmp_path):
    changes = {"name": "read"}  # not in the hook, whose code would show it when it is attached

    @hook(BEFORE_TOOL)
    def rename(ctx, request):
        return request.replace(changes)

    response = await agent_of(WRITE_DRAFT, [write], HooklineMiddleware(rename)).run("Write.")
    assert list(tmp_path.iterdir()) == []
    assert "Error" in results(response)[0]


async def test_the_next_message_of_a_session_is_a_run_of_the_same_conversation():
    seen = []

    @observer(AFTER_LLM)
    def note(ctx, answer):
        seen.append([message.content for message in ctx.state.messages])

    starts = []

    @observer(ON_RUN_START)
    def begin(ctx, start):
        starts.append((start.task, start.ids.session_id))

    agent = agent_of([reply("Hi Ada."), reply("You are Ada.")], [], HooklineMiddleware(note, begin))
    session = agent.create_session()
    await agent.run("I am Ada.", session=session)
    await agent.run("Who am I?", session=session)
    assert seen == [["I am Ada."], ["I am Ada.", "Hi Ada.", "Who am I?"]]
    assert starts == [("I am Ada.", session.session_id), ("Who am I?", session.session_id)]


async def test_what_on_stop_adds_stays_in_the_conversation_of_the_run(write):
    asked = []

    @hook(ON_STOP)
    def more(ctx, stopping):
        asked.append(True)
        return HookResult.keep_going("Write it down.") if len(asked) == 1 else None

    turns = [reply("Hm."), call("write", path="draft.txt"), reply("Written.")]
    agent = agent_of(turns, [write], HooklineMiddleware(more))
    response = await agent.run("Think.")
    assert response.text == "Written."
    last = agent.client.script.requests[-1]
    assert [message.content for message in last.messages] == ["Think.", "Hm.", "Write it down.", "", "ok"]


async def test_attaching_twice_is_an_error_before_anything_runs():
    agent = agent_of([reply("Hi.")], [], HooklineMiddleware(only_drafts), HooklineMiddleware(only_drafts))
    with pytest.raises(RegistrationError, match="already attached to this agent"):
        await agent.run("Hello.")
    assert agent.client.script.requests == []


async def test_a_client_without_middleware_is_refused():
    class Bare(BaseChatClient):
        def _inner_get_response(self, **_):
            async def whole():
                return ChatResponse(messages=[ChatMessage(role="assistant", contents=["Hi."])])

            return whole()

    agent = Agent(client=Bare(), middleware=[HooklineMiddleware(only_drafts)])
    with pytest.raises(RegistrationError, match="need a chat client with ChatMiddlewareLayer"):
        await agent.run("Hello.")


# What hooks cannot see.


async def say_go(agent, *, stream, **options):
    if stream:
        return await agent.run("Go.", stream=True, **options).get_final_response()
    return await agent.run("Go.", **options)


def judging(point):
    @hook(point)
    def judge(ctx, payload):
        return None

    return judge


PROVIDER_TOOLS = [
    (BEFORE_TOOL, {"type": "web_search"}, "web_search"),
    (AFTER_TOOL, {"type": "code_interpreter", "container": {}}, "code_interpreter"),
    (BEFORE_TOOL, {"type": "mcp", "name": "files"}, "files"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", ["agent", "run", "options"])
@pytest.mark.parametrize(("point", "given", "name"), PROVIDER_TOOLS)
async def test_a_tool_that_the_provider_runs_is_refused_unless_it_is_named(point, given, name, place, stream):
    options = {"run": {"tools": [given]}, "options": {"options": {"tools": [given]}}}.get(place, {})
    tools = [given] if place == "agent" else []
    agent = agent_of([reply("Done.")], tools, HooklineMiddleware(judging(point)))
    message = rf"the tool {name!r} is run by the provider: hooks at {point} .* unguarded=\[{name!r}\]"
    with pytest.raises(RegistrationError, match=message):
        await say_go(agent, stream=stream, **options)
    assert agent.client.script.requests == []
    agent = agent_of([reply("Done.")], tools, HooklineMiddleware(judging(point), unguarded=[name]))
    assert (await say_go(agent, stream=stream, **options)).text == "Done."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("point", [BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL])
async def test_an_agent_as_a_tool_without_the_middleware_is_refused_unless_it_is_named(point, stream, write, tmp_path):
    helper = agent_of([reply("Done.")], [write], name="helper")
    turns = [call("helper", task="Write."), reply("Done.")]
    agent = agent_of(turns, [helper.as_tool()], HooklineMiddleware(judging(point)))
    message = rf"the tool 'helper' runs the agent 'helper': hooks at {point} .*middleware.*unguarded=\['helper'\]"
    with pytest.raises(RegistrationError, match=message):
        await say_go(agent, stream=stream)
    assert helper.client.script.requests == []
    agent = agent_of(turns, [helper.as_tool()], HooklineMiddleware(judging(point), unguarded=["helper"]))
    assert (await say_go(agent, stream=stream)).text == "Done."


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_as_a_tool_with_the_middleware_is_judged(write, tmp_path, stream):
    middleware = HooklineMiddleware(only_drafts)
    helper = agent_of([call("write", path="passwords.txt"), reply("Done.")], [write], middleware, name="helper")
    agent = agent_of([call("helper", task="Write."), reply("Done.")], [helper.as_tool()], middleware)
    assert (await say_go(agent, stream=stream)).text == "Done."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["without", "with"])
async def test_an_agent_without_hooks_in_the_function_of_a_tool_is_reported_once(case, caplog):
    middleware = HooklineMiddleware(only_drafts)
    helper = agent_of([reply("42")] * 2, [], *([middleware] if case == "with" else []), name="helper")

    @tool(approval_mode="never_require")
    async def ask() -> str:
        """Ask."""
        return (await helper.run("Go.")).text

    for _ in range(2):
        await agent_of([call("ask"), reply("Done.")], [ask], middleware).run("Go.")
    found = [text for each in caplog.records if "do not judge" in (text := each.getMessage())]
    assert len(found) == (1 if case == "without" else 0)
    if found:
        assert "the tool 'ask' uses the agent 'helper', whose calls Hookline's hooks do not judge" in found[0]
