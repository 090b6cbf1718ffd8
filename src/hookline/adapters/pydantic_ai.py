"""Hookline's hooks in an agent of pydantic-ai.

One capability takes part in the whole run::

    from hookline.adapters.pydantic_ai import HooklineCapability

    agent = Agent(model, tools=[shell], capabilities=[HooklineCapability(no_sudo, AuditTrail("audit.db"))])

The capability wraps the run, the model (``get_wrapper_model``: the hooks of a capability around a request may call the
model only once) and the toolset (``get_wrapper_toolset``: the last place before a tool runs, so that what the guards
judged is what runs). It is the innermost capability: what others change is changed before the hooks see it.
"""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
# The frameworks are not installed together, so their names are unknown to the type checker.
from __future__ import annotations

import copy
import dataclasses
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Unpack

from .._base.errors import PlainError
from .._base.frozen import freeze, json_problem, json_text, parse_object, thaw
from .._kernel.errors import RegistrationError
from .._kernel.hook import Hook
from .._kernel.payloads import ModelRequest
from .._kernel.registry import HookRegistry
from .._kernel.state import AgentResult
from .._kernel.values import ModelResponse, ToolCall, ToolSpec
from .._run.foreign import SettledReply
from .._run.termination import RunFailedError
from ..tools._tool import CheckedArguments, jsonable, take_attachments
from ._foreign import Adapter, AdapterOptions, ForeignRun, RunOverError, Support, reply_is
from ._pydantic_ai_messages import (
    Conversation,
    files_of,
    new_response,
    plain_settings,
    read_file,
    read_reply,
    reader,
    user_text,
)

try:
    import pydantic_core
    from pydantic import TypeAdapter
    from pydantic_ai import messages as pm
    from pydantic_ai.agent import AbstractAgent, CallToolsNode, ModelRequestNode
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.exceptions import ModelRetry, ToolFailed
    from pydantic_ai.models import StreamedResponse
    from pydantic_ai.models.wrapper import WrapperModel
    from pydantic_ai.result import FinalResult
    from pydantic_ai.tools import ToolDenied
    from pydantic_ai.toolsets import WrapperToolset
    from pydantic_graph import End
except ImportError:  # Adapter says which version to install
    AbstractCapability = StreamedResponse = WrapperModel = WrapperToolset = object

__all__ = ["HooklineCapability"]

SUPPORT = Support(
    "pydantic-ai",
    "pydantic-ai-slim",
    "2.66",
    "2.69",
    {
        "before_llm.model": "Use pydantic-ai's SelectModel",
        "before_llm.response_format": "Give it to the agent: Agent(output_type=...)",
        "before_llm.tools": "Give them to the agent: Agent(tools=[...])",
    },
    "pydantic-ai",
)

_CANCELLED = "Cancelled: the run has ended."
_JUDGED = ("function", "unapproved")
"""The kinds of tools that pydantic-ai calls; others are called by the program, or are its output."""

_RUN: ContextVar[str | None] = ContextVar("hookline_pydantic_ai_run", default=None)


