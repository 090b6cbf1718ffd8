"""Pydantic AI: a model that is a function, and a Hooks capability with n functions on each main point."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.capabilities import Hooks
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import UsageLimits
from workload import FINAL, PROMPT

HOOKS = {"before_run", "after_run", "before_model", "after_model", "before_tool", "after_tool"}
TOOLS = {"add"}


async def before_run(ctx):
    pass


async def after_run(ctx, *, result):
    return result


async def before_model(ctx, request_context):
    return request_context


async def after_model(ctx, *, request_context, response):
    return response


async def before_tool(ctx, *, call, tool_def, args):
    return args


async def after_tool(ctx, *, call, tool_def, args, result):
    return result


async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return "3"


def build(spec):
    async def model(messages, info):
        if spec.delay:
            await asyncio.sleep(spec.delay)
        done = len(messages) // 2
        if done < spec.steps - 1:
            return ModelResponse(parts=[ToolCallPart("add", {"a": 1, "b": 2}, tool_call_id=f"c{done}")])
        return ModelResponse(parts=[TextPart(FINAL)])

    hooks = Hooks()
    for _ in range(spec.count()):
        hooks.on.before_run(before_run)
        hooks.on.after_run(after_run)
        hooks.on.before_model_request(before_model)
        hooks.on.after_model_request(after_model)
        hooks.on.before_tool_execute(before_tool)
        hooks.on.after_tool_execute(after_tool)
    capabilities = [hooks] if spec.count() else []
    if spec.adapter:
        from hookline.adapters.pydantic_ai import HooklineCapability

        capabilities = [HooklineCapability(*spec.hookline_hooks())]
    agent = Agent(FunctionModel(model), tools=[add], capabilities=capabilities)
    limits = UsageLimits(request_limit=None)

    async def run():
        result = await agent.run(PROMPT, usage_limits=limits)
        assert result.output == FINAL
        return sum(message.kind == "response" for message in result.all_messages())

    return run


class Request:
    messages = ()


def dispatchers():
    def make(n):
        hooks, request = Hooks(), Request()
        for _ in range(n):
            hooks.on.before_model_request(before_model)
        return lambda: hooks.before_model_request(None, request)

    return {"pydantic-ai, Hooks": (True, make)}
