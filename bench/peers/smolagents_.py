"""smolagents: its loop is synchronous, its hooks are callbacks after each step.

A reply that is only text does not end a run, so the last step calls the tool ``final_answer``.
"""

import time

from smolagents import ActionStep, LogLevel, Model, Tool, ToolCallingAgent
from smolagents.memory import CallbackRegistry, FinalAnswerStep
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from workload import FINAL, PROMPT

HOOKS, TOOLS = {"noop"}, {"forward"}


def noop(step, agent=None):
    pass


class Add(Tool):
    name = "add"
    description = "Add two numbers."
    inputs = {"a": {"type": "integer", "description": "a"}, "b": {"type": "integer", "description": "b"}}  # noqa: RUF012
    output_type = "string"

    def forward(self, a: int, b: int) -> str:
        return "3"


class FakeModel(Model):
    def __init__(self, spec):
        super().__init__()
        self.spec = spec

    def generate(self, messages, stop_sequences=None, response_format=None, tools_to_call_from=None, **kwargs):
        if self.spec.delay:
            time.sleep(self.spec.delay)
        done = sum(message.role == MessageRole.TOOL_CALL for message in messages)
        name, arguments = (
            ("add", {"a": 1, "b": 2}) if done < self.spec.steps - 1 else ("final_answer", {"answer": FINAL})
        )
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        call = ChatMessageToolCall(function=function, id=f"c{done}", type="function")
        return ChatMessage(role=MessageRole.ASSISTANT, content=None, tool_calls=[call])


def build(spec):
    hooks = [noop] * spec.count()
    agent = ToolCallingAgent(
        tools=[Add()], model=FakeModel(spec), verbosity_level=LogLevel.OFF, max_steps=spec.steps + 5,
        step_callbacks={ActionStep: hooks, FinalAnswerStep: hooks},
    )  # fmt: skip

    async def run():
        assert agent.run(PROMPT, reset=True) == FINAL
        return sum(isinstance(step, ActionStep) for step in agent.memory.steps)

    return run


def dispatchers():
    def make(n):
        registry, step = CallbackRegistry(), ActionStep(step_number=1, timing=None)
        for _ in range(n):
            registry.register(ActionStep, noop)
        return lambda: registry.callback(step, agent=None)

    return {"smolagents, callbacks": (False, make)}
