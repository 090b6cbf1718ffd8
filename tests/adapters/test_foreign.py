"""The core of all adapters: what is checked when hooks are attached, and the framework's side of a run."""

import asyncio
import gc
import threading
from contextlib import suppress
from functools import partial
from importlib import import_module
from inspect import isclass
from types import SimpleNamespace

import pytest

from hookline import Agent, HookResult, Limits, Message, ModelRequest, guard, hook, hooks, observer, tool
from hookline.adapters._foreign import Adapter, RunOverError, Support, checked_names
from hookline.errors import HooklineError, NotInstalledError, RegistrationError, RunFailedError, RunWaitingError
from hookline.hooks import HookRegistry, PassThrough, SpendingLimit, Strict
from hookline.models import ModelResponse, Price, ScriptedModel, call, reply
from hookline.payloads import StopSignal, ToolCall, ToolSpec, Usage
from hookline.plugins import Plugin
from hookline.points import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    ON_TOKEN,
)
from hookline.stores import RunStore

from ..waiting import wait_until
from .loops import FRAMEWORKS

FRAME = Support("Frame", "msgspec", "0", "1000")
POOR = Support(
    "Frame",
    "msgspec",
    "0",
    "1000",
    {"on_token": "Use after_llm.", "on_stop.keep_going": "Use retry at after_llm.", "after_llm.retry": "Use replace."},
)
ASK = ModelRequest((Message("user", "Go."),), (ToolSpec("shell"),))
CALL = ToolCall("1", "shell", {"command": "ls"})


def attach(*hooks, support=FRAME, **options):
    return Adapter(support, hooks, options)


async def calls_shell(request):
    return ModelResponse(tool_calls=(CALL,))


async def says_done(request):
    return ModelResponse("Done.")


async def ran(name, arguments):
    return f"ran {arguments['command']}"


# The stop switch.


@pytest.mark.parametrize("option", ["halts", "runs"])
async def test_a_framework_whose_runs_are_halted_calls_no_model_and_no_tool(option):
    store = RunStore(":memory:")
    halts = store.halts
    adapter = attach(**({"halts": halts} if option == "halts" else {"runs": store}))
    run = adapter.start("Go.")
    reply = await run.call_model(ASK, calls_shell)
    halts.halt("it charges twice", by="ada")
    called = []

    async def shell(name, arguments):
        called.append(name)
        return "ran"

    with pytest.raises(RunOverError) as over:
        await run.call_tool(reply.reply.tool_calls[0], shell)
    assert over.value.result.stop == StopSignal("halted", "halted by ada: it charges twice")
    run = adapter.start("Go.")
    with pytest.raises(RunOverError) as over:
        await run.call_model(ASK, calls_shell)
    assert (over.value.result.stop.kind, called) == ("halted", [])


# The list of runs.


async def test_the_runs_of_a_framework_are_in_the_list_of_runs_under_its_name(tmp_path):
    @guard(BEFORE_TOOL, tools="shell")
    def no_shell(ctx, request):
        return HookResult.block("No.", reason="no shell here")

    store = RunStore(tmp_path / "runs.db")
    run = attach(no_shell, runs=store).start("Go.")
    answer = await run.call_model(ASK, calls_shell)
    await run.call_tool(answer.reply.tool_calls[0], ran)
    await run.call_model(ASK, says_done)
    result = await run.end()
    await wait_until(lambda: [each for each in store.runs() if each.ended is not None])
    (found,) = store.runs(outermost=True, hook="no_shell", verb="block", tool="shell")
    assert (found.id, found.origin, found.status, found.steps) == (result.ids.run_id, "Frame", "completed", 2)
    store.close()


# What is checked when hooks are attached.


def test_a_hook_at_a_point_without_a_moment_is_refused_with_the_alternative():
    @guard(ON_TOKEN)
    def judge(ctx, token):
        return None

    with pytest.raises(RegistrationError) as error:
        attach(judge, support=POOR)
    assert str(error.value) == "hook 'judge' at on_token: Frame has no moment for it. Use after_llm."


