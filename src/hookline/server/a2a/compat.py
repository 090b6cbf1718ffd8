"""Version 0.3 of the protocol, where the answers of the SDK differ from the specification."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import a2a.server.routes  # noqa: F401 - the adapter and this module import each other, and this one must be first
from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from .jsonrpc import INVALID_PARAMS, INVALID_REQUEST, InvalidJsonRpcError

_DELETE = "tasks/pushNotificationConfig/delete"
_NO_OBJECT = frozenset(("dict_type", "model_type", "model_attributes_type"))
"""Errors whose texts name classes of the SDK."""


def check_old_request(request: Mapping[str, Any]) -> None:
    """Check a request of version 0.3. The SDK would call wrong parameters an invalid request, and repeat their values.

    Raises:
        InvalidJsonRpcError: a field is missing or has a wrong value.
    """
    model: Any = JSONRPC03Adapter.METHOD_TO_MODEL.get(request["method"])
    if model is None:
        return
    try:
        model.model_validate(request)
    except ValidationError as error:
        place, problem = _explain(error)
        code = INVALID_PARAMS if place.startswith("params") else INVALID_REQUEST
        raise InvalidJsonRpcError(code, f"{place} {problem}", request.get("id")) from None


def _explain(error: ValidationError) -> tuple[str, str]:
    """Return the place of the first error, and what is wrong there."""
    found = error.errors(include_url=False, include_input=False)
    kinds = [each for each in found if each["type"] == "literal_error" and each["loc"][-1] == "kind"]
    others = {each["loc"][:-1] for each in kinds}  # parts are tried as each kind of part
    first = min(
        [each for each in found if not any(each["loc"][: len(other)] == other for other in others)] or found,
        key=lambda each: each["loc"][:1] != ("params",),
    )
    place = ".".join(str(name) for name in first["loc"] if not str(name)[:1].isupper())  # without names of classes
    if first in kinds:
        known = sorted({each.get("ctx", {})["expected"] for each in kinds if each["loc"][:-2] == first["loc"][:-2]})
        return place, f"is not valid: expected {' or '.join(known)}"
    if first["type"] in _NO_OBJECT:
        return place, "is not valid: expected an object"
    return place, "is missing" if first["type"] == "missing" else f"is not valid: {first['msg']}"


def complete_old_response(request: Mapping[str, Any], response: Response) -> Response:
    """Return a response of version 0.3 with the result ``null``, which the SDK leaves out."""
    if request["method"] != _DELETE:
        return response
    answer = json.loads(bytes(response.body))
    return response if "error" in answer else JSONResponse({**answer, "result": None})
