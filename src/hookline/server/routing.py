"""Endpoints of the HTTP API, the gate that every request passes, and helpers to read requests and write responses.

Starlette is imported inside functions, so that ``Server`` can be imported without it and report what to install.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import msgspec

from .._base.frozen import EMPTY, Frozen
from .._base.text import did_you_mean
from .._web.middleware import App, ClientDisconnectedError, Message, Receive, RequestRejectedError, Scope, Send
from ..stores.audit.log import AuditLog
from ..stores.callers import Caller
from ..stores.errors import StoreError
from ..stores.keys import KeyStore
from ..stores.limits import BucketStore
from .auth import Authenticate, Authenticator, Operation, RequestInfo
from .errors import ApiError, ServiceError, api_error
from .logs import logging_with
from .options import ServerOptions

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

T = TypeVar("T")

log = logging.getLogger("hookline")
access_log = logging.getLogger("hookline.access")

JSON = "application/json"
CORRELATION_HEADER = "X-Correlation-ID"
"""The header with the correlation id, which connects a request with everything that it causes."""
REQUEST_HEADER = "X-Request-ID"
"""The same id under the name that clients of OpenAI's API read."""

RequestCounter = Callable[[str, str, int, float], object]
"""Called after every request with the method, the route, the status and the duration in seconds."""

ErrorBody = Callable[[ApiError], Any]
"""Makes the JSON body of an error response."""

ErrorPage = Callable[[ApiError, Scope], "Response"]
"""Makes the error response of an endpoint for browsers."""

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_CORRELATION_ID = re.compile(r"(?!.*hl_\w{16})[!-~]{1,128}")  # ids are logged, so an API key must not pass as one


class ResponseSpec(Frozen, frozen=True):
    """A further response of an endpoint. ``type`` is a type for msgspec, ``None`` for an empty body."""

    status: int
    description: str
    type: Any = None
    media: str = JSON


def error_body(error: ApiError) -> Any:
    """Return the default body of an error response."""
    return {"error": {"code": error.code, "message": str(error)}}


class Endpoint(Frozen, frozen=True):
    """One method of one path.

    Args:
        method: the HTTP method.
        path: the path, as Starlette writes it.
        handler: handles a request. Errors of the service and of stores become error responses.
        scopes: a caller with one of these rights may call the endpoint; ``PUBLIC`` for everybody.
        name: the operation id in the API description.
        summary: one line for the API description.
        body: the type of the request body, for msgspec.
        response: the type of the response body.
        query: a type whose fields are the query parameters.
        status: the status of the response.
        media: the media type of the response.
        errors: statuses of errors, besides those that every endpoint may return.
        headers: a type whose fields are request headers.
        responses: further responses.
        description: more than the summary, in Markdown.
        error_body: makes the body of an error, for a protocol with its own format. It applies to the whole path.
        error_page: makes the response for an error, for pages. It applies to the whole path.
        described: whether the endpoint is in the API description.
        decides: whether its requests count in ``decide_rate`` instead of ``rate``.
        slash: whether the path may end with a slash, which clients of some protocols add. It applies to the whole path.
    """

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    scopes: tuple[str, ...]
    name: str
    summary: str = ""
    body: Any = None
    response: Any = None
    query: Any = None
    status: int = 200
    media: str = JSON
    errors: tuple[int, ...] = ()
    headers: Any = None
    responses: tuple[ResponseSpec, ...] = ()
    description: str = ""
    error_body: ErrorBody | None = None
    error_page: ErrorPage | None = None
    described: bool = True
    slash: bool = False
    decides: bool = False


