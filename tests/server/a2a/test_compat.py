"""Version 0.3 of the protocol: raw requests and its client."""

import asyncio

import pytest
from a2a.types import CancelTaskRequest, SubscribeToTaskRequest
from a2a.utils.errors import TaskNotFoundError

from hookline import call, reply

from ...waiting import wait_until
from ..rig import ADMIN, Blocker, make
from .rig import assemble, data_of, got, message_request, reply_of, sent, serving_a2a, state, stream_events
from .test_handler import asking, look


def message(text, **more):
    return {"message": {"kind": "message", "messageId": "m1", "role": "user", "parts": [part(text)], **more}}


def part(text):
    return {"kind": "text", "text": text}


async def test_the_methods_of_version_0_3_work(tmp_path):
    agent = make([call("look", at="the sky"), reply("it is blue")], tools=[look])
    async with serving_a2a(tmp_path, agent, asking_named("second")) as rig:
        events = [each["result"] for each in await rig.stream("message/stream", message("hi"), headers={})]
        assert (events[0]["kind"], events[0]["status"]["state"]) == ("task", "submitted")
        assert (events[-1]["kind"], events[-1]["status"]["state"], events[-1]["final"]) == (
            "status-update",
            "completed",
            True,
        )
        phases = [each["metadata"].get("phase") for each in events if each["kind"] == "status-update"]
        assert phases == [None, "tool_start", "progress", "tool_end", None]
        id = events[0]["id"]
        task = (await rig.call("tasks/get", {"id": id}, headers={}))["result"]
        assert task["artifacts"][0]["parts"] == [part("it is blue")]
        assert (task["history"][0]["parts"], task["metadata"]["run_id"]) == ([part("hi")], id)
        error = (await rig.call("tasks/cancel", {"id": id}, headers={}))["error"]
        assert error["code"] == -32002
        (error,) = [each["error"] for each in await rig.stream("tasks/resubscribe", {"id": id}, headers={})]
        assert error["code"] == -32004
        assert (await rig.call("tasks/get", {"id": "run_x"}, headers={}))["error"]["code"] == -32001

        asked = (await rig.call("message/send", message("clean up"), "second", headers={}))["result"]
        assert asked["status"]["state"] == "input-required"
        data = asked["status"]["message"]["parts"][1]["data"]
        answer = {"kind": "data", "data": {"decision": "approve", "digest": data["digest"]}}
        done = await rig.call("message/send", message("", parts=[answer], taskId=asked["id"]), "second", headers={})
        assert done["result"]["status"]["state"] == "completed"


def asking_named(name):
    agent = asking()
    return make([call("delete", path="a.txt"), reply("gone")], name=name, tools=agent.tools, hooks=list(agent.hooks))


async def test_the_client_of_version_0_3_works(tmp_path):
    blocker = Blocker()
    async with serving_a2a(tmp_path, blocker.agent(), asking_named("second")) as rig:
        async with rig.client("second", version="0.3") as client:
            task = await sent(client, message_request("clean up"))
            (asked,) = data_of(task.status.message)
            events = await stream_events(
                client, message_request(data={"decision": "deny", "digest": asked["digest"]}, task=task.id)
            )
            assert (state(assemble(events)), reply_of(assemble(events))) == ("COMPLETED", "gone")
        async with rig.client(version="0.3") as client:
            task = await sent(client, message_request("go", now=True))
            await wait_until(lambda: blocker.entered)
            events = []

            async def follow():
                async for event in client.subscribe(SubscribeToTaskRequest(id=task.id)):
                    events.append(event)

            following = asyncio.create_task(follow())
            await wait_until(lambda: events)
            cancelled = await client.cancel_task(CancelTaskRequest(id=task.id))
            await following
            assert state(cancelled) == state(assemble(events)) == state(await got(client, task.id)) == "CANCELED"
            with pytest.raises(TaskNotFoundError):
                await got(client, "run_unknown")
        assert rig.service.counts()["readers"] == 0
        assert len(await rig.service.list(ADMIN)) == 2
