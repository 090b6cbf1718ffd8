"""Hookline's hooks in the loop of the OpenAI Agents SDK.

One runner takes the place of ``agents.Runner``::

    from hookline.adapters.openai_agents import HooklineRunner

    runner = HooklineRunner(no_sudo, AuditTrail("audit.db"))
    result = await runner.run(agent, "Tidy up the folder")

The run hooks of the SDK only watch, and its guardrails let pass or reject. So the hooks take part where a program can
bring its own part: the ``Model`` (requests and replies), ``FunctionTool.on_invoke_tool`` (tool calls, before their
arguments are validated), ``Agent.get_all_tools`` (tools of MCP servers too) and ``Handoff.on_invoke_handoff``. They are
put into copies of the agents, made for each run. The agents themselves stay unchanged.
"""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
# The frameworks are not installed together, so their names are unknown to the type checker.
from __future__ import annotations

import copy
import dataclasses
import inspect
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any, Unpack

from .._base.errors import PlainError
from .._base.frozen import thaw
from .._kernel.errors import HooklineError, RegistrationError
from .._kernel.hook import Hook
from .._kernel.payloads import ModelRequest
from .._kernel.registry import HookRegistry
from .._kernel.state import AgentResult
from .._kernel.values import Message, ModelResponse, ToolCall, ToolSpec
from .._run.foreign import SettledReply
from .._run.termination import RunFailedError
from ..tools._tool import jsonable, take_attachments
from ._foreign import Adapter, AdapterOptions, ForeignRun, RunOverError, Support, reply_is
from ._openai_items import Conversation, new_items, read_file, read_reply, reader, write_output
from ._unseen import CALL_POINTS

try:
    import agents as sdk
    from agents import AgentOutputSchemaBase, Handoff, Model
    from agents.models import get_default_model_settings
    from agents.tool import (
        maybe_invoke_function_tool_failure_error_function,
        set_function_tool_failure_error_function,
    )
    from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent, ResponseUsage
except ImportError:  # Adapter says which version to install
    AgentOutputSchemaBase = Handoff = Model = object

__all__ = ["HooklineRunner"]

SUPPORT = Support(
    "OpenAI Agents",
    "openai-agents",
    "0.24",
    "0.25",
    {
        "before_llm.response_format": "Give it to the agent: Agent(output_type=...)",
        "before_llm.tools": "Give them to the agent: Agent(tools=[...])",
    },
    "openai-agents",
)

_CANCELLED = "Cancelled: the run has ended."
_NOT_PARAMS = frozenset(("tool_choice", "retry", "extra_headers", "extra_query", "extra_body"))
"""Fields of the model settings that hooks do not see: the first is a field of the request, the others may hold keys."""