class Gate:
    """Authenticate, log and count every request, and turn errors into responses.

    Without a valid key, every path looks the same. No key is needed only as long as none has ever been created, the
    server listens on this machine only, and the request comes from there. If keys cannot be read, all requests are
    rejected.

    Args:
        keys: the API keys; ``None`` if there are none.
        options: rate limits and trusted proxies.
        keys_required: whether keys are needed even for requests from this machine.
        audit: gets a record of every decision.
        count: called after every request.
        authenticate: identifies callers instead of keys, see :func:`hookline.server.asgi`.
        buckets: the rate limits of callers, if all replicas share them.
    """

    def __init__(
        self,
        keys: KeyStore | None,
        options: ServerOptions | None = None,
        *,
        keys_required: bool = False,
        audit: AuditLog | None = None,
        count: RequestCounter | None = None,
        authenticate: Authenticate | None = None,
        buckets: BucketStore | None = None,
    ) -> None:
        self._authenticator = Authenticator(
            keys, options or ServerOptions(), keys_required, audit, authenticate, buckets
        )
        self._audit = audit
        self._count = count
        self._formats: dict[str, ErrorPage] = {}  # of errors, by the first part of the path

    @property
    def needs_keys(self) -> bool:
        """Whether callers need a key, according to the last check of the key store."""
        return self._authenticator.needs_keys

    async def currently_needs_keys(self) -> bool:
        """Check the key store, and return whether callers need a key; also if it cannot be read."""
        return await self._authenticator.currently_needs_keys()

    @property
    def uses_keys(self) -> bool:
        """Whether callers are identified by API keys, and not by a host application."""
        return self._authenticator.uses_keys

    def open_login(self, scope: Scope, route: str, secret: str, seconds: float) -> str:
        """Log a browser in with a key; see :meth:`Authenticator.open_login`."""
        return self._authenticator.open_login(scope, route, secret, seconds)

    def use_login_link(self, scope: Scope, route: str, secret: str, seconds: float) -> str | None:
        """Log a browser in with a link; see :meth:`Authenticator.use_login_link`."""
        return self._authenticator.use_login_link(scope, route, secret, seconds)

    async def current_caller(self, id: str, scope: Scope | None) -> Caller | None:
        """Return a caller with its present rights; see :meth:`Authenticator.current_caller`."""
        return await self._authenticator.current_caller(id, scope)

    @property
    def is_audited(self) -> bool:
        """Whether decisions are written to an audit log."""
        return self._audit is not None

    def routes(self, endpoints: Iterable[Endpoint]) -> list[Route]:
        """Return Starlette routes for endpoints, one for each path.

        Raises:
            ValueError: an endpoint has neither valid scopes nor ``PUBLIC``, or is defined twice.
        """
        from starlette.routing import Route

        endpoints = list(endpoints)
        paths: dict[str, dict[str, Operation]] = {}
        formats: dict[str, ErrorPage] = {}
        for endpoint in endpoints:
            operations, method = paths.setdefault(endpoint.path, {}), endpoint.method.upper()
            if method in operations:
                raise ValueError(f"{method} {endpoint.path} is defined twice")
            app = _endpoint_app(endpoint)
            operation = operations[method] = Operation(endpoint.scopes, app, endpoint.path, endpoint.decides)
            if method == "GET" and endpoint.media != "text/event-stream":
                operations.setdefault("HEAD", operation)
            if endpoint.error_page is not None:
                formats[endpoint.path] = endpoint.error_page
            elif endpoint.error_body is not None:
                formats[endpoint.path] = _json_errors(endpoint.error_body)
        default = _json_errors(error_body)
        self._formats |= {_first_part(path): page for path, page in formats.items() if _first_part(path)}
        routes = [
            Route(path, self._path_app(path, operations, formats.get(path, default)))
            for path, operations in paths.items()
        ]
        lenient = {endpoint.path for endpoint in endpoints if endpoint.slash}
        for route in routes:
            if route.path in lenient:
                route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"/?\Z")
        return routes

    def fallback(self) -> Route:
        """Return the last route, which matches all other paths: without a key, a client does not learn that a path is
        unknown.
        """
        from starlette.routing import Route

        route = Route("/{path:path}", self._path_app("*", {}, self._answer))
        route.path_regex = re.compile(r"(?s)(?P<path>.*)\Z")  # also paths with line breaks or without a slash
        return route

    def complete(self, scope: Scope, rejection: RequestRejectedError) -> None:
        """Give the rejection of a request that did not reach the gate an id, and the body that errors have there."""
        error = ApiError(rejection.status, rejection.code, rejection.message)
        _complete(rejection, self._answer(error, scope), _id_headers(correlation_id(scope)))

    def _answer(self, error: ApiError, scope: Scope) -> Response:
        """Return an error as the paths beside this one do, so that its form does not say which paths exist."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return self._formats.get(_first_part(path), _json_errors(error_body))(error, scope)

    def _path_app(self, route: str, operations: Mapping[str, Operation], errors: ErrorPage) -> _PathApp:
        return _PathApp(self._authenticator, self._count, route, operations, errors)


def _first_part(path: str) -> str:
    return path.lstrip("/").partition("/")[0]


class _PathApp:
    """The ASGI app of one path behind the gate."""

    def __init__(
        self,
        authenticator: Authenticator,
        count: RequestCounter | None,
        route: str,
        operations: Mapping[str, Operation],
        errors: ErrorPage,
    ) -> None:
        self._authenticator = authenticator
        self._count = count
        self._route = route
        self._operations = operations
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{self._route} accepts HTTP requests only")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        request = RequestInfo(method, self._route, correlation_id(scope), time.monotonic())
        with logging_with(correlation_id=request.correlation_id):

            def answer(error: ApiError) -> Response:
                return self._errors(error, {**scope, "hookline.caller": request.caller})

            sender = _ResponseSender(self._authenticator, request, send, answer)
            await self._handle(scope, receive, request, sender)

    async def _handle(self, scope: Scope, receive: Receive, request: RequestInfo, sender: _ResponseSender) -> None:
        try:
            await self._call(scope, receive, request, sender)
        except ApiError as error:
            await sender.send_error(error)
        except RequestRejectedError as rejection:
            request.status = rejection.status
            sender.complete(rejection)
            raise
        except ClientDisconnectedError:
            raise
        except Exception as error:
            if request.revoked is not None:
                await sender.send_error(request.revoked)
                return
            if _is_disconnect(error):
                return
            log.exception("%s %s failed, correlation id %s", request.method, request.route, request.correlation_id)
            message = f"internal error: the server log has the details under {request.correlation_id}"
            await sender.send_error(ApiError(500, "internal", message))
        finally:
            self._log(request)

    async def _call(self, scope: Scope, receive: Receive, request: RequestInfo, sender: _ResponseSender) -> None:
        operation = self._operations.get(scope["method"])
        await self._authenticator.admit(scope, request, operation)
        if operation is None and not self._operations:
            listed = f"{scope.get('root_path', '')}/openapi.json"
            raise ApiError(404, "not_found", f"there is nothing at this path: GET {listed} lists all paths")
        if operation is None:
            allowed = ", ".join(sorted(self._operations))
            raise ApiError(405, "method_not_allowed", f"this path allows {allowed}", {"Allow": allowed})

        async def receive_checked() -> Message:
            message = await receive()
            if message["type"] == "http.request" and request.is_old:
                await self._authenticator.check_still_valid(request)
            return message

        added = {
            "hookline.caller": request.caller,
            "hookline.correlation_id": request.correlation_id,
            "hookline.missing_right": lambda right: self._authenticator.record_missing_right(request, operation, right),
        }
        with logging_with(caller=request.caller.id):
            client = self._authenticator.client_scope(scope, request)
            await operation.app({**scope, **added, **client}, receive_checked, sender)

    def _log(self, request: RequestInfo) -> None:
        """Log and count a request that is done."""
        seconds = time.monotonic() - request.began
        fields: dict[str, Any] = {
            "method": request.method,
            "route": request.route,
            "status": request.status,
            "ms": round(seconds * 1000, 1),
            "caller": request.caller.id,
        }
        access_log.info(
            "%s %s %d %.1f ms caller=%s correlation_id=%s", *fields.values(), request.correlation_id, extra=fields
        )
        if self._count is not None:
            self._count(request.method, request.route, request.status, seconds)


class _ResponseSender:
    """Sends a response with the correlation id, and remembers its status."""

    def __init__(
        self,
        authenticator: Authenticator,
        request: RequestInfo,
        send: Send,
        error_response: Callable[[ApiError], Response],
    ) -> None:
        self._authenticator = authenticator
        self._request = request
        self._send = send
        self._error_response = error_response
        self._started = False
        self.headers = _id_headers(request.correlation_id)

    async def __call__(self, message: Message) -> None:
        starts = message["type"] == "http.response.start"
        if message.get("more_body") or (starts and self._request.is_old):
            await self._authenticator.check_still_valid(self._request)
        await (self._start(message) if starts else self._send(message))

    async def _start(self, message: Message) -> None:
        self._started, self._request.status = True, message["status"]
        own = {name for name, _ in self.headers}
        headers = [pair for pair in message.get("headers", ()) if bytes(pair[0]).lower() not in own]
        await self._send({**message, "headers": [*headers, *self.headers]})

    def complete(self, rejection: RequestRejectedError) -> None:
        """Give a rejection the correlation id, and the body that errors have at this path."""
        error = ApiError(rejection.status, rejection.code, rejection.message)
        _complete(rejection, self._error_response(error), self.headers)

    async def send_error(self, error: ApiError) -> None:
        """Send an error. A response that has begun is left incomplete instead, which the client notices."""
        if self._started:
            return
        response = self._error_response(error)
        await self._start(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await self._send({"type": "http.response.body", "body": response.body})


def _complete(rejection: RequestRejectedError, response: Response, headers: Iterable[tuple[bytes, bytes]]) -> None:
    rejection.body = bytes(response.body)
    rejection.headers += [*(pair for pair in response.raw_headers if pair[0] != b"content-length"), *headers]


def _id_headers(id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers that name a request, by both names that clients read."""
    return [(name.lower().encode(), id.encode()) for name in (CORRELATION_HEADER, REQUEST_HEADER)]


