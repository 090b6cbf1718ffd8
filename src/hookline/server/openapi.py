"""What a server can be asked for, described for programs (OpenAPI 3.1)."""

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
from .callers import RIGHTS
from .endpoints import OPEN, Answer, Endpoint

JSON = "application/json"


class Problem(msgspec.Struct, frozen=True):
    """What went wrong: a word for programs, and what to do about it."""

    code: str
    message: str


class Refusal(msgspec.Struct, frozen=True):
    """Every answer that is an error."""

    error: Problem


class OpenApi:
    """The description of a server, at ``/openapi.json``.

    Args:
        endpoints: gives what the server can be asked for; this one is added.
        url: how others reach it, if that is known.
    """

    def __init__(self, endpoints: Callable[[], Iterable[Endpoint]], *, url: str = "") -> None:
        self._endpoints, self._url = endpoints, url
        self._made: bytes | None = None

    def endpoints(self) -> list[Endpoint]:
        """What can be asked for."""
        about = "Get this description"
        return [Endpoint("GET", "/openapi.json", self._get, RIGHTS, "openapi", about, answer=dict[str, Any])]

    async def _get(self, request: Request) -> Response:
        if self._made is None:
            found = {(each.path, each.method): each for each in (*self._endpoints(), *self.endpoints())}
            self._made = msgspec.json.encode(describe(found.values(), url=self._url))
        return Response(self._made, media_type=JSON)


def describe(endpoints: Iterable[Endpoint], *, url: str = "") -> dict[str, Any]:
    """Endpoints as an OpenAPI document."""
    table = list(endpoints)
    kinds = [kind for endpoint in table for kind in _types(endpoint)]
    made, parts = msgspec.json.schema_components([Refusal, *kinds], ref_template="#/components/schemas/{name}")
    schemas = iter(made[1:])
    flat = {kind for endpoint in table for kind in (endpoint.query, endpoint.takes) if kind is not None}
    named = {_named(schema) for kind, schema in zip(kinds, made[1:], strict=True) if kind in flat}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in table:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas, parts)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hookline", "version": __version__, "description": _ABOUT},
        **({"servers": [{"url": url}]} if url else {}),
        "paths": paths,
        "security": [{"bearer": []}, {"key": []}],
        "components": {
            "schemas": {name: _readable(schema) for name, schema in parts.items() if name not in named},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key: `hl_...`."},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
            "headers": {
                name: {"description": about, "schema": {"type": "string"}} for name, about in _HEADERS.items()
            },
        },
    }  # fmt: skip


def _types(endpoint: Endpoint) -> Iterator[Any]:
    """The types of an endpoint, in the order in which :func:`_operation` wants their schemas."""
    for kind in (endpoint.query, endpoint.takes, _body(endpoint)[0]):
        if kind is not None:
            yield kind
    for each in _answers(endpoint):
        if each.type is not None:
            yield each.type


def _body(endpoint: Endpoint) -> tuple[Any, bool]:
    """The type of a body, and whether there must be one."""
    kinds = get_args(endpoint.body)
    if NoneType not in kinds:
        return endpoint.body, True
    (kind,) = (each for each in kinds if each is not NoneType)
    return kind, False


def _answers(endpoint: Endpoint) -> list[Answer]:
    first = Answer(endpoint.status, "", endpoint.answer, endpoint.media)
    return [first, *endpoint.more]