class HooklineCapability(AbstractCapability):  # type: ignore[misc]
    """A capability that calls Hookline's hooks in an agent of pydantic-ai.

    Native tools, such as ``WebSearchTool``, are run by the provider, so hooks cannot judge their calls. A request that
    offers one is refused if there is a hook around tool calls, unless ``unguarded`` names its kind.

    Args:
        hooks: hooks, or one :class:`hookline.HookRegistry`, whose later changes take effect too.
        options: see :class:`hookline.adapters.AdapterOptions`.

    Raises:
        RegistrationError: a hook or an option cannot work in pydantic-ai; the message names the alternative.

    Example::

        @guard(BEFORE_TOOL, tools="shell")
        def no_sudo(ctx, request):
            return HookResult.block("sudo is not allowed.") if "sudo" in request.arguments["command"] else None

        agent = Agent(model, tools=[shell], capabilities=[HooklineCapability(no_sudo)])
    """

    def __init__(self, *hooks: Hook | HookRegistry, **options: Unpack[AdapterOptions]) -> None:
        self._adapter = Adapter(SUPPORT, hooks, options)
        self._run: _Run | None = None
        super().__init__()

    def get_ordering(self) -> Any:
        """Return the place of this capability: inside all others."""
        return CapabilityOrdering(position="innermost")

    async def for_run(self, ctx: Any) -> Any:
        """Return the capability of one run."""
        own = copy.copy(self)
        own._run = _Run(self)
        return own

    def _check_native(self, native_tools: Iterable[Any]) -> None:
        """Refuse tools that the provider runs, because no hook could judge their calls."""
        for tool in native_tools:
            self._adapter.unseen.refuse(tool.kind, f"the native tool {tool.kind!r} is run by the provider")

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        """Start and end Hookline's run."""
        run = self._run
        if _RUN.get() == ctx.run_id or run is None:
            raise RegistrationError(
                "Hookline is already attached to this agent: each hook would be called twice. Use one "
                "HooklineCapability, with all hooks"
            )
        _RUN.set(ctx.run_id)
        history = Conversation("", ctx.messages, reader()).messages
        prompt, session = ctx.prompt or "", str(ctx.conversation_id or "")
        run.foreign = foreign = self._adapter.start(
            user_text(prompt), history, attachments=files_of(prompt), session=session, streaming=True
        )
        try:
            result = await handler()
        except Exception as error:
            await foreign.end(error=error)
            raise
        except BaseException as error:
            await foreign.interrupted(error)
            raise
        output = result.output
        ended = await foreign.end(output if isinstance(output, str) else None)
        if ended.status == "failed":
            raise RunFailedError(ended)
        if isinstance(output, str) and ended.reply != output:
            return dataclasses.replace(result, output=ended.reply)
        return result

    async def wrap_node_run(self, ctx: Any, *, node: Any, handler: Any) -> Any:
        """End the run where a hook ended it, or continue it where a hook kept it going."""
        run = self._run
        if run is None:
            return await handler(node)
        if isinstance(node, CallToolsNode) and run.over is not None:
            return End(FinalResult(run.over.reply))
        following = await handler(node)
        if isinstance(node, CallToolsNode) and isinstance(following, End) and run.over is not None:
            return End(FinalResult(run.over.reply))  # a hook ended the run at the call of an output function
        if isinstance(following, End) and run.over is None and run.note is not None:
            note, run.note = run.note, None
            return ModelRequestNode(pm.ModelRequest(parts=[pm.UserPromptPart(note)]))
        return following

    async def wrap_output_process(self, ctx: Any, *, output_context: Any, output: Any, handler: Any) -> Any:
        """Call an output function under the hooks, which judge it like a tool of its name."""
        name = _output_function(ctx, output_context)
        if self._run is None or name is None:
            return await handler(output)
        if ctx.partial_output:  # pydantic-ai waits for more; an output function runs once, with the whole output
            raise ModelRetry("The output is not complete yet.")
        return await _OutputCall(self._run, ctx, name, output_context, output).make(handler)

    async def before_output_process(self, ctx: Any, *, output_context: Any, output: Any) -> Any:
        """Check that no other capability has changed the output since the hooks judged it.

        Raises:
            RegistrationError: one has.
        """
        judged = _JUDGED_OUTPUT.get()
        if judged is not None and _output_function(ctx, output_context) is not None and output != judged[0]:
            raise RegistrationError(
                "pydantic-ai: another capability changes the arguments of an output function at before_output_process, "
                "after the guards have judged them. Change them at after_output_validate"
            )
        return output

    def get_wrapper_model(self, model: Any) -> Any:
        """Return the model, with its calls under the hooks."""
        return None if self._run is None else _HookedModel(self._run, model)

    def get_wrapper_toolset(self, toolset: Any) -> Any:
        """Return the tools of the run, with their calls under the hooks."""
        return None if self._run is None else _HookedToolset(toolset, self._run)


