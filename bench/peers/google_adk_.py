"""Google ADK: a runner with n plugins, and a new session in memory for each run."""

import asyncio
import logging
import os

os.environ["ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS"] = "false"

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.runners import InMemoryRunner
from google.genai import types
from workload import FINAL, PROMPT

logging.disable(logging.WARNING)

HOOKS = {
    "before_run_callback",
    "after_run_callback",
    "before_model_callback",
    "after_model_callback",
    "before_tool_callback",
    "after_tool_callback",
}
TOOLS = {"add"}


class FakeModel(BaseLlm):
    steps: int
    delay: float

    async def generate_content_async(self, llm_request, stream=False):
        if self.delay:
            await asyncio.sleep(self.delay)
        done = len(llm_request.contents) // 2
        if done < self.steps - 1:
            part = types.Part(function_call=types.FunctionCall(id=f"c{done}", name="add", args={"a": 1, "b": 2}))
        else:
            part = types.Part(text=FINAL)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def add(a: int, b: int) -> dict:
    """Add two numbers."""
    return {"result": "3"}


class Noop(BasePlugin):
    async def before_run_callback(self, **kwargs):
        pass

    async def after_run_callback(self, **kwargs):
        pass

    async def before_model_callback(self, **kwargs):
        pass

    async def after_model_callback(self, **kwargs):
        pass

    async def before_tool_callback(self, **kwargs):
        pass

    async def after_tool_callback(self, **kwargs):
        pass


def plugins(n):
    return [Noop(name=f"p{i}") for i in range(n)]


def build(spec):
    model = FakeModel(model="fake", steps=spec.steps, delay=spec.delay)
    agent = LlmAgent(name="bench", model=model, tools=[add])
    chosen = plugins(spec.count())
    if spec.adapter:
        from hookline.adapters.google_adk import HooklinePlugin

        chosen = [HooklinePlugin(*spec.hookline_hooks())]
    runner = InMemoryRunner(agent=agent, app_name="bench", plugins=chosen)
    sessions, config = runner.session_service, RunConfig(max_llm_calls=0)

    async def run():
        session = await sessions.create_session(app_name="bench", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text=PROMPT)])
        steps = 0
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message, run_config=config):
            if event.content and event.content.role == "model":
                steps += 1
        await sessions.delete_session(app_name="bench", user_id="u", session_id=session.id)
        return steps

    return run


def dispatchers():
    def make(n):
        manager = PluginManager(plugins=plugins(n))
        return lambda: manager.run_before_model_callback(callback_context=None, llm_request=None)

    return {"google-adk, plugins": (True, make)}
