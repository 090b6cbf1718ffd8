"""Create models by name: ``local``, ``openai:NAME``, ``groq:NAME``, ``scripted:FILE`` and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Literal, TypedDict

from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from ..models.protocol import Model
from .prices import Price

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ModelOptions(TypedDict, total=False):
    """The keyword options of :func:`get_model`. Each kind of model accepts some of them and rejects the others."""

    base_url: str | None
    """All vendors: the base URL of the server."""
    api_key: str | None
    """All vendors with API keys: the key; from the environment if omitted."""
    timeout: float | None
    """All vendors: how many seconds to wait for data; ``None`` for no limit."""
    max_retries: int
    """All vendors: how often the client retries after a temporary failure."""
    price: Price | None
    """All vendors: the price of the model; from the price list if omitted."""
    api: Literal["chat", "responses"]
    """``openai``: the API to use, ``"chat"`` or ``"responses"``."""
    attachments: Iterable[str] | None
    """All vendors: the media types of attachments that the model takes; by default those of the API."""
    organization: str | None
    """``openai``: the organization to bill."""
    max_tokens: int
    """``anthropic``: the maximum length of a reply, in tokens."""
    region: str | None
    """``bedrock``: the region; from the environment if omitted."""
    project: str | None
    """``vertex``: the project; from the environment if omitted."""
    location: str | None
    """``vertex``: the region; from the environment if omitted."""
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
    "gemini": "",
    "mistral": "",
    "groq": "",
    "deepseek": "",
    "xai": "",
    "together": "",
    "fireworks": "",
    "openrouter": "",
    "azure": "",
    "bedrock": "bedrock:BedrockModel",
    "vertex": "vendors:vertex_model",
    "ollama": "",
    "lmstudio": "",
    "vllm": "",
    "scripted": "script_file:script_model",
}
"""The function for each kind of model; where it is empty, a row in the table of :mod:`.vendors` is enough."""

_SAME = {
    "azure-openai": "azure",
    "aws": "bedrock",
    "claude": "anthropic",
    "gpt": "openai",
    "google": "gemini",
    "google-gla": "gemini",
    "google-vertex": "vertex",
    "grok": "xai",
    "x-ai": "xai",
    "lm-studio": "lmstudio",
    "lm_studio": "lmstudio",
    "mistralai": "mistral",
    "togetherai": "together",
}
"""Other names of vendors, for suggestions."""
_FAMILIES = {
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude-": "anthropic",
    "gemini-": "gemini",
    "mistral-": "mistral",
    "codestral-": "mistral",
    "deepseek-": "deepseek",
    "grok-": "xai",
}
"""The vendors of models by the beginning of their names, for suggestions."""


def model_kinds() -> list[str]:
    """Return the kinds of models, as they are written in front of the colon."""
    return list(_FACTORIES)


def get_model(name: str, **options: Unpack[ModelOptions]) -> Model:
    """Create a model by name.

    This is cheap: weights are loaded and servers are contacted at the first request.

    Args:
        name: ``local`` (the embedded model), ``local:PATH`` (a GGUF file), ``VENDOR:NAME`` with one of the vendors
            ``openai``, ``anthropic``, ``gemini``, ``mistral``, ``groq``, ``deepseek``, ``xai``, ``together``,
            ``fireworks``, ``openrouter``, ``azure``, ``bedrock``, ``vertex``, ``ollama``, ``lmstudio`` and ``vllm``, or
            ``scripted:FILE``.
        options: options of that kind of model, such as ``base_url`` and ``api_key``.

    Raises:
        RegistrationError: the kind of model or an option is unknown.
        NotInstalledError: the vendor's package is missing.
        AuthError: the model needs a key and there is none.

    Example::

        model = get_model("groq:llama-3.3-70b-versatile", timeout=60)
    """
    kind, _, rest = name.partition(":")
    if kind not in _FACTORIES:
        likely = _with_vendor(name) or _SAME.get(kind.lower())
        hint = f" Did you mean {likely!r}?" if likely else did_you_mean(kind, _FACTORIES)
        raise RegistrationError(f"unknown kind of model {kind!r}.{hint} Use one of: {_forms(_FACTORIES)}")
    make = _factory(kind)
    takes = [option for option in signature(make).parameters if option in ModelOptions.__annotations__]
    if unknown := [option for option in options if option not in takes]:
        raise RegistrationError(f"a {kind!r} model has no option {', '.join(unknown)}; it has: {', '.join(takes)}")
    return make(rest, **options)


def _with_vendor(name: str) -> str:
    """Return the name of a model that was given without its vendor, or as ``VENDOR/NAME``; empty if it is unknown."""
    vendor, _, rest = name.partition("/")
    if rest and vendor.lower() in _FACTORIES:
        return f"{vendor.lower()}:{rest}"
    found = next((vendor for start, vendor in _FAMILIES.items() if name.lower().startswith(start)), "")
    return f"{found}:{name}" if found else ""


def _factory(kind: str) -> Callable[..., Model]:
    if not _FACTORIES[kind]:
        from .vendors import VendorModel

        return partial(VendorModel, kind)
    module, _, maker = _FACTORIES[kind].partition(":")
    make: Callable[..., Model] = getattr(import_module(f"{__package__}.{module}"), maker)
    return make


def _forms(kinds: Iterable[str]) -> str:
    own = {"local": "local, local:PATH", "scripted": "scripted:FILE"}
    return ", ".join(own.get(kind, f"{kind}:NAME") for kind in kinds)


_prices: ContextVar[Mapping[str, Price]] = ContextVar("hookline_prices")


@contextmanager
def use_prices(prices: Mapping[str, Price]) -> Iterator[None]:
    """Give models that are made by name in the block these prices: for hooks that make a model of their own."""
    token = _prices.set(prices)
    try:
        yield
    finally:
        _prices.reset(token)


def resolve_model(given: Model | str) -> Model:
    """Return a given model, or create one from its name, with its price in :func:`use_prices`.

    Raises:
        RegistrationError: the argument is not a model; and as for :func:`get_model`.
    """
    if isinstance(given, str):
        price = _prices.get({}).get(given)
        made = get_model(given) if price is None else get_model(given, price=price)
    else:
        made = given
    lacks = [name for name in ("name", "provider", "complete", "count_tokens") if not hasattr(made, name)]
    if lacks or isinstance(made, type):
        problem = "it is a class: create an instance" if isinstance(made, type) else f"it lacks {', '.join(lacks)}"
        raise RegistrationError(f"{given!r} is not a model ({problem}); see hookline.models.Model")
    return made
