"""Amazon Bedrock, with its official client against a local server that speaks the Converse protocol."""

import json
import struct
import sys
from base64 import b64encode
from binascii import crc32
from functools import cache

import pytest

from hookline import Agent, Attachment, Message, ModelRequest, RegistrationError, get_model, tool
from hookline.errors import NotInstalledError
from hookline.events import TextDelta
from hookline.models import (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    ModelTimeoutError,
    OverloadedError,
    Price,
    RateLimitError,
    UnknownModelError,
    UnreachableError,
)
from hookline.payloads import ToolCall, ToolSpec, Usage
from hookline.providers import remote

from .servers import Said, whole

pytest.importorskip("boto3", reason="these tests need: pip install boto3")

NAME = "amazon.nova-lite-v1:0"
USAGE = {"inputTokens": 100, "outputTokens": 10, "totalTokens": 110, "cacheReadInputTokens": 50}
ASKED = ModelRequest((Message("system", "Be brief."), Message("user", "Hi.")))
ADD = ToolSpec("math.add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
CALLED = {"toolUse": {"toolUseId": "t1", "name": "math_add", "input": {"a": 1}}}


@pytest.fixture(scope="module", autouse=True)
def one_loader():
    """Read the descriptions of Amazon's services once: each client reads them, which takes 80 ms."""
    with pytest.MonkeyPatch.context() as patch:
        from botocore import loaders

        patch.setattr(loaders, "create_loader", cache(loaders.create_loader))
        yield


@pytest.fixture(autouse=True)
def credentials(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-tests")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def model_at(script, **options):
    given = {"region": "eu-central-1", "base_url": script.url, "max_retries": 0, **options}
    return get_model(f"bedrock:{NAME}", **given)


def replied(*blocks, stop="end_turn"):
    message = {"role": "assistant", "content": list(blocks)}
    return whole({"output": {"message": message}, "stopReason": stop, "usage": USAGE, "metrics": {"latencyMs": 5}})


def refused(status, code, message):
    return whole({"message": message}, status, **{"x-amzn-ErrorType": code})


def frame(kind, payload, message_type="event"):
    """One message of Amazon's event stream encoding."""
    named = ":exception-type" if message_type == "exception" else ":event-type"
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in ((named, kind), (":content-type", "application/json"), (":message-type", message_type))
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack(">I", crc32(prelude)) + headers + body
    return message + struct.pack(">I", crc32(message))


def events(*frames, **options):
    return Said(list(frames), headers={"Content-Type": "application/vnd.amazon.eventstream"}, **options)


START = frame("messageStart", {"role": "assistant"})
END = (
    frame("messageStop", {"stopReason": "end_turn"}),
    frame("metadata", {"usage": USAGE, "metrics": {"latencyMs": 5}}),
)


def piece(index, **delta):
    return frame("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})


async def streamed(model, request=ASKED):
    *pieces, last = [piece async for piece in model.stream(request)]
    return pieces, last


async def test_a_request_is_signed_and_has_the_form_of_converse(script):
    script.say(replied({"text": "Hello."}))
    params = {"max_tokens": 5, "temperature": 0.5, "stop": "x", "top_k": 3}
    got = await model_at(script).complete(ModelRequest(ASKED.messages, tools=(ADD,), params=params))
    ((path, headers, body),) = script.requests
    assert path == "/model/amazon.nova-lite-v1%3A0/converse"
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert body == {
        "system": [{"text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"text": "Hi."}]}],
        "inferenceConfig": {"maxTokens": 5, "temperature": 0.5, "stopSequences": ["x"]},
        "additionalModelRequestFields": {"top_k": 3},
        "toolConfig": {
            "tools": [
                {"toolSpec": {"name": "math_add", "description": "Add.", "inputSchema": {"json": ADD.parameters}}}
            ],
            "toolChoice": {"auto": {}},
        },
    }
    assert (got.content, got.finish_reason, got.provider, got.model) == ("Hello.", "stop", "bedrock", NAME)
    assert got.usage == Usage(150, 10, 50)


async def test_a_tool_call_and_its_result_go_back_and_forth(script):
    script.say(replied({"text": "Well."}, CALLED, stop="tool_use"), replied({"text": "3"}))

    @tool(name="math.add")
    def add(a: int) -> int:
        """Add."""
        return a + 2

    result = await Agent("a", llm=model_at(script), tools=[add]).arun("1 + 2?")
    assert result.reply == "3"
    assert script.bodies[1]["messages"][-2:] == [
        {"role": "assistant", "content": [{"text": "Well."}, CALLED]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "3"}]}}]},
    ]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [("required", {"any": {}}), ("math.add", {"tool": {"name": "math_add"}}), ("auto", {"auto": {}})],
)
async def test_the_choice_of_a_tool_is_sent(choice, sent, script):
    script.say(replied(CALLED, stop="tool_use"))
    await model_at(script).complete(ModelRequest(ASKED.messages, tools=(ADD,), tool_choice=choice))
    assert script.bodies[0]["toolConfig"]["toolChoice"] == sent


