"""Agents, runs and results: what type checkers accept, and which types they find."""

from dataclasses import dataclass
from typing import Any, assert_type

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, Session, ToolCallRequest, guard, tool


@dataclass
class Deps:
    user: str


@dataclass
class Weather:
    degrees: float


# The context has the user's own type of deps, in hooks and in tools.
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


# Without an output type the output is the reply; with one it is a value of that type.
plain = Agent("plain", llm=ScriptedModel(["hello"], loop=True), hooks=[any_deps])
assert_type(plain, Agent[object, str])
assert_type(plain.run("x").output, str)

typed = Agent("typed", llm=ScriptedModel(['{"degrees": 3}'], loop=True), tools=[whoami], output_type=Weather)
assert_type(typed.run("How warm is it?").output, Weather)
assert typed.run("How warm is it?").output.degrees == 3

lists = Agent("lists", llm=ScriptedModel(['{"value": ["a"]}'], loop=True), output_type=list[str])
assert_type(lists.run("x").output, list[str])

# Type checkers do not see a type in A | B: say it in an annotation.
union: Agent[Any, int | str] = Agent("union", llm=ScriptedModel(['{"value": 3}'], loop=True), output_type=int | str)
assert_type(union.run("x").output, int | str)

with_deps = Agent("deps", llm=ScriptedModel(["hi"], loop=True), deps_type=Deps, hooks=[only_admins], tools=[whoami])
assert_type(with_deps, Agent[Deps, str])

with_deps.run("x", deps=Deps("admin"), session=Session(), metadata={"a": 1}, sinks=[print])


async def runs() -> None:
    result = await typed.arun("How warm is it?")
    assert_type(result.output, Weather)
    run = typed.start("How warm is it?")
    assert_type((await run.result()).output, Weather)
    async for event in typed.stream("How warm is it?"):
        event.seq.bit_length()
