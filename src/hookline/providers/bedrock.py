"""Models in Amazon Bedrock, through its Converse API and the official client, ``boto3``."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from .._base.workers import in_thread
from .._kernel.payloads import ModelRequest
from .._kernel.values import Message, ModelResponse, Usage
from ..models.attachments import check_attachments, with_usable_attachments
from ..models.errors import AuthError, BadRequestError, ModelTimeoutError, ProviderError
from . import remote
from .apis.common import ParsedReply, ToolNames
from .apis.converse import ConverseApi
from .error_mapping import (
    Endpoint,
    error_in_reply,
    incomplete_reply,
    require_valid_reply,
    unreachable_error,
)
from .prices import Price, cost_of, load_prices
from .remote import check, checked_types
from .tokens import count, estimate

if TYPE_CHECKING:
    from collections.abc import Iterator

_BYTES_PER_TOKEN = 3.5
_CREDENTIALS = "AWS_ACCESS_KEY_ID"
_END = object()


class BedrockModel:
    """A model in Amazon Bedrock.

    The client is synchronous, so it runs in worker threads: a cancelled request is abandoned, and ends when the server
    answers or after ``timeout``. Credentials are found by the client: environment, profile, role, or an API key of
    Bedrock in ``AWS_BEARER_TOKEN_BEDROCK``.

    Args:
        name: the id of a model or of an inference profile, such as ``eu.anthropic.claude-sonnet-4-5-20250929-v1:0``.
        region: the region; if omitted, that of the environment or the profile.
        base_url: another address of the API, such as that of a VPC endpoint.
        timeout: how many seconds to wait for data; ``None`` for no limit.
        max_retries: how often the client retries after a temporary failure.
        price: the price of the model; from the price list if omitted.
        attachments: the media types that the model takes; by default those of the API.

    Raises:
        RegistrationError: an argument is invalid.
        NotInstalledError: the package ``boto3`` is missing.

    Example::

        agent = Agent("bob", llm=get_model("bedrock:amazon.nova-lite-v1:0", region="eu-central-1"))
    """

    provider = "bedrock"

    def __init__(
        self,
        name: str,
        *,
        region: str | None = None,
        base_url: str | None = None,
        timeout: float | None = 600.0,
        max_retries: int = 2,
        price: Price | None = None,
        attachments: Iterable[str] | None = None,
    ) -> None:
        base_url = base_url or os.environ.get("BEDROCK_BASE_URL") or None
        check("bedrock", name, base_url, timeout, max_retries, package="boto3", extra="bedrock")
        self.name = name
        self._region, self._base_url, self._timeout, self._retries = region, base_url, timeout, max_retries
        self._price = price
        self._api = ConverseApi()
        self.attachment_types = checked_types(attachments, self._api.attachment_types)
        self.attachment_url_types = self._api.url_types
        self._client: Any = None
        self._making = threading.Lock()

    @property
    def base_url(self) -> str:
        """The base URL of the API; empty before the first request, unless it was given."""
        return self._base_url or ("" if self._client is None else str(self._client.meta.endpoint_url))

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole reply.

        Raises:
            ProviderError: the call failed; see the subclasses.
        """
        check_attachments(self, request.messages)
        request = with_usable_attachments(self, request)
        asked, names = request.model or self.name, ToolNames.from_request(request)
        body = self._api.body(request, asked, names)
        with self._mapped(asked):
            data = await in_thread(lambda: self._connect().converse(**body))
        return self._response(data, request, asked, names)

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Yield pieces of text as they arrive, then the whole reply. Closing the generator closes the connection.

        Raises:
            ProviderError: the call failed or the reply is incomplete; see the subclasses.
        """
        check_attachments(self, request.messages)
        request = with_usable_attachments(self, request)
        asked, names = request.model or self.name, ToolNames.from_request(request)
        body, reply = self._api.body(request, asked, names), self._api.stream()
        with self._mapped(asked):
            events = (await in_thread(lambda: self._connect().converse_stream(**body)))["stream"]
            source, length = iter(events), 0
            try:
                while (event := await in_thread(next, source, _END)) is not _END:
                    length += len(str(event))
                    if length > remote.MAX_REPLY_BYTES:
                        raise unreachable_error(
                            self._endpoint, f"its reply is longer than {remote.MAX_REPLY_BYTES:,} bytes"
                        )
                    with require_valid_reply(self._endpoint, asked):
                        piece = reply.add(event)
                    if piece:
                        yield piece
            finally:
                events.close()
        with require_valid_reply(self._endpoint, asked):
            data = reply.whole()
        if data is None:
            raise incomplete_reply(self._endpoint, asked)
        yield self._response(data, request, asked, names)

    def price(self, usage: Usage) -> float | None:
        """Return the price of these tokens in USD; ``None`` if it is unknown."""
        return self._cost(usage, self.name, None)

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Estimate the number of tokens from the length."""
        return count(content, partial(estimate, bytes_per_token=_BYTES_PER_TOKEN))

    @property
    def _endpoint(self) -> Endpoint:
        return Endpoint("bedrock", self.base_url, _CREDENTIALS, self._timeout, package="boto3")

    def _connect(self) -> Any:
        """Return the client. Making it imports a large package and may look for credentials in the network."""
        with self._making:
            if self._client is None:
                import boto3
                from botocore.config import Config

                load_prices()
                config = Config(
                    connect_timeout=10,
                    read_timeout=self._timeout,
                    retries={"max_attempts": self._retries, "mode": "standard"},
                )
                session = boto3.Session(region_name=self._region)  # the default one is not safe for threads
                self._client = session.client("bedrock-runtime", endpoint_url=self._base_url, config=config)
            return self._client

    @contextmanager
    def _mapped(self, model: str) -> Iterator[None]:
        """Convert the errors of the client to a :class:`~hookline.models.ProviderError`."""
        from botocore import exceptions as boto
        from botocore.eventstream import ParserError
        from botocore.parsers import ResponseParserError
        from urllib3.exceptions import HTTPError

        try:
            yield
        except boto.ClientError as error:
            raise self._failure(error.response, model) from None
        except boto.NoRegionError:
            raise BadRequestError("bedrock needs a region: set AWS_REGION, or pass region=") from None
        except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as error:
            raise AuthError(
                f"bedrock has no credentials: {error}. Run 'aws configure', or set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_BEARER_TOKEN_BEDROCK"
            ) from None
        except boto.ReadTimeoutError:
            raise ModelTimeoutError(
                f"bedrock sent no data for {model!r} within {self._timeout} s. Lower max_tokens, or raise timeout="
            ) from None
        except boto.ParamValidationError as error:
            raise BadRequestError(f"bedrock rejected the request to {model!r}: {error}") from None
        except (boto.BotoCoreError, HTTPError) as error:
            raise unreachable_error(self._endpoint, str(error)) from None
        except (ResponseParserError, ParserError):
            raise incomplete_reply(self._endpoint, model) from None

    def _failure(self, response: Any, model: str) -> ProviderError:
        error = response.get("Error") or {}
        status = (response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
        code = str(error.get("Code") or "")
        # In a stream, the names of errors begin with a small letter.
        known = {"code": code[:1].upper() + code[1:], "type": str(status or ""), "message": error.get("Message")}
        return error_in_reply(known, self._endpoint, model)

    def _response(self, data: Any, request: ModelRequest, asked: str, names: ToolNames) -> ModelResponse:
        with require_valid_reply(self._endpoint, asked):
            reply = self._api.read(data)
        if reply is None:
            raise incomplete_reply(self._endpoint, asked)
        usage = reply.usage
        if usage is None:
            answer = Message("assistant", reply.content, tuple(reply.tool_calls))
            usage = Usage(self.count_tokens(request.messages), self.count_tokens((answer,)))
        calls = tuple(call.replace(name=names.decode(call.name)) for call in reply.tool_calls)
        cost = self._cost(usage, asked, reply)
        return ModelResponse(reply.content, calls, usage, reply.finish_reason, cost, asked, self.provider)

    def _cost(self, usage: Usage, asked: str, reply: ParsedReply | None) -> float | None:
        if self._price is not None and asked == self.name:
            return self._price.of(usage)
        writes: Mapping[str, int] = {} if reply is None else reply.cache_writes
        return cost_of(usage, asked, url=self.base_url, cache_writes=writes)
