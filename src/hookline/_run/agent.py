"""The agent: a model, instructions, tools and hooks, ready to run (DESIGN 6.6)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, overload
from weakref import WeakSet

from .._base.frozen import EMPTY, freeze
from .._base.tasks import running_loop
from .._kernel.errors import RegistrationError
from .._kernel.events import Event
from .._kernel.registry import HookRegistry, HookStack, Interceptor
from .._kernel.state import AgentResult
from ..models.protocol import Model
from ..plugins.loading import load_plugins, without_plugins
from ..plugins.plugin import Plugin
from ..providers.names import as_model
from ..tools._tool import Tool
from ..tools.registry import ToolRegistry, Toolset
from .budget import NO_LIMITS, Limits
from .context import DepsT
from .events import Sink
from .loop import Loop
from .options import Preparation, RunOptions, plugin_names
from .output import OUTPUT_RETRIES, OutputT, output_spec
from .run import Run, background_loop, needs_own_loop, own_loop

if TYPE_CHECKING:
    from typing import Required

    from typing_extensions import Unpack

    from .._kernel.hook import Hook, PhaseOptions

    class CommonAgentOptions(TypedDict, Generic[DepsT], total=False):
        """The keyword options of :class:`Agent`, all but ``llm`` and ``output_type``."""

        deps_type: type[DepsT] | None
        tools: Iterable[Tool | Callable[..., Any] | Toolset]
        hooks: Iterable[Hook] | HookRegistry
        plugins: Iterable[Plugin | str]
        allowed_plugins: Iterable[str] | None
        limits: Limits | None
        max_steps: float | None
        max_parallel_tools: int
        params: Mapping[str, Any]
        response_format: Mapping[str, Any] | None
        output_retries: int
        interceptor: Interceptor | HookStack | None
        sinks: Sequence[Sink]

    class AgentOptions(CommonAgentOptions[DepsT], Generic[DepsT], total=False):
        """The keyword options of :class:`Agent`, for the signatures that type checkers choose from."""

        llm: Required[Model | str]


T = TypeVar("T")


class Agent(Generic[DepsT, OutputT]):
    """A model with instructions and tools, under hooks.

    Args:
        name: how it is called.
        description: what it is for, for people and for other agents.
        instructions: its system prompt.
        llm: the model, or its name: see :func:`hookline.get_model`.
        deps_type: the type of ``ctx.deps`` in its runs: for type checkers, and to refuse other ``deps``.
        tools: functions under ``@tool``, plain functions, and toolsets such as ``mcp(...)``: whatever has
            a ``tools()`` that gives tools; it is asked here. The ``tool_hooks`` of one join ``hooks``.
        hooks: hooks shared by all its runs, or a :class:`HookRegistry`, which stays shared and live.
        plugins: plugins, or names of installed ones; their hooks join ``hooks``.
        allowed_plugins: the plugins that take part in its runs; ``None`` for all. A run may be given fewer.
        limits: what each run may use; 20 steps if nobody sets another step limit.
        max_steps: short for ``limits=Limits(steps=max_steps)``; of both, the lower one holds.
        max_parallel_tools: how many calls of a batch run at once.
        params: settings handed to the model with every request.
        response_format: a JSON schema for its replies, which are not checked against it.
        output_type: the type of its final reply, as ``result.output``: a pydantic model, a dataclass, a ``TypedDict``,
            a ``msgspec.Struct``, a plain type such as ``list[str]``, or a union of these. Text if left out.
        output_retries: how often the model is asked again for a final reply that is no such value.
        interceptor: an object with ``intercept(point, payload, ctx)``, which takes part at every point in place of
            ``hooks`` and ``plugins``.
        sinks: callables that get every event of every run.

    Raises:
        RegistrationError: a hook, tool or plugin that cannot work.
    """

    @overload
    def __init__(  # OutputT is left at its default, str
        self, name: str, description: str = "", instructions: str = "", *,
        output_type: None = None, **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, name: str, description: str = "", instructions: str = "", *,
        output_type: type[OutputT], **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(  # a union is no type to type checkers: annotate the agent, Agent[Deps, A | B]
        self: Agent[Any, Any], name: str, description: str = "", instructions: str = "", *,
        output_type: Any, **options: Unpack[AgentOptions[Any]],
    ) -> None: ...  # fmt: skip
    def __init__(
        self,
        name: str,
        description: str = "",
        instructions: str = "",
        *,
        llm: Model | str,
        deps_type: type[DepsT] | None = None,
        tools: Iterable[Tool | Callable[..., Any] | Toolset] = (),
        hooks: Iterable[Hook] | HookRegistry = (),
        plugins: Iterable[Plugin | str] = (),
        allowed_plugins: Iterable[str] | None = None,
        limits: Limits | None = None,
        max_steps: float | None = None,
        max_parallel_tools: int = 8,
        params: Mapping[str, Any] = EMPTY,
        response_format: Mapping[str, Any] | None = None,
        output_type: Any = None,
        output_retries: int = OUTPUT_RETRIES,
        interceptor: Interceptor | HookStack | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        llm = as_model(llm)
        if isinstance(tools, Tool) or not isinstance(tools, Iterable):
            raise RegistrationError(f"tools are a list of tools, not {type(tools).__name__}: write tools=[...]")
        tools = tuple(tools)
        if not all(callable(sink) for sink in sinks):
            raise RegistrationError("sinks are callables that take an event")
        if max_parallel_tools < 1:
            raise RegistrationError(f"max_parallel_tools must be at least 1, not {max_parallel_tools!r}")
        if isinstance(output_retries, bool) or not isinstance(output_retries, int) or output_retries < 0:
            raise RegistrationError(f"output_retries must be a whole number, 0 or more, not {output_retries!r}")
        if response_format is not None and output_type is not None:
            raise RegistrationError("response_format is the schema of output_type: give one of the two")
        limits = NO_LIMITS if limits is None else limits
        if not isinstance(limits, Limits):
            raise RegistrationError(f"limits= takes Limits(steps=10, tokens=20000), not {limits!r:.80}")
        self.name, self.description, self.instructions = name, description, instructions
        self.model = llm
        self.deps_type = deps_type
        self.allowed_plugins = plugin_names(allowed_plugins)
        loaded = load_plugins(plugins)
        if interceptor is None:
            self.hooks = hooks if isinstance(hooks, HookRegistry) else HookRegistry(without_plugins(hooks))
        elif isinstance(hooks, HookRegistry) or hooks or loaded:
            raise RegistrationError("interceptor= takes the place of hooks= and plugins=: give one or the other")
        else:
            self.hooks = HookRegistry.of(interceptor)
        self.limits = limits if max_steps is None else limits.stricter(Limits(steps=max_steps, soft=limits.soft))
        self.max_parallel_tools = max_parallel_tools
        self.params: Mapping[str, Any] = freeze(params)
        self.response_format = freeze(response_format)
        self.output_type, self.output_retries = output_type, output_retries
        self.output_spec = output_spec(output_type)
        self.sinks = tuple(sinks)
        self.tools = ToolRegistry(tools)
        self.unchecked_globs = True
        self.tools.specs  # noqa: B018 - a tool that cannot be described is found here, not in a run
        for hook in _tool_hooks(tools):
            if not any(hook is known for known in self.hooks):
                self.hooks.register(hook)
        self.plugins: tuple[Plugin, ...] = ()
        self._plugin_tools: Mapping[str, frozenset[str]] = EMPTY
        self._plugging = threading.RLock()
        self._followers: WeakSet[Agent[Any, Any]] = WeakSet()
        for plugin in loaded:
            self.plug(plugin)

    def plug(self, plugin: Plugin | str, *, replace: bool = False) -> None:
        """Put in a plugin, an installed one by its name: its hooks from the next fire of every run on, its tools from
        the next step on. A hook's ``on_event`` takes part from the next run on.

        Args:
            plugin: the plugin.
            replace: whether it may take the place of one of its name; that one's hooks go when the new ones are there.

        Raises:
            RegistrationError: it cannot work here, such as a tool whose name is taken; nothing of it is left.
        """
        (plugin,) = load_plugins([plugin])
        with self._plugging:
            before = [other for other in self.plugins if other.name == plugin.name]
            if before and not replace:
                raise RegistrationError(f"plugin {plugin.name!r} is there already: unplug it first")
            known = [e for layer in self.hooks.stack.layers for e in layer if e.plugin == plugin.name]
            had = self.tools, self.plugins, self._plugin_tools
            plugin.hold()
            undo: list[Callable[[], None]] = []
            try:
                tools = ToolRegistry(plugin.tools)
                rest = self.tools.without(self._plugin_tools.get(plugin.name, ())) if before else self.tools
                for tool in tools:
                    self._check_free(tool.name, plugin.name, rest)
                both = ToolRegistry([*rest, *tools])
                both.specs  # noqa: B018
                there = () if before else {id(entry.hook) for entry in known}
                for hook in (*plugin.hooks, *_tool_hooks(plugin.tools)):
                    if id(hook) not in there:  # another agent on the same registry brought it already
                        undo.append(self.hooks.register(hook, plugin=plugin.name))
                self._plugin_tools = {**self._plugin_tools, plugin.name: frozenset(tool.name for tool in tools)}
                # Before its tools: a filter must know whose they are.
                self.plugins = (*(other for other in self.plugins if other not in before), plugin)
                self.tools = both
                self.hooks.extend(())  # tell the runs, now that all is there
                if plugin.configure is not None:
                    plugin.configure(self)
            except BaseException:
                if before:
                    self.tools, self.plugins, self._plugin_tools = had
                else:
                    self._remove_plugin(plugin.name)
                for each in undo:
                    each()
                with suppress(RegistrationError):  # of two failures the first one counts
                    plugin.release()
                raise
            if before:
                self.hooks._change(lambda entries: tuple(e for e in entries if not any(e is k for k in known)))
                for follower in list(self._followers):
                    follower._remove_plugin(plugin.name)
                for other in before:
                    other.release()

    def unplug(self, name: str) -> None:
        """Take out a plugin, also while runs go on.

        Its hooks do not fire from the next fire on; its tools are not offered from the next step on, and calls of them
        that have not begun get an error result.

        Raises:
            RegistrationError: its own ``deactivate`` failed; it is out all the same.
        """
        with self._plugging:
            gone = [plugin for plugin in self.plugins if plugin.name == name]
            self._remove_plugin(name)
            self.hooks.unregister_plugin(name)
            for plugin in gone:
                plugin.release()

    def share_plugins_with(self, other: Agent[Any, Any]) -> None:
        """Share the plugins with an agent that has this one's hooks and tools: taken out here, they are out there."""
        with self._plugging:
            other.plugins, other._plugin_tools = self.plugins, self._plugin_tools
            self._followers.add(other)

    def _check_free(self, tool: str, plugin: str, tools: ToolRegistry) -> None:
        if tool in tools:
            owner = next(
                (f"plugin {name!r}" for name, names in self._plugin_tools.items() if tool in names), "the agent"
            )
            raise RegistrationError(
                f"plugin {plugin!r}: two tools are named {tool!r}, the other is of {owner}; give one another name"
            )

    def _remove_plugin(self, name: str) -> None:
        """The tools first: they may not run without their plugin's guards."""
        gone = self._plugin_tools.get(name)
        if gone:
            self.tools = self.tools.without(gone)
        self.plugins = tuple(plugin for plugin in self.plugins if plugin.name != name)
        self._plugin_tools = {plugin: tools for plugin, tools in self._plugin_tools.items() if plugin != name}
        for follower in list(self._followers):
            follower._remove_plugin(name)

    def tools_for(self, allowed_plugins: tuple[str, ...] | None) -> ToolRegistry:
        """The tools of a run: a plugin that is filtered out takes its tools with it, or they would lack its guards."""
        if allowed_plugins is None or not self._plugin_tools:
            return self.tools
        tools = self.tools  # before whose they are: what comes in meanwhile is not in them
        out = [tool for name, names in self._plugin_tools.items() if name not in allowed_plugins for tool in names]
        return tools.without(out) if out else tools

    @overload
    def register_hook(
        self, hook: Hook, points: Iterable[str] | str | None = None, **options: Unpack[PhaseOptions]
    ) -> Callable[[], None]: ...
    @overload
    def register_hook(
        self, hook: Callable[..., Any], points: Iterable[str] | str, **options: Unpack[PhaseOptions]
    ) -> Callable[[], None]: ...
    def register_hook(
        self, hook: Any, points: Iterable[str] | str | None = None, **options: Unpack[PhaseOptions]
    ) -> Callable[[], None]:
        """Register a hook for all runs, from their next fire on; the closure unregisters it.

        Options as for :meth:`HookRegistry.register`.
        """
        return self.hooks.register(hook, points, **options)

    @overload
    def start(
        self, task: str, *, output_type: None = None, keep: bool = True, **options: Unpack[RunOptions[DepsT]]
    ) -> Run[OutputT]: ...
    @overload
    def start(
        self, task: str, *, output_type: type[T], keep: bool = True, **options: Unpack[RunOptions[DepsT]]
    ) -> Run[T]: ...
    @overload
    def start(
        self, task: str, *, output_type: Any, keep: bool = True, **options: Unpack[RunOptions[DepsT]]
    ) -> Run[Any]: ...
    def start(
        self, task: str, *, output_type: Any = None, keep: bool = True, **options: Unpack[RunOptions[DepsT]]
    ) -> Run[Any]:
        """Start a run: in the running loop, else in a background loop thread.

        Args:
            task: what the user says.
            output_type: the type of this run's output; the agent's if left out.
            keep: whether its events are kept for ``run.events()``; a run that nobody reads costs less without.
            options: see :class:`RunOptions`.

        Raises:
            HooklineError: the run that ``ctx`` belongs to is over.
        """
        return self._prepare(task, options, output_type, keep=keep).begin(running_loop() or background_loop())

    @overload
    async def arun(
        self, task: str, *, output_type: None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> AgentResult[OutputT]: ...
    @overload
    async def arun(
        self, task: str, *, output_type: type[T], **options: Unpack[RunOptions[DepsT]]
    ) -> AgentResult[T]: ...
    @overload
    async def arun(self, task: str, *, output_type: Any, **options: Unpack[RunOptions[DepsT]]) -> AgentResult[Any]: ...
    async def arun(
        self, task: str, *, output_type: Any = None, **options: Unpack[RunOptions[DepsT]]
    ) -> AgentResult[Any]:
        """Run to the end; options as for :meth:`start`. Cancelling the caller cancels the run.

        Raises:
            RunFailedError: the run ended ``failed``; it carries the result.
        """
        return await self._prepare(task, options, output_type).run_in_caller()

    @overload
    def run(
        self, task: str, *, output_type: None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> AgentResult[OutputT]: ...
    @overload
    def run(self, task: str, *, output_type: type[T], **options: Unpack[RunOptions[DepsT]]) -> AgentResult[T]: ...
    @overload
    def run(self, task: str, *, output_type: Any, **options: Unpack[RunOptions[DepsT]]) -> AgentResult[Any]: ...
    def run(self, task: str, *, output_type: Any = None, **options: Unpack[RunOptions[DepsT]]) -> AgentResult[Any]:
        """Run to the end and block, also inside a running event loop; options as for :meth:`start`.

        Raises:
            RunFailedError: the run ended ``failed``; it carries the result.

        Example:
            >>> result = agent.run("What is 17 * 23?")
            >>> print(result.reply)
        """
        run = self._prepare(task, options, output_type)
        if needs_own_loop():
            with own_loop() as aio:
                return run.begin(aio, nested=True).wait()
        return run.begin(background_loop()).wait()

    async def stream(
        self, task: str, *, output_type: Any = None, **options: Unpack[RunOptions[DepsT]]
    ) -> AsyncIterator[Event]:
        """Run and give the events as they happen; options as for :meth:`start`. Leaving cancels.

        Raises:
            RunFailedError: after the last event, if the run ended ``failed``.
        """
        run = self._prepare(task, options, output_type, keep=True).begin(asyncio.get_running_loop())
        try:
            async for event in run.events():
                yield event
        finally:
            if not run.done:
                run.cancel("the reader left")
                await run.settled()
        await run.result()

    def _prepare(self, task: str, options: RunOptions[DepsT], output_type: Any, *, keep: bool = False) -> Run[Any]:
        prepared = Preparation(self, task, options, output_type, keep=keep)
        engine = prepared.engine
        run: Run[Any] = Run(engine, Loop(engine, task, prepared.base))
        if prepared.outer is not None:
            run.follow(prepared.outer)
        elif (ctx := options.get("ctx")) is not None:
            run.follow_interrupt(ctx.interrupt)
        return run


def _tool_hooks(tools: Iterable[Any]) -> list[Any]:
    """The hooks without which these tools could not do what they say."""
    return [hook for item in tools for hook in getattr(item, "tool_hooks", ())]
