"""``ctx.deps``: runs get what their agent, its hooks and its tools need, or do not start."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, NewType, Optional, Protocol, TypedDict, TypeVar, Union

import pytest

from hookline import (
    BEFORE_LLM,
    BEFORE_TOOL,
    Agent,
    AgentContext,
    HookRegistry,
    HookResult,
    RegistrationError,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.plugins import Plugin
from hookline.stores import RunStore
from hookline.tape import TapeHook, replay
from hookline.teams import Team
from hookline.testing import scripted_agent
from tests.cases import each_case

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]

T = TypeVar("T")
Name = NewType("Name", str)


@dataclass
class Db:
    name: str = "shop"


class Replica(Db):
    pass


class Named(Protocol):
    name: str


class Row(TypedDict):
    name: str


class Box(Generic[T]):
    pass


class Unchecked(type):
    def __subclasscheck__(cls, other: type) -> bool:
        raise RuntimeError("not supported")


class Odd(metaclass=Unchecked):
    pass


SHOP = Db()


@tool
def which(ctx: AgentContext[Db]) -> str:
    """Name the database."""
    return ctx.deps.name


def ways_to_run(agent: Agent[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Every way to start a run, as functions of its options."""

    async def arun(**options: Any) -> Any:
        return await agent.arun("x", **options)

    async def stream(**options: Any) -> Any:
        return [event async for event in agent.stream("x", **options)]

    async def start(**options: Any) -> Any:
        return await agent.start("x", **options).result()

    async def run(**options: Any) -> Any:
        return agent.run("x", **options)

    async def team(**options: Any) -> Any:
        return await Team([agent]).arun("x", **options)

    return iter([("arun", arun), ("stream", stream), ("start", start), ("run", run), ("team", team)])


# Runs


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
@pytest.mark.parametrize("way", ["arun", "stream", "start", "run", "team"])
async def test_a_run_without_the_deps_that_its_agent_needs_is_an_error_at_the_call(way):
    agent = scripted_agent(["a"] * 3, deps_type=Db)
    start = dict(ways_to_run(agent))[way]
    for options in ({}, {"deps": None}, {"ctx": AgentContext()}):
        with pytest.raises(TypeError, match=r"agent 'test' needs deps: give it a Db as deps=..., or as ctx=AgentCont"):
            await start(**options)
    assert agent.model.requests == []
    await start(deps=SHOP)
    await start(ctx=AgentContext(deps=Replica()))
    assert len(agent.model.requests) == 2


@pytest.mark.parametrize("options", [{"deps": "shop"}, {"ctx": AgentContext(deps="shop")}])
def test_deps_of_another_type_are_an_error_at_the_call(options):
    with pytest.raises(TypeError, match="deps= of agent 'test' takes a Db, not a str"):
        scripted_agent([], deps_type=Db).run("x", **options)


@pytest.mark.parametrize(
    "deps_type",
    [None, Db | None, Optional[Db], Union[Db, None], object, Any, type(None), Named, Row, Mapping | None, T],  # noqa: UP007, UP045
)
def test_an_agent_whose_deps_may_be_none_needs_none(deps_type):
    assert scripted_agent(["a"], deps_type=deps_type).run("x").reply == "a"


@pytest.mark.parametrize(
    ("deps_type", "deps"),
    [(Db | str, "a"), (float, 3), (Box[int], Box()), (Name, "a"), (Annotated[Db, "x"], SHOP), (Named, SHOP)],
)
def test_deps_may_be_of_any_type(deps_type, deps):
    assert scripted_agent(["a"], deps_type=deps_type).run("x", deps=deps).reply == "a"


def test_a_nested_run_has_the_deps_of_its_outer_run():
    inner = scripted_agent([call("which"), "done"] * 2, name="inner", deps_type=Db, tools=[which])

    @tool
    async def ask(ctx: AgentContext[Db]) -> str:
        return (await inner.arun("x")).messages[-2].content

    @tool
    async def ask_by_ctx(ctx: AgentContext[Db]) -> str:
        return (await inner.arun("x", ctx=ctx)).messages[-2].content

    agent = scripted_agent([call("ask"), call("ask_by_ctx"), "x"], deps_type=Db, tools=[ask, ask_by_ctx])
    result = agent.run("x", deps=SHOP)
    assert [message.content for message in result.messages if message.role == "tool"] == ["shop", "shop"]


