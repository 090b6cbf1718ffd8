"""Mistakes of models, users and hooks have a defined outcome, never a hang or a stray traceback."""

import asyncio

import pytest

from hookline import (
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_START,
    Agent,
    AgentContext,
    Attachment,
    HookError,
    HookRegistry,
    HookResult,
    Message,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.events import RunStarted
from hookline.models import ModelResponse
from hookline.payloads import ToolCall
from hookline.plugins import Plugin
from hookline.stores import RunStore
from hookline.tape import TapeHook, replay_all
from hookline.teams import Team
from hookline.testing import EventLog, scripted_agent
from hookline.tools import Tool
from tests.cases import each_case

seen = []


@tool
def note(text: str = "", data: dict | None = None) -> str:
    """Note something."""
    seen.append((text, data))
    return f"{len(text)}"


def run_with(*calls, hooks=()):
    seen.clear()
    agent = scripted_agent(
        [ModelResponse(tool_calls=calls), reply("done")], tools=[note], hooks=hooks, sinks=[EventLog()]
    )
    result = agent.run("x")
    assert result.status == "completed"
    return [m.content for m in result.messages if m.role == "tool"], result


@pytest.mark.parametrize("sent", ["[1, 2]", "3", '"text"', "true", [1, 2], 3])
def test_arguments_that_are_json_but_no_object(sent):
    (text,), result = run_with(ToolCall("c", "note", sent))
    assert text.startswith("The arguments of note are not a JSON object. You sent: ")
    assert result.steps[0].outcomes == ("error",)
    assert seen == []


@pytest.mark.parametrize("sent", ['{"text": ', "text=hello", "{'text': 'x'}", "\ud800"])
def test_arguments_that_are_no_json(sent):
    (text,), result = run_with(ToolCall("c", "note", sent))
    assert "not a JSON object" in text
    assert result.messages[1].tool_calls[0].arguments == {}
    assert result.messages[1].tool_calls[0].raw == sent
    assert seen == []


@pytest.mark.parametrize("sent", ["", "  ", None, "null", {}])
def test_no_arguments_at_all_are_an_empty_object(sent):
    (text,), _ = run_with(ToolCall("c", "note", sent))
    assert text == "0"


def test_a_hook_can_repair_the_arguments_of_the_model():
    @hook(BEFORE_TOOL)
    def mend(ctx, request):
        if request.raw:
            return request.replace(arguments={"text": request.raw.removeprefix("text=")})

    (text,), _ = run_with(ToolCall("c", "note", "text=hello"), hooks=[mend])
    assert text == "5"
    assert seen == [("hello", None)]


def test_the_error_for_an_unknown_tool_suggests_a_similar_name():
    (text,), _ = run_with(ToolCall("c", "notes", {}))
    assert text == "Unknown tool 'notes'. Did you mean 'note'? Available tools: note."


def test_an_empty_tool_name():
    (text,), _ = run_with(ToolCall("c", "", {}))
    assert text == "The tool name is empty. Available tools: note."


def test_duplicate_and_empty_call_ids_are_replaced():
    texts, result = run_with(*(ToolCall(i, "note", {"text": t}) for i, t in [("a", "x"), ("a", "xx"), ("", "xxx")]))
    assert texts == ["1", "2", "3"]
    ids = [c.id for c in result.messages[1].tool_calls]
    assert ids[0] == "a"
    assert len(set(ids)) == 3
    assert [m.call_id for m in result.messages if m.role == "tool"] == ids


def test_a_ten_megabyte_argument_works():
    (text,), _ = run_with(ToolCall("c", "note", '{"text": "' + "x" * 10_000_000 + '"}'))
    assert text == "10000000"


@pytest.mark.parametrize("depth", [198, 250, 5000, 200_000])
def test_deeply_nested_arguments(depth):
    sent = '{"data": ' + '{"a": ' * depth + "1" + "}" * depth + "}"
    (text,), result = run_with(ToolCall("c", "note", sent))
    assert ("not a JSON object" in text) == (depth > 198)
    assert result.steps[0].outcomes == (("ok",) if depth == 198 else ("error",))


def test_a_reply_with_neither_text_nor_calls_stops_the_run_with_a_message():
    result = scripted_agent([ModelResponse()]).run("x")
    assert (result.status, result.stop.kind, result.reply) == ("stopped", "unknown", "")
    assert "neither text nor tool calls" in result.stop.message


@pytest.mark.parametrize("value", [True, "yes", 0, object(), [1]])
def test_a_hook_that_returns_a_bare_value_fails_and_the_error_says_what_is_allowed(value):
    @hook(BEFORE_LLM)
    def wrong(ctx, request):
        return value

    expected = r"hook 'wrong' at before_llm returned .*expected None or a HookResult or a ModelRequest"
    with pytest.raises(RunFailedError, match=expected):
        scripted_agent([reply("x")], hooks=[wrong]).run("x")


def test_an_unknown_point_is_an_error_at_registration_with_the_nearest_name():
    with pytest.raises(RegistrationError, match=r"unknown point 'befor_tool'\. Did you mean 'before_tool'\?"):
        hook("befor_tool")(lambda ctx, payload: None)
    with pytest.raises(RegistrationError, match="Did you mean"):
        HookRegistry().on("BeforeToolUs", lambda ctx, payload: None)


async def test_errors_name_hook_and_point():
    registry = HookRegistry([hook(BEFORE_LLM, name="mine")(lambda ctx, p: 1 / 0)])
    with pytest.raises(HookError, match="hook 'mine' failed at before_llm: ZeroDivisionError"):
        await registry.fire(BEFORE_LLM, {})


def test_text_that_is_no_valid_unicode_breaks_nothing():
    @tool
    def names() -> list[str]:
        """List names."""
        return ["ok", "bad \udcff"]

    log = EventLog()
    result = scripted_agent(
        [ModelResponse(tool_calls=(ToolCall("c", "names", {}),)), reply("done \udcff")], tools=[names], sinks=[log]
    ).run("x \udcff")
    assert result.status == "completed"
    assert "bad ?" in result.messages[2].content
    assert result.to_json()
    assert all(event.to_json() for event in log)


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration("x"), GeneratorExit()])
def test_odd_exceptions_of_tools_are_error_results(error):
    @tool
    def odd() -> str:
        """Raise."""
        raise error

    agent = scripted_agent([ModelResponse(tool_calls=(ToolCall("c", "odd", {}),)), reply("ok")], tools=[odd])
    result = agent.run("x")
    assert result.status == "completed"
    assert result.steps[0].outcomes == ("error",)


