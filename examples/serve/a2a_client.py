"""Call the agent with the official A2A client: pip install a2a-sdk.

python a2a_client.py "Deploy the shop."

Set HOOKLINE_URL if the server is not at http://127.0.0.1:8420, and HOOKLINE_KEY if it needs a key.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    Artifact,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import UnsupportedOperationError

URL = os.environ.get("HOOKLINE_URL", "http://127.0.0.1:8420")
KEY = os.environ.get("HOOKLINE_KEY", "")


async def main() -> None:
    """Send a message and print the progress of the task."""
    headers = {"Authorization": f"Bearer {KEY}"} if KEY else {}
    async with httpx.AsyncClient(headers=headers, timeout=None) as http:
        card = await A2ACardResolver(http, URL).get_agent_card()
        print(f"{card.name}: {', '.join(skill.name for skill in card.skills)}")
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        text = " ".join(sys.argv[1:]) or "Which version of the shop runs?"
        message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)])
        waiting = await show(client.send_message(SendMessageRequest(message=message)))
        while waiting:  # a stream ends when a call waits for approval: subscribe to continue after the decision
            print("  hookline approvals shows it in another terminal")
            try:
                waiting = await show(client.subscribe(SubscribeToTaskRequest(id=waiting)))
            except UnsupportedOperationError:  # the task has finished meanwhile
                task = await client.get_task(GetTaskRequest(id=waiting))
                print(TaskState.Name(task.status.state), *texts(task.artifacts))
                break


async def show(events: AsyncIterator[StreamResponse]) -> str:
    """Print updates. Returns the id of the task if it waits for approval."""
    waiting = ""
    async for event in events:
        match event.WhichOneof("payload"):
            case "status_update":
                update = event.status_update
                waiting = update.task_id if update.status.state == TaskState.TASK_STATE_INPUT_REQUIRED else ""
                lines = (part.text for part in update.status.message.parts if part.text)
                print(TaskState.Name(update.status.state), *lines, flush=True)
            case "artifact_update":
                print(*texts([event.artifact_update.artifact]), sep="", flush=True)
    return waiting


def texts(artifacts: Iterable[Artifact]) -> list[str]:
    """The texts of artifacts."""
    return [part.text for artifact in artifacts for part in artifact.parts]


if __name__ == "__main__":
    asyncio.run(main())