class _Run:
    """One run, and what the hooks decided about it."""

    foreign: ForeignRun

    def __init__(self, capability: HooklineCapability) -> None:
        self.capability = capability
        self.reader = reader()
        self.over: AgentResult[Any] | None = None
        self.note: str | None = None
        """The note of a hook that kept the run going after the last reply."""
        self.tools: dict[str, Any] = {}
        """The tools of the current step, with their own validators."""


# Model calls.


class _HookedModel(WrapperModel):  # type: ignore[misc]
    """The model of one request."""

    def __init__(self, run: _Run, model: Any) -> None:
        super().__init__(model)
        self._run = run

    async def request(self, messages: list[Any], model_settings: Any, model_request_parameters: Any) -> Any:
        """Call the model under the hooks."""
        call = _ModelCall(self._run, self.wrapped, messages, model_settings, model_request_parameters)

        async def send(asked: ModelRequest) -> ModelResponse:
            return call.read(await self.wrapped.request(*call.write(asked)))

        try:
            call.take(await self._run.foreign.call_model(call.request(), send))
        except RunOverError as over:
            self._run.over = over.result
        return call.response()

    @asynccontextmanager
    async def request_stream(
        self, messages: list[Any], model_settings: Any, model_request_parameters: Any, run_context: Any = None
    ) -> AsyncIterator[Any]:
        """Call the model under the hooks, and show text as they release it."""
        call = _ModelCall(self._run, self.wrapped, messages, model_settings, model_request_parameters)

        async def send(asked: ModelRequest) -> AsyncIterator[str | ModelResponse]:
            async with self.wrapped.request_stream(*call.write(asked), run_context) as stream:
                async for event in stream:
                    if (text := _text_in(event)) is not None:
                        yield text
                yield call.read(stream.get())

        stream = _HookedStream(model_request_parameters=model_request_parameters)
        stream.call, stream.send = call, send
        try:
            yield stream
        finally:
            await stream.close_stream()


class _HookedStream(StreamedResponse):  # type: ignore[misc]
    """A stream of the text that the hooks released, and then of the other parts of the reply."""

    call: _ModelCall
    send: Any
    _items: Any = None
    _whole: Any = None

    async def _get_event_iterator(self) -> AsyncIterator[Any]:
        call, shown = self.call, ""
        self._items = call.run.foreign.stream_model(call.request(), self.send)
        try:
            async for item in self._items:
                if isinstance(item, str):
                    shown += item
                    for event in self._parts_manager.handle_text_delta(vendor_part_id="text", content=item):
                        yield event
                elif isinstance(item, SettledReply):
                    call.take(item)
        except RunOverError as over:
            call.run.over = over.result
        self._whole = whole = call.response()
        self._usage = whole.usage
        if not shown:  # such as the reply of a hook
            for text in [part.content for part in whole.parts if part.part_kind == "text"]:
                for event in self._parts_manager.handle_text_delta(vendor_part_id="text", content=text):
                    yield event
        for number, part in enumerate(whole.parts):
            if part.part_kind != "text":
                yield self._parts_manager.handle_part(vendor_part_id=number, part=part)

    def get(self) -> Any:
        """Return the response, as far as it is known."""
        return super().get() if self._whole is None else self._whole

    async def close_stream(self) -> None:
        """Stop the model."""
        if self._items is not None:
            await self._items.aclose()

    @property
    def model_name(self) -> str:
        return self.call.model.model_name  # type: ignore[no-any-return]

    @property
    def provider_name(self) -> str | None:
        return self.call.model.system  # type: ignore[no-any-return]

    @property
    def provider_url(self) -> str | None:
        return self.call.model.base_url  # type: ignore[no-any-return]

    @property
    def timestamp(self) -> datetime:
        return self.call.began


