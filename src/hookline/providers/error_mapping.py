"""Map the errors of the vendors' clients to Hookline's own."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .._base.text import error_text
from ..models.errors import (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    ModelTimeoutError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    UnknownModelError,
    UnreachableError,
)

_KINDS: dict[str, type[ProviderError]] = {
    "invalid_api_key": AuthError,
    "authentication_error": AuthError,
    "permission_error": AuthError,
    "model_not_found": UnknownModelError,
    "context_length_exceeded": ContextOverflowError,
    "exceed_context_size_error": ContextOverflowError,
    "request_too_large": ContextOverflowError,
    "rate_limit_error": RateLimitError,
    "rate_limit_exceeded": RateLimitError,
    "overloaded_error": OverloadedError,
    "server_error": OverloadedError,
    "api_error": OverloadedError,
    "timeout_error": ModelTimeoutError,
    "ThrottlingException": RateLimitError,
    "ServiceQuotaExceededException": RateLimitError,
    "AccessDeniedException": AuthError,
    "UnrecognizedClientException": AuthError,
    "InvalidSignatureException": AuthError,
    "ExpiredTokenException": AuthError,
    "ResourceNotFoundException": UnknownModelError,
    "ModelTimeoutException": ModelTimeoutError,
    "tool_use_failed": OverloadedError,  # at Groq: the model wrote a call that cannot be parsed
}
_NO_CREDIT = ("insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active")
_STATUSES: dict[int, type[ProviderError]] = {
    401: AuthError,
    402: AuthError,
    403: AuthError,
    404: UnknownModelError,
    408: ModelTimeoutError,
    413: ContextOverflowError,
    429: RateLimitError,
}
_TOO_LONG = re.compile(
    r"(prompt|input|request) is too long|maximum context length|context (length|window|size|limit)|too many tokens",
    re.I,
)
_NO_MODEL = re.compile(
    r"model\b.{0,100}(not found|does not exist|identifier is invalid)|not a valid model|invalid model", re.I | re.S
)
_BAD_KEY = re.compile(r"(incorrect|invalid) api key|api key (not valid|expired|not found)", re.I)
_NO_MONEY = re.compile(r"credit balance is too low|insufficient (credits?|balance|quota)", re.I)
_STATUS = re.compile(r"[1-5][0-9]{2}")
_MAX_MESSAGE = 300


class Endpoint(msgspec.Struct, frozen=True):
    """The server of a model, as error messages describe it.

    Args:
        provider: the vendor.
        url: the base URL of the API.
        key_name: the environment variable of the API key.
        timeout: how many seconds to wait for data.
        secrets: texts that no error message may contain.
        package: the package with the client, whose name is that of the vendor if empty.
    """

    provider: str
    url: str
    key_name: str
    timeout: float | None
    secrets: tuple[str, ...] = ()
    package: str = ""

    @property
    def client_package(self) -> str:
        """The name of the package with the client."""
        return self.package or self.provider

    @property
    def address(self) -> str:
        """The URL without parts that may be secret: user, password, query and fragment."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")

    def redact(self, text: str) -> str:
        """Return a vendor's message in one line, shortened, and without the key."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        text = " ".join(text.split()).rstrip(".")
        return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "…"


class _Failure(msgspec.Struct):
    """A failure as the vendor reported it: HTTP status, error codes, message, and the wait it asks for."""

    status: int | None
    kinds: list[str]
    text: str
    retry_after: float | None = None


@contextmanager
def map_errors(endpoint: Endpoint, model: str) -> Iterator[None]:
    """Convert the errors of a vendor's client to a :class:`~hookline.models.ProviderError`."""
    try:
        yield
    except ProviderError:
        raise
    except Exception as error:
        mapped = map_error(error, endpoint, model)
        if mapped is None:
            raise
        raise mapped from None  # the client's own error may contain the key


def map_error(error: Exception, endpoint: Endpoint, model: str) -> ProviderError | None:
    """Return Hookline's error for a vendor's error; ``None`` if the error is not from the vendor's client."""
    import httpx2

    sdk = import_module(endpoint.client_package)
    if isinstance(error, httpx2.ConnectTimeout) or isinstance(error.__cause__, httpx2.ConnectTimeout):
        return unreachable_error(endpoint, "the connection timed out")
    if isinstance(error, (sdk.APITimeoutError, httpx2.TimeoutException)):
        return ModelTimeoutError(
            f"{endpoint.provider} sent no data for {model!r} within {endpoint.timeout} s. Lower max_tokens, "
            "or raise timeout="
        )
    if isinstance(error, (sdk.APIConnectionError, httpx2.RequestError)):
        return unreachable_error(endpoint, _cause(error))
    if isinstance(error, sdk.APIError):
        response = getattr(error, "response", None)
        status = getattr(error, "status_code", None)
        headers = response.headers if response is not None else {}
        return _to_error(
            _failure_of(getattr(error, "body", None), error_text(error), status, retry_after(headers)), endpoint, model
        )
    return None