def test_a_verb_that_the_framework_cannot_do_is_refused_with_the_alternative():
    @hook(ON_STOP)
    def more(ctx, stopping):
        return HookResult.keep_going("More.") if stopping.signals else None

    with pytest.raises(RegistrationError) as error:
        attach(more, support=POOR)
    assert str(error.value) == "hook 'more' at on_stop: Frame cannot do 'keep_going' there. Use retry at after_llm."


def helper(reply):
    return HookResult.retry("Again.") if reply.content else None


class InMethods:
    points = (AFTER_LLM,)

    def __call__(self, ctx, reply):
        return self._judge(reply)

    def _judge(self, reply):
        return HookResult.retry("Again.") if reply.content else None


class Declares:
    points = (AFTER_LLM,)
    verbs = ("retry",)

    def __call__(self, ctx, reply):
        return None


class DeclaresByPoint(Declares):
    verbs = {AFTER_LLM: ["retry"]}


@hook(AFTER_LLM)
def in_helper(ctx, reply):
    return helper(reply)


@hook(AFTER_LLM)
async def in_nested_function(ctx, reply):
    def judge():
        return HookResult.retry("Again.")

    return judge()


@pytest.mark.parametrize("given", [InMethods(), Declares(), DeclaresByPoint(), in_helper, in_nested_function])
def test_the_verbs_of_a_hook_are_found(given):
    with pytest.raises(RegistrationError, match="cannot do 'retry' there. Use replace"):
        attach(given, support=POOR)


def test_a_declaration_of_verbs_counts_more_than_the_code():
    class Careful(InMethods):
        verbs = ("replace",)

    attach(Careful(), support=POOR)


def test_an_observer_of_several_points_gets_those_that_exist():
    @observer(ON_TOKEN, AFTER_LLM)
    def note(ctx, payload):
        pass

    assert attach(note, support=POOR).hooks.stack.points == {AFTER_LLM}


async def test_a_hook_at_every_point_gets_those_that_exist():
    class Watch(PassThrough):
        def intercept(self, point, payload, ctx):
            seen.append(str(point))

    seen = []
    run = attach(Watch(), support=POOR).start("Go.")
    await run.call_model(ASK, says_done)
    await run.end()
    assert {"before_llm", "after_llm", "on_run_end"} <= set(seen)
    assert "on_token" not in seen


def test_an_observer_that_would_see_nothing_is_refused():
    @observer(ON_TOKEN)
    def note(ctx, token):
        pass

    with pytest.raises(RegistrationError, match="has no moment for it"):
        attach(note, support=POOR)


def test_a_hook_that_judges_text_at_two_points_judges_it_at_the_one_that_exists():
    @hook(ON_TOKEN, AFTER_LLM)
    def both(ctx, payload):
        return None

    attached = attach(both, support=POOR)
    assert attached.hooks.stack.points == {AFTER_LLM}
    assert attached.holds_text


async def test_a_hook_that_judges_replies_can_do_without_the_last_word():
    support = Support("Frame", "msgspec", "0", "1000", {"on_run_end.replace": "Use after_llm."})

    @hook(ON_RUN_END)
    def late(ctx, result):
        return HookResult.replace({"reply": "Changed."})

    with pytest.raises(RegistrationError, match="cannot do 'replace' there. Use after_llm"):
        attach(late, support=support)

    @hook(AFTER_LLM, ON_RUN_END)
    def both(point, ctx, payload):
        return HookResult.replace({"content" if point == AFTER_LLM else "reply": "Changed."})

    run = attach(both, support=support).start("Go.")
    assert (await run.call_model(ASK, says_done)).reply.content == "Changed."
    assert (await run.end()).status == "completed"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_built_in_hooks_can_be_attached_to_every_framework(framework, tmp_path):
    support = import_module(f"hookline.adapters.{framework}").SUPPORT
    made = []
    for name in hooks.__all__:
        kind = getattr(hooks, name)
        if isclass(kind) and hasattr(kind, "points"):
            with suppress(TypeError, HooklineError):  # it has required arguments
                made.append(kind())
    made += [hooks.AuditLogHook(tmp_path / "audit.jsonl"), hooks.PathGuard(tmp_path), hooks.StepsLimitHook(3)]
    assert len(made) > 20
    support.check(HookRegistry(made).stack)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_framework_lets_hooks_set_the_response_format_and_each_names_where_it_is_set(framework):
    support = import_module(f"hookline.adapters.{framework}").SUPPORT
    setting = hooks.ApplyContextConfigHook(response_format={"type": "object"})
    with pytest.raises(
        RegistrationError, match=f"at on_run_start: in {support.framework} hooks cannot change the resp"
    ):
        support.check(HookRegistry([setting]).stack)


