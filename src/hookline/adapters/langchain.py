"""Hookline's hooks in an agent of LangChain.

One middleware takes the place of the whole agent::

    from hookline.adapters.langchain import HooklineMiddleware

    agent = create_agent(model, tools, middleware=[HooklineMiddleware(no_sudo, AuditTrail("audit.db"))])
"""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
# The frameworks are not installed together, so their names are unknown to the type checker.
from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import Annotated, Any, NotRequired, Unpack
from weakref import WeakValueDictionary

from .._base.attachment import ANY_IMAGE, UNKNOWN, Attachment, sha256_of
from .._base.errors import PlainError
from .._base.frozen import freeze, json_text, thaw
from .._kernel.errors import ModelError, RegistrationError
from .._kernel.hook import Hook
from .._kernel.payloads import ModelReply, ModelRequest, ToolCallResult
from .._kernel.registry import HookRegistry
from .._kernel.state import AgentResult
from .._kernel.values import Message, ModelResponse, ToolCall, ToolSpec, Usage
from .._run.termination import RunFailedError
from ._foreign import Adapter, AdapterOptions, ForeignRun, RunOverError, Support, reply_is
from ._translation import ToolSpecs, Translation

try:
    from langchain.agents.middleware.types import AgentMiddleware, AgentState, PrivateStateAttr
    from langchain.agents.middleware.types import ModelRequest as LangChainRequest
    from langchain.agents.middleware.types import ModelResponse as LangChainResponse
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import (
        AIMessage,
        AIMessageChunk,
        BaseMessage,
        HumanMessage,
        RemoveMessage,
        SystemMessage,
        ToolMessage,
        convert_to_messages,
    )
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    from langchain_core.runnables.config import var_child_runnable_config
    from langchain_core.tools import StructuredTool
    from langchain_core.tracers._streaming import _StreamingCallbackHandler
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.channels.untracked_value import UntrackedValue
    from langgraph.config import get_config
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.pregel import Pregel
    from langgraph.pregel._messages import StreamMessagesHandler
    from langgraph.types import Command
    from pydantic import TypeAdapter, ValidationError
except ImportError:  # Adapter says which version to install
    AgentMiddleware = BaseChatModel = object

__all__ = ["HooklineMiddleware"]

SUPPORT = Support(
    "LangChain",
    "langchain",
    "1.4",
    "1.6",
    {
        "before_llm.response_format": "Give it to the agent: create_agent(response_format=...)",
        "on_token": "LangChain shows the pieces of a reply before middleware gets them. Judge the whole text at "
        "after_llm: while a hook does, Hookline has LangChain show the reply only when it is settled",
    },
    "langchain",
)

MAX_RESUMED = 1000
"""Maximum number of resumed runs that one middleware keeps: those that are interrupted again may never continue."""

_FINISH = {"tool_calls": "tool_calls", "tool_use": "tool_calls", "length": "length", "max_tokens": "length"}


@cache
def _state_schema() -> Any:
    """Return the state of the graph, with the run. LangGraph does not save it, and drops it when the graph ends."""

    class State(AgentState):  # type: ignore[misc]
        hookline_run: NotRequired[Annotated[Any, UntrackedValue, PrivateStateAttr]]  # type: ignore[valid-type]

    return State


