"""A strict agent runs no tool that no guard names (DESIGN 4.10). Each forbidden call would create a file."""

import sys
from pathlib import Path

import pytest

from hookline import (
    AFTER_TOOL,
    BEFORE_TOOL,
    Agent,
    AgentContext,
    HookRegistry,
    HookResult,
    RegistrationError,
    ScriptedModel,
    call,
    guard,
    hook,
    reply,
)
from hookline.backtest import backtest
from hookline.hooks import (
    EgressGuard,
    InjectionGuard,
    LoopDetectorHook,
    PassThrough,
    PathGuard,
    PlanModeHook,
    ProvenanceGuard,
    RateLimitHook,
    RoleBasedAccessHook,
    Strict,
    TerminalGuard,
    TicketRules,
    shadow,
)
from hookline.plugins import Plugin
from hookline.records import RecordHook
from hookline.stores import TicketBoard, ticket_tools
from hookline.teams import Team
from hookline.testing import scripted_agent
from hookline.tools import Tool, calculator, fetch_tool, file_tools, mcp, shell_tool

MCP_SERVER = str(Path(__file__).parents[1] / "tools" / "mcp_server.py")


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


@pytest.fixture
def drop(canary):
    """A tool that creates the canary."""

    def do(table: str = "users") -> str:
        """Drop a table."""
        canary.write_text(table)
        return "dropped"

    return Tool(do, name="drop")


def names(*globs, **options):
    """A guard that names these tools and allows everything."""
    return guard(BEFORE_TOOL, tools=globs or None, **options)(lambda ctx, request: None)


# At construction


def test_an_agent_is_not_built_with_a_tool_that_no_guard_names(drop):
    with pytest.raises(RegistrationError) as refused:
        scripted_agent(["x"], tools=[drop, calculator], hooks=[names("calculate")], strict=True)
    assert str(refused.value) == (
        "agent 'test' is strict, and no guard names 'drop'. Write a guard with @guard(BEFORE_TOOL, tools=['drop']), "
        "or use the hook Strict(allow=['drop']) if no guard is needed"
    )


def test_the_hook_is_the_same_as_the_option_and_can_allow_tools(drop, canary):
    with pytest.raises(RegistrationError, match="no guard names 'drop'"):
        scripted_agent(["x"], tools=[drop], hooks=[Strict(allow=["calc*"])])
    agent = scripted_agent([call("drop"), "done"], tools=[drop], hooks=[Strict(allow=["dr?p"])])
    agent.run("Drop it.")
    assert canary.exists()


def test_an_agent_without_tools_may_be_strict():
    assert scripted_agent(["hello"], strict=True).run("Hi").reply == "hello"


def test_one_strict_hook_is_enough(drop):
    agent = scripted_agent(["x"], tools=[drop], hooks=[Strict(allow=["drop"])], strict=True)
    assert [type(each) for each in agent.hooks] == [Strict]


@pytest.mark.parametrize(
    ("made", "does_not_count"),
    [
        (names(), ""),
        (hook(BEFORE_TOOL, tools="drop")(lambda ctx, request: None), "<lambda>.*not a guard: use @guard"),
        (names("drop", on_failure="open"), "calls pass if it fails"),
        (guard(AFTER_TOOL, tools="drop")(lambda ctx, result: None), ""),
        (names("dropper", "[!d]rop"), ""),
        (hook(BEFORE_TOOL, tools="drop", phase="observe")(lambda ctx, request: None), ""),
        (shadow(names("drop")), ""),
    ],
    ids=["no tools=", "rewriter", "fails open", "another point", "other tools", "observer", "shadow"],
)
def test_a_hook_that_cannot_stop_the_call_names_nothing(drop, made, does_not_count):
    with pytest.raises(RegistrationError, match=rf"no guard names 'drop'.*{does_not_count}"):
        scripted_agent(["x"], tools=[drop], hooks=[made], strict=True)


