"""Hookline's hooks in an agent of Strands.

One plugin takes the hooks to the agent::

    from hookline.adapters.strands import HooklinePlugin

    agent = Agent(tools=[shell], plugins=[HooklinePlugin(no_sudo, AuditLogHook("audit.jsonl"))])

It is the innermost middleware of Strands around model calls and tool calls, so that hooks judge what really
runs. The run begins and ends with the events around an invocation.
"""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
# The frameworks are not installed together, so their names are unknown to the type checker.
from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Unpack
from weakref import WeakValueDictionary

from .._base.errors import PlainError
from .._kernel.errors import HooklineError
from .._kernel.hook import Hook
from .._kernel.payloads import ModelRequest
from .._kernel.registry import HookRegistry
from .._kernel.values import ModelResponse, ToolCall
from .._run.events import Discarded
from .._run.foreign import SettledReply
from .._run.termination import RunFailedError
from . import _strands_messages as translate
from ._foreign import Adapter, AdapterOptions, ForeignRun, RunOverError, Support
from ._translation import Reader
from ._unseen import CALL_POINTS

try:
    from strands import Agent
    from strands.hooks import AfterInvocationEvent, AfterModelCallEvent, BeforeInvocationEvent
    from strands.middleware import ExecuteToolStage, InvokeModelStage, ModelStopReason, ToolResultEvent
    from strands.multiagent.base import MultiAgentBase
    from strands.plugins import Plugin
    from strands.tools.structured_output.structured_output_tool import StructuredOutputTool
    from strands.types._events import ModelStreamChunkEvent, TextStreamEvent
    from strands.types.exceptions import EventLoopException
except ImportError:  # Adapter says which version to install
    Plugin = object
    EventLoopException = Exception

__all__ = ["HooklinePlugin"]

SUPPORT = Support(
    "Strands",
    "strands-agents",
    "1.62",
    "1.63",
    {
        "before_llm.model": "Give it to the agent: Agent(model=...)",
        "before_llm.response_format": "Give it to the agent: Agent(structured_output_model=...)",
    },
    "strands",
)

_numbers = itertools.count(1)