class HooklineMiddleware(AgentMiddleware):  # type: ignore[misc]
    """A middleware that calls Hookline's hooks in an agent made with ``create_agent``.

    Args:
        hooks: hooks, or one :class:`hookline.HookRegistry`, whose later changes take effect too.
        options: see :class:`hookline.adapters.AdapterOptions`.

    Raises:
        RegistrationError: a hook or an option cannot work in LangChain; the message names the alternative.

    Example::

        @guard(BEFORE_TOOL, tools="shell")
        def no_sudo(ctx, request):
            return HookResult.block("sudo is not allowed.") if "sudo" in request.arguments["command"] else None

        agent = create_agent(model, tools=[shell], middleware=[HooklineMiddleware(no_sudo)])
    """

    def __init__(self, *hooks: Hook | HookRegistry, **options: Unpack[AdapterOptions]) -> None:
        self._adapter = Adapter(SUPPORT, hooks, options)
        super().__init__()
        self.tools: Sequence[Any] = ()
        self.state_schema = _state_schema()
        self._resumed: dict[str, ForeignRun] = {}  # by conversation; other runs are in the state of their graph
        self._begun: WeakValueDictionary[str, ForeignRun] = WeakValueDictionary()  # the last run of each conversation

    # The run.

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Start the run."""
        self._resumed.pop(_thread(), None)
        return {"hookline_run": self._start(state, self._adapter.start_sync)}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Start the run."""
        self._resumed.pop(_thread(), None)
        return {"hookline_run": self._start(state, self._adapter.start)}

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the run, and use the reply of its result."""
        run = self._last_run(state, self._adapter.start_sync)
        text = _last_text(state, run)
        return _final(state, text, run.end_sync(text))

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the run, and use the reply of its result."""
        run = self._last_run(state, self._adapter.start)
        text = _last_text(state, run)
        return _final(state, text, await run.end(text))

    def _start(self, state: Any, start: Callable[..., ForeignRun]) -> ForeignRun:
        task, history = _task(state["messages"])
        files = task.attachments
        context, thread = copy_context(), _thread()
        # The graph holds the run, so the run must not hold the graph: the run ends when a failed graph is dropped.
        context.run(var_child_runnable_config.set, None)
        run = context.run(lambda: start(task.content, history, attachments=files, session=thread))
        self._begun[thread] = run
        return run

    def _run_of(self, state: Any, start: Callable[..., ForeignRun]) -> ForeignRun:
        """Return the run of the graph. After an interrupt the graph resumes without its run: start another one."""
        run: ForeignRun | None = state.get("hookline_run")
        if run is None:
            run = self._resumed.get(_thread())
            if run is None or not run.alive:
                if (interrupted := self._begun.get(_thread())) is not None:
                    interrupted.run.cancel("LangGraph interrupted the run")
                run = self._resumed[_thread()] = self._start(state, start)
                while len(self._resumed) > MAX_RESUMED:
                    del self._resumed[next(iter(self._resumed))]  # which cancels it
        return run

    def _last_run(self, state: Any, start: Callable[..., ForeignRun]) -> ForeignRun:
        run = self._run_of(state, start)
        self._resumed.pop(_thread(), None)
        return run

    # Model calls.

    def wrap_model_call(self, request: LangChainRequest, handler: Callable[..., Any]) -> LangChainResponse:
        """Call the model under the hooks."""
        run = self._run_of(request.state, self._adapter.start_sync)
        _check_innermost(handler, run)
        self._check_tools(request, run)
        call = _ModelCall(self._adapter, run, request)

        def send(asked: ModelRequest) -> ModelResponse:
            with call.hidden():
                return call.read(handler(call.write(asked)))

        try:
            while call.add(run.call_model_sync(call.request(), send)):
                pass
            response = call.response()
        except RunOverError as over:
            response = call.response(over.result.reply)
        for model, config in call.shown(response):
            model.invoke(request.messages, config)
        return response

    async def awrap_model_call(
        self, request: LangChainRequest, handler: Callable[..., Awaitable[Any]]
    ) -> LangChainResponse:
        """Call the model under the hooks."""
        run = self._run_of(request.state, self._adapter.start)
        _check_innermost(handler, run)
        self._check_tools(request, run)
        call = _ModelCall(self._adapter, run, request)

        async def send(asked: ModelRequest) -> ModelResponse:
            with call.hidden():
                return call.read(await handler(call.write(asked)))

        try:
            while call.add(await run.call_model(call.request(), send)):
                pass
            response = call.response()
        except RunOverError as over:
            response = call.response(over.result.reply)
        for model, config in call.shown(response):
            await model.ainvoke(request.messages, config)
        return response

    def _check_tools(self, request: LangChainRequest, run: ForeignRun) -> None:
        """Refuse tools that the provider runs, and report tools that run agents without hooks.

        Raises:
            RegistrationError: hooks could not judge the calls of a tool.
        """
        unseen = self._adapter.unseen
        instead = "Give it a HooklineMiddleware: create_agent(middleware=[...])"
        try:
            for name in _provider_tools(request):
                unseen.refuse(name, f"the tool {name!r} is run by the provider")
        except RegistrationError:
            run.run.cancel("the provider runs a tool that hooks cannot judge")
            raise
        for tool in () if "tools" in run.memo else request.tools:
            if not isinstance(tool, dict):
                function = (
                    getattr(tool, "coroutine", None) or getattr(tool, "func", None) or getattr(tool, "_run", tool)
                )
                unseen.report_agents_of(_new_spec(tool).name, function, _bare_agent, instead)
        run.memo["tools"] = True

    # Tool calls.

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[..., Any]) -> Any:
        """Call a tool under the hooks."""
        call, run = _ToolCall(request), self._run_of(request.state, self._adapter.start_sync)
        _check_innermost(handler, run)
        try:
            result = run.call_tool_sync(
                call.call, lambda name, arguments: call.read(handler(call.write(name, arguments)))
            )
        except RunOverError:
            return call.cancelled()
        except _ToolFailedError as failed:
            return failed.returned
        return call.message(result)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[..., Awaitable[Any]]) -> Any:
        """Call a tool under the hooks."""
        call, run = _ToolCall(request), self._run_of(request.state, self._adapter.start)
        _check_innermost(handler, run)

        async def execute(name: str, arguments: dict[str, Any]) -> Any:
            return call.read(await handler(call.write(name, arguments)))

        try:
            result = await run.call_tool(call.call, execute)
        except RunOverError:
            return call.cancelled()
        except _ToolFailedError as failed:
            return failed.returned
        return call.message(result)


