"""Durable runs in one process: a crash is a journal that ends after some commit (DESIGN 6.17).

``Crashes`` records what each commit wrote, and what had happened in the world by then. Recovery then starts from every
one of these beginnings. Processes that are really killed are in ``tests/stores/test_durable_processes.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hookline.payloads import AgentResult
from hookline.stores import RunStore
from tests.durable_scene import World, make_agent


class Crashes:
    """Records every commit of a run, and makes worlds that end after one of them.

    Args:
        world: the world of the run.
    """

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.store = RunStore(world.folder / "runs.db", **options)
        self.commits: list[tuple[Any, ...]] = []
        self._noted: list[dict[str, bytes]] = []
        self._start: tuple[Any, ...] = ()
        journal = self.store.journal
        append, claim = journal.append, journal.claim

        def recorded_claim(*args: Any) -> Any:
            self._start = args
            return claim(*args)

        def recorded(run_id: str, epoch: int, *args: Any, **named: Any) -> None:
            append(run_id, epoch, *args, **named)
            self.commits.append(args)
            files = [file for file in world.folder.iterdir() if not file.name.startswith("runs.db")]
            self._noted.append({file.name: file.read_bytes() for file in files})

        journal.append, journal.claim = recorded, recorded_claim  # type: ignore[method-assign]

    def worlds(self) -> Iterator[tuple[World, RunStore]]:
        """Make the worlds after each commit but the last one, each with its store, which no process holds."""
        for number in range(len(self.commits)):
            folder = self.world.folder.parent / f"{self.world.folder.name}-{number}"
            folder.mkdir()
            for name, content in self._noted[number - 1].items() if number else ():
                (folder / name).write_bytes(content)
            store = RunStore(folder / "runs.db")
            epoch = store.journal.claim(*self._start).epoch
            for args in self.commits[:number]:
                store.journal.append(self._start[0], epoch, *args)
            store.journal.append(
                self._start[0], epoch, 1 + sum(len(args[1]) for args in self.commits[:number]), (), status="interrupted"
            )
            yield World(folder, self.world.pace), store
            store.close()


def committed(store: RunStore) -> tuple[list[str], list[str]]:
    """Return the keys of the intents and of the answers in a journal."""
    with store.db.transaction() as db:
        rows = [msgspec.json.decode(data) for (data,) in db.execute("SELECT data FROM journal ORDER BY seq").fetchall()]
    return [r[0] + r[2] for r in rows if r[1] == "asked"], [r[0] + r[2] for r in rows if r[1] == "answered"]


def check_transcript(result: AgentResult[Any]) -> None:
    """Check that each call has exactly one result, after it and in call order."""
    waiting: list[str] = []
    for message in result.messages:
        if message.role == "tool":
            assert message.call_id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in message.tool_calls]
    assert not waiting


def numbers(store: RunStore, run_id: str) -> list[int]:
    return [event.seq for event in store.events(run_id, limit=100_000)]


def test_a_run_continues_from_every_commit_with_the_same_verdicts_and_without_repeating_a_committed_call(
    tmp_path: Path,
) -> None:
    (tmp_path / "world").mkdir()
    crashes = Crashes(World(tmp_path / "world", pace=0.004))
    make_agent(crashes.world).run("go", durable=crashes.store, run_id="r")
    assert len(crashes.commits) > 20
    for world, store in crashes.worlds():
        seen = store.events("r", limit=100_000)
        asked, answered = committed(store)
        result = make_agent(world).run("go", durable=store, run_id="r")
        assert result.status == "completed"
        check_transcript(result)
        in_flight = len(asked) - len(answered)
        keys = Counter(line[0] for line in world.lines("ran"))
        assert keys.total() - len(keys) <= in_flight
        told = [m.content.split()[-1] for m in result.messages if m.role == "tool" and " under " in m.content]
        assert set(told) <= keys.keys()
        # Readers see what they saw, and then the rest.
        events = store.events("r", limit=100_000)
        assert events[: len(seen)] == seen
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert events[-1].type == "run_finished"
        # All calls of the tree were judged in the same order, so exactly each fifth is blocked.
        decisions = [event for event in events if event.type in ("hook_executed", "subagent_event")]
        assert sum(b"each_fifth" in event.data and b"block" in event.data for event in decisions) == 13 // 5
        # Observers are called for each call, and again only around the crash.
        ledger = Counter(tuple(line[:3]) for line in world.lines("ledger"))
        assert len(ledger) == 13
        assert ledger.total() - len(ledger) <= 3
