"""The agent: a model with instructions, tools, hooks and plugins (DESIGN 6.6)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, overload
from weakref import WeakSet

from .._base.attachment import MAX_SIZE
from .._base.frozen import EMPTY, freeze
from .._base.tasks import running_loop
from .._kernel.errors import RegistrationError
from .._kernel.events import Event
from .._kernel.registry import HookRegistry, HookStack, plugin_names
from .._kernel.state import AgentResult
from .._kernel.validation import check_bool
from ..models.protocol import Model
from ..plugins.loading import load_plugins, without_plugins
from ..plugins.plugin import Plugin
from ..providers.factory import resolve_model
from ..tools._tool import Tool
from ..tools.registry import NamedFunction, ToolRegistry, Toolset
from .approve import Approve, ApproveHook
from .budget import NO_LIMITS, Limits
from .context import AgentContext, DepsT, DepsT_contra
from .deps import check_context_types
from .events import Sink
from .loop import Loop
from .options import OptionsWithContext, OptionsWithDeps, Preparation, RunOptions, event_sinks
from .output import OUTPUT_RETRIES, OutputT, output_spec
from .run import Run, background_loop, needs_own_loop, own_loop, warn_if_blocking
from .run_agent import STREAM_MODES, StreamMode
from .strict import Strict, check_strict

if TYPE_CHECKING:
    from types import UnionType
    from typing import Required

    from typing_extensions import Unpack

    from .._kernel.hook import Hook, PhaseOptions
    from .._kernel.hook_types import HookFor
    from ..records.hook import RecordHook
    from .journal import JournalStore

    class CommonAgentOptions(TypedDict, Generic[DepsT], total=False):
        """The keyword options of :class:`Agent` except ``llm`` and ``output_type``."""

        deps_type: type[DepsT] | UnionType | None
        tools: Iterable[Tool[..., Any, AgentContext[DepsT]] | NamedFunction | Toolset]
        hooks: Iterable[HookFor[AgentContext[DepsT]]] | HookRegistry | HookStack
        approve: Approve[DepsT] | None
        plugins: Iterable[Plugin | str]
        allowed_plugins: Iterable[str] | None
        limits: Limits | None
        max_parallel_tools: int
        params: Mapping[str, Any] | None
        response_format: Mapping[str, Any] | None
        output_retries: int
        record: bool | str | os.PathLike[str] | RecordHook
        runs: bool | str | os.PathLike[str] | JournalStore | Hook
        sinks: Iterable[Sink]
        stream: StreamMode
        strict: bool
        max_attachment: int | None
        suggestions: Iterable[str]

    class AgentOptions(CommonAgentOptions[DepsT], Generic[DepsT], total=False):
        """The keyword options of :class:`Agent` except ``output_type``."""

        llm: Required[Model | str]


T = TypeVar("T")


class Agent(Generic[DepsT_contra, OutputT]):
    """A model with instructions, tools and hooks.

    Example::

        agent = Agent("helper", llm="openai:gpt-5", tools=[get_weather], hooks=[no_sudo])
        print(agent.run("How is the weather in Berlin?").reply)

    Args:
        name: the name of the agent.
        description: its purpose, for people and for other agents.
        instructions: its system prompt.
        llm: the model, or its name: see :func:`hookline.get_model`.
        deps_type: the type of ``ctx.deps`` in its runs, which then need ``deps``. Use ``Deps | None`` if they do not.
            Hooks and tools that take an ``AgentContext`` with other ``deps`` are rejected.
        tools: functions decorated with ``@tool``, plain functions, and toolsets such as ``mcp(...)``. A toolset is an
            object with a method ``tools()``, which is called once, here. Its ``tool_hooks`` are added to ``hooks``.
        hooks: hooks for all runs, a ``HookStack``, or a :class:`HookRegistry`, whose later changes also take effect.
        approve: ``approve(ctx, request)`` decides about each call of a tool that may do more than read, and about each
            call that a hook asks about. It returns ``True``, ``False``, a text that tells the model why not, a dict of
            other arguments, which the guards judge, or ``None`` to leave the decision to another approver. It may be a
            coroutine function. Short for a hook that asks and answers, which is added to ``hooks``.
        plugins: plugins, or names of installed plugins. Their hooks are added to ``hooks``.
        allowed_plugins: the plugins that take part in its runs; ``None`` for all. A run may allow fewer.
        limits: the limits of each run, such as ``Limits(steps=10, cost=0.50)``. Without a step limit, a run stops after
            20 steps.
        max_parallel_tools: maximum number of tool calls of one reply that run concurrently.
        params: settings that are sent to the model with every request.
        response_format: a JSON schema for the replies. The replies are not validated against it.
        output_type: the type of ``result.output``: a pydantic model, a dataclass, a ``TypedDict``, a
            ``msgspec.Struct``, a plain type such as ``list[str]``, or a union of these. Text by default.
        output_retries: maximum number of times that the model is asked again if its final reply does not match
            ``output_type``.
        record: whether to record what hooks see and decide (:class:`hookline.records.RecordHook`): ``True`` for the
            project's folder in the user's data folder, another folder, or a ``RecordHook`` with options.
        runs: whether to list its runs, for ``hookline runs``, ``hookline stats`` and the console of a server: ``True``
            for the list of the project (the setting ``runs``), a SQLite file, the address of a PostgreSQL database, or
            a :class:`hookline.stores.RunStore`. The hook :class:`hookline.hooks.ObservabilityHook` is added to
            ``hooks``; give one here for its options. The runs also obey the stop switch of that list (``hookline
            halt``).
        sinks: callables that get every event of every run.
        stream: when the text of replies is shown. With ``safe``, text that a hook may still reject is held until it is
            settled. With ``live``, it is shown at once, and withdrawn if it is rejected: see :class:`RunOptions`.
        strict: whether to refuse tools that no guard names. Short for the hook :class:`hookline.hooks.Strict`, which is
            added to ``hooks``; use the hook itself to allow some tools.
        max_attachment: the largest size of an attachment in bytes, of a task or a tool result; ``None`` for no limit.
        suggestions: what people could write first, which chats show before a conversation begins.

    Raises:
        RegistrationError: a hook, tool, plugin or option cannot work.
    """

    _loop_type: type[Loop] = Loop

    if not TYPE_CHECKING:  # type checkers know the default of OutputT, which Python has only since 3.13

        def __class_getitem__(cls, parameters: Any) -> Any:
            """Return ``Agent[Deps]`` as ``Agent[Deps, str]``."""
            return super().__class_getitem__(parameters if isinstance(parameters, tuple) else (parameters, str))

    @overload
    def __init__(  # OutputT has its default, str
        self,
        name: str,
        description: str | None = "",
        instructions: str | None = "",
        *,
        output_type: None = None,
        **options: Unpack[AgentOptions[DepsT_contra]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        description: str | None = "",
        instructions: str | None = "",
        *,
        output_type: type[OutputT],
        **options: Unpack[AgentOptions[DepsT_contra]],
    ) -> None: ...
    @overload
    def __init__(  # for type checkers a union is not a type: annotate the agent as Agent[Deps, A | B]
        self: Agent[DepsT, Any],
        name: str,
        description: str | None = "",
        instructions: str | None = "",
        *,
        output_type: Any,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...
    def __init__(
        self,
        name: str,
        description: str | None = "",
        instructions: str | None = "",
        *,
        llm: Model | str,
        deps_type: type[Any] | UnionType | None = None,
        tools: Iterable[Tool | Callable[..., Any] | Toolset] = (),
        hooks: Iterable[Hook] | HookRegistry | HookStack = (),
        approve: Approve[Any] | None = None,
        plugins: Iterable[Plugin | str] = (),
        allowed_plugins: Iterable[str] | None = None,
        limits: Limits | None = None,
        max_parallel_tools: int = 8,
        params: Mapping[str, Any] | None = EMPTY,
        response_format: Mapping[str, Any] | None = None,
        output_type: Any = None,
        output_retries: int = OUTPUT_RETRIES,
        record: bool | str | os.PathLike[str] | RecordHook = False,
        runs: bool | str | os.PathLike[str] | JournalStore | Hook = False,
        sinks: Iterable[Sink] = (),
        stream: StreamMode = "safe",
        strict: bool = False,
        max_attachment: int | None = MAX_SIZE,
        suggestions: Iterable[str] = (),
    ) -> None:
        _check_text("name", name)
        description = "" if description is None else description
        instructions = "" if instructions is None else instructions
        _check_text("description", description)
        _check_text("instructions", instructions)
        llm = resolve_model(llm)
        if isinstance(tools, Tool) or not isinstance(tools, Iterable):
            raise RegistrationError(f"tools must be a list, not {type(tools).__name__}: write tools=[...]")
        tools = tuple(tools)
        if type(max_parallel_tools) is not int or max_parallel_tools < 1:
            raise RegistrationError(
                f"max_parallel_tools must be a whole number, at least 1, not {max_parallel_tools!r:.80}"
            )
        if isinstance(output_retries, bool) or not isinstance(output_retries, int) or output_retries < 0:
            raise RegistrationError(f"output_retries must be a whole number, 0 or more, not {output_retries!r}")
        if stream not in STREAM_MODES:
            raise RegistrationError(f"stream must be one of {', '.join(STREAM_MODES)}, not {stream!r:.80}")
        if response_format is not None and output_type is not None:
            raise RegistrationError(
                "response_format and output_type exclude each other: output_type sets the schema itself"
            )
        if max_attachment is not None and (type(max_attachment) is not int or max_attachment < 0):
            raise RegistrationError(f"max_attachment must be a number of bytes, or None, not {max_attachment!r:.80}")
        limits = NO_LIMITS if limits is None else limits
        if not isinstance(limits, Limits):
            raise RegistrationError(f"limits= takes Limits(steps=10, tokens=20000), not {limits!r:.80}")
        self.name, self.description, self.instructions = name, description, instructions
        self.model = llm
        self.deps_type: Any = deps_type
        self.allowed_plugins = plugin_names(allowed_plugins)
        loaded = load_plugins(plugins)
        self.hooks = hooks if isinstance(hooks, HookRegistry) else HookRegistry(without_plugins(hooks))
        if approve is not None:
            added = ApproveHook(approve)
            if not any(isinstance(each, ApproveHook) and each.decide == approve for each in self.hooks):
                self.hooks.register(added)  # agents that share a registry ask once
        if record is not False:
            self._add_hook(_record_hook(record))
        if runs is not False:
            # Settings and hooks are layers above the loop, which knows neither: only this option names them.
            self._add_hook(import_module("hookline.config.recording").recorder_for(runs))
        self.limits = limits
        self.max_parallel_tools = max_parallel_tools
        self.params = EMPTY if params is None else _frozen_dict("params", params, "a dict such as {'temperature': 0.2}")
        self.response_format = (
            None
            if response_format is None
            else _frozen_dict("response_format", response_format, "a JSON schema as a dict, or None")
        )
        self.output_type, self.output_retries = output_type, output_retries
        self.output_spec = output_spec(output_type)
        self.sinks = event_sinks(sinks)
        self.stream_mode: StreamMode = stream
        self.max_attachment = max_attachment
        self.suggestions = _texts("suggestions", suggestions)
        self.tools = ToolRegistry(tools)
        self.unchecked_globs = True
        self.tools.specs  # noqa: B018 - fail here, not in a run, if a tool has no valid schema
        for hook in _tool_hooks(tools):
            self._add_hook(hook)
        check_context_types(name, deps_type, self.hooks, self.tools)
        self.plugins: tuple[Plugin, ...] = ()
        self._plugin_tools: Mapping[str, frozenset[str]] = EMPTY
        self._plugging = threading.RLock()
        self._derived: WeakSet[Agent[Any, Any]] = WeakSet()
        for plugin in loaded:
            self._plug(plugin)
        if check_bool(strict, "strict") and not any(isinstance(hook, Strict) for hook in self.hooks):
            self.hooks.register(Strict())
        self._check_strict()

    def _check_strict(self) -> None:
        tools, hooks = self.tools_for(self.allowed_plugins), self.hooks.stack.only(self.allowed_plugins)
        check_strict(self.name, tools, hooks)

    def _add_hook(self, hook: Any) -> None:
        """Register a hook, unless another agent with this registry has already registered it."""
        if not any(hook is known for known in self.hooks):
            self.hooks.register(hook)

    def plug(self, plugin: Plugin | str) -> None:
        """Add a plugin: an object, or the name of an installed plugin.

        Its hooks take part from the next fire of every run, its tools from the next step, and the ``on_event`` of a
        hook from the next run.

        Raises:
            RegistrationError: it cannot be added, for example because a tool name is taken. The agent is unchanged.
        """
        (plugin,) = load_plugins([plugin])
        self._plug(plugin, self._check_strict)

    def _plug(self, plugin: Plugin, check: Callable[[], None] = lambda: None) -> None:
        """Add a plugin. ``check`` raises if the agent cannot be used with it."""
        with self._plugging:
            if any(other.name == plugin.name for other in self.plugins):
                raise RegistrationError(f"plugin {plugin.name!r} is already plugged in: unplug it first")
            registered = {id(e.hook) for layer in self.hooks.stack.layers for e in layer if e.plugin == plugin.name}
            plugin.acquire()
            undo: list[Callable[[], None]] = []
            try:
                tools = ToolRegistry(plugin.tools)
                for tool in tools:
                    self._check_free(tool.name, plugin.name)
                check_context_types(self.name, self.deps_type, plugin.hooks, tools)
                both = ToolRegistry([*self.tools, *tools])
                both.specs  # noqa: B018
                for hook in (*plugin.hooks, *_tool_hooks(plugin.tools)):
                    if (
                        id(hook) not in registered
                    ):  # otherwise another agent with this registry has already registered it
                        undo.append(self.hooks.register(hook, plugin=plugin.name))
                self._plugin_tools = {**self._plugin_tools, plugin.name: frozenset(tool.name for tool in tools)}
                self.plugins = (
                    *self.plugins,
                    plugin,
                )  # before its tools: filters look it up here
                self.tools = both
                check()
                self.hooks.extend(())  # notify the runs, now that everything is registered
                if plugin.configure is not None:
                    plugin.configure(self)
            except BaseException:
                self._remove_plugin(plugin.name)
                for each in undo:
                    each()
                with suppress(RegistrationError):  # report the first failure
                    plugin.release()
                raise

    def unplug(self, name: str) -> None:
        """Remove a plugin, also while runs are in progress.

        Its hooks no longer fire. From the next step on, its tools are not offered to the model, and calls to them that
        have not started get an error result.

        Raises:
            RegistrationError: its own ``deactivate`` failed. It is removed nevertheless.
        """
        with self._plugging:
            removed = [plugin for plugin in self.plugins if plugin.name == name]
            self._remove_plugin(name)
            self.hooks.unregister_plugin(name)
            for plugin in removed:
                plugin.release()

    def share_plugins_with(self, other: Agent[Any, Any]) -> None:
        """Share the plugins with an agent that was made from this one: a plugin removed here is removed there too."""
        with self._plugging:
            other.plugins, other._plugin_tools = self.plugins, self._plugin_tools
            self._derived.add(other)

    def _check_free(self, tool: str, plugin: str) -> None:
        if tool in self.tools:
            owner = next(
                (f"plugin {name!r}" for name, names in self._plugin_tools.items() if tool in names), "the agent"
            )
            raise RegistrationError(
                f"plugin {plugin!r}: its tool {tool!r} has the same name as a tool of {owner}; rename one of them"
            )

    def _remove_plugin(self, name: str) -> None:
        """Remove the tools first: they must not run without the guards of their plugin."""
        tools = self._plugin_tools.get(name)
        if tools:
            self.tools = self.tools.without(tools)
        self.plugins = tuple(plugin for plugin in self.plugins if plugin.name != name)
        self._plugin_tools = {plugin: tools for plugin, tools in self._plugin_tools.items() if plugin != name}
        for agent in list(self._derived):
            agent._remove_plugin(name)

    def tools_for(self, allowed_plugins: tuple[str, ...] | None) -> ToolRegistry:
        """Return the tools of a run. Tools of other plugins are left out, because their guards would be missing."""
        if allowed_plugins is None or not self._plugin_tools:
            return self.tools
        tools = self.tools  # read first, in case a plugin is added concurrently
        out = [tool for name, names in self._plugin_tools.items() if name not in allowed_plugins for tool in names]
        return tools.without(out) if out else tools

    @overload
    def register_hook(
        self,
        hook: HookFor[AgentContext[DepsT_contra]],
        points: Iterable[str] | str | None = None,
        **options: Unpack[PhaseOptions],
    ) -> Callable[[], None]: ...
    @overload
    def register_hook(
        self, hook: Callable[..., Any], points: Iterable[str] | str, **options: Unpack[PhaseOptions]
    ) -> Callable[[], None]: ...
    def register_hook(
        self, hook: Any, points: Iterable[str] | str | None = None, **options: Unpack[PhaseOptions]
    ) -> Callable[[], None]:
        """Register a hook for all runs and return a function that unregisters it.

        It takes effect with the next fire of a point. Options as for :meth:`HookRegistry.register`.
        """
        check_context_types(self.name, self.deps_type, [hook])
        return self.hooks.register(hook, points, **options)

    # Each way to run has overloads for agents that need no deps (``None`` is a value of their type), for runs with
    # ``deps``, and for runs with a ``ctx``; and each of them for the agent's output type, a type, and a union of types,
    # which is not a type for type checkers.

    @overload
    def start(
        self: Agent[None, OutputT],
        task: str,
        *,
        output_type: None = None,
        keep: bool = True,
        **options: Unpack[RunOptions[DepsT_contra]],
    ) -> Run[OutputT]: ...
    @overload
    def start(
        self: Agent[None, Any],
        task: str,
        *,
        output_type: type[T],
        keep: bool = True,
        **options: Unpack[RunOptions[DepsT_contra]],
    ) -> Run[T]: ...
    @overload
    def start(
        self: Agent[None, Any],
        task: str,
        *,
        output_type: Any,
        keep: bool = True,
        **options: Unpack[RunOptions[DepsT_contra]],
    ) -> Run[Any]: ...
    @overload
    def start(
        self,
        task: str,
        *,
        output_type: None = None,
        keep: bool = True,
        **options: Unpack[OptionsWithDeps[DepsT_contra]],
    ) -> Run[OutputT]: ...
    @overload
    def start(
        self, task: str, *, output_type: type[T], keep: bool = True, **options: Unpack[OptionsWithDeps[DepsT_contra]]
    ) -> Run[T]: ...
    @overload
    def start(
        self, task: str, *, output_type: Any, keep: bool = True, **options: Unpack[OptionsWithDeps[DepsT_contra]]
    ) -> Run[Any]: ...
    @overload
    def start(
        self,
        task: str,
        *,
        output_type: None = None,
        keep: bool = True,
        **options: Unpack[OptionsWithContext[DepsT_contra]],
    ) -> Run[OutputT]: ...
    @overload
    def start(
        self, task: str, *, output_type: type[T], keep: bool = True, **options: Unpack[OptionsWithContext[DepsT_contra]]
    ) -> Run[T]: ...
    @overload
    def start(
        self, task: str, *, output_type: Any, keep: bool = True, **options: Unpack[OptionsWithContext[DepsT_contra]]
    ) -> Run[Any]: ...
    def start(self, task: str, *, output_type: Any = None, keep: bool = True, **options: Any) -> Run[Any]:
        """Start a run without waiting for it: in the running event loop, or else in a background thread.

        Args:
            task: the user's message.
            output_type: the type of this run's output; by default that of the agent.
            keep: whether to keep the events for ``run.events()``. A run that keeps no events is cheaper.
            options: see :class:`RunOptions`.

        Raises:
            HooklineError: the run that ``ctx`` belongs to has ended.

        Example:
            >>> run = agent.start("Summarise the report.")
            >>> run.steer("Only the first chapter.")
            >>> print(run.wait().reply)
        """
        return self._prepare(task, options, output_type, keep=keep).begin(running_loop() or background_loop())

    @overload
    async def arun(
        self: Agent[None, OutputT], task: str, *, output_type: None = None, **options: Unpack[RunOptions[DepsT_contra]]
    ) -> AgentResult[OutputT]: ...
    @overload
    async def arun(
        self: Agent[None, Any], task: str, *, output_type: type[T], **options: Unpack[RunOptions[DepsT_contra]]
    ) -> AgentResult[T]: ...
    @overload
    async def arun(
        self: Agent[None, Any], task: str, *, output_type: Any, **options: Unpack[RunOptions[DepsT_contra]]
    ) -> AgentResult[Any]: ...
    @overload
    async def arun(
        self, task: str, *, output_type: None = None, **options: Unpack[OptionsWithDeps[DepsT_contra]]
    ) -> AgentResult[OutputT]: ...
    @overload
    async def arun(
        self, task: str, *, output_type: type[T], **options: Unpack[OptionsWithDeps[DepsT_contra]]
    ) -> AgentResult[T]: ...
    @overload
    async def arun(
        self, task: str, *, output_type: Any, **options: Unpack[OptionsWithDeps[DepsT_contra]]
    ) -> AgentResult[Any]: ...
    @overload
    async def arun(
        self, task: str, *, output_type: None = None, **options: Unpack[OptionsWithContext[DepsT_contra]]
    ) -> AgentResult[OutputT]: ...
    @overload
    async def arun(
        self, task: str, *, output_type: type[T], **options: Unpack[OptionsWithContext[DepsT_contra]]
    ) -> AgentResult[T]: ...
    @overload
    async def arun(
        self, task: str, *, output_type: Any, **options: Unpack[OptionsWithContext[DepsT_contra]]
    ) -> AgentResult[Any]: ...
    async def arun(self, task: str, *, output_type: Any = None, **options: Any) -> AgentResult[Any]:
        """Run a task and return the result; options as for :meth:`start`.

        Cancelling the caller cancels the run. A durable run is suspended instead: the same call continues it.

        Raises:
            RunFailedError: the run ended with the status ``failed``; the error contains the result.

        Example:
            >>> result = await agent.arun("What is 17 * 23?")
        """
        return await self._prepare(task, options, output_type).run_in_caller()

    @overload
    def run(
        self: Agent[None, OutputT], task: str, *, output_type: None = None, **options: Unpack[RunOptions[DepsT_contra]]
    ) -> AgentResult[OutputT]: ...
    @overload
    def run(
        self: Agent[None, Any], task: str, *, output_type: type[T], **options: Unpack[RunOptions[DepsT_contra]]
    ) -> AgentResult[T]: ...
    @overload
    def run(
        self: Agent[None, Any], task: str, *, output_type: Any, **options: Unpack[RunOptions[DepsT_contra]]
    ) -> AgentResult[Any]: ...
    @overload
    def run(
        self, task: str, *, output_type: None = None, **options: Unpack[OptionsWithDeps[DepsT_contra]]
    ) -> AgentResult[OutputT]: ...
    @overload
    def run(
        self, task: str, *, output_type: type[T], **options: Unpack[OptionsWithDeps[DepsT_contra]]
    ) -> AgentResult[T]: ...
    @overload
    def run(
        self, task: str, *, output_type: Any, **options: Unpack[OptionsWithDeps[DepsT_contra]]
    ) -> AgentResult[Any]: ...
    @overload
    def run(
        self, task: str, *, output_type: None = None, **options: Unpack[OptionsWithContext[DepsT_contra]]
    ) -> AgentResult[OutputT]: ...
    @overload
    def run(
        self, task: str, *, output_type: type[T], **options: Unpack[OptionsWithContext[DepsT_contra]]
    ) -> AgentResult[T]: ...
    @overload
    def run(
        self, task: str, *, output_type: Any, **options: Unpack[OptionsWithContext[DepsT_contra]]
    ) -> AgentResult[Any]: ...
    def run(self, task: str, *, output_type: Any = None, **options: Any) -> AgentResult[Any]:
        """Run a task and block until the result is available; options as for :meth:`start`.

        In a thread with a running event loop this works too, with a warning: it blocks that loop. Use :meth:`arun`.

        Raises:
            RunFailedError: the run ended with the status ``failed``; the error contains the result.

        Example:
            >>> result = agent.run("What is 17 * 23?")
            >>> print(result.reply)
        """
        warn_if_blocking("agent.run()", "await agent.arun(...)")
        return self._run_blocking(task, output_type, options)

    def _run_blocking(self, task: str, output_type: Any, options: Any) -> AgentResult[Any]:
        run = self._prepare(task, options, output_type)
        if needs_own_loop():
            with own_loop() as aio:
                return run.begin(aio, nested=True)._wait()
        return run.begin(background_loop())._wait()

    @overload
    def stream(
        self: Agent[None, Any], task: str, *, output_type: Any = None, **options: Unpack[RunOptions[DepsT_contra]]
    ) -> AsyncIterator[Event]: ...
    @overload
    def stream(
        self, task: str, *, output_type: Any = None, **options: Unpack[OptionsWithDeps[DepsT_contra]]
    ) -> AsyncIterator[Event]: ...
    @overload
    def stream(
        self, task: str, *, output_type: Any = None, **options: Unpack[OptionsWithContext[DepsT_contra]]
    ) -> AsyncIterator[Event]: ...
    async def stream(self, task: str, *, output_type: Any = None, **options: Any) -> AsyncIterator[Event]:
        """Run a task and yield its events as they happen; options as for :meth:`start`.

        Leaving the loop over the events cancels the run. A durable run is suspended instead: the same call continues
        it.

        Raises:
            RunFailedError: the run ended with the status ``failed``; raised after the last event.

        Example:
            >>> async for event in agent.stream("Tell me a story."):
            ...     if isinstance(event, TextDelta):
            ...         print(event.text, end="")
        """
        run = self._prepare(task, options, output_type, keep=True).begin(asyncio.get_running_loop())
        try:
            async for event in run.events():
                yield event
        finally:
            if not run.done:
                run.suspend("the reader stopped")
                await run.settled()
        await run.result()

    def _prepare(self, task: str, options: Any, output_type: Any, *, keep: bool = False, run_id: str = "") -> Run[Any]:
        prepared = Preparation(self, task, options, output_type, keep=keep, run_id=run_id)
        engine = prepared.engine
        run: Run[Any] = Run(engine, self._loop_type(engine, task, prepared.base, prepared.attachments))
        if prepared.outer is not None and not prepared.is_detached:
            run.follow(prepared.outer)
        elif (ctx := options.get("ctx")) is not None:
            run.follow_interrupt(ctx.interrupt)
        return run


def _texts(option: str, values: Iterable[str]) -> tuple[str, ...]:
    """Return an option that is a list of texts.

    Raises:
        RegistrationError: it is something else.
    """
    found = None if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
    if found is None or not all(isinstance(each, str) and each.strip() for each in found):
        raise RegistrationError(f'{option} must be a list of texts, such as ["What can you do?"], not {values!r:.80}')
    return found


def _check_text(option: str, value: object) -> None:
    if isinstance(value, str):
        return
    hint = ""
    if option == "instructions" and callable(value):
        hint = ": for a prompt that depends on the run, use a hook at before_prompt_build"
    elif option == "instructions" and isinstance(value, (list, tuple)):
        hint = ": join the parts with '\\n\\n'.join(...)"
    raise RegistrationError(f"{option} must be text, not {type(value).__name__}{hint}")


def _frozen_dict(option: str, value: object, expected: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RegistrationError(f"{option} must be {expected}, not {type(value).__name__}")
    try:
        frozen: Mapping[str, Any] = freeze(value)
    except (TypeError, ValueError) as error:
        raise RegistrationError(f"{option}: {error}") from error
    return frozen


def _record_hook(record: Any) -> RecordHook:
    """Return the hook that ``record=`` names.

    Raises:
        RegistrationError: the value is neither a folder nor such a hook.
    """
    from ..records.hook import RecordHook, shared_record_hook

    if isinstance(record, RecordHook):
        return record
    if record is True:
        return shared_record_hook()
    if not isinstance(record, (str, os.PathLike)) or not os.fspath(record):
        raise RegistrationError(f"record= takes True, a folder or a RecordHook, not {record!r:.80}")
    return shared_record_hook(record)


def _tool_hooks(tools: Iterable[Any]) -> list[Any]:
    """Return the hooks that these tools need in order to work."""
    return [hook for item in tools for hook in getattr(item, "tool_hooks", ())]