class HooklinePlugin(Plugin):  # type: ignore[misc]
    """A plugin for ``strands.Agent(plugins=[...])`` that calls Hookline's hooks.

    Args:
        hooks: hooks, or one :class:`hookline.HookRegistry`, whose later changes take effect too.
        options: see :class:`hookline.adapters.AdapterOptions`.

    Raises:
        RegistrationError: a hook or an option cannot work in Strands; the message names the alternative.

    Example::

        @guard(BEFORE_TOOL, tools="shell")
        def no_sudo(ctx, request):
            return HookResult.block("sudo is not allowed.") if "sudo" in request.arguments["command"] else None

        agent = Agent(tools=[shell], plugins=[HooklinePlugin(no_sudo)])
    """

    name = "hookline"

    def __init__(self, *hooks: Hook | HookRegistry, **options: Unpack[AdapterOptions]) -> None:
        self._adapter = Adapter(SUPPORT, hooks, options)
        # Strands would reject a second plugin of the same name with an error that does not say what to do.
        self.name = f"hookline-{next(_numbers)}"
        self._invocations: WeakValueDictionary[str, _Invocation] = WeakValueDictionary()
        super().__init__()

    def init_agent(self, agent: Any) -> None:
        """Attach the hooks to an agent. Strands calls it.

        Raises:
            RegistrationError: the agent has such a plugin already.
        """
        self._adapter.attach_to(agent, "agent")
        self._refuse_structured_output(agent)
        agent.add_middleware(InvokeModelStage, self._call_model)
        agent.add_middleware(ExecuteToolStage, self._call_tool)
        agent.add_hook(self._before_invocation, BeforeInvocationEvent)
        agent.add_hook(self._after_invocation, AfterInvocationEvent)

    def _refuse_structured_output(self, agent: Any) -> None:
        """Let the method ``structured_output``, which calls the model past all middleware, raise an error."""
        plain = getattr(agent, "structured_output_async", None)
        if plain is None:  # it is deprecated
            return

        async def structured_output_async(output_model: Any, prompt: Any = None) -> Any:
            self._adapter.unseen.refuse(
                "structured_output",
                "Agent.structured_output calls the model past all middleware of Strands",
                "Use agent(prompt, structured_output_model=...) instead",
                CALL_POINTS,
            )
            return await plain(output_model, prompt)

        vars(agent)["structured_output_async"] = structured_output_async

    def _check_tools(self, agent: Any) -> None:
        """Refuse tools that hooks cannot judge, and report tools that use agents without hooks.

        Raises:
            RegistrationError: the provider or an agent without hooks would run a tool.
        """
        unseen, instead = self._adapter.unseen, "Give it a HooklinePlugin: Agent(plugins=[...])"
        for name in translate.provider_tools(agent.model):
            unseen.refuse(name, f"the tool {name!r} is run by the provider")
        for name, tool in agent.tool_registry.registry.items():
            if (other := _bare_agent(getattr(tool, "agent", None))) is not None:
                unseen.refuse(name, f"the tool {name!r} runs the agent {other!r}", instead, CALL_POINTS)
            unseen.report_agents_of(name, getattr(tool, "_tool_func", None), _bare_agent, instead)

    # The run.

    async def _before_invocation(self, event: Any) -> None:
        """Start the run, unless a hook kept it going."""
        state, key = event.invocation_state, _key(event.agent)
        if isinstance(state.get(key), _Invocation) and state[key].note is not None:
            state[key].note = None
            return
        _be_innermost(event.agent, self)
        self._check_tools(event.agent)
        history = translate.reader().read(event.agent.messages).messages
        task = translate.user_text(event.messages)
        run = self._adapter.start(task, history, session=event.agent.session_id, streaming=True)
        state[key] = self._invocations[key] = _Invocation(run)

    async def _after_invocation(self, event: Any) -> None:
        """End the run, or go on if a hook at ``on_stop`` said so."""
        key = _key(event.agent)
        invocation = event.invocation_state.get(key)
        if not isinstance(invocation, _Invocation):
            return
        if invocation.note is not None and event.result is not None:
            event.resume = invocation.note or []
            return
        del event.invocation_state[key], self._invocations[key]
        if event.result is None:
            await invocation.run.end(error=sys.exception() or HooklineError("the agent ended without a result"))
            return
        message = event.result.message
        text = translate.text_of(message) if invocation.structured is None else invocation.structured
        result = await invocation.run.end(text)
        if result.status == "failed":  # a hook at on_run_end failed closed
            raise RunFailedError(result)
        if result.reply != text:
            translate.set_text(message, result.reply)
            if event.result.structured_output is not None:
                _replace_structured(event.result.structured_output, result.reply)

    # Model calls.

    async def _call_model(
        self, context: Any, next_fn: Callable[[Any], AsyncGenerator[Any, None]]
    ) -> AsyncIterator[Any]:
        """Call the model under the hooks. Text is shown as the hooks release it, all else when the reply is settled."""
        invocation = self._invocation(context)
        if invocation is None:
            raise HooklineError("Strands made a model call outside of an invocation, so hooks cannot judge it")
        call = _ModelCall(context, next_fn, invocation.reader)
        invocation.structured = None
        try:
            async for item in invocation.run.stream_model(call.source.request, call.send):
                if isinstance(item, str):
                    for event in _text_events(item):
                        yield event
                elif isinstance(item, SettledReply):
                    invocation.note = item.note if item.again else None
                    reason, message = translate.write_reply(item.reply, call.received, call.outputs)
                    if any("toolUse" in block for block in message["content"]) and not item.reply.tool_calls:
                        invocation.structured = item.reply.content
                    unchanged = call.received is not None and message is call.received.message
                    for event in call.others if unchanged else ():
                        yield event
                    yield call.received if unchanged else ModelStopReason(reason, message, *call.measured)
                elif not isinstance(item, Discarded):  # Strands cannot withdraw text that it has shown
                    raise TypeError(f"unexpected {type(item).__name__}")
        except RunOverError as over:
            reply = over.result.reply
            for event in _text_events(reply) if reply else ():
                yield event
            message = {"role": "assistant", "content": [{"text": reply}]}
            # After "end_turn", Strands would ask the model again for structured output.
            yield ModelStopReason("stop_sequence" if call.outputs else "end_turn", message, *call.measured)
        except RunFailedError as failure:
            raise _HookFailedError(failure) from failure.__cause__

    # Tool calls.

    async def _call_tool(self, context: Any, next_fn: Callable[[Any], AsyncGenerator[Any, None]]) -> AsyncIterator[Any]:
        """Call a tool under the hooks. What the tool streams is shown at once."""
        if isinstance(context.tool, StructuredOutputTool):  # hooks have judged it as the reply
            async for event in next_fn(context):
                yield event
            return
        call = _ToolCall(context, next_fn)
        invocation = self._invocation(context)
        if invocation is None:  # a call by the program itself: agent.tool.NAME(...)
            work = asyncio.ensure_future(self._direct_call(context.agent, call))
        else:
            work = asyncio.ensure_future(call.make(invocation.run))
        work.add_done_callback(lambda _: call.events.put_nowait(None))
        try:
            while (event := await call.events.get()) is not None:
                yield event
            yield work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])  # Strands closes the generators that the work still uses

    async def _direct_call(self, agent: Any, call: _ToolCall) -> Any:
        """Make a call of the program in a run of its own, and return its last event."""
        run = self._adapter.start("", translate.reader().read(agent.messages).messages, session=agent.session_id)
        try:
            event = await call.make(run)
        except Exception as error:
            await run.end(error=error)
            raise
        except BaseException as error:
            await run.interrupted(error)
            raise
        if (result := await run.end()).status == "failed":  # a hook at on_run_end failed closed
            raise RunFailedError(result)
        return event

    def _invocation(self, context: Any) -> _Invocation | None:
        """Return the invocation that a call belongs to, also if other middleware replaced the invocation state."""
        key = _key(context.agent)
        found = context.invocation_state.get(key)
        return found if isinstance(found, _Invocation) else self._invocations.get(key)


