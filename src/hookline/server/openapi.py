"""The OpenAPI 3.1 description of the server, generated from its endpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from inspect import cleandoc
from types import NoneType
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .._base.package import __version__
from .auth import PUBLIC, RIGHTS
from .routing import CORRELATION_HEADER, JSON, Endpoint, ResponseSpec


class ErrorDetail(msgspec.Struct, frozen=True):
    """An error code for programs, and a message that says what to do."""

    code: str
    message: str


class ErrorResponse(msgspec.Struct, frozen=True):
    """The body of every error response."""

    error: ErrorDetail


class OpenApi:
    """Serve the description at ``/openapi.json``.

    Args:
        endpoints: returns the endpoints of the server; this one is added.
        url: the public URL of the server, if it is known; else the path at which it is mounted.
        keys: whether callers use API keys; if not, the host application knows how they authenticate.
    """

    def __init__(self, endpoints: Callable[[], Iterable[Endpoint]], *, url: str = "", keys: bool = True) -> None:
        self._endpoints = endpoints
        self._url = url
        self._keys = keys
        self._documents: dict[str, bytes] = {}

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoint of the description."""
        summary = "Get this description"
        return [Endpoint("GET", "/openapi.json", self._get, RIGHTS, "openapi", summary, response=dict[str, Any])]

    async def _get(self, request: Request) -> Response:
        url = self._url or request.scope.get("root_path", "")
        if url not in self._documents:
            all_endpoints = (*self._endpoints(), *self.endpoints())
            found = {(each.path, each.method): each for each in all_endpoints if each.described}
            # Only the last one is kept: the path of a mount can contain parameters.
            self._documents = {url: msgspec.json.encode(describe(found.values(), url=url, keys=self._keys))}
        return Response(self._documents[url], media_type=JSON)


def describe(endpoints: Iterable[Endpoint], *, url: str = "", keys: bool = True) -> dict[str, Any]:
    """Describe endpoints in an OpenAPI document. ``keys`` tells whether callers use API keys."""
    endpoints = list(endpoints)
    kinds = [kind for endpoint in endpoints for kind in _types(endpoint)]
    made, components = msgspec.json.schema_components(
        [ErrorResponse, *kinds], ref_template="#/components/schemas/{name}"
    )
    schemas = iter(made[1:])
    flattened = {kind for endpoint in endpoints for kind in (endpoint.query, endpoint.headers) if kind is not None}
    named = {_schema_name(schema) for kind, schema in zip(kinds, made[1:], strict=True) if kind in flattened}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hookline", "version": __version__, "description": _DESCRIPTION},
        **({"servers": [{"url": url}]} if url else {}),
        "paths": paths,
        **({"security": [{"bearer": []}, {"key": []}]} if keys else {}),
        "components": {
            "schemas": {name: _readable(schema) for name, schema in components.items() if name not in named},
            **({"securitySchemes": _SECURITY_SCHEMES} if keys else {}),
            "headers": {name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()},
        },
    }


def _types(endpoint: Endpoint) -> Iterator[Any]:
    """Return the types of an endpoint, in the order in which :func:`_operation` needs their schemas."""
    for kind in (endpoint.query, endpoint.headers, _body(endpoint)[0]):
        if kind is not None:
            yield kind
    for each in _responses(endpoint):
        if each.type is not None:
            yield each.type


def _body(endpoint: Endpoint) -> tuple[Any, bool]:
    """Return the type of a request body, and whether it is required."""
    kinds = get_args(endpoint.body)
    if NoneType not in kinds:
        return endpoint.body, True
    (kind,) = (each for each in kinds if each is not NoneType)
    return kind, False


def _responses(endpoint: Endpoint) -> list[ResponseSpec]:
    first = ResponseSpec(endpoint.status, "", endpoint.response, endpoint.media)
    return [first, *endpoint.responses]


