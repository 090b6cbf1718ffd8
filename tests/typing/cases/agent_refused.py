"""Agents, runs and results: what type checkers report."""

from dataclasses import dataclass

from hookline import BEFORE_TOOL, Agent, AgentContext, ScriptedModel, ToolCallRequest, hook, tool


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
plain = Agent("plain", llm=model)
number = Agent("number", llm=model, deps_type=Deps, output_type=int)

Agent("x")  # error: mypy, pyright
Agent("x", llm=model, hooks=["no", 42])  # error: mypy, pyright
Agent("x", llm=model, hooks=[lambda ctx, request: None])  # error: mypy, pyright
Agent("x", llm=model, tols=[whoami])  # error: mypy, pyright
Agent("x", llm=model, max_steps="3")  # error: mypy, pyright
plain.run("x", sesion=None)  # error: mypy, pyright
plain.run(3)  # error: mypy, pyright
plain.start("x", kep=True)  # error: mypy, pyright
number.run("x", deps="admin")  # error: mypy, pyright
number.run("x").output.upper()  # error: mypy, pyright


async def runs() -> None:
    await plain.arun("x", sesion=None)  # error: mypy, pyright
    (await number.arun("x")).output.upper()  # error: mypy, pyright
