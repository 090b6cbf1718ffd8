"""Interceptors of AGENT-HOOKS-0.1 in Hookline's loop.

AGENT-HOOKS is a public specification of eight moments of an agent at which *interceptors* allow, deny or change what
happens. Its Python package is ``agent-hooks-sdk``, which is imported only here. The package evaluates interceptors and
their composition, asks approval resolvers and keeps the records; this module says when, and does what the result says.

Example::

    from hookline.adapters.agent_hooks import AgentHooks

    agent = Agent("helper", llm="local", tools=[...], hooks=[AgentHooks(MyInterceptor())])
"""

# Without the package, pyright takes this module for it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportInvalidTypeForm=false
# The frameworks are not installed together, so their names are unknown to the type checker.
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .._base.frozen import plain
from .._base.package import __version__
from .._kernel.errors import RegistrationError
from .._kernel.payloads import (
    ErrorReport,
    ModelReply,
    ModelRequest,
    RunStart,
    TokenDelta,
    ToolCallRequest,
    ToolCallResult,
)
from .._kernel.points import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_TOKEN,
    Point,
)
from .._kernel.results import HookResult
from .._kernel.state import AgentResult
from .._kernel.values import Message, ToolCall
from ..models.errors import NotInstalledError

__all__ = ["AgentHooks"]

if TYPE_CHECKING:
    from agent_hooks import ApprovalResolver, CompositionConfig, InterceptionEmitter, Interceptor

MAX_SESSIONS = 1000
"""Sessions whose sequence numbers are kept."""

_PRIORITY = -150
"""Interceptors see what other hooks have made of a request, call or result."""
_REASONS = {"completed": "completed", "stopped": "completed", "cancelled": "cancelled"}
_NOT_RUN = ("blocked", "cancelled")