async def test_a_response_format_in_the_state_of_the_run_reaches_the_request():
    @hook(ON_RUN_START)
    def set_format(ctx, start):
        return HookResult.cont(state=ctx.state.replace(response_format={"type": "object"}))

    asked = []

    async def send(request):
        asked.append(request.response_format)
        return ModelResponse("{}")

    run = attach(set_format).start("Go.")
    await run.call_model(ASK, send)
    await run.end()
    assert asked == [{"type": "object"}]


async def test_a_verb_that_no_check_could_find_is_a_failure_of_its_hook():
    @guard(AFTER_LLM)
    def sly(ctx, answer):
        return getattr(HookResult, "ret" + "ry")("Again.")

    run = attach(sly, support=POOR).start("Go.")
    with pytest.raises(RunFailedError, match="Frame cannot do 'retry' there"):
        await run.call_model(ASK, says_done)


async def test_a_verb_that_slips_through_an_open_hook_changes_nothing():
    @guard(AFTER_LLM, on_failure="open")
    async def sly(ctx, answer):
        return getattr(HookResult, "ret" + "ry")("Again.")

    run = attach(sly, support=POOR).start("Go.")
    assert (await run.call_model(ASK, says_done)).reply.content == "Done."
    result = await run.end()
    assert "Frame cannot do 'retry' there" in result.errors[0].message


async def test_a_hook_that_is_registered_later_is_checked_when_the_next_run_starts():
    registry = HookRegistry()
    adapter = attach(registry, support=POOR)
    registry.register(Declares())
    with pytest.raises(RegistrationError, match="cannot do 'retry'"):
        adapter.start("Go.")


async def test_a_hook_that_is_registered_during_a_run_takes_part():
    registry = HookRegistry()
    run = attach(registry).start("Go.")
    await run.call_model(ASK, calls_shell)

    @guard(BEFORE_TOOL)
    def never(ctx, request):
        return HookResult.block("Never.")

    registry.register(never)
    assert (await run.call_tool(CALL, ran)).text == "Never."
    await run.end()


@pytest.mark.parametrize(
    ("support", "error", "text"),
    [
        (Support("Frame", "no-such-package", "1", "2", extra="frame"), NotInstalledError, "no-such-package is not"),
        (Support("Frame", "msgspec", "1000.1", "1001"), RegistrationError, ">=1000.1,<1001"),
        (Support("Frame", "msgspec", "0", "0.1"), RegistrationError, ">=0,<0.1"),
    ],
)
def test_another_version_of_the_framework_is_refused_with_the_supported_range(support, error, text):
    with pytest.raises(error, match="Frame|no-such-package") as raised:
        attach(support=support)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("limit", r"no option limit=\. Did you mean 'limits'\? Known: .*strict"),
        ("xyz", r"no option xyz=\. Known: .*limits"),
        ("hooks", r"no option hooks=: write the hooks as arguments"),
        ("durable", r"no option durable=: a journal cannot continue the loop of a framework.* durable hookline\.Agent"),
        ("run_id", r"no option run_id=: a journal cannot continue the loop of a framework"),
    ],
)
def test_an_unknown_option_is_refused_with_advice(option, advice):
    with pytest.raises(RegistrationError, match=advice):
        attach(**{option: 3})


@pytest.mark.parametrize("names", ["web_search", [None]])
def test_a_list_of_names_is_not_a_text(names):
    with pytest.raises(RegistrationError, match=r"unguarded= takes a list of names, such as \['web_search'\]"):
        checked_names("unguarded", names)


def judging(point):
    @hook(point)
    def judge(ctx, payload):
        return None

    return judge


