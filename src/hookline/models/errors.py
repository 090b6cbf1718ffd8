"""Errors of model providers: one set of classes for all providers."""

from __future__ import annotations

from .._base.errors import NotInstalledError as NotInstalledError  # noqa: PLC0414 - models need packages
from .._kernel.errors import ModelError


class ProviderError(ModelError):
    """A provider rejected a request or failed. Hooks at ``on_error`` see the name of the class as ``type``.

    Args:
        message: what happened, and what to do.
        status: the HTTP status, if there was one.
        retry_after: the seconds that the provider asks to wait, if it does.
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class AuthError(ProviderError):
    """The API key is missing, wrong, or not permitted to do this."""


class UnknownModelError(ProviderError):
    """The provider has no model with this name."""


class RateLimitError(ProviderError):
    """The provider received too many requests. ``retry_after`` is the wait in seconds, if known."""


class ContextOverflowError(ProviderError):
    """The request is longer than the model's context window."""


class BadRequestError(ProviderError):
    """The provider rejected the request as malformed or not allowed."""


class OverloadedError(ProviderError):
    """The provider is temporarily unavailable or overloaded."""


class ModelTimeoutError(ProviderError, TimeoutError):
    """The provider did not reply in time."""


class UnreachableError(ProviderError, ConnectionError):
    """The provider could not be reached."""