@contextmanager
def require_valid_reply(endpoint: Endpoint, model: str) -> Iterator[None]:
    """Convert the errors of parsing a malformed reply to :class:`~hookline.models.OverloadedError`."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        raise incomplete_reply(endpoint, model) from None  # these errors may contain the whole reply


def error_in_reply(body: Any, endpoint: Endpoint, model: str) -> ProviderError:
    """Return the error for a reply that reports one, although its HTTP status is a success."""
    return _to_error(_failure_of(body, "no message", None, None), endpoint, model)


def incomplete_reply(endpoint: Endpoint, model: str) -> OverloadedError:
    """Return the error for an incomplete reply."""
    return OverloadedError(f"{endpoint.provider} sent an incomplete reply for {model!r}. Try again later")


def unreachable_error(endpoint: Endpoint, why: str) -> UnreachableError:
    """Return the error for a server that does not answer, or does not offer the API."""
    return UnreachableError(
        f"cannot reach {endpoint.provider} at {endpoint.address}: {endpoint.redact(why)}. "
        "Check the network, that the server is running, and base_url= (--base-url)"
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds a vendor asks to wait, from its headers: milliseconds, seconds or a date."""
    for header, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            return max(0.0, float(headers[header]) / unit)
        except (KeyError, ValueError):
            continue
    try:
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time())
    except (KeyError, ValueError, TypeError):
        return None


def _cause(error: BaseException) -> str:
    """Return the message of the innermost cause of a connection error."""
    while True:
        below = error.__cause__ or error.__context__
        if below is None or not error_text(below):
            return error_text(error)
        error = below


def _failure_of(body: Any, text: str, status: int | None, wait: float | None) -> _Failure:
    if isinstance(body, list) and body:  # Google sends its errors in a list
        body = body[0]
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(inner, Mapping):
        text = inner if isinstance(inner, str) and inner.strip() else text
        return _Failure(status, [], "the server sent a web page" if "<html" in text.lower() else text, wait)
    kinds = [str(inner[key]) for key in ("code", "type") if inner.get(key)]
    if status in (None, 200):  # an error in the middle of a stream
        status = next((int(kind) for kind in kinds if _STATUS.fullmatch(kind)), None)
    return _Failure(status, kinds, str(inner.get("message") or inner.get("detail") or text), wait)


def _class_of(failure: _Failure) -> type[ProviderError]:
    for kind in failure.kinds:
        if kind in _KINDS:
            return _KINDS[kind]
    if failure.status == 400 and _BAD_KEY.search(failure.text):  # Google and xAI do not send 401
        return AuthError
    if failure.status in (None, 400, 413, 422, 500):
        if _TOO_LONG.search(failure.text):
            return ContextOverflowError
        if failure.status is not None and _NO_MODEL.search(failure.text):
            return UnknownModelError
    if failure.status is None:
        return BadRequestError if "invalid_request_error" in failure.kinds else OverloadedError
    return _STATUSES.get(failure.status) or (OverloadedError if failure.status >= 500 else BadRequestError)


def _to_error(failure: _Failure, endpoint: Endpoint, model: str) -> ProviderError:
    provider, status = endpoint.provider, f" ({failure.status})" if failure.status else ""
    text = f"{status}: {endpoint.redact(failure.text)}"
    if not set(failure.kinds).isdisjoint(_NO_CREDIT) or failure.status == 402 or _NO_MONEY.search(failure.text):
        advice = f"Add credit to the account of {endpoint.key_name}, or use another key: waiting does not help"
        return AuthError(f"{provider} requires payment for {model!r}{text}. {advice}", status=failure.status)
    kind = _class_of(failure)
    messages = {
        AuthError: f"{provider} rejected the key for {model!r}{text}. Set {endpoint.key_name} to a valid key, "
        "or pass api_key=",
        UnknownModelError: f"{provider} has no model {model!r} at {endpoint.address}{text}. Check the name, and that "
        "base_url= (--base-url) is the root of the API, which often ends in /v1",
        RateLimitError: f"{provider} rate-limits requests to {model!r}{text}. Wait"
        + (f" {failure.retry_after:g} s" if failure.retry_after is not None else "")
        + ", or send fewer",
        ContextOverflowError: f"the request is too long for {model!r} of {provider}{text}. Shorten the history or the "
        "task, or lower max_tokens",
        BadRequestError: f"{provider} rejected the request to {model!r}{text}",
        OverloadedError: f"{provider} is unavailable or overloaded for {model!r}{text}. Try again later",
        ModelTimeoutError: f"{provider} took too long for {model!r}{text}. Try again, or lower max_tokens",
    }
    return kind(messages[kind], status=failure.status, retry_after=failure.retry_after)
