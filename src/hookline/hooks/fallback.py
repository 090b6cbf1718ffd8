"""Ask another model when a model call fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._kernel.errors import CallRefusedError, ModelError, RegistrationError
from .._kernel.payloads import ErrorReport, ModelRequest
from .._kernel.points import ON_ERROR
from .._kernel.results import HookResult
from .._kernel.validation import check_error_names, check_integer
from ..models.protocol import Model
from ..providers.factory import resolve_model
from ._support.messages import to_response

PURPOSE = "fallback"
"""The ``purpose`` of the fallback model's calls."""


class FallbackModelHook:
    """Asks another model when a model call has failed, and answers the failed call with its reply.

    The fallback call passes all hooks and counts in the budget. The answer itself has no usage, so that nothing counts
    twice. The hook runs after :class:`ModelRetryHook`, so retries come first. If all fallback models fail, the
    original error remains.

    Example::

        agent = Agent("a", llm="openai:NAME", hooks=[FallbackModelHook("anthropic:NAME")])

    Args:
        model: a model, its name (see :func:`hookline.get_model`), or a list of models to try in this order.
        on: exception classes, or their names, to act on; by default all.
        attempts: number of attempts with each model.

    Raises:
        RegistrationError: there is no model, or an argument is invalid.
        NotInstalledError: the package of a model is not installed.
        AuthError: a model needs an API key and none is set.
    """

    points = frozenset({ON_ERROR})
    on_failure = "open"
    priority = 40

    def __init__(
        self,
        model: Model | str | Iterable[Model | str],
        *,
        on: Iterable[str | type[BaseException]] | None = None,
        attempts: int = 1,
    ) -> None:
        listed = isinstance(model, Iterable) and not isinstance(model, str) and not hasattr(model, "complete")
        self.models = tuple(map(resolve_model, model if listed else [model]))  # type: ignore[arg-type]
        if not self.models:
            raise RegistrationError(
                "model must be a model, a name such as 'openai:NAME', or a list of at least one of these"
            )
        self.on = None if on is None else check_error_names(on, "on")
        self.attempts = check_integer(attempts, "attempts")

    async def __call__(self, point: str, ctx: Any, failure: ErrorReport) -> HookResult | None:
        """Ask the fallback models in order, and answer with the first reply."""
        request = failure.request
        if request is None or failure.purpose == PURPOSE:
            return None
        if self.on is not None and failure.errors[0].type not in self.on:
            return None
        for model in (model for model in self.models for _ in range(self.attempts)):
            try:
                reply = await _ask(ctx, model, request)
            except CallRefusedError as refused:
                if refused.status == "ended":  # a hook ended the run because of the fallback reply
                    return HookResult.end(refused.reply, reason=refused.reason or refused.hook)
                if not isinstance(refused.__cause__, ModelError):
                    raise
            else:
                return HookResult.answer(to_response(reply), reason=f"{failure.errors[0].type}: {model.name} answers")
        return None


def _ask(ctx: Any, model: Model, request: ModelRequest) -> Any:
    return ctx.llm.using(model).complete(
        request.messages,
        purpose=PURPOSE,
        tools=request.tools,
        response_format=request.response_format,
        tool_choice=request.tool_choice,
        params=request.params,
    )
