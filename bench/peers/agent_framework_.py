"""Microsoft Agent Framework: middleware at agent, chat and function level, which goes around each of them."""

import asyncio
import os

os.environ["ENABLE_INSTRUMENTATION"] = "false"

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    agent_middleware,
    chat_middleware,
    function_middleware,
    tool,
)
from workload import ARGUMENTS, FINAL, PROMPT

HOOKS, TOOLS = {"noop_agent", "noop_chat", "noop_function"}, {"add"}


@tool(approval_mode="never_require")
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return "3"


class FakeClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    def __init__(self, spec):
        super().__init__(function_invocation_configuration={"max_iterations": spec.steps + 5})
        self.spec = spec

    def _inner_get_response(self, *, messages, stream, options, **kwargs):
        async def get():
            if self.spec.delay:
                await asyncio.sleep(self.spec.delay)
            done = len(messages) // 2
            if done < self.spec.steps - 1:
                content = Content.from_function_call(call_id=f"c{done}", name="add", arguments=ARGUMENTS)
            else:
                content = Content.from_text(FINAL)
            return ChatResponse(messages=[Message(role="assistant", contents=[content])])

        return get()


@agent_middleware
async def noop_agent(context, call_next):
    await call_next()


@chat_middleware
async def noop_chat(context, call_next):
    await call_next()


@function_middleware
async def noop_function(context, call_next):
    await call_next()


def build(spec):
    n = spec.count()
    middleware = [noop_agent] * n + [noop_chat] * n + [noop_function] * n
    if spec.adapter:
        from hookline.adapters.agent_framework import HooklineMiddleware

        middleware = [HooklineMiddleware(*spec.hookline_hooks())]
    agent = Agent(client=FakeClient(spec), tools=[add], middleware=middleware)

    async def run():
        reply = await agent.run(PROMPT)
        assert reply.text == FINAL
        return sum(message.role == "assistant" for message in reply.messages)

    return run
