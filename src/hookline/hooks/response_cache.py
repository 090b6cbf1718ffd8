"""Model replies that are served again."""

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
from .._kernel.values import ModelResponse
from ._support.messages import to_response
from ._support.validation import check_integer, check_names, check_seconds

_encode = msgspec.json.Encoder(order="sorted").encode


class ResponseCacheHook:
    """Answers a model request that was answered before, without asking the model.

    Two requests are the same if the model would be given the same: messages, tools, model, params, response format and
    tool choice. Ids of runs and of tool calls do not count. What is kept is the reply as the model gave it, if it was
    whole; hooks see an answer as they see a reply, and it costs nothing. A request that is made again because its reply
    was rejected goes to the model, and the rejected reply is forgotten.

    Args:
        max_entries: how many replies are kept; the one not used for longest goes first.
        ttl: how many seconds a reply is good for; for ever if left out.
        purposes: the purposes of model calls to serve, such as ``["step"]``; all if left out.

    Raises:
        RegistrationError: a value that makes no sense.
    """

    points = frozenset({BEFORE_LLM, AFTER_LLM})
    on_failure = "open"
    phase: ClassVar = {BEFORE_LLM: "guard"}
    priority: ClassVar = {AFTER_LLM: 200}  # before anybody rewrites the reply

    def __init__(
        self, max_entries: int = 1000, *, ttl: float | None = None, purposes: Iterable[str] | None = None
    ) -> None:
        self.max_entries = check_integer(max_entries, "max_entries")
        self.ttl = None if ttl is None else check_seconds(ttl, "ttl")
        if self.ttl == 0:
            raise RegistrationError("ttl=0 would keep nothing: leave it out, or give seconds")
        self.purposes = None if purposes is None else frozenset(check_names(purposes, "purposes"))
        self.hits = self.misses = 0
        self._kept: OrderedDict[bytes, tuple[ModelResponse, float]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget every reply."""
        with self._lock:
            self._kept.clear()

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Serve a request at ``before_llm``, keep a reply at ``after_llm``."""
        if self.purposes is not None and payload.purpose not in self.purposes:
            return None
        # A call has no id of its own: calls of one purpose in one step may be taken for each other, which costs a miss.
        used: dict[Any, set[bytes]] = ctx.hook_state.setdefault(id(self), {})
        replied = used.setdefault((payload.hop, payload.purpose), set())
        if point == BEFORE_LLM:
            return self._serve(ctx, payload, replied)
        self._keep(ctx, payload, replied)
        return None

    def _serve(self, ctx: Any, request: ModelRequest, replied: set[bytes]) -> HookResult | None:
        if request.attempt > 1:
            with self._lock:
                for key in replied:
                    self._kept.pop(key, None)
            return None
        key, now = _key(ctx, request), ctx.clock.monotonic()
        with self._lock:
            reply, until = self._kept.get(key, (None, 0.0))
            if reply is not None and now >= until:
                del self._kept[key]
                reply = None
            if reply is None:
                self.misses += 1
                return None
            self.hits += 1
            self._kept.move_to_end(key)
        replied.add(key)
        return HookResult.answer(reply, reason="answered before")

    def _keep(self, ctx: Any, reply: ModelReply, replied: set[bytes]) -> None:
        if reply.source != "model" or not _is_whole(reply) or _is_namesake(ctx, reply):
            return
        key = _key(ctx, reply.request)
        until = float("inf") if self.ttl is None else ctx.clock.monotonic() + self.ttl
        replied.add(key)
        with self._lock:
            self._kept[key] = to_response(reply), until
            self._kept.move_to_end(key)
            if len(self._kept) > self.max_entries:
                self._kept.popitem(last=False)


def _is_namesake(ctx: Any, reply: ModelReply) -> bool:
    """Whether it is from another provider's model with the name of the run's own: requests do not tell them apart."""
    own = ctx.llm
    return own is not None and reply.request.model == own.name and reply.provider != own.provider


def _is_whole(reply: ModelReply) -> bool:
    if any(call.raw is not None for call in reply.tool_calls):
        return False
    return reply.finish_reason in ("stop", "tool_calls") and bool(reply.content or reply.tool_calls)


def _key(ctx: Any, request: ModelRequest) -> bytes:
    """What the model would be given, with tool calls counted instead of named: their ids differ from run to run."""
    calls: dict[str | None, int] = {}

    def number(id: str | None) -> int:
        return calls.setdefault(id, len(calls))

    messages = [
        (
            message.role, message.content, message.name, message.is_error,
            [(number(call.id), call.name, call.arguments, call.raw) for call in message.tool_calls],
            None if message.call_id is None else number(message.call_id),
        )
        for message in request.messages
    ]  # fmt: skip
    provider = "" if ctx.llm is None else ctx.llm.provider
    parts = (
        provider, request.model, messages, request.tools, request.params, request.response_format, request.tool_choice,
    )  # fmt: skip
    try:
        text = _encode(parts)
    except UnicodeEncodeError:  # lone surrogates, which only the other encoder can write
        text = json.dumps(plain(parts), sort_keys=True).encode()
    return sha256(text).digest()
