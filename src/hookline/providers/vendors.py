"""Models by the name of their vendor, at servers with OpenAI's API: one table of addresses, keys and quirks."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .._base.errors import is_installed
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.values import Message
from ..models.errors import AuthError, NotInstalledError
from .apis.attachments import IMAGES
from .apis.chat_completions import ChatCompletionsApi
from .apis.compatible import CompatibleApi, Quirks
from .error_mapping import Endpoint
from .prices import Price
from .remote import RemoteModel, check, client_timeout, find_api_key
from .tokens import count, openai_counter

_SOUNDS = ("audio/wav", "audio/mpeg")
_ALL = ChatCompletionsApi.attachment_types
_GOOGLE = Quirks(echo_calls=("extra_content",), signed_calls=True, attachments=(*IMAGES, *_SOUNDS, "text/*"))


def _ollama_url(given: str | None) -> str | None:
    """Return the given URL, or that of ``OLLAMA_HOST``, the address of the server as for Ollama itself."""
    host = os.environ.get("OLLAMA_HOST", "").strip()
    if given or not host:
        return given
    parts = urlsplit((host if "://" in host else f"http://{host}").replace("://0.0.0.0", "://127.0.0.1"))
    port = "" if parts.port or parts.scheme == "https" else ":11434"
    return f"{parts.scheme}://{parts.netloc}{port}/v1"


def _azure_url(given: str | None) -> str:
    """Return the URL of the API at the endpoint of a resource, such as ``https://NAME.openai.azure.com``."""
    url = given or os.environ.get("AZURE_OPENAI_ENDPOINT") or ""
    if not url:
        raise RegistrationError(
            "azure needs the endpoint of your resource: set AZURE_OPENAI_ENDPOINT, or pass base_url=, such as "
            "https://NAME.openai.azure.com"
        )
    try:
        is_resource = urlsplit(url).path.strip("/") in ("", "openai")
    except ValueError:
        return url  # which is reported like other bad addresses
    return f"{url.rstrip('/').removesuffix('/openai')}/openai/v1" if is_resource else url


class Vendor(msgspec.Struct, frozen=True):
    """A vendor whose server has OpenAI's Chat Completions.

    Args:
        title: its name for people.
        url: the base URL of its API; empty if each customer has another one.
        keys: the environment variables that may contain the API key.
        quirks: how its API differs from that of OpenAI.
        is_local: whether the server usually runs on this machine, without a key.
        find_url: returns the base URL for the one that is given, if more than ``url`` is possible.
        key_header: a header that contains the key too.
    """

    title: str
    url: str
    keys: tuple[str, ...]
    quirks: Quirks = Quirks()
    is_local: bool = False
    find_url: Callable[[str | None], str | None] | None = None
    key_header: str = ""


VENDORS: Mapping[str, Vendor] = {
    "gemini": Vendor(
        "Google Gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        _GOOGLE,
    ),
    "mistral": Vendor(
        "Mistral",
        "https://api.mistral.ai/v1",
        ("MISTRAL_API_KEY",),
        Quirks(seed="random_seed", stream_options=False, short_ids=True),
    ),
    "groq": Vendor(
        "Groq", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), Quirks(max_tokens="max_completion_tokens")
    ),
    "deepseek": Vendor(
        "DeepSeek",
        "https://api.deepseek.com/v1",
        ("DEEPSEEK_API_KEY",),
        Quirks(schemas=False, echo=("reasoning_content",), attachments=("text/*",)),
    ),
    "xai": Vendor("xAI", "https://api.x.ai/v1", ("XAI_API_KEY",), Quirks(max_tokens="max_completion_tokens")),
    "together": Vendor("Together", "https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
    "fireworks": Vendor("Fireworks", "https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY",)),
    "openrouter": Vendor(
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        ("OPENROUTER_API_KEY",),
        Quirks(echo=("reasoning_details",), attachments=_ALL),
    ),
    "azure": Vendor(
        "Azure OpenAI",
        "",
        ("AZURE_OPENAI_API_KEY",),
        Quirks(max_tokens="max_completion_tokens", attachments=_ALL),
        find_url=_azure_url,
        key_header="api-key",
    ),
    "vertex": Vendor("Google Vertex AI", "", ("GOOGLE_APPLICATION_CREDENTIALS",), _GOOGLE),
    "ollama": Vendor(
        "Ollama",
        "http://localhost:11434/v1",
        ("OLLAMA_API_KEY",),
        Quirks(image_urls=False),
        is_local=True,
        find_url=_ollama_url,
    ),
    "lmstudio": Vendor(
        "LM Studio",
        "http://localhost:1234/v1",
        ("LMSTUDIO_API_KEY",),
        Quirks(named_choice=False, image_urls=False),
        is_local=True,
    ),
    "vllm": Vendor(
        "vLLM",
        "http://localhost:8000/v1",
        ("VLLM_API_KEY",),
        Quirks(attachments=(*IMAGES, *_SOUNDS, "text/*")),
        is_local=True,
    ),
}
"""The vendors by the name in front of the colon: ``groq:NAME``."""


