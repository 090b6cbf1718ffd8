"""What can be asked for: one table of endpoints, from which routes and their description are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._base.frozen import EMPTY, Frozen
from .._kernel.errors import HooklineError
from .callers import Caller

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

OPEN: tuple[str, ...] = ("open",)
"""No rights are needed. It is not empty: to forget the rights opens nothing."""


class ApiError(HooklineError):
    """A request that is refused: the status, a word for programs, and what to do about it."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] = EMPTY) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers


class Answer(Frozen, frozen=True):
    """One more way in which an endpoint answers; ``type`` is a type for msgspec, ``None`` for no body."""

    status: int
    about: str
    type: Any = None
    media: str = "application/json"


def told_plainly(error: ApiError) -> Any:
    """The body of an error."""
    return {"error": {"code": error.code, "message": str(error)}}


class Endpoint(Frozen, frozen=True):
    """One thing that can be asked for. What ``call`` raises of the service or of the files is answered as an error.

    ``scopes``: who has one of these rights may ask; ``OPEN`` for everybody. ``body``, ``answer`` and ``query`` are
    types for msgspec, from which requests are read and the description is made; ``problems`` are the statuses that an
    error may have, besides those that every endpoint may give. ``takes`` is a type whose fields are headers, and
    ``more`` are further answers. ``about`` says more than the summary, in Markdown. ``told`` makes the body of an
    error, for a protocol in which errors have a shape of their own; it holds for all of a path, also for what the gate
    refuses.
    """

    method: str
    path: str
    call: Callable[[Request], Awaitable[Response]]
    scopes: tuple[str, ...]
    name: str
    summary: str = ""
    body: Any = None
    answer: Any = None
    query: Any = None
    status: int = 200
    media: str = "application/json"
    problems: tuple[int, ...] = ()
    takes: Any = None
    more: tuple[Answer, ...] = ()
    about: str = ""
    told: Callable[[ApiError], Any] | None = None


def caller_of(request: Request) -> Caller:
    """Who sends a request; the gate has let it in."""
    caller: Caller = request.scope["hookline.caller"]
    return caller


def correlation_of(request: Request) -> str:
    """The id that ties together all that a request brings about: its caller's, or a fresh one."""
    id: str = request.scope["hookline.correlation_id"]
    return id


def denial_of(request: Request) -> Callable[[str], None]:
    """Writes down that the caller lacks a right: for where only the body of a request tells which one it needs."""
    denied: Callable[[str], None] = request.scope["hookline.denied"]
    return denied
