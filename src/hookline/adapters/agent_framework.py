"""Hookline's hooks in an agent of Microsoft Agent Framework.

One middleware takes the hooks to the agent::

    from hookline.adapters.agent_framework import HooklineMiddleware

    agent = Agent(client=client, tools=[shell], middleware=[HooklineMiddleware(no_sudo, AuditLogHook("audit.jsonl"))])

It is an agent middleware. For each run it adds a chat middleware and a function middleware behind all others, wherever
it stands in the list: later middleware may change the arguments of a call, and hooks must judge what really runs.
"""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
# The frameworks are not installed together, so their names are unknown to the type checker.
from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Unpack

from .._kernel.errors import HooklineError, RegistrationError
from .._kernel.hook import Hook
from .._kernel.payloads import ModelRequest
from .._kernel.registry import HookRegistry
from .._kernel.values import ModelResponse, ToolCall
from .._run.foreign import SettledReply
from .._run.termination import RunFailedError
from . import _agent_framework_messages as translate
from ._foreign import Adapter, AdapterOptions, ForeignRun, RunOverError, Support
from ._translation import Reader
from ._unseen import CALL_POINTS, values_of

try:
    from agent_framework import (
        AgentMiddleware,
        BaseAgent,
        ChatMiddleware,
        ChatMiddlewareLayer,
        FunctionInvocationLayer,
        FunctionMiddleware,
        FunctionTool,
        ResponseStream,
    )
except ImportError:  # Adapter says which version to install
    AgentMiddleware = ChatMiddleware = FunctionMiddleware = object

__all__ = ["HooklineMiddleware"]

SUPPORT = Support(
    "Agent Framework",
    "agent-framework-core",
    "1.23",
    "1.24",
    {
        "before_llm.response_format": "Give it to the agent or the run: options={'response_format': ...}",
        "before_tool.name": "Block the call, with a message that tells the model which tool to call",
    },
    "agent-framework",
)

Next = Callable[[], Awaitable[None]]


class HooklineMiddleware(AgentMiddleware):  # type: ignore[misc]
    """A middleware for ``Agent(middleware=[...])`` that calls Hookline's hooks.

    Args:
        hooks: hooks, or one :class:`hookline.HookRegistry`, whose later changes take effect too.
        options: see :class:`hookline.adapters.AdapterOptions`.

    Raises:
        RegistrationError: a hook or an option cannot work in Agent Framework; the message names the alternative.

    Example::

        @guard(BEFORE_TOOL, tools="shell")
        def no_sudo(ctx, request):
            return HookResult.block("sudo is not allowed.") if "sudo" in request.arguments["command"] else None

        agent = Agent(client=client, tools=[shell], middleware=[HooklineMiddleware(no_sudo)])
    """

    def __init__(self, *hooks: Hook | HookRegistry, **options: Unpack[AdapterOptions]) -> None:
        self._adapter = Adapter(SUPPORT, hooks, options)
        super().__init__()

    async def process(self, context: Any, call_next: Next) -> None:
        """Run the agent under the hooks. Agent Framework calls it."""
        client = getattr(context.agent, "client", None)
        if not isinstance(client, ChatMiddlewareLayer) or not isinstance(client, FunctionInvocationLayer):
            raise RegistrationError(
                f"Hookline cannot be attached to {type(context.agent).__name__} with {type(client).__name__}: hooks "
                "need a chat client with ChatMiddlewareLayer and FunctionInvocationLayer"
            )
        others = context.client_kwargs.get("middleware") or []
        if any(isinstance(other, _ChatHooks) for other in others):
            raise RegistrationError(
                "Hookline is already attached to this agent: each hook would be called twice. Attach it once, with all "
                "hooks"
            )
        started = _StartedRun(self._adapter, context)
        context.client_kwargs["middleware"] = [*others, _ChatHooks(started), _FunctionHooks(started)]
        if context.stream:
            await call_next()
            if isinstance(context.result, ResponseStream):
                context.result = _stream_until_end(context.result, started)
            return
        async with started.failures():
            await call_next()
        context.result = await _end(started, context.result)