@pytest.mark.parametrize("point", [BEFORE_TOOL, AFTER_TOOL])
def test_a_tool_that_hooks_cannot_judge_is_refused_unless_it_is_named(point):
    message = rf"search is run elsewhere: hooks at {point} cannot judge its calls. Remove it, .*unguarded=\['search'\]"
    with pytest.raises(RegistrationError, match=message):
        attach(judging(point)).unseen.refuse("search", "search is run elsewhere")
    attach(judging(point), unguarded=["search"]).unseen.refuse("search", "search is run elsewhere")
    attach(judging(AFTER_LLM)).unseen.refuse("search", "search is run elsewhere")


def test_a_hook_that_is_added_later_refuses_a_tool_that_it_cannot_judge():
    registry = HookRegistry()
    adapter = attach(registry)
    adapter.unseen.refuse("search", "search is run elsewhere")
    registry.register(judging(BEFORE_TOOL))
    with pytest.raises(RegistrationError, match="hooks at before_tool cannot judge its calls"):
        adapter.unseen.refuse("search", "search is run elsewhere")


async def test_the_hooks_of_an_outer_run_refuse_a_tool_that_they_cannot_judge():
    refused = []

    @tool
    def inner() -> str:
        """Start a framework."""
        try:
            attach().unseen.refuse("search", "search is run elsewhere")
        except RegistrationError as error:
            refused.append(str(error))
        return "done"

    model = ScriptedModel([call("inner"), reply("Done.")])
    await Agent("outer", llm=model, tools=[inner], hooks=[judging(BEFORE_TOOL)]).arun("Go.")
    assert len(refused) == 1
    assert "hooks at before_tool cannot judge its calls" in refused[0]


class Helper:
    """Stands for an agent of a framework."""


HELPER = Helper()


def ask_global():
    return HELPER


def ask_through_another_function():
    return [ask_global() for _ in range(1)]


class Asks:
    def __init__(self, helper):
        self.helper = helper

    def ask(self):
        return self.helper

    def __call__(self):
        return self.helper


def ask_given(helper, question):
    return helper


def closing_over(helper):
    def ask():
        return lambda: helper

    return ask


FUNCTIONS = {
    "global": ask_global,
    "through another function": ask_through_another_function,
    "closure": closing_over(HELPER),
    "method": Asks(HELPER).ask,
    "object": Asks(HELPER),
    "partial": partial(ask_given, HELPER),
    "keyword of a partial": partial(ask_given, helper=HELPER),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_an_agent_without_hooks_that_the_function_of_a_tool_uses_is_reported_once(function, caplog):
    unseen = attach(judging(BEFORE_TOOL)).unseen
    for _ in range(2):
        unseen.report_agents_of("ask", function, lambda value: "helper" if value is HELPER else None, "Attach hooks")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        "Frame: the tool 'ask' uses the agent 'helper', whose calls Hookline's hooks do not judge. Attach hooks, or "
        "allow it with unguarded=['ask']"
    )


@pytest.mark.parametrize("function", [print, None, ask_given, closing_over(None), str.upper])
def test_a_function_without_an_agent_is_not_reported(function, caplog):
    unseen = attach(judging(BEFORE_TOOL)).unseen
    unseen.report_agents_of("ask", function, lambda value: "helper" if isinstance(value, Helper) else None, "Attach")
    assert caplog.records == []


def test_a_plugin_with_tools_is_refused():
    def search(text: str) -> str:
        """Search."""

    with pytest.raises(RegistrationError, match="plugin 'finder' has tools, which Frame does not know"):
        attach(plugins=[Plugin("finder", tools=[search])])


def test_attaching_twice_is_refused():
    thing = SimpleNamespace()
    attach().attach_to(thing, "agent")
    with pytest.raises(RegistrationError, match="already attached to this agent"):
        attach().attach_to(thing, "agent")


async def test_strict_refuses_tools_that_no_guard_names():
    run = attach(Strict()).start("Go.")
    with pytest.raises(RunFailedError, match="no guard names 'shell'"):
        await run.call_model(ASK, says_done)


async def test_a_glob_that_matches_no_tool_of_the_framework_is_reported(caplog):
    @guard(BEFORE_TOOL, tools="shel")
    def judge(ctx, request):
        return None

    run = attach(judge).start("Go.")
    assert caplog.text == ""
    await run.call_model(ASK, says_done)
    assert "tools='shel' matches no tool" in caplog.text
    await run.end()


