"""Anthropic's models, and every server that speaks Anthropic's API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from .._kernel.values import Message
from .dialects.messages import Messages
from .failures import Source
from .remote import RemoteModel, check, key_for, timeouts
from .tokens import count, estimate

URL = "https://api.anthropic.com"
_BYTES_PER_TOKEN = 3.5


class AnthropicModel(RemoteModel):
    """A model that is asked through Anthropic's Messages API.

    Args:
        name: the model's name.
        base_url: where the API is, if not at Anthropic; else ``ANTHROPIC_BASE_URL`` says.
        api_key: the key; else ``ANTHROPIC_API_KEY`` or ``ANTHROPIC_AUTH_TOKEN`` says. With a base URL, none is needed.
        timeout: how many seconds of silence to wait for; ``None`` for no limit.
        max_retries: how often the client itself tries again after a failure that may pass.
        max_tokens: how long a reply may get, where ``params`` do not say.

    Raises:
        RegistrationError: an argument is wrong.
        NotInstalledError: the package ``anthropic`` is missing.
        AuthError: there is no key, and no base URL either.
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
    ) -> None:
        base_url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or None
        check("anthropic", name, base_url, timeout, max_retries)
        key = key_for("anthropic", api_key, base_url, "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
        source = Source("anthropic", base_url or URL, "ANTHROPIC_API_KEY", timeout, (key,))

        def connect(http_client: Any) -> Any:
            from anthropic import AsyncAnthropic

            return AsyncAnthropic(
                api_key=key, base_url=source.url, timeout=timeouts(source), max_retries=max_retries,
                http_client=http_client,
            )  # fmt: skip

        super().__init__(name, source, Messages(max_tokens), connect, organization_header="anthropic-organization-id")

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """About how many tokens it takes: an estimate from its length, a little on the high side for English.

        Anthropic publishes no tokenizer, and asking its server takes a request.
        """
        return count(content, partial(estimate, bytes_per_token=_BYTES_PER_TOKEN))
