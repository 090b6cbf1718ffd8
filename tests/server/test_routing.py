"""Reading of query parameters."""

import pytest
from starlette.requests import Request

from hookline.server.errors import ApiError
from hookline.server.routing import query_of
from hookline.server.views import WaitQuery


def asked(query):
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


class Counted(str):
    """A text that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_checking_many_query_fields_takes_linear_time(monkeypatch):
    request = asked("&".join(f"f{number}=" for number in range(3000)))
    pairs = [(Counted(name), value) for name, value in request.query_params.multi_items()]
    monkeypatch.setattr(type(request.query_params), "multi_items", lambda self: pairs)
    with pytest.raises(ApiError) as refused:
        query_of(request, WaitQuery)
    assert refused.value.status == 422
    assert Counted.compared < 10 * len(pairs)


def test_the_error_names_a_field_that_is_given_twice():
    with pytest.raises(ApiError, match="wait is given twice"):
        query_of(asked("wait=1&wait=2"), WaitQuery)
    assert query_of(asked("wait=1"), WaitQuery).wait == 1