async def test_guards_see_the_declared_effects_of_tools():
    found = []

    @guard(BEFORE_TOOL)
    def look(ctx, request):
        tool = ctx.tool_registry.get(request.name)
        found.append((tool.effects, tool.spec.parameters["properties"]))

    spec = ToolSpec("shell", "", {"type": "object", "properties": {"command": {"type": "string"}}})
    run = attach(look, effects={"shell": ["read"]}).start("Go.")
    await run.call_model(ModelRequest((Message("user", "Go."),), (spec,)), calls_shell)
    await run.call_tool(CALL, ran)
    await run.end()
    assert found == [({"read"}, {"command": {"type": "string"}})]


@pytest.mark.parametrize(
    ("options", "model", "cost"),
    [
        ({"price": Price(input=1.0, output=2.0)}, "unheard-of", 4.0),
        ({}, "unheard-of", None),
        ({}, "gpt-4o", 22.5),
    ],
)
async def test_the_cost_of_a_reply_comes_from_its_price_or_from_the_price_list(options, model, cost):
    async def costly(request):
        return ModelResponse("Done.", usage=Usage(1_000_000, 1_500_000 if cost == 4.0 else 2_000_000))

    run = attach(**options).start("Go.")
    assert (await run.call_model(ASK.replace({"model": model}), costly)).reply.cost == cost
    await run.end()


async def test_a_cost_limit_stops_the_run():
    async def costly(request):
        return ModelResponse(tool_calls=(CALL,), usage=Usage(1_000_000, 0))

    run = attach(price=Price(input=1.0, output=1.0), limits=Limits(cost=0.5)).start("Go.")
    await run.call_model(ASK, costly)
    with pytest.raises(RunOverError) as over:
        await run.call_tool(CALL, ran)
    assert over.value.result.stop.kind == "cost_limit"


def test_a_price_that_is_none_is_refused():
    with pytest.raises(RegistrationError, match="price= takes Price"):
        attach(price=3)


# The framework's side of a run.


async def test_a_framework_that_makes_calls_one_by_one_is_not_blocked():
    calls = (CALL, ToolCall("2", "shell", {"command": "pwd"}))
    run = attach().start("Go.")

    async def two(request):
        return ModelResponse(tool_calls=calls)

    await run.call_model(ASK, two)
    assert [(await run.call_tool(each, ran)).text for each in calls] == ["ran ls", "ran pwd"]
    await run.call_model(ASK, says_done)
    result = await run.end()
    assert [message.content for message in result.messages] == ["Go.", "", "ran ls", "ran pwd", "Done."]


async def test_results_are_recorded_in_the_order_of_the_calls():
    calls = (CALL, ToolCall("2", "shell", {"command": "pwd"}))
    run = attach().start("Go.")

    async def two(request):
        return ModelResponse(tool_calls=calls)

    await run.call_model(ASK, two)
    for each in reversed(calls):
        await run.call_tool(each, ran)
    assert [message.call_id for message in (await run.end()).messages if message.role == "tool"] == ["1", "2"]


async def test_concurrent_calls_run_concurrently():
    calls = (CALL, ToolCall("2", "shell", {"command": "pwd"}))
    together = asyncio.Barrier(2)
    run = attach().start("Go.")

    async def two(request):
        return ModelResponse(tool_calls=calls)

    async def execute(name, arguments):
        await together.wait()
        return arguments["command"]

    await run.call_model(ASK, two)
    results = await asyncio.gather(*(run.call_tool(each, execute) for each in calls))
    assert [result.text for result in results] == ["ls", "pwd"]
    await run.end()


async def test_a_call_that_the_framework_never_makes_counts_as_cancelled():
    outcomes = []

    @observer(AFTER_TOOL)
    def note(ctx, result):
        outcomes.append(result.outcome)

    run = attach(note).start("Go.")
    await run.call_model(ASK, calls_shell)
    assert (await run.call_model(ASK, says_done)).reply.content == "Done."
    assert (await run.end()).status == "completed"
    assert outcomes == ["cancelled"]


