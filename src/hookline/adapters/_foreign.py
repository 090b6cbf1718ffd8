"""The parts that all adapters share: options, the check of what a framework can express, the framework's side of a run.

An adapter translates. It calls :meth:`Adapter.start` when the framework starts a run, :meth:`ForeignRun.call_model`
and :meth:`ForeignRun.call_tool` where the framework is about to call a model or a tool, and :meth:`ForeignRun.end` when
the framework has finished. Everything else (phases, order, failures, limits, approvals, events, records) is done by the
loop of Hookline itself (``_run/foreign.py``).
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import re
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec

from .._base.attachment import Attachment
from .._base.errors import NotInstalledError
from .._base.tasks import running_loop
from .._base.text import did_you_mean
from .._kernel.errors import HooklineError, InvalidResultError, ModelError, RegistrationError
from .._kernel.events import Event
from .._kernel.hook import Hook, HookEntry
from .._kernel.hook_code import changes_of, verbs_of
from .._kernel.payloads import ModelReply, ModelRequest, ToolCallResult
from .._kernel.points import AFTER_LLM, BEFORE_LLM, ON_RUN_END, ON_TOKEN, POINTS, is_fired_by_loop
from .._kernel.registry import HookRegistry, HookStack
from .._kernel.results import HookResult
from .._kernel.scope import CURRENT
from .._kernel.state import AgentResult
from .._kernel.values import Message, ModelResponse, ToolCall
from .._run.budget import Budget, Limits
from .._run.context import AgentContext, set_origin
from .._run.events import Discarded, Sink, TextDelta
from .._run.foreign import Exchange, ForeignAgent, ForeignLoop, ForeignModel, ForeignTools, SettledReply, Validate, Work
from .._run.halt import HaltSwitch
from .._run.model_call import make_gated_model
from .._run.run import Run, background_loop
from .._run.run_agent import StreamMode
from .._run.session import Session
from .._run.termination import RunFailedError, status_of
from ..models.protocol import Model
from ..plugins.loading import without_plugins
from ..plugins.plugin import Plugin
from ..providers.factory import resolve_model
from ..providers.prices import Price
from ..tools._tool import Effect
from ._unseen import UnseenCalls

if TYPE_CHECKING:
    from .._run.journal import JournalStore
    from ..records.hook import RecordHook

T = TypeVar("T")

Send = Callable[[ModelRequest], Awaitable[ModelResponse]]
Execute = Callable[[str, dict[str, Any]], Awaitable[Any]]


class AdapterOptions(TypedDict, total=False):
    """The keyword options of every adapter. They mean what they mean for :class:`hookline.Agent` and its runs."""

    name: str
    """The name of the agent in events, records and approvals; by default that of the framework."""
    plugins: Iterable[Plugin | str]
    """Plugins, or names of installed ones. Their hooks are added; their tools must be given to the framework."""
    allowed_plugins: Iterable[str] | None
    """The plugins that take part; ``None`` for all."""
    limits: Limits | None
    """The limits of each run. Hookline adds no step limit of its own: the framework has one."""
    record: bool | str | os.PathLike[str] | RecordHook
    """Whether, and where, to record what hooks see and decide."""
    runs: bool | str | os.PathLike[str] | JournalStore | Hook
    """Whether, and where, to list the runs: see :class:`hookline.Agent`."""
    sinks: Iterable[Sink]
    """Callables that get every event of every run."""
    stream: StreamMode
    """When the text of a reply is shown: ``safe`` by default, see :class:`hookline.RunOptions`."""
    strict: bool
    """Whether to refuse tools that no guard names."""
    deps: Any
    """An object for hooks, as ``ctx.deps``."""
    metadata: Mapping[str, Any]
    """Data for ``ctx.state.metadata``."""
    halts: HaltSwitch | None
    """A stop switch, such as ``RunStore("runs.db").halts``: while it is on, runs begin no call."""
    llm: Model | str | None
    """The model for hooks that call one with ``ctx.llm``; by default that of the framework, around its model calls."""
    price: Price | None
    """The price of the framework's model, for cost limits; by default from the price list, by the name of the model."""
    effects: Mapping[str, Iterable[Effect]]
    """The effects of the framework's tools, by name. Guards treat the others as if they could do everything."""
    unguarded: Iterable[str]
    """The names of tools that no hook needs to judge. Without it, a tool is refused if its calls bypass the hooks."""