def _operation(endpoint: Endpoint, schemas: Iterator[dict[str, Any]], components: dict[str, Any]) -> dict[str, Any]:
    named = re.findall(r"{(\w+)[^}]*}", endpoint.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named]
    if endpoint.query is not None:
        parameters += _parameters("query", next(schemas), components)
    if endpoint.headers is not None:
        parameters += _parameters("header", next(schemas), components)
    kind, required = _body(endpoint)
    body = None if kind is None else {"required": required, "content": {JSON: {"schema": next(schemas)}}}
    responses: dict[str, Any] = {}
    for each in _responses(endpoint):
        found = responses.setdefault(str(each.status), {"description": each.description or "Success."})
        found["headers"] = _headers(CORRELATION_HEADER, *(["Location"] if endpoint.name == "start_run" else []))
        if each.type is not None:
            found.setdefault("content", {})[each.media] = {"schema": next(schemas)}
        elif each.media != JSON and endpoint.method != "HEAD":
            found.setdefault("content", {})[each.media] = {"schema": {"type": "string"}}
    for status in _error_statuses(endpoint):
        names = [CORRELATION_HEADER] if status not in _BEFORE_THE_GATE else []
        if status == 429 or (status == 503 and endpoint.scopes != PUBLIC):
            names.append("Retry-After")
        error: dict[str, Any] = {"headers": _headers(*names)} if names else {}
        if endpoint.method != "HEAD":
            error["content"] = {JSON: {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}}
        responses[str(status)] = {"description": _STATUS_TEXT.get(status) or HTTPStatus(status).phrase, **error}
    texts = {"operationId": endpoint.name, "summary": endpoint.summary, "description": _description(endpoint)}
    operation: dict[str, Any] = {name: text for name, text in texts.items() if text}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = body
    if endpoint.scopes == PUBLIC:
        operation["security"] = []
    return {**operation, "responses": dict(sorted(responses.items()))}


def _description(endpoint: Endpoint) -> str:
    rights = "" if endpoint.scopes == PUBLIC else f"Needs the right {' or '.join(endpoint.scopes)}."
    return "\n\n".join(filter(None, (endpoint.description, rights)))


def _parameters(place: str, schema: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters for the fields of a struct."""
    found = components[_schema_name(schema)]
    parameters = []
    for name, each in found["properties"].items():
        schema = {key: value for key, value in each.items() if key != "description"}
        text = {"description": each["description"]} if "description" in each else {}
        required = name in found["required"]
        parameters.append({"name": name, "in": place, "required": required, **text, "schema": schema})
    return parameters


def _readable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its description converted from a docstring to Markdown."""
    if "description" not in schema:
        return schema
    return {**schema, "description": cleandoc(schema["description"]).replace("``", "`")}


def _schema_name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _error_statuses(endpoint: Endpoint) -> list[int]:
    """Return the statuses of all errors that an endpoint may return."""
    found = {400, 421, 429, 500, 503, *endpoint.errors}
    if endpoint.scopes != PUBLIC:
        found |= {401, 403}
    if "{" in endpoint.path:
        found.add(404)
    if endpoint.query is not None:
        found.add(422)
    if endpoint.body is not None:
        found |= {403, 408, 413, 415, 422}
    return sorted(found)


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key: `hl_...`."},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_BEFORE_THE_GATE = (400, 403, 408, 413, 421)
_HEADERS = {
    CORRELATION_HEADER: "The correlation id of all effects of the request: the one that was sent, or a generated one.",
    "Location": "The path of the run.",
    "Retry-After": "How many seconds to wait before trying again.",
}
_STATUS_TEXT = {
    400: "Bad request: the body is not valid JSON, or a header is invalid.",
    401: "Unauthorized: the key is missing or not valid.",
    403: "Forbidden: the key lacks a right, or a page of another site sent the request.",
    404: "Not found: there is no such object, or it belongs to another caller.",
    406: "Not acceptable: the server has none of the accepted media types.",
    408: "Timeout: the body did not arrive in time.",
    409: "Conflict: the current state does not allow this, for example because the run has already finished.",
    410: "Gone: the call no longer waits, because it expired or its run has ended.",
    413: "Too large: the body is too long.",
    415: "Unsupported media type: send the body as JSON.",
    421: "Misdirected: the server does not accept this host name.",
    422: "Invalid: a field is unknown, missing, or has a wrong value; the message names it.",
    429: "Too many requests or runs: wait and try again.",
    500: "Internal error: the log has the details under the correlation id.",
    503: "Unavailable: the server is stopping, or cannot use its files.",
}
_DESCRIPTION = """Run agents: start runs, follow their events, and approve their calls. The body of an error is
`{"error": {"code", "message"}}`. A caller sees its own runs only, unless its key has the right `admin`."""
