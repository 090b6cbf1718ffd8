"""Google ADK: a runner with Hookline's plugin."""

import asyncio
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from hookline import Message, ModelRequest
from hookline.adapters.google_adk import SUPPORT, HooklinePlugin
from hookline.models import ModelResponse

from ..loops import Case, LoopDriver, Outcome

IDENTITY = '\n\nYou are an agent. Your internal name is "helper".'
"""What ADK adds to the system prompt of an agent."""


class Scripted(BaseLlm):
    """A model of ADK that answers as a scripted model of Hookline does."""

    script: Any

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        system = llm_request.config.system_instruction
        messages = [Message("system", system.replace(IDENTITY, ""))] if system else []
        for content in llm_request.contents:
            messages += [read_part(content.role, part) for part in content.parts]
        request = ModelRequest(tuple(messages))
        if not stream:
            yield respond(await self.script.complete(request))
            return
        async for piece in self.script.stream(request):
            if isinstance(piece, ModelResponse):
                yield respond(piece)
            else:
                yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=piece)]), partial=True)


def read_part(role: str, part: Any) -> Message:
    if part.function_response is not None:
        (text,) = part.function_response.response.values()
        return Message("tool", text, (), part.function_response.id)
    return Message("assistant" if role == "model" else "user", part.text or "")


def respond(response: ModelResponse) -> LlmResponse:
    parts = [types.Part(text=response.content)] if response.content else []
    for call in response.tool_calls:
        made = types.FunctionCall(id=call.id, name=call.name, args=dict(call.arguments))
        parts.append(types.Part(function_call=made))
    used = response.usage
    usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=used.input_tokens, candidates_token_count=used.output_tokens
    )
    return LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=usage)


class Driver(LoopDriver):
    name = "Google ADK"
    support = SUPPORT
    modes = ("async", "sync", "stream")

    async def run(self, case: Case) -> Outcome:
        outcome = Outcome()
        options = {**case.options, "sinks": [outcome.events.append, *case.options.get("sinks", ())]}
        agent = LlmAgent(
            name="helper",
            model=Scripted(model="scripted", script=case.model),
            tools=case.tools,
            static_instruction=case.system,
        )
        app = App(name="suite", root_agent=agent, plugins=[HooklinePlugin(*case.hooks, **options)])
        runner = InMemoryRunner(app=app)
        session = await runner.session_service.create_session(app_name="suite", user_id="ada")
        streaming = StreamingMode.SSE if case.mode == "stream" else StreamingMode.NONE
        given = {
            "user_id": "ada",
            "session_id": session.id,
            "new_message": types.Content(role="user", parts=[types.Part(text=case.task)]),
            "run_config": RunConfig(streaming_mode=streaming),
        }
        try:
            if case.mode == "sync":
                for event in await asyncio.to_thread(lambda: list(runner.run(**given))):
                    take(event, outcome)
            else:
                async for event in runner.run_async(**given):
                    take(event, outcome)
        except Exception as error:
            outcome.error = error
        return outcome


def take(event: Any, outcome: Outcome) -> None:
    text = "".join(part.text or "" for part in event.content.parts) if event.content else ""
    if event.partial:
        outcome.shown += text
    elif event.is_final_response():
        outcome.reply = text