def test_a_nested_run_whose_outer_run_has_no_deps_is_an_error_of_its_tool():
    inner = scripted_agent([], name="inner", deps_type=Db)

    @tool
    async def ask() -> str:
        return (await inner.arun("x")).reply

    result = scripted_agent([call("ask"), "x"], tools=[ask]).run("x")
    assert "agent 'inner' needs deps" in result.messages[-2].content
    team = Team([scripted_agent([], name="inner", deps_type=Db)])
    result = scripted_agent([call("delegate", to="inner", task="x"), "x"], tools=[team]).run("x")
    assert "agent 'inner' needs deps" in result.messages[-2].content


def test_a_durable_run_needs_its_deps_in_every_process(tmp_path):
    store = RunStore(tmp_path / "runs.db")
    agent = scripted_agent(["a"], deps_type=Db)
    with pytest.raises(TypeError, match="needs deps"):
        agent.run("x", durable=store, run_id="r")
    assert store.journal.get("r") is None
    assert agent.run("x", durable=store, run_id="r", deps=SHOP).reply == "a"
    with pytest.raises(TypeError, match="needs deps"):
        agent.run("x", durable=store, run_id="r")
    assert agent.run("x", durable=store, run_id="r", deps=SHOP).reply == "a"


def test_a_replay_needs_no_deps(tmp_path):
    inner = scripted_agent(["a"], name="inner", deps_type=Db)

    @hook(BEFORE_LLM)
    async def ask(ctx: AgentContext[Db], request):
        if request.hop == 0 and ctx.agent_name == "test":
            await inner.arun("x")

    agent = scripted_agent([call("which"), "x"], deps_type=Db, tools=[which], hooks=[ask])
    agent.run("x", deps=SHOP, hooks=[TapeHook(tmp_path / "run.tape")])
    assert replay(tmp_path / "run.tape", agent).first_difference == ""
    assert replay(tmp_path / "run.tape", agent, ctx=AgentContext(deps=SHOP)).first_difference == ""


# Hooks and tools


@hook(BEFORE_TOOL)
def of_int(ctx: AgentContext[int], request):
    """Take another context."""


@guard(BEFORE_TOOL)
async def of_int_with_point(point: str, ctx: AgentContext[int], request) -> HookResult | None:
    """Take another context."""


class OfInt:
    points = (BEFORE_TOOL,)

    def __call__(self, point: str, ctx: AgentContext[int], request: Any) -> None:
        """Take another context."""


class Methods:
    @hook(BEFORE_TOOL)
    def of_int(self, ctx: AgentContext[int], request: Any) -> None:
        """Take another context."""


def of_union(ctx: AgentContext[int | str] | None, request: Any) -> None:
    """Take another context."""


of_union.points = (BEFORE_TOOL,)


@tool
def int_tool(ctx: AgentContext[int], text: str) -> str:
    return text


def plain_int_tool(text: str, ctx: AgentContext[int]) -> str:
    return text


class IntTools:
    def tools(self):
        return [int_tool]


WRONG_HOOKS = [of_int, of_int_with_point, OfInt(), Methods().of_int, of_union]


@pytest.mark.parametrize("wrong", WRONG_HOOKS, ids=lambda each: getattr(each, "__name__", type(each).__name__))
def test_a_hook_for_other_deps_is_refused_when_it_is_registered(wrong):
    problem = r"hook '\w+' takes an AgentContext\[.*int.*\], but the deps_type of agent 'test' is Db"
    agent = scripted_agent(["a"], deps_type=Db)
    for register in (
        lambda: scripted_agent([], deps_type=Db, hooks=[wrong]),
        lambda: scripted_agent([], deps_type=Db, hooks=HookRegistry([wrong])),
        lambda: scripted_agent([], deps_type=Db, plugins=[Plugin("p", hooks=[wrong])]),
        lambda: agent.register_hook(wrong),
        lambda: agent.plug(Plugin("p", hooks=[wrong])),
        lambda: agent.run("x", deps=SHOP, hooks=[wrong]),
    ):
        with pytest.raises(RegistrationError, match=problem):
            register()
    assert list(agent.hooks) == []
    assert agent.run("x", deps=SHOP).reply == "a"
    assert scripted_agent(["a"], hooks=[wrong]).run("x").reply == "a"  # an agent without a deps_type