async def test_guards_judge_the_arguments_that_the_framework_is_about_to_use():
    judged = []

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        judged.append(request.arguments["command"])

    run = attach(judge).start("Go.")
    await run.call_model(ASK, calls_shell)
    changed = ToolCall("1", "shell", {"command": "rm -r x"})
    assert (await run.call_tool(changed, ran)).text == "ran rm -r x"
    assert judged == ["rm -r x"]
    await run.end()


async def test_the_framework_may_go_on_after_a_final_reply():
    run = attach().start("Go.")
    await run.call_model(ASK, says_done)
    await run.call_model(ASK, says_done)
    result = await run.end()
    assert (result.status, len(result.steps)) == ("completed", 2)


async def test_a_limit_counts_also_when_the_framework_goes_on_after_a_final_reply():
    run = attach(limits=Limits(steps=1)).start("Go.")
    await run.call_model(ASK, says_done)
    with pytest.raises(RunOverError) as over:
        await run.call_model(ASK, says_done)
    assert over.value.result.stop.kind == "steps_limit"


async def test_there_is_no_step_limit_unless_one_is_given():
    run = attach().start("Go.")
    for _ in range(30):
        await run.call_model(ASK, says_done)
    assert (await run.end()).status == "completed"


async def test_after_the_end_every_call_says_that_the_run_is_over():
    run = attach().start("Go.")
    await run.end("Enough.")
    with pytest.raises(RunOverError) as over:
        await run.call_model(ASK, says_done)
    assert over.value.result.reply == "Enough."
    with pytest.raises(RunOverError):
        await run.call_tool(CALL, ran)
    assert (await run.end()).reply == "Enough."


async def test_an_error_of_the_framework_fails_the_run_and_is_recorded():
    failures = []

    @observer(ON_ERROR)
    def note(ctx, failure):
        failures.append((failure.where, failure.fatal))

    run = attach(note).start("Go.")
    await run.call_model(ASK, says_done)
    result = await run.end(error=ValueError("the graph is broken"))
    assert result.status == "failed"
    (error,) = result.errors
    assert (error.where, error.type, error.message) == ("framework", "ValueError", "the graph is broken")
    assert (error.source, error.fatal) == ("Frame", True)
    assert failures == [("framework", True)]


async def test_the_error_of_a_model_reaches_the_framework_as_it_was():
    run = attach().start("Go.")

    async def fails(request):
        raise ConnectionError("the line is cut")

    with pytest.raises(ConnectionError, match="the line is cut"):
        await run.call_model(ASK, fails)


async def test_the_error_of_a_tool_reaches_the_framework_as_it_was():
    seen = []

    @observer(AFTER_TOOL)
    def note(ctx, result):
        seen.append((result.outcome, result.error))

    async def fails(name, arguments):
        raise ValueError("no such file")

    run = attach(note).start("Go.")
    await run.call_model(ASK, calls_shell)
    with pytest.raises(ValueError, match="no such file"):
        await run.call_tool(CALL, fails)
    assert seen == [("error", "ValueError: no such file")]
    await run.end()


async def test_a_hook_may_change_the_error_of_a_tool_into_a_result():
    @hook(AFTER_TOOL)
    def explain(ctx, result):
        return HookResult.replace({"error": "Try another file."})

    async def fails(name, arguments):
        raise ValueError("no such file")

    run = attach(explain).start("Go.")
    await run.call_model(ASK, calls_shell)
    assert (await run.call_tool(CALL, fails)).text == "Try another file."
    await run.end()


async def test_a_time_limit_interrupts_a_tool_of_the_framework():
    interrupted, outcomes = asyncio.Event(), []

    @observer(AFTER_TOOL)
    def note(ctx, result):
        outcomes.append(result.outcome)

    async def hangs(name, arguments):
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.set()

    run = attach(note, limits=Limits(seconds=0.5)).start("Go.")  # less can pass before the tool begins
    await run.call_model(ASK, calls_shell)
    with pytest.raises(RunOverError) as over:
        await run.call_tool(CALL, hangs)
    assert over.value.result.stop.kind == "time_limit"
    assert interrupted.is_set()
    assert outcomes == ["cancelled"]


