"""Errors of the run service, and how the HTTP API reports them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

from .._base.frozen import EMPTY
from .._base.text import error_text
from .._kernel.errors import HooklineError
from ..stores.errors import StoreError

log = logging.getLogger("hookline")

RETRY_SECONDS = 5.0
"""Seconds that a client should wait before it tries again, unless the error has its own value."""


class ServiceError(HooklineError):
    """The service cannot do what the caller asked for. ``code`` is the error code for programs."""

    code: ClassVar[str] = "refused"
    status: ClassVar[int] = 400


class UnknownRunError(ServiceError):
    """There is no run with this id, or it belongs to another caller."""

    code = "unknown_run"
    status = 404


class UnknownAttachmentError(ServiceError):
    """The run has no attachment with this digest, or its content is not stored any more."""

    code = "unknown_attachment"
    status = 404


class UnknownAgentError(ServiceError):
    """No agent with this name is served."""

    code = "unknown_agent"
    status = 404


class BusyError(ServiceError):
    """A limit on concurrent work is reached. The caller may try again after ``retry_after`` seconds."""

    code = "busy"
    status = 429

    def __init__(self, message: str, retry_after: float = RETRY_SECONDS) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnavailableError(ServiceError):
    """The server is stopping, or cannot store runs at the moment."""

    code = "unavailable"
    status = 503


class HaltedError(ServiceError):
    """All runs are halted: no run is accepted until they are released."""

    code = "halted"
    status = 503


class ConflictError(ServiceError):
    """The state of the run does not allow this."""

    code = "not_now"
    status = 409


class IdempotencyError(ServiceError):
    """An idempotency key was sent again with a different request."""

    code = "other_request"
    status = 409


class ApiError(HooklineError):
    """An HTTP error response: the status, an error code for programs, and a message that says what to do."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] = EMPTY) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


def api_error(error: ServiceError | StoreError) -> ApiError:
    """Convert an error of the service or of a store.

    Errors of stores contain file paths, so they are logged and the client only learns that something is wrong.
    """
    if isinstance(error, StoreError):
        log.error("a request failed because of a store: %s", error_text(error))
        return ApiError(503, "store", "stored data cannot be used at the moment: try again later", _retry_after())
    headers = _retry_after(getattr(error, "retry_after", RETRY_SECONDS)) if error.status in (429, 503) else EMPTY
    return ApiError(error.status, error.code, error_text(error), headers)


def _retry_after(seconds: float = RETRY_SECONDS) -> dict[str, str]:
    return {"Retry-After": str(max(1, round(seconds)))}
