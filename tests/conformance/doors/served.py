"""The server, in this process: its API and events, the pages of the console, and A2A."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from bs4 import BeautifulSoup

from hookline.config.settings import Settings
from hookline.explain.words import VERBS
from hookline.server import Caller, asgi
from tests.server.http_rig import events_in

from ..build import TASK, Scene, story_of_json
from ..vectors import CallTold, HookVerdict, Refusal, Story, Vector
from .base import Door

ALL_RIGHTS = frozenset(("read", "run", "approve", "admin"))
LIMITS = {"rate": 1e9, "burst": 1_000_000, "max_runs_per_caller": 10_000, "max_queued": 10_000}


class Served(Door):
    """A server with one agent for each vector."""

    async def tell(self, vector: Vector, folder: Path) -> Story:
        raise NotImplementedError

    @asynccontextmanager
    async def open(self, folder: Path, vectors: Sequence[Vector]) -> AsyncIterator[None]:
        self.scenes = {}
        for number, vector in enumerate(vectors):
            place = folder / f"scene{number}"
            place.mkdir()
            self.scenes[vector.id] = Scene(vector, place)
        self.names = {id: f"agent{number}" for number, id in enumerate(self.scenes)}
        agents = {self.names[id]: scene.agent() for id, scene in self.scenes.items()}
        settings = Settings(
            runs=str(folder / "runs.db"),
            sessions=str(folder / "sessions.db"),
            approval_file=str(folder / "approvals.db"),
            server=LIMITS,
        )
        caller = Caller("ann", scopes=ALL_RIGHTS)
        app = asgi(agents, authenticate=lambda request: caller, settings=settings, home=folder)
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with app, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8420", timeout=60) as client:
            self.client = client
            yield

    async def run(self, vector: Vector) -> dict[str, Any]:
        """Run a vector and return the run as the API shows it."""
        given = {"task": TASK, "agent": self.names[vector.id], "wait": 30}
        answer = await self.client.post("/runs", json=given)
        assert answer.status_code == 201, answer.text
        return answer.json()  # type: ignore[no-any-return]


class Api(Served):
    """``POST /runs`` and the stream of events."""

    id = "api"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        run = await self.run(vector)
        answer = await self.client.get(f"/runs/{run['id']}/events", headers={"accept": "text/event-stream"})
        story = self.scenes[vector.id].executed(story_of_json(events_in(answer.text)))
        assert (run["status"], run["reply"]) == (story.status, story.reply)
        return story


class Console(Served):
    """The page of a run, and the list of what was blocked."""

    id = "console"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        run = await self.run(vector)
        page = BeautifulSoup((await self.client.get(f"/console/runs/{run['id']}")).text, "html.parser")
        head = page.select_one("#run-head")
        reply = head.select_one(".ending pre")
        blocked = BeautifulSoup(
            (await self.client.get(f"/console/blocked?agent={self.names[vector.id]}")).text, "html.parser"
        )
        return Story(
            head.select_one(".pill").text,
            reply="" if reply is None else reply.text,
            verdicts=tuple(_decisions(page)),
            calls=tuple(_calls(page)),
            refusals=tuple(_refusals(blocked, run["id"])),
        )


VERB_OF = {word: verb for verb, (word, _) in VERBS.items()}


def _decisions(page: Any) -> Iterator[HookVerdict]:
    for point in page.select(".point"):
        name = point.select_one("code")
        for decision in point.select(".decision"):
            reason, error = decision.select_one(".reason"), decision.select_one(".bad-text")
            yield HookVerdict(
                name.text,
                VERB_OF[decision.select_one(".pill").text],
                decision.select_one(".who").text,
                "" if reason is None else reason.text,
                error="" if error is None else re.sub(r" \(\w+\.py:\d+\)$", "", error.text),
            )


def _calls(page: Any) -> Iterator[CallTold]:
    for item in page.select(".item"):
        tool = item.select_one(".lane > .line > .who.mono")
        if tool is not None:
            outcome = item.select_one(".lane > .line > .pill").text
            read = item.select_one(":scope > .lane-body > .more > pre.box")
            yield CallTold(tool.text, outcome, "" if read is None else read.text)


def _refusals(page: Any, run_id: str) -> Iterator[Refusal]:
    for row in page.select("#blocked-rows article"):
        if row.select_one(f'a[href$="{run_id}"]') is not None:
            word, reason = row.select_one(".pill").text, row.select_one(".reason").text
            hook, about, point = row.select_one("b"), row.select("code")[0].text, row.select("code")[-1].text
            yield Refusal(
                "" if hook is None else hook.text,
                point,
                VERB_OF.get(word, word),
                about if about != point else "",  # without a tool, the row begins with the point
                why="" if reason == "No reason was given." else reason,
            )


class A2a(Served):
    """A message to an agent over A2A, and the task that its client gets."""

    id = "a2a"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        message = {"messageId": vector.id, "role": "ROLE_USER", "parts": [{"text": TASK}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        answer = await self.client.post(f"/a2a/{self.names[vector.id]}", json=body, headers={"A2A-Version": "1.0"})
        task = answer.json()["result"]["task"]
        parts = [part for artifact in task.get("artifacts", ()) for part in artifact["parts"]]
        if task["status"]["state"] == "TASK_STATE_REJECTED":  # a hook ended the run: its reply is the message
            parts = task["status"]["message"]["parts"]
        reply = "".join(part["text"] for part in parts)
        return self.scenes[vector.id].executed(Story(task["metadata"]["status"], reply=reply))
