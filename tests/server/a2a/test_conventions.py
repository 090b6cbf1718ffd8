"""What other programs expect of an A2A server, beyond its methods: as compatibility kits test it."""

import httpx
import pytest
from a2a.types import DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest, Part
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError, TaskNotFoundError

from hookline import Agent, ScriptedModel, reply
from hookline.hooks import SensitiveDataHook

from ...waiting import wait_until
from ..rig import ADMIN, Blocker, make
from .rig import data_of, got, message_request, sent, serving_a2a, state, text_of
from .test_cards import CARD
from .test_compat import message, part
from .test_handler import asking
from .test_push import LISTED, QUICK, config

VERSIONS = pytest.mark.parametrize("version", ["1.0", "0.3"])
"""Both versions of the official client."""
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


class Seeing(ScriptedModel):
    """A model that takes PNG images only."""

    attachment_types = ("image/png",)


def with_parts(*parts, **more):
    request = message_request(**more)
    request.message.parts.extend(parts)
    return request


# Messages


@VERSIONS
async def test_a_message_may_have_only_an_image(tmp_path, version):
    agent = Agent("helper", llm=Seeing([reply("A photo.")]))
    async with serving_a2a(tmp_path, agent) as rig, rig.client(version=version) as client:
        task = await sent(client, with_parts(Part(raw=PNG, media_type="image/png", filename="photo.png")))
        assert state(task) == "COMPLETED"
        (seen,) = agent.model.requests
        assert (seen.messages[-1].content, seen.messages[-1].attachments[0].data) == ("", PNG)


@VERSIONS
async def test_a_file_that_the_card_does_not_name_is_not_supported_and_starts_nothing(tmp_path, version):
    agents = make(), Agent("seeing", llm=Seeing(["x"])), Agent("blind", llm=Blind(["x"]))
    unknown = Part(raw=b"tck", media_type="application/x-unknown")
    jpeg = Part(url="https://example.com/a.jpg", media_type="image/jpeg")
    async with serving_a2a(tmp_path, *agents) as rig, httpx.AsyncClient(verify=False, timeout=60) as http:
        for agent, parts, modes in (
            ("helper", [unknown], {"image/*", "audio/*", "application/pdf", "text/*"}),
            ("seeing", [unknown, jpeg], {"image/png"}),
            ("blind", [unknown, jpeg, Part(raw=PNG, media_type="image/png")], set()),
        ):
            card = (await http.get(f"{rig.url}/a2a/{agent}{CARD}")).json()
            assert set(card["defaultInputModes"]) == {"text/plain", "application/json", *modes}
            async with rig.client(agent, version=version) as client:
                for each in parts:
                    with pytest.raises(ContentTypeNotSupportedError, match="does not take"):
                        await sent(client, with_parts(each))
                    with pytest.raises(ContentTypeNotSupportedError):
                        await sent(client, with_parts(each, text="What is this?"))
                with pytest.raises(InvalidParamsError, match="empty"):
                    await sent(client, message_request(" "))
        assert await rig.service.list(ADMIN) == []


class Blind(ScriptedModel):
    """A model that takes text only."""

    attachment_types = ()


# The history


@VERSIONS
async def test_the_history_of_a_task_has_the_messages_as_they_were_sent(tmp_path, version):
    first = with_parts(
        Part(raw=PNG, media_type="image/png", filename="photo.png"),
        Part(url="https://example.com/b.png", media_type="image/png"),
        text="See:",
        data={"id": 7, "sizes": [1, 2.5]},
        metadata={"correlation_id": "c1"},
    )
    async with serving_a2a(tmp_path, make()) as rig:
        async with rig.client(version=version) as client:
            task = await sent(client, first)
            listed = [await rig.listed(client)] if version == "1.0" else []  # 0.3 has no list
            for each in (task, await got(client, task.id), *listed):
                (kept,) = each.history
                assert kept.message_id == first.message.message_id
                assert kept.parts == first.message.parts
                assert (kept.task_id, kept.context_id, dict(kept.metadata)) == (
                    task.id,
                    task.context_id,
                    {"correlation_id": "c1"},
                )
        old = (await rig.call("tasks/get", {"id": task.id}, headers={}))["result"]["history"][0]
        assert (old["messageId"], [each["kind"] for each in old["parts"]]) == (
            first.message.message_id,
            ["text", "data", "file", "file"],
        )


@VERSIONS
async def test_the_history_has_what_was_sent_while_a_call_waited_and_messages_to_the_running_task_once(
    tmp_path, version
):
    blocker = Blocker()
    async with serving_a2a(tmp_path, asking(), blocker.agent(name="busy")) as rig:
        async with rig.client(version=version) as client:
            task = await sent(client, first := message_request("clean up"))
            unclear = message_request("what is that?", task=task.id)
            await sent(client, unclear)
            digest = data_of(task.status.message)[0]["digest"]
            decision = message_request(data={"decision": "approve", "digest": digest}, task=task.id)
            done = await sent(client, decision)
            assert state(done) == "COMPLETED"
            expected = [each.message.message_id for each in (first, unclear, decision)]
            for each in (done, await got(client, task.id)):
                assert [message.message_id for message in each.history] == expected
        async with rig.client("busy", version=version) as client:
            task = await sent(client, first := message_request("go", now=True))
            await wait_until(lambda: blocker.entered)
            await sent(client, more := message_request("hurry", task=task.id, now=True))
            await rig.service.steer(task.id, ADMIN, "from the console")
            await sent(client, last := message_request("hurry", task=task.id, now=True))
            blocker.open.set()
            await rig.service.wait(task.id, ADMIN)
            history = (await got(client, task.id)).history
            assert [text_of(each) for each in history] == ["go", "hurry", "from the console", "hurry"]
            ids = [each.message.message_id for each in (first, more, last)]
            assert [each.message_id for each in history if text_of(each) != "from the console"] == ids