def test_a_shadow_names_nothing_even_if_it_fails_closed(drop):
    registry = HookRegistry()
    registry.register(shadow(names("drop")), on_failure="closed")
    with pytest.raises(RegistrationError, match="no guard names 'drop'"):
        scripted_agent(["x"], tools=[drop], hooks=registry, strict=True)


def test_strict_itself_names_nothing(drop):
    registry = HookRegistry()
    registry.register(Strict(), tools="drop")
    with pytest.raises(RegistrationError, match="no guard names 'drop'"):
        scripted_agent(["x"], tools=[drop], hooks=registry)


@pytest.mark.parametrize("globs", ["*", "drop", ["calc", "dr*"]])
def test_a_guard_names_the_tools_of_its_globs(drop, canary, globs):
    made = guard(BEFORE_TOOL, tools=globs)(lambda ctx, request: None)
    scripted_agent([call("drop"), "done"], tools=[drop], hooks=[made], strict=True).run("Drop it.")
    assert canary.exists()


def test_a_plugin_brings_its_guards_with_its_tools(drop, canary):
    good = Plugin("good", hooks=[names("drop")], tools=[drop])
    agent = scripted_agent([call("drop"), "done"], plugins=[good], strict=True)
    agent.run("Drop it.")
    assert canary.exists()


def test_a_plugin_with_a_tool_that_no_guard_names_is_not_added(drop):
    agent = scripted_agent(["x"], strict=True)
    with pytest.raises(RegistrationError, match="no guard names 'drop'"):
        agent.plug(Plugin("bad", tools=[drop]))
    assert (list(agent.tools), agent.plugins) == ([], ())
    with pytest.raises(RegistrationError, match="no guard names 'drop'"):
        scripted_agent(["x"], plugins=[Plugin("bad", tools=[drop])], strict=True)


def test_a_plugin_that_is_not_allowed_guards_nothing(drop):
    guarding = Plugin("guarding", hooks=[names("drop")])
    with pytest.raises(RegistrationError, match="no guard names 'drop'"):
        scripted_agent(["x"], tools=[drop], plugins=[guarding], allowed_plugins=[], strict=True)


def test_an_interceptor_is_not_a_guard(drop):
    class All(PassThrough):
        def intercept(self, point, payload, ctx):
            return None

    with pytest.raises(RegistrationError, match="no guard names 'drop'"):
        scripted_agent(["x"], tools=[drop], hooks=[All()], strict=True)


@pytest.mark.slow
def test_the_tools_of_an_mcp_server_need_guards_too(tmp_path):
    with mcp([sys.executable, MCP_SERVER, str(tmp_path / "notes")], prefix="m_") as server:
        with pytest.raises(RegistrationError, match="no guard names 'm_"):
            scripted_agent(["x"], tools=[server], strict=True)
        scripted_agent(["x"], tools=[server], hooks=[names("m_*")], strict=True)


@pytest.mark.parametrize("allow", ["calc", 3, [""], [3], None, {"calc": 1}])
def test_allow_takes_a_list_of_names(allow):
    with pytest.raises(RegistrationError, match="allow must be a list"):
        Strict(allow=allow)


# Which tools the built-in guards cover


def read_all(path: str) -> str:
    """Read."""
    return ""


def purge() -> str:
    """Delete everything."""
    return ""


def get(url: str) -> str:
    """Get a page."""
    return ""


def download(url: str, path: str) -> str:
    """Get a page and keep it."""
    return ""


def mail(to: str, text: str) -> str:
    """Send a mail."""
    return ""