class AgentHooks:
    """Runs interceptors of AGENT-HOOKS-0.1 at the points of Hookline's loop.

    A denied tool call is blocked, and the model reads the reason; a denied result is withheld. A denial at any other
    moment ends the run. What interceptors change takes effect: the input, messages, replies, arguments, results and
    the output.

    Example::

        class NoRm:
            def intercept(self, context):
                if context["interception_point"] == "pre_tool_call" and context["tool_call"]["name"] == "rm":
                    return Verdict.deny(reason="dangerous")
                return Verdict.allow()

        hooks = AgentHooks(NoRm())
        agent = Agent("helper", llm="local", hooks=[hooks])
        agent.run("Tidy up.")
        print(hooks.emitter.results)  # the records

    Args:
        interceptors: the interceptors, in order. Without any, everything is denied, as the specification says.
        emitter: an emitter with interceptors and settings of its own, for example from a host declaration; then nothing
            else but ``incremental`` may be given.
        resolver: decides about denials that can be lifted; without one, they are denials.
        evaluate_only: whether verdicts are only recorded.
        composition: how the verdicts of several interceptors are combined; the first denial counts by default.
        incremental: whether text is shown while the model writes it, piece by piece, each after a verdict on all text
            up to its end. By default nothing is shown before the verdict on the whole reply.

    Raises:
        NotInstalledError: ``agent-hooks-sdk`` is not installed.
        RegistrationError: both an emitter and something that belongs to an emitter are given.
    """

    priority = _PRIORITY

    def __init__(
        self,
        *interceptors: Interceptor,
        emitter: InterceptionEmitter | None = None,
        resolver: ApprovalResolver | None = None,
        evaluate_only: bool = False,
        composition: CompositionConfig | None = None,
        incremental: bool = False,
    ) -> None:
        try:
            import agent_hooks
        except ImportError as error:
            raise NotInstalledError("agent-hooks-sdk", "agent-hooks") from error
        if emitter is not None and (interceptors or resolver is not None or evaluate_only or composition is not None):
            raise RegistrationError(
                "AgentHooks(emitter=...): the emitter has its own interceptors, resolver, mode and composition. Set "
                "them there"
            )
        made: Any = emitter
        if made is None:
            mode = agent_hooks.EnforcementMode.EVALUATE_ONLY if evaluate_only else agent_hooks.EnforcementMode.ENFORCE
            made = agent_hooks.InterceptionEmitter(mode=mode, resolver=resolver, composition=composition)
            for interceptor in interceptors:
                made.register(interceptor)
        self.emitter: InterceptionEmitter = made
        """Evaluates the interceptors, and keeps the records in ``emitter.results``."""
        self.incremental = incremental
        points: set[Point[Any]] = {ON_RUN_START, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_RUN_END}
        self.points = frozenset(points | {ON_TOKEN, ON_ERROR} if incremental else points)
        self.holds_text = not incremental
        self._contexts: OrderedDict[str, Any] = OrderedDict()

    async def __call__(self, point: Point[Any], ctx: Any, payload: Any) -> Any:
        """Emit the moment that this point is, and return what the verdict means."""
        match point:
            case "on_run_start":
                return await self._start(ctx, payload)
            case "before_llm":
                return await self._before_model(ctx, payload)
            case "on_token":
                return await self._token(ctx, payload)
            case "after_llm":
                return await self._after_model(ctx, payload)
            case "before_tool":
                return await self._before_tool(ctx, payload)
            case "after_tool":
                return await self._after_tool(ctx, payload)
            case "on_error":
                return self._error(ctx, payload)
            case _:
                return await self._end(ctx, payload)

    async def _emit(self, context: dict[str, Any]) -> str | None:
        """Emit a moment; interceptors may change ``context``. Return why it must not happen, or ``None``."""
        record = await self.emitter.emit_unchecked(context)
        if record.proceeds:
            return None
        verdict = record.verdict
        return f"Denied at {context['interception_point']}: {verdict.message or verdict.reason or 'no reason given'}"

    def _contexts_of(self, ctx: Any) -> Any:
        """Return the builder of contexts of a session, which numbers them."""
        from agent_hooks import AgentContextBuilder

        session = ctx.session.id
        if session not in self._contexts:
            self._contexts[session] = AgentContextBuilder(
                agent_id=ctx.agent_name or "agent", framework="hookline", session_id=session, agent_version=__version__
            )
            while len(self._contexts) > MAX_SESSIONS:
                self._contexts.popitem(last=False)
        self._contexts.move_to_end(session)
        return self._contexts[session]

    def _state(self, ctx: Any) -> _State:
        state: _State = ctx.own_state(self, _State)
        return state

    # The run.

    async def _start(self, ctx: Any, start: RunStart) -> HookResult | None:
        contexts = self._contexts_of(ctx)
        self._state(ctx).started = True
        tools = [] if ctx.tool_registry is None else sorted(tool.name for tool in ctx.tool_registry)
        if (denied := await self._emit(contexts.agent_startup(tools_registered=tools))) is not None:
            return HookResult.end(denied, reason="denied")
        context = contexts.input(content=start.task)
        if (denied := await self._emit(context)) is not None:
            return HookResult.end(denied, reason="denied")
        task = _as_text(context["input"]["content"])
        return None if task == start.task else HookResult.replace({"task": task})

    async def _end(self, ctx: Any, result: AgentResult[Any]) -> None:
        if self._state(ctx).started:
            reason = _REASONS.get(result.status, "error")
            await self.emitter.emit_unchecked(self._contexts_of(ctx).agent_shutdown(reason=reason))

    # Model calls.

    async def _before_model(self, ctx: Any, request: ModelRequest) -> HookResult | None:
        self._state(ctx).streams.pop((request.purpose, request.hop), None)
        messages = [_message(message) for message in request.messages]
        context = self._contexts_of(ctx).pre_model_call(
            model_id=request.model or "model",
            messages=messages,
            tools=[{"name": tool.name, "description": tool.description} for tool in request.tools],
        )
        before = [dict(message) for message in messages]
        if (denied := await self._emit(context)) is not None:
            return HookResult.end(denied, reason="denied")
        after = context["messages"]
        if after == before:
            return None
        known = zip(before, request.messages, strict=True)
        kept = dict(enumerate(known))
        changed = [
            kept[index][1] if index in kept and kept[index][0] == message else _parse_message(message)
            for index, message in enumerate(after)
        ]
        return HookResult.replace({"messages": changed})

    async def _judge_reply(
        self, ctx: Any, reply: _InterceptedReply, model: str
    ) -> tuple[str | None, _InterceptedReply]:
        """Return why a reply is denied, or ``None``, and the reply as interceptors have changed it."""
        calls = [{"id": call.id, "name": call.name, "args": plain(call.arguments)} for call in reply.calls]
        context = self._contexts_of(ctx).post_model_call(
            model_id=model or "model", content=reply.content, tool_calls=calls, finish_reason=reply.finish_reason
        )
        if (denied := await self._emit(context)) is not None:
            return denied, reply
        after = context["response"]
        changed = reply.calls
        if after["tool_calls"] != calls:
            changed = tuple(ToolCall(call["id"], call["name"], call["args"]) for call in after["tool_calls"])
        return None, _InterceptedReply(_as_text(after["content"]), changed, after["finish_reason"])

    async def _after_model(self, ctx: Any, reply: ModelReply) -> HookResult | None:
        arrived = _InterceptedReply(reply.content, reply.tool_calls, reply.finish_reason)
        stream = self._state(ctx).streams.get((reply.purpose, reply.hop))
        if stream is not None and stream.whole == arrived:
            judged = stream.judged
        else:
            denied, judged = await self._judge_reply(ctx, arrived, reply.model)
            if denied is not None:
                return HookResult.end(denied, reason="denied")
        if not judged.calls and reply.purpose == "step":
            context = self._contexts_of(ctx).output(content=judged.content)
            if (denied := await self._emit(context)) is not None:
                return HookResult.end(denied, reason="denied")
            judged = msgspec.structs.replace(judged, content=_as_text(context["output"]["content"]))
        if judged == arrived:
            return None
        if stream is not None:
            stream.allowed = judged.content
        return HookResult.replace({"content": judged.content, "tool_calls": judged.calls})

    # Text while it is written. A piece is shown once all text up to its end has a verdict. Whether a piece is the last
    # one is only known when the next one arrives, or the end, so a piece waits for that.

    async def _token(self, ctx: Any, token: TokenDelta) -> HookResult | None:
        streams = self._state(ctx).streams
        key = token.purpose, token.hop
        stream = streams.get(key)
        if stream is not None and stream.allowed == token.text:
            return None  # after_llm has judged this text
        if stream is None or stream.generation != token.generation:
            stream = streams[key] = _Stream(token.generation)
        if token.final:
            return await self._last_token(ctx, stream, token)
        shown = ""
        if stream.waiting:
            # The whole text so far without the piece that has just arrived.
            reply = _InterceptedReply(stream.text, finish_reason="incremental")
            denied, judged = await self._judge_reply(ctx, reply, "")
            if denied is None and not judged.content.startswith(stream.shown):
                denied = "Denied: an interceptor changed text that has already been shown."
            if denied is not None:
                stream.waiting = False
                return HookResult.end(denied, reason="denied")
            shown = judged.content[len(stream.shown) :]
            stream.shown = judged.content
        stream.text += token.delta
        stream.waiting = True
        return None if shown == token.delta else HookResult.replace({"delta": shown})

    async def _last_token(self, ctx: Any, stream: _Stream, token: TokenDelta) -> HookResult | None:
        text = stream.text + token.delta
        if not text:
            return None
        # The reason why the model stopped is not known here. If it is another one, or there are calls, after_llm judges
        # the whole reply again.
        stream.whole = whole = _InterceptedReply(text)
        denied, stream.judged = await self._judge_reply(ctx, whole, "")
        stream.waiting = False
        if denied is None and not stream.judged.content.startswith(stream.shown):
            denied = "Denied: an interceptor changed text that has already been shown."
        if denied is not None:
            return HookResult.end(denied, reason="denied")
        shown = stream.judged.content[len(stream.shown) :]
        stream.shown = stream.judged.content
        return None if shown == token.delta else HookResult.replace({"delta": shown})

    def _error(self, ctx: Any, failure: ErrorReport) -> None:
        """Record text that no verdict covers, because the model failed while it wrote. It was never shown."""
        stream = self._state(ctx).streams.pop((failure.purpose, failure.hop), None)
        if failure.where == "model" and stream is not None and stream.waiting:
            _record_incomplete(self.emitter, self._contexts_of(ctx), stream.text)

    # Tool calls.

    async def _before_tool(self, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        arguments = plain(request.arguments)
        context = self._contexts_of(ctx).pre_tool_call(call_id=request.id, name=request.name, args=arguments)
        if (denied := await self._emit(context)) is not None:
            return HookResult.block(denied, reason="denied")
        changed = context["tool_call"]["args"]
        return None if changed == plain(request.arguments) else HookResult.replace({"arguments": changed})

    async def _after_tool(self, ctx: Any, result: ToolCallResult) -> HookResult | None:
        if result.outcome in _NOT_RUN:
            return None
        failed = result.error is not None
        value = result.error if failed else plain(result.result)
        context = self._contexts_of(ctx).post_tool_call(
            call_id=result.id,
            name=result.name,
            args=plain(result.arguments),
            value=value,
            is_error=failed,
            duration_ms=result.duration * 1000,
        )
        if (denied := await self._emit(context)) is not None:
            return HookResult.replace({"result": None, "error": denied}, reason="denied")
        changed = context["tool_result"]["value"]
        if changed == (result.error if failed else plain(result.result)):
            return None
        return HookResult.replace({"error": _as_text(changed)} if failed else {"result": changed})


class _InterceptedReply(msgspec.Struct, frozen=True):
    """A reply as interceptors see it."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"


class _Stream(msgspec.Struct):
    """A reply that is being written.

    ``text`` is what the model wrote, ``shown`` what was let through; ``waiting`` is true while the last piece has no
    verdict. ``whole`` and ``judged`` are the reply that the last verdict was about, before and after it. ``allowed`` is
    text that ``after_llm`` has judged and that will be shown next.
    """

    generation: int
    text: str = ""
    shown: str = ""
    waiting: bool = False
    whole: _InterceptedReply | None = None
    judged: _InterceptedReply = _InterceptedReply("")
    allowed: str | None = None


class _State:
    """The state of a run."""

    def __init__(self) -> None:
        self.started = False
        self.streams: dict[tuple[str, int], _Stream] = {}


def _message(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [
            {"id": call.id, "name": call.name, "args": plain(call.arguments)} for call in message.tool_calls
        ]
    if message.call_id is not None:
        shown["tool_call_id"] = message.call_id
    if message.name is not None:
        shown["name"] = message.name
    return shown


def _parse_message(given: Mapping[str, Any]) -> Message:
    calls: Sequence[Mapping[str, Any]] = given.get("tool_calls", ())
    return Message(
        given["role"],
        _as_text(given.get("content", "")),
        tuple(ToolCall(call["id"], call["name"], call["args"]) for call in calls),
        given.get("tool_call_id"),
        given.get("name"),
    )


def _as_text(content: Any) -> str:
    """Return content as text, which is what a run consists of."""
    if content is None:
        return ""
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


def _record_incomplete(emitter: Any, contexts: Any, text: str) -> None:
    """Record a reply that broke off, as the specification says: denied by the host, because nothing judged its end.

    The package has a public method for the failures of a host, but it always records another reason.
    """
    from agent_hooks import HostError, Verdict
    from agent_hooks.emitter import _Outcome

    context = contexts.post_model_call(model_id="model", content=text, tool_calls=[], finish_reason="stream_incomplete")
    outcome = _Outcome(Verdict.host_error(HostError.STREAMING_UNSUPPORTED))
    emitter._append(emitter._finalize(context, outcome, emitter._compute_identity(context)))