class _ModelCall:
    """One call of the model: the request for Hookline, and the response for pydantic-ai."""

    _shown: ModelRequest
    """The last request for the hooks."""

    def __init__(self, run: _Run, model: Any, messages: list[Any], settings: Any, parameters: Any) -> None:
        run.capability._check_native(parameters.native_tools)
        self.run, self.model = run, model
        self._settings, self._parameters = settings, parameters
        parts = parameters.instruction_parts
        self._conversation = Conversation((parts and pm.InstructionPart.join(parts)) or "", messages, run.reader)
        self._params = plain_settings(settings)
        self._outputs = frozenset([tool.name for tool in parameters.output_tools])
        self._last: tuple[ModelResponse, Any] | None = None
        self._spent: Any = None
        self._reply: Any = None
        self.began = datetime.now(UTC)

    def request(self) -> ModelRequest:
        """Return the request for the hooks."""
        parameters, choice = self._parameters, self._params.get("tool_choice")
        schema = parameters.output_object.json_schema if parameters.output_object is not None else None
        tools = (*parameters.function_tools, *parameters.output_tools)
        self._shown = ModelRequest(
            self._conversation.messages,
            tuple(map(self._spec, tools)),
            self.model.model_name,
            response_format=schema,
            tool_choice=choice if isinstance(choice, str) else None,
            params={name: value for name, value in self._params.items() if name != "tool_choice"},
        )
        return self._shown

    def write(self, asked: ModelRequest) -> tuple[list[Any], Any, Any]:
        """Return the request for pydantic-ai."""
        before = self._shown
        specs = {spec.name: spec for spec in asked.tools}
        instructions, history = self._conversation.restore(asked.messages)
        changes: dict[str, Any] = {}
        if asked.tools != before.tools:
            for kind in ("function_tools", "output_tools"):
                tools = [tool for tool in getattr(self._parameters, kind) if tool.name in specs]
                changes[kind] = [self._with_spec(tool, specs[tool.name]) for tool in tools]
        if instructions is not None:
            changes["instruction_parts"] = [pm.InstructionPart(instructions)] if instructions else []
        parameters = dataclasses.replace(self._parameters, **changes) if changes else self._parameters
        settings = self._settings
        if asked.params != before.params or asked.tool_choice != before.tool_choice:
            hidden = {name: value for name, value in (settings or {}).items() if name not in self._params}
            settings = {**hidden, **thaw(asked.params)}
            choice = self._params.get("tool_choice") if asked.tool_choice == before.tool_choice else asked.tool_choice
            if choice is not None:
                settings["tool_choice"] = choice
        return history, settings, parameters

    def _spec(self, tool: Any) -> ToolSpec:
        return self.run.reader.specs.spec(tool.name, tool.description or "", tool.parameters_json_schema)

    def _with_spec(self, tool: Any, spec: ToolSpec) -> Any:
        """Return a tool as hooks describe it to the model."""
        if self._spec(tool) == spec:
            return tool
        return dataclasses.replace(tool, description=spec.description, parameters_json_schema=thaw(spec.parameters))

    def read(self, response: Any) -> ModelResponse:
        """Return a response of pydantic-ai for the hooks."""
        self._spent = response.usage if self._spent is None else self._spent + response.usage
        read = read_reply(response, self.model.model_name, self._outputs)
        self._last = read, response
        return read

    def take(self, settled: SettledReply) -> None:
        """Take a settled reply."""
        self._reply = settled.reply
        self.run.note = settled.note if settled.again else None

    def response(self) -> Any:
        """Return the response for pydantic-ai, with the usage of all attempts."""
        over, reply, last = self.run.over, self._reply, self._last
        if over is not None or reply is None:
            response = new_response(over.reply if over is not None else "", ())
        elif last is not None and reply.source == "model" and reply_is(reply, last[0]):
            response = last[1]
        else:
            response = new_response(reply.content, reply.tool_calls, last and last[1], self._outputs)
        changes: dict[str, Any] = {} if self._spent is None else {"usage": self._spent}
        return dataclasses.replace(response, model_name=response.model_name or self.model.model_name, **changes)


def _text_in(event: Any) -> str | None:
    """Return the text that an event of a stream adds, if any."""
    if event.event_kind == "part_start" and event.part.part_kind == "text":
        return event.part.content or None
    if event.event_kind == "part_delta" and event.delta.part_delta_kind == "text":
        return event.delta.content_delta or None
    return None