COVERED = [
    ("PathGuard", read_all, ["read"], True),
    ("PathGuard", read_all, ["write", "delete"], True),
    ("PathGuard", read_all, [], False),
    ("PathGuard", read_all, None, False),
    ("PathGuard", read_all, ["execute"], False),
    ("PathGuard", purge, ["delete"], False),
    ("PathGuard", download, ["network", "write"], False),
    ("EgressGuard", get, ["network"], True),
    ("EgressGuard", get, None, False),
    ("EgressGuard", get, ["read"], False),
    ("EgressGuard", mail, ["network"], False),
    ("EgressGuard", download, ["network", "write"], False),
    ("RoleBasedAccessHook", purge, None, True),
    ("RoleBasedAccessHook", mail, None, False),
    ("PlanModeHook", purge, None, True),
    ("PlanModeHook", mail, ["network"], False),
    ("PlanModeHook, effects", mail, ["network"], True),
    ("PlanModeHook, effects", read_all, ["read"], False),
    ("PlanModeHook, effects", read_all, None, True),
    ("InjectionGuard", mail, ["network"], False),
    ("ProvenanceGuard", mail, ["network"], False),
    ("RateLimitHook", mail, ["network"], False),
    ("LoopDetectorHook", mail, ["network"], False),
]


@pytest.mark.parametrize(("name", "fn", "effects", "covered"), COVERED)
def test_a_built_in_guard_covers_only_tools_that_it_judges(tmp_path, name, fn, effects, covered):
    made = {
        "PathGuard": lambda: PathGuard(tmp_path, write=True),
        "EgressGuard": lambda: EgressGuard(["example.com"]),
        "RoleBasedAccessHook": lambda: RoleBasedAccessHook(["purge"]),
        "PlanModeHook": lambda: PlanModeHook(["purge"]),
        "PlanModeHook, effects": lambda: PlanModeHook(effects=["network"]),
        "InjectionGuard": InjectionGuard,
        "ProvenanceGuard": ProvenanceGuard,
        "RateLimitHook": lambda: RateLimitHook(10),
        "LoopDetectorHook": LoopDetectorHook,
    }[name]()
    tools = [Tool(fn, effects=effects)]
    if covered:
        scripted_agent(["x"], tools=tools, hooks=[made], strict=True)
    else:
        with pytest.raises(RegistrationError, match="no guard names"):
            scripted_agent(["x"], tools=tools, hooks=[made], strict=True)


def test_the_shipped_tools_are_covered_by_the_guards_that_are_made_for_them(tmp_path):
    tools = [*file_tools(tmp_path, write=True), shell_tool(tmp_path, sandbox="off"), fetch_tool(["example.com"])]
    guards = [PathGuard(tmp_path, write=True), TerminalGuard(tmp_path), EgressGuard(["example.com"])]
    scripted_agent(["x"], tools=tools, hooks=guards, strict=True)
    for missing in range(3):
        with pytest.raises(RegistrationError, match="no guard names"):
            scripted_agent(["x"], tools=tools, hooks=[g for g in guards if g is not guards[missing]], strict=True)


def test_ticket_rules_cover_the_actions_that_they_judge(tmp_path):
    tools = ticket_tools(TicketBoard(tmp_path / "t.db"))
    with pytest.raises(RegistrationError) as refused:
        scripted_agent(["x"], tools=tools, hooks=[TicketRules(tmp_path / "t.db", {"create": ["lead"]})], strict=True)
    for covered in ("start", "complete", "create"):
        assert f"ticket_{covered}" not in str(refused.value)
    assert "ticket_comment" in str(refused.value)


def test_a_guard_of_your_own_says_what_it_covers(drop, canary):
    class ByName:
        points, phase = (BEFORE_TOOL,), "guard"

        def covers(self, tool):
            return tool.name.startswith("dr")

        def __call__(self, point, ctx, request):
            return HookResult.block("no") if request.arguments["table"] == "users" else None

    agent = scripted_agent([call("drop"), call("drop", table="x"), "done"], tools=[drop], hooks=[ByName()], strict=True)
    agent.run("Drop it.")
    assert canary.read_text() == "x"


@pytest.mark.parametrize("claim", ["yes", 1, None, ["drop"]])
def test_only_true_is_a_claim(drop, claim):
    class Vague:
        points, phase = (BEFORE_TOOL,), "guard"
        covers = staticmethod(lambda tool: claim)

        def __call__(self, point, ctx, request):
            return None

    with pytest.raises(RegistrationError, match="no guard names 'drop'"):
        scripted_agent(["x"], tools=[drop], hooks=[Vague()], strict=True)


# At run time


