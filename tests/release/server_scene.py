"""What works with the extra ``server`` alone: an agent behind the API of OpenAI, A2A and the console."""

import asyncio
import json
from urllib.request import Request, urlopen

from hookline import Agent, ScriptedModel
from hookline.config import Settings
from hookline.server import build_server

MESSAGE = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}


def ask(url):
    """Ask the agent at both doors, and get the console."""
    chat = post(f"{url}/v1/chat/completions", model="clerk", messages=[{"role": "user", "content": "hi"}])
    assert chat["choices"][0]["message"]["content"] == "hello", chat
    task = post(f"{url}/a2a/clerk", jsonrpc="2.0", id=1, method="SendMessage", params={"message": MESSAGE})
    assert task["result"]["task"]["artifacts"][0]["parts"] == [{"text": "hello"}], task
    with urlopen(url) as page:
        assert "<title>" in page.read().decode()


def post(url, **body):
    """Post JSON, and return the JSON of the answer."""
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


async def main():
    """Serve an agent and ask it."""
    server = build_server(Settings(server={"port": 0}), Agent("clerk", llm=ScriptedModel(["hello"], loop=True)))
    await server.start()
    try:
        await asyncio.to_thread(ask, server.url)
    finally:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main())