def _json_errors(body: ErrorBody) -> ErrorPage:
    return lambda error, scope: json_response(body(error), error.status, error.headers)


def _endpoint_app(endpoint: Endpoint) -> App:
    """Return an ASGI app for an endpoint."""
    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await endpoint.handler(Request(scope, receive, send))
        except HTTPException as error:
            raise ApiError(error.status_code, "bad_request", error.detail, error.headers or EMPTY) from None
        except (ServiceError, StoreError) as error:
            raise api_error(error) from None
        await response(scope, receive, send)

    return app


# Data that the gate attaches to a request


def caller_of(request: Request) -> Caller:
    """Return the caller of a request that passed the gate."""
    caller: Caller = request.scope["hookline.caller"]
    return caller


def correlation_of(request: Request) -> str:
    """Return the correlation id of a request: the caller's, or a generated one."""
    id: str = request.scope["hookline.correlation_id"]
    return id


def missing_right_recorder(request: Request) -> Callable[[str], None]:
    """Return a function that audits a missing right, for requests whose body decides which right they need."""
    record: Callable[[str], None] = request.scope["hookline.missing_right"]
    return record


def is_correlation_id(text: str) -> bool:
    """Return whether a text is acceptable as a correlation id: short printable ASCII, and not an API key."""
    return _CORRELATION_ID.fullmatch(text) is not None


