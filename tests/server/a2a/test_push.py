"""Push notifications, sent to a real server."""

import asyncio
import json
import logging
import socket
import threading
import time
from contextlib import asynccontextmanager, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, InvalidRequestError, TaskNotFoundError

from hookline import call, reply
from hookline.server import Caller
from hookline.server.a2a import push as push_module
from hookline.stores import StoreError
from hookline.stores.keys import KeyStore

from ...waiting import wait_until
from ..rig import ADMIN, Blocker, make
from .rig import message_request, sent, serving_a2a, state
from .test_handler import asking

LISTED = ("127.0.0.1",)
QUICK = {"pauses": (0.01, 0.01), "seconds": 5.0}


class Receiver:
    """A receiver of posts; ``answers`` are the first statuses, ``hold`` delays the responses."""

    def __init__(self):
        self.got, self.answers, self.hold, self.location = [], [], threading.Event(), ""
        self.hold.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.got.append((body, dict(self.headers)))
                outer.hold.wait(30)
                status = outer.answers.pop(0) if outer.answers else 200
                self.send_response(status)
                if outer.location:
                    self.send_header("Location", outer.location)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    @property
    def states(self):
        found = [body["task"]["status"]["state"] for body, _ in self.got]
        return [each.removeprefix("TASK_STATE_") for each in found]


@contextmanager
def receiving():
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.hold.set()
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()


def config(url, **more):
    return TaskPushNotificationConfig(url=url, **more)


@asynccontextmanager
async def served(folder):
    """A server whose agent finishes at once."""
    agent = make([reply("done")])
    async with serving_a2a(folder, agent, push=QUICK, push_hosts=LISTED) as rig, rig.client() as client:
        yield rig, client


async def idle(rig):
    """Check that no notification is being sent."""
    await wait_until(lambda: not rig.push_tasks)