class VendorModel(RemoteModel):
    """A model of a vendor in :data:`VENDORS`, called with OpenAI's client.

    Args:
        vendor: a key of :data:`VENDORS`.
        name: the model's name at the vendor.
        base_url: the base URL of the API; if omitted, ``VENDOR_BASE_URL`` or that of the vendor.
        api_key: the API key; if omitted, that in the vendor's environment variable.
        timeout: how many seconds to wait for data; ``None`` for no limit.
        max_retries: how often the client retries after a temporary failure.
        price: the price of the model; from the price list if omitted.
        attachments: the media types that the model takes; by default those of the vendor's API.
        token: returns the access token for each request, for a vendor without API keys.

    Raises:
        RegistrationError: an argument is invalid.
        NotInstalledError: the package ``openai`` is missing.
        AuthError: there is no key, and the vendor needs one.
    """

    def __init__(
        self,
        vendor: str,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = 600.0,
        max_retries: int = 2,
        price: Price | None = None,
        attachments: Iterable[str] | None = None,
        token: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        about = VENDORS[vendor]
        base_url = base_url or os.environ.get(f"{vendor.upper()}_BASE_URL") or None
        if about.find_url is not None:
            base_url = about.find_url(base_url)
        check(vendor, name, base_url, timeout, max_retries, package="openai")
        needs_no_key = token is not None or about.is_local
        own_server = None if about.key_header else base_url or (about.url if needs_no_key else None)
        key = find_api_key(vendor, api_key, own_server, *about.keys)
        headers = {about.key_header: key} if about.key_header else {}
        endpoint = Endpoint(vendor, base_url or about.url, about.keys[0], timeout, (key,), "openai")

        def connect(http_client: Any) -> Any:
            from openai import AsyncOpenAI

            return AsyncOpenAI(
                api_key=token or key,
                base_url=endpoint.url,
                organization="",  # not that of OpenAI, which the client would take from the environment
                project="",
                timeout=client_timeout(endpoint),
                max_retries=max_retries,
                default_headers={**headers, "OpenAI-Organization": _omitted(), "OpenAI-Project": _omitted()},
                http_client=http_client,
            )

        super().__init__(name, endpoint, CompatibleApi(about.quirks), connect, price=price, attachments=attachments)

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Estimate the number of tokens, with a tokenizer of OpenAI if ``bpe-openai`` is installed."""
        return count(content, openai_counter(self.name))


def _omitted() -> Any:
    from openai import Omit

    return Omit()


def vertex_model(
    name: str,
    *,
    project: str | None = None,
    location: str | None = None,
    base_url: str | None = None,
    timeout: float | None = 600.0,
    max_retries: int = 2,
    price: Price | None = None,
    attachments: Iterable[str] | None = None,
) -> VendorModel:
    """Make the model for ``vertex:NAME``, with the credentials that Google's own library finds.

    Args:
        name: the name of the model; ``google/`` is added to a name without a publisher.
        project: the project; if omitted, ``GOOGLE_CLOUD_PROJECT``.
        location: the region; if omitted, ``GOOGLE_CLOUD_LOCATION`` or ``global``.
        base_url: another address of the API.
        timeout: how many seconds to wait for data.
        max_retries: how often the client retries.
        price: the price of the model.
        attachments: the media types that the model takes.
    """
    for module, package in (("google.auth", "google-auth"), ("requests", "requests")):
        if not is_installed(module):
            raise NotInstalledError(package, "vertex")
    base_url = base_url or os.environ.get("VERTEX_BASE_URL") or None
    if base_url is None:
        project = project or os.environ.get("GOOGLE_CLOUD_PROJECT")
        if not project:
            raise RegistrationError("vertex needs a project: set GOOGLE_CLOUD_PROJECT, or pass project=")
        location = location or os.environ.get("GOOGLE_CLOUD_LOCATION") or "global"
        region = "" if location == "global" else f"{location}-"
        base_url = (
            f"https://{region}aiplatform.googleapis.com/v1/projects/{project}/locations/{location}/endpoints/openapi"
        )
    name = f"google/{name}" if name and "/" not in name else name
    return VendorModel(
        "vertex",
        name,
        base_url=base_url,
        timeout=timeout,
        max_retries=max_retries,
        price=price,
        attachments=attachments,
        token=_GoogleToken(),
        api_key="unused",
    )


class _GoogleToken:
    """Returns an access token of Google Cloud, and refreshes it before it expires."""

    def __init__(self) -> None:
        self._credentials: Any = None

    async def __call__(self) -> str:
        return await in_thread(self._token)  # type: ignore[no-any-return]

    def _token(self) -> str:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        try:
            if self._credentials is None:
                scopes = ["https://www.googleapis.com/auth/cloud-platform"]
                self._credentials, _ = google.auth.default(scopes=scopes)
            if not self._credentials.valid:
                self._credentials.refresh(Request())
        except GoogleAuthError as error:
            raise AuthError(
                f"vertex has no credentials for Google Cloud: {error}. Run 'gcloud auth application-default login', "
                "or set GOOGLE_APPLICATION_CREDENTIALS"
            ) from None
        return str(self._credentials.token)
