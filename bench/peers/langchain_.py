"""LangChain: an agent with n middlewares, without a checkpointer; of tools there is only a point around."""

import asyncio
import os

os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.callbacks.manager import ahandle_event, handle_event
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from workload import FINAL, PROMPT

HOOKS, TOOLS = {"abefore_agent", "aafter_agent", "abefore_model", "aafter_model", "awrap_tool_call"}, {"add"}


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return "3"


class FakeModel(BaseChatModel):
    steps: int
    delay: float

    @property
    def _llm_type(self):
        return "fake"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        done = len(messages) // 2
        if done < self.steps - 1:
            message = AIMessage(content="", tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}, "id": f"c{done}"}])
        else:
            message = AIMessage(content=FINAL)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
        if self.delay:
            await asyncio.sleep(self.delay)
        return self._generate(messages)


class Noop(AgentMiddleware):
    def __init__(self, number):
        super().__init__()
        self._name = f"noop{number}"

    @property
    def name(self):
        return self._name

    async def abefore_agent(self, state, runtime):
        pass

    async def aafter_agent(self, state, runtime):
        pass

    async def abefore_model(self, state, runtime):
        pass

    async def aafter_model(self, state, runtime):
        pass

    async def awrap_tool_call(self, request, handler):
        return await handler(request)


def build(spec):
    middleware = [Noop(number) for number in range(spec.count())]
    if spec.adapter:
        from hookline.adapters.langchain import HooklineMiddleware

        middleware = [HooklineMiddleware(*spec.hookline_hooks())]
    agent = create_agent(FakeModel(steps=spec.steps, delay=spec.delay), tools=[add], middleware=middleware)
    task = {"messages": [{"role": "user", "content": PROMPT}]}

    async def run():
        out = await agent.ainvoke(task, config={"recursion_limit": 100_000})
        return sum(message.type == "ai" for message in out["messages"])

    return run


class NoopHandler(BaseCallbackHandler):
    def on_custom_event(self, name, data, **kwargs):
        pass


class NoopAsyncHandler(AsyncCallbackHandler):
    async def on_custom_event(self, name, data, **kwargs):
        pass


def dispatchers():
    event = ("on_custom_event", "ignore_custom_event", "x", None)

    def sync(n):
        handlers = [NoopHandler() for _ in range(n)]
        return lambda: handle_event(handlers, *event)

    def asynchronous(n):
        handlers = [NoopAsyncHandler() for _ in range(n)]
        return lambda: ahandle_event(handlers, *event)

    return {"langchain, sync callbacks": (False, sync), "langchain, async callbacks": (True, asynchronous)}
