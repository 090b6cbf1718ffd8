"""Requests as values: bad ones are refused, at a cost that grows with their size alone."""

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


def test_many_fields_of_a_query_are_not_compared_each_with_each(monkeypatch):
    request = asked("&".join(f"f{number}=" for number in range(3000)))
    pairs = [(Counted(name), value) for name, value in request.query_params.multi_items()]
    monkeypatch.setattr(type(request.query_params), "multi_items", lambda self: pairs)
    with pytest.raises(ApiError) as refused:
        query_of(request, WaitQuery)
    assert refused.value.status == 422
    assert Counted.compared < 10 * len(pairs)


def test_a_field_that_is_given_twice_is_named():
    with pytest.raises(ApiError, match="wait is given twice"):
        query_of(asked("wait=1&wait=2"), WaitQuery)
    assert query_of(asked("wait=1"), WaitQuery).wait == 1