def _check_innermost(handler: Any, run: ForeignRun) -> None:
    """Check that no other middleware is between Hookline's and the model or the tool.

    LangChain does not tell a middleware its place in the list. But the handler of one that is not the last is a
    function that LangChain made in ``_chain_model_call_handlers``, ``_chain_tool_call_wrappers`` or their async twins.

    Raises:
        RegistrationError: another middleware could still change what the hooks have judged.
    """
    if getattr(handler, "__qualname__", "").startswith("_chain_"):
        run.run.cancel("HooklineMiddleware is not the last middleware")
        raise RegistrationError(
            "LangChain: HooklineMiddleware must be the last middleware of the agent, because one that follows it could "
            "change a call after the guards have judged it: create_agent(middleware=[..., HooklineMiddleware(...)])"
        )


def _provider_tools(request: LangChainRequest) -> Iterator[str]:
    """Yield the names of the tools that the provider runs itself: mappings that do not declare a function."""
    bound, given = request.model, [*request.tools, *request.model_settings.get("tools", ())]
    while (kwargs := getattr(bound, "kwargs", None)) is not None and hasattr(bound, "bound"):  # model.bind(tools=...)
        given += kwargs.get("tools") or ()
        bound = bound.bound
    for tool in given:
        if not isinstance(tool, Mapping) or "function_declarations" in tool:
            continue
        kind = tool.get("type")
        if kind not in ("function", "custom") and not (kind is None and "name" in tool):
            yield str(tool.get("name") or kind or next(iter(tool), "unknown"))


def _bare_agent(value: Any) -> str | None:
    """Return the name of an agent without Hookline's middleware; ``None`` for all else."""
    if not isinstance(value, Pregel) or "model" not in value.nodes:
        return None
    has_hooks = any(name.partition(".")[0] == HooklineMiddleware.__name__ for name in value.nodes)
    return None if has_hooks else str(value.name)


