"""Logs: one line per record, with ids and without secrets."""

import asyncio
import io
import json
import logging
import re
import sys
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from hookline import ON_RUN_START, Agent, AgentContext, ScriptedModel, call, observer, tool
from hookline.config.errors import ConfigError
from hookline.hooks import AuditLogHook
from hookline.server.logs import (
    JsonFormatter,
    LogFieldsHook,
    TextFormatter,
    log_fields,
    logging_with,
    redacted,
    setup_logs,
)
from hookline.server.options import ServerOptions
from hookline.server.routing import Endpoint, Gate, caller_of, correlation_of
from hookline.testing import scripted_agent
from tests.properties import examples

from .console.rig import console
from .rig import ADMIN, make, serving
from .walk import client_of

KEY = "hl_4f9aQ2xW8bLr7TzK3mNp6VcD"
ours = logging.getLogger("hookline")


@contextmanager
def logs(kind="json", **given):
    out = io.StringIO()
    undo = setup_logs(kind, stream=out, **given)
    try:
        yield out
    finally:
        undo()


def lines(out):
    return [json.loads(line) for line in out.getvalue().splitlines()]


def record(message="x", *args, name="hookline", level=logging.INFO, error=None, **extra):
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord(name, level, __file__, 1, message, args, info)
    vars(made).update(extra)
    return made


def as_json(*args, **given):
    text = JsonFormatter().format(record(*args, **given))
    assert re.fullmatch(r"[ -~]+", text)
    return json.loads(text)


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_record_is_one_line_of_json_with_its_fields():
    with logs() as out, logging_with(correlation_id="corr-1", caller="ci", run_id=""):
        ours.info("started %s\nwith %d", "a", 3, extra={"port": 8080, "tags": ["x", None], "time": "mine"})
    (line,) = lines(out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "INFO",
        "logger": "hookline",
        "message": "started a\nwith 3",
        "correlation_id": "corr-1",
        "caller": "ci",
        "port": 8080,
        "tags": ["x", None],
        "time_": "mine",
    }


def test_values_that_are_not_json_become_text():
    line = as_json("%s %d", "x", size=2**70)
    assert (line["message"], line["size"]) == ("%s %d ('x',)", str(2**70))


def test_an_exception_is_text_in_the_same_line():
    line = as_json("it failed", error=raised(ValueError(f"bad\nkey {KEY}")))
    assert line["exception"].startswith("Traceback")
    assert re.search(r"\nkey \[(api-key|secret)\]$", line["exception"])
    assert "ValueError: bad\n" in line["exception"]


class Odd:
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


class OddError(Exception):
    __str__ = Odd.__str__


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.builds(Odd)
    | st.builds(object)
    | st.builds(pow, st.just(10), st.just(5000))
    | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters()), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(
    st.text(st.characters()) | VALUES,
    st.lists(VALUES, max_size=3),
    st.text(st.characters()),
    st.dictionaries(st.text(st.characters()), VALUES, max_size=3),
    st.sampled_from([None, OddError(), ValueError("\ud800\n")]),
)
def test_any_record_becomes_one_valid_line(message, args, name, extra, error):
    gives_one_line(message, args, name, extra, error)


def test_odd_records_become_one_valid_line():
    extra = {"level": 1, "message": "m", "exc_info": 3, "created": float("inf")}
    gives_one_line("%s %d", ["x"], "hookline", extra, None)
    gives_one_line("%s", [Odd()], "a2a.x", {"levelno": "x"}, OddError())


def gives_one_line(message, args, name, extra, error):
    made = record(message, *args, name=name, error=error)
    vars(made).update(extra)
    with logging_with(caller="\ud800\n", run_id="\x7f"):
        line = JsonFormatter().format(made)
        shown = TextFormatter().format(made)
    assert re.fullmatch(r"[ -~]+", line)
    read = json.loads(line)
    assert {"time", "level", "logger", "message"} <= read.keys()
    json.dumps(read, ensure_ascii=False).encode()
    shown.encode()
    first, *below = shown.split("\n")
    assert all(each.isprintable() for each in (first, *below))
    assert all(each.startswith("    ") for each in below)