class _StartedRun:
    """The run of one invocation. It starts with the first request, which contains the whole conversation."""

    def __init__(self, adapter: Adapter, context: Any) -> None:
        self._adapter = adapter
        self._messages: Sequence[Any] = context.messages
        self._session = context.session.session_id if context.session is not None else ""
        self._streaming = bool(context.stream)
        self._run: ForeignRun | None = None

    @property
    def run(self) -> ForeignRun:
        """The run."""
        return self.start(self._messages)

    def check_tools(self, context: Any) -> None:
        """Refuse tools that hooks cannot judge, and report tools that use agents without hooks.

        Raises:
            RegistrationError: the provider or an agent without hooks would run a tool.
        """
        unseen, instead = self._adapter.unseen, "Give it a HooklineMiddleware: Agent(middleware=[...])"
        settings = getattr(context.client, "function_invocation_configuration", None) or {}
        for tool in [*((context.options or {}).get("tools") or ()), *(settings.get("additional_tools") or ())]:
            if not isinstance(tool, FunctionTool):
                if (name := translate.provider_tool(tool)) is not None:
                    unseen.refuse(name, f"the tool {name!r} is run by the provider")
            elif (agent := _agent_of(tool)) is None:
                unseen.report_agents_of(tool.name, tool.func, _bare_agent, instead)
            elif (other := _bare_agent(agent)) is not None:
                unseen.refuse(tool.name, f"the tool {tool.name!r} runs the agent {other!r}", instead, CALL_POINTS)

    def start(self, messages: Sequence[Any]) -> ForeignRun:
        """Return the run. The first time, start it with this conversation."""
        if self._run is None:
            task, history = translate.task_and_history(messages)
            self._run = self._adapter.start(task, history, session=self._session, streaming=self._streaming)
        return self._run

    @asynccontextmanager
    async def failures(self) -> AsyncIterator[None]:
        """End the run if Agent Framework fails or is cancelled."""
        try:
            yield
        except Exception as error:
            await self.run.end(error=error)
            raise
        except BaseException as error:
            if self._run is not None:
                await self._run.interrupted(error)
            raise


def _agent_of(tool: Any) -> Any:
    """Return the agent that a tool was made of with ``as_tool``, or ``None``."""
    if ".as_tool.<locals>." not in getattr(tool.func, "__qualname__", ""):
        return None
    return next((value for value in values_of(tool.func) if isinstance(value, BaseAgent)), None)


def _bare_agent(value: Any) -> str | None:
    """Return the name of an agent without Hookline's middleware; ``None`` for all else.

    An agent without a chat client, such as that of a workflow, consists of other agents.
    """
    if not isinstance(value, BaseAgent) or not hasattr(value, "client"):
        return None
    has_hooks = any(isinstance(each, HooklineMiddleware) for each in value.middleware or ())
    return None if has_hooks else str(value.name or value.id)


async def _end(started: _StartedRun, response: Any) -> Any:
    """End the run, and return the response with the reply of its result."""
    text = translate.reply_text(response)
    result = await started.run.end(text)
    if result.status == "failed":  # a hook at on_run_end failed closed
        raise RunFailedError(result)
    return response if response is None or result.reply == text else translate.with_reply(response, result.reply)


def _stream_until_end(stream: Any, started: _StartedRun) -> Any:
    """Return the stream of an agent that ends the run when it has been read."""
    final: Any = None

    async def updates() -> AsyncIterator[Any]:
        nonlocal final
        async with started.failures(), stream:  # a consumer that stops reading cancels the run
            async for update in stream:
                yield update
            final = await stream.get_final_response()
        final = await _end(started, final)

    return ResponseStream(updates(), finalizer=lambda _: final)