class HooklineRunner:
    """Runs agents of the OpenAI Agents SDK under Hookline's hooks, with the methods of ``agents.Runner``.

    Agents that are reached by a handoff run under the hooks too. Tools that the SDK does not call as functions (hosted
    tools, the computer and shell tools, agents as tools) cannot be judged by hooks. An agent that has one is refused if
    there is a hook around tool calls, or for agents as tools around model calls, unless ``unguarded`` names the tool.

    Args:
        hooks: hooks, or one :class:`hookline.HookRegistry`, whose later changes take effect too.
        options: see :class:`hookline.adapters.AdapterOptions`.

    Raises:
        RegistrationError: a hook or an option cannot work in the SDK; the message names the alternative.

    Example::

        @guard(BEFORE_TOOL, tools="shell")
        def no_sudo(ctx, request):
            return HookResult.block("sudo is not allowed.") if "sudo" in request.arguments["command"] else None

        result = HooklineRunner(no_sudo).run_sync(agent, "Install jq")
    """

    def __init__(self, *hooks: Hook | HookRegistry, **options: Unpack[AdapterOptions]) -> None:
        self._adapter = Adapter(SUPPORT, hooks, options)
        self._default_config: Any = sdk.RunConfig()

    async def run(self, starting_agent: Any, input: Any, **options: Any) -> Any:
        """Run an agent like ``Runner.run``, with the same options. Return its ``RunResult``.

        Raises:
            RunFailedError: a hook failed closed. Errors of the SDK are raised as they are.
        """
        run = self._start(starting_agent, input, options)
        async with run.failures():
            result = await sdk.Runner.run(run.first, input, **run.options)
        return run.finished(result, await run.foreign.end(_reply(result)))

    def run_sync(self, starting_agent: Any, input: Any, **options: Any) -> Any:
        """Run an agent like ``Runner.run_sync``: block until it has finished."""
        run = self._start(starting_agent, input, options, blocking=True)
        try:
            result = sdk.Runner.run_sync(run.first, input, **run.options)
        except Exception as error:
            run.foreign.end_sync(error=error)
            if run.failure is not None:
                raise run.failure from None
            raise
        except BaseException:  # such as Ctrl-C
            run.foreign.run.cancel("the framework was interrupted")
            raise
        return run.finished(result, run.foreign.end_sync(_reply(result)))

    def run_streamed(self, starting_agent: Any, input: Any, **options: Any) -> Any:
        """Run an agent like ``Runner.run_streamed``. Return its ``RunResultStreaming``.

        The stream shows text as the hooks release it, and finished items. It does not show pieces of tool calls and of
        reasoning, because no hook can judge these.
        """
        run = self._start(starting_agent, input, options, streaming=True)
        result = sdk.Runner.run_streamed(run.first, input, **run.options)
        events = result.stream_events
        # The SDK makes the result itself, so its method can only be replaced in the object.
        vars(result)["stream_events"] = partial(self._stream, run, result, events)
        return result

    async def _stream(self, run: _Run, result: Any, events: Any) -> AsyncIterator[Any]:
        async with run.failures():
            async for event in events():
                yield event
        run.finished(result, await run.foreign.end(_reply(result)))

    def _start(
        self, agent: Any, given: Any, options: dict[str, Any], *, blocking: bool = False, streaming: bool = False
    ) -> _Run:
        if not isinstance(agent, sdk.Agent):
            raise TypeError(f"expected an Agent of the OpenAI Agents SDK, got {type(agent).__name__}")
        if isinstance(given, sdk.RunState):
            run = self._paused(given)
        else:
            run = _Run(self)
            if isinstance(agent, _HookedAgent):  # such as the last agent of an earlier result
                self._check_own(agent)
                agent = agent.hookline.original(agent)
        run.set_options(options)
        run.first = run.hooked(agent)
        task, history = _task(given)
        files = task.attachments
        session = str(getattr(options.get("session"), "session_id", "") or options.get("conversation_id") or "")
        if blocking:
            run.foreign = self._adapter.start_sync(task.content, history, attachments=files, session=session)
        else:
            run.foreign = self._adapter.start(
                task.content, history, attachments=files, session=session, streaming=streaming
            )
        return run

    def _paused(self, state: Any) -> _Run:
        """Return the run that a state of the SDK continues, whose copies of agents it contains."""
        agent = state._current_agent
        if not isinstance(agent, _HookedAgent):
            raise RegistrationError(
                "this RunState was not made by this HooklineRunner, so the calls that it contains would run without "
                "hooks. Continue it with the HooklineRunner that made it, in the same process, or ask with "
                "HookResult.ask instead of needs_approval"
            )
        self._check_own(agent)
        return agent.hookline

    def _check_own(self, agent: _HookedAgent) -> None:
        if agent.hookline.runner is not self:
            raise RegistrationError(
                f"Hookline is already attached to the agent {agent.name!r} by another HooklineRunner: each hook would "
                "be called twice. Use one HooklineRunner, with all hooks"
            )

    def _check_tools(self, agent: Any, tools: Iterable[Any]) -> None:
        """Refuse tools that the SDK does not call as functions, because no hook could judge their calls."""
        unseen = self._adapter.unseen
        for tool in tools:
            what = f"the tool {tool.name!r} of agent {agent.name!r}"
            if not isinstance(tool, sdk.FunctionTool):
                unseen.refuse(tool.name, f"{what} is no function")
            elif getattr(tool, "_is_agent_tool", False):
                unseen.refuse(
                    tool.name,
                    f"{what} runs another agent",
                    "Give it a function tool that calls 'await runner.run(other_agent, task)' on this HooklineRunner",
                    CALL_POINTS,
                )
            elif any(value is sdk.Runner for value in unseen.new_values_of(_function_of(tool))):
                instead = "Use 'await runner.run(agent, task)' of this HooklineRunner"
                unseen.report_agent(tool.name, f"{what} uses the SDK's Runner", instead)


