"""An A2A server of scripted agents on a real socket, and the official client."""

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    Task,
    TaskState,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from hookline._web.http_server import HttpServer
from hookline.server.a2a.api import A2aApi
from hookline.server.routing import Gate
from hookline.stores.keys import KeyStore

from ..rig import service_at

VERSION = {"A2A-Version": "1.0"}


@dataclass
class Rig:
    """A server and its clients."""

    service: object
    part: A2aApi
    host: HttpServer
    keys: KeyStore | None

    @property
    def url(self):
        return self.host.url

    def key(self, name, *scopes):
        """The headers of a caller."""
        return {"Authorization": f"Bearer {self.keys.add(name, scopes)[1]}"}

    @asynccontextmanager
    async def client(self, agent="helper", headers=None, *, version="1.0", **config):
        """The official client of an agent."""
        async with httpx.AsyncClient(headers=headers, timeout=60, verify=False) as http:
            card = await A2ACardResolver(http, f"{self.url}/a2a/{agent}").get_agent_card()
            kept = [each for each in card.supported_interfaces if each.protocol_version == version]
            del card.supported_interfaces[:]
            card.supported_interfaces.extend(kept)
            client = ClientFactory(ClientConfig(httpx_client=http, **config)).create(card)
            yield client

    @property
    def push_tasks(self):
        """The tasks that notify receivers."""
        return {} if self.part._loaded is None else self.part._loaded.push._tasks

    async def listed(self, client):
        """The only task in the list."""
        (task,) = (await client.list_tasks(ListTasksRequest())).tasks
        return task

    async def call(self, method, params, agent="helper", headers=VERSION, **more):
        """The whole response of one raw JSON-RPC call."""
        async with httpx.AsyncClient(timeout=60, verify=False) as http:
            body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params, **more}
            answer = await http.post(f"{self.url}/a2a/{agent}", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.json()

    async def stream(self, method, params, agent="helper", headers=VERSION):
        """The results of one raw streaming JSON-RPC call."""
        async with httpx.AsyncClient(timeout=60, verify=False) as http:
            body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
            answer = await http.post(f"{self.url}/a2a/{agent}", json=body, headers=headers)
            lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
            return [json.loads(line) for line in lines] or [answer.json()]


@asynccontextmanager
async def serving_a2a(
    folder, *agents, keys=False, keys_required=None, push=None, audit=None, authenticate=None, **options
):
    """A server with its files in a folder."""
    service = service_at(folder, *agents, **options)
    store = KeyStore(folder / "keys.db") if keys else None
    gate = Gate(
        store,
        service.options,
        keys_required=keys if keys_required is None else keys_required,
        audit=audit,
        authenticate=authenticate,
    )
    part = A2aApi(service, service._store, gate, **(push or {}))
    host = HttpServer([SimpleNamespace(routes=lambda: gate.routes(part.endpoints()))], port=0, grace=1)
    await service.open()
    await part.open()
    await host.start()
    try:
        yield Rig(service, part, host, store)
    finally:
        await service.close(grace=0)
        await part.close()
        await host.stop()


def message_request(text="", *, task="", context="", data=None, now=False, metadata=None, **configuration):
    """A request to send a message."""
    parts = [Part(text=text)] if text else []
    if data is not None:
        parts.append(Part(data=ParseDict(data, Value())))
    message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=parts, task_id=task, context_id=context)
    if metadata:
        message.metadata.update(metadata)
    made = SendMessageConfiguration(return_immediately=now, **configuration)
    return SendMessageRequest(message=message, configuration=made)


async def stream_events(client, request):
    """All events that the client gets for a message."""
    return [each async for each in client.send_message(request)]


async def sent(client, request):
    """The task after a message without a stream."""
    client._config.streaming = False
    try:
        (only,) = await stream_events(client, request)
    finally:
        client._config.streaming = True
    return only.task


async def got(client, id, **more) -> Task:
    return await client.get_task(GetTaskRequest(id=id, **more))


def state(task_or_update):
    return TaskState.Name(task_or_update.status.state).removeprefix("TASK_STATE_")


def text_of(message):
    return "".join(part.text for part in message.parts)


def data_of(message):
    return [MessageToDict(part.data) for part in message.parts if part.WhichOneof("content") == "data"]


def reply_of(task):
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


def assemble(events):
    """The task that a client assembles from a stream, according to the protocol."""
    task = Task()
    for event in events:
        if event.HasField("task"):
            task.CopyFrom(event.task)
        elif event.HasField("status_update"):
            task.status.CopyFrom(event.status_update.status)
        else:
            update = event.artifact_update
            here = [each for each in task.artifacts if each.artifact_id == update.artifact.artifact_id]
            if update.append:
                here[0].parts.extend(update.artifact.parts)
            elif here:
                here[0].CopyFrom(update.artifact)
            else:
                task.artifacts.append(update.artifact)
    return task
