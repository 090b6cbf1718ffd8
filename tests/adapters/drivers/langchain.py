"""LangChain: an agent of ``create_agent`` with Hookline's middleware."""

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from hookline import Message, ModelRequest
from hookline.adapters.langchain import SUPPORT, HooklineMiddleware
from hookline.models import ModelResponse

from ..loops import Case, LoopDriver, Outcome

ROLES = {HumanMessage: "user", SystemMessage: "system", AIMessage: "assistant", ToolMessage: "tool"}


class Scripted(BaseChatModel):
    """A chat model of LangChain that answers as a scripted model of Hookline does."""

    script: Any
    _llm_type = "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        response = await self.script.complete(request(messages))
        return ChatResult(generations=[ChatGeneration(message=message(response, AIMessage))])

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        response = finished(self.script.complete(request(messages)))
        return ChatResult(generations=[ChatGeneration(message=message(response, AIMessage))])

    async def _astream(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        async for piece in self.script.stream(request(messages)):
            text = piece if isinstance(piece, str) else ""
            chunk = AIMessageChunk(text) if isinstance(piece, str) else message(piece, AIMessageChunk, text="")
            if text and run_manager is not None:
                await run_manager.on_llm_new_token(text, chunk=ChatGenerationChunk(message=chunk))
            yield ChatGenerationChunk(message=chunk)


def finished(coroutine: Any) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the coroutine waits")


def request(messages: Any) -> ModelRequest:
    return ModelRequest(tuple(Message(ROLES[type(each)], each.text) for each in messages))


def message(response: ModelResponse, kind: Any, text: str | None = None) -> Any:
    calls = [{"id": c.id, "name": c.name, "args": dict(c.arguments), "type": "tool_call"} for c in response.tool_calls]
    used = response.usage
    usage = {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "total_tokens": used.total_tokens,
    }
    return kind(content=response.content if text is None else text, tool_calls=calls, usage_metadata=usage)


class Driver(LoopDriver):
    name = "LangChain"
    support = SUPPORT
    modes = ("async", "sync", "stream")

    async def run(self, case: Case) -> Outcome:
        outcome = Outcome()
        options = {**case.options, "sinks": [outcome.events.append, *case.options.get("sinks", ())]}
        middleware = HooklineMiddleware(*case.hooks, **options)
        agent = create_agent(
            Scripted(script=case.model), case.tools, system_prompt=case.system, middleware=[middleware]
        )
        given = {"messages": [HumanMessage(case.task)]}
        try:
            if case.mode == "sync":
                state = await asyncio.to_thread(agent.invoke, given)
            elif case.mode == "stream":
                state = {}
                async for kind, part in agent.astream(given, stream_mode=["messages", "values"]):
                    if kind == "values":
                        state = part
                    elif isinstance(part[0], AIMessage):
                        outcome.shown += part[0].text
            else:
                state = await agent.ainvoke(given)
            outcome.reply = state["messages"][-1].text
        except Exception as error:
            outcome.error = error
        return outcome