@pytest.mark.parametrize("tools", [(ADD,), ()])
async def test_without_a_choice_of_tools_the_model_gets_none_and_reads_earlier_calls_as_text(tools, script):
    script.say(replied({"text": "3"}))
    history = (
        *ASKED.messages,
        Message("assistant", "Well.", (ToolCall("t1", "math.add", {"a": 1}), ToolCall("t2", "math.add", {}))),
        Message("tool", "3", call_id="t1", name="math.add"),
        Message("tool", "Error: no", call_id="t2", name="math.add"),
    )
    await model_at(script).complete(ModelRequest(history, tools=tools, tool_choice="none"))
    (body,) = script.bodies
    assert "toolConfig" not in body
    assert "additionalModelRequestFields" not in body
    texts = [[block["text"] for block in turn["content"]] for turn in body["messages"][1:]]
    called = ["Well.", '[Called math_add with {"a": 1}]', "[Called math_add with {}]"]
    assert texts[0] == called
    assert texts[1][:2] == ["[Result]", "3"]
    assert "Error: no" in texts[1]


async def test_the_types_of_attachments_can_be_reduced(script):
    photo, report = Attachment.of(b"\x89PNG\r\n\x1a\n", name="a.png"), Attachment.of(b"%PDF-1.7", name="a.pdf")
    script.say(replied({"text": "A cat."}))
    model = model_at(script, attachments=["image/png"])
    await model.complete(ModelRequest((Message("user", "x", attachments=(photo,)),)))
    with pytest.raises(BadRequestError, match="does not take a.pdf"):
        await model.complete(ModelRequest((Message("user", "x", attachments=(report,)),)))
    with pytest.raises(RegistrationError, match="attachments= has 'audio/wav'"):
        model_at(script, attachments=["audio/wav"])
    assert len(script.requests) == 1


async def test_a_typed_answer_is_the_input_of_a_tool(script):
    answer = {"toolUse": {"toolUseId": "t", "name": "hookline_final_answer", "input": {"a": 1}}}
    script.say(replied(answer, stop="tool_use"))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    got = await model_at(script).complete(ModelRequest(ASKED.messages, response_format=schema))
    assert (json.loads(got.content), got.finish_reason, got.tool_calls) == ({"a": 1}, "stop", ())
    with pytest.raises(BadRequestError, match="only an object as response_format"):
        await model_at(script).complete(ModelRequest(ASKED.messages, response_format={"type": "integer"}))


async def test_a_stream_has_its_pieces_and_the_same_reply_as_a_whole_one(script):
    tool_use = {"toolUseId": "t1", "name": "math_add"}
    script.say(
        events(
            START,
            piece(0, reasoningContent={"text": "Hm."}),
            piece(1, text="Hel"),
            piece(1, text="lo."),
            frame("contentBlockStop", {"contentBlockIndex": 1}),
            frame("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": tool_use}}),
            piece(2, toolUse={"input": '{"a"'}),
            piece(2, toolUse={"input": ": 1}"}),
            frame("messageStop", {"stopReason": "tool_use"}),
            END[1],
        ),
        replied({"text": "Hello."}, CALLED, stop="tool_use"),
    )
    model, request = model_at(script), ModelRequest(ASKED.messages, tools=(ADD,))
    pieces, last = await streamed(model, request)
    assert pieces == ["Hel", "lo."]
    assert last == await model.complete(request)
    assert last.tool_calls == (ToolCall("t1", "math.add", {"a": 1}),)
    assert script.requests[0][0].endswith("/converse-stream")


