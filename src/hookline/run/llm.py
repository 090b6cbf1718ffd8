"""``ctx.llm``: the model for hooks and tools, behind the same hooks and budget as the loop's own calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..base.frozen import EMPTY
from ..kernel.errors import CallRefused, HookError, HooklineError, ModelError
from ..kernel.payloads import ModelReply, ModelRequest
from ..kernel.values import Message, ToolSpec
from .causes import Ended, Stopped
from .model_call import call_model

if TYPE_CHECKING:
    from ..models.protocol import Model
    from .loop import Loop


class GatedModel:
    """An async handle on the run's model (DESIGN 4.8)."""

    __slots__ = ("_loop", "_model")

    def __init__(self, loop: Loop, model: Model) -> None:
        self._loop, self._model = loop, model

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def provider(self) -> str:
        """Who serves it."""
        return self._model.provider

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """How many tokens a text or some messages take."""
        return self._model.count_tokens(content)

    estimate_tokens = count_tokens

    def complete(
        self,
        messages: str | Sequence[Message],
        *,
        purpose: str = "hook",
        tools: Sequence[ToolSpec] = (),
        response_format: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] = EMPTY,
    ) -> Awaitable[ModelReply]:
        """Ask the model. The call fires ``before_llm`` and ``after_llm`` and counts in the budget.

        Args:
            messages: a conversation, or one user message as text.
            purpose: what the call is for, as hooks see it.
            tools: tools the model may call; calls come back in the reply and are not run.
            response_format: a JSON schema for the reply.
            params: further settings for the model.

        Raises:
            CallRefused: the call was ended, stopped, out of budget, or failed.
            HooklineError: it was made from sync code.
        """
        try:
            asyncio.get_running_loop()
            is_sync = self._loop.ctx.entry is not None
        except RuntimeError:
            is_sync = True
        if is_sync:
            raise HooklineError("ctx.llm is async: write this hook or tool as 'async def' and await ctx.llm.complete()")
        if purpose == "step":
            raise HooklineError('purpose "step" is for the calls of the loop itself; name another')
        given = (Message("user", messages),) if isinstance(messages, str) else tuple(messages)
        request = ModelRequest(
            given, tuple(tools), self.name, self._loop.hop, 1, purpose, response_format, None, params,
            self._loop.ctx.ids,
        )  # fmt: skip
        return self._call(request)

    async def _call(self, request: ModelRequest) -> ModelReply:
        try:
            self._loop.checkpoint(inside_step=False)
            return cast(ModelReply, await call_model(self._loop, request, self._model))
        except Ended as ended:
            message = f"the call was ended by hook {ended.hook!r}"
            raise CallRefused(message, status="ended", reply=ended.reply, hook=ended.reason or ended.hook) from ended
        except Stopped as stopped:
            raise CallRefused("the run is stopping", status="stopped") from stopped
        except HookError as error:
            raise CallRefused(str(error), status="failed", hook=error.hook) from error
        except ModelError as error:
            raise CallRefused(str(error), status="failed") from error
