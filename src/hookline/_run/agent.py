"""The agent: a model, instructions, tools and hooks, ready to run (DESIGN 6.6)."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from .._base.event import Event
from .._base.frozen import EMPTY, freeze
from .._kernel.errors import HooklineError, RegistrationError
from .._kernel.registry import EMPTY_STACK, HookRegistry, HookStack, Interceptor
from .._kernel.state import AgentResult
from .._kernel.values import Ids
from ..models.protocol import Model
from ..plugins.loading import load_plugins, without_plugins
from ..plugins.plugin import Plugin
from ..providers.names import as_model
from ..tools._tool import Tool
from ..tools.registry import ToolRegistry
from .budget import DEFAULT_STEPS, Budget
from .context import AgentContext, CallContext
from .events import EventStream, Sink, listener
from .handle import Run, background_loop, must_nest, own_loop
from .inheritance import Both, shared
from .interrupt import Interrupt
from .loop import Loop
from .model_call import gated
from .session import Session

_SILENCE = EventStream("", time.time)
_NOBODYS = Interrupt()  # a place holder: each run makes its own


class Agent:
    """A model with instructions and tools, under hooks.

    Args:
        name: how it is called.
        description: what it is for, for people and for other agents.
        instructions: its system prompt.
        llm: the model, or its name: see :func:`hookline.get_model`.
        tools: functions under ``@tool``, plain functions, and toolsets such as ``mcp(...)``: whatever has
            a ``tools()`` that gives tools; it is asked here. The ``tool_hooks`` of one join ``hooks``.
        hooks: hooks shared by all its runs, or a :class:`HookRegistry`, which stays shared and live.
        plugins: plugins, or names of installed ones; their hooks join ``hooks``.
        allowed_plugins: the plugins that take part in its runs; ``None`` for all. A run may be given fewer.
        max_steps: the step limit of a run, 20 if left out; ``None`` for none.
        max_parallel_tools: how many calls of a batch run at once.
        params: settings handed to the model with every request.
        response_format: a JSON schema for its replies.
        interceptor: takes the place of all hooks.
        sinks: callables that get every event of every run.

    Raises:
        RegistrationError: a hook, tool or plugin that cannot work.
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        instructions: str = "",
        *,
        llm: Model | str,
        tools: Iterable[Any] = (),
        hooks: Iterable[Any] | HookRegistry = (),
        plugins: Iterable[Plugin | str] = (),
        allowed_plugins: Iterable[str] | None = None,
        max_steps: int | None = DEFAULT_STEPS,
        max_parallel_tools: int = 8,
        params: Mapping[str, Any] = EMPTY,
        response_format: Mapping[str, Any] | None = None,
        interceptor: Interceptor | None = None,
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
        Budget(max_steps=max_steps)
        self.name, self.description, self.instructions = name, description, instructions
        self.model = llm
        self.allowed_plugins = _names(allowed_plugins)
        self.hooks = hooks if isinstance(hooks, HookRegistry) else HookRegistry(without_plugins(hooks))
        self.max_steps, self.max_parallel_tools = max_steps, max_parallel_tools
        self.params: Mapping[str, Any] = freeze(params)
        self.response_format = freeze(response_format)
        self.interceptor: Interceptor | None = interceptor
        self.sinks = tuple(sinks)
        self.tools = ToolRegistry(tools)
        self.tools.specs  # noqa: B018 - a tool that cannot be described is found here, not in a run
        for hook in _tool_hooks(tools):
            if not any(hook is known for known in self.hooks):
                self.hooks.register(hook)
        self.plugins: tuple[Plugin, ...] = ()
        self._brought: Mapping[str, frozenset[str]] = EMPTY
        self._plugging = threading.RLock()
        self._followers: WeakSet[Agent] = WeakSet()
        for plugin in load_plugins(plugins):
            self.plug(plugin)

    def plug(self, plugin: Plugin | str, *, renew: bool = False) -> None:
        """Put in a plugin, an installed one by its name: its hooks from the next fire of every run on, its tools from
        the next step on. A hook's ``on_event`` takes part from the next run on.

        Args:
            plugin: the plugin.
            renew: whether it may take the place of one of its name; that one's hooks go when the new ones are there.

        Raises:
            RegistrationError: it cannot work here, such as a tool whose name is taken; nothing of it is left.
        """
        (plugin,) = load_plugins([plugin])
        with self._plugging:
            before = [other for other in self.plugins if other.name == plugin.name]
            if before and not renew:
                raise RegistrationError(f"plugin {plugin.name!r} is there already: unplug it first")
            known = [e for layer in self.hooks.stack.layers for e in layer if e.plugin == plugin.name]
            had = self.tools, self.plugins, self._brought
            plugin.hold()
            undo: list[Callable[[], None]] = []
            try:
                tools = ToolRegistry(plugin.tools)
                rest = self.tools.without(self._brought.get(plugin.name, ())) if before else self.tools
                for tool in tools:
                    self._check_free(tool.name, plugin.name, rest)
                both = ToolRegistry([*rest, *tools])
                both.specs  # noqa: B018
                there = () if before else {id(entry.hook) for entry in known}
                for hook in (*plugin.hooks, *_tool_hooks(plugin.tools)):
                    if id(hook) not in there:  # another agent on the same registry brought it already
                        undo.append(self.hooks.register(hook, plugin=plugin.name))
                self._brought = {**self._brought, plugin.name: frozenset(tool.name for tool in tools)}
                # Before its tools: a filter must know whose they are.
                self.plugins = (*(other for other in self.plugins if other not in before), plugin)
                self.tools = both
                self.hooks.extend(())  # tell the runs, now that all is there
                if plugin.configure is not None:
                    plugin.configure(self)
            except BaseException:
                if before:
                    self.tools, self.plugins, self._brought = had
                else:
                    self._take_out(plugin.name)
                for each in undo:
                    each()
                with suppress(RegistrationError):  # of two failures the first one counts
                    plugin.release()
                raise
            if before:
                self.hooks._change(lambda entries: tuple(e for e in entries if not any(e is k for k in known)))
                for follower in list(self._followers):
                    follower._take_out(plugin.name)
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
            self._take_out(name)
            self.hooks.unregister_plugin(name)
            for plugin in gone:
                plugin.release()

    def lead(self, other: Agent) -> None:
        """Share the plugins with an agent that has this one's hooks and tools: taken out here, they are out there."""
        with self._plugging:
            other.plugins, other._brought = self.plugins, self._brought
            self._followers.add(other)

    def _check_free(self, tool: str, plugin: str, tools: ToolRegistry) -> None:
        if tool in tools:
            owner = next((f"plugin {name!r}" for name, names in self._brought.items() if tool in names), "the agent")
            raise RegistrationError(
                f"plugin {plugin!r}: two tools are named {tool!r}, the other is of {owner}; give one another name"
            )

    def _take_out(self, name: str) -> None:
        """The tools first: they may not run without their plugin's guards."""
        gone = self._brought.get(name)
        if gone:
            self.tools = self.tools.without(gone)
        self.plugins = tuple(plugin for plugin in self.plugins if plugin.name != name)
        self._brought = {plugin: tools for plugin, tools in self._brought.items() if plugin != name}
        for follower in list(self._followers):
            follower._take_out(name)

    def tools_for(self, allowed_plugins: tuple[str, ...] | None) -> ToolRegistry:
        """The tools of a run: a plugin that is filtered out takes its tools with it, or they would lack its guards."""
        if allowed_plugins is None or not self._brought:
            return self.tools
        tools = self.tools  # before whose they are: what comes in meanwhile is not in them
        out = [tool for name, names in self._brought.items() if name not in allowed_plugins for tool in names]
        return tools.without(out) if out else tools

    def _listeners(
        self, talk: HookStack, ctx: AgentContext, run_hooks: HookStack, above: Interceptor
    ) -> Sequence[Sink]:
        """The hooks of a run that want its events."""
        own = self.hooks.stack
        if above is EMPTY_STACK and not (own.listeners or talk.listeners or run_hooks.listeners):
            return ()
        stacks = [above] if isinstance(above, (HookStack, Both)) else []
        if self.interceptor is None:
            stacks += [own, talk, run_hooks]
        if not any(stack.listeners for stack in stacks):
            return ()
        found = [hook for stack in stacks for hook in stack.only(ctx.allowed_plugins).listeners]
        return [listener(hook) for hook in {id(hook): hook for hook in found}.values()]

    def register_hook(self, hook: Any, **options: Any) -> Callable[[], None]:
        """Register a hook for all runs, from their next fire on; the closure unregisters it."""
        return self.hooks.register(hook, **options)

    def start(
        self,
        task: str,
        *,
        ctx: AgentContext | None = None,
        session: Session | None = None,
        hooks: Iterable[Any] = (),
        metadata: Mapping[str, Any] = EMPTY,
        deps: Any = None,
        task_id: str | None = None,
        correlation_id: str | None = None,
        allowed_plugins: Iterable[str] | None = None,
        sinks: Sequence[Sink] = (),
        every_call: bool = False,
        inherit: bool = True,
        keep: bool = True,
    ) -> Run:
        """Start a run: in the running loop, else in a background loop thread.

        Args:
            task: what the user says.
            ctx: the conversation's context; a fresh one if left out.
            session: the transcript to go on with; the context's if left out.
            hooks: hooks for this run only.
            metadata: the user's data for ``ctx.state.metadata``.
            deps: whatever hooks and tools need, as ``ctx.deps``.
            task_id: an id of the task; the run's own if left out.
            correlation_id: ties the run to what caused it; the task id if left out.
            allowed_plugins: ``None`` all; ``[]`` none; a list: these.
            sinks: callables that get every event.
            every_call: record every hook call as an event, not only those that said something.
            inherit: whether hooks and metadata of the run that ``ctx`` belongs to, if it does, hold in this one too.
            keep: whether its events are kept for ``run.events()``; a run that nobody reads costs less without.

        Raises:
            HooklineError: the run that ``ctx`` belongs to is over.
        """
        return self._prepare(locals(), keep=keep).begin(_loop_for_start())

    async def arun(self, task: str, **options: Any) -> AgentResult:
        """Run to the end; options as for :meth:`start`. Cancelling the caller cancels the run.

        Raises:
            RunFailed: the run ended ``failed``; it carries the result.
        """
        return await self._prepare(_checked(task, options)).here()

    def run(self, task: str, **options: Any) -> AgentResult:
        """Run to the end and block, also inside a running event loop; options as for :meth:`start`.

        Raises:
            RunFailed: the run ended ``failed``; it carries the result.
        """
        run = self._prepare(_checked(task, options))
        if must_nest():
            with own_loop() as aio:
                return run.begin(aio, nested=True).wait()
        return run.begin(background_loop()).wait()

    async def stream(self, task: str, **options: Any) -> AsyncIterator[Event]:
        """Run and give the events as they happen; options as for :meth:`start`. Leaving cancels.

        Raises:
            RunFailed: after the last event, if the run ended ``failed``.
        """
        run = self._prepare(_checked(task, options), keep=True).begin(asyncio.get_running_loop())
        try:
            async for event in run.events():
                yield event
        finally:
            if not run.done:
                run.cancel("the reader left")
                await run.settled()
        await run.result()

    def _prepare(self, options: dict[str, Any], keep: bool = False) -> Run:
        task = options["task"]
        if not isinstance(task, str):
            raise TypeError(f"the task is text, not {type(task).__name__}")
        given: AgentContext | None = options.get("ctx")
        if given is not None and not isinstance(given, (AgentContext, CallContext)):
            raise TypeError(f"ctx= takes an AgentContext, not {type(given).__name__}")
        if not isinstance(options.get("session"), (Session, type(None))):
            raise TypeError(f"session= takes a Session, not {type(options['session']).__name__}")
        if given is not None and given.run_id and given._whole is None:
            raise HooklineError(f"the run of this context is over: give {self.name!r} a ctx.heir() made while it runs")
        ctx = (
            AgentContext(budget=Budget(max_steps=self.max_steps), interrupt=_NOBODYS)
            if given is None
            else given.child()
        )
        if options.get("session") is not None:
            ctx.session = options["session"]
        elif given is not None and given.run_id:  # a run inside a run is a conversation of its own
            ctx.session = Session(ctx.new_id("session"))
        if not ctx.session.id:
            ctx.session.id = ctx.new_id("session")
        run_id = ctx.new_id("run")
        task_id = str(options.get("task_id") or run_id)
        ctx.ids = Ids(
            run_id, task_id, str(options.get("correlation_id") or ctx.ids.correlation_id or task_id), ctx.session.id,
            self.name, ctx.ids.run_id,
        )  # fmt: skip
        ctx.agent_name = self.name
        if options.get("deps") is not None:
            ctx.deps = options["deps"]
        above = None if given is None or not options.get("inherit", True) else given._whole
        if (allowed := _names(options.get("allowed_plugins"))) is not None:
            ctx.allowed_plugins = _both(allowed, None if above is None else ctx.allowed_plugins)
        if self.allowed_plugins is not None:
            ctx.allowed_plugins = _both(self.allowed_plugins, ctx.allowed_plugins)
        if given is not None:
            limits = [n for n in (self.max_steps, given.budget.max_steps) if n is not None]
            ctx.budget = given.budget.child(max_steps=min(limits, default=None))
            ctx.depth += bool(given.run_id)
        metadata: Mapping[str, Any] = ctx.session.metadata
        if above is not None and given is not None and given._opened and given._metadata:
            metadata = freeze({**metadata, **given._metadata})  # its hooks judge by them
        if given_data := options.get("metadata"):
            if not isinstance(given_data, Mapping):
                raise TypeError(f"metadata= takes a dict such as {{'user_role': 'admin'}}, not {given_data!r:.80}")
            metadata = freeze({**metadata, **given_data})
        base = ctx.session.messages
        ctx.open(base, metadata, self.instructions, self.response_format)
        hooks = options.get("hooks")
        run_hooks = HookRegistry(without_plugins(hooks)).stack if hooks else EMPTY_STACK
        inherited = EMPTY_STACK if above is None else above()
        talk = ctx.hooks.stack if above is None else shared(ctx.hooks.stack)
        sinks = (*self._listeners(talk, ctx, run_hooks, inherited), *self.sinks, *(options.get("sinks") or ()))
        relay = given._events.relay(ctx.ids) if given is not None and given._events is not None else None
        if relay is not None:
            sinks = (*sinks, relay)
        stream = _SILENCE
        if sinks or keep:
            stream = EventStream(run_id, getattr(ctx.clock, "stamp", ctx.clock.time), sinks, keep)
        ctx._events, ctx.listening, ctx.recording = stream, stream.listening, stream.recording
        if stream.listening:
            asked = bool(options.get("every_call")) or (relay is not None and given is not None and given.tracing)
            ctx.tracing = asked or any(getattr(sink, "every_call", False) for sink in sinks)
        loop = Loop(self, ctx, run_hooks, task, base, above)
        ctx.llm = gated(loop, self.model)
        ctx._fire, ctx._whole = loop.fire_for, loop.bequest
        run = Run(loop, stream)
        if given is not None:
            run.follow(given)
        return run