class Support(msgspec.Struct, frozen=True):
    """The abilities of a framework.

    Args:
        framework: its name.
        package: the package that is imported, as installed.
        minimum: the first supported version.
        below: the first version that is not supported.
        missing: what it cannot do, with the alternative: ``"on_token"`` for a point that it has no moment for,
            ``"on_stop.keep_going"`` for a verb that it cannot do at a point, and ``"before_llm.model"`` for a field of
            the payload that hooks cannot change there (for ``tools``: to which they cannot add).
        extra: the extra of Hookline that installs it.

    Example::

        Support("Frame", "frame-sdk", "1.2", "2", {"on_token": "Use after_llm, which gets the whole text."})
    """

    framework: str
    package: str
    minimum: str
    below: str
    missing: Mapping[str, str] = {}
    extra: str = ""

    def check_version(self) -> None:
        """Check that a supported version is installed.

        Raises:
            NotInstalledError: the package is not installed.
            RegistrationError: another version is installed.
        """
        try:
            installed = version(self.package)
        except PackageNotFoundError as error:
            raise NotInstalledError(self.package, self.extra) from error
        if not _numbers(self.minimum) <= _numbers(installed) < _numbers(self.below):
            raise RegistrationError(
                f"{self.framework} {installed} is not supported: Hookline's adapter works with {self.package} "
                f">={self.minimum},<{self.below}. Install such a version"
            )

    def check(self, hooks: HookStack) -> None:
        """Check that the framework can express what these hooks do.

        Raises:
            RegistrationError: it cannot; the message names the hook, the framework and the alternative.
        """
        for entry in (entry for layer in hooks.layers for entry in layer):
            if (instead := self.missing.get(entry.point)) is not None and self._needs(entry, hooks):
                raise RegistrationError(
                    f"hook {entry.name!r} at {entry.point}: {self.framework} has no moment for it. {instead}"
                )
            refused = self._refused(entry, hooks)
            for verb in sorted(verbs_of(entry.hook, entry.point)) if refused else ():
                if (instead := refused.get(verb)) is not None:
                    raise RegistrationError(
                        f"hook {entry.name!r} at {entry.point}: {self.framework} cannot do {verb!r} there. {instead}"
                    )
            fixed = self._fixed(entry)
            for field in sorted(changes_of(entry.hook, entry.point) & fixed.keys()) if fixed else ():
                raise RegistrationError(f"hook {entry.name!r} at {entry.point}: {self.refusal(fixed[field])}")

    def refusal(self, key: str) -> str:
        """Return why a hook cannot change a field, such as ``before_llm.model``, with the alternative."""
        field = key.partition(".")[2]
        what = "add tools" if field == "tools" else f"change the {field}"
        return f"in {self.framework} hooks cannot {what}. {self.missing[key]}"

    def check_request(self, given: ModelRequest, changed: ModelRequest) -> None:
        """Check that the framework can send what hooks made of its request, for hooks whose code did not show it.

        Raises:
            ModelError: it cannot; the message names the framework and the alternative.
        """
        fields = [field for field in ("model", "response_format") if getattr(changed, field) != getattr(given, field)]
        if changed.tools is not given.tools and {tool.name for tool in changed.tools} - {
            tool.name for tool in given.tools
        }:
            fields.append("tools")
        for field in fields:
            if (key := f"{BEFORE_LLM}.{field}") in self.missing:
                own = "" if changed.purpose == "step" else ". For calls of ctx.llm, give the adapter llm="
                raise ModelError(self.refusal(key) + own)

    def _fixed(self, entry: HookEntry) -> dict[str, str]:
        """Return the fields that a hook cannot change, each with its key in ``missing``."""
        if entry.phase == "observe":
            return {}
        able = [(entry.point, field) for field in entry.point.payload.editable]
        able.append((BEFORE_LLM, "response_format"))  # by changing the state of the run
        return {field: key for point, field in able if (key := f"{point}.{field}") in self.missing}

    def _needs(self, entry: HookEntry, hooks: HookStack) -> bool:
        """Whether a hook depends on a point that is missing.

        An observer of several points, and a hook at every point, get the others.
        """
        mine = {other.point for layer in hooks.layers for other in layer if other.hook is entry.hook}
        if mine >= set(filter(is_fired_by_loop, POINTS.values())):
            return False
        if entry.phase == "observe":
            return mine <= self.missing.keys()
        return not (entry.point == ON_TOKEN and _judges_replies(entry.hook, hooks))

    def _refused(self, entry: HookEntry, hooks: HookStack) -> Mapping[str, str]:
        """Return the verbs that the framework cannot do for this hook, with the alternatives."""
        if entry.phase == "observe" or (entry.point == ON_RUN_END and _judges_replies(entry.hook, hooks)):
            return {}
        start = f"{entry.point}."
        return {
            verb: instead
            for key, instead in self.missing.items()
            if key.startswith(start) and (verb := key.removeprefix(start)) not in entry.point.payload.editable
        }

    def limited(self, hooks: HookStack) -> HookStack:
        """Return the hooks such that a verb which the framework cannot do counts as a failure of its hook."""
        layers = [
            [self._limited(entry, self._refused(entry, hooks)) for entry in layer if entry.point not in self.missing]
            for layer in hooks.layers
        ]
        unchanged = all(tuple(new) == old for old, new in zip(hooks.layers, layers, strict=True))
        return hooks if unchanged else HookStack(*layers)

    def _limited(self, entry: HookEntry, refused: Mapping[str, str]) -> HookEntry:
        if not refused:
            return entry

        def checked(result: Any) -> Any:
            verb = str(result.action) if isinstance(result, HookResult) else "replace" if result is not None else ""
            if verb in refused:
                raise InvalidResultError(
                    f"hook {entry.name!r} at {entry.point}: {self.framework} cannot do {verb!r} there. {refused[verb]}"
                )
            return result

        async def awaited(result: Awaitable[Any]) -> Any:
            return checked(await result)

        def call(*args: Any, **extras: Any) -> Any:
            result = entry.call(*args, **extras)
            return awaited(result) if inspect.isawaitable(result) else checked(result)

        return msgspec.structs.replace(entry, call=call)