@pytest.mark.parametrize(
    "text",
    [
        f"key {KEY} was revoked",
        f"Authorization: Bearer {KEY}",
        "Authorization: Basic dXNlcjpwYXNz",
        "headers {'authorization': 'Basic dXNlcjpwYXNz', 'host': 'x'}",
        "[(b'host', b'x'), (b'authorization', b'Bearer abcdefgh')]",
        'Authorization: Digest username="me", response="6629fae49393a05397450978507c4ef1"',
        "x-api-key=abcdefgh",
        "cookie: session=abcdefgh",
        "sent Bearer abc123def456ghi",
        "with sk-ant-api03-AbCdEfGh1234567890abcdef",
        "GET https://me:pAssw0rd9@example.com/x",
        "password=Tr0ub4dor&3",
    ],
)
def test_secrets_are_removed_from_messages(text):
    secrets = ["hl_4f", "dXNlcj", "abcdefgh", "6629fae", "abc123", "AbCdEf", "pAssw0rd9", "Tr0ub4"]
    assert any(secret in text for secret in secrets)
    for by_message in (as_json("%s", text)["message"], TextFormatter().format(record("%s", text)), redacted(text)):
        assert not any(secret in by_message for secret in secrets), by_message


def test_secrets_are_removed_from_fields_by_value_and_by_name():
    line = as_json("x", token="plainword", inner={"password": "hunter", "note": [f"use {KEY}"]}, port=1)
    assert (line["token"], line["inner"], line["port"]) == (
        "[secret]",
        {"password": "[secret]", "note": ["use [api-key]"]},
        1,
    )
    with logging_with(correlation_id=KEY):
        assert as_json("x")["correlation_id"] == "[api-key]"


def test_ids_are_not_redacted():
    ids = [
        "run_509cea959492151a966bf501",
        "4bf92f35-77b3-4da6-a3ce-929d0e0e4736",
        "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZg",
    ]
    for one in ids:
        with logging_with(run_id=one, correlation_id=one):
            line = as_json("the run goes on")
        assert (line["run_id"], line["correlation_id"]) == (one, one)
    assert as_json(f"run {ids[0]} for {ids[1]}")["message"] == f"run {ids[0]} for {ids[1]}"


def test_long_texts_are_cut_but_never_inside_a_secret():
    text = "word " * 1599 + KEY + " and " * 3_000_000
    message = as_json("%s", text)["message"]
    assert len(message) < 8100
    assert "hl_" not in message
    assert message.endswith(" more characters)")
    trace = as_json("x", error=raised(ValueError("line\n" * 500_000 + "the end")))["exception"]
    assert len(trace) <= 16_000
    assert trace.endswith("the end")
    fields = as_json("x", many=list(range(1000)), **{"n" * 500: 1})
    assert len(fields["many"]) == 50
    assert fields["n" * 100] == 1


def test_text_lines_are_short_and_escape_control_characters():
    with logging_with(run_id="run_1"):
        shown = TextFormatter(color=True).format(record("hello\n12:00:00 error forged\x1b[2J", level=logging.WARNING))
        plain = TextFormatter().format(
            record("hello", name="uvicorn.error", level=logging.ERROR, error=raised(OSError("x\ny")))
        )
    assert re.fullmatch(
        r"\x1b\[2m\d\d:\d\d:\d\d\x1b\[0m \x1b\[33mwarning\x1b\[0m hello\\n12:00:00 error forged\\x1b\[2J  "
        r"\x1b\[2mrun_id=run_1\x1b\[0m",
        shown,
    )
    first, *below = plain.split("\n")
    assert re.fullmatch(r"\d\d:\d\d:\d\d error   uvicorn\.error: hello  run_id=run_1", first)
    assert below[-2:] == ["    OSError: x", "    y"]


