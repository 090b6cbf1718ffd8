"""OpenAI's models, and other servers with OpenAI's API."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from .._kernel.values import Message
from .apis.chat_completions import ChatCompletionsApi
from .apis.responses import ResponsesApi
from .error_mapping import Endpoint
from .prices import Price
from .remote import RemoteModel, check, client_timeout, find_api_key
from .tokens import count, openai_counter

URL = "https://api.openai.com/v1"
Api = Literal["chat", "responses"]


class OpenAIModel(RemoteModel):
    """A model behind OpenAI's API: that of OpenAI itself, or of another server such as llama.cpp.

    Args:
        name: the model's name on its server.
        api: ``"chat"`` (Chat Completions, which all these servers have) or ``"responses"``.
        base_url: the base URL of the API; if omitted, ``OPENAI_BASE_URL`` or OpenAI's own server.
        api_key: the API key; if omitted, ``OPENAI_API_KEY``. Optional with a base URL.
        organization: the organization to bill; if omitted, ``OPENAI_ORG_ID``.
        timeout: how many seconds to wait for data; ``None`` for no limit.
        max_retries: how often the client retries after a temporary failure.
        attachments: the media types that the model takes, such as ``["image/png"]``, or ``[]`` for none; by default
            those of the API.
        price: the price of the model; from the price list if omitted.

    Raises:
        RegistrationError: an argument is invalid.
        NotInstalledError: the package ``openai`` is missing.
        AuthError: there is neither a key nor a base URL.

    Example::

        agent = Agent("bob", llm=OpenAIModel("llama3.2", base_url="http://localhost:8080/v1"))
    """

    def __init__(
        self,
        name: str,
        *,
        api: Api = "chat",
        base_url: str | None = None,
        api_key: str | None = None,
        organization: str | None = None,
        timeout: float | None = 600.0,
        max_retries: int = 2,
        attachments: Iterable[str] | None = None,
        price: Price | None = None,
    ) -> None:
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        check("openai", name, base_url, timeout, max_retries)
        if api not in get_args(Api):
            raise RegistrationError(
                f"api= must be 'chat' or 'responses', not {api!r}.{did_you_mean(str(api), get_args(Api))}"
            )
        key = find_api_key("openai", api_key, base_url, "OPENAI_API_KEY")
        organization = organization or os.environ.get("OPENAI_ORG_ID") or None
        endpoint = Endpoint("openai", base_url or URL, "OPENAI_API_KEY", timeout, (key,))

        def connect(http_client: Any) -> Any:
            from openai import AsyncOpenAI

            return AsyncOpenAI(
                api_key=key,
                base_url=endpoint.url,
                organization=organization,
                timeout=client_timeout(endpoint),
                max_retries=max_retries,
                http_client=http_client,
            )

        at_openai = urlsplit(endpoint.url).hostname == urlsplit(URL).hostname
        chat = ChatCompletionsApi("max_completion_tokens" if at_openai else "max_tokens")
        super().__init__(
            name,
            endpoint,
            chat if api == "chat" else ResponsesApi(),
            connect,
            organization=organization or "",
            organization_header="openai-organization",
            attachments=attachments,
            price=price,
        )

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Count tokens with OpenAI's tokenizer if ``bpe-openai`` is installed, else estimate them.

        For models other than OpenAI's own the result is always an estimate.
        """
        return count(content, openai_counter(self.name))
