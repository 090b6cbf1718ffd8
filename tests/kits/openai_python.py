"""The OpenAI SDK for Python against `hookline serve`."""

import asyncio
import os

import openai
from cases import PNG, must, report

URL = f"{os.environ['KIT_URL']}/v1"
client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
MODEL = client.models.list().data[0].id
HI = [{"role": "user", "content": "hi"}]
SAID = "You said 'hi' with 0 files."


def completes() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HI)
    must(answer.choices[0].message.content == SAID, answer)
    must(answer.choices[0].finish_reason == "stop", answer)
    must(answer._request_id, answer)


def completes_async() -> None:
    async def ask() -> str | None:
        async with openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0) as other:
            return (await other.chat.completions.create(model=MODEL, messages=HI)).choices[0].message.content

    must(asyncio.run(ask()) == SAID, "another answer")


def streams() -> None:
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=MODEL, messages=HI, stream=True, stream_options=options))
    must("".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == SAID, chunks)
    must(chunks[-1].usage is not None, chunks[-1])


def takes_image() -> None:
    parts = [{"type": "image_url", "image_url": {"url": PNG}}]
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}])
    must("with 1 files" in (answer.choices[0].message.content or ""), answer)


def maps_errors() -> None:
    for call, kind, code in (
        (lambda: client.chat.completions.create(model="nobody", messages=HI), openai.NotFoundError, "model_not_found"),
        (lambda: client.embeddings.create(model=MODEL, input="x"), openai.NotFoundError, "not_found"),
        (
            lambda: client.chat.completions.create(model=MODEL, messages=HI, n=2),
            openai.BadRequestError,
            "unsupported_parameter",
        ),
    ):
        try:
            call()
        except openai.APIStatusError as error:
            must((type(error), error.code, error.type) == (kind, code, "invalid_request_error"), error)
            must(error.request_id, error)
        else:
            must(False, code)


report(
    {
        "completes a chat": completes,
        "completes a chat with the async client": completes_async,
        "streams, with usage": streams,
        "sends a message that is only an image": takes_image,
        "raises the class of each error, with its type, code and request id": maps_errors,
    }
)
