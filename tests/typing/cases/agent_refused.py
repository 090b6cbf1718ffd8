"""Agents, runs and results: what type checkers report."""

from dataclasses import dataclass

from hookline import BEFORE_TOOL, Agent, AgentContext, Limits, ScriptedModel, ToolCallRequest, guard, hook, tool
from hookline.testing import scripted_agent


@dataclass
class Deps:
    user: str


@hook(BEFORE_TOOL)
def misspelt_dep(ctx: AgentContext[Deps], request: ToolCallRequest) -> None:
    print(ctx.deps.usr)  # error: mypy, pyright


@hook(BEFORE_TOOL)
def reaches_into_the_run(ctx: AgentContext[Deps], request: ToolCallRequest) -> None:
    ctx.session = None  # error: mypy, pyright
    ctx.budget.charge(3)  # error: mypy, pyright
    ctx.append("hi")  # error: mypy, pyright


@tool
def whoami(ctx: AgentContext[Deps]) -> str:
    return ctx.deps.user


model = ScriptedModel([])
Agent("a", llm=model, record=3)  # error: mypy, pyright
plain = Agent("plain", llm=model)
admin = Deps("admin")
number = Agent("number", llm=model, deps_type=Deps, output_type=int)

Agent("x")  # error: mypy, pyright
Agent("x", llm=model, hooks=["no", 42])  # error: mypy, pyright
Agent("x", llm=model, hooks=[lambda ctx, request: None])  # error: mypy, pyright
Agent("x", llm=model, tols=[whoami])  # error: mypy, pyright
Agent("x", llm=model, limits=Limits(steps="3"))  # error: mypy, pyright
Agent("x", llm=model, tools=["no", 4])  # error: mypy, pyright
Agent("x", llm=model, tools=[whoami, 4])  # error: mypy, pyright
Agent("x", llm=model, tools=whoami)  # error: mypy, pyright
Agent("x", llm=model, output_type=int | str, limits=Limits(steps="3"))  # error: mypy, pyright
AgentContext(hooks=["no"])  # error: mypy, pyright
AgentContext(hooks=[lambda ctx, request: None])  # error: mypy, pyright
plain.register_hook("no")  # error: mypy, pyright
plain.register_hook(lambda ctx, request: None)  # error: mypy, pyright
plain.register_hook(misspelt_dep, priorty=3)  # error: mypy, pyright
plain.register_hook(misspelt_dep, on_failure="never")  # error: mypy, pyright
plain.run("x", sesion=None)  # error: mypy, pyright
plain.run(3)  # error: mypy, pyright
plain.start("x", kep=True)  # error: mypy, pyright
number.run("x", deps="admin")  # error: mypy, pyright
number.run("x", deps=admin).output.upper()  # error: mypy, pyright
plain.run("x", output_type=int).output.upper()  # error: mypy, pyright
plain.run("x", output_type=int, sesion=None)  # error: mypy, pyright
number.run("x", output_type=str, deps="admin")  # error: mypy, pyright
number.run("x", output_type=str, deps=admin).output.bit_length()  # error: mypy, pyright
plain.run("x").output_or_none.upper()  # error: mypy, pyright
plain.start("x", output_type=int).wait().output.upper()  # error: mypy, pyright
plain.start("x", output_type=int | str, kep=True)  # error: mypy, pyright


def needs_deps(ctx: AgentContext[Deps]) -> None: ...


without_deps = AgentContext()
needs_deps(without_deps)  # error: mypy, pyright
needs_deps(AgentContext(deps="admin"))  # error: mypy, pyright


async def runs() -> None:
    await plain.arun("x", sesion=None)  # error: mypy, pyright
    (await number.arun("x", deps=admin)).output.upper()  # error: mypy, pyright
    (await plain.arun("x", output_type=int)).output.upper()  # error: mypy, pyright
    await plain.arun("x", output_type=int | str, sesion=None)  # error: mypy, pyright
    async for _ in plain.stream("x", output_type=int, sesion=None):  # error: mypy, pyright
        pass
    await number.arun("x")  # error: mypy, pyright
    async for _ in number.stream("x"):  # error: mypy, pyright
        pass


# Deps are required by an agent that has a type for them.
number.run("x")  # error: mypy, pyright
number.run("x", output_type=str)  # error: mypy, pyright
number.run("x", output_type=int | str)  # error: mypy, pyright
number.run("x", deps=None)  # error: mypy, pyright
number.run("x", ctx=without_deps)  # error: mypy, pyright
number.start("x", keep=False)  # error: mypy, pyright


def run_it(agent: Agent[Deps | None, str], other: Agent[Deps, str]) -> None:
    agent.run("x", deps="admin")  # error: mypy, pyright
    run_it(other, other)  # error: mypy, pyright


# Hooks and tools for other deps.
@hook(BEFORE_TOOL)
def int_hook(ctx: AgentContext[int], request: ToolCallRequest) -> None: ...


@guard(BEFORE_TOOL)
async def int_guard(point: str, ctx: AgentContext[int], request: ToolCallRequest) -> None: ...


class IntHook:
    points = (BEFORE_TOOL,)

    def __call__(self, point: str, ctx: AgentContext[int], request: ToolCallRequest) -> None: ...


@tool
def int_tool(ctx: AgentContext[int], text: str) -> str:
    return text


@tool(timeout=3)
async def slow_int_tool(ctx: AgentContext[int], text: str) -> str:
    return text


Agent("x", llm=model, deps_type=Deps, hooks=[int_hook])  # error: mypy, pyright
Agent("x", llm=model, deps_type=Deps, hooks=[int_guard])  # error: mypy, pyright
Agent("x", llm=model, deps_type=Deps, hooks=[misspelt_dep, IntHook()])  # error: mypy, pyright
Agent("x", llm=model, deps_type=Deps, output_type=int, hooks=[int_hook])  # error: mypy, pyright
Agent("x", llm=model, deps_type=Deps, output_type=int | str, hooks=[int_hook])  # error: mypy, pyright
scripted_agent([], deps_type=Deps, tools=[int_tool])  # error: mypy, pyright
scripted_agent([], deps_type=Deps).run("x")  # error: mypy, pyright
Agent("x", llm=model, deps_type=Deps, tools=[int_tool])  # error: mypy, pyright
Agent("x", llm=model, deps_type=Deps, tools=[whoami, slow_int_tool])  # error: mypy, pyright
number.register_hook(int_hook)  # error: mypy, pyright
number.run("x", deps=admin, hooks=[int_hook])  # error: mypy, pyright


class Findings:
    kinds: list[str]


class OwnState:
    points = (BEFORE_TOOL,)

    def __call__(self, point: str, ctx: AgentContext, request: ToolCallRequest) -> None:
        ctx.own_state(self, Findings).kind  # error: mypy, pyright
        ctx.own_state(self, Findings())  # error: mypy, pyright
