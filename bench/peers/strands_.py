"""Strands: an agent is one conversation, so each run makes an agent."""

import asyncio

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    HookProvider,
    HookRegistry,
)
from strands.models import Model
from workload import ARGUMENTS, FINAL, PROMPT

HOOKS, TOOLS = {"noop"}, {"add"}
EVENTS = (
    BeforeInvocationEvent,
    AfterInvocationEvent,
    BeforeModelCallEvent,
    AfterModelCallEvent,
    BeforeToolCallEvent,
    AfterToolCallEvent,
)


async def noop(event):
    pass


def noop_sync(event):
    pass


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return "3"


class FakeModel(Model):
    def __init__(self, spec):
        self.spec = spec

    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    def structured_output(self, *args, **kwargs):
        raise NotImplementedError

    async def stream(self, messages, tool_specs=None, system_prompt=None, **kwargs):
        if self.spec.delay:
            await asyncio.sleep(self.spec.delay)
        done = len(messages) // 2
        yield {"messageStart": {"role": "assistant"}}
        if done < self.spec.steps - 1:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "add", "toolUseId": f"c{done}"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": ARGUMENTS}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": FINAL}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if done < self.spec.steps - 1 else "end_turn"}}


class Several(HookProvider):
    def __init__(self, n):
        self.n = n

    def register_hooks(self, registry, **kwargs):
        for event in EVENTS:
            for _ in range(self.n):
                registry.add_callback(event, noop)


def build(spec):
    model = FakeModel(spec)
    hooks = [Several(spec.count())] if spec.count() else None

    async def run():
        manager = NullConversationManager() if spec.steps > 15 else None  # the usual one keeps 40 messages
        plugins = []
        if spec.adapter:  # one for each agent
            from hookline.adapters.strands import HooklinePlugin

            plugins = [HooklinePlugin(*spec.hookline_hooks())]
        agent = Agent(
            model=model,
            tools=[add],
            hooks=hooks,
            plugins=plugins,
            callback_handler=None,
            conversation_manager=manager,
        )
        await agent.invoke_async(PROMPT)
        return sum(message["role"] == "assistant" for message in agent.messages)

    return run


def dispatchers():
    event = BeforeModelCallEvent(agent=None)

    def made(n, hook):
        registry = HookRegistry()
        for _ in range(n):
            registry.add_callback(BeforeModelCallEvent, hook)
        return registry

    def sync(n):
        registry = made(n, noop_sync)
        return lambda: registry.invoke_callbacks(event)

    def asynchronous(n):
        registry = made(n, noop)
        return lambda: registry.invoke_callbacks_async(event)

    return {"strands, sync callbacks": (False, sync), "strands, async callbacks": (True, asynchronous)}
