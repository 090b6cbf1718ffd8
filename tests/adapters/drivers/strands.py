"""Strands: an agent with Hookline's plugin."""

import asyncio
import json
from typing import Any

from strands import Agent, tool
from strands.models import Model

from hookline import Message, ModelRequest
from hookline.adapters.strands import SUPPORT, HooklinePlugin
from hookline.models import ModelResponse

from ..loops import Case, LoopDriver, Outcome


class Scripted(Model):
    """A model of Strands that answers as a scripted model of Hookline does."""

    def __init__(self, script: Any) -> None:
        self.script = script

    def update_config(self, **config: Any) -> None:
        raise NotImplementedError

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **_: Any) -> Any:
        system = [Message("system", system_prompt)] if system_prompt else []
        request = ModelRequest((*system, *[read for message in messages for read in read_message(message)]))
        yield {"messageStart": {"role": "assistant"}}
        async for piece in self.script.stream(request):
            if isinstance(piece, ModelResponse):
                for chunk in end_chunks(piece):
                    yield chunk
            elif piece:
                yield {"contentBlockDelta": {"delta": {"text": piece}}}


def read_message(message: Any) -> list[Message]:
    found = []
    for block in message["content"]:
        if "toolResult" in block:
            result = block["toolResult"]
            found.append(Message("tool", result["content"][0]["text"], (), result["toolUseId"]))
        elif "text" in block:
            found.append(Message(message["role"], block["text"]))
    return found or [Message(message["role"], "")]


def end_chunks(response: ModelResponse) -> Any:
    yield {"contentBlockStop": {}}
    for call in response.tool_calls:
        yield {"contentBlockStart": {"start": {"toolUse": {"name": call.name, "toolUseId": call.id}}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(call.arguments)}}}}
        yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": "tool_use" if response.tool_calls else "end_turn"}}
    used = response.usage
    usage = {
        "inputTokens": used.input_tokens,
        "outputTokens": used.output_tokens,
        "totalTokens": used.total_tokens,
    }
    yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}


class Driver(LoopDriver):
    name = "Strands"
    support = SUPPORT
    modes = ("async", "sync", "stream")

    async def run(self, case: Case) -> Outcome:
        outcome = Outcome()
        options = {**case.options, "sinks": [outcome.events.append, *case.options.get("sinks", ())]}
        agent = Agent(
            model=Scripted(case.model),
            tools=[tool(function) for function in case.tools],
            system_prompt=case.system,
            plugins=[HooklinePlugin(*case.hooks, **options)],
            callback_handler=None,
        )
        try:
            if case.mode == "sync":
                result = await asyncio.to_thread(agent, case.task)
            elif case.mode == "stream":
                async for event in agent.stream_async(case.task):
                    outcome.shown += event.get("data", "")
                    result = event.get("result")
            else:
                result = await agent.invoke_async(case.task)
            outcome.reply = "".join(block.get("text", "") for block in result.message["content"])
        except Exception as error:
            outcome.error = error
        return outcome
