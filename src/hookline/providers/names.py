"""Models by name: ``local``, ``openai:NAME``, ``anthropic:NAME``, ``scripted:FILE``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Literal, TypedDict

from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from ..models.protocol import Model

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ModelOptions(TypedDict, total=False):
    """The keyword options of :func:`get_model`. Each kind of model takes some of them, and refuses the others."""

    base_url: str | None
    """``openai``, ``anthropic``: the server."""
    api_key: str | None
    """``openai``, ``anthropic``: the key; the environment's if left out."""
    timeout: float | None
    """``openai``, ``anthropic``: seconds of silence to wait for; ``None`` for no limit."""
    max_retries: int
    """``openai``, ``anthropic``: how often the client itself tries again after a failure that may pass."""
    api: Literal["chat", "responses"]
    """``openai``: which of its two APIs."""
    organization: str | None
    """``openai``: the organization to bill."""
    max_tokens: int
    """``anthropic``: the longest reply, in tokens."""
    context: int | None
    """``local``: the size of the context window, in tokens."""
    report: Callable[[int, int], None] | None
    """``local``: called while weights are fetched, with the bytes there are and the bytes there will be."""
    delay: float
    """``scripted``: seconds before each reply."""
    loop: bool
    """``scripted``: whether the script begins again after its last turn."""


_MAKERS = {
    "local": "local.model:LocalModel",
    "openai": "openai:OpenAIModel",
    "anthropic": "anthropic:AnthropicModel",
    "scripted": "script:script_model",
}


def get_model(name: str, **options: Unpack[ModelOptions]) -> Model:
    """The model that a name stands for.

    Nothing heavy happens yet: weights are loaded and servers are asked at the first request.

    Args:
        name: ``local`` (the embedded model), ``local:PATH`` (a GGUF file), ``openai:NAME``,
            ``anthropic:NAME`` or ``scripted:FILE``.
        options: whatever that kind of model takes, such as ``base_url`` and ``api_key``.

    Raises:
        RegistrationError: there is no such kind of model, or it does not take such an option.
        NotInstalledError: its package is missing.
        AuthError: it needs a key and there is none.
    """
    kind, _, rest = name.partition(":")
    if kind not in _MAKERS:
        known = "local, local:PATH, openai:NAME, anthropic:NAME, scripted:FILE"
        raise RegistrationError(f"no kind of model {kind!r}.{did_you_mean(kind, _MAKERS)} A model is one of: {known}")
    module, _, maker = _MAKERS[kind].partition(":")
    make: Callable[..., Model] = getattr(import_module(f"{__package__}.{module}"), maker)
    takes = list(signature(make).parameters)[1:]
    if unknown := [option for option in options if option not in takes]:
        raise RegistrationError(f"a model {kind!r} takes no {', '.join(unknown)}; it takes: {', '.join(takes)}")
    return make(rest, **options)


def as_model(given: Model | str) -> Model:
    """A model, or the one that a name stands for.

    Raises:
        RegistrationError: it is no model, and as for :func:`get_model`.
    """
    made = get_model(given) if isinstance(given, str) else given
    lacks = [name for name in ("name", "provider", "complete", "count_tokens") if not hasattr(made, name)]
    if lacks or isinstance(made, type):
        problem = "it is a class: make an instance" if isinstance(made, type) else f"it lacks {', '.join(lacks)}"
        raise RegistrationError(f"{given!r} is not a model ({problem}); see hookline.models.Model")
    return made
