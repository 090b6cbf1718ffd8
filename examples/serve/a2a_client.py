"""The agent through the official A2A client: pip install a2a-sdk.

python a2a_client.py "Deploy the shop."
"""

import asyncio
import os
import sys
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState

URL = os.environ.get("HOOKLINE_URL", "http://127.0.0.1:8420")
KEY = os.environ.get("HOOKLINE_KEY", "")


async def main() -> None:
    """Send a message, and tell what becomes of the task."""
    headers = {"Authorization": f"Bearer {KEY}"} if KEY else {}
    async with httpx.AsyncClient(headers=headers, timeout=None) as http:
        card = await A2ACardResolver(http, URL).get_agent_card()
        print(f"{card.name}: {', '.join(skill.name for skill in card.skills)}")
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        task = " ".join(sys.argv[1:]) or "Which version of the shop runs?"
        message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=[Part(text=task)])
        async for event in client.send_message(SendMessageRequest(message=message)):
            match event.WhichOneof("payload"):
                case "status_update":
                    status = event.status_update.status
                    print(TaskState.Name(status.state), *(part.text for part in status.message.parts), flush=True)
                case "artifact_update":
                    print(*(part.text for part in event.artifact_update.artifact.parts), sep="", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