class _Invocation:
    """One invocation of an agent: its run, and what a hook at ``on_stop`` wants to add to the conversation."""

    def __init__(self, run: ForeignRun) -> None:
        self.run = run
        self.reader = translate.reader()
        self.note: str | None = None
        self.structured: str | None = None
        """The structured output in the last reply, as JSON."""


class _ModelCall:
    """One call of the model stage: the request for Hookline, and what the model answered."""

    def __init__(self, context: Any, next_fn: Callable[[Any], AsyncGenerator[Any, None]], reader: Reader) -> None:
        self._context = context
        self._next = next_fn
        self.source = translate.StrandsRequest(context, reader)
        self.received: Any = None
        registry = context.agent.tool_registry
        self.outputs = frozenset(
            [name for name, tool in registry.dynamic_tools.items() if isinstance(tool, StructuredOutputTool)]
        )
        """The names of the tools for structured output."""
        self.others: list[Any] = []
        """The events of the last attempt that are not text."""

    @property
    def measured(self) -> tuple[Any, Any]:
        """The usage and the metrics of the last attempt."""
        if self.received is None:
            return {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}, {"latencyMs": 0}
        return self.received.usage, self.received.metrics

    async def send(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Send a request to the model, and yield the text and the response."""
        context = self.source.context(request)
        began = False
        while True:
            self.received, self.others = None, []
            try:
                async with aclosing(self._next(context)) as events:
                    async for event in events:
                        if isinstance(event, ModelStopReason):
                            self.received = event
                        elif "data" in event:
                            began = True
                            yield event["data"]
                        elif not _is_text_chunk(event):
                            self.others.append(event)
                break
            except Exception as error:
                if began or not await self._retries(error):
                    raise
        if self.received is None:
            raise HooklineError("the middleware of Strands ended without the reply of the model")
        yield translate.read_reply(self.received, context.model, self.outputs)

    async def _retries(self, error: Exception) -> bool:
        """Return whether the retry strategy of the agent wants another attempt, after its delay.

        Strands asks it only when the error has passed all middleware, and then the run has failed already.
        """
        event = AfterModelCallEvent(
            agent=self._context.agent, invocation_state=self._context.invocation_state, exception=error
        )
        await self._context.agent.hooks.invoke_callbacks_async(event)
        return bool(event.retry)


class _ToolCall:
    """One tool call: the call for Hookline, and the result for Strands."""

    def __init__(self, context: Any, next_fn: Callable[[Any], AsyncGenerator[Any, None]]) -> None:
        self._context = context
        self._next = next_fn
        self._received: Any = None
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        """The queue of events that the tool streams, then ``None``."""

    async def make(self, run: ForeignRun) -> Any:
        """Make the call, and return its last event."""
        use = self._context.tool_use
        call = ToolCall(use["toolUseId"], use["name"], use["input"])
        try:
            result = await run.call_tool(call, self._execute)
        except RunOverError:
            content = [{"text": "Cancelled: the run has ended."}]
            return ToolResultEvent({"toolUseId": use["toolUseId"], "status": "error", "content": content})
        except _ToolStoppedError as stopped:
            return stopped.event
        received = self._received
        written = translate.write_result(result, use["toolUseId"], None if received is None else received.tool_result)
        return ToolResultEvent(written, None if received is None else received.exception)

    async def _execute(self, name: str, arguments: dict[str, Any]) -> Any:
        context, agent = self._context, self._context.agent
        changes: dict[str, Any] = {"tool_use": {**context.tool_use, "name": name, "input": arguments}}
        if name != context.tool_use["name"]:
            registry = agent.tool_registry
            changes["tool"] = registry.dynamic_tools.get(name) or registry.registry.get(name)
        self._received = None
        async with aclosing(self._next(context.replace(**changes))) as events:  # in the task that began it
            async for event in events:
                if isinstance(event, ToolResultEvent):
                    self._received = event
                elif "tool_interrupt_event" in event:
                    raise _ToolStoppedError("The tool waits for an answer.", event)
                else:
                    self.events.put_nowait(event)
        if self._received is None:
            raise HooklineError("the middleware of Strands ended without the result of the tool")
        result = self._received.tool_result
        if result["status"] == "error":
            raise _ToolStoppedError(translate.result_text(result), self._received)
        return translate.read_result(result)


class _HookFailedError(RunFailedError, EventLoopException):  # type: ignore[misc]
    """A hook failed closed. After the first step Strands wraps all errors in one of its own kind, except for these."""

    def __init__(self, failure: RunFailedError) -> None:
        super().__init__(failure.result, failure.__cause__)
        self.original_exception = failure


class _ToolStoppedError(PlainError):
    """Strands made an error result of a failure of the tool, or the tool interrupted the agent."""

    def __init__(self, text: str, event: Any) -> None:
        super().__init__(text)
        self.event = event


def _bare_agent(value: Any) -> str | None:
    """Return the name of an agent without Hookline's plugin, also of one in a graph or swarm; ``None`` for all else."""
    if isinstance(value, MultiAgentBase):
        agents = [getattr(node, "executor", None) for node in getattr(value, "nodes", {}).values()]
        return next((name for each in agents if (name := _bare_agent(each)) is not None), None)
    if not isinstance(value, Agent) or getattr(value, "__hookline__", None) is not None:
        return None
    return str(value.name)


def _replace_structured(output: Any, text: str) -> None:
    """Replace structured output in place: Strands puts the same object into the result that it returns.

    Raises:
        HooklineError: the text does not fit its type.
    """
    try:
        changed = type(output).model_validate_json(text)
    except ValueError as error:
        raise HooklineError(
            f"a hook at on_run_end replaced structured output by a text that is no {type(output).__name__}: return "
            "its JSON, or replace the reply at after_llm"
        ) from error
    vars(output).clear()
    vars(output).update(vars(changed))


def _key(agent: Any) -> str:
    """Return the key of an agent's run in the invocation state of Strands, which the agents of a graph share."""
    return f"hookline_{id(agent):x}"


def _be_innermost(agent: Any, plugin: HooklinePlugin) -> None:
    """Move the middleware of a plugin behind middleware that was added later.

    Otherwise hooks would judge a request or arguments that later middleware still changes.
    """
    for handlers in agent._middleware_registry._handlers.values():
        handlers.sort(key=lambda tagged: getattr(tagged.handler, "__self__", None) is plugin)


def _text_events(text: str) -> tuple[Any, Any]:
    delta: Any = {"text": text}
    return ModelStreamChunkEvent({"contentBlockDelta": {"delta": delta}}), TextStreamEvent(delta, text)


def _is_text_chunk(event: Any) -> bool:
    chunk = event.get("event")
    return isinstance(chunk, dict) and "text" in chunk.get("contentBlockDelta", {}).get("delta", {})
