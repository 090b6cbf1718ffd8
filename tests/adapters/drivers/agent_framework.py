"""Microsoft Agent Framework: an agent with Hookline's middleware."""

from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    ResponseStream,
    tool,
)
from agent_framework import Message as ChatMessage

from hookline import Message, ModelRequest
from hookline.adapters.agent_framework import SUPPORT, HooklineMiddleware
from hookline.models import ModelResponse

from ..loops import Case, LoopDriver, Outcome


class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A chat client of Agent Framework that answers as a scripted model of Hookline does."""

    def __init__(self, script: Any) -> None:
        super().__init__()
        self.script = script

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        system = [Message("system", options["instructions"])] if options.get("instructions") else []
        request = ModelRequest((*system, *[read for message in messages for read in read_message(message)]))

        async def whole() -> ChatResponse:
            response = await self.script.complete(request)
            message = ChatMessage(role="assistant", contents=contents(response))
            return ChatResponse(messages=[message], usage_details=usage(response))

        async def updates() -> Any:
            async for piece in self.script.stream(request):
                if isinstance(piece, ModelResponse):
                    used = Content.from_usage(usage(piece))
                    yield ChatResponseUpdate(role="assistant", contents=[*contents(piece, text=False), used])
                else:
                    yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(piece)])

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates) if stream else whole()


def read_message(message: Any) -> list[Message]:
    if message.role == "tool":
        return [Message("tool", content.result, (), content.call_id) for content in message.contents]
    return [Message(message.role, message.text)]


def contents(response: ModelResponse, *, text: bool = True) -> list[Content]:
    calls = [
        Content.from_function_call(call_id=call.id, name=call.name, arguments=dict(call.arguments))
        for call in response.tool_calls
    ]
    return [*([Content.from_text(response.content)] if text and response.content else []), *calls]


def usage(response: ModelResponse) -> Any:
    used = response.usage
    return {"input_token_count": used.input_tokens, "output_token_count": used.output_tokens}


class Driver(LoopDriver):
    name = "Agent Framework"
    support = SUPPORT
    modes = ("async", "stream")  # it has no sync interface

    async def run(self, case: Case) -> Outcome:
        outcome = Outcome()
        options = {**case.options, "sinks": [outcome.events.append, *case.options.get("sinks", ())]}
        agent = Agent(
            client=Scripted(case.model),
            instructions=case.system,
            tools=[tool(function, approval_mode="never_require") for function in case.tools],
            middleware=[HooklineMiddleware(*case.hooks, **options)],
        )
        try:
            if case.mode == "stream":
                stream = agent.run(case.task, stream=True)
                async for update in stream:
                    outcome.shown += update.text
                response = await stream.get_final_response()
            else:
                response = await agent.run(case.task)
            outcome.reply = response.messages[-1].text if response.messages else ""
        except Exception as error:
            outcome.error = error
        return outcome