def _operation(endpoint: Endpoint, schemas: Iterator[dict[str, Any]], parts: dict[str, Any]) -> dict[str, Any]:
    named = re.findall(r"{(\w+)[^}]*}", endpoint.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named]
    if endpoint.query is not None:
        parameters += _parameters("query", next(schemas), parts)
    if endpoint.takes is not None:
        parameters += _parameters("header", next(schemas), parts)
    kind, required = _body(endpoint)
    body = None if kind is None else {"required": required, "content": {JSON: {"schema": next(schemas)}}}
    responses: dict[str, Any] = {}
    for each in _answers(endpoint):
        found = responses.setdefault(str(each.status), {"description": each.about or "As asked for."})
        found["headers"] = _headers("X-Correlation-ID", *(["Location"] if endpoint.name == "start_run" else []))
        if each.type is not None:
            found.setdefault("content", {})[each.media] = {"schema": next(schemas)}
        elif each.media != JSON and endpoint.method != "HEAD":
            found.setdefault("content", {})[each.media] = {"schema": {"type": "string"}}
    for status in _problems(endpoint):
        names = ["X-Correlation-ID"] if status not in _BEFORE_THE_GATE else []
        if status == 429 or (status == 503 and endpoint.scopes != OPEN):
            names.append("Retry-After")
        said = {"headers": _headers(*names)} if names else {}
        if endpoint.method != "HEAD":
            said["content"] = {JSON: {"schema": {"$ref": "#/components/schemas/Refusal"}}}
        responses[str(status)] = {"description": _MEANS.get(status) or HTTPStatus(status).phrase, **said}
    told = {"operationId": endpoint.name, "summary": endpoint.summary, "description": _described(endpoint)}
    made: dict[str, Any] = {name: text for name, text in told.items() if text}
    if parameters:
        made["parameters"] = parameters
    if body is not None:
        made["requestBody"] = body
    if endpoint.scopes == OPEN:
        made["security"] = []
    return {**made, "responses": dict(sorted(responses.items()))}


def _described(endpoint: Endpoint) -> str:
    needed = "" if endpoint.scopes == OPEN else f"Needs the right {' or '.join(endpoint.scopes)}."
    return "\n\n".join(filter(None, (endpoint.about, needed)))


def _parameters(place: str, schema: dict[str, Any], parts: dict[str, Any]) -> list[dict[str, Any]]:
    """A struct as parameters, one for each field."""
    found = parts[_named(schema)]
    made = []
    for name, each in found["properties"].items():
        schema = {key: value for key, value in each.items() if key != "description"}
        about = {"description": each["description"]} if "description" in each else {}
        made.append({"name": name, "in": place, "required": name in found["required"], **about, "schema": schema})
    return made


def _readable(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose description, a docstring, is Markdown."""
    if "description" not in schema:
        return schema
    return {**schema, "description": cleandoc(schema["description"]).replace("``", "`")}


def _named(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _problems(endpoint: Endpoint) -> list[int]:
    """Every status that an error of an endpoint may have."""
    found = {400, 421, 429, 500, 503, *endpoint.problems}
    if endpoint.scopes != OPEN:
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


_BEFORE_THE_GATE = (400, 403, 408, 413, 421)
_HEADERS = {
    "X-Correlation-ID": "Ties together all that the request brought about; the one that was sent, or a fresh one.",
    "Location": "Where the run is.",
    "Retry-After": "After how many seconds to try again.",
}
_MEANS = {
    400: "It cannot be read: no JSON, or a bad header.",
    401: "No key, or one that is not good.",
    403: "The key lacks the right, or a page of another site asks.",
    404: "There is none, or it is somebody else's.",
    406: "None of the media types that are accepted.",
    408: "The body took too long.",
    409: "Not in the state it is in.",
    410: "It does not wait any more: its time, or its run, is over.",
    413: "The body is too long.",
    415: "The body is not sent as JSON.",
    421: "The server is not known by this name.",
    422: "A field that does not exist, is missing, or has a value that it cannot have; the message names it.",
    429: "Too much at once.",
    500: "Something went wrong here; the log has it under the correlation id.",
    503: "Not now: the server stops, or its files cannot be used.",
}
_ABOUT = """Runs of agents: start them, follow their events, approve what they ask for. Errors are
`{"error": {"code", "message"}}`. Every caller sees its own runs only, unless its key has the right `admin`."""