def refused_call(result):
    (message,) = [message for message in result.messages if message.role == "tool"]
    return message.content


def test_a_call_that_a_rewriter_renames_is_judged_by_its_new_name(drop, canary):
    renames = hook(BEFORE_TOOL)(lambda ctx, request: request.replace(name="drop", arguments={}))
    agent = scripted_agent([call("calculate", expression="1"), "done"], tools=[calculator], hooks=[names("calculate")])
    agent.hooks.register(Strict())
    agent.tools = type(agent.tools)([calculator, drop])  # a tool that appears later
    result = agent.run("Add.", hooks=[renames])
    assert not canary.exists()
    assert refused_call(result) == "drop is not available: no guard judges it. Go on without it."


def test_a_name_that_is_changed_and_changed_back_is_the_name_that_runs(drop, canary):
    there = hook(BEFORE_TOOL, priority=9)(lambda ctx, request: request.replace(name="calculate"))
    back = hook(BEFORE_TOOL, priority=1)(lambda ctx, request: request.replace(name="drop"))
    tools = [drop, calculator]
    agent = scripted_agent([call("drop"), "done"], tools=tools, hooks=[there, back, names("calculate")])
    result = agent.run("Drop it.", hooks=[Strict()])
    assert not canary.exists()
    assert "no guard judges it" in refused_call(result)


def test_a_guard_that_is_removed_during_a_run_no_longer_counts(drop, canary):
    registry = HookRegistry()
    remove = registry.register(names("drop"))

    @hook(BEFORE_TOOL, tools="calculate")
    def switch_off(ctx, request):
        remove()

    registry.register(switch_off)
    registry.register(names("calculate"))
    turns = [call("calculate", expression="1"), call("drop"), "done"]
    agent = scripted_agent(turns, tools=[drop, calculator], hooks=registry, strict=True)
    result = agent.run("Drop it.")
    assert not canary.exists()
    assert "no guard judges it" in result.messages[-2].content


def test_a_guard_that_is_added_while_the_call_is_judged_does_not_count(drop, canary):
    registry = HookRegistry([Strict()])

    @hook(BEFORE_TOOL)
    def too_late(ctx, request):
        ctx.hooks.register(names("drop"))

    ctx = AgentContext()
    agent = scripted_agent([call("drop"), "done"], hooks=registry)
    agent.tools = type(agent.tools)([drop])
    result = agent.run("Drop it.", ctx=ctx, hooks=[too_late])
    assert not canary.exists()
    assert "no guard judges it" in refused_call(result)


def test_guards_of_the_conversation_and_of_the_run_count(drop, canary):
    agent = scripted_agent([call("drop"), "done"] * 3, tools=[drop])
    strict = Strict()
    assert "no guard judges it" in refused_call(agent.run("1", hooks=[strict]))
    agent.run("2", hooks=[strict, names("drop")])
    assert canary.exists()
    canary.unlink()
    ctx = AgentContext()
    ctx.hooks.register(names("drop"))
    agent.run("3", hooks=[strict], ctx=ctx)
    assert canary.exists()


def test_a_run_that_filters_the_guarding_plugin_out_cannot_call_the_tool(drop, canary):
    plugins = [Plugin("guarding", hooks=[names("drop")])]
    agent = scripted_agent([call("drop"), "done"], tools=[drop], plugins=plugins, strict=True)
    result = agent.run("Drop it.", allowed_plugins=[])
    assert not canary.exists()
    assert "no guard judges it" in refused_call(result)


def nested(tool, hooks=()):
    inner = Agent("inner", llm=ScriptedModel([call("drop"), reply("inner done")]), tools=[tool], hooks=hooks)

    async def ask(task: str) -> str:
        """Ask the inner agent."""
        return (await inner.arun(task)).reply

    return Tool(ask)


@pytest.mark.parametrize(("globs", "runs"), [(["ask"], False), (["ask", "drop"], True)])
def test_a_nested_run_is_strict_too_and_guards_of_the_outer_run_count(drop, canary, globs, runs):
    agent = scripted_agent([call("ask", task="x"), "done"], tools=[nested(drop)], hooks=[names(*globs)], strict=True)
    agent.run("Ask.")
    assert canary.exists() is runs