# Output functions.


_JUDGED_OUTPUT: ContextVar[tuple[Any] | None] = ContextVar("hookline_pydantic_ai_output", default=None)
"""The output that the hooks have judged, while an output function is called with it."""


def _output_function(ctx: Any, about: Any) -> str | None:
    """Return the name of the function that is called with the output, or ``None`` if there is none."""
    call = about.tool_call
    if about.has_function:
        return about.function_name or (call.tool_name if call is not None else "output_function")
    tools = getattr(ctx.tool_manager, "tools", None) or {}
    if call is not None and (tool := tools.get(call.tool_name)) is not None:
        processor = getattr(tool.toolset, "processors", {}).get(call.tool_name)
        if any(map(callable, (getattr(processor, "_choice_values", None) or {}).values())):
            return str(call.tool_name)  # the model chooses one of several functions
    return None


class _OutputCall:
    """One call of an output function: the call for Hookline, and the output for pydantic-ai."""

    def __init__(self, run: _Run, ctx: Any, name: str, about: Any, output: Any) -> None:
        self._run, self._output = run, output
        shown = _plain(output)
        self._key = None if isinstance(shown, dict) else _only_property(about)
        self._given: dict[str, Any] = shown if self._key is None else {self._key: shown}
        number = about.tool_call.tool_call_id if about.tool_call is not None else f"output-{ctx.run_step}"
        self._call = ToolCall(number, name, self._given)

    async def make(self, handler: Any) -> Any:
        """Make the call, and return what pydantic-ai gets."""
        returned: list[Any] = []

        async def execute(name: str, arguments: dict[str, Any]) -> Any:
            if name != self._call.name:
                raise PlainError(f"There is no output function {name!r}.")
            output = self._changed(arguments)
            token = _JUDGED_OUTPUT.set((output,))
            try:
                returned[:] = [await handler(output)]
            finally:
                _JUDGED_OUTPUT.reset(token)
            return _shown(returned[0])

        try:
            result = await self._run.foreign.call_tool(self._call, execute)
        except RunOverError as over:
            self._run.over = over.result
            return over.result.reply
        if result.error is not None:
            raise ModelRetry(result.text)
        shown, files = take_attachments(_shown(returned[0]) if returned else None)
        if returned and result.result == jsonable(shown) and result.attachments == files:
            return returned[0]
        return _as_type_of(returned[0], thaw(result.result)) if returned else thaw(result.result)

    def _changed(self, arguments: dict[str, Any]) -> Any:
        """Return the output with these arguments."""
        if arguments == self._given:
            return self._output
        if self._key is not None:
            return _as_type_of(self._output, arguments[self._key])
        if isinstance(self._output, dict):
            before = self._output
            return {
                name: _as_type_of(before[name], value) if name in before else value for name, value in arguments.items()
            }
        return _as_type_of(self._output, arguments)


def _only_property(about: Any) -> str:
    properties = about.object_def.json_schema.get("properties", {}) if about.object_def is not None else {}
    return next(iter(properties)) if len(properties) == 1 else "output"


def _plain(value: Any) -> Any:
    return pydantic_core.to_jsonable_python(value, fallback=str)


def _as_type_of(before: Any, value: Any) -> Any:
    """Return a JSON value as the type that the value before it had.

    Raises:
        ValidationError: it does not fit the type.
    """
    return before if value == _plain(before) else TypeAdapter(type(before)).validate_python(value)


# Tool calls.