class _Settled(BaseChatModel):  # type: ignore[misc]
    """A model whose only reply is settled, to show it in LangChain's streams of events."""

    reply: Any
    cache: bool | None = False

    @property
    def _llm_type(self) -> str:
        return "hookline"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        return ChatResult(generations=[ChatGeneration(message=self.reply)])

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Iterator[Any]:
        shown = {name: getattr(self.reply, name) for name in ("content", "id", "tool_calls", "usage_metadata")}
        chunk = ChatGenerationChunk(message=AIMessageChunk(**shown))
        if run_manager is not None:
            run_manager.on_llm_new_token(self.reply.text, chunk=chunk)
        yield chunk


class _Messages(Translation):
    """The messages of one run."""

    def __init__(self) -> None:
        super().__init__(self._from_langchain, self._to_langchain, _fields)
        self._files: dict[str, Any] = {}  # the content blocks of attachments, by digest

    def _from_langchain(self, given: BaseMessage) -> Message:
        self._files |= {file.digest: block for file, block in _files(given)}
        return _message(given)

    def _to_langchain(self, message: Message) -> BaseMessage:
        written = _written(message)
        if blocks := [self._files[file.digest] for file in message.attachments if file.digest in self._files]:
            written.content = [{"type": "text", "text": message.content}, *blocks]
        return written