async def test_a_receiver_gets_each_state_in_order_with_its_token(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    proof = AuthenticationInfo(scheme="Bearer", credentials="s3cret")
    with receiving() as receiver:
        async with serving_a2a(tmp_path, asking(), push=QUICK, push_hosts=LISTED) as rig, rig.client() as client:
            wanted = config(receiver.url, token="t0ken", authentication=proof)
            task = await sent(client, message_request("clean up", task_push_notification_config=wanted))
            await wait_until(lambda: receiver.states == ["WORKING", "INPUT_REQUIRED"])
            await sent(client, message_request("yes", task=task.id))
            await idle(rig)
        assert receiver.states == ["WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]
        last, headers = receiver.got[-1]
        assert (last["task"]["id"], last["task"]["artifacts"][0]["parts"]) == (task.id, [{"text": "gone"}])
        assert (headers["X-A2A-Notification-Token"], headers["Authorization"]) == ("t0ken", "Bearer s3cret")
    assert "t0ken" not in caplog.text
    assert "s3cret" not in caplog.text


async def test_receivers_can_be_listed_and_deleted_and_only_their_owner_sees_secrets(tmp_path, monkeypatch):
    monkeypatch.setattr(push_module, "MAX_RECEIVERS", 3)
    blocker = Blocker()
    async with serving_a2a(tmp_path, blocker.agent(), keys=True, push=QUICK, push_hosts=LISTED) as rig:
        mine, other = rig.key("mine", "run", "read"), rig.key("other", "run", "read")
        reader, boss = rig.key("reader", "read"), rig.key("boss", "read", "run", "admin")
        url, secret = "http://127.0.0.1:9/x", AuthenticationInfo(scheme="Basic", credentials="secret-of-the-receiver")
        async with rig.client(headers=mine) as client:
            task = await sent(client, message_request("go", now=True))
            made = await client.create_task_push_notification_config(
                config(url, task_id=task.id, id="one", token="t", authentication=secret)
            )
            one = GetTaskPushNotificationConfigRequest(task_id=task.id, id="one")
            assert await client.get_task_push_notification_config(one) == made
            assert (made.token, made.authentication.credentials) == ("t", "secret-of-the-receiver")
            for n in range(2):
                await client.create_task_push_notification_config(config(url, task_id=task.id, id=str(n)))
            with pytest.raises(InvalidParamsError, match="at most"):
                await client.create_task_push_notification_config(config(url, task_id=task.id, id="more"))
            await client.create_task_push_notification_config(config(url, task_id=task.id, id="0"))
            every = ListTaskPushNotificationConfigsRequest(task_id=task.id)
            assert len((await client.list_task_push_notification_configs(every)).configs) == 3
            gone = DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="0")
            await client.delete_task_push_notification_config(gone)
            await client.delete_task_push_notification_config(gone)
            assert len((await client.list_task_push_notification_configs(every)).configs) == 2
        async with rig.client(headers=boss) as client:
            seen = (await client.get_task_push_notification_config(one)).SerializeToString()
            assert b"secret-of-the-receiver" not in seen
        async with rig.client(headers=other) as client:
            with pytest.raises(TaskNotFoundError):
                await client.list_task_push_notification_configs(every)
        async with rig.client(headers=reader) as client:
            with pytest.raises(InvalidRequestError):
                await client.create_task_push_notification_config(config(url, task_id=task.id))


REFUSED = (
    "http://127.0.0.1:9000/",
    "http://localhost/",
    "http://10.0.0.1/",
    "http://[::1]/",
    "http://169.254.169.254/",
    "http://[::ffff:127.0.0.1]/",
    "http://0x7f000001/",
    "http://user:pw@example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "http://printer.local/",
    "no url",
    "",
    "http://example.com:0/",
    "http://inside.example.com/",
)


async def test_receivers_must_have_public_addresses(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", leading_to("192.168.0.7"))
    async with serving_a2a(tmp_path, push=QUICK) as rig, rig.client() as client:
        for url in REFUSED:
            with pytest.raises(InvalidParamsError):
                await sent(client, message_request("hi", task_push_notification_config=config(url)))
        for wrong in ({"token": "a\r\nb"}, {"token": "x" * 5000}, {"id": "a b"}):
            with pytest.raises(InvalidParamsError):
                await sent(
                    client, message_request("hi", task_push_notification_config=config("http://8.8.8.8/", **wrong))
                )
        assert await rig.service.list(ADMIN) == []


def leading_to(address, real=socket.getaddrinfo):
    def lookup(host, port, *args, **options):
        if host in ("localhost", "127.0.0.1"):
            return real(host, port, *args, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    return lookup


async def test_a_name_that_resolves_to_another_address_later_is_not_used(tmp_path, monkeypatch, caplog):
    blocker = Blocker()
    with receiving() as receiver:
        async with serving_a2a(tmp_path, blocker.agent(), push=QUICK) as rig, rig.client() as client:
            monkeypatch.setattr(socket, "getaddrinfo", leading_to("93.184.216.34"))
            url = f"http://hooks.example.com:{receiver.server.server_port}/"
            task = await sent(client, message_request("go", now=True))
            await wait_until(lambda: blocker.entered)
            await client.create_task_push_notification_config(config(url, task_id=task.id))
            monkeypatch.setattr(socket, "getaddrinfo", leading_to("127.0.0.1"))
            blocker.open.set()
            await idle(rig)
        assert receiver.got == []
    assert "no longer allowed" in caplog.text


async def test_a_failed_receiver_is_retried_and_redirects_are_not_followed(tmp_path):
    with receiving() as receiver, receiving() as elsewhere:
        receiver.answers = [503, 429]
        async with served(tmp_path) as (rig, client):
            await sent(client, message_request("go", task_push_notification_config=config(receiver.url)))
            await idle(rig)
        assert receiver.states == ["WORKING", "WORKING", "WORKING", "COMPLETED"]
        elsewhere.answers, elsewhere.location = [302], receiver.url
        before = len(receiver.got)
        async with served(tmp_path) as (rig, client):
            await sent(client, message_request("go", task_push_notification_config=config(elsewhere.url)))
            await idle(rig)
        assert (elsewhere.states, len(receiver.got)) == (["WORKING", "COMPLETED"], before)


async def test_a_slow_receiver_does_not_delay_the_run(tmp_path):
    with receiving() as slow, receiving() as fast:
        slow.hold.clear()
        async with served(tmp_path) as (rig, client):
            wanted = config(slow.url)
            task = await sent(client, message_request("go", task_push_notification_config=wanted))
            assert state(task) == "COMPLETED"
            await client.create_task_push_notification_config(config(fast.url, task_id=task.id, id="fast"))
            await wait_until(lambda: fast.states == ["COMPLETED"])  # a receiver of a finished task is notified at once
            await wait_until(lambda: slow.states == ["WORKING"])
            slow.hold.set()
            await wait_until(lambda: slow.states == ["WORKING", "COMPLETED"])


async def test_unsent_notifications_are_sent_after_a_restart(tmp_path):
    blocker = Blocker()
    with receiving() as receiver:
        async with serving_a2a(tmp_path, blocker.agent(), push=QUICK, push_hosts=LISTED) as rig, rig.client() as client:
            await sent(client, message_request("go", now=True, task_push_notification_config=config(receiver.url)))
            await wait_until(lambda: blocker.entered and receiver.states == ["WORKING"])
            await wait_until(lambda: rig.service._store.push_subscriptions.for_run(_only(rig)) and _told(rig) > 1)
            push = (await rig.part.protocol()).push
            push.close = _at_once(push)
            await push.close()  # before the run ends, as in a process that is killed
        assert receiver.states == ["WORKING"]
        async with serving_a2a(tmp_path, blocker.agent(), push=QUICK, push_hosts=LISTED) as rig:
            await wait_until(lambda: len(receiver.got) == 2)
            await idle(rig)
        assert receiver.states == ["WORKING", "FAILED"]
        async with serving_a2a(tmp_path, blocker.agent(), push=QUICK, push_hosts=LISTED) as rig:
            assert not rig.push_tasks
        assert len(receiver.got) == 2


async def test_stopping_keeps_the_receivers_of_runs_in_other_processes(tmp_path):
    blocker, options = Blocker(), {"push": QUICK, "push_hosts": LISTED}
    with receiving() as receiver:
        async with serving_a2a(tmp_path, blocker.agent(), **options) as runs, runs.client() as client:
            task = await sent(client, message_request("go", now=True))
            await wait_until(lambda: blocker.entered)
            async with serving_a2a(tmp_path, blocker.agent(), **options) as other, other.client() as there:
                await there.create_task_push_notification_config(config(receiver.url, task_id=task.id))
                await wait_until(lambda: other.push_tasks)
            assert [row.done for row in runs.service._store.push_subscriptions.for_run(task.id)] == [False]
            async with serving_a2a(tmp_path, blocker.agent(), **options) as next_one:
                blocker.open.set()
                await idle(next_one)
        assert receiver.states[-1] == "COMPLETED"


def _only(rig):
    return next(iter(rig.service._live))


def _told(rig):
    return rig.service._store.push_subscriptions.for_run(_only(rig))[0].seq


def _at_once(push):
    """The process ends before more is sent."""

    async def close(grace=0.0):
        if tasks := list(push._tasks.values()):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if push._store.db.is_shared:  # this process still has its lease
            with push._store.db.transaction(write=True) as db:
                db.execute("UPDATE pushes SET host = 'a process that has ended', claimed = 0")

    return close


async def test_a_receiver_of_version_0_3_gets_a_task_of_version_0_3(tmp_path):
    with receiving() as receiver:
        async with serving_a2a(tmp_path, make([call("nothing"), reply("done")]), push=QUICK, push_hosts=LISTED) as rig:
            message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
            wanted = {"pushNotificationConfig": {"url": receiver.url, "token": "t"}, "blocking": True}
            answer = await rig.call("message/send", {"message": message, "configuration": wanted}, headers={})
            id = answer["result"]["id"]
            await idle(rig)
            assert [(body["kind"], body["status"]["state"]) for body, _ in receiver.got][-1] == ("task", "completed")

            async def old(method, **params):
                return await rig.call(f"tasks/pushNotificationConfig/{method}", params, headers={})

            assert (await old("get", id=id))["result"]["pushNotificationConfig"]["url"] == receiver.url
            more = {"url": receiver.url, "id": "more"}
            assert "result" in await old("set", taskId=id, pushNotificationConfig=more)
            listed = (await old("list", id=id))["result"]
            assert {each["pushNotificationConfig"]["id"] for each in listed} == {id, "more"}
            assert "error" not in await old("delete", id=id, pushNotificationConfigId="more")
            assert len((await old("list", id=id))["result"]) == 1
            assert "error" in await old("set", taskId=id, pushNotificationConfig={"url": "http://10.0.0.1/"})


# Access.


def revoke(keys, name):
    keys.revoke(name)


def expire(keys, name):
    keys._clock = lambda: time.time() + 10 * 3600


def without(right):
    """Take a right from a key."""

    def change(keys, name):
        with keys._database.transaction(write=True) as db:
            (scopes,) = db.execute("SELECT scopes FROM keys WHERE name = ?", (name,)).fetchone()
            left = " ".join(each for each in scopes.split() if each != right)
            db.execute("UPDATE keys SET scopes = ? WHERE name = ?", (left, name))
        keys._cached_until = 0.0

    return change


def receivers(rig, task):
    return [row.id for row in rig.service._store.push_subscriptions.for_run(task.id)]


@asynccontextmanager
async def watched(folder, blocker, receiver, owner, **options):
    """A run of ``mine`` that is working, with a receiver that ``owner`` has registered."""
    options = {"keys": True, "push": QUICK, "push_hosts": LISTED, **options}
    async with serving_a2a(folder, blocker.agent("the reply of mine"), **options) as rig:
        rights = {"mine": ("read", "run"), "boss": ("read", "run", "admin")}
        callers = {name: rig.keys.add(name, scopes, expires=time.time() + 3600)[1] for name, scopes in rights.items()}
        headers = {name: {"Authorization": f"Bearer {secret}"} for name, secret in callers.items()}
        async with rig.client(headers=headers["mine"]) as mine, rig.client(headers=headers[owner]) as client:
            task = await sent(mine, message_request("go", now=True))
            await wait_until(lambda: blocker.entered)
            await client.create_task_push_notification_config(config(receiver.url, task_id=task.id, id="one"))
            yield rig, task


LOST = {
    "its key is revoked": ("mine", revoke),
    "its key has expired": ("mine", expire),
    "its key lost the right to run": ("mine", without("run")),
    "the key of the admin is revoked": ("boss", revoke),
    "the admin is none any more, and the run belongs to another caller": ("boss", without("admin")),
    "the admin may not read any more, and the run belongs to another caller": ("boss", without("read")),
}


@pytest.mark.parametrize("case", LOST)
async def test_a_receiver_whose_caller_has_lost_access_gets_nothing_more_and_is_removed(tmp_path, caplog, case):
    owner, lose = LOST[case]
    blocker = Blocker()
    with receiving() as receiver:
        async with watched(tmp_path, blocker, receiver, owner) as (rig, task):
            lose(rig.keys, owner)
            blocker.open.set()
            assert (await rig.service.wait(task.id, ADMIN)).reply == "the reply of mine"
            await idle(rig)
            assert receivers(rig, task) == []
        assert receiver.got == []
    assert "who registered it, no longer has access to the run" in caplog.text


@pytest.mark.parametrize("owner", ["mine", "boss"])
async def test_a_receiver_whose_caller_has_access_gets_the_reply(tmp_path, owner):
    blocker = Blocker()
    with receiving() as receiver:
        async with watched(tmp_path, blocker, receiver, owner) as (rig, _):
            blocker.open.set()
            await idle(rig)
        assert receiver.states == ["COMPLETED"]


async def test_access_is_checked_again_before_a_retry(tmp_path):
    blocker = Blocker()
    with receiving() as receiver:
        receiver.answers = [503]
        receiver.hold.clear()
        async with watched(tmp_path, blocker, receiver, "mine") as (rig, task):
            blocker.open.set()
            await wait_until(lambda: receiver.got)
            revoke(rig.keys, "mine")
            receiver.hold.set()
            await idle(rig)
            assert receivers(rig, task) == []
        assert len(receiver.got) == 1


async def test_a_receiver_of_a_key_that_was_revoked_while_the_server_was_stopped_gets_nothing(tmp_path):
    blocker = Blocker()
    with receiving() as receiver:
        async with watched(tmp_path, blocker, receiver, "mine") as (rig, task):
            push = (await rig.part.protocol()).push
            push.close = _at_once(push)
            await push.close()
        with closing(KeyStore(tmp_path / "keys.db")) as keys:
            keys.revoke("mine")
        async with serving_a2a(tmp_path, blocker.agent(), keys=True, push=QUICK, push_hosts=LISTED) as rig:
            await idle(rig)
            assert receivers(rig, task) == []
        assert receiver.got == []


async def test_nothing_is_posted_while_the_keys_cannot_be_read_and_nothing_is_lost(tmp_path, monkeypatch, caplog):
    def unreadable(self):
        raise StoreError("the disk is gone")

    monkeypatch.setattr(push_module, "ACCESS_RETRY_SECONDS", 0.01)

    blocker = Blocker()
    with receiving() as receiver:
        async with watched(tmp_path, blocker, receiver, "mine") as (rig, task):
            with monkeypatch.context() as broken:
                broken.setattr(KeyStore, "refresh", unreadable)
                rig.keys._cached_until = 0.0
                blocker.open.set()
                await wait_until(lambda: "their access cannot be checked: the disk is gone" in caplog.text)
                assert receiver.got == []
            await idle(rig)
            assert receivers(rig, task) == ["one"]
        assert receiver.states == ["COMPLETED"]


async def test_the_application_is_asked_again_whether_a_caller_has_access(tmp_path):
    users = {"ann": Caller("ann", scopes={"read", "run"})}
    options = {"push": QUICK, "push_hosts": LISTED, "authenticate": lambda request: users.get(request.headers["user"])}
    blocker = Blocker()
    with receiving() as receiver, receiving() as other:
        async with (
            serving_a2a(tmp_path, blocker.agent(), **options) as rig,
            rig.client(headers={"user": "ann"}) as client,
        ):
            first = await sent(
                client, message_request("go", now=True, task_push_notification_config=config(receiver.url))
            )
            await wait_until(lambda: receiver.states == ["WORKING"])
            blocker.open.set()
            await idle(rig)
            assert receiver.states == ["WORKING", "COMPLETED"]
            blocker.open.clear()
            await sent(client, message_request("go", now=True, task_push_notification_config=config(other.url)))
            await wait_until(lambda: other.states == ["WORKING"])
            users.clear()
            blocker.open.set()
            await idle(rig)
            assert receivers(rig, first) == [first.id]
        assert other.states == ["WORKING"]
