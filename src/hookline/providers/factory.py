"""Create models by name: ``local``, ``openai:NAME``, ``anthropic:NAME``, ``scripted:FILE``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Literal, TypedDict

from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from ..models.protocol import Model

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ModelOptions(TypedDict, total=False):
    """The keyword options of :func:`get_model`. Each kind of model accepts some of them and rejects the others."""

    base_url: str | None
    """``openai``, ``anthropic``: the base URL of the server."""
    api_key: str | None
    """``openai``, ``anthropic``: the API key; from the environment if omitted."""
    timeout: float | None
    """``openai``, ``anthropic``: how many seconds to wait for data; ``None`` for no limit."""
    max_retries: int
    """``openai``, ``anthropic``: how often the client retries after a temporary failure."""
    api: Literal["chat", "responses"]
    """``openai``: the API to use, ``"chat"`` or ``"responses"``."""
    attachments: Iterable[str] | None
    """``openai``, ``anthropic``: the media types of attachments that the model takes; by default those of the API."""
    organization: str | None
    """``openai``: the organization to bill."""
    max_tokens: int
    """``anthropic``: the maximum length of a reply, in tokens."""
    context: int | None
    """``local``: the size of the context window, in tokens."""
    report: Callable[[int, int], None] | None
    """``local``: called during a download of weights with the bytes downloaded so far and the total."""
    delay: float
    """``scripted``: seconds to wait before each reply."""
    loop: bool
    """``scripted``: whether to start again after the last turn."""


_FACTORIES = {
    "local": "local.model:LocalModel",
    "openai": "openai:OpenAIModel",
    "anthropic": "anthropic:AnthropicModel",
    "scripted": "script_file:script_model",
}


def get_model(name: str, **options: Unpack[ModelOptions]) -> Model:
    """Create a model by name.

    This is cheap: weights are loaded and servers are contacted at the first request.

    Args:
        name: ``local`` (the embedded model), ``local:PATH`` (a GGUF file), ``openai:NAME``,
            ``anthropic:NAME`` or ``scripted:FILE``.
        options: options of that kind of model, such as ``base_url`` and ``api_key``.

    Raises:
        RegistrationError: the kind of model or an option is unknown.
        NotInstalledError: the vendor's package is missing.
        AuthError: the model needs a key and there is none.

    Example::

        model = get_model("openai:llama3.2", base_url="http://localhost:11434/v1")
    """
    kind, _, rest = name.partition(":")
    if kind not in _FACTORIES:
        known = "local, local:PATH, openai:NAME, anthropic:NAME, scripted:FILE"
        raise RegistrationError(f"unknown kind of model {kind!r}.{did_you_mean(kind, _FACTORIES)} Use one of: {known}")
    module, _, maker = _FACTORIES[kind].partition(":")
    make: Callable[..., Model] = getattr(import_module(f"{__package__}.{module}"), maker)
    takes = list(signature(make).parameters)[1:]
    if unknown := [option for option in options if option not in takes]:
        raise RegistrationError(f"a {kind!r} model has no option {', '.join(unknown)}; it has: {', '.join(takes)}")
    return make(rest, **options)


def resolve_model(given: Model | str) -> Model:
    """Return a given model, or create one from its name.

    Raises:
        RegistrationError: the argument is not a model; and as for :func:`get_model`.
    """
    made = get_model(given) if isinstance(given, str) else given
    lacks = [name for name in ("name", "provider", "complete", "count_tokens") if not hasattr(made, name)]
    if lacks or isinstance(made, type):
        problem = "it is a class: create an instance" if isinstance(made, type) else f"it lacks {', '.join(lacks)}"
        raise RegistrationError(f"{given!r} is not a model ({problem}); see hookline.models.Model")
    return made