class _ModelCall:
    """One call of the model node: the request for Hookline, and the messages for LangChain."""

    def __init__(self, adapter: Adapter, run: ForeignRun, request: LangChainRequest) -> None:
        self._adapter = adapter
        self._given = request
        self._messages: list[BaseMessage] = list(request.messages)
        self._memo = run.memo
        self._memo["structured"] = None
        self._translation: _Messages = run.memo.setdefault("messages", _Messages())
        self._shown = ModelRequest()
        self._result: list[BaseMessage] = []
        self._last: tuple[ModelResponse, Any] | None = None
        self._structured: Any = None
        self._hidden: list[Any] = []
        """The handlers of callbacks that showed no reply yet."""

    def request(self) -> ModelRequest:
        """Return the request for the hooks."""
        given = self._given
        system = [] if given.system_message is None else [given.system_message]
        self._shown = ModelRequest(
            self._translation.read([*system, *self._messages]),
            tuple([_spec(tool, self._translation.specs) for tool in given.tools]),
            str(getattr(given.model, self._model_field, "") or type(given.model).__name__),
            tool_choice=given.tool_choice if isinstance(given.tool_choice, str) else None,
            params={name: value for name, value in given.model_settings.items() if _is_json(value)},
        )
        return self._shown

    @property
    def _model_field(self) -> str:
        """The attribute of LangChain's model that contains its name; most classes have one of these two."""
        return "model_name" if hasattr(self._given.model, "model_name") else "model"

    def write(self, asked: ModelRequest) -> LangChainRequest:
        """Return the request for LangChain.

        Raises:
            ModelError: a hook changed something that cannot be changed there.
        """
        given, shown = self._given, self._shown
        changed: dict[str, Any] = {}
        messages = self._translation.write(asked.messages)
        changed["system_message"] = messages.pop(0) if messages and isinstance(messages[0], SystemMessage) else None
        if asked.tools is not shown.tools:
            known = list(zip(shown.tools, given.tools, strict=True))
            changed["tools"] = [_take(known, spec) or _tool(spec) for spec in asked.tools]
        others = {name: value for name, value in given.model_settings.items() if name not in shown.params}
        changed["model_settings"] = {**others, **thaw(asked.params)}
        if asked.tool_choice != shown.tool_choice:
            changed["tool_choice"] = asked.tool_choice
        update: dict[str, Any] = {}
        if asked.model != shown.model:
            if not hasattr(given.model, self._model_field):
                raise ModelError(f"hooks cannot change the model of {type(given.model).__name__} in LangChain")
            update[self._model_field] = asked.model
        if self._adapter.holds_text:
            update["tags"] = [*(given.model.tags or ()), "nostream"]
        model = given.model.model_copy(update=update) if update else given.model
        return given.override(model=model, messages=messages, **changed)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide what the model answers from the streams of LangChain, if hooks can still reject it."""
        config = var_child_runnable_config.get()
        callbacks: Any = (config or {}).get("callbacks")  # in a graph a manager of callbacks
        if not self._adapter.holds_text or not hasattr(callbacks, "remove_handler"):
            yield
            return
        kept = callbacks.copy()
        self._hidden = [each for each in kept.handlers if isinstance(each, _StreamingCallbackHandler)]
        for handler in self._hidden:
            kept.remove_handler(handler)
        token = var_child_runnable_config.set({**config, "callbacks": kept})
        try:
            yield
        finally:
            var_child_runnable_config.reset(token)

    def shown(self, response: LangChainResponse) -> Iterator[tuple[Any, Any]]:
        """Yield a model that answers with each settled reply, and the configuration to call it with.

        Its calls show the replies in ``astream_events`` and ``astream_log``. LangGraph shows them by itself.
        """
        handlers = [each for each in self._hidden if not isinstance(each, StreamMessagesHandler)]
        config = var_child_runnable_config.get()
        if not handlers or config is None:
            return
        callbacks: Any = config["callbacks"]
        callbacks = callbacks.copy()
        callbacks.set_handlers(handlers)
        name = getattr(self._given.model, "name", None) or type(self._given.model).__name__
        for message in response.result:
            if isinstance(message, AIMessage):
                yield _Settled(reply=message), {**config, "callbacks": callbacks, "run_name": name}

    def read(self, given: Any) -> ModelResponse:
        """Return the response of LangChain for the hooks."""
        response = getattr(given, "model_response", given)
        messages = [response] if isinstance(response, AIMessage) else response.result
        self._structured = getattr(response, "structured_response", None)
        read = _response(messages, structured=self._structured is not None)
        self._last = read, messages
        return read

    def add(self, settled: Any) -> bool:
        """Take a settled reply. Return whether the model must be called again."""
        reply: ModelReply = settled.reply
        if self._last is not None and reply.source == "model" and reply_is(reply, self._last[0]):
            added = list(self._last[1])
        else:
            self._structured = _reparsed(reply.content, self._structured)
            made = AIMessage(content=reply.content, tool_calls=[_call_dict(call) for call in reply.tool_calls])
            if self._last is not None and reply.source == "model":  # a hook changed it, but it cost the same
                made.usage_metadata, made.response_metadata = _metadata(self._last[1])
            added = [made]
        if settled.again and settled.note:
            added.append(HumanMessage(settled.note))
        self._memo["structured"] = None if self._structured is None else reply.content
        self._result += added
        self._messages += added
        return bool(settled.again)

    def response(self, reply: str | None = None) -> LangChainResponse:
        """Return the response for LangChain; with a reply if the run is over."""
        if reply is not None:
            return LangChainResponse([*self._result, AIMessage(content=reply)])
        return LangChainResponse(self._result, self._structured)


class _ToolCall:
    """One tool call: the call for Hookline, and the message for LangChain."""

    def __init__(self, request: ToolCallRequest) -> None:
        self._given = request
        call = request.tool_call
        self.call = ToolCall(call["id"] or "", call["name"], call["args"])
        self._returned: Any = None
        self._read: Any = None
        self._parts: list[tuple[Any, list[BaseMessage]]] = []
        """The parts of what the tool returned, with the messages in each."""
        self._answer: ToolMessage | None = None
        """The message of the tool that answers the call."""
        self._added: list[BaseMessage] = []
        """The other messages that the tool adds to the conversation."""

    def write(self, name: str, arguments: dict[str, Any]) -> ToolCallRequest:
        """Return the request for LangChain."""
        given = self._given
        changed: dict[str, Any] = {"tool_call": {**given.tool_call, "name": name, "args": arguments}}
        if name != self.call.name:  # LangChain runs the tool of the request, whatever the name of the call
            changed["tool"] = next((tool for tool in given.runtime.tools if tool.name == name), None)
        return given.override(**changed)

    def read(self, returned: Any) -> Any:
        """Return the result of the tool for the hooks, with all messages that it adds to the conversation."""
        self._returned = returned
        self._parts = [(part, _messages_in(part)) for part in (returned if isinstance(returned, list) else [returned])]
        messages = [each for _, part in self._parts for each in part]
        self._answer = next((each for each in messages if self._answers(each)), None)
        self._added = [each for each in messages if each is not self._answer and not isinstance(each, RemoveMessage)]
        text = "" if self._answer is None else self._answer.text
        self._read = text if not self._added else {"content": text, "messages": [_plain(each) for each in self._added]}
        if self._answer is not None and self._answer.status == "error":
            raise _ToolFailedError(json_text(self._read) if self._added else text, returned)
        return self._read

    def _answers(self, message: BaseMessage) -> bool:
        return isinstance(message, ToolMessage) and message.tool_call_id == self.call.id

    def message(self, result: ToolCallResult) -> Any:
        """Return the result for LangChain: what the tool returned, with the texts that a hook changed.

        The other changes of the graph's state that the tool returned are kept.
        """
        if self._returned is not None and result.error is None and result.result == self._read:
            return self._returned
        status = "error" if result.error is not None else "success"
        text, added = self._changed(result)
        answer = ToolMessage(text, tool_call_id=self.call.id, name=result.name, status=status)
        if not isinstance(self._returned, (Command, list)):
            return answer
        texts = {id(old): new for old, new in zip(self._added, added, strict=True) if new is not None}
        changed = [each for part, messages in self._parts for each in self._part(part, messages, answer, texts)]
        if self._answer is None:
            changed.append(answer)
        return changed[0] if len(changed) == 1 else changed

    def _changed(self, result: ToolCallResult) -> tuple[str, list[str | None]]:
        """Return the text of the result, and of each message that the tool added; ``None`` if a hook removed it."""
        given = None if result.error is not None else result.result
        if self._added and isinstance(given, Mapping) and isinstance(given.get("messages"), Sequence):
            texts = [each.get("content") if isinstance(each, Mapping) else None for each in given["messages"]]
            if len(texts) == len(self._added) and all(isinstance(each, str) for each in texts):
                return str(given.get("content", "")), texts
        return result.text, [None] * len(self._added)

    def _part(self, part: Any, messages: list[BaseMessage], answer: ToolMessage, texts: Mapping[int, str]) -> list[Any]:
        """Return a part of what the tool returned, with the changed messages."""
        changed: list[BaseMessage] = []
        for message in messages:
            if message is self._answer:
                changed.append(answer)
            elif isinstance(message, RemoveMessage):
                changed.append(message)
            elif (text := texts.get(id(message))) is not None:
                changed.append(message if text == message.text else message.model_copy(update={"content": text}))
        if not isinstance(part, Command):
            return changed
        update = dict(_update_of(part))
        if "messages" in update:
            update["messages"] = changed
        return [replace(part, update=update)]

    def cancelled(self) -> ToolMessage:
        """Return the result of a call that was not made because the run has ended."""
        return ToolMessage(
            "Cancelled: the run has ended.", tool_call_id=self.call.id, name=self.call.name, status="error"
        )


class _ToolFailedError(PlainError):
    """LangChain made an error message of a failure of the tool, such as invalid arguments."""

    def __init__(self, text: str, returned: Any) -> None:
        super().__init__(text)
        self.returned = returned


# Translation of single values.


def _update_of(command: Command) -> Mapping[str, Any]:
    """Return what a command changes in the state of the graph."""
    return command.update if isinstance(command.update, dict) else dict(command._update_as_tuples())


def _messages_in(part: Any) -> list[BaseMessage]:
    """Return the messages in a part of what a tool returned."""
    if not isinstance(part, Command):
        return [part] if isinstance(part, BaseMessage) else []
    found: list[BaseMessage] = convert_to_messages(_update_of(part).get("messages", ()))
    return found


def _plain(message: BaseMessage) -> dict[str, str]:
    """Return a message that a tool added, as hooks see it."""
    return {"role": _message(message).role, "content": message.text}


def _message(given: BaseMessage) -> Message:
    if isinstance(given, AIMessage):
        calls = tuple(ToolCall(call["id"] or "", call["name"], call["args"]) for call in given.tool_calls)
        return Message("assistant", given.text, calls)
    if isinstance(given, ToolMessage):
        return Message("tool", given.text, (), given.tool_call_id, given.name, given.status == "error")
    files = tuple(file for file, _ in _files(given))
    return Message("system" if isinstance(given, SystemMessage) else "user", given.text, attachments=files)


_CALL_FIELDS = attrgetter("content", "tool_calls")
_RESULT_FIELDS = attrgetter("content", "name", "tool_call_id", "status")


def _fields(given: BaseMessage) -> Any:
    """Return all that :func:`_message` looks at."""
    if isinstance(given, AIMessage):
        return _CALL_FIELDS(given)
    return _RESULT_FIELDS(given) if isinstance(given, ToolMessage) else given.content


def _files(given: BaseMessage) -> Iterator[tuple[Attachment, Any]]:
    """Yield the images, audio and other files of a message, each with its content block."""
    if isinstance(given.content, str):
        return
    for block in given.content_blocks:
        kind, name = str(block.get("mime_type") or ""), str(block.get("filename") or "")
        if block["type"] not in ("image", "audio", "video", "file", "text-plain"):
            continue
        if url := block.get("url"):
            digest = sha256_of(url.encode())
            yield Attachment(kind or ANY_IMAGE, digest, 0, name, url), block
        elif (data := block.get("base64")) is not None:
            content = b64decode(data)
            yield Attachment(kind or UNKNOWN, sha256_of(content), len(content), name), block
        else:  # a file that the vendor stores
            yield Attachment(kind or UNKNOWN, sha256_of(repr(block).encode()), 0, name), block


def _written(message: Message) -> BaseMessage:
    match message.role:
        case "assistant":
            return AIMessage(content=message.content, tool_calls=[_call_dict(call) for call in message.tool_calls])
        case "tool":
            status = "error" if message.is_error else "success"
            return ToolMessage(message.content, tool_call_id=message.call_id or "", name=message.name, status=status)
        case "system":
            return SystemMessage(message.content)
    return HumanMessage(message.content)


def _metadata(messages: Sequence[BaseMessage]) -> tuple[Any, Any]:
    first = next(message for message in messages if isinstance(message, AIMessage))
    return first.usage_metadata, first.response_metadata


def _is_json(value: Any) -> bool:
    try:
        freeze(value)
    except (TypeError, ValueError):
        return False
    return True


def _call_dict(call: ToolCall) -> Any:
    return {"id": call.id, "name": call.name, "args": thaw(call.arguments), "type": "tool_call"}


def _spec(tool: Any, specs: ToolSpecs) -> ToolSpec:
    """Return the spec of a tool."""
    if type(tool) is StructuredTool:  # of another class, any attribute may be part of its description
        return specs.made_of((tool.name, tool.description, tool.args_schema), partial(_new_spec, tool))
    return _new_spec(tool)


def _new_spec(tool: Any) -> ToolSpec:
    """Return the spec of a tool; a mapping is a tool that the provider runs itself."""
    if isinstance(tool, dict):
        function = tool.get("function", tool)
        return ToolSpec(
            str(function.get("name", "")), str(function.get("description", "")), function.get("parameters", {})
        )
    function = convert_to_openai_tool(tool)["function"]
    return ToolSpec(function["name"], function.get("description", ""), function.get("parameters", {}))


def _take(known: list[tuple[ToolSpec, Any]], spec: ToolSpec) -> Any:
    """Remove the first tool with this spec from a list, and return it, or else ``None``."""
    index = next((i for i, (each, _) in enumerate(known) if each == spec), None)
    return None if index is None else known.pop(index)[1]


def _tool(spec: ToolSpec) -> dict[str, Any]:
    """Return a tool that a hook added or described anew, as LangChain's models take it."""
    about = {"name": spec.name, "description": spec.description, "parameters": thaw(spec.parameters)}
    return {"type": "function", "function": about}


