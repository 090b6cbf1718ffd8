"""OpenAI's models, and every server that speaks OpenAI's API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from .._kernel.values import Message
from .dialects.chat import Chat
from .dialects.responses import Responses
from .failures import Source
from .remote import RemoteModel, check, key_for, timeouts
from .tokens import count, openai_counter

URL = "https://api.openai.com/v1"
Api = Literal["chat", "responses"]


class OpenAIModel(RemoteModel):
    """A model that is asked through OpenAI's API: at OpenAI, Ollama, vLLM, llama.cpp, LM Studio, OpenRouter and others.

    Args:
        name: the model's name at its server.
        api: ``"chat"`` (Chat Completions, which all these servers have) or ``"responses"``.
        base_url: where the API is, if not at OpenAI; else ``OPENAI_BASE_URL`` says.
        api_key: the key; else ``OPENAI_API_KEY`` says. With a base URL, none is needed.
        organization: whom to bill; else ``OPENAI_ORG_ID`` says.
        timeout: how many seconds of silence to wait for; ``None`` for no limit.
        max_retries: how often the client itself tries again after a failure that may pass.

    Raises:
        RegistrationError: an argument is wrong.
        NotInstalledError: the package ``openai`` is missing.
        AuthError: there is no key, and no base URL either.
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
    ) -> None:
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        check("openai", name, base_url, timeout, max_retries)
        if api not in get_args(Api):
            raise RegistrationError(f"api {api!r} is not 'chat' or 'responses'.{did_you_mean(str(api), get_args(Api))}")
        key = key_for("openai", api_key, base_url, "OPENAI_API_KEY")
        organization = organization or os.environ.get("OPENAI_ORG_ID") or None
        source = Source("openai", base_url or URL, "OPENAI_API_KEY", timeout, (key,))

        def connect(http_client: Any) -> Any:
            from openai import AsyncOpenAI

            return AsyncOpenAI(
                api_key=key, base_url=source.url, organization=organization, timeout=timeouts(source),
                max_retries=max_retries, http_client=http_client,
            )  # fmt: skip

        at_openai = urlsplit(source.url).hostname == urlsplit(URL).hostname
        chat = Chat("max_completion_tokens" if at_openai else "max_tokens")
        super().__init__(
            name, source, chat if api == "chat" else Responses(), connect,
            organization=organization or "", organization_header="openai-organization",
        )  # fmt: skip

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """How many tokens it takes: with OpenAI's tokenizer if ``bpe-openai`` is installed, else an estimate.

        For other models than OpenAI's own it is an estimate in any case.
        """
        return count(content, openai_counter(self.name))