async def test_cancelling_the_framework_cancels_the_run():
    ended = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append(result.status)

    started = asyncio.Event()

    async def hangs(request):
        started.set()
        await asyncio.Event().wait()

    run = attach(note).start("Go.")
    work = asyncio.create_task(run.call_model(ASK, hangs))
    await started.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await run.run.settled()
    assert ended == ["cancelled"]


async def test_a_run_that_the_framework_drops_is_cancelled():
    ended = []

    @observer(ON_RUN_END)
    def note(ctx, result):
        ended.append(result.status)

    run = attach(note).start("Go.")
    await run.call_model(ASK, calls_shell)
    del run
    gc.collect()
    await wait_until(lambda: ended == ["cancelled"])


async def test_a_framework_that_stops_reading_after_the_reply_does_not_cancel_the_run():
    async def says_done_in_pieces(request):
        yield "Do"
        yield "ne."
        yield ModelResponse("Done.")

    run = attach().start("Go.", streaming=True)
    items = run.stream_model(ASK, says_done_in_pieces)
    shown = [await anext(items), await anext(items), (await anext(items)).reply.content]
    await items.aclose()
    assert shown == ["Do", "ne.", "Done."]
    assert (await run.end()).status == "completed"


async def test_a_resumed_framework_may_begin_with_a_tool_call():
    judged = []

    @guard(BEFORE_TOOL)
    def judge(ctx, request):
        judged.append(request.arguments["command"])

    run = attach(judge).start("Go.", [Message("assistant", "", (CALL,))])
    assert (await run.call_tool(CALL, ran)).text == "ran ls"
    await run.call_model(ASK, says_done)
    assert (await run.end()).status == "completed"
    assert judged == ["ls"]


async def test_a_hook_that_compacts_the_transcript_changes_what_the_model_gets():
    @hook(BEFORE_LLM, priority=10)
    def forget(ctx, request):
        if request.hop == 1:
            short = ctx.state.replace({"messages": (Message("user", "Short."),)})
            return HookResult.replace({"messages": short.messages}, state=short)

    asked = []

    async def send(request):
        asked.append([message.content for message in request.messages])
        return ModelResponse("More.")

    run = attach(forget).start("Go.")
    history = [Message("system", "Help."), Message("user", "Go.")]
    for _ in range(3):
        await run.call_model(ModelRequest(tuple(history)), send)
        history += [Message("assistant", "More."), Message("user", "And?")]
    await run.end()
    assert asked == [["Help.", "Go."], ["Short."], ["Help.", "Short.", "More.", "And?"]]


async def test_steered_messages_reach_the_model():
    asked = []

    async def send(request):
        asked.append([message.content for message in request.messages])
        return ModelResponse("Done.")

    run = attach().start("Go.")
    run.run.steer("Only the first one.")
    await run.call_model(ASK, send)
    await run.end()
    assert asked == [["Go.", "Only the first one."]]


async def test_a_hook_may_call_the_model_of_the_framework_around_a_model_call():
    asked = []

    @hook(AFTER_LLM)
    async def second_opinion(ctx, answer):
        if answer.purpose == "step":
            other = await ctx.llm.complete([Message("user", "Is it right?")])
            return HookResult.replace({"content": f"{answer.content} {other.content}"})

    async def send(request):
        asked.append(request.messages[-1].content)
        return ModelResponse("Yes.")

    run = attach(second_opinion).start("Go.")
    assert (await run.call_model(ASK, send)).reply.content == "Yes. Yes."
    assert asked == ["Go.", "Is it right?"]
    await run.end()


@pytest.mark.parametrize("llm", [None, ScriptedModel([reply("It is safe.")])])
async def test_elsewhere_a_hook_needs_a_model_of_its_own(llm):
    @guard(BEFORE_TOOL)
    async def judge(ctx, request):
        answer = await ctx.llm.complete([Message("user", "Is it safe?")])
        return None if "safe" in answer.content else HookResult.block("Not safe.")

    run = attach(judge, llm=llm).start("Go.")
    await run.call_model(ASK, calls_shell)
    if llm is not None:
        assert (await run.call_tool(CALL, ran)).text == "ran ls"
        await run.end()
    else:
        with pytest.raises(RunFailedError, match="give the adapter llm="):
            await run.call_tool(CALL, ran)


