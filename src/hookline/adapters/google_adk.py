"""Hookline's hooks in an agent of Google's Agent Development Kit (ADK).

One plugin takes the hooks to all agents of an app::

    from hookline.adapters.google_adk import HooklinePlugin

    app = App(name="ops", root_agent=agent, plugins=[HooklinePlugin(no_sudo, AuditLogHook("audit.jsonl"))])
    runner = InMemoryRunner(app=app)

The callbacks of a plugin come before those of an agent, which may still change the arguments of a call. So the plugin
uses only the callbacks around a run and an agent. For each run it gives the agent a copy of its model and of its tools
that call the hooks at the last moment: hooks judge what really runs.
"""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
# The frameworks are not installed together, so their names are unknown to the type checker.
from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any, Unpack

from .._kernel.errors import HooklineError
from .._kernel.hook import Hook
from .._kernel.payloads import ModelRequest
from .._kernel.registry import HookRegistry
from .._kernel.scope import CURRENT
from .._kernel.values import ModelResponse, ToolCall
from .._run.foreign import SettledReply
from .._run.termination import RunFailedError
from . import _adk_messages as translate
from ._foreign import Adapter, AdapterOptions, ForeignRun, RunOverError, Support
from ._translation import Reader
from ._unseen import CALL_POINTS, UnseenCalls

try:
    from google.adk.agents import BaseAgent, LlmAgent
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.runners import Runner
    from google.adk.tools.agent_tool import AgentTool
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.base_toolset import BaseToolset
    from google.adk.tools.function_tool import FunctionTool
except ImportError:  # Adapter says which version to install
    BasePlugin = object

__all__ = ["HooklinePlugin"]

SUPPORT = Support(
    "Google ADK",
    "google-adk",
    "2.13",
    "2.14",
    {
        "before_llm.response_format": "Give it to the agent: LlmAgent(output_schema=...)",
        "on_run_end.replace": "ADK has sent the last event by then. Replace the reply at after_llm",
    },
    "google-adk",
)

_RUN, _BRANCH, _OWNER = "hookline_run", "hookline_branch", "hookline_owner"
"""In an ``InvocationContext``: the run, the branch of the conversation that it belongs to, and the context whose agent
started it. ADK's copies of the context contain them too."""


