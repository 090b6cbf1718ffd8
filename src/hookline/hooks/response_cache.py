"""Cache model replies."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, ClassVar

import msgspec

from .._base.frozen import plain
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelReply, ModelRequest
from .._kernel.points import AFTER_LLM, BEFORE_LLM
from .._kernel.results import HookResult
from .._kernel.validation import check_integer, check_names, check_seconds
from .._kernel.values import ModelResponse
from .._run.sources import real_clock
from ._support.messages import to_response

_encode = msgspec.json.Encoder(order="sorted").encode


class ResponseCacheHook:
    """Answers a repeated model request from a cache, without calling the model.

    Two requests are the same if their messages, tools, model, params, response format and tool choice are the same. Ids
    of runs and tool calls do not matter. The cache stores complete replies as the model gave them. Hooks see a cached
    reply like any other; it costs nothing. If a hook rejects a reply and the request is retried, the request goes to
    the model and the rejected reply is removed from the cache.

    Example::

        cache = ResponseCacheHook(ttl=3600)
        agent = Agent("a", llm="openai:NAME", hooks=[cache])
        ...
        print(cache.hits, cache.misses)

    Args:
        max_entries: maximum number of replies; the least recently used is removed first.
        ttl: lifetime of a reply in seconds; by default unlimited.
        purposes: purposes of the model calls to cache, such as ``["step"]``; by default all.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({BEFORE_LLM, AFTER_LLM})
    on_failure = "open"
    phase: ClassVar = {BEFORE_LLM: "guard"}
    holds_text = False  # it only stores replies
    priority: ClassVar = {AFTER_LLM: 200}  # before other hooks rewrite the reply

    def __init__(
        self, max_entries: int = 1000, *, ttl: float | None = None, purposes: Iterable[str] | None = None
    ) -> None:
        self.max_entries = check_integer(max_entries, "max_entries")
        self.ttl = None if ttl is None else check_seconds(ttl, "ttl")
        if self.ttl == 0:
            raise RegistrationError("ttl=0 would cache nothing: leave it out, or give a number of seconds")
        self.purposes = None if purposes is None else frozenset(check_names(purposes, "purposes"))
        self.hits = self.misses = 0
        self._cached: OrderedDict[bytes, tuple[ModelResponse, float]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._cached)

    def clear(self) -> None:
        """Remove all replies from the cache."""
        with self._lock:
            self._cached.clear()

    async def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Answer a request at ``before_llm``, store a reply at ``after_llm``."""
        if self.purposes is not None and payload.purpose not in self.purposes:
            return None
        # Model calls have no id, so two calls of one purpose in one step may be confused. This only costs a cache miss.
        used: dict[Any, set[bytes]] = ctx.own_state(self, dict)
        replied = used.setdefault((payload.hop, payload.purpose), set())
        if point == BEFORE_LLM:
            return await self._serve(ctx, payload, replied)
        self._store(ctx, payload, replied)
        return None

    async def _serve(self, ctx: Any, request: ModelRequest, replied: set[bytes]) -> HookResult | None:
        if request.attempt > 1:
            with self._lock:
                for key in replied:
                    self._cached.pop(key, None)
            return None
        key = _key(ctx, request)
        # A durable run gets the same answer when it continues in another process, whose cache is empty.
        found = await ctx.once("cached reply", lambda: self._find(key, real_clock(ctx.clock).monotonic()))
        if found is None:
            return None
        replied.add(key)
        return HookResult.answer(msgspec.convert(found, ModelResponse), reason="cached")

    def _find(self, key: bytes, now: float) -> Any:
        with self._lock:
            reply, until = self._cached.get(key, (None, 0.0))
            if reply is not None and now >= until:
                del self._cached[key]
                reply = None
            if reply is None:
                self.misses += 1
                return None
            self.hits += 1
            self._cached.move_to_end(key)
            return msgspec.to_builtins(reply)

    def _store(self, ctx: Any, reply: ModelReply, replied: set[bytes]) -> None:
        if reply.source != "model" or not _is_complete(reply) or _is_other_provider(ctx, reply):
            return
        key = _key(ctx, reply.request)
        until = float("inf") if self.ttl is None else real_clock(ctx.clock).monotonic() + self.ttl
        replied.add(key)
        with self._lock:
            self._cached[key] = to_response(reply), until
            self._cached.move_to_end(key)
            if len(self._cached) > self.max_entries:
                self._cached.popitem(last=False)


def _is_other_provider(ctx: Any, reply: ModelReply) -> bool:
    """Return whether another provider has a model of the same name, which requests cannot distinguish."""
    own = ctx.llm
    return own is not None and reply.request.model == own.name and reply.provider != own.provider


def _is_complete(reply: ModelReply) -> bool:
    if any(call.raw is not None for call in reply.tool_calls):
        return False
    return reply.finish_reason in ("stop", "tool_calls") and bool(reply.content or reply.tool_calls)


def _key(ctx: Any, request: ModelRequest) -> bytes:
    """Hash the request, with numbers in place of the ids of tool calls, which differ between runs."""
    calls: dict[str | None, int] = {}

    def number(id: str | None) -> int:
        return calls.setdefault(id, len(calls))

    messages = [
        (
            message.role,
            message.content,
            message.name,
            message.is_error,
            [(number(call.id), call.name, call.arguments, call.raw) for call in message.tool_calls],
            None if message.call_id is None else number(message.call_id),
            *((each.digest, each.media_type, each.name) for each in message.attachments),
        )
        for message in request.messages
    ]
    provider = "" if ctx.llm is None else ctx.llm.provider
    parts = (
        provider,
        request.model,
        messages,
        request.tools,
        request.params,
        request.response_format,
        request.tool_choice,
    )
    try:
        text = _encode(parts)
    except UnicodeEncodeError:  # lone surrogates, which msgspec cannot encode
        text = json.dumps(plain(parts), sort_keys=True).encode()
    return sha256(text).digest()
