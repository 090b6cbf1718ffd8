"""The server, in this process: its API and events, the pages of the console, and A2A."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from bs4 import BeautifulSoup, SoupStrainer

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
    """The page of a run with each of its calls in full, and the list of what was blocked."""

    id = "console"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        run = await self.run(vector)
        address = f"/console/runs/{run['id']}"
        page = await self.page(address, "run-head", "run-steps")
        head = page.select_one("#run-head")
        reply = head.select_one(".reply pre")
        keys = [link["data-call"] for link in page.select("#run-steps a.nm")]
        calls = [(await self.page(f"{address}?call={key}", "run-drawer")).select_one("#run-drawer") for key in keys]
        blocked = await self.page(f"/console/blocked?agent={self.names[vector.id]}&by=events", "blocked-rows")
        return Story(
            head.select_one(".status").text,
            reply="" if reply is None else reply.text,
            verdicts=tuple(each for call in calls for each in _decisions(call)),
            calls=tuple(each for call in calls for each in _calls(call)),
            refusals=tuple(_refusals(blocked, run["id"])),
        )

    async def page(self, address: str, *ids: str) -> Any:
        """Return the parts of a page with these ids: reading the rest would take most of the time."""
        return BeautifulSoup((await self.client.get(address)).text, "lxml", parse_only=SoupStrainer(id=list(ids)))


VERB_OF = {word: verb for verb, (word, _) in VERBS.items()}


def _decisions(call: Any) -> Iterator[HookVerdict]:
    """Yield what each hook decided about a call, from the gates of its line and what is listed after them."""
    for gate in call.select(".gate-row, .decided"):
        decided = gate.select(".did") or [gate]
        reasons = gate.find_all("p", class_="why", recursive=False)
        for each, place in zip(decided, [each.select_one(".at").text for each in decided], strict=True):
            word, (point, _, _) = each.select_one(".w").text, place.partition(" · ")
            said = _said(gate, each, reasons)
            if said is not None or word not in ("passed", "not called"):
                is_error = said is not None and "bad" in said["class"]
                text = "" if said is None else said.text
                yield HookVerdict(
                    point,
                    VERB_OF["asked" if word in ("asks", "asked without answer", "denied") else word],
                    gate.select_one("b").text,
                    "" if is_error else text,
                    error=re.sub(r" \(\w+\.py:\d+\)$", "", text) if is_error else "",
                )


def _said(gate: Any, decided: Any, reasons: list[Any]) -> Any:
    """Return the reason of a decision: it follows the line of the decision, if the gate has several."""
    if decided is gate:
        return reasons[0] if reasons else None
    following = decided.find_next_sibling("p")
    return following if following in reasons else None


def _calls(call: Any) -> Iterator[CallTold]:
    tool, outcome = call.select_one("h2 code"), call.select_one(".outcome")
    if tool is not None:
        read = call.select_one(".reads pre")
        said = "blocked" if outcome.text == "denied" else outcome.text  # by a person: events say that in the verdict
        yield CallTold(tool.text, said, "" if read is None else read.text)


def _refusals(page: Any, run_id: str) -> Iterator[Refusal]:
    for row in page.select("#blocked-rows tbody tr"):
        if row.select_one(f'a[href$="{run_id}"]') is not None:
            rule, reason, about = row.select_one(".rule"), row.select_one(".ev-w").text, row.select_one(".ev-x code")
            word = rule.select_one("svg")["aria-label"]
            yield Refusal(
                rule.select_one("b").text,
                about["title"],
                VERB_OF.get(word, word),
                about.text if about.text != about["title"] else "",  # without a tool, it is the point
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