@cache
def version(package: str) -> str:
    """Return the installed version of a package. It is read once: in some frameworks each run has its own adapter."""
    return metadata.version(package)


def _judges_replies(hook: Any, hooks: HookStack) -> bool:
    """Whether a hook judges replies at ``after_llm``.

    It can then do without ``on_token``, because text is not shown before ``after_llm``, and without the last word at
    ``on_run_end``, because it has judged the reply already.
    """
    return any(entry.hook is hook and entry.phase != "observe" for entry in hooks.entries(AFTER_LLM))


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``(1, 4, 7)`` for ``1.4.7rc1``."""
    return tuple(int(part) for part in re.match(r"\d+(?:\.\d+)*", text)[0].split("."))  # type: ignore[index]


class _SupportedHooks(HookRegistry):
    """A registry as a framework can express it. Changes of the original take effect."""

    def __init__(self, original: HookRegistry, support: Support) -> None:
        self._original = original
        self._support = support
        self._limited: tuple[HookStack, HookStack] | None = None

    @property
    def _entries(self) -> tuple[HookEntry, ...]:  # type: ignore[override]
        return self._original._entries

    def _change(self, how: Callable[[tuple[HookEntry, ...]], tuple[HookEntry, ...]]) -> None:
        self._original._change(how)

    @property
    def original(self) -> HookStack:
        """All hooks, whether or not the framework can express them."""
        return self._original.stack

    @property
    def stack(self) -> HookStack:
        """The compiled hooks; the same object until the registry changes."""
        stack = self._original.stack
        if self._limited is None or self._limited[0] is not stack:
            self._limited = stack, self._support.limited(stack)
        return self._limited[1]


class RunOverError(HooklineError):
    """The run has ended, so the framework must end too, with ``result.reply``."""

    def __init__(self, result: AgentResult[Any]) -> None:
        super().__init__(f"the run has ended: {result.status}")
        self.result = result


class _ShownText:
    """A sink that passes streamed text to the framework. A run makes no other events for it."""

    events = frozenset((TextDelta, Discarded))
    loop: ForeignLoop | None = None

    def __call__(self, event: Event) -> None:
        if self.loop is not None:
            self.loop.show(event)


class Adapter:
    """The hooks and options of one adapter object: everything that its runs share.

    Args:
        support: what the framework can express.
        hooks: hooks, or one :class:`hookline.HookRegistry`, whose later changes take effect too.
        options: see :class:`AdapterOptions`.

    Raises:
        NotInstalledError: the framework is not installed.
        RegistrationError: a hook or an option cannot work, or the version of the framework is not supported.
    """

    agent_type: type[ForeignAgent] = ForeignAgent
    run_type: type[ForeignRun]

    def __init__(self, support: Support, hooks: Sequence[Hook | HookRegistry], options: AdapterOptions) -> None:
        support.check_version()
        self.support = support
        given: dict[str, Any] = {**options}
        for unknown in given.keys() - AdapterOptions.__annotations__.keys():
            raise _unknown_option(unknown)
        self._deps, self._metadata = given.pop("deps", None), given.pop("metadata", None)
        self._halts: HaltSwitch | None = given.pop("halts", None)
        llm, effects, price = given.pop("llm", None), given.pop("effects", {}), given.pop("price", None)
        if price is not None and not isinstance(price, Price):
            raise RegistrationError(f"price= takes Price(input=0.5, output=1.5), not {price!r:.80}")
        self._llm = None if llm is None else resolve_model(llm)
        unguarded = checked_names("unguarded", given.pop("unguarded", ()))
        strict = given.pop("strict", False)
        limits = given.get("limits") or Limits()
        if isinstance(limits, Limits) and limits.steps is None:
            given["limits"] = msgspec.structs.replace(limits, steps=math.inf)
        name = given.pop("name", support.framework)
        model = ForeignModel(support.framework, price, support.check_request)
        self.agent = self.agent_type(name, llm=model, hooks=_registry(hooks), **given)
        if with_tools := [plugin.name for plugin in self.agent.plugins if plugin.tools]:
            raise RegistrationError(
                f"plugin {with_tools[0]!r} has tools, which {support.framework} does not know: give them to "
                f"{support.framework}, and only the hooks of the plugin to Hookline"
            )
        self.agent.unchecked_globs = False
        self.agent.tools = ForeignTools(effects)
        if strict:
            from .._run.strict import Strict

            self.agent.hooks.register(Strict())
        self.hooks = self.agent.hooks = _SupportedHooks(self.agent.hooks, support)
        self.unseen = UnseenCalls(support.framework, self.hooks, unguarded)
        self._checked: HookStack | None = None
        self._check()

    def _check(self) -> None:
        """Check the hooks, if they have changed since the last time."""
        hooks = self.hooks.original
        if hooks is not self._checked:
            self.support.check(hooks)
            self._checked = hooks

    @property
    def holds_text(self) -> bool:
        """Whether the text of a reply must not be shown before the hooks at ``after_llm`` have settled it."""
        if self.agent.stream_mode != "live":
            return self.hooks.stack.holds_text
        # A hook that would judge the pieces gets only the whole reply: even "live" must wait for it.
        judges = [entry for entry in self.hooks.original.entries(ON_TOKEN) if entry.phase != "observe"]
        return ON_TOKEN in self.support.missing and bool(judges)

    def attach_to(self, thing: Any, what: str) -> None:
        """Remember what the adapter was attached to.

        Raises:
            RegistrationError: it is attached to this already; ``what`` says what it is.
        """
        if getattr(thing, "__hookline__", None) is not None:
            raise RegistrationError(
                f"Hookline is already attached to this {what}: each hook would be called twice. Attach it once, with "
                "all hooks"
            )
        thing.__hookline__ = self

    def start(
        self,
        task: str,
        history: Iterable[Message] = (),
        *,
        attachments: Iterable[Attachment] = (),
        session: str = "",
        streaming: bool = False,
        budget: Budget | None = None,
    ) -> ForeignRun:
        """Start a run: in the running event loop, or else in a background thread.

        Args:
            task: the user's message.
            history: the conversation before it.
            attachments: the files in the user's message.
            session: the id of the conversation.
            streaming: whether the framework uses :meth:`ForeignRun.stream_model`.
            budget: the budget of the conversation, whose limits all its runs share.

        Raises:
            RegistrationError: a hook was added that the framework cannot express.
        """
        run, loop = self._prepare(task, history, attachments, session, streaming, budget)
        return self.run_type(run, loop, running_loop() or background_loop())

    def start_sync(
        self,
        task: str,
        history: Iterable[Message] = (),
        *,
        attachments: Iterable[Attachment] = (),
        session: str = "",
    ) -> ForeignRun:
        """Start a run for code that blocks: its hooks run in a background thread."""
        run, loop = self._prepare(task, history, attachments, session, streaming=False)
        return self.run_type(run, loop, background_loop())

    def _prepare(
        self,
        task: str,
        history: Iterable[Message],
        attachments: Iterable[Attachment],
        session: str,
        streaming: bool,
        budget: Budget | None = None,
    ) -> tuple[Run[Any], ForeignLoop]:
        self._check()
        ctx = AgentContext[Any](halts=self._halts, budget=budget)
        set_origin(ctx, self.support.framework)
        options: dict[str, Any] = {"session": Session(session, tuple(history)), "ctx": ctx}
        if self._deps is not None:
            options["deps"] = self._deps
        if self._metadata:
            options["metadata"] = self._metadata
        shown = _ShownText()
        if streaming:
            options["sinks"] = [shown]
        run, loop = self.agent.prepare(task, options)
        shown.loop = loop
        loop.attachments = tuple(attachments)  # the framework says how large they may be
        if self._llm is not None:
            loop.engine.services.llm = make_gated_model(loop.engine, self._llm)
        return run, loop


def _unknown_option(name: str) -> RegistrationError:
    if name in ("hook", "hooks"):
        return RegistrationError(f"there is no option {name}=: write the hooks as arguments, such as (guard1, guard2)")
    if name in ("durable", "run_id"):
        return RegistrationError(
            f"there is no option {name}=: a journal cannot continue the loop of a framework. Start the framework in a "
            "tool of a durable hookline.Agent, or make it durable with its own means"
        )
    known = sorted(AdapterOptions.__annotations__)
    return RegistrationError(f"there is no option {name}=.{did_you_mean(name, known)} Known: {', '.join(known)}")


def checked_names(option: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that an option lists.

    Raises:
        RegistrationError: it is not a list of names.
    """
    found: frozenset[Any] = frozenset([None] if isinstance(names, str) else names)
    if not all(isinstance(name, str) for name in found):
        raise RegistrationError(f"{option}= takes a list of names, such as ['web_search'], not {names!r:.80}")
    return found


