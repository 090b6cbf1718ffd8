"""What can go wrong at a model's provider: one set of errors, whoever the provider is."""

from __future__ import annotations

from .._base.errors import NotInstalledError as NotInstalledError  # noqa: PLC0414 - models need packages
from .._kernel.errors import ModelError


class ProviderError(ModelError):
    """A provider refused or failed. ``on_error`` sees the class name as ``type``.

    Args:
        message: what happened and what to do.
        status: the HTTP status, if there was one.
        retry_after: how many seconds the provider asks to wait, if it does.
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class AuthError(ProviderError):
    """No key, a wrong key, or one that may not do this."""


class UnknownModelError(ProviderError):
    """The provider has no model of that name."""


class RateLimitError(ProviderError):
    """Too many requests; ``retry_after`` says when to come back, if the provider does."""


class ContextOverflowError(ProviderError):
    """The request is longer than the model's context."""


class BadRequestError(ProviderError):
    """The provider does not understand the request, or does not allow it."""


class OverloadedError(ProviderError):
    """The provider is out of order or out of capacity for now."""


class ModelTimeoutError(ProviderError, TimeoutError):
    """No reply in time."""


class UnreachableError(ProviderError, ConnectionError):
    """There is no connection to the provider."""