def test_a_guard_that_nested_runs_do_not_inherit_does_not_count_there(drop, canary):
    own = names("ask", "drop")
    own.inherit = False
    agent = scripted_agent([call("ask", task="x"), "done"], tools=[nested(drop)], hooks=[own], strict=True)
    agent.run("Ask.")
    assert not canary.exists()


def test_a_guard_does_not_count_inside_the_run_that_it_starts(drop, canary):
    inner = Agent("inner", llm=ScriptedModel([call("drop"), reply("fine")]), tools=[drop])

    @guard(BEFORE_TOOL, tools=["drop", "calculate"])
    async def judge(ctx, request):
        await inner.arun("Is this fine?")

    turns = [call("calculate", expression="1"), "done"]
    scripted_agent(turns, tools=[calculator], hooks=[judge], strict=True).run("Add.")
    assert not canary.exists()


@pytest.mark.parametrize(("globs", "runs"), [(["handoff"], False), (["handoff", "drop"], True)])
def test_the_agent_that_takes_over_is_judged_by_the_same_rule(drop, canary, globs, runs):
    team = Team()
    first = Agent(
        "first",
        llm=ScriptedModel([call("handoff", to="second", message="Go on.")]),
        tools=[team],
        hooks=[names("delegate"), names(*globs), Strict()],
    )
    team.add(first)
    team.add(Agent("second", llm=ScriptedModel([call("drop"), reply("done")]), tools=[drop]))
    team.run("Drop it.")
    assert canary.exists() is runs


def test_an_answer_does_not_pass_instead_of_a_guard(drop):
    answers = hook(BEFORE_TOOL)(lambda ctx, request: HookResult.answer("made up"))
    agent = scripted_agent([call("drop"), "done"], tools=[drop], hooks=[answers])
    assert "no guard judges it" in refused_call(agent.run("Drop it.", hooks=[Strict()]))


def test_an_edited_call_is_judged_again(drop, canary):
    registry = HookRegistry([PlanModeHook(["drop"])])
    remove = registry.register(names("drop"))

    def approve(ctx, request):
        remove()
        registry.unregister(ask)
        return HookResult.edit({"table": "other"})

    ask = next(iter(registry))
    registry.on("approval_requested", approve)
    agent = scripted_agent([call("drop"), "done"], tools=[drop], hooks=registry, strict=True)
    assert "no guard judges it" in refused_call(agent.run("Drop it."))
    assert not canary.exists()


async def test_it_works_outside_a_run_by_name():
    registry = HookRegistry([Strict(), names("drop")])
    payload = {"id": "1", "name": "drop", "arguments": {}}
    assert (await registry.fire(BEFORE_TOOL, payload)).action == "cont"
    assert (await registry.fire(BEFORE_TOOL, {**payload, "name": "other"})).action == "block"


def test_it_judges_recorded_calls_by_the_rules_that_are_tested(drop, canary, tmp_path):
    scripted_agent([call("drop"), "done"], tools=[drop], hooks=[RecordHook(tmp_path / "records")]).run("Drop it.")
    strict = Strict()
    assert backtest([strict], tmp_path / "records").total("newly_blocked").exact == 1
    assert backtest([strict, names("drop")], tmp_path / "records").differences.total == 0


# The parameter ``guards``


def test_only_a_guard_gets_the_other_guards():
    def judge(ctx, request, *, guards):
        return None

    with pytest.raises(RegistrationError, match="only a guard gets the other guards; use @guard"):
        hook(BEFORE_TOOL)(judge)


async def test_a_payload_may_be_named_guards():
    seen = []
    registry = HookRegistry([guard(BEFORE_TOOL)(lambda ctx, guards: seen.append(guards.name))])
    await registry.fire(BEFORE_TOOL, {"id": "1", "name": "drop", "arguments": {}})
    assert seen == ["drop"]
