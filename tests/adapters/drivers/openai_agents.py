"""The OpenAI Agents SDK: an agent that Hookline's runner runs."""

import json
from typing import Any

from agents import Agent, Model, RunConfig, Usage, function_tool
from agents import ModelResponse as SdkResponse
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)

from hookline import Message, ModelRequest
from hookline.adapters.openai_agents import SUPPORT, HooklineRunner
from hookline.models import ModelResponse

from ..loops import Case, LoopDriver, Outcome, in_thread

CONFIG = RunConfig(tracing_disabled=True)


class Scripted(Model):
    """A model of the SDK that answers as a scripted model of Hookline does."""

    def __init__(self, script: Any) -> None:
        self.script = script

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> SdkResponse:
        response = await self.script.complete(request(system_instructions, input))
        return SdkResponse(output=output(response), usage=usage(response), response_id=None)

    async def stream_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> Any:
        async for piece in self.script.stream(request(system_instructions, input)):
            if isinstance(piece, str):
                yield ResponseTextDeltaEvent(
                    content_index=0,
                    delta=piece,
                    item_id="m",
                    logprobs=[],
                    output_index=0,
                    sequence_number=0,
                    type="response.output_text.delta",
                )
            else:
                yield ResponseCompletedEvent(response=whole(piece), sequence_number=1, type="response.completed")


def request(instructions: str | None, given: Any) -> ModelRequest:
    messages = [Message("system", instructions)] if instructions else []
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        if item.get("type") == "function_call_output":
            messages.append(Message("tool", text(item["output"]), (), item["call_id"]))
        elif item.get("type") != "function_call":
            messages.append(Message(item["role"], text(item["content"])))
    return ModelRequest(tuple(messages))


def text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def output(response: ModelResponse) -> list[Any]:
    items: list[Any] = []
    if response.content:
        part = ResponseOutputText(text=response.content, type="output_text", annotations=[])
        items.append(
            ResponseOutputMessage(id="m", content=[part], role="assistant", status="completed", type="message")
        )
    for call in response.tool_calls:
        arguments = json.dumps(dict(call.arguments))
        items.append(
            ResponseFunctionToolCall(call_id=call.id, name=call.name, arguments=arguments, type="function_call")
        )
    return items


def usage(response: ModelResponse) -> Usage:
    used = response.usage
    return Usage(
        requests=1,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.total_tokens,
    )


def whole(response: ModelResponse) -> Response:
    used = usage(response)
    return Response(
        id="r",
        created_at=0,
        model="scripted",
        object="response",
        output=output(response),
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        usage=ResponseUsage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        ),
    )


class Driver(LoopDriver):
    name = "OpenAI Agents"
    support = SUPPORT
    modes = ("async", "sync", "stream")

    async def run(self, case: Case) -> Outcome:
        outcome = Outcome()
        options = {**case.options, "sinks": [outcome.events.append, *case.options.get("sinks", ())]}
        runner = HooklineRunner(*case.hooks, **options)
        tools = [function_tool(each) for each in case.tools]
        agent = Agent(name="agent", instructions=case.system, model=Scripted(case.model), tools=tools)
        try:
            if case.mode == "sync":
                result = await in_thread(runner.run_sync, agent, case.task, run_config=CONFIG)
            elif case.mode == "stream":
                result = runner.run_streamed(agent, case.task, run_config=CONFIG)
                async for event in result.stream_events():
                    if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                        outcome.shown += event.data.delta
            else:
                result = await runner.run(agent, case.task, run_config=CONFIG)
            outcome.reply = result.final_output
        except Exception as error:
            outcome.error = error
        return outcome
