"""What the service of runs may say no to."""

from __future__ import annotations

from typing import ClassVar

from .._kernel.errors import HooklineError


class ServiceError(HooklineError):
    """Something that was asked of the service cannot be; ``code`` is a word for programs."""

    code: ClassVar[str] = "refused"


class UnknownRunError(ServiceError):
    """There is no such run, or it is somebody else's."""

    code = "unknown_run"


class UnknownAgentError(ServiceError):
    """No agent of that name is served."""

    code = "unknown_agent"


class Busy(ServiceError):
    """Too much is going on; ``retry_after`` seconds may help."""

    code = "busy"

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnavailableError(ServiceError):
    """The server stops, or cannot store what it should."""

    code = "unavailable"


class ConflictError(ServiceError):
    """The run is in a state in which this cannot be done."""

    code = "not_now"


class IdempotencyError(ServiceError):
    """A key that stands for one request came with another."""

    code = "other_request"