def test_an_exception_that_cannot_be_printed_breaks_nothing():
    class Unprintable(Exception):
        def __str__(self):
            raise ValueError("no")

    @tool
    def odd() -> str:
        """Raise."""
        raise Unprintable

    @observer(BEFORE_LLM)
    def watch(ctx, request):
        raise Unprintable

    agent = scripted_agent(
        [ModelResponse(tool_calls=(ToolCall("c", "odd", {}),)), reply("ok")], tools=[odd], hooks=[watch]
    )
    result = agent.run("x")
    assert result.status == "completed"
    assert result.messages[2].content == "Unprintable: an error that cannot be printed"


@each_case(
    ("options", "message"),
    [
        ({"name": None}, "name must be text, not NoneType"),
        ({"name": ["a"]}, "name must be text, not list"),
        ({"description": 3}, "description must be text, not int"),
        ({"instructions": ["Be brief.", "Be kind."]}, r"instructions must be text, not list: .*'\\n\\n'\.join"),
        ({"instructions": lambda ctx: "x"}, "instructions must be text, not function: .*before_prompt_build"),
        ({"instructions": b"x"}, "instructions must be text, not bytes"),
        ({"max_parallel_tools": "8"}, "max_parallel_tools must be a whole number, at least 1, not '8'"),
        ({"max_parallel_tools": 2.5}, "max_parallel_tools must be a whole number, at least 1, not 2.5"),
        ({"max_parallel_tools": True}, "max_parallel_tools must be a whole number, at least 1, not True"),
        ({"params": ["temperature"]}, r"params must be a dict such as \{'temperature': 0.2\}, not list"),
        ({"params": 3}, "params must be a dict .*, not int"),
        ({"params": {"x": object()}}, "params: object is not JSON"),
        ({"response_format": "json"}, "response_format must be a JSON schema as a dict, or None, not str"),
        ({"response_format": {"x": object()}}, "response_format: object is not JSON"),
        ({"sinks": print}, r"sinks must be a list of callables that take an event, not builtin.*: write sinks=\[...\]"),
        ({"sinks": EventLog()}, "sinks must be a list of callables that take an event, not EventLog"),
        ({"sinks": None}, "sinks must be a list of callables that take an event, not NoneType"),
        ({"sinks": "log"}, "sinks must be a list of callables that take an event, not str"),
        ({"strict": "no"}, "strict must be True or False, not 'no'"),
        ({"allowed_plugins": 3}, "allowed_plugins must be a list of names, not 3"),
        ({"allowed_plugins": [1]}, r"allowed_plugins must be a list of names, not \[1\]"),
        ({"allowed_plugins": {"p": True}}, "allowed_plugins must be a list of names, not {'p': True}"),
        ({"plugins": None}, "plugins must be a list"),
        ({"output_type": 5}, "output_type: 5 cannot be read from JSON"),
        ({"limits": 5}, "limits= takes Limits"),
        ({"max_steps": 5}, "max_steps"),
        ({"record": 5}, "record= takes True"),
        ({"stream": "fast"}, "stream must be one of safe, live"),
        ({"max_attachment": "1 MB"}, "max_attachment must be a number of bytes"),
        ({"suggestions": "What can you do?"}, "suggestions must be a list of texts"),
        ({"suggestions": ["What can you do?", " "]}, "suggestions must be a list of texts"),
    ],
)
def test_an_option_of_the_wrong_type_is_an_error_where_the_agent_is_made(options, message):
    with pytest.raises((RegistrationError, TypeError), match=message):
        Agent(**{"name": "a", "llm": ScriptedModel([reply("x")]), **options})


