"""Models by name: ``local``, ``openai:NAME``, ``anthropic:NAME``, ``scripted:FILE``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

from .._base.names import nearest
from .._kernel.errors import RegistrationError
from ..models.protocol import Model

_MAKERS = {
    "local": "local.model:LocalModel",
    "openai": "openai:OpenAIModel",
    "anthropic": "anthropic:AnthropicModel",
    "scripted": "script:script_model",
}


def get_model(name: str, **options: Any) -> Model:
    """The model that a name stands for.

    Nothing heavy happens yet: weights are loaded and servers are asked at the first request.

    Args:
        name: ``local`` (the embedded model), ``local:PATH`` (a GGUF file), ``openai:NAME``,
            ``anthropic:NAME`` or ``scripted:FILE``.
        options: whatever that kind of model takes, such as ``base_url`` and ``api_key``.

    Raises:
        RegistrationError: there is no such kind of model, or it does not take such an option.
        NotInstalled: its package is missing.
        AuthError: it needs a key and there is none.
    """
    kind, _, rest = name.partition(":")
    if kind not in _MAKERS:
        known = "local, local:PATH, openai:NAME, anthropic:NAME, scripted:FILE"
        raise RegistrationError(f"no kind of model {kind!r}.{nearest(kind, _MAKERS)} A model is one of: {known}")
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
