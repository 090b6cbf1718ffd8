"""OpenAI Agents SDK: a run takes one object of hooks, so ten hooks are a loop in that object."""

import asyncio

from agents import Agent, Model, ModelResponse, RunConfig, RunHooks, Runner, Usage, function_tool, set_tracing_disabled
from agents.testing import assistant_message, function_call
from workload import FINAL, PROMPT

HOOKS, TOOLS = {"noop"}, {"add"}
set_tracing_disabled(True)


async def noop(*args):
    pass


@function_tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return "3"


class FakeModel(Model):
    def __init__(self, spec):
        self.spec = spec

    async def get_response(self, system_instructions, input, *args, **kwargs):
        if self.spec.delay:
            await asyncio.sleep(self.spec.delay)
        done = 0 if isinstance(input, str) else len(input) // 2
        if done < self.spec.steps - 1:
            out = function_call("add", {"a": 1, "b": 2}, call_id=f"c{done}")
        else:
            out = assistant_message(FINAL)
        return ModelResponse(output=[out], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


class Several(RunHooks):
    def __init__(self, n):
        self.hooks = [noop] * n

    async def each(self, *args):
        for hook in self.hooks:
            await hook(*args)

    on_llm_start = on_llm_end = on_agent_start = on_agent_end = on_tool_start = on_tool_end = each


def build(spec):
    agent = Agent(name="bench", model=FakeModel(spec), tools=[add])
    hooks = Several(spec.count()) if spec.count() else None
    config, runner = RunConfig(tracing_disabled=True), Runner
    if spec.adapter:
        from hookline.adapters.openai_agents import HooklineRunner

        runner = HooklineRunner(*spec.hookline_hooks())

    async def run():
        result = await runner.run(agent, PROMPT, max_turns=spec.steps + 5, hooks=hooks, run_config=config)
        assert result.final_output == FINAL
        return len(result.raw_responses)

    return run