def test_text_lines_omit_fields_that_the_message_contains():
    access = {"caller": "ci", "route": "/runs"}
    with logging_with(correlation_id="c-1", run_id="run_1"):
        shown = TextFormatter().format(
            record("GET /runs caller=ci correlation_id=c-1", name="hookline.access", access=access)
        )
    assert shown.endswith(" info    GET /runs caller=ci correlation_id=c-1  run_id=run_1")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_log_format_depends_on_the_stream(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def written(out, kind="auto"):
        undo = setup_logs(kind, stream=out)
        ours.warning("x")
        undo()
        return out.getvalue()

    assert json.loads(written(io.StringIO()))["message"] == "x"
    assert written(Terminal()).startswith("\x1b[2m")
    assert json.loads(written(Terminal(), "json"))["message"] == "x"
    assert "\x1b" not in written(io.StringIO(), "text")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in written(Terminal())
    with pytest.raises(ValueError, match="auto, json, text"):
        setup_logs("xml")


def test_undo_restores_the_logging_configuration():
    names = ("", "hookline", "a2a", "uvicorn", "httpx")

    def state():
        return [(each.level, each.propagate, list(each.handlers)) for each in map(logging.getLogger, names)]

    ours.propagate = False
    try:
        before = state()
        out = io.StringIO()
        undo = setup_logs("json", debug=True, stream=out)
        assert state() != before
        ours.debug("x")
        assert lines(out)[0]["message"] == "x"
        undo()
        assert state() == before
        undo()
        assert state() == before
    finally:
        ours.propagate = True


@pytest.mark.parametrize("debug", [False, True])
def test_other_libraries_log_warnings_only(debug, monkeypatch):
    monkeypatch.setattr(
        logging.getLogger("uvicorn.access"), "propagate", True
    )  # an earlier server in this process turned it off
    with logs(debug=debug) as out:
        for name in (
            "a2a.server.routes.jsonrpc_dispatcher",
            "uvicorn.error",
            "uvicorn.access",
            "httpx",
            "some.library",
        ):
            logging.getLogger(name).debug("Request body: %s", {"secret": 1})
            logging.getLogger(name).info("GET https://example.com/?q=private")
            logging.getLogger(name).warning("beware")
        ours.debug("details")
    assert [line["message"] for line in lines(out)] == ["beware"] * 5 + ["details"] * debug


def a2a_app():
    from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
    from starlette.applications import Starlette
    from starlette.routing import Route

    class Handler:
        async def on_get_task(self, request, context):
            raise KeyError("ours")

    dispatcher = JsonRpcDispatcher(Handler(), enable_v0_3_compat=True)
    return Starlette(routes=[Route("/", dispatcher.handle_requests, methods=["POST"])])


async def post(body):
    from httpx import ASGITransport, AsyncClient

    async with AsyncClient(transport=ASGITransport(a2a_app()), base_url="http://x") as client:
        return await client.post("/", content=body, headers={"A2A-Version": "1.0"})


async def test_an_internal_error_is_logged_with_its_traceback():
    with logs() as out:
        await post(b'{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "t"}}')
    first = lines(out)[0]
    assert first["level"] == "ERROR"
    assert first["exception"].startswith("Traceback")
    assert "KeyError: 'ours'" in first["exception"]


def test_log_records_inside_a_run_have_its_ids():
    other = logging.getLogger("some.library")

    @tool
    def blocking() -> str:
        """In a thread."""
        other.warning("in a tool")
        return "x"

    inner = Agent("inner", llm=ScriptedModel(["deep"]))

    @tool
    async def nested(ctx: AgentContext) -> str:
        """Within."""
        result = await inner.arun("y", ctx=ctx)
        await asyncio.gather(log_warning("after %s", result.ids.run_id))
        return "x"

    async def log_warning(*args):
        other.warning(*args)

    @observer(ON_RUN_START)
    def start(ctx, payload):
        ours.info("begun")

    agent = scripted_agent(
        [call("blocking"), call("nested"), "done"], tools=[blocking, nested], hooks=[LogFieldsHook(), start]
    )
    with logs() as out, logging_with(caller="ci", correlation_id="of the request"):
        result = agent.run("x", task_id="task-1", correlation_id="corr-1")
        other.warning("outside")
    by_message = {line["message"]: line for line in lines(out) if line["message"] != "begun"}
    ids = {"run_id": result.ids.run_id, "task_id": "task-1", "correlation_id": "corr-1", "caller": "ci"}
    after = next(name for name in by_message if name.startswith("after"))
    for message in ("in a tool", after):
        assert {name: by_message[message].get(name) for name in ids} == ids
    assert "run_id" not in by_message["outside"]
    assert by_message["outside"]["correlation_id"] == "of the request"
    begun = [line["run_id"] for line in lines(out) if line["message"] == "begun"]
    assert begun == [result.ids.run_id, after.removeprefix("after ")]
    assert {line["correlation_id"] for line in lines(out) if line["message"] == "begun"} == {"corr-1"}


async def test_log_records_of_a_request_and_its_run_share_the_correlation_id(tmp_path):
    other = logging.getLogger("some.library")

    @tool
    def look() -> str:
        """Look."""
        other.warning("in a tool")
        return "x"

    async with serving(tmp_path, make([call("look"), "done"], tools=[look])) as service:

        async def start(request):
            other.warning("in the request")
            asked = {"correlation_id": correlation_of(request)}
            run = await service.start(caller_of(request), "x", transport="test", **asked)
            return JSONResponse({"id": run.id})

        gate = Gate(None, ServerOptions())
        with logs() as out:
            async with client_of(gate.routes([Endpoint("POST", "/runs", start, ("run",), "start")])) as client:
                id = (await client.post("/runs", headers={"X-Correlation-Id": "from-ci"})).json()["id"]
            await service.wait(id, ADMIN)
    by_message = {line["message"]: line for line in lines(out)}
    for message, run_id in (("in the request", None), ("in a tool", id)):
        line = by_message[message]
        assert (line["correlation_id"], line["caller"], line.get("run_id")) == ("from-ci", "local", run_id)
    found = next(line for line in lines(out) if line["logger"] == "hookline.access")
    assert (found["status"], found["route"], found["correlation_id"]) == (200, "/runs", "from-ci")


async def test_concurrent_runs_do_not_mix_their_log_fields():
    other, both = logging.getLogger("some.library"), asyncio.Barrier(2)

    @tool
    async def wait(ctx: AgentContext) -> str:
        """Wait for the other one."""
        await both.wait()
        other.warning("%s", ctx.run_id)
        return "x"

    agents = [scripted_agent([call("wait"), "x"], tools=[wait], hooks=[LogFieldsHook()]) for _ in range(2)]
    with logs() as out:
        await asyncio.gather(*(agent.arun("x") for agent in agents))
    found = [(line["message"], line["run_id"]) for line in lines(out)]
    assert len(found) == 2
    assert all(by_message == field for by_message, field in found)
    assert dict(log_fields.get()) == {}


def test_log_fields_survive_a_block_that_is_closed_in_another_context():
    import contextvars

    block = logging_with(run_id="r")
    contextvars.copy_context().run(block.__enter__)
    block.__exit__()
    assert dict(log_fields.get()) == {}


def test_logs_go_to_the_current_stderr(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    undo = setup_logs()
    ours.info("x")
    undo()
    assert lines(out)[0]["message"] == "x"


@pytest.mark.parametrize("kind", ["json", "text"])
async def test_one_setting_copies_the_audit_log_to_the_log_stream_one_object_a_line(tmp_path, kind):
    audit = tmp_path / "audit.jsonl"
    with logs(kind) as out:
        agent = make(hooks=[AuditLogHook(audit)])
        async with console(tmp_path, agent, audit=audit, audit_stream=True) as made, made.browser() as browser:
            await browser.post("/runs", json={"task": "hello\n", "wait": 30})
    stored = [json.loads(line) for line in audit.read_text().splitlines()]
    shown = [json.loads(line) for line in out.getvalue().splitlines() if line.startswith('{"v":')]
    copied = [{name: value for name, value in each.items() if name not in ("seq", "prev")} for each in stored]
    assert [each for each in copied if each["type"] != "open"] == [
        each for each in shown if each["type"] not in ("open", "checkpoint")
    ]
    assert {"auth", "run_start", "run_end", "checkpoint"} <= {each["type"] for each in shown}


async def test_a_copy_of_an_audit_log_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="audit_stream copies the audit log, and there is none"):
        async with console(tmp_path, make(), audit="", audit_stream=True):
            pass