def _registry(hooks: Sequence[Any]) -> HookRegistry:
    """Return the only registry among the arguments of an adapter, or else a new one with all hooks."""
    if len(hooks) == 1 and isinstance(hooks[0], HookRegistry):
        return hooks[0]
    registry = HookRegistry()
    for hook in hooks:
        registry.extend(hook if isinstance(hook, HookRegistry) else without_plugins([hook]))
    return registry


class ForeignRun:
    """The framework's side of one run.

    Each method has a sync twin for frameworks that block a thread. If the object is dropped before :meth:`end` was
    called, because the framework failed, the run is cancelled.
    """

    def __init__(self, run: Run[Any], loop: ForeignLoop, aio: asyncio.AbstractEventLoop) -> None:
        self.run = run
        """The handle of the run, to cancel or steer it."""
        self.memo: dict[str, Any] = {}
        """The adapter's own data about this run."""
        self._loop = loop
        self._engine = loop.engine
        self._aio = aio
        run.begin(aio)
        self._abandoned = weakref.finalize(self, run.cancel, "the framework ended without a result")
        self._abandoned.atexit = False

    def __deepcopy__(self, memo: object) -> ForeignRun:
        """Return this object: it is part of the state of a graph in LangChain, which copies the state for its log."""
        return self

    @property
    def alive(self) -> bool:
        """Whether the framework can go on with the run: it has not ended otherwise, and its event loop is running.

        A run that ended with a reply is alive: it tells the framework to end too.
        """
        return not self._aio.is_closed() and not self._engine.services.interrupt.cancelled

    # Model calls.

    async def call_model(self, request: ModelRequest, send: Send) -> SettledReply:
        """Let the hooks judge a model call, and make it with ``send(request)``, several times if a hook retries it.

        Raises:
            RunOverError: a hook ended or stopped the run, or a limit is reached.
            RunFailedError: a hook failed closed, or the model failed.
        """
        return self._reply(await self._drive(Exchange("model", request), send))

    def call_model_sync(self, request: ModelRequest, send: Callable[[ModelRequest], ModelResponse]) -> SettledReply:
        """Call the model like :meth:`call_model`, in this thread."""
        return self._reply(self._drive_sync(Exchange("model", request), send))

    async def stream_model(
        self, request: ModelRequest, send: Callable[[ModelRequest], AsyncIterator[str | ModelResponse]]
    ) -> AsyncIterator[str | Discarded | SettledReply]:
        """Call the model like :meth:`call_model`, and yield the text as the hooks release it, then the reply.

        ``send(request)`` yields pieces of text, then the whole response. A ``Discarded`` withdraws the text so far.
        """
        exchange = Exchange("model", request, streaming=True)
        self._offer(exchange)
        pieces: AsyncIterator[str | ModelResponse] | None = None
        try:
            while True:
                item = await exchange.take()
                if isinstance(item, TextDelta):
                    yield item.text
                elif isinstance(item, Discarded):
                    yield item
                elif not isinstance(item, Work):
                    break
                elif item.kind == "stream":
                    with self._work(item):
                        await _close(pieces)
                        pieces = send(item.argument)
                        item.done(None)
                elif item.kind == "send":  # a hook that called ctx.llm
                    await self._do(item, lambda asked: _whole(send(asked)))
                else:
                    assert pieces is not None
                    await self._do(item, partial(_piece, pieces))
        except BaseException:
            self.run.cancel("the framework cancelled the model call")
            raise
        finally:
            await _close(pieces)
        yield self._reply(_checked(item))  # a framework that closes the generator here has what it needs

    def _reply(self, outcome: Any) -> SettledReply:
        if isinstance(outcome, AgentResult):
            raise self._over(outcome)
        reply: SettledReply = outcome
        return reply

    # Tool calls.

    async def call_tool(self, call: ToolCall, execute: Execute, validate: Validate | None = None) -> ToolCallResult:
        """Let the hooks judge a tool call, make it with ``execute(name, arguments)``, and let them judge the result.

        If the tool raises, and no hook changes that, its exception is raised here. With ``validate``, guards judge the
        arguments as the framework validated them, and ``execute`` gets these values.

        Raises:
            RunOverError: a hook ended or stopped the run, or a limit is reached.
            RunFailedError: a hook failed closed.
        """
        failures: list[BaseException] = []

        async def executed(argument: tuple[str, dict[str, Any]]) -> Any:
            try:
                return await execute(*argument)
            except Exception as error:
                failures.append(error)
                raise

        return self._tool_result(await self._drive(Exchange("tool", call, validate=validate), executed), failures)

    def call_tool_sync(self, call: ToolCall, execute: Callable[[str, dict[str, Any]], Any]) -> ToolCallResult:
        """Call a tool like :meth:`call_tool`, in this thread."""
        failures: list[BaseException] = []

        def executed(argument: tuple[str, dict[str, Any]]) -> Any:
            try:
                return execute(*argument)
            except Exception as error:
                failures.append(error)
                raise

        return self._tool_result(self._drive_sync(Exchange("tool", call), executed), failures)

    def _tool_result(self, outcome: Any, failures: list[BaseException]) -> ToolCallResult:
        if isinstance(outcome, AgentResult):
            raise self._over(outcome)
        result: ToolCallResult = outcome
        if failures and result.outcome == "error" and result.error == _tool_error(failures[-1]):
            raise failures[-1]
        return result

    # The end.

    async def end(self, reply: str | None = None, error: BaseException | None = None) -> AgentResult[Any]:
        """End the run because the framework has finished, and return its result after ``on_run_end``.

        Args:
            reply: the framework's final text, if it may differ from the last reply.
            error: the error with which the framework failed.
        """
        return await self._drive(Exchange("end", (reply, error)), _no_work)  # type: ignore[no-any-return]

    def end_sync(self, reply: str | None = None, error: BaseException | None = None) -> AgentResult[Any]:
        """End the run like :meth:`end`, in this thread."""
        return self._drive_sync(Exchange("end", (reply, error)), _no_work)  # type: ignore[no-any-return]

    async def interrupted(self, error: BaseException) -> None:
        """End the run because the framework was cancelled or interrupted. Raise the error again afterwards."""
        self.run.cancel("the framework was cancelled")
        if isinstance(error, asyncio.CancelledError):  # after others, such as GeneratorExit, nothing may be awaited
            await self.end()

    def _over(self, result: AgentResult[Any]) -> Exception:
        """Return the error that tells the adapter to end: the framework's own error if that is the cause."""
        cause = self._engine.cause
        if result.status != "failed":
            return RunOverError(result)
        original = cause.__cause__ if cause is not None else None
        if isinstance(original, Exception) and getattr(original, "__hookline_foreign__", False):
            return original
        return RunFailedError(result, cause if status_of(cause) == "failed" else None)

    # The exchange with the loop.

    def _offer(self, exchange: Exchange) -> None:
        if running_loop() is self._aio:
            self._loop.offer(exchange)
        else:
            self._aio.call_soon_threadsafe(self._loop.offer, exchange)

    async def _drive(self, exchange: Exchange, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Offer an exchange, and do the work that the loop asks for until it is settled."""
        self._offer(exchange)
        try:
            while isinstance(item := await exchange.take(), Work):
                await self._do(item, work)
        except BaseException:
            self._give_up(exchange)
            raise
        return _checked(item)

    def _give_up(self, exchange: Exchange) -> None:
        """The framework no longer waits for an exchange."""
        self.run.cancel("the framework was cancelled")

    async def _do(self, item: Work, work: Callable[[Any], Awaitable[Any]]) -> None:
        """Do the work, and cancel it when the loop stops waiting, as at the end of a time limit.

        The work runs in the framework's own task, like ``asyncio.timeout``: a task for each call would cost more.
        """
        aio, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        before, working, unwanted = task.cancelling(), True, False

        def cancel() -> None:
            nonlocal unwanted
            if working:
                unwanted = True
                task.cancel()

        def when_done(future: asyncio.Future[Any]) -> None:
            if future.cancelled() and not aio.is_closed():
                aio.call_soon_threadsafe(cancel)

        if aio is item.aio:
            item.future.add_done_callback(when_done)
        else:
            item.aio.call_soon_threadsafe(item.future.add_done_callback, when_done)
        with self._work(item):
            try:
                item.done(await work(item.argument))
            except asyncio.CancelledError as error:
                if task.cancelling() > before + unwanted:
                    raise  # the framework was cancelled
                item.fail(error)  # the work raised it by itself, or nobody waits for it
            finally:
                working = False
                item.future.remove_done_callback(when_done)
                if unwanted:
                    task.uncancel()

    def _drive_sync(self, exchange: Exchange, work: Callable[[Any], Any]) -> Any:
        if running_loop() is self._aio:
            raise HooklineError(
                "a sync call of the framework would block the event loop in which the hooks run: use its async methods"
            )
        self._offer(exchange)
        try:
            while isinstance(item := exchange.next().result(), Work):
                with self._work(item):
                    try:
                        item.done(work(item.argument))
                    except asyncio.CancelledError as error:  # a thread cannot be cancelled: the work raised it
                        item.fail(error)
        except BaseException:  # such as Ctrl-C
            self.run.cancel("the framework was interrupted")
            raise
        return _checked(item)

    @contextmanager
    def _work(self, item: Work) -> Iterator[None]:
        """Do work inside the run, so that agents that it starts become nested runs. Its failure goes to the loop."""
        token = CURRENT.set(self._engine)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the hooks at on_error decide
            _mark(error)
            item.fail(error)
        finally:
            CURRENT.reset(token)


Adapter.run_type = ForeignRun


def _checked(outcome: Any) -> Any:
    if isinstance(outcome, HooklineError):
        raise outcome
    return outcome


def _mark(error: Exception) -> None:
    try:
        error.__hookline_foreign__ = True  # type: ignore[attr-defined]
    except AttributeError:
        pass  # an error with slots is raised as the cause of a RunFailedError


def _tool_error(error: BaseException) -> str:
    from .._base.errors import PlainError
    from .._base.text import describe, error_text

    return error_text(error) if isinstance(error, PlainError) else describe(error)


async def _no_work(_: Any) -> Any:
    raise HooklineError("the end of a run asks for no work")


async def _whole(pieces: AsyncIterator[str | ModelResponse]) -> ModelResponse:
    async for piece in pieces:
        if isinstance(piece, ModelResponse):
            return piece
    raise HooklineError("the stream of the model ended without its final response")


async def _piece(pieces: AsyncIterator[str | ModelResponse], _: Any) -> str | ModelResponse:
    return await anext(pieces)


async def _close(pieces: Any) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


def reply_is(reply: ModelReply, response: ModelResponse) -> bool:
    """Whether hooks left a response as it was, so that the framework's own object can be used."""
    return (reply.content, reply.tool_calls) == (response.content, response.tool_calls)