async def test_an_agent_streams_from_bedrock(script):
    script.say(events(START, piece(0, text="Hi "), piece(0, text="there."), *END))
    agent = Agent("a", llm=model_at(script), stream="live")
    assert [event.text async for event in agent.stream("Hi.") if isinstance(event, TextDelta)] == ["Hi ", "there."]


async def test_closing_the_stream_closes_the_connection(script):
    script.say(events(START, piece(0, text="Hi"), hold=piece(0, text=" again")))
    stream = model_at(script).stream(ASKED)
    assert await anext(stream) == "Hi"
    await stream.aclose()
    assert script.gone.wait(30)


@pytest.mark.parametrize(
    ("status", "code", "message", "kind", "text"),
    [
        (429, "ThrottlingException", "Too many requests", RateLimitError, "Wait"),
        (403, "AccessDeniedException", "You don't have access to the model", AuthError, "rejected the key"),
        (403, "UnrecognizedClientException", "The security token is invalid.", AuthError, "security token"),
        (403, "ExpiredTokenException", "The token has expired", AuthError, "expired"),
        (400, "ValidationException", "The provided model identifier is invalid.", UnknownModelError, "has no model"),
        (404, "ResourceNotFoundException", "Model not found", UnknownModelError, "has no model"),
        (400, "ValidationException", "Input is too long for requested model.", ContextOverflowError, "Shorten"),
        (400, "ValidationException", "The number of toolResult blocks is wrong", BadRequestError, "toolResult"),
        (408, "ModelTimeoutException", "Timed out", ModelTimeoutError, "took too long"),
        (503, "ServiceUnavailableException", "Down", OverloadedError, "Try again"),
        (500, "InternalServerException", "Oops", OverloadedError, "Try again"),
    ],
)
async def test_an_error_of_bedrock_is_one_of_ours(status, code, message, kind, text, script):
    script.say(refused(status, code, message))
    with pytest.raises(kind, match=text) as problem:
        await model_at(script).complete(ASKED)
    assert problem.value.status == status


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (events(START, piece(0, text="Hi")), OverloadedError),
        (events(START, piece(0, text="Hi"), cut=True), UnreachableError),
        (events(START, b"no event at all, but long enough to look like one"), OverloadedError),
        (events(START, frame("throttlingException", {"message": "Slow down"}, "exception")), RateLimitError),
        (Said([b"<html>Welcome</html>"], headers={"Content-Type": "text/html"}), OverloadedError),
    ],
    ids=["truncated", "cut off", "no frames", "an exception", "a web page"],
)
async def test_a_malformed_stream_is_one_of_our_errors(turn, kind, script):
    script.say(turn)
    with pytest.raises(kind, match="bedrock"):
        await streamed(model_at(script))


@pytest.mark.parametrize(
    "turn",
    [
        Said([b"<html>Welcome</html>"], headers={"Content-Type": "text/html"}),
        whole({}),
        whole({"output": {"message": {"content": [{"toolUse": {"name": "x"}}]}}, "stopReason": "tool_use"}),
        Said([]),
    ],
    ids=["a web page", "nothing", "a call without an id", "no body"],
)
async def test_a_malformed_reply_is_one_of_our_errors(turn, script):
    script.say(turn)
    with pytest.raises((OverloadedError, UnreachableError), match="bedrock"):
        await model_at(script).complete(ASKED)


async def test_a_stream_that_does_not_end_is_an_error(script, monkeypatch):
    monkeypatch.setattr(remote, "MAX_REPLY_BYTES", 10_000)
    script.say(events(START, *[piece(0, text="and so on ")] * 200))
    with pytest.raises(UnreachableError, match="bedrock at .*its reply is longer than 10,000 bytes"):
        await streamed(model_at(script))


