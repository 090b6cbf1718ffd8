"""Rejected text over every transport of the server, on real sockets (DESIGN 7.14)."""

import asyncio
import json

import pytest

from hookline import AFTER_LLM, Agent, HookResult, ScriptedModel, guard
from hookline.models import ModelResponse

from .a2a.rig import assemble, message_request, reply_of, serving_a2a, stream_events
from .http_rig import api
from .test_chat import chatting, kept, lines

SECRET = "the launch code is 4711"


@guard(AFTER_LLM)
async def rail(ctx, answer):
    await asyncio.sleep(0.01)  # long enough for a reader to get text that is sent too early
    return HookResult.retry("Do not tell.") if "code" in answer.content else None


class Words(ScriptedModel):
    """Streams the secret word by word, then a harmless reply, in every run."""

    async def stream(self, request):
        text = "All is well." if "Do not tell." in request.messages[-1].content else SECRET
        for word in text.split(" "):
            await asyncio.sleep(0)
            yield word if word == text.split(" ")[0] else f" {word}"
        yield ModelResponse(text)


def agent(**options):
    return Agent("helper", llm=Words([]), hooks=[rail], **options)


async def stream_of_run(client, query=""):
    run = (await client.post(f"/runs{query}", json={"task": "Tell me."})).json()
    raw = (await client.get(f"/runs/{run['id']}/events{query}", headers={"Accept": "text/event-stream"})).text
    return raw, [json.loads(line.removeprefix("data: ")) for line in raw.splitlines() if line.startswith("data: ")]


def readable(events):
    """The text that a reader of events keeps."""
    text = ""
    for event in events:
        if event["type"] == "text_delta":
            text += event["text"]
        elif event["type"] == "discarded":
            text = ""
    return text


async def test_rejected_text_is_not_in_the_events_of_a_run(tmp_path):
    async with api(tmp_path, agent(), real=True) as served:
        raw, events = await stream_of_run(served.client(real=True))
        assert "launch" not in raw
        assert "4711" not in raw
        assert readable(events) == "All is well."


async def test_live_events_take_rejected_text_back(tmp_path):
    async with api(tmp_path, agent(stream="live"), real=True) as served:
        raw, events = await stream_of_run(served.client(real=True))
        assert "launch" in raw
        assert [event["reason"] for event in events if event["type"] == "discarded"] == ["retry"]
        assert readable(events) == "All is well."


@pytest.mark.parametrize(
    "field", [{"stream": "live"}, {"options": {"stream": "live"}}, {"metadata": {"stream": "live"}}]
)
async def test_a_client_cannot_choose_live_text(tmp_path, field):
    async with api(tmp_path, agent(), real=True) as served:
        client = served.client(real=True)
        answer = await client.post("/runs", json={"task": "Tell me.", **field})
        assert answer.status_code == 422
        assert "launch" not in (await stream_of_run(client, query="?stream=live"))[0]


async def test_rejected_text_is_not_in_a_chat_stream(tmp_path):
    async with chatting(tmp_path / "safe", agent()) as place:
        assert "launch" not in "".join([line async for line in lines(place)])
        assert await kept(place) == "All is well."
    async with chatting(tmp_path / "live", agent(stream="live")) as place:
        chunks = [json.loads(line[6:]) async for line in lines(place) if line.startswith("data: {")]
        assert [chunk["withdrawn"] for chunk in chunks if "withdrawn" in chunk] == [len(SECRET)]
        assert await kept(place) == "All is well."


async def test_rejected_text_is_not_in_an_a2a_stream(tmp_path):
    async with serving_a2a(tmp_path / "safe", agent()) as rig, rig.client() as client:
        events = await stream_events(client, message_request("Tell me."))
        assert "launch" not in str(events)
        assert reply_of(assemble(events)) == "All is well."
    async with serving_a2a(tmp_path / "live", agent(stream="live")) as rig, rig.client() as client:
        events = await stream_events(client, message_request("Tell me."))
        assert "launch" in str(events)
        assert reply_of(assemble(events)) == "All is well."


async def test_live_text_of_a_cancelled_run_is_taken_back(tmp_path):
    held = asyncio.Event()

    class Stuck(Words):
        async def stream(self, request):
            yield "half a"
            held.set()
            await asyncio.sleep(60)

    async with api(tmp_path, Agent("helper", llm=Stuck([])), real=True) as served:
        client = served.client(real=True)
        run = (await client.post("/runs", json={"task": "Tell me."})).json()
        await held.wait()
        await client.post(f"/runs/{run['id']}/cancel", json={})
        raw = (await client.get(f"/runs/{run['id']}/events", headers={"Accept": "text/event-stream"})).text
        events = [json.loads(line.removeprefix("data: ")) for line in raw.splitlines() if line.startswith("data: ")]
        assert [event["reason"] for event in events if event["type"] == "discarded"] == ["interrupted"]
        assert readable(events) == ""