def correlation_id(scope: Scope) -> str:
    """Return the correlation id in the headers of a request, or a new one."""
    for name in (b"x-correlation-id", b"x-request-id"):
        given: list[str] = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
        if len(given) == 1 and is_correlation_id(given[0]):
            return given[0]
    return uuid.uuid4().hex


# Clients that disconnect


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Await ``work`` and return its result; cancel it if the client disconnects first.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    from starlette.requests import ClientDisconnect

    tasks = working, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        disconnect.cancel()
        await asyncio.wait(tasks)


def _is_disconnect(error: Exception) -> bool:
    from starlette.requests import ClientDisconnect

    return isinstance(error, ClientDisconnect)


# Bodies and queries

_PATH_IN_ERROR = re.compile(r"^(.*?)(?: - at `(?:key in )?(\$[^`]*)`)?$", re.DOTALL)
_FIELD_HINTS = {
    "metadata": "metadata cannot be sent, because guards rely on it: it is set with the key "
    "(hookline keys add NAME --metadata KEY=VALUE)"
}


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] = EMPTY) -> Response:
    """Return a response with a value as JSON."""
    from starlette.responses import Response

    return Response(msgspec.json.encode(value), status, {**headers, "content-type": JSON})


async def body_of(request: Request, kind: type[T], *, optional: bool = False) -> T:
    """Read the JSON body of a request.

    Args:
        request: the request.
        kind: the type of the body, for msgspec.
        optional: whether an empty body stands for ``kind()``.

    Raises:
        ApiError: the body is not sent as JSON (415), is not valid JSON (400), or has wrong fields (422).
    """
    data = await request.body()
    if optional and not data:
        return kind()
    media, _, options = request.headers.get("content-type", "").lower().partition(";")
    if media.strip() != JSON:
        raise ApiError(415, "not_json", "send the body as JSON, with the header Content-Type: application/json")
    charset = options.replace('"', "").replace(" ", "").partition("charset=")[2]
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise ApiError(415, "not_utf8", "send the body in UTF-8")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid_field(error, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not valid JSON: {error}" if data.strip() else "empty: send a JSON object"
        raise ApiError(400, "bad_json", f"the body is {problem}") from None


def _tuples(kind: Any) -> frozenset[str]:
    """Return the names of the fields that are tuples."""
    return frozenset(each.encode_name for each in msgspec.structs.fields(kind) if get_origin(each.type) is tuple)


def query_of(request: Request, kind: type[T]) -> T:
    """Read the query parameters of a request.

    A parameter whose field is a tuple may be given several times.

    Raises:
        ApiError: a parameter is unknown, given twice, or has a wrong value (422).
    """
    several, found = _tuples(kind), dict[str, Any]()
    for name, value in request.query_params.multi_items():
        if name in several:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise ApiError(422, "bad_field", f"{name:.80} is given twice")
        else:
            found[name] = value
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid_field(error, kind) from None


def _invalid_field(error: msgspec.ValidationError, kind: Any) -> ApiError:
    found = _PATH_IN_ERROR.match(str(error))
    problem, path = (str(error), None) if found is None else found.groups()
    where = (path or "").removeprefix("$").removeprefix(".")
    unknown = re.match(r"Object contains unknown field `(.*)`", problem, re.DOTALL)
    missing = re.match(r"Object missing required field `(.*)`", problem)
    if unknown is not None:
        name = unknown[1]
        message = _FIELD_HINTS.get(name) if not where else None
        message = message or f"there is no field {_join(where, name):.160}.{did_you_mean(name, _fields(kind))}"
    elif missing is not None:
        message = f"the field {_join(where, missing[1])} is missing"
    else:
        message = f"{where or 'the body'}: {problem[:1].lower()}{problem[1:]}{_choices(problem, kind, where)}"
        message = message.replace("invalid enum value", "invalid value", 1)
    return ApiError(422, "bad_field", message)


def _choices(problem: str, kind: Any, field: str) -> str:
    """Return the values that a field may have, if they can be listed."""
    given = re.match(r"Invalid (?:enum )?value '(.*)'$", problem, re.DOTALL)
    known = [value for each in getattr(kind, "__args__", (kind,)) for value in _values(each, field)]
    return f".{did_you_mean(given[1], known)} It is one of: {', '.join(known)}" if given and known else ""


def _values(kind: Any, field: str) -> list[str]:
    config = getattr(kind, "__struct_config__", None)
    if config is None or field == config.tag_field:
        return [] if config is None else [str(config.tag)]
    info: Any = msgspec.inspect.type_info(kind)
    return [value for each in info.fields if each.encode_name == field for value in _literals(each.type)]


def _literals(kind: Any) -> list[str]:
    if isinstance(kind, msgspec.inspect.UnionType):
        return [value for each in kind.types for value in _literals(each)]
    return [str(value) for value in kind.values if value] if isinstance(kind, msgspec.inspect.LiteralType) else []


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _fields(kind: Any) -> Iterable[str]:
    kinds = getattr(kind, "__args__", (kind,))
    return {name for each in kinds for name in getattr(each, "__struct_encode_fields__", ())}