def _response(messages: Sequence[BaseMessage], *, structured: bool) -> ModelResponse:
    """Return a reply of LangChain for the hooks. Structured output is its text, also if it is a call of a tool."""
    message = next(each for each in messages if isinstance(each, AIMessage))
    outputs = {each.tool_call_id for each in messages if isinstance(each, ToolMessage)} if structured else set()
    texts = [message.text, *[json_text(call["args"]) for call in message.tool_calls if call["id"] in outputs]]
    used, about = message.usage_metadata, message.response_metadata
    usage = Usage()
    if used is not None:
        cached = (used.get("input_token_details") or {}).get("cache_read", 0)
        usage = Usage(used["input_tokens"], used["output_tokens"], cached)
    reason = str(about.get("finish_reason") or about.get("stop_reason") or "stop")
    return ModelResponse(
        "\n".join(filter(None, texts)),
        tuple([call for call in _message(message).tool_calls if call.id not in outputs]),
        usage,
        _FINISH.get(reason, "stop" if reason in ("stop", "end_turn") else reason),
        model=str(about.get("model_name", "")),
        provider=str(about.get("model_provider", "")),
    )


def _reparsed(text: str, before: Any) -> Any:
    """Return structured output as hooks changed it, or ``None`` if there is none or the text does not fit its type."""
    if before is None:
        return None
    try:
        return TypeAdapter(type(before)).validate_json(text)
    except ValidationError:
        return None


