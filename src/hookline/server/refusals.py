"""What the service and the files say no to, as errors that tell a caller what to do."""

from __future__ import annotations

import logging

from .._base.frozen import EMPTY
from .._base.text import error_text
from ..stores.errors import StoreError
from .endpoints import ApiError
from .errors import (
    Busy,
    ConflictError,
    IdempotencyError,
    ServiceError,
    UnavailableError,
    UnknownAgentError,
    UnknownRunError,
)

log = logging.getLogger("hookline")

_STATUS: dict[type[ServiceError], int] = {
    UnknownRunError: 404,
    UnknownAgentError: 404,
    Busy: 429,
    UnavailableError: 503,
    ConflictError: 409,
    IdempotencyError: 409,
}
_SOON = "5"


def refusal(error: ServiceError | StoreError) -> ApiError:
    """The error with the status that fits; what files say is logged and not told, as it tells of paths."""
    if isinstance(error, StoreError):
        log.error("a request could not be answered: %s", error_text(error))
        said = "what is stored cannot be used now: try again later"
        return ApiError(503, "store", said, {"Retry-After": _SOON})
    status = _STATUS.get(type(error), 400)
    later = str(max(1, round(error.retry_after))) if isinstance(error, Busy) else _SOON
    return ApiError(status, error.code, error_text(error), {"Retry-After": later} if status in (429, 503) else EMPTY)
