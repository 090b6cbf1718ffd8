"""Attachments in requests to the vendors' APIs, as a server sees them, and refusals before anything is sent."""

from base64 import b64decode, b64encode

import pytest

from hookline import Agent, Attachment, Message, ModelRequest, RegistrationError, RunFailedError, get_model, tool
from hookline.models import BadRequestError
from hookline.payloads import ToolCall
from hookline.providers.anthropic import AnthropicModel
from hookline.providers.openai import OpenAIModel

from .servers import sse, whole

PNG = b"\x89PNG\r\n\x1a\npixels"
PDF = b"%PDF-1.7 pages"
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt "
IMAGE = Attachment.of(PNG, name="photo.png")
DOCUMENT = Attachment.of(PDF, name="report.pdf")
SOUND = Attachment.of(WAV, name="clip.wav")
MP3 = Attachment.of(b"ID3\x04sound", name="song.mp3")
TEXT = Attachment.of("häuser,2\n".encode(), name="table.csv")
ZIP = Attachment.of(b"PK\x03\x04", name="files.zip")
LINK = Attachment.of("https://example.com/photo.png")
PDF_LINK = Attachment.of("https://example.com/report.pdf")

CHAT = {"id": "1", "model": "m", "choices": [{"message": {"content": "A cat."}, "finish_reason": "stop"}]}
RESPONSE = {
    "model": "m",
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "A cat."}]}],
}
MESSAGE = {"model": "m", "content": [{"type": "text", "text": "A cat."}], "stop_reason": "end_turn"}
APIS = {"chat": CHAT, "responses": RESPONSE, "anthropic": MESSAGE}


def encoded(data):
    return b64encode(data).decode()


def model_of(api, script, **options):
    script.say(whole(APIS[api]))
    if api == "anthropic":
        return AnthropicModel("m", base_url=script.url, max_retries=0, **options)
    return OpenAIModel("m", api=api, base_url=script.url, max_retries=0, **options)


async def sent(api, script, *messages):
    """Return the body that the server got for these messages."""
    response = await model_of(api, script).complete(ModelRequest(messages))
    assert response.content == "A cat."
    return script.bodies[0]


async def part_of(api, script, attachment):
    """Return the part of the request with this attachment."""
    body = await sent(api, script, Message("user", "What is this?", attachments=(attachment,)))
    (message,) = body["input"] if api == "responses" else body["messages"]
    (part,) = [part for part in message["content"] if part.get("text") != "What is this?"]
    return part


@pytest.mark.parametrize(
    ("attachment", "part"),
    [
        (IMAGE, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(PNG)}"}}),
        (LINK, {"type": "image_url", "image_url": {"url": "https://example.com/photo.png"}}),
        (
            DOCUMENT,
            {
                "type": "file",
                "file": {"filename": "report.pdf", "file_data": f"data:application/pdf;base64,{encoded(PDF)}"},
            },
        ),
        (SOUND, {"type": "input_audio", "input_audio": {"data": encoded(WAV), "format": "wav"}}),
        (MP3, {"type": "input_audio", "input_audio": {"data": encoded(b"ID3\x04sound"), "format": "mp3"}}),
        (TEXT, {"type": "text", "text": "File table.csv:\nhäuser,2\n"}),
    ],
)
async def test_chat_completions(script, attachment, part):
    assert await part_of("chat", script, attachment) == part


@pytest.mark.parametrize(
    ("attachment", "part"),
    [
        (IMAGE, {"type": "input_image", "image_url": f"data:image/png;base64,{encoded(PNG)}"}),
        (LINK, {"type": "input_image", "image_url": "https://example.com/photo.png"}),
        (
            DOCUMENT,
            {
                "type": "input_file",
                "filename": "report.pdf",
                "file_data": f"data:application/pdf;base64,{encoded(PDF)}",
            },
        ),
        (PDF_LINK, {"type": "input_file", "file_url": "https://example.com/report.pdf"}),
        (TEXT, {"type": "input_text", "text": "File table.csv:\nhäuser,2\n"}),
    ],
)
async def test_responses(script, attachment, part):
    assert await part_of("responses", script, attachment) == part


@pytest.mark.parametrize(
    ("attachment", "part"),
    [
        (IMAGE, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(PNG)}}),
        (LINK, {"type": "image", "source": {"type": "url", "url": "https://example.com/photo.png"}}),
        (
            DOCUMENT,
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": encoded(PDF)},
                "title": "report.pdf",
            },
        ),
        (
            PDF_LINK,
            {
                "type": "document",
                "source": {"type": "url", "url": "https://example.com/report.pdf"},
                "title": "report.pdf",
            },
        ),
        (
            TEXT,
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "häuser,2\n"},
                "title": "table.csv",
            },
        ),
    ],
)
async def test_messages(script, attachment, part):
    assert await part_of("anthropic", script, attachment) == part