async def test_the_stored_messages_of_a_task_lack_what_must_not_be_stored_and_go_with_the_run(tmp_path):
    agent = make(hooks=[SensitiveDataHook()])
    mail = "ann@example.org"
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        request = message_request(f"Write to {mail}.", data={"to": mail}, metadata={"from": mail})
        png = b"\x89PNG\r\n\x1a\n" + b"0" * 50
        request.message.parts.append(Part(raw=png, filename=f"photo of {mail} .png", media_type="image/png"))
        where = f"https://files.example.com/a.png?for={mail}"
        request.message.parts.append(Part(url=where, filename=f"{mail} .png", media_type="image/png"))
        task = await sent(client, request)
        (kept,) = (await got(client, task.id)).history
        assert mail not in str(kept)
        assert kept.message_id == request.message.message_id
        store = rig.service.store
        assert mail.encode() not in b"".join(each.data for each in store.task_messages.for_runs([task.id])[task.id])
        list(store.tidy(1e-9))
        assert store.task_messages.for_runs([task.id]) == {task.id: []}


# Receivers, cards, addresses


@VERSIONS
async def test_deleting_a_receiver_again_is_no_error(tmp_path, version):
    async with serving_a2a(tmp_path, Blocker().agent(), push=QUICK, push_hosts=LISTED) as rig:
        async with rig.client(version=version) as client:
            task = await sent(client, message_request("hi", now=True))
            receiver = config("http://127.0.0.1:9/x", task_id=task.id, id="one")
            await client.create_task_push_notification_config(receiver)
            for id in ("one", "one", "never"):
                given = DeleteTaskPushNotificationConfigRequest(task_id=task.id, id=id)
                await client.delete_task_push_notification_config(given)
            with pytest.raises(TaskNotFoundError, match="push notification config"):
                one = GetTaskPushNotificationConfigRequest(task_id=task.id, id="one")
                await client.get_task_push_notification_config(one)
        params = {"id": task.id, "pushNotificationConfigId": "never"}
        answer = await rig.call("tasks/pushNotificationConfig/delete", params, headers={})
        assert answer == {"jsonrpc": "2.0", "id": 7, "result": None}


async def test_a_public_card_on_this_machine_lists_the_keys_as_soon_as_one_is_needed(tmp_path):
    async with (
        serving_a2a(tmp_path, keys=True, keys_required=False, public_card=True) as rig,
        httpx.AsyncClient(verify=False, timeout=60) as http,
    ):
        assert "securitySchemes" not in (await http.get(f"{rig.url}{CARD}")).json()
        rig.key("me", "run")
        await wait_until(lambda: rig.keys.is_stale)
        assert set((await http.get(f"{rig.url}{CARD}")).json()["securitySchemes"]) == {"bearer", "api_key"}


async def test_clients_may_keep_a_card_and_ask_whether_it_has_changed(tmp_path):
    for folder, public, expected in (("a", False, "private, max-age=300"), ("b", True, "public, max-age=300")):
        (tmp_path / folder).mkdir()
        async with (
            serving_a2a(tmp_path / folder, public_card=public) as rig,
            httpx.AsyncClient(verify=False, timeout=60) as http,
        ):
            card = await http.get(f"{rig.url}{CARD}")
            assert card.headers["cache-control"] == expected
            again = await http.get(f"{rig.url}{CARD}", headers={"If-None-Match": card.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")


async def test_the_address_of_an_agent_may_end_with_a_slash(tmp_path):
    async with serving_a2a(tmp_path) as rig, httpx.AsyncClient(verify=False, timeout=60) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "run_x"}}
        answer = await http.post(f"{rig.url}/a2a/helper/", json=body, headers={"A2A-Version": "1.0"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (200, -32001)


# Version 0.3


async def test_wrong_parameters_of_version_0_3_are_named_without_their_values(tmp_path):
    async with serving_a2a(tmp_path) as rig:
        nameless = message("hi")
        del nameless["message"]["messageId"]
        for method, params, says in (
            ("message/send", nameless, "params.message.messageId is missing"),
            ("message/stream", {}, "params.message is missing"),
            ("message/send", {"message": "hi"}, "params.message is not valid: expected an object"),
            ("tasks/get", {"id": 7}, "params.id is not valid"),
            (
                "message/send",
                message("hi", parts=[part("hi"), {**part("hi"), "text": {"secret": 1}}]),
                "params.message.parts.1.text is not valid",
            ),
            (
                "message/send",
                message("hi", parts=[{"kind": "file", "file": {"name": "secret"}}]),
                "params.message.parts.0.file.bytes is missing",
            ),
            (
                "message/send",
                message("hi", parts=[{"kind": "video", "text": "secret"}]),
                "params.message.parts.0.kind is not valid: expected 'data' or 'file' or 'text'",
            ),
        ):
            error = (await rig.call(method, params, headers={}))["error"]
            assert (error["code"], set(error)) == (-32602, {"code", "message"})
            assert error["message"].startswith(says)
            assert "secret" not in error["message"]
        assert await rig.service.list(ADMIN) == []
