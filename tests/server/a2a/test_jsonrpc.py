"""Invalid JSON-RPC requests: a valid error response, no log record, and nothing left behind."""

import asyncio
import json
import logging

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.server.a2a.jsonrpc import InvalidJsonRpcError, check_request
from tests.properties import examples

from ..rig import ADMIN
from .rig import VERSION, serving_a2a

SEND = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}

OLD = {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "hi"}]}


def rpc(method="SendMessage", params=SEND, **more):
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **more}).encode()


def deep(levels):
    return b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}"


WRONG = {
    "nothing": (b"", -32700),
    "not JSON": (b"{", -32700),
    "not text": (b"\xff\xfe\x00", -32700),
    "NaN": (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"historyLength":NaN}}', -32700),
    "a number too large": (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"a":1e999}}', -32700),
    "a number too long": (b'{"jsonrpc":"2.0","id":%s,"method":"GetTask"}' % (b"9" * 5000), -32700),
    "half a character": (b'{"jsonrpc":"2.0","id":"\\ud800","method":"GetTask"}', -32700),
    "a batch": (b"[" + rpc() + b"]", -32600),
    "an empty batch": (b"[]", -32600),
    "a text": (b'"hi"', -32600),
    "null": (b"null", -32600),
    "true": (b"true", -32600),
    "no method": (b'{"jsonrpc":"2.0","id":1}', -32600),
    "a number as method": (rpc(method=5), -32600),
    "an empty method": (rpc(method=""), -32600),
    "an unknown method": (rpc(method="Nonsense"), -32601),
    "a private method": (rpc(method="__init__"), -32601),
    "version 1": (rpc(jsonrpc="1.0"), -32600),
    "version as a number": (rpc(jsonrpc=2.0), -32600),
    "a bool as id": (rpc(id=True), -32600),
    "an object as id": (rpc(id={}), -32600),
    "a fraction as id": (rpc(id=1.5), -32600),
    "a long id": (rpc(id="x" * 100_000), -32600),
    "a huge id": (rpc(id=10**400), -32600),
    "a list as params": (rpc(params=[1]), -32602),
    "a bool as params": (rpc(params=True), -32602),
    "params of another kind": (rpc(params={"message": 5}), -32602),
    "a message of another kind": (rpc(params={"message": {"parts": "x"}}), -32602),
    "no message": (rpc(params={}), -32602),
    "no parts": (rpc(params={"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}}), -32602),
    "an empty part": (rpc(params={"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{}]}}), -32602),
    "a bool as text": (rpc(params={"message": {"messageId": "m", "role": 1, "parts": [{"text": True}]}}), -32602),
    "no id of a task": (rpc("GetTask", {}), -32602),
    "a bool as history": (rpc("GetTask", {"id": "x", "historyLength": True}), -32602),
    "less than no history": (rpc("GetTask", {"id": "x", "historyLength": -1}), -32602),
    "a huge page": (rpc("ListTasks", {"pageSize": 2**40}), -32602),
    "a time of another kind": (rpc("ListTasks", {"statusTimestampAfter": "yesterday"}), -32602),
    "nested": (deep(100), -32600),
    "nested very deep": (deep(100_000), -32600),
    "many values": (rpc(params={"message": {**SEND["message"], "parts": [{"data": [0] * 6000}]}}), -32600),
    "many values under wrong names": (b'{"jsonrpc":"2.0","id":1,"params":[' + b"[]," * 30_000 + b"[]]}", -32600),
    "many values and then no JSON": (b'{"jsonrpc":"2.0","params":[' + b"[]," * 30_000, -32700),
    "half a character in a long text": (rpc(id="x") + b'"\\ud800"' + b" " * 60_000, -32700),
    "nested deep and long": (deep(10_000), -32600),
    "many wrong parts, by the old name": (rpc("message/send", {"message": {"parts": [1] * 6000}}), -32600),
    "the old name of a task, with too much history": (rpc("tasks/get", {"id": "x", "historyLength": 10**30}), -32602),
    "the old name, with too much history": (
        rpc("message/send", {"message": OLD, "configuration": {"historyLength": 2**31}}),
        -32602,
    ),
    "the old name, with nothing": (rpc("message/send", {}), -32602),
    "the old name, of another kind": (rpc("message/send", {"message": {"parts": 5}}), -32602),
    "the old name of a task": (rpc("tasks/get", {"id": 5}), -32602),
}


async def test_an_invalid_request_gets_an_error_and_leaves_nothing_behind(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "hookline")
    caplog.set_level(logging.INFO, "a2a")
    async with serving_a2a(tmp_path) as rig, httpx.AsyncClient(verify=False, timeout=60) as http:
        await http.post(f"{rig.url}/a2a/helper", content=rpc(), headers=VERSION)
        (run,) = await rig.service.list(ADMIN)
        before = len(asyncio.all_tasks())
        for name, (body, code) in WRONG.items():
            headers = {} if "old name" in name else VERSION
            answer = await http.post(f"{rig.url}/a2a/helper", content=body, headers=headers)
            parsed = answer.json()
            assert (answer.status_code, parsed["jsonrpc"]) == (200, "2.0"), name
            assert parsed["error"]["code"] == code, (name, parsed)
            assert parsed["error"]["message"], name
            assert "Traceback" not in answer.text, name
        assert len(await rig.service.list(ADMIN)) == 1
        assert rig.service.counts()["readers"] == 0
        assert len(asyncio.all_tasks()) <= before
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.WARNING] == []


def test_a_request_with_too_many_values_is_rejected_before_the_sdk_parses_it():
    with pytest.raises(InvalidJsonRpcError, match="5000 values"):
        check_request(rpc("message/send", {"message": {"parts": [1] * 6000}}))
    check_request(rpc(params={"message": {"parts": [{"data": [0] * 4900}]}}))


async def test_an_unsupported_version_is_rejected(tmp_path):
    async with serving_a2a(tmp_path) as rig, httpx.AsyncClient(verify=False, timeout=60) as http:
        for method, version in (
            ("SendMessage", "2.0"),
            ("SendMessage", "0.3"),
            ("SendMessage", "x"),
            ("SendMessage", ""),
        ):
            headers = {"A2A-Version": version} if version else {}
            answer = await http.post(f"{rig.url}/a2a/helper", content=rpc(method), headers=headers)
            assert answer.json()["error"]["code"] == -32009
        answer = await http.post(f"{rig.url}/a2a/helper", content=rpc("tasks/get", {"id": "x"}), headers=VERSION)
        assert answer.json()["error"]["code"] == -32603
        assert (await http.post(f"{rig.url}/a2a/nobody", content=rpc(), headers=VERSION)).status_code == 404
        assert await rig.service.list(ADMIN) == []


async def test_an_internal_error_is_logged_and_not_sent(tmp_path, caplog, monkeypatch):
    async with serving_a2a(tmp_path) as rig:

        async def broken(*args, **options):
            raise RuntimeError("secret detail")

        monkeypatch.setattr(rig.service, "get", broken)
        for method in ("GetTask", "tasks/get"):
            parsed = await rig.call(method, {"id": "x"}, headers=VERSION if method == "GetTask" else {})
            assert parsed["error"]["code"] == -32603
            assert "secret" not in json.dumps(parsed)
        assert "secret detail" in caplog.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(50))
@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_accepted_or_rejected_with_a_valid_response(body):
    answer = None
    try:
        check_request(body)
    except InvalidJsonRpcError as refused:
        answer = refused.response
    if answer is None:
        assert json.loads(body)["jsonrpc"] == "2.0"
    else:
        json.dumps(answer, ensure_ascii=False).encode()
        assert answer["error"]["code"] in (-32700, -32600, -32602)


@settings(max_examples=examples(50))
@given(
    st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params"]), json_values),
    st.sampled_from(["2.0", "1.0", 2]),
)
def test_an_accepted_request_has_all_required_fields(fields, version):
    request = {"jsonrpc": version, **fields}
    try:
        check_request(json.dumps(request).encode())
    except InvalidJsonRpcError:
        return
    assert request["jsonrpc"] == "2.0"
    assert isinstance(request["method"], str)
    assert isinstance(request.get("params", {}), dict)
    assert request.get("id") is None or type(request["id"]) in (str, int)


@pytest.mark.parametrize("body", [rpc(), rpc(id=None), rpc(id="x"), rpc(id=-5)])
def test_a_valid_request_is_accepted(body):
    check_request(body)