def test_none_means_that_an_agent_has_no_description_instructions_or_parameters():
    agent = Agent("a", None, None, llm=ScriptedModel([reply("x")]), params=None)
    assert (agent.description, agent.instructions, agent.params) == ("", "", {})
    assert agent.run("go").reply == "x"


def test_a_context_takes_a_list_of_plugins_too():
    with pytest.raises(TypeError, match=r"allowed_plugins must be a list of names: \['safety'\]"):
        AgentContext(allowed_plugins="safety")


@each_case(
    ("options", "message"),
    [
        ({"sinks": print}, r"sinks must be a list of callables that take an event, not builtin"),
        ({"sinks": ["log"]}, "sinks must be a list of callables that take an event: 'log' cannot be called"),
        ({"allowed_plugins": 3}, "allowed_plugins must be a list of names, not 3"),
        ({"allowed_plugins": [None]}, r"allowed_plugins must be a list of names, not \[None\]"),
        ({"every_call": "no"}, "every_call must be True or False, not 'no'"),
        ({"inherit": None}, "inherit must be True or False, not None"),
        ({"durable": "runs.db"}, r"durable= takes a store such as RunStore\('runs.db'\), not 'runs.db'"),
        ({"hooks": [3]}, "3 is not a hook"),
        ({"output_type": 5}, "output_type: 5 cannot be read from JSON"),
        ({"metadata": {"x": object()}}, "not JSON"),
    ],
)
def test_an_option_of_the_wrong_type_is_an_error_before_the_run_begins(options, message):
    store, agent = RunStore(":memory:"), scripted_agent([reply("x")])
    with pytest.raises((RegistrationError, TypeError), match=message):
        agent.run("x", **{"durable": store, "run_id": "r", **options})
    assert agent.run("x", durable=store, run_id="r").status == "completed"  # nothing holds the run