@pytest.mark.parametrize("api", APIS)
async def test_an_svg_file_is_sent_as_text(script, api):
    drawing = Attachment.of(b"<svg/>", name="a.svg")
    assert drawing.media_type == "image/svg+xml"
    assert "<svg/>" in str(await part_of(api, script, drawing))


CALLED = (
    Message("user", "Show both."),
    Message("assistant", "", (ToolCall("c1", "show", {}), ToolCall("c2", "show", {}))),
    Message("tool", "one", call_id="c1", name="show", attachments=(IMAGE,)),
    Message("tool", "two", call_id="c2", name="show", attachments=(DOCUMENT,)),
    Message("user", "Compare."),
)


async def test_chat_completions_get_the_files_of_tool_results_after_all_results(script):
    body = await sent("chat", script, *CALLED)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "tool", "user", "user"]
    kinds = [part["type"] for part in body["messages"][4]["content"]]
    assert kinds == ["text", "image_url", "text", "file"]
    assert body["messages"][4]["content"][0]["text"] == "Attachments of the result of show (call c1):"
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "one"}


async def test_responses_get_the_files_in_the_tool_results(script):
    body = await sent("responses", script, *CALLED)
    outputs = [item["output"] for item in body["input"] if item["type"] == "function_call_output"]
    assert [[part["type"] for part in output] for output in outputs] == [
        ["input_text", "input_image"],
        ["input_text", "input_file"],
    ]


async def test_messages_get_the_files_in_the_tool_results(script):
    body = await sent("anthropic", script, *CALLED)
    blocks = [block for turn in body["messages"] for block in turn["content"] if block["type"] == "tool_result"]
    assert [[part["type"] for part in block["content"]] for block in blocks] == [
        ["text", "image"],
        ["text", "document"],
    ]


@pytest.mark.parametrize("api", APIS)
async def test_a_message_without_attachments_is_sent_as_before(script, api):
    body = await sent(api, script, Message("user", "Hi."))
    (message,) = body["input"] if api == "responses" else body["messages"]
    assert message["content"] == ([{"type": "text", "text": "Hi."}] if api == "anthropic" else "Hi.")


@pytest.mark.parametrize(
    ("api", "attachment", "why"),
    [
        ("anthropic", SOUND, "does not take clip.wav"),
        ("responses", SOUND, "does not take clip.wav"),
        ("chat", ZIP, "does not take files.zip"),
        ("chat", PDF_LINK, "at a URL. Nothing was sent. Download it, and attach the file"),
        ("chat", Attachment.of("https://example.com/a.wav"), "at a URL. Nothing was sent. Download it"),
        *((api, Attachment.of("https://example.com/a.csv"), "at a URL. Nothing was sent. Download it") for api in APIS),
        ("anthropic", Attachment.of(b"BM....", media_type="image/bmp", name="a.bmp"), "does not take a.bmp"),
        ("chat", Attachment("image/png", "0" * 64, 5, "gone.png"), "gone.png .* is not stored here"),
    ],
)
@pytest.mark.parametrize("how", ["complete", "stream", "run"])
async def test_what_an_api_does_not_take_is_refused_before_anything_is_sent(script, api, attachment, why, how):
    model = model_of(api, script)
    request = ModelRequest((Message("user", "x", attachments=(attachment,)),))
    with pytest.raises((BadRequestError, RunFailedError), match=why):
        if how == "complete":
            await model.complete(request)
        elif how == "stream":
            [piece async for piece in model.stream(request)]
        else:
            await Agent("a", llm=model).arun("x", attachments=[attachment])
    assert script.requests == []


@pytest.mark.parametrize("role", ["system", "assistant"])
@pytest.mark.parametrize("api", APIS)
async def test_only_users_and_tools_have_attachments(script, api, role):
    message = Message(role, "x", attachments=(IMAGE,))
    with pytest.raises(BadRequestError, match=rf"role {role} cannot have attachments \(photo.png"):
        await model_of(api, script).complete(ModelRequest((Message("user", "x"), message)))
    assert script.requests == []


@pytest.mark.parametrize("api", APIS)
async def test_a_model_can_be_told_to_take_fewer_types(script, api):
    model = model_of(api, script, attachments=["image/png"])
    await model.complete(ModelRequest((Message("user", "x", attachments=(IMAGE,)),)))
    with pytest.raises(BadRequestError, match=r"does not take report.pdf .*it takes image/png"):
        await model.complete(ModelRequest((Message("user", "x", attachments=(DOCUMENT,)),)))
    blind = model_of(api, script, attachments=[])
    with pytest.raises(BadRequestError, match="it takes text only"):
        await blind.complete(ModelRequest((Message("user", "x", attachments=(IMAGE,)),)))
    assert len(script.requests) == 1


def test_types_that_the_api_does_not_take_are_rejected_when_the_model_is_made(script):
    for wrong in (["video/mp4"], "image/png"):
        with pytest.raises(RegistrationError, match="attachments="):
            OpenAIModel("m", base_url=script.url, attachments=wrong)
    model = get_model("openai:m", base_url=script.url, attachments=["image/*"])
    assert model.attachment_types == ("image/*",)