def _task(messages: Sequence[BaseMessage]) -> tuple[Message, list[Message]]:
    """Return the last user message, and the messages before it."""
    last = max((i for i, each in enumerate(messages) if isinstance(each, HumanMessage)), default=len(messages))
    task = _message(messages[last]) if last < len(messages) else Message("user")
    return task, [_message(each) for each in messages[:last]]


def _thread() -> str:
    """Return the id of the conversation that LangGraph saves, if there is one."""
    return str(get_config().get("configurable", {}).get("thread_id") or "")


def _last_text(state: Any, run: ForeignRun) -> str | None:
    """Return the final text of the graph: its structured output, or else its last message."""
    if (structured := run.memo.get("structured")) is not None:
        return str(structured)
    messages = state["messages"]
    return messages[-1].text if messages and isinstance(messages[-1], AIMessage) else None


def _final(state: Any, text: str | None, result: AgentResult[Any]) -> dict[str, Any] | None:
    """Return the change of the graph's state if a hook at ``on_run_end`` replaced the reply.

    Raises:
        RunFailedError: a hook at ``on_run_end`` failed closed.
    """
    if result.status == "failed":
        raise RunFailedError(result)
    if text is None or text == result.reply:
        return None
    messages = state["messages"]
    last = max(index for index, message in enumerate(messages) if isinstance(message, AIMessage))
    removed = [RemoveMessage(id=message.id) for message in messages[last + 1 :]]  # they repeat structured output
    change: dict[str, Any] = {"messages": [AIMessage(content=result.reply, id=messages[last].id), *removed]}
    if (structured := state.get("structured_response")) is not None:
        change["structured_response"] = _reparsed(result.reply, structured)
    return change