class _ChatHooks(ChatMiddleware):  # type: ignore[misc]
    """The middleware around the model calls of one run."""

    def __init__(self, started: _StartedRun) -> None:
        self._started = started
        self._reader = translate.reader()
        self._added: list[tuple[int, list[Any]]] = []
        """Messages that hooks at ``on_stop`` added, each with its place: Agent Framework does not know of them."""

    async def process(self, context: Any, call_next: Next) -> None:
        """Call the model under the hooks."""
        self._started.check_tools(context)
        for place, messages in self._added:
            context.messages = [*context.messages[:place], *messages, *context.messages[place:]]
        run = self._started.start(context.messages)
        if context.stream:
            context.result = self._stream(run, context, call_next)
            return
        call = _ModelCall(context, call_next, self._reader)
        try:
            while (settled := await run.call_model(call.source.request, call.send)).again:
                call = self._next(call, settled)
            context.result = translate.write_reply(settled.reply, call.received)
        except RunOverError as over:
            context.result = translate.text_response(over.result.reply)

    def _stream(self, run: ForeignRun, context: Any, call_next: Next) -> Any:
        final: Any = None

        async def updates() -> AsyncIterator[Any]:
            nonlocal final
            call: _ModelCall | None = _ModelCall(context, call_next, self._reader)
            try:
                while call is not None:
                    following = None
                    async for item in run.stream_model(call.source.request, call.stream):
                        if isinstance(item, str):
                            yield translate.text_update(item, call.template, call.message_id)
                        elif isinstance(item, SettledReply):
                            final = translate.write_reply(item.reply, call.received)
                            for update in call.others if final is call.received else translate.call_updates(final):
                                yield update
                            following = self._next(call, item) if item.again else None
                    call = following
            except RunOverError as over:
                final = translate.text_response(over.result.reply)
                if over.result.reply:
                    yield translate.text_update(over.result.reply, None, uuid.uuid4().hex)

        return ResponseStream(updates(), finalizer=lambda _: final)

    def _next(self, call: _ModelCall, settled: SettledReply) -> _ModelCall:
        """Return the call after a reply with which a hook at ``on_stop`` does not let the run end."""
        messages = translate.continuation(translate.write_reply(settled.reply, call.received), settled.note)
        self._added.append((len(call.messages), messages))
        call.context.messages = [*call.messages, *messages]
        return _ModelCall(call.context, call.call_next, self._reader)


class _ModelCall:
    """One model call: the request for Hookline, and what the model answered."""

    def __init__(self, context: Any, call_next: Next, reader: Reader) -> None:
        self.context = context
        self.call_next = call_next
        self.messages = list(context.messages)
        self.source = translate.ChatRequest(context, reader)
        self.message_id = uuid.uuid4().hex
        self.received: Any = None
        self.template: Any = None
        """The first update of the last attempt."""
        self.others: list[Any] = []
        """The updates of the last attempt that are not text."""

    async def send(self, request: ModelRequest) -> ModelResponse:
        """Send a request to the model, and return the response."""
        self.source.write(request, self.context)
        await self.call_next()
        self.received = self.context.result
        return translate.read_reply(self.received, request.model)

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Send a request to the model, and yield the text and the response."""
        self.source.write(request, self.context)
        self.received, self.template, self.others = None, None, []
        await self.call_next()
        async with self.context.result as stream:
            async for update in stream:
                if self.template is None:
                    self.template = update
                if text := translate.text_of(update):
                    yield text
                if (rest := translate.without_text(update)) is not None:
                    self.others.append(rest)
            self.received = await stream.get_final_response()
        yield translate.read_reply(self.received, request.model)


class _FunctionHooks(FunctionMiddleware):  # type: ignore[misc]
    """The middleware around the function calls of one run."""

    def __init__(self, started: _StartedRun) -> None:
        self._started = started

    async def process(self, context: Any, call_next: Next) -> None:
        """Call a function under the hooks."""
        name, given = context.function.name, translate.arguments_of(context.arguments)
        received: Any = None

        async def execute(wanted: str, judged: dict[str, Any]) -> Any:
            nonlocal received
            if wanted != name:
                raise HooklineError(SUPPORT.refusal("before_tool.name"))
            if judged != given:
                context.arguments = judged
            await call_next()
            received = context.result
            return translate.read_result(received)

        call = ToolCall(context.metadata["call_id"], name, given)
        try:
            result = await self._started.run.call_tool(call, execute)
        except RunOverError:
            context.result = "Cancelled: the run has ended."
            return
        context.result = translate.write_result(result, received)