async def test_the_file_of_a_result_at_a_url_that_the_api_does_not_fetch_is_named_in_words(script):
    messages = (*CALLED[:3], CALLED[3].replace(attachments=(PDF_LINK, LINK)))
    body = str(await sent("chat", script, *messages))
    assert "[Not shown, because you cannot read URLs: https://example.com/report.pdf]" in body
    assert "'url': 'https://example.com/photo.png'" in body


@pytest.mark.parametrize("api", APIS)
async def test_the_files_of_a_result_that_the_model_does_not_take_are_named_in_words(script, api):
    messages = (*CALLED[:3], CALLED[3].replace(attachments=(ZIP,)))
    body = str(await sent(api, script, *messages))
    assert "[Not shown, because you cannot read this type: files.zip (application/zip, 4 bytes)]" in body
    assert encoded(PNG) in body


async def test_the_local_model_refuses_before_its_weights_are_loaded(tmp_path):
    pytest.importorskip("xllamacpp")
    from hookline.providers.local.model import LocalModel

    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    model = LocalModel(path)
    with pytest.raises(BadRequestError, match=r"'m' \(local\) does not take photo.png .*it takes text only"):
        await model.complete(ModelRequest((Message("user", "x", attachments=(IMAGE,)),)))


async def test_a_whole_run_sends_the_picture_of_a_tool_to_the_server(script):
    @tool(effects=[])
    def screenshot() -> list[object]:
        """Take a screenshot."""
        return ["The screen:", IMAGE]

    used = {"type": "tool_use", "id": "c1", "name": "screenshot", "input": {}}
    script.say(whole({**MESSAGE, "content": [used], "stop_reason": "tool_use"}), whole(MESSAGE))
    model = AnthropicModel("m", base_url=script.url, max_retries=0)
    result = await Agent("a", llm=model, tools=[screenshot]).arun("Look.", attachments=[DOCUMENT])
    assert result.reply == "A cat."
    first, second = script.bodies
    assert [block["type"] for block in first["messages"][0]["content"]] == ["document", "text"]
    (block,) = second["messages"][2]["content"]
    text, image = block["content"]
    assert text["text"] == "The screen:\nAttached: photo.png (image/png, 14 bytes)"
    assert b64decode(image["source"]["data"]) == PNG


async def test_a_streamed_request_has_the_attachments_too(script):
    script.say(sse({"id": "1", "choices": [{"index": 0, "delta": {"content": "A cat."}, "finish_reason": "stop"}]}))
    model = OpenAIModel("m", base_url=script.url, max_retries=0)
    request = ModelRequest((Message("user", "x", attachments=(IMAGE,)),))
    assert [piece async for piece in model.stream(request)][-1].content == "A cat."
    assert script.bodies[0]["messages"][0]["content"][1]["type"] == "image_url"


def test_tokens_of_attachments_are_estimated():
    model = OpenAIModel("gpt-5", api_key="x")

    def count(*attachments):
        return model.count_tokens([Message("user", "x", attachments=attachments)])

    assert count(IMAGE) - count() == 1600
    assert count(LINK) - count() == 1600
    assert count(Attachment.of(PDF + bytes(400_000))) - count() == 400_014 // 40
    assert 0 < count(TEXT) - count() < 20
    assert count(Attachment("text/plain", "0" * 64, 400, "gone.txt")) - count() == 100


@pytest.mark.parametrize(
    ("vendor", "attachment", "taken"),
    [
        ("gemini", IMAGE, True),
        ("gemini", SOUND, True),
        ("gemini", DOCUMENT, False),
        ("groq", IMAGE, True),
        ("groq", SOUND, False),
        ("deepseek", IMAGE, False),
        ("deepseek", TEXT, True),
        ("openrouter", DOCUMENT, True),
        ("ollama", IMAGE, True),
        ("ollama", LINK, False),
        ("lmstudio", LINK, False),
        ("azure", IMAGE, True),
        ("azure", DOCUMENT, True),
        ("azure", SOUND, True),
        ("azure", ZIP, False),
        *((vendor, LINK, True) for vendor in ("gemini", "mistral", "groq", "xai", "together", "fireworks", "vllm")),
        *((vendor, PDF_LINK, False) for vendor in ("openrouter", "azure", "gemini", "ollama", "deepseek")),
    ],
)
async def test_each_vendor_takes_the_types_of_its_api(script, vendor, attachment, taken):
    script.say(whole(CHAT))
    model = get_model(f"{vendor}:m", base_url=script.url, api_key="x", max_retries=0)
    request = ModelRequest((Message("user", "x", attachments=(attachment,)),))
    if taken:
        assert (await model.complete(request)).content == "A cat."
        return
    with pytest.raises(BadRequestError, match="does not take"):
        await model.complete(request)
    assert script.requests == []
