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
        found = error.errors(include_url=False, include_context=False, include_input=False)
        first = min(found, key=lambda each: each["loc"][:1] != ("params",))
        place = ".".join(map(str, first["loc"]))
        problem = "is missing" if first["type"] == "missing" else f"is not valid: {first['msg']}"
        code = INVALID_PARAMS if first["loc"][:1] == ("params",) else INVALID_REQUEST
        raise InvalidJsonRpcError(code, f"{place} {problem}", request.get("id")) from None


def complete_old_response(request: Mapping[str, Any], response: Response) -> Response:
    """Return a response of version 0.3 with the result ``null``, which the SDK leaves out."""
    if request["method"] != _DELETE:
        return response
    answer = json.loads(bytes(response.body))
    return response if "error" in answer else JSONResponse({**answer, "result": None})