async def test_a_sync_call_in_the_event_loop_of_the_run_is_refused_instead_of_hanging():
    run = attach().start("Go.")
    with pytest.raises(HooklineError, match="would block the event loop"):
        run.call_model_sync(ASK, lambda request: ModelResponse("Hi."))
    await run.end()


def test_sync_calls_from_several_threads_share_a_run():
    calls = (CALL, ToolCall("2", "shell", {"command": "pwd"}))
    together, texts = threading.Barrier(2), []
    run = attach().start_sync("Go.")
    run.call_model_sync(ASK, lambda request: ModelResponse(tool_calls=calls))

    def execute(name, arguments):
        together.wait(10)
        return arguments["command"]

    threads = [
        threading.Thread(target=lambda each=each: texts.append(run.call_tool_sync(each, execute).text))
        for each in calls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == ["ls", "pwd"]
    assert run.end_sync().status == "completed"


def test_an_interrupt_of_sync_code_cancels_the_run_and_is_raised():
    def interrupted(request):
        raise KeyboardInterrupt

    run = attach().start_sync("Go.")
    with pytest.raises(KeyboardInterrupt):
        run.call_model_sync(ASK, interrupted)
    assert run.end_sync().status == "cancelled"


async def test_the_session_has_the_id_and_the_history_of_the_conversation():
    seen = []

    @hook(BEFORE_LLM)
    def look(ctx, request):
        seen.append((ctx.session.id, [message.content for message in ctx.state.messages]))

    run = attach(look).start("And now?", [Message("user", "Hi."), Message("assistant", "Hello.")], session="thread-7")
    await run.call_model(ASK, says_done)
    await run.end()
    assert seen == [("thread-7", ["Hi.", "Hello.", "And now?"])]


# Inside a durable run.


async def test_a_framework_in_a_tool_of_a_durable_run_is_guarded_and_its_committed_result_is_kept(tmp_path):
    asked, waits, store = [], [True], RunStore(tmp_path / "runs.db")

    @guard(BEFORE_TOOL, tools="shell")
    def judge(ctx, request):
        return HookResult.block("No.")

    @guard(BEFORE_TOOL, tools="pay")
    def ask(ctx, request):
        return HookResult.ask("Pay?")

    @hook(APPROVAL_REQUESTED)
    def decide(ctx, request):
        return HookResult.wait() if waits else HookResult.approve()

    @tool
    async def ask_framework() -> str:
        """Ask an agent of the framework."""
        asked.append("framework")
        run = attach(judge).start("Go.")
        await run.call_model(ASK, calls_shell)
        assert (await run.call_tool(CALL, ran)).text == "No."
        await run.call_model(ASK, says_done)
        return (await run.end()).reply

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    def turn(request):
        done = [message.content for message in request.messages if message.role == "tool"]
        return [call("ask_framework"), call("pay"), reply(f"It said: {done[:1]}")][len(done)]

    agent = Agent("boss", llm=ScriptedModel([turn], loop=True), tools=[ask_framework, pay], hooks=[ask, decide])
    with pytest.raises(RunWaitingError):
        await agent.arun("go", durable=store, run_id="r")
    waits.clear()
    assert (await agent.arun("go", durable=store, run_id="r")).reply == "It said: ['Done.']"
    assert asked == ["framework"]
    store.close()


async def test_a_spending_limit_stops_the_runs_of_a_user_at_the_price_of_the_frameworks_model(tmp_path):
    limit = SpendingLimit(0.05, store=tmp_path / "spending.db", max_reply_tokens=20)

    async def costly(request):
        return ModelResponse("Done.", usage=Usage(10, 20))

    async def ask(model, **options):
        run = attach(limit, metadata={"user": "ann"}, **options).start("Go.")
        await run.call_model(ASK.replace({"model": model}), costly)
        return await run.end()

    await ask("theirs", price=Price(input=1000, output=1000))
    with pytest.raises(RunOverError) as over:
        await ask("theirs", price=Price(input=1000, output=1000))
    assert over.value.result.stop.kind == "cost_limit"
    assert limit.store.accounts()[0].spent.usd == 0.03