class _Run:
    """One run: the copies of its agents, and what the hooks decided about it."""

    foreign: ForeignRun
    first: Any

    def __init__(self, runner: HooklineRunner) -> None:
        self.runner = runner
        self.over: AgentResult[Any] | None = None
        self.failure: RunFailedError | None = None
        self.ended = False
        self.options: dict[str, Any] = {}
        self.config: Any = None
        self._agents: dict[int, tuple[Any, _HookedAgent]] = {}
        self.reader = reader()
        self._bare: dict[str, tuple[dict[str, Any], Any]] = {}
        """Copies of tools that raise their errors, by name, each with the fields of the tool."""
        self._calls: list[ToolCall] = []
        self._added: list[tuple[int, list[Any]]] = []

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Take the options of a run, or of its continuation."""
        self.over = self.failure = None
        self.ended = False
        given = options.get("run_config")
        if given is None:
            given = self.runner._default_config
        self.config = given if isinstance(given, sdk.RunConfig) else sdk.RunConfig(**given)
        # A model in the configuration takes the place of all agents' own, and of the hooks around these.
        self.options = {**options, "run_config": dataclasses.replace(self.config, model=None)}

    # Agents.

    def hooked(self, agent: Any) -> Any:
        """Return the copy of an agent for this run."""
        if isinstance(agent, _HookedAgent):  # its run is this one
            return agent
        if id(agent) in self._agents:
            return self._agents[id(agent)][1]
        if not hasattr(agent, "tool_use_behavior") or hasattr(agent, "capabilities"):
            raise RegistrationError(
                f"the agent {agent.name!r} is a {type(agent).__name__}, whose tools hooks cannot judge. Use an Agent"
            )
        self.runner._check_tools(agent, agent.tools)
        hooked: Any = object.__new__(_hooked_class(agent.__class__))
        vars(hooked).update(vars(agent))
        self._agents[id(agent)] = agent, hooked
        own = {
            "hookline": self,
            "model": _HookedModel(self, agent),
            "model_settings": self._settings(agent),
            "handoffs": [self.hooked_handoff(hooked, each) for each in agent.handoffs],
            "tool_use_behavior": partial(self.final_output, agent.tool_use_behavior),
        }
        schema = agent.output_type
        if schema is not None and schema is not str:
            plain = schema if isinstance(schema, sdk.AgentOutputSchemaBase) else sdk.AgentOutputSchema(schema)
            own["output_type"] = _HookedSchema(self, plain)
        vars(hooked).update(own)
        return hooked

    def _settings(self, agent: Any) -> Any:
        """Return the model settings of an agent: the SDK has defaults for named models, and the hooks hide the name."""
        own, other = agent.model, self.config.model
        default = sdk.ModelSettings() if isinstance(own, sdk.Model) else get_default_model_settings(own)
        if other is None or agent.model_settings != default:
            return agent.model_settings
        return sdk.ModelSettings() if isinstance(other, sdk.Model) else get_default_model_settings(other)

    def original(self, hooked: Any) -> Any:
        """Return the agent that a copy was made from."""
        return next(agent for agent, each in self._agents.values() if each is hooked)

    def hooked_handoff(self, agent: Any, given: Any) -> Any:
        """Return a copy of a handoff that the hooks judge like a tool call."""
        plain = given if isinstance(given, sdk.Handoff) else sdk.handoff(given)
        hooked: Any = object.__new__(_HookedHandoff)
        vars(hooked).update(vars(plain))
        hooked.refusal = None

        async def invoke(context: Any, arguments: str) -> Any:
            target: Any = None

            async def hand_over(name: str, values: dict[str, Any]) -> Any:
                nonlocal target
                target = await plain.on_invoke_handoff(context, json.dumps(values) if arguments else arguments)
                return {"assistant": target.name}

            call = next((call for call in self._calls if call.name == plain.tool_name), None)
            try:
                assert call is not None  # the reply contained it
                result = await self.foreign.call_tool(call, hand_over)
                hooked.refusal = result.text if result.error is not None or target is None else None
            except RunOverError as over:
                self.over, hooked.refusal = over.result, _CANCELLED
            except RunFailedError as failure:
                self.failure = failure
                raise
            # The agent keeps the conversation if a hook refused the handoff; the refusal is the result for the model.
            return agent if hooked.refusal is not None else self.hooked(target)

        hooked.on_invoke_handoff = invoke
        return hooked

    # Tools.

    def hooked_tools(self, agent: Any, tools: Sequence[Any]) -> list[Any]:
        """Return the tools of one step, whose calls the hooks judge."""
        self.runner._check_tools(agent, tools)
        by_name = {tool.name: tool for tool in tools if isinstance(tool, sdk.FunctionTool)}
        return [self._hooked_tool(tool, by_name) if tool.name in by_name else tool for tool in tools]

    def _hooked_tool(self, tool: Any, by_name: Mapping[str, Any]) -> Any:
        hooked: Any = object.__new__(type(tool))
        vars(hooked).update(vars(tool))  # copy.copy() would check the schema again in each step
        hooked.on_invoke_tool = partial(self._invoke, tool, by_name)
        return hooked

    async def _invoke(self, tool: Any, by_name: Mapping[str, Any], context: Any, arguments: str) -> Any:
        output: Any = None

        async def execute(name: str, values: dict[str, Any]) -> Any:
            nonlocal output
            wanted = tool if name == tool.name else by_name.get(name)  # tools in namespaces may have the same name
            if wanted is None:
                raise PlainError(f"There is no tool {name!r}.")
            output = await self._execute(wanted, context, json.dumps(values))
            return _shown(output)

        try:
            result = await self.foreign.call_tool(ToolCall(context.tool_call_id, tool.name, arguments or "{}"), execute)
        except RunOverError as over:
            self.over = over.result
            return _CANCELLED
        except RunFailedError as failure:
            self.failure = failure
            raise
        except _ToolFailedError as failed:  # the SDK's own text for the model
            return str(failed)
        shown, files = take_attachments(_shown(output))
        same = result.outcome == "ok" and (result.error, result.attachments) == (None, files)
        return output if same and result.result == jsonable(shown) else result.text

    async def _execute(self, tool: Any, context: Any, arguments: str) -> Any:
        """Call a tool. Raise its failure with the text that the SDK has for the model, or as it is to end the run."""
        context.tool_arguments = arguments
        known = self._bare.get(tool.name)
        if known is None or known[0] != vars(tool):
            bare = set_function_tool_failure_error_function(copy.copy(tool), None)
            self._bare[tool.name] = known = {**vars(tool)}, bare
        try:
            return await known[1].on_invoke_tool(context, arguments)
        except Exception as error:
            text = await maybe_invoke_function_tool_failure_error_function(
                function_tool=tool, context=context, error=error
            )
            if text is None:
                raise
            raise _ToolFailedError(text) from error

    async def final_output(self, behavior: Any, context: Any, results: list[Any]) -> Any:
        """Decide whether tool results end the run: if a hook ended it, or as the agent says."""
        if self.over is not None:
            return sdk.ToolsToFinalOutputResult(is_final_output=True, final_output=self.over.reply)
        if callable(behavior):
            decided = behavior(context, results)
            return await decided if inspect.isawaitable(decided) else decided
        names = behavior.get("stop_at_tool_names", ()) if isinstance(behavior, Mapping) else None
        for result in results if behavior != "run_llm_again" else ():
            if names is None or result.tool.name in names:
                return sdk.ToolsToFinalOutputResult(is_final_output=True, final_output=result.output)
        return sdk.ToolsToFinalOutputResult(is_final_output=False)

    # Messages that the SDK does not know: rejected final replies, and the notes of hooks that kept the run going.

    def add_items(self, position: int, items: list[Any]) -> None:
        """Remember items to insert into later requests."""
        self._added.append((position, items))

    def with_added(self, given: Any) -> list[Any]:
        """Return the input of a model call with the items that were added."""
        items: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        for position, added in reversed(self._added):
            items[position:position] = added
        return items

    def made(self, calls: Sequence[ToolCall]) -> None:
        """Remember the calls of the last reply."""
        self._calls = list(calls)

    # The end.

    @asynccontextmanager
    async def failures(self) -> AsyncIterator[None]:
        """End the run if the SDK fails or is cancelled, and raise the failure of a hook instead of what it caused."""
        try:
            yield
        except Exception as error:
            await self.foreign.end(error=error)
            if self.failure is not None:
                raise self.failure from None
            raise
        except BaseException as error:
            await self.foreign.interrupted(error)
            raise

    def finished(self, result: Any, ended: AgentResult[Any]) -> Any:
        """Return the result of the SDK, with the reply of hooks at ``on_run_end``."""
        self.ended = True
        if ended.status == "failed":
            raise RunFailedError(ended)
        if isinstance(result.final_output, str) and result.final_output != ended.reply:
            result.final_output = ended.reply
        return result


class _HookedAgent:
    """The fields of a copy of an agent that the agent does not have."""

    hookline: _Run
    name: str

    async def get_all_tools(self, run_context: Any) -> list[Any]:
        """Return the tools of the agent and of its MCP servers, whose calls the hooks judge."""
        tools = await super().get_all_tools(run_context)  # type: ignore[misc]
        return self.hookline.hooked_tools(self, tools)


@cache
def _hooked_class(kind: Any) -> Any:
    return type(kind.__name__, (_HookedAgent, kind), {})


class _HookedHandoff(Handoff):  # type: ignore[misc]
    """A handoff that a hook may refuse."""

    refusal: str | None

    def get_transfer_message(self, agent: Any) -> str:
        """Return the result of the call for the model."""
        return str(super().get_transfer_message(agent)) if self.refusal is None else self.refusal


class _HookedSchema(AgentOutputSchemaBase):  # type: ignore[misc]
    """The output type of an agent. The reply of a hook that ended the run is text, whatever the type."""

    def __init__(self, run: _Run, plain: Any) -> None:
        self._run, self._plain = run, plain

    def is_plain_text(self) -> bool:
        return bool(self._plain.is_plain_text())

    def name(self) -> str:
        return str(self._plain.name())

    def json_schema(self) -> dict[str, Any]:
        return dict(self._plain.json_schema())

    def is_strict_json_schema(self) -> bool:
        return bool(self._plain.is_strict_json_schema())

    def validate_json(self, json_str: str) -> Any:
        over = self._run.over
        return over.reply if over is not None else self._plain.validate_json(json_str)


class _HookedModel(Model):  # type: ignore[misc]
    """The model of an agent in one run."""

    def __init__(self, run: _Run, agent: Any) -> None:
        self.run, self.agent = run, agent

    def plain(self, name: str = "") -> Any:
        """Return the model itself, or another one of the same provider."""
        config = self.run.config
        given = name or config.model or self.agent.model
        return given if isinstance(given, sdk.Model) else config.model_provider.get_model(given)

    def get_retry_advice(self, request: Any) -> Any:
        """Return what the model says about a failed request."""
        return self.plain().get_retry_advice(request)

    async def get_response(self, *args: Any, **more: Any) -> Any:
        """Call the model under the hooks."""
        call = _ModelCall(self, args, more)

        async def send(asked: ModelRequest) -> ModelResponse:
            model, given = call.write(asked)
            return call.read(await model.get_response(**given))

        try:
            while call.add(await self.run.foreign.call_model(call.request(), send)):
                pass
        except RunOverError as over:
            self.run.over = over.result
        except RunFailedError as failure:
            self.run.failure = failure
            raise
        return call.response()

    async def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Call the model under the hooks, and yield text as they release it."""
        call = _ModelCall(self, args, more)

        async def send(asked: ModelRequest) -> AsyncIterator[str | ModelResponse]:
            model, given = call.write(asked)
            async for event in model.stream_response(**given):
                if event.type == "response.output_text.delta":
                    yield event.delta
                elif event.type in ("response.completed", "response.incomplete", "response.failed"):
                    yield call.read_streamed(event.response)

        try:
            again = True
            while again:
                async for item in self.run.foreign.stream_model(call.request(), send):
                    if isinstance(item, str):
                        yield call.text(item)
                    elif isinstance(item, SettledReply):
                        again = call.add(item)
        except RunOverError as over:
            self.run.over = over.result
            yield call.text(over.result.reply)
        except RunFailedError as failure:
            self.run.failure = failure
            raise
        yield call.completed()