@dataclasses.dataclass
class _HookedToolset(WrapperToolset):  # type: ignore[misc]
    """The tools of a run. Their arguments are validated between the rewriters and the guards."""

    run: _Run

    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        """Return the tools, whose arguments are not validated before the hooks see them."""
        tools = await super().get_tools(ctx)
        self.run.tools = {name: tool for name, tool in tools.items() if tool.tool_def.kind in _JUDGED}
        unseen = self.run.capability._adapter.unseen
        for name, tool in self.run.tools.items():
            unseen.report_agents_of(name, _function_of(tool), _bare_agent, _INSTEAD)
        return {**tools, **{name: _unchecked(tool) for name, tool in self.run.tools.items()}}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        """Call a tool under the hooks."""
        tools = {**self.run.tools, name: tool.args_validator.tool}
        invalid: list[Any] = []
        returned: list[Any] = []

        def validate(name: str, arguments: Mapping[str, Any]) -> CheckedArguments | str:
            if name not in tools:
                return f"There is no tool {name!r}."
            if problem := json_problem(arguments):
                return f"Invalid arguments for {name}: {problem}"
            try:
                text = json_text(arguments)
                values = tools[name].args_validator.validate_json(text, context=ctx.validation_context)
                shown = pydantic_core.to_jsonable_python(values, fallback=str)
                return CheckedArguments.of(name, freeze(shown), values)
            except pydantic_core.ValidationError as error:
                invalid[:] = [error, f"Invalid arguments for {name}: {error}"]
                return str(invalid[1])

        async def execute(name: str, values: dict[str, Any]) -> Any:
            plain, own = tools[name], dataclasses.replace(ctx, tool_name=name)
            if plain.args_validator_func is not None:
                checked = plain.args_validator_func(own, **values)
                if hasattr(checked, "__await__"):
                    await checked
            returned[:] = [await self.wrapped.call_tool(name, values, own, plain)]
            return _shown(returned[0])

        call = ToolCall(ctx.tool_call_id, name, tool_args.text if isinstance(tool_args, _NoObject) else tool_args)
        try:
            result = await self.run.foreign.call_tool(call, execute, validate)
        except RunOverError as over:
            self.run.over = over.result
            return _CANCELLED
        if invalid and result.error == invalid[1]:
            raise invalid[0]  # pydantic-ai asks the model again, and counts that
        if result.outcome == "blocked":
            return ToolDenied(result.text)
        if result.error is not None:
            raise ToolFailed(result.text)
        shown, files = take_attachments(_shown(returned[0]) if returned else None)
        if returned and result.result == jsonable(shown) and result.attachments == files:
            return returned[0]
        return thaw(result.result)


_INSTEAD = "Give it a HooklineCapability: Agent(capabilities=[...])"


def _function_of(tool: Any) -> Any:
    """Return the function of a tool, or ``None`` if it has none here, as the tools of an MCP server."""
    while (source := getattr(tool, "source_tool", None)) is not None:  # in a set of several toolsets
        tool = source
    schema = getattr(getattr(tool, "call_func", None), "__self__", None)
    return getattr(schema, "function", None)


def _bare_agent(value: Any) -> str | None:
    """Return the name of an agent without Hookline's capability; ``None`` for all else."""
    if not isinstance(value, AbstractAgent):
        return None
    found: list[Any] = []
    value.root_capability.apply(found.append)
    return None if any(isinstance(each, HooklineCapability) for each in found) else str(value.name or "agent")


class _NoObject(dict[str, Any]):
    """The arguments of a call whose text is no JSON object."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class _Unchecked:
    """A validator that lets all arguments pass, and remembers the tool with its own validator."""

    def __init__(self, tool: Any) -> None:
        self.tool = tool

    def validate_json(self, given: str, **_: Any) -> dict[str, Any]:
        """Return the arguments."""
        arguments, raw = parse_object(given)
        return thaw(arguments) if raw is None else _NoObject(raw)

    def validate_python(self, given: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Return the arguments."""
        return given


def _unchecked(tool: Any) -> Any:
    return dataclasses.replace(tool, args_validator=_Unchecked(tool), args_validator_func=None)


def _shown(value: Any) -> Any:
    """Return what a tool returned for the hooks: with what it adds to the conversation, and files as attachments."""
    if isinstance(value, pm.ToolReturn):
        if value.content is None:
            return _shown(value.return_value)
        return {"return_value": _shown(value.return_value), "content": _shown(value.content)}
    if isinstance(value, (list, tuple)):
        return [_shown(each) for each in value]
    return read_file(value) or value
