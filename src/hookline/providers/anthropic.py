"""Anthropic's models, and other servers with Anthropic's API."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from .._kernel.values import Message
from .apis.messages import MessagesApi
from .error_mapping import Endpoint
from .prices import Price
from .remote import RemoteModel, check, client_timeout, find_api_key
from .tokens import count, estimate

URL = "https://api.anthropic.com"
_BYTES_PER_TOKEN = 3.5


class AnthropicModel(RemoteModel):
    """A model behind Anthropic's Messages API.

    Args:
        name: the model's name.
        base_url: the base URL of the API; if omitted, ``ANTHROPIC_BASE_URL`` or Anthropic's own server.
        api_key: the API key; if omitted, ``ANTHROPIC_API_KEY`` or ``ANTHROPIC_AUTH_TOKEN``. Optional with a base URL.
        timeout: how many seconds to wait for data; ``None`` for no limit.
        max_retries: how often the client retries after a temporary failure.
        max_tokens: the maximum length of a reply if ``params`` has no such limit.
        attachments: the media types that the model takes, such as ``["image/png"]``, or ``[]`` for none; by default
            those of the API.
        price: the price of the model; from the price list if omitted.

    Raises:
        RegistrationError: an argument is invalid.
        NotInstalledError: the package ``anthropic`` is missing.
        AuthError: there is neither a key nor a base URL.

    Example::

        agent = Agent("bob", llm=AnthropicModel("claude-sonnet-4-5", max_tokens=8000))
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = 600.0,
        max_retries: int = 2,
        max_tokens: int = 4096,
        attachments: Iterable[str] | None = None,
        price: Price | None = None,
    ) -> None:
        base_url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or None
        check("anthropic", name, base_url, timeout, max_retries)
        key = find_api_key("anthropic", api_key, base_url, "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
        endpoint = Endpoint("anthropic", base_url or URL, "ANTHROPIC_API_KEY", timeout, (key,))

        def connect(http_client: Any) -> Any:
            from anthropic import AsyncAnthropic

            return AsyncAnthropic(
                api_key=key,
                base_url=endpoint.url,
                timeout=client_timeout(endpoint),
                max_retries=max_retries,
                http_client=http_client,
            )

        super().__init__(
            name,
            endpoint,
            MessagesApi(max_tokens),
            connect,
            organization_header="anthropic-organization-id",
            attachments=attachments,
            price=price,
        )

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Estimate the number of tokens from the length, a little high for English.

        Anthropic publishes no tokenizer, and its server counts only with a request.
        """
        return count(content, partial(estimate, bytes_per_token=_BYTES_PER_TOKEN))