@cache
def _parameters() -> tuple[str, ...]:
    """Return the names of the parameters of a model call."""
    return tuple(inspect.signature(sdk.Model.get_response).parameters)[1:]


class _ModelCall:
    """One call of the model: the request for Hookline, and the response for the SDK."""

    _shown: ModelRequest
    """The last request for the hooks."""

    def __init__(self, model: _HookedModel, args: Sequence[Any], more: Mapping[str, Any]) -> None:
        self._model, self._run = model, model.run
        if self._run.ended:
            raise HooklineError(
                f"the agent {model.agent.name!r} is a copy that belongs to a finished run of a HooklineRunner: give it "
                "to that HooklineRunner, or use the agent that you made"
            )
        self._given: dict[str, Any] = {**dict(zip(_parameters(), args, strict=False)), **more}
        self._items = self._run.with_added(self._given["input"])
        self._conversation = Conversation(self._given["system_instructions"], self._items, self._run.reader)
        plain = model.plain()
        self._name = str(getattr(plain, "model", "") or type(plain).__name__)
        self._params = _params(self._given["model_settings"])
        self._usage = sdk.Usage()
        self._last: tuple[ModelResponse, Any] | None = None
        self._response: Any = None
        self._reply: Any = None
        self._number = 0

    def request(self) -> ModelRequest:
        """Return the request for the hooks."""
        choice = self._given["model_settings"].tool_choice
        schema = self._given["output_schema"]
        self._shown = ModelRequest(
            self._conversation.messages,
            (*map(self._spec, self._given["tools"]), *map(self._handoff_spec, self._given["handoffs"])),
            self._name,
            response_format=None if schema is None or schema.is_plain_text() else schema.json_schema(),
            tool_choice=choice if isinstance(choice, str) else None,
            params=self._params,
        )
        return self._shown

    def _spec(self, tool: Any) -> ToolSpec:
        description, parameters = getattr(tool, "description", "") or "", getattr(tool, "params_json_schema", {})
        return self._run.reader.specs.spec(tool.name, description, parameters)

    def _handoff_spec(self, handoff: Any) -> ToolSpec:
        specs = self._run.reader.specs
        return specs.spec(handoff.tool_name, handoff.tool_description, handoff.input_json_schema)

    def write(self, asked: ModelRequest) -> tuple[Any, dict[str, Any]]:
        """Return the model for a request, and the request for it."""
        before = self._shown
        specs = {spec.name: spec for spec in asked.tools}
        instructions, items = self._conversation.restore(asked.messages)
        settings = _with_params(self._given["model_settings"], self._params, thaw(asked.params))
        if asked.tool_choice != before.tool_choice:
            settings = dataclasses.replace(settings, tool_choice=asked.tool_choice)
        given = {
            **self._given,
            "system_instructions": instructions,
            "input": items,
            "model_settings": settings,
            "tools": [self._with_spec(tool, specs[tool.name]) for tool in self._given["tools"] if tool.name in specs],
            "handoffs": [each for each in self._given["handoffs"] if each.tool_name in specs],
        }
        return self._model.plain(asked.model if asked.model != self._name else ""), given

    def _with_spec(self, tool: Any, spec: ToolSpec) -> Any:
        """Return a tool as hooks describe it to the model."""
        if not isinstance(tool, sdk.FunctionTool) or self._spec(tool) == spec:
            return tool
        described = copy.copy(tool)
        described.description, described.params_json_schema = spec.description, thaw(spec.parameters)
        return described

    def read(self, response: Any) -> ModelResponse:
        """Return a response of the SDK for the hooks."""
        self._usage.add(response.usage)
        read = read_reply(response, self._name)
        self._last = read, response
        return read

    def read_streamed(self, response: Any) -> ModelResponse:
        """Return the response at the end of a stream for the hooks."""
        self._response = response
        usage = sdk.Usage(requests=1)
        if response.usage is not None:
            used = response.usage
            usage = sdk.Usage(
                requests=1,
                input_tokens=used.input_tokens,
                output_tokens=used.output_tokens,
                total_tokens=used.total_tokens,
                input_tokens_details=used.input_tokens_details,
                output_tokens_details=used.output_tokens_details,
            )
        return self.read(sdk.ModelResponse(output=response.output, usage=usage, response_id=response.id))

    def add(self, settled: SettledReply) -> bool:
        """Take a settled reply. Return whether the model must be called again."""
        self._reply = reply = settled.reply
        self._run.made(reply.tool_calls)
        if settled.again:
            added = new_items_of(reply.content, settled.note)
            given = self._given["input"]
            self._run.add_items(1 if isinstance(given, str) else len(given), added)
            self._items += added
            self._conversation = Conversation(self._given["system_instructions"], self._items, self._run.reader)
        return settled.again

    def _output(self) -> tuple[list[Any], Any]:
        """Return the output items, and the response of the model if hooks left it as it was."""
        over, reply, last = self._run.over, self._reply, self._last
        if over is not None or reply is None:
            return write_output(over.reply if over is not None else "", ()), None
        if last is not None and reply.source == "model" and reply_is(reply, last[0]):
            return last[1].output, last[1]
        return write_output(reply.content, reply.tool_calls, last and last[1].output), None

    def response(self) -> Any:
        """Return the response for the SDK, with the usage of all attempts."""
        output, unchanged = self._output()
        if unchanged is not None:
            return dataclasses.replace(unchanged, usage=self._usage)
        return sdk.ModelResponse(output=output, usage=self._usage, response_id=None)

    def text(self, delta: str) -> Any:
        """Return the event for a piece of text."""
        self._number += 1
        return ResponseTextDeltaEvent(
            content_index=0,
            delta=delta,
            item_id="msg_hookline",
            logprobs=[],
            output_index=0,
            sequence_number=self._number,
            type="response.output_text.delta",
        )

    def completed(self) -> Any:
        """Return the event at the end of a stream, with the whole response."""
        output, _unchanged = self._output()
        used = self._usage
        usage = ResponseUsage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
        response = self._response
        if response is None:
            response = Response.model_construct(
                id="resp_hookline",
                created_at=0.0,
                model=self._name,
                object="response",
                parallel_tool_calls=True,
                tool_choice="auto",
                tools=[],
            )
        response = response.model_copy(update={"output": output, "usage": usage})
        return ResponseCompletedEvent(response=response, sequence_number=self._number + 1, type="response.completed")