def _tool_hooks(tools: Iterable[Any]) -> list[Any]:
    """The hooks without which these tools could not do what they say."""
    return [hook for item in tools for hook in getattr(item, "tool_hooks", ())]


_OPTIONS = frozenset(inspect.signature(Agent.start).parameters) - {"self", "task", "keep"}
_OF_CONTEXT = frozenset(inspect.signature(AgentContext).parameters) - _OPTIONS


def _checked(task: str, options: dict[str, Any]) -> dict[str, Any]:
    if options and (unknown := options.keys() - _OPTIONS):
        of_context = sorted(unknown & _OF_CONTEXT)
        hint = f"; say ctx=AgentContext({of_context[0]}=...)" if of_context else ""
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}{hint}; known: {', '.join(sorted(_OPTIONS))}")
    return {"task": task, **options}


def _names(allowed_plugins: Iterable[str] | None) -> tuple[str, ...] | None:
    if isinstance(allowed_plugins, str):
        raise TypeError(f"allowed_plugins is a list of names: [{allowed_plugins!r}]")
    return None if allowed_plugins is None else tuple(allowed_plugins)


def _both(names: tuple[str, ...], filtered: tuple[str, ...] | None) -> tuple[str, ...]:
    return names if filtered is None else tuple(name for name in names if name in filtered)


def _loop_for_start() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return background_loop()