class HooklinePlugin(BasePlugin):  # type: ignore[misc]
    """A plugin for ``App(plugins=[...])`` that calls Hookline's hooks.

    Args:
        hooks: hooks, or one :class:`hookline.HookRegistry`, whose later changes take effect too.
        options: see :class:`hookline.adapters.AdapterOptions`.

    Raises:
        RegistrationError: a hook or an option cannot work in ADK; the message names the alternative.

    Example::

        @guard(BEFORE_TOOL, tools="shell")
        def no_sudo(ctx, request):
            return HookResult.block("sudo is not allowed.") if "sudo" in request.arguments["command"] else None

        agent = LlmAgent(name="ops", model=model, tools=[shell])
        app = App(name="ops", root_agent=agent, plugins=[HooklinePlugin(no_sudo)])
    """

    def __init__(self, *hooks: Hook | HookRegistry, **options: Unpack[AdapterOptions]) -> None:
        self._adapter = Adapter(SUPPORT, hooks, options)
        super().__init__(name="hookline")  # ADK refuses a second plugin of the same name

    # The run.

    async def before_run_callback(self, *, invocation_context: Any) -> None:
        """Start the run."""
        self._start(invocation_context)

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        """End the run."""
        run: ForeignRun | None = vars(invocation_context).pop(_RUN, None)
        if run is not None and (result := await run.end()).status == "failed":
            raise RunFailedError(result)  # a hook at on_run_end failed closed

    async def on_run_error_callback(self, *, invocation_context: Any, error: Exception) -> None:
        """End the run that failed."""
        run: ForeignRun | None = vars(invocation_context).pop(_RUN, None)
        if run is not None:
            await run.end(error=error)

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        """Give the agent a model and tools that call the hooks, in this run only.

        An agent that works beside others, in a branch of the conversation, has a nested run: a run takes one step at a
        time.
        """
        context = callback_context._invocation_context  # the public method returns a copy
        if context.live_request_queue is not None:
            raise HooklineError("Hookline's adapter for Google ADK does not support live mode: use run_async")
        run = _run_of(context)
        if context.branch != vars(context)[_BRANCH]:
            token = CURRENT.set(run._engine)
            run = self._start(context)
            CURRENT.reset(token)
            vars(context)[_OWNER] = context
        if isinstance(agent, LlmAgent):
            self._check_agent(agent)
            context.agent = _HookedAgent(agent, run, self._adapter.unseen).copy
        elif _calls_elsewhere(agent):
            what = f"the agent {agent.name!r} is a {type(agent).__name__}"
            self._adapter.unseen.report_agent(agent.name, what, "Use an LlmAgent")

    def _check_agent(self, agent: Any) -> None:
        """Refuse what an agent calls past its model and its tools, and report tools that use agents without hooks.

        Raises:
            RegistrationError: hooks could not judge code that it runs, or an agent that is its tool.
        """
        unseen, executor = self._adapter.unseen, agent.code_executor
        if executor is not None:
            name = type(executor).__name__
            what = f"the code executor {name!r} of agent {agent.name!r} runs code in replies of the model"
            unseen.refuse(name, what, "Run code in a function tool")
        for tool in agent.tools:
            if isinstance(tool, AgentTool) and not tool.include_plugins:
                what = f"the tool {tool.name!r} of agent {agent.name!r} runs another agent without plugins"
                unseen.refuse(tool.name, what, "Leave out include_plugins=False", CALL_POINTS)
            elif isinstance(tool, FunctionTool) or (callable(tool) and not isinstance(tool, BaseTool)):
                function = getattr(tool, "func", tool)
                name = getattr(tool, "name", "") or getattr(tool, "__name__", type(tool).__name__)
                unseen.report_agents_of(name, function, _bare_agent, "Run it in an App(plugins=[HooklinePlugin(...)])")

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        """End the nested run of an agent."""
        context = callback_context._invocation_context
        if vars(context).get(_OWNER) is context:
            await self.after_run_callback(invocation_context=context)

    async def on_agent_error_callback(self, *, agent: Any, callback_context: Any, error: Exception) -> None:
        """End the nested run of an agent that failed."""
        context = callback_context._invocation_context
        if vars(context).get(_OWNER) is context:
            await self.on_run_error_callback(invocation_context=context, error=error)

    def _start(self, context: Any) -> ForeignRun:
        session, current = context.session, context.invocation_id
        earlier = [event.content for event in session.events if event.invocation_id != current and event.content]
        task = translate.user_text(context.user_content)
        run = self._adapter.start(task, translate.reader().read(earlier).messages, session=session.id, streaming=True)
        vars(context).update({_RUN: run, _BRANCH: context.branch})
        return run

    async def before_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        """Judge calls that do not reach a tool with hooks: of tools that do not exist, or that ADK found elsewhere."""
        if hasattr(tool, "__hookline__"):
            return None
        if type(tool) is not BaseTool:
            return {"error": f"The tool {tool.name!r} was blocked: Hookline's hooks cannot judge it."}
        call = ToolCall(tool_context.function_call_id, tool.name, tool_args)
        try:
            result = await _run_of(tool_context._invocation_context).call_tool(call, _unknown_tool)
        except RunOverError:
            return {"error": _CANCELLED}
        except LookupError:
            return None  # ADK tells the model which tools there are
        return translate.write_result(result, None)


_CANCELLED = "Cancelled: the run has ended."


