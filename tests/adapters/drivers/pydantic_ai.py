"""pydantic-ai: an agent with Hookline's capability."""

import json
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse as AiResponse
from pydantic_ai.messages import TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from hookline import Message, ModelRequest
from hookline.adapters.pydantic_ai import SUPPORT, HooklineCapability
from hookline.models import ModelResponse

from ..loops import Case, LoopDriver, Outcome, in_thread


def scripted(script: Any) -> FunctionModel:
    """Return a model of pydantic-ai that answers as a scripted model of Hookline does."""

    async def answer(messages: list[Any], info: AgentInfo) -> AiResponse:
        response: ModelResponse = await script.complete(request(messages, info))
        parts: list[Any] = [TextPart(response.content)] if response.content else []
        parts += [ToolCallPart(call.name, dict(call.arguments), call.id) for call in response.tool_calls]
        return AiResponse(parts=parts)

    async def stream(messages: list[Any], info: AgentInfo) -> AsyncIterator[Any]:
        async for piece in script.stream(request(messages, info)):
            if isinstance(piece, str):
                yield piece
            elif piece.tool_calls:
                yield {
                    number: DeltaToolCall(call.name, json.dumps(dict(call.arguments)), tool_call_id=call.id)
                    for number, call in enumerate(piece.tool_calls)
                }

    return FunctionModel(answer, stream_function=stream)


def request(messages: list[Any], info: AgentInfo) -> ModelRequest:
    read = [Message("system", info.instructions)] if info.instructions else []
    for message in messages:
        for part in message.parts:
            if part.part_kind == "tool-return":
                read.append(Message("tool", part.model_response_str(wrap_if_error=False), (), part.tool_call_id))
            elif part.part_kind != "tool-call":
                given = [part.content] if isinstance(part.content, str) else part.content
                text = "".join(each for each in given if isinstance(each, str))
                read.append(Message("assistant" if message.kind == "response" else "user", text))
    return ModelRequest(tuple(read))


class Driver(LoopDriver):
    name = "pydantic-ai"
    support = SUPPORT
    modes = ("async", "sync", "stream")

    async def run(self, case: Case) -> Outcome:
        outcome = Outcome()
        options = {**case.options, "sinks": [outcome.events.append, *case.options.get("sinks", ())]}
        capability = HooklineCapability(*case.hooks, **options)
        agent = Agent(scripted(case.model), instructions=case.system, tools=case.tools, capabilities=[capability])
        try:
            if case.mode == "sync":
                outcome.reply = (await in_thread(agent.run_sync, case.task)).output
            elif case.mode == "stream":
                async with agent.run_stream_events(case.task) as events:
                    async for event in events:
                        outcome.shown += shown(event)
                        if event.event_kind == "agent_run_result":
                            outcome.reply = event.result.output
            else:
                outcome.reply = (await agent.run(case.task)).output
        except Exception as error:
            outcome.error = error
        return outcome


def shown(event: Any) -> str:
    """Return the text that an event adds."""
    if event.event_kind == "part_start" and event.part.part_kind == "text":
        return event.part.content
    if event.event_kind == "part_delta" and event.delta.part_delta_kind == "text":
        return event.delta.content_delta
    return ""