class Handover:
    """A team of two, whose first member hands over to the second."""

    def __init__(self):
        self.team = Team()
        turn = call("handoff", to="second", message="yours")
        self.team.add(Agent("first", llm=ScriptedModel([turn], loop=True), tools=[self.team]))
        self.team.add(Agent("second", llm=ScriptedModel([reply("done")], loop=True), tools=[self.team]))

    def run(self, **options):
        return self.team.run("x", **options)

    def arun(self, **options):
        return asyncio.run(self.team.arun("x", **options))


def names_of_agents(**given):
    """Return the agents whose runs an option of a team's run reaches."""
    seen = []

    @hook(ON_RUN_START)
    def see(ctx, start):
        seen.append(ctx.agent_name)

    def on_event(event):
        if isinstance(event, RunStarted):
            seen.append(event.ids.agent)

    value = {"hooks": see, "sinks": on_event}
    for name in ("run", "arun"):
        getattr(Handover(), name)(**{option: make([value[option]]) for option, make in given.items()})
    return seen


def replayed(folder, make):
    """Return what a replay of two tapes with a hook finds."""
    for _ in range(2):
        scripted_agent([call("note"), reply("x")], tools=[note], hooks=[TapeHook(folder)]).run("x")
    refuse = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.block("no"))
    return [again.same for again in replay_all(folder, make([refuse]))]


def events_of(**options):
    """Return the number of events that a sink of an agent gets in two runs."""
    log = EventLog()
    agent = Agent("a", llm=ScriptedModel([reply("x")], loop=True), sinks=options["make"]([log]))
    agent.run("x")
    agent.run("x")
    return len(log)


def plugins_of(make):
    return AgentContext(allowed_plugins=make(["p"])).allowed_plugins, scripted_agent(
        [reply("x")], allowed_plugins=make(["p"])
    ).allowed_plugins


def hooks_of(make):
    seen = []
    see = hook(BEFORE_LLM, name="see")(lambda ctx, request: seen.append(ctx.allowed_plugins))
    agent = scripted_agent([reply("x"), reply("x"), reply("x")], hooks=make([see]))
    agent.run("x", hooks=make([hook(BEFORE_LLM)(lambda ctx, request: seen.append("run"))]), allowed_plugins=make(["p"]))
    agent.run("x", ctx=AgentContext(hooks=make([hook(BEFORE_LLM)(lambda ctx, request: seen.append("ctx"))])))
    return seen


def tools_of(make):
    agent = scripted_agent(
        [reply("x")], tools=make([note]), plugins=make([Plugin("p", tools=make([Tool(note.fn, name="other")]))])
    )
    return [tool.name for tool in agent.tools]


def attachments_given(make):
    result = scripted_agent([reply("x")]).run("x", attachments=make([Attachment.of(b"x", "text/plain")]))
    return len(result.messages[0].attachments)


@each_case(
    "outcome",
    [
        lambda make, folder: events_of(make=make),
        lambda make, folder: names_of_agents(sinks=make),
        lambda make, folder: names_of_agents(hooks=make),
        lambda make, folder: replayed(folder, make),
        lambda make, folder: plugins_of(make),
        lambda make, folder: hooks_of(make),
        lambda make, folder: tools_of(make),
        lambda make, folder: attachments_given(make),
        lambda make, folder: [m.content for m in Session(messages=make([Message("user", "x")])).messages],
    ],
)
def test_an_option_that_takes_a_list_takes_any_iterable(outcome, tmp_path_factory):
    with_list, with_generator = (
        outcome(make, tmp_path_factory.mktemp("tapes")) for make in (list, lambda items: (item for item in items))
    )
    assert with_list
    assert with_generator == with_list