class _HookedAgent:
    """A copy of an agent for one run, whose model and tools call the hooks."""

    def __init__(self, agent: Any, run: ForeignRun, unseen: UnseenCalls) -> None:
        self._run, self._unseen = run, unseen
        self._reader = translate.reader()
        self._model = agent.canonical_model
        self._tools: dict[str, Any] = {}
        """The tools without hooks, by name, as far as they are known."""
        model = copy.copy(self._model)
        # A subclass or a wrapper would not do: ADK looks at the class of a model to see what it can do.
        vars(model)["generate_content_async"] = self._generate
        tools = [self._hooked(tool) for tool in agent.tools]
        self.copy = agent.model_copy(update={"model": model, "tools": tools})

    def _hooked(self, tool: Any) -> Any:
        """Return a copy of a tool, or of a set of tools, that calls the hooks."""
        if isinstance(tool, BaseToolset):
            changed = copy.copy(tool)

            async def get_tools_with_prefix(readonly_context: Any = None) -> list[Any]:
                return [self._hooked(each) for each in await tool.get_tools_with_prefix(readonly_context)]

            vars(changed)["get_tools_with_prefix"] = get_tools_with_prefix
            return changed
        if callable(tool) and not isinstance(tool, BaseTool):
            tool = FunctionTool(func=tool)
        if not isinstance(tool, BaseTool) or hasattr(tool, "__hookline__"):
            return tool  # an agent as a tool becomes one when the model is called
        self._tools[tool.name] = tool  # pyright: ignore[reportFunctionMemberAccess] # a BaseTool
        changed = copy.copy(tool)

        async def run_async(*, args: dict[str, Any], tool_context: Any) -> Any:
            return await self._call_tool(tool, args, tool_context)

        vars(changed)["run_async"] = run_async
        vars(changed)["__hookline__"] = self
        return changed

    async def _generate(self, llm_request: Any, stream: bool = False) -> AsyncIterator[Any]:
        """Call the model under the hooks."""
        for name in translate.provider_tools(llm_request):
            self._unseen.refuse(name, f"the tool {name!r} is run by the provider")
        tools = llm_request.tools_dict
        tools.update({name: self._hooked(tool) for name, tool in tools.items()})
        call: _ModelCall | None = _ModelCall(self._model, llm_request, self._reader, stream=stream)
        try:
            while call is not None:
                following = None
                async for item in self._run.stream_model(call.source.request, call.send):
                    if isinstance(item, str) and stream:
                        yield translate.text_response(item, partial=True)
                    elif isinstance(item, SettledReply):
                        settled = translate.write_replies(item.reply, call.received)
                        for response in settled:
                            yield response
                        if item.again:
                            note = translate.note_response(item.note) if item.note else None
                            if note is not None:
                                yield note
                            following = call.after([*settled, *([] if note is None else [note])])
                call = following
        except RunOverError as over:
            yield translate.text_response(over.result.reply)

    async def _call_tool(self, tool: Any, args: dict[str, Any], tool_context: Any) -> Any:
        """Call a tool under the hooks."""
        received: Any = None

        async def execute(name: str, arguments: dict[str, Any]) -> Any:
            nonlocal received
            wanted = tool if name == tool.name else self._tools.get(name)
            if wanted is None:
                raise LookupError(f"There is no tool {name!r}.")
            received = await wanted.run_async(args=arguments, tool_context=tool_context)
            return received

        try:
            call = ToolCall(tool_context.function_call_id, tool.name, args)
            result = await self._run.call_tool(call, execute)
        except RunOverError:
            return {"error": _CANCELLED}
        return translate.write_result(result, received)


class _ModelCall:
    """One call of a model: the request for Hookline, and what the model answered."""

    def __init__(self, model: Any, llm_request: Any, reader: Reader, *, stream: bool) -> None:
        self._model = model
        self._given = llm_request
        self._reader = reader
        self._stream = stream
        self.source = translate.AdkRequest(llm_request, model.model, reader)
        self.received: list[Any] = []
        """The responses of the last attempt that are complete."""

    async def send(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Send a request to the model, and yield the text and the response."""
        self.received = []
        async for response in self._model.generate_content_async(self.source.llm_request(request), self._stream):
            if not response.partial:
                self.received.append(response)
            elif text := translate.shown_text(response):
                yield text
        yield translate.read_replies(self.received, self._model.model)

    def after(self, responses: list[Any]) -> _ModelCall:
        """Return the next call, after these responses."""
        contents = [*self._given.contents, *[response.content for response in responses]]
        given = self._given.model_copy(update={"contents": contents})
        return _ModelCall(self._model, given, self._reader, stream=self._stream)


def _calls_elsewhere(agent: Any) -> bool:
    """Whether an agent calls models and tools without callbacks of plugins, as classes of ADK do."""
    kinds = {kind.__name__ for kind in type(agent).__mro__}
    return bool(kinds & {"RemoteA2aAgent", "LangGraphAgent", "ManagedAgent"})


def _bare_agent(value: Any) -> str | None:
    """Return the name of an agent that its runner, if there is one, runs without the plugin; ``None`` for all else."""
    if isinstance(value, Runner):
        has_hooks = any(isinstance(plugin, HooklinePlugin) for plugin in value.plugin_manager.plugins)
        return None if has_hooks else str(value.agent.name)
    return str(value.name) if isinstance(value, BaseAgent) else None


def _run_of(context: Any) -> ForeignRun:
    run = vars(context).get(_RUN)
    if run is None:
        raise HooklineError("this agent does not run in a runner with Hookline's plugin: start it with a Runner")
    return run  # type: ignore[no-any-return]


async def _unknown_tool(name: str, _: dict[str, Any]) -> Any:
    raise LookupError(f"There is no tool {name!r}.")
