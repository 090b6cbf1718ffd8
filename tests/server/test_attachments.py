"""Attachments of served runs: how they arrive, who may read them, and what is stored."""

import gc
import sqlite3
from base64 import b64encode
from contextlib import closing

import pytest

from hookline import Agent, Attachment, ScriptedModel, call, tool

from ..waiting import wait_until
from .http_rig import api
from .rig import Blocker, make

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 10
PHOTO = {"data": b64encode(PNG).decode(), "name": "photo.png"}
DIGEST = Attachment.of(PNG).digest


async def started(client, *attachments, **fields):
    return await client.post("/runs", json={"task": "Look.", "wait": 30, "attachments": attachments, **fields})


async def test_files_of_a_request_reach_the_model(tmp_path):
    agent = make()
    async with api(tmp_path, agent) as served:
        link = {"url": "https://example.com/a", "media_type": "image/png"}
        answer = await started(served.client(), PHOTO, link)
        assert answer.json()["status"] == "completed"
        photo, other = agent.model.requests[0].messages[0].attachments
        assert (photo.name, photo.media_type, photo.data) == ("photo.png", "image/png", PNG)
        assert other.url == "https://example.com/a"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"data": "???"}, "attachments[0].data: expected text in Base64"),
        ({"data": PHOTO["data"], "url": "https://example.com/a.png"}, "attachments[0]: give either data or url"),
        ({}, "attachments[0]: give either data or url"),
        ({"url": "file:///etc/passwd"}, "must begin with https://"),
        ({"url": "/etc/passwd"}, "must begin with https://"),
        ({"url": "https://example.com/a"}, "give media_type="),
        ({"data": b64encode(b"MZ").decode(), "media_type": "image/png"}, "does not begin like such a file"),
        ({"digest": DIGEST}, "digest"),
        ({"path": "/etc/passwd"}, "path"),
    ],
)
async def test_a_file_that_cannot_be_attached_is_rejected(tmp_path, given, why):
    agent = make()
    async with api(tmp_path, agent) as served:
        answer = await started(served.client(), given)
        assert answer.status_code in (400, 422)
        assert why in answer.json()["error"]["message"]
    assert agent.model.requests == []


async def test_a_file_over_the_limit_of_the_agent_fails_the_run_with_the_limit(tmp_path):
    async with api(tmp_path, make(max_attachment=10)) as served:
        run = (await started(served.client(), PHOTO)).json()
        assert run["status"] == "failed"
        assert "the limit for an attachment is 10 bytes" in run["error"]


async def test_the_owner_reads_the_content_by_its_digest_and_others_do_not(tmp_path):
    async with api(tmp_path) as served:
        run = (await started(served.client(), PHOTO)).json()
        path = f"/runs/{run['id']}/attachments/{DIGEST}"
        gc.collect()
        answer = await served.client().get(path)
        assert (answer.status_code, answer.content) == (200, PNG)
        assert answer.headers["content-type"] == "image/png"
        assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''photo.png")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        assert (await served.client("admin").get(path)).content == PNG
        assert (await served.client("other").get(path)).status_code == 404
        assert (await served.client("starter", scopes=("run",)).get(path)).status_code == 403
        for wrong in ("0" * 64, "..%2F..%2Fkeys.db", "x"):
            missing = await served.client().get(f"/runs/{run['id']}/attachments/{wrong}")
            assert missing.status_code == 404


async def test_a_caller_does_not_get_the_content_of_another_by_naming_its_digest(tmp_path):
    async with api(tmp_path) as served:
        await started(served.client(), PHOTO)
        mine = (await started(served.client("other"))).json()
        answer = await served.client("other").get(f"/runs/{mine['id']}/attachments/{DIGEST}")
        assert answer.status_code == 404


async def test_the_content_can_be_read_while_the_run_is_active(tmp_path):
    blocker = Blocker()
    async with api(tmp_path, blocker.agent()) as served:
        run = (await started(served.client(), PHOTO, wait=0)).json()
        await wait_until(lambda: blocker.entered)
        assert (await served.client().get(f"/runs/{run['id']}/attachments/{DIGEST}")).content == PNG
        blocker.open.set()
        await served.client().get(f"/runs/{run['id']}?wait=30")


async def test_a_message_to_a_running_run_takes_files_within_the_limit_of_the_agent(tmp_path):
    blocker = Blocker()
    agent = Agent("a", llm=ScriptedModel([call("blocker"), "Seen."]), tools=[blocker.tool], max_attachment=100)
    async with api(tmp_path, agent) as served:
        client = served.client()
        run = (await client.post("/runs", json={"task": "Look."})).json()
        await wait_until(lambda: blocker.entered)
        path = f"/runs/{run['id']}"
        large = {"data": b64encode(PNG * 2).decode()}
        refused = await client.post(f"{path}/messages", json={"text": "Look.", "attachments": [large]})
        assert refused.status_code == 400
        assert "the limit for an attachment is 100 bytes" in refused.json()["error"]["message"]
        sent = await client.post(f"{path}/messages", json={"text": "And this?", "attachments": [PHOTO]})
        assert sent.status_code == 202
        assert (await client.get(f"{path}/attachments/{DIGEST}")).content == PNG
        blocker.open.set()
        assert (await client.get(path, params={"wait": 30})).json()["status"] == "completed"
    assert agent.model.requests[1].messages[-1].attachments[0].data == PNG


async def test_the_picture_of_a_tool_is_in_the_events_by_digest_and_can_be_read(tmp_path):
    @tool(effects=[])
    def show() -> Attachment:
        """Show a picture."""
        return Attachment.of(PNG, name="chart.png")

    agent = Agent("helper", llm=ScriptedModel([call("show"), "Done."]), tools=[show])
    async with api(tmp_path, agent) as served:
        run = (await started(served.client())).json()
        page = await served.client().get(f"/runs/{run['id']}/events", headers={"Accept": "application/json"})
        (settled,) = [event for event in page.json()["events"] if event["type"] == "tool_settled"]
        assert [each["digest"] for each in settled["attachments"]] == [DIGEST]
        answer = await served.client().get(f"/runs/{run['id']}/attachments/{DIGEST}")
        assert answer.content == PNG


@pytest.mark.sqlite
async def test_the_file_of_the_runs_has_no_content(tmp_path):
    async with api(tmp_path) as served:
        await started(served.client(), PHOTO)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as db, db:
        dump = b"".join(
            data if isinstance(data, bytes) else data.encode() for (data,) in db.execute("SELECT data FROM events")
        )
    assert DIGEST.encode() in dump
    assert b"pixels" not in dump
    assert PHOTO["data"].encode() not in dump


async def test_a_later_run_of_the_conversation_has_the_picture(tmp_path):
    agent = make()
    async with api(tmp_path, agent) as served:
        await started(served.client(), PHOTO, session="talk")
        agent.model.requests.clear()
        gc.collect()
        await started(served.client(), session="talk")
        assert agent.model.requests[0].messages[0].attachments[0].data == PNG
