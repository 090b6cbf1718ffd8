"""Coding agents: ``hookline agent-hook`` answers the events of agents of a few lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from hookline import HookRegistry, Limits
from hookline._run.budget import NO_LIMITS
from hookline.adapters.coding_agents.codecs import codec_of
from hookline.adapters.coding_agents.codecs.base import PREFIX
from hookline.adapters.coding_agents.judge import Judge
from hookline.adapters.coding_agents.rules import Rules
from hookline.explain import explain
from hookline.hooks import ObservabilityHook
from hookline.records import RecordHook, read_runs
from hookline.stores import RunStore, run_stats
from tests.adapters.coding_agents.scripted import Host, call_event, failure_event, result_event

from ..build import TASK, Scene
from ..vectors import Refusal, Story, Vector
from .base import Door
from .recorded import story_of_record, story_of_view

AGENTS = ("claude", "gemini", "codex", "copilot", "qwen", "opencode", "cursor")


class CodingAgent(Door):
    """An agent asks before each prompt and call, and after each result, and does what it understands of the answers.

    Args:
        id: the agent, as in ``--agent``.
    """

    def __init__(self, id: str) -> None:
        self.id = id

    @asynccontextmanager
    async def open(self, folder: Path, vectors: Sequence[Vector]) -> AsyncIterator[None]:
        self.rules = Rules(HookRegistry())  # once, because it looks at all files that are loaded
        yield

    async def tell(self, vector: Vector, folder: Path) -> Story:
        scene = Scene(vector, folder)
        self.rules.limits = Limits(**vector.limits) if vector.limits else NO_LIMITS  # type: ignore[arg-type]
        session = Session(self.id, scene, self.rules)
        with closing(RunStore(":memory:")) as store:
            listing = ObservabilityHook(store)
            hooks = [*scene.hooks, listing, RecordHook(folder / "records", points="all", redact=False)]
            self.rules.registry.extend(hooks)
            try:
                await session.play()
            finally:
                await session.host.judge.close()
                for hook in hooks:
                    self.rules.registry.unregister(hook)
            assert listing.flush(10)
            refused = [
                Refusal(each.hook, each.point, each.verb, each.tool, each.reason)
                for each in run_stats(store).refusals
                for _ in range(each.count)
            ]
        (run,) = read_runs([folder / "records"])
        return msgspec.structs.replace(
            story_of_record(run, codec_of(self.id).platform),
            heard=session.heard,
            ran=tuple(sorted(scene.ran, key=repr)),
            calls=story_of_view(explain(run)).calls,
            refusals=tuple(refused),
        )


class Session:
    """One prompt: the loop of an agent with the scripted model and the tools of a vector."""

    def __init__(self, agent: str, scene: Scene, rules: Rules) -> None:
        self.agent, self.scene = agent, scene
        codec = codec_of(agent)
        own = {each.kind: each.theirs for each in reversed(codec.tools)}
        self.names = {"shell": own["shell"], "read": own["read_file"], "connect": "connect"}
        changes = [f"{theirs}={ours}" for ours, theirs in self.names.items()]
        self.host = Host(agent, Judge(rules, codec, changes, allow_rewritten=True))
        self.functions = {each.__name__: each for each in scene.functions}
        self.ids = count(1)
        self.heard = ""

    async def play(self) -> None:
        """Play the turns of the model."""
        if await self.host.prompt(TASK) is not None:
            return
        self.heard = TASK
        for turn in self.scene.vector.model:
            if isinstance(turn, str):
                note = await self.host.stop(turn)
                if note is None:
                    return
                self.heard = without_prefix(note)
                continue
            read = []
            for each in turn if isinstance(turn, list) else [turn]:
                read.append(await self.call(each))
                if self.host.stopped:
                    return
            self.heard = read[-1]

    async def call(self, given: dict[str, Any]) -> str:
        """Return what the model reads about a call."""
        tools, theirs = self.host.judge.tools, self.names[given["tool"]]
        arguments = tools.input_of(theirs, given.get("arguments", {}))
        event = call_event(self.agent, theirs, arguments, f"call_{next(self.ids)}")
        outcome, found = await self.host.call(event)
        if outcome != "runs":  # the user denies what the agent asks
            return without_prefix(found)
        made = call_event(self.agent, theirs, found, event.get("tool_use_id", event.get("call", "")))
        try:
            result = self.functions[given["tool"]](**tools.to_hookline(theirs, found)[1])
        except ConnectionError as error:
            return without_prefix(await self.host.fail(failure_event(self.agent, str(error), made), str(error)))
        return without_prefix(await self.host.read(result_event(self.agent, result, made)))


def without_prefix(text: str) -> str:
    """Return what a hook said, without the name of the program that said it for the hook."""
    return text.removeprefix(PREFIX).strip()