def _function_of(tool: Any) -> Any:
    """Return the function that a tool was made of, or ``None`` if it is not known."""
    invoke = getattr(tool.on_invoke_tool, "_invoke_tool_impl", tool.on_invoke_tool)
    if not inspect.isfunction(invoke):
        return invoke
    closed = dict(zip(invoke.__code__.co_freevars, invoke.__closure__ or (), strict=True))
    return closed["the_func"].cell_contents if "the_func" in closed else invoke


class _ToolFailedError(PlainError):
    """The tool failed, and the SDK made a text for the model of it."""


def _shown(output: Any) -> Any:
    """Return what a tool returned for the hooks, with its images and files as attachments."""
    if isinstance(output, list):
        return [_shown(each) for each in output]
    value = output.model_dump(exclude_none=True) if hasattr(output, "model_dump") else output
    return read_file(value) or value


def new_items_of(content: str, note: str) -> list[Any]:
    """Return a reply that was not the last one, and the note after it, as items."""
    notes = new_items(Message("user", note)) if note else []
    return [*new_items(Message("assistant", content)), *notes]


def _task(given: Any) -> tuple[Message, list[Message]]:
    """Return the last message of the user in an input, and the messages before it."""
    if not isinstance(given, (str, list)):  # a saved state, which continues an earlier run
        return Message("user"), []
    messages = Conversation(None, given, reader()).messages
    last = max((i for i, message in enumerate(messages) if message.role == "user"), default=len(messages))
    return messages[last] if last < len(messages) else Message("user"), list(messages[:last])


def _reply(result: Any) -> str | None:
    """Return the final text of a result; of a typed output, the text that the model wrote."""
    if isinstance(result.final_output, str):
        return result.final_output
    texts = [item for item in result.new_items if item.type == "message_output_item"]
    return sdk.ItemHelpers.text_message_output(texts[-1]) if texts else None


def _params(settings: Any) -> dict[str, Any]:
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {name: jsonable(value) for name, value in values.items() if value is not None and name not in _NOT_PARAMS}


def _with_params(settings: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> Any:
    """Return model settings with the parameters that hooks changed. Unknown ones are sent as extra arguments."""
    changed = {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if not changed:
        return settings
    known = {field.name for field in dataclasses.fields(settings)}
    extra = {name: value for name, value in changed.items() if name not in known}
    fields = {name: value for name, value in changed.items() if name in known}
    if extra:
        fields["extra_args"] = {**(settings.extra_args or {}), **extra}
    return dataclasses.replace(settings, **fields)
