"""``ctx.llm``: the model for hooks and tools, behind the same hooks and budget as the loop's own calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from .._base.frozen import EMPTY, json_text
from .._base.workers import in_thread
from .._kernel.errors import HooklineError
from .._kernel.payloads import ModelReply, ModelRequest
from .._kernel.values import Message, ToolSpec
from ..models.protocol import Model
from .world import World


class GatedModel:
    """An async handle on the run's model (DESIGN 4.8)."""

    __slots__ = ("_ask", "_model", "_world")

    def __init__(
        self, model: Model, ask: Callable[[Model, ModelRequest], Awaitable[ModelReply]], world: World | None = None
    ) -> None:
        self._model = model
        self._ask = ask
        self._world = world

    def using(self, model: Model) -> GatedModel:
        """The same handle on another model: its calls pass the same hooks and count in the same budget."""
        return GatedModel(model, self._ask, self._world)

    @property
    def model(self) -> Model:
        """The model behind it, for an agent of your own; what is asked of it directly passes no hooks."""
        return self._model

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
        return self._counter.count_tokens(content)

    estimate_tokens = count_tokens

    async def count_request(self, request: ModelRequest) -> int:
        """How many tokens a whole request takes, its tools too: exactly, where the model can tell."""
        return int(await in_thread(getattr(self._counter, "count_request", self._count_parts), request))

    @property
    def _counter(self) -> Model:
        """The model that counts tokens; in a replay, the counts come from the tape."""
        return self._model if self._world is None else self._world.model(self._model)

    def _count_parts(self, request: ModelRequest) -> int:
        tools = "".join(f"{tool.name} {tool.description} {json_text(tool.parameters)}\n" for tool in request.tools)
        return self.count_tokens(request.messages) + (self.count_tokens(tools) if tools else 0)

    def complete(
        self,
        messages: str | Sequence[Message],
        *,
        purpose: str = "hook",
        tools: Sequence[ToolSpec] = (),
        response_format: Mapping[str, Any] | None = None,
        tool_choice: str | None = None,
        params: Mapping[str, Any] = EMPTY,
    ) -> Awaitable[ModelReply]:
        """Ask the model. The call fires ``before_llm`` and ``after_llm`` and counts in the budget.

        Args:
            messages: a conversation (messages, or mappings of their fields), or one user message as text.
            purpose: what the call is for, as hooks see it.
            tools: tools the model may call; calls come back in the reply and are not run.
            response_format: a JSON schema for the reply.
            tool_choice: ``None``, ``"none"``, ``"required"`` or a tool's name.
            params: further settings for the model.

        Raises:
            CallRefusedError: the call was ended, stopped, out of budget, or failed.
            HooklineError: it was made from sync code.
        """
        if purpose == "step":
            raise HooklineError('purpose "step" is for the calls of the loop itself; name another')
        given = (Message("user", messages),) if isinstance(messages, str) else tuple(map(Message.of, messages))
        request = ModelRequest(
            given, tuple(tools), self.name, purpose=purpose, response_format=response_format,
            tool_choice=tool_choice, params=params,
        )  # fmt: skip
        return self._ask(self._model, request)