@pytest.mark.parametrize("wrong", [int_tool, plain_int_tool, IntTools()])
def test_a_tool_for_other_deps_is_refused_when_it_is_registered(wrong):
    problem = r"tool '\w+' takes an AgentContext\[int\], but the deps_type of agent 'test' is Db"
    agent = scripted_agent([], deps_type=Db)
    for register in (
        lambda: scripted_agent([], deps_type=Db, tools=[which, wrong]),
        lambda: agent.plug(Plugin("p", tools=[wrong])),
    ):
        with pytest.raises(RegistrationError, match=problem):
            register()
    assert list(agent.tools) == []


def with_context(kind: Any) -> Any:
    """Make a hook whose context has this annotation."""

    def made(ctx, payload):
        """Do nothing."""

    made.__annotations__["ctx"] = kind
    return hook(BEFORE_LLM)(made)


@each_case(
    "kind",
    [
        "AgentContext[Db]",
        "AgentContext[Unknown]",  # a name that only type checkers know
        "AgentContext['Db']",
        "AgentContext[Db] | None",
        "Unknown",
        "not Python",
        AgentContext,
        AgentContext[Db],
        AgentContext[Replica],  # the deps may be one
        AgentContext[object],
        AgentContext[Any],
        AgentContext[T],
        AgentContext[Named],
        AgentContext[Row],
        AgentContext[Odd],
        AgentContext[Db | int],
        AgentContext[Optional[Db]],  # noqa: UP045
        AgentContext[Annotated[Db, "x"]],
        Any,
        None,
        3,
    ],
)
def test_a_hook_whose_deps_may_fit_is_accepted(kind):
    assert scripted_agent(["a"], deps_type=Db, hooks=[with_context(kind)]).run("x", deps=SHOP).reply == "a"


@pytest.mark.parametrize(
    ("deps_type", "taken"),
    [
        (int, float),
        (bool, int),
        (Name, str),
        (str, Name),
        (Box[int], Box[str]),  # the arguments are not compared
        (Db | None, Db),
        (Db | str, str),
        (Row, dict),
        (Named, Db),
        ("Db", int),  # not a type
        (list[int], list),
    ],
)
def test_types_that_may_fit_are_accepted(deps_type, taken):
    scripted_agent([], deps_type=deps_type, hooks=[with_context(AgentContext[taken])])


@pytest.mark.parametrize(
    ("deps_type", "taken"), [(str, int), (Db, Db.__class__), (Box[int], Db), (Db | None, int), (str, bytes | int)]
)
def test_types_that_cannot_fit_are_refused(deps_type, taken):
    with pytest.raises(RegistrationError, match="takes an AgentContext"):
        scripted_agent([], deps_type=deps_type, hooks=[with_context(AgentContext[taken])])


def test_a_hook_that_is_wrapped_or_bound_is_read_too():
    @functools.wraps(of_int.fn)
    def wrapped(*args):
        """Call nothing."""

    for each in (hook(BEFORE_TOOL)(functools.partial(of_int.fn)), hook(BEFORE_TOOL)(wrapped)):
        with pytest.raises(RegistrationError, match=r"takes an AgentContext\[int\]"):
            scripted_agent([], deps_type=Db, hooks=[each])


def test_an_annotation_that_does_not_exist_at_run_time_is_accepted():
    def cont(ctx: AgentContext[Db], payload: Unknown) -> None:
        """Have an annotation that does not exist at run time."""

    agent = scripted_agent([reply("a")], deps_type=Db, hooks=[hook(BEFORE_LLM)(cont)])
    assert agent.run("x", deps=SHOP).reply == "a"
