"""Whatever takes an agent takes every agent, of whatever types its deps and its output are."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, assert_type

from starlette.requests import Request

from hookline import BEFORE_TOOL, Agent, AgentContext, HookRegistry, ScriptedModel, ToolCallRequest, get_model, hook
from hookline.channels import Gateway
from hookline.models import Price
from hookline.plugins import Plugin
from hookline.server import Caller, asgi, build_server
from hookline.tape import Replay, replay
from hookline.teams import Team
from hookline.testing import inject_fault, make_context, scripted_agent
from hookline.tools import Tool, mcp, tool


@dataclass
class Db:
    name: str


@hook(BEFORE_TOOL)
def watch(ctx: AgentContext[Db], request: ToolCallRequest) -> None: ...


@tool
def add(a: int, b: int) -> int:
    return a + b


def subtract(a: int, b: int) -> int:
    return a - b


class Multiplication:
    """A toolset of our own."""

    def tools(self) -> Iterable[Tool]:
        return [tool(self.multiply)]

    def multiply(self, a: int, b: int) -> int:
        return a * b


model = ScriptedModel(['{"value": 3}'], loop=True)
plain = Agent("plain", llm=model)
with_deps = Agent("with_deps", llm=model, deps_type=Db, hooks=[watch])
number = Agent("number", llm=model, output_type=int)
both = Agent("both", llm=model, deps_type=Db, output_type=int)

# Teams.
team = Team([plain, with_deps, number])
team.add(both)
Team({"a": number, "b": with_deps}, first="a")
assert_type(team.members["both"], Agent[Any, Any])
assert_type(team.run("x").output, Any)
team.run("x", deps=Db("shop"), metadata={"a": 1}, output_type=int)
team.start("x", keep=False).wait()
Agent("head", llm=model, tools=[team])

# Tools of every kind, alone and together.
Agent("decorated", llm=model, tools=[add])
Agent("functions", llm=model, tools=[subtract])
Agent("toolset", llm=model, tools=[Multiplication()])
Agent("mixed", llm=model, tools=(add, subtract, Multiplication(), team))
Plugin("sums", hooks=[watch], tools=[add, subtract, Multiplication()])


def with_a_server() -> Agent:
    return Agent(
        "server", llm=get_model("openai:gpt-4o", base_url="http://localhost/v1"), tools=[add, mcp("python s.py")]
    )


# Tapes, channels, the server.
def replays() -> Replay:
    replay("x.tape", number)
    replay("x.tape", with_deps, ctx=AgentContext(deps=Db("shop")))
    replay("x.tape", HookRegistry([watch]))
    return replay("x.tape", [watch], run_hooks=[watch])


def find_caller(request: Request) -> Caller | None:
    return Caller("ann", scopes={"read", "run"}) if request.cookies else None


async def find_caller_later(request: Request) -> Caller:
    return Caller("ann", "Ann", frozenset(("read",)), {"team": "sales"})


def priced() -> Agent:
    return Agent("server", llm=get_model("groq:m", price=Price(0.5, 1.5), max_retries=1))


def answers(mailbox: Any, sessions: Any, settings: Any) -> None:
    for answerer in (number, with_deps):
        Gateway(answerer, [], mailbox=mailbox, sessions=sessions)
        build_server(settings, answerer)
        asgi(answerer, authenticate=find_caller)
    asgi([number, with_deps], authenticate=find_caller_later)
    Gateway(team, [], mailbox=mailbox, sessions=sessions, context=lambda session: AgentContext(deps=Db("shop")))


# Tests.
with inject_fault(with_deps, "watch", "raise"):
    pass
assert_type(scripted_agent(["hi"]), Agent[object, str])
assert_type(scripted_agent(["hi"], deps_type=Db, hooks=[watch], tools=[add]), Agent[Db, str])
assert_type(scripted_agent(['{"value": 3}'], name="n", output_type=int).run("x").output, int)
assert_type(scripted_agent(['{"value": 3}'], output_type=int | str).run("x").output, Any)
make_context(tools=[add, subtract], deps=Db("shop"), hooks=[watch])
