"""A vendor's errors, as the one set that Hookline has."""

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
_NO_MODEL = re.compile(r"model\b.{0,100}(not found|does not exist)|not a valid model|invalid model", re.I | re.S)
_NO_MONEY = re.compile(r"credit balance is too low|insufficient (credits?|balance|quota)", re.I)
_STATUS = re.compile(r"[1-5][0-9]{2}")
_LONGEST = 300


class Source(msgspec.Struct, frozen=True):
    """Whom a model is asked at, for what errors say.

    Args:
        provider: the vendor, which is also the name of its package.
        url: the API's base URL.
        key_name: the environment variable of the key.
        timeout: how many seconds of silence are waited for.
        secrets: what no message may hold.
    """

    provider: str
    url: str
    key_name: str
    timeout: float | None
    secrets: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """The URL, without what may be a secret in it: user and password, query, fragment."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")

    def told(self, text: str) -> str:
        """What a provider said: in one line, not too long, without the key."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        text = " ".join(text.split()).rstrip(".")
        return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


class _Fault(msgspec.Struct):
    """What is known of a failure: the HTTP status, the provider's names for it, its words, the wait it asks for."""

    status: int | None
    kinds: list[str]
    text: str
    retry_after: float | None = None


@contextmanager
def in_our_words(source: Source, model: str) -> Iterator[None]:
    """What a vendor's client raises inside comes out as a :class:`~hookline.models.ProviderError`."""
    try:
        yield
    except ProviderError:
        raise
    except Exception as error:
        told = failure(error, source, model)
        if told is None:
            raise
        raise told from None  # the client's own error may print the key


def failure(error: Exception, source: Source, model: str) -> ProviderError | None:
    """The error of ours that a vendor's error is; ``None`` if it is none of a vendor's."""
    import httpx2

    sdk = import_module(source.provider)
    if isinstance(error, httpx2.ConnectTimeout) or isinstance(error.__cause__, httpx2.ConnectTimeout):
        return unreachable(source, "no connection in time")
    if isinstance(error, (sdk.APITimeoutError, httpx2.TimeoutException)):
        return ModelTimeoutError(
            f"{source.provider} sent nothing for {model!r} within {source.timeout} s. Ask for less (max_tokens), "
            "or give a longer timeout="
        )
    if isinstance(error, (sdk.APIConnectionError, httpx2.RequestError)):
        return unreachable(source, _cause(error))
    if isinstance(error, sdk.APIError):
        response = getattr(error, "response", None)
        status = getattr(error, "status_code", None)
        headers = response.headers if response is not None else {}
        return _judge(
            _fault(getattr(error, "body", None), error_text(error), status, retry_after(headers)), source, model
        )
    return None


@contextmanager
def readable(source: Source, model: str) -> Iterator[None]:
    """A reply that is read inside and is not what the API promises comes out as one that is not all there."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        raise broken_off(source, model) from None  # these errors may print all of the reply


def refused(body: Any, source: Source, model: str) -> ProviderError:
    """The error for a reply that is one, though its HTTP status says otherwise."""
    return _judge(_fault(body, "it says no more", None, None), source, model)


def broken_off(source: Source, model: str) -> OverloadedError:
    """The error for a reply that is not all there."""
    return OverloadedError(f"{source.provider} broke off its reply for {model!r}. Try again later")


def unreachable(source: Source, why: str) -> UnreachableError:
    """The error for a server that is not there, or is not what it should be."""
    return UnreachableError(
        f"cannot reach {source.provider} at {source.address}: {source.told(why)}. "
        "Check the network, that the server runs, and base_url= (--base-url)"
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds a provider asks to wait, from its headers: milliseconds, seconds or a date."""
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
    """The words of what is at the bottom of a connection error."""
    while True:
        below = error.__cause__ or error.__context__
        if below is None or not error_text(below):
            return error_text(error)
        error = below


def _fault(body: Any, text: str, status: int | None, wait: float | None) -> _Fault:
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(inner, Mapping):
        said = inner if isinstance(inner, str) and inner.strip() else text
        return _Fault(status, [], "it sent a web page" if "<html" in said.lower() else said, wait)
    kinds = [str(inner[key]) for key in ("code", "type") if inner.get(key)]
    if status in (None, 200):  # in the middle of a stream
        status = next((int(kind) for kind in kinds if _STATUS.fullmatch(kind)), None)
    return _Fault(status, kinds, str(inner.get("message") or text), wait)


def _class_of(fault: _Fault) -> type[ProviderError]:
    for kind in fault.kinds:
        if kind in _KINDS:
            return _KINDS[kind]
    if fault.status in (None, 400, 413, 422, 500):
        if _TOO_LONG.search(fault.text):
            return ContextOverflowError
        if fault.status is not None and _NO_MODEL.search(fault.text):
            return UnknownModelError
    if fault.status is None:
        return BadRequestError if "invalid_request_error" in fault.kinds else OverloadedError
    return _STATUSES.get(fault.status) or (OverloadedError if fault.status >= 500 else BadRequestError)


def _judge(fault: _Fault, source: Source, model: str) -> ProviderError:
    provider, status = source.provider, f" ({fault.status})" if fault.status else ""
    said = f"{status}: {source.told(fault.text)}"
    if not set(fault.kinds).isdisjoint(_NO_CREDIT) or fault.status == 402 or _NO_MONEY.search(fault.text):
        advice = f"Add credit to the account of {source.key_name}, or use another key: waiting does not help"
        return AuthError(f"{provider} wants to be paid for {model!r}{said}. {advice}", status=fault.status)
    kind = _class_of(fault)
    messages = {
        AuthError: f"{provider} refuses the key for {model!r}{said}. Set {source.key_name} to a key that may use it, "
        "or give api_key=",
        UnknownModelError: f"{provider} has no model {model!r} at {source.address}{said}. Check the name, and that "
        "base_url= (--base-url) is the root of the API, which often ends in /v1",
        RateLimitError: f"{provider} limits requests to {model!r}{said}. Wait"
        + (f" {fault.retry_after:g} s" if fault.retry_after is not None else "")
        + ", or send fewer",
        ContextOverflowError: f"the request is too long for {model!r} of {provider}{said}. Shorten the history or the "
        "task, or ask for fewer max_tokens",
        BadRequestError: f"{provider} does not accept the request to {model!r}{said}",
        OverloadedError: f"{provider} is out of order or overloaded for {model!r}{said}. Try again later",
        ModelTimeoutError: f"{provider} took too long for {model!r}{said}. Try again, or ask for less",
    }
    return kind(messages[kind], status=fault.status, retry_after=fault.retry_after)
