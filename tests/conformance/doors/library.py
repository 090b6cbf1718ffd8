"""The library: the loop, durable runs, tapes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from hookline import RunFailedError
from hookline._run.journal import Append
from hookline.records import read_runs
from hookline.stores import RunStore
from hookline.tape import Tape, TapeHook, areplay

from ..build import TASK, Scene, story_of, story_of_json
from ..vectors import HookVerdict, Story, Vector, project
from .base import Door, events_of
from .recorded import points_of


class Loop(Door):
    """``run``, ``arun``, ``start`` and ``stream`` of an agent, which must tell the same."""

    id = "loop"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        scene = Scene(vector, folder)
        story = scene.executed(story_of(await self._stream(scene)))
        for execute in (self._arun, self._run):
            again = Scene(vector, folder)
            other = again.executed(story_of(await execute(again)))
            assert project(other, Story.__struct_fields__) == project(story, Story.__struct_fields__)
        return story

    async def _stream(self, scene: Scene) -> list[Any]:
        found: list[Any] = []
        try:
            async for event in scene.agent().stream(TASK):
                found.append(event)
        except RunFailedError:
            pass
        return found

    async def _arun(self, scene: Scene) -> list[Any]:
        return await events_of(scene.agent())

    async def _run(self, scene: Scene) -> list[Any]:
        found: list[Any] = []

        def run() -> None:
            try:
                scene.agent().run(TASK, sinks=[found.append])
            except RunFailedError:
                pass

        await asyncio.to_thread(run)
        return found


class Durable(Door):
    """A durable run, read from its events in the database."""

    id = "durable"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        scene = Scene(vector, folder)
        with closing(RunStore(folder / "runs.db")) as store:
            await events_of(scene.agent(), durable=store, run_id="r")
            return scene.executed(stored_story(store))


def stored_story(store: RunStore, run_id: str = "r") -> Story:
    """Read a story from the stored events of a run."""
    return story_of_json(msgspec.json.decode(row.data) for row in store.events(run_id, limit=10_000))


class Killed(Door):
    """A durable run whose process is killed, and that another process continues.

    Args:
        step: kill it after every so many entries of its journal; 0 only after the one in the middle.
    """

    id = "killed"

    def __init__(self, step: int = 0) -> None:
        self.step = step

    async def tell(self, vector: Vector, folder: Path) -> Story:
        head, entries = await self._recorded(vector, folder)
        kept = range(1, len(entries), self.step) if self.step else [len(entries) // 2]
        stories = [await self._continued(vector, folder / f"{number}", head, entries[:number]) for number in kept]
        for other in stories[1:]:
            assert project(other, Story.__struct_fields__) == project(stories[0], Story.__struct_fields__)
        return stories[0]

    async def _recorded(self, vector: Vector, folder: Path) -> tuple[list[Any], list[tuple[list[bytes], list[Any]]]]:
        """Return the beginning of the journal of a run, and its entries, each with the events stored with it."""
        head, writes = list[Any](), list[Append]()
        with closing(RunStore(folder / "runs.db")) as store:
            append, claim = store.journal.append, store.journal.claim

            def recorded(write: Append) -> None:
                append(write)
                writes.append(write)

            store.journal.append = recorded  # type: ignore[method-assign]
            store.journal.claim = lambda *args: head.extend(args) or claim(*args)  # type: ignore[method-assign, func-returns-value]
            await events_of(Scene(vector, folder).agent(), durable=store, run_id="r")
        return head, [entry for write in writes for entry in _split(write)]

    async def _continued(
        self, vector: Vector, folder: Path, head: list[Any], entries: list[tuple[list[bytes], list[Any]]]
    ) -> Story:
        """Continue a run whose process was killed after these entries."""
        folder.mkdir()
        with closing(RunStore(folder / "runs.db")) as store:
            epoch = store.journal.claim(*head[:3]).epoch
            data = [each for part, _ in entries for each in part]
            store.journal.append(Append("r", epoch, 1, data, [event for _, events in entries for event in events]))
            store.journal.append(Append("r", epoch, len(data) + 1, status="interrupted"))
            await events_of(Scene(vector, folder).agent(), durable=store, run_id="r")
            return stored_story(store)


def _split(write: Append) -> Iterator[tuple[list[bytes], list[Any]]]:
    """Split a commit into its entries, each with the events that are stored with it."""
    events = list(write.events)
    for index, data in enumerate(write.entries):
        _, kind, key, _ = msgspec.json.decode(data)
        types = {"event": key.split()[:1], "text": ["text_delta", "discarded"]}.get(kind, [])
        stored: list[Any] = []
        while types and events and not (stored and any(f'"type":"{each}"'.encode() in stored[-1][3] for each in types)):
            stored.append(events.pop(0))
        yield [data], (stored + events if index == len(write.entries) - 1 else stored)


class TapeDoor(Door):
    """The tape of a run: its events, and its moments for the verdicts of points."""

    id = "tape"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        await events_of(Scene(vector, folder).agent(TapeHook(folder / "run.tape")))
        (run,) = read_runs([folder / "run.tape"])
        return msgspec.structs.replace(story_of(Tape.load(folder / "run.tape").events()), points=points_of(run))


class Replay(Door):
    """The replay of a tape with the same hooks: no model and no tool is called, and every decision is the same."""

    id = "replay"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        await events_of(Scene(vector, folder).agent(TapeHook(folder / "run.tape")))
        scene = Scene(vector, folder)
        again = await areplay(folder / "run.tape", scene.agent())
        assert (again.first_difference, again.stop_reason) == ("", "")
        assert (scene.ran, scene.model.requests) == ([], [])
        main = again.result.ids.run_id
        verdicts = [
            HookVerdict(
                each.point,
                each.verb,
                each.hook,
                each.reason,
                error=each.error or "",
                agent="main" if each.run_id == main else "helper",
            )
            for each in again.replayed
        ]
        result = again.result
        stop = result.stop.kind if result.stop is not None else ""
        return Story(result.status, stop, result.reply, verdicts=tuple(verdicts))