async def test_a_slow_server_is_a_timeout(script):
    script.say(Said([], headers={"Content-Type": "application/json"}, quiet=True))
    with pytest.raises(ModelTimeoutError, match=r"within 0.2 s"):
        await model_at(script, timeout=0.2).complete(ASKED)


async def test_a_server_that_is_not_there_is_unreachable():
    model = get_model(f"bedrock:{NAME}", region="x", base_url="http://127.0.0.1:9", max_retries=0)
    with pytest.raises(UnreachableError, match="cannot reach bedrock at http://127.0.0.1:9"):
        await model.complete(ASKED)


async def test_without_credentials_or_a_region_the_error_says_what_to_set(script, monkeypatch):
    with pytest.raises(BadRequestError, match="set AWS_REGION, or pass region="):
        await get_model(f"bedrock:{NAME}", base_url=script.url).complete(ASKED)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AuthError, match="Run 'aws configure'"):
        await model_at(script).complete(ASKED)


def test_mistakes_are_reported_when_the_model_is_made(monkeypatch):
    with pytest.raises(RegistrationError, match="write bedrock:NAME"):
        get_model("bedrock:")
    with pytest.raises(RegistrationError, match="a 'bedrock' model has no option api_key; it has: region"):
        get_model(f"bedrock:{NAME}", api_key="x")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(NotInstalledError, match=r"\[bedrock\]"):
        get_model(f"bedrock:{NAME}")


async def test_prices_come_from_the_list_or_are_given(script):
    listed = get_model(f"bedrock:{NAME}", base_url="https://bedrock-runtime.eu-central-1.amazonaws.com")
    assert listed.price(Usage(1_000_000, 0)) > 0
    script.say(replied({"text": "Hi."}))
    got = await model_at(script, price=Price(input=1, output=2)).complete(ASKED)
    assert got.cost == pytest.approx((150 * 1 + 10 * 2) / 1e6)


async def test_attachments_have_the_form_of_converse(script):
    png, pdf = b"\x89PNG\r\n\x1a\npixels", b"%PDF-1.7 pages"
    files = (
        Attachment.of(png, name="photo.png"),
        Attachment.of(pdf, name="report_1.pdf"),
        Attachment.of(b"a,b", name="t.csv"),
    )
    script.say(replied({"text": "A cat."}))
    await model_at(script).complete(ModelRequest((Message("user", "Look.", attachments=files),)))
    image, document, text, question = script.bodies[0]["messages"][0]["content"]
    assert image == {"image": {"format": "png", "source": {"bytes": b64encode(png).decode()}}}
    source = {"bytes": b64encode(pdf).decode()}
    assert document == {"document": {"name": "report-1-pdf", "format": "pdf", "source": source}}
    assert (text, question) == ({"text": "File t.csv:\na,b"}, {"text": "Look."})


async def test_the_picture_of_a_tool_is_in_its_result(script):
    photo = Attachment.of(b"\x89PNG\r\n\x1a\npixels", name="photo.png")
    script.say(replied({"text": "A cat."}))
    called = Message("assistant", "", (ToolCall("t1", "show", {}),))
    result = Message("tool", "one", call_id="t1", name="show", attachments=(photo,))
    show = ToolSpec("show", "Show.", {"type": "object"})
    await model_at(script).complete(ModelRequest((Message("user", "x"), called, result), tools=(show,)))
    (block,) = script.bodies[0]["messages"][2]["content"]
    assert [list(part) for part in block["toolResult"]["content"]] == [["text"], ["image"]]


@pytest.mark.parametrize(
    "wrong", [Attachment.of("https://example.com/a.png"), Attachment.of(b"ID3\x04", name="song.mp3")]
)
async def test_attachments_that_bedrock_does_not_take_are_refused_before_anything_is_sent(wrong, script):
    script.say(replied({"text": "A cat."}))
    what_to_do = "at a URL. Nothing was sent. Download it, and attach the file" if wrong.url else "Nothing was sent"
    with pytest.raises(BadRequestError, match=what_to_do):
        await model_at(script).complete(ModelRequest((Message("user", "x", attachments=(wrong,)),)))
    assert script.requests == []
