"""Agents, runs and results: what type checkers accept, and which types they find."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

from hookline import (
    BEFORE_TOOL,
    Agent,
    AgentContext,
    HookRegistry,
    HookResult,
    ScriptedModel,
    Session,
    ToolCallRequest,
    guard,
    hook,
    observer,
    tool,
)
from hookline.hooks import Hook, Verdict
from hookline.records import RecordHook


@dataclass
class Deps:
    user: str


@dataclass
class Weather:
    degrees: float


# The context has the type of the user's deps, in hooks and in tools.
@guard(BEFORE_TOOL)
def only_admins(ctx: AgentContext[Deps], request: ToolCallRequest) -> HookResult | None:
    assert_type(ctx.deps, Deps)
    return None if ctx.deps.user == "admin" else HookResult.block("Admins only.")


@guard(BEFORE_TOOL)
async def any_deps(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    return None


@tool
def whoami(ctx: AgentContext[Deps]) -> str:
    """Say who the user is."""
    return ctx.deps.user


@tool
def later(minutes: int, ctx: AgentContext[Deps]) -> str:
    return ctx.deps.user


# Without an output type the output is the reply; with one it is a value of that type.
plain = Agent("plain", llm=ScriptedModel(["hello"], loop=True), hooks=[any_deps])
assert_type(plain, Agent[object, str])
assert_type(plain.run("x").output, str)

typed = Agent("typed", llm=ScriptedModel(['{"degrees": 3}'], loop=True), tools=[later], output_type=Weather)
assert_type(typed.run("How warm is it?").output, Weather)
assert typed.run("How warm is it?").output.degrees == 3
assert_type(typed.run("How warm is it?").output_or_none, Weather | None)

lists = Agent("lists", llm=ScriptedModel(['{"value": ["a"]}'], loop=True), output_type=list[str])
assert_type(lists.run("x").output, list[str])

# For type checkers A | B is not a type: the output is Any, unless it is annotated.
either = Agent("either", llm=ScriptedModel(['{"value": 3}'], loop=True), output_type=int | str)
assert_type(either.run("x").output, Any)
assert_type(either.run("x", deps=3).output, Any)
maybe = Agent("maybe", llm=ScriptedModel(['{"value": null}'], loop=True), deps_type=Deps, output_type=int | None)
assert_type(maybe, Agent[Deps, Any])
assert_type(maybe.run("x", deps=Deps("admin")).output, Any)
union: Agent[Any, int | str] = Agent("union", llm=ScriptedModel(['{"value": 3}'], loop=True), output_type=int | str)
assert_type(union.run("x").output, int | str)

with_deps = Agent("deps", llm=ScriptedModel(["hi"], loop=True), deps_type=Deps, hooks=[only_admins], tools=[whoami])
assert_type(with_deps, Agent[Deps, str])

with_deps.run("x", deps=Deps("admin"), session=Session(), metadata={"a": 1}, sinks=[print])

# A run may have another output type.
counting = Agent("counting", llm=ScriptedModel(['{"value": 3}'], loop=True), deps_type=Deps)
admin = Deps("admin")
assert_type(counting.run("how many", output_type=int, deps=admin).output, int)
assert_type(counting.run("how many", output_type=int | str, deps=admin).output, Any)
assert_type(counting.run("how many", output_type=None, deps=admin).output, str)
assert_type(counting.start("how many", output_type=int, keep=False, deps=admin).wait().output, int)
assert_type(counting.start("how many", output_type=int | str, deps=admin).wait().output, Any)
assert_type(counting.start("how many", deps=admin).wait().output, str)
assert_type(plain.run("how many", output_type=str).output, str)

# The deps may also be in the context.
context = AgentContext(deps=admin)
assert_type(counting.run("how many", ctx=context).output, str)
assert_type(counting.run("how many", output_type=int, ctx=context).output, int)
assert_type(counting.run("how many", output_type=int | str, ctx=context, deps=admin).output, Any)
assert_type(counting.start("how many", output_type=int, ctx=context).wait().output, int)

# An agent without deps takes any, and one whose deps may be None needs none.
plain.run("x", deps=3)
plain.run("x", ctx=context)
optional: Agent[Deps | None, str] = Agent("optional", llm=ScriptedModel(["a"], loop=True), deps_type=Deps | None)
assert_type(optional.run("x").output, str)
optional.run("x", deps=admin)


def run_any(agent: Agent[Any, Any], one: Agent[Deps, str]) -> None:
    agent.run("x", deps=admin)
    one.run("x", deps=admin)


run_any(counting, plain)  # an agent that takes any deps is one that takes these


# Hooks and tools take the deps of their agent, or those of a base class.
class Admin(Deps):
    pass


class CountCalls:
    points = (BEFORE_TOOL,)

    def __call__(self, point: str, ctx: AgentContext[Deps], request: ToolCallRequest) -> None:
        assert_type(ctx.own_state(self, Counter[str]), Counter[str])
        assert_type(ctx.own_state(self, lambda: Deps("x")), Deps)


class WithPhase:
    points = (BEFORE_TOOL,)

    def __call__(self, point: str, ctx: AgentContext[Deps], request: ToolCallRequest, *, phase: str) -> None: ...


@observer(BEFORE_TOOL)
def with_verdict(ctx: AgentContext[Deps], request: ToolCallRequest, verdict: Verdict) -> None: ...


@hook(BEFORE_TOOL)
def with_point(point: str, ctx: AgentContext[Deps], request: ToolCallRequest) -> ToolCallRequest:
    return request


def plus_one(a: int) -> int:
    return a + 1


of_admins = Agent(
    "of_admins",
    llm=ScriptedModel(["a"]),
    deps_type=Admin,
    hooks=[only_admins, any_deps, CountCalls(), WithPhase(), with_verdict, with_point],
    tools=[whoami, later, plus_one],
)
assert_type(of_admins, Agent[Admin, str])
of_admins.run("x", deps=Admin("ann"), hooks=[only_admins])
of_admins.register_hook(only_admins)()
any_hooks: list[Hook] = [only_admins, any_deps, CountCalls()]
Agent("a", llm=ScriptedModel([]), deps_type=Deps, hooks=any_hooks)


async def runs() -> None:
    assert_type((await counting.arun("how many", output_type=int, deps=admin)).output, int)
    assert_type((await counting.arun("how many", output_type=int | str, ctx=context)).output, Any)
    async for _ in counting.stream("how many", output_type=int | str, deps=admin):
        pass
    async for _ in counting.stream("how many", ctx=context):
        pass
    result = await typed.arun("How warm is it?")
    assert_type(result.output, Weather)
    run = typed.start("How warm is it?")
    assert_type((await run.result()).output, Weather)
    async for event in typed.stream("How warm is it?"):
        event.seq.bit_length()


asyncio.run(runs())


# Deps of a context are read-only, so a context is covariant in them.
def session_id(ctx: AgentContext) -> str:
    return ctx.session.id


def named(ctx: AgentContext[object]) -> str:
    return ctx.agent_name


def audited(ctx: AgentContext[Deps]) -> str:
    return session_id(ctx) + named(ctx) + session_id(ctx.detached())


assert_type(AgentContext(deps=Deps("admin")), AgentContext[Deps])
assert_type(AgentContext(), AgentContext[object])
with_hooks = AgentContext(deps=Deps("admin"), hooks=[only_admins, any_deps])
audited(with_hooks)
AgentContext(hooks=HookRegistry([any_deps]))
with_deps.run("x", ctx=with_hooks)

# register_hook has the same options as a registry.
with_deps.register_hook(any_deps, name="again", priority=5, on_failure="block", tools="whoami")()
with_deps.register_hook(lambda ctx, request: None, points=BEFORE_TOOL, phase="guard", timeout=1.0)()


# Records: on, off, a folder, or a hook with options.
Agent("a", llm=ScriptedModel([]), record=True)
Agent("a", llm=ScriptedModel([]), record="records")
Agent("a", llm=ScriptedModel([]), record=Path("records"))
Agent("a", llm=ScriptedModel([]), record=RecordHook("records", points="all", redact=False))
Agent("a", llm=ScriptedModel([]), record=RecordHook(points=[BEFORE_TOOL], redact=str.lower, max_size=None, max_age=7))
