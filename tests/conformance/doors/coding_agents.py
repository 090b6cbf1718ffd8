"""Coding agents: ``hookline agent-hook`` answers the events of a Claude Code of a few lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec

from hookline import HookRegistry
from hookline.adapters.claude_code.protocol import ClaudeToolNames
from hookline.adapters.coding_agents.codecs import codec_of
from hookline.adapters.coding_agents.judge import Judge
from hookline.adapters.coding_agents.rules import Rules
from hookline.hooks import ObservabilityHook
from hookline.stores import RunStore, run_stats

from ..build import TASK, Scene
from ..vectors import Refusal, Story, Vector
from .base import Door

TOOLS = {"Read": {"name": "read", "arguments": {"file_path": "path"}}, "Connect": "connect"}
CHANGES = ["Read=read", "Connect=connect"]


class StoppedError(Exception):
    """A hook stopped Claude Code."""


class ClaudeHook(Door):
    """Claude Code asks before each prompt and call, and after each result, and does what the answer says."""

    id = "agent-hook"

    @asynccontextmanager
    async def open(self, folder: Path, vectors: Sequence[Vector]) -> AsyncIterator[None]:
        self.rules = Rules(HookRegistry())  # once, because it looks at all files that are loaded
        yield

    async def tell(self, vector: Vector, folder: Path) -> Story:
        scene = Scene(vector, folder)
        claude = ClaudeCode(scene, self.rules)
        with closing(RunStore(folder / "runs.db")) as store:
            listing = ObservabilityHook(store)
            hooks = [*scene.hooks, listing]
            self.rules.registry.extend(hooks)
            try:
                await claude.run()
            except StoppedError:
                pass
            finally:
                await claude.judge.close()
                for hook in hooks:
                    self.rules.registry.unregister(hook)
            assert listing.flush(10)
            refused = [
                Refusal(each.hook, each.point, each.verb, each.tool, each.reason)
                for each in run_stats(store).refusals
                for _ in range(each.count)
            ]
        ran = tuple(sorted(scene.ran, key=repr))
        return msgspec.structs.replace(Story(), heard=claude.heard, ran=ran, refusals=tuple(refused))


class ClaudeCode:
    """The loop of Claude Code, as its documentation describes the effects of an answer."""

    def __init__(self, scene: Scene, rules: Rules) -> None:
        self.scene = scene
        self.tools = ClaudeToolNames(TOOLS)
        self.judge = Judge(rules, codec_of("claude"), CHANGES, allow_rewritten=True)
        self.heard = ""

    async def send(self, event: str, **fields: Any) -> dict[str, Any]:
        """Return the answer to an event. Exit code 2 blocks, with a reason on stderr."""
        given = {
            "session_id": "s",
            "hook_event_name": event,
            "cwd": "/",
            "transcript_path": "/.claude/s.jsonl",
        } | fields
        answer = await self.judge.answer("cli\0s\0", json.dumps(given).encode())
        if answer.code == 2:
            return {"decision": "block", "reason": answer.stderr.decode()}
        output: dict[str, Any] = json.loads(answer.stdout or b"{}")
        if output.get("continue") is False:
            raise StoppedError
        return output

    async def run(self) -> None:
        """Play the turns of the model."""
        if (await self.send("UserPromptSubmit", prompt=TASK)).get("decision") == "block":
            return
        self.heard = TASK
        for turn in self.scene.vector.model:
            if isinstance(turn, str):
                answer = await self.send("Stop", last_assistant_message=turn)
                if answer.get("decision") != "block":
                    return
                self.heard = answer["reason"]
            else:
                results = [await self.call(each) for each in (turn if isinstance(turn, list) else [turn])]
                self.heard = results[-1]

    async def call(self, given: dict[str, Any]) -> str:
        """Return what the model reads about a call."""
        name, arguments = self.tools.to_claude(given["tool"], given.get("arguments", {}))
        about = {"tool_name": name, "tool_input": arguments, "tool_use_id": "toolu_1", "permission_mode": "default"}
        answer = await self.send("PreToolUse", **about)
        specific = answer.get("hookSpecificOutput", {})
        if answer.get("decision") == "block":
            return str(answer["reason"])
        if specific.get("permissionDecision") in ("deny", "ask"):  # the user denies what the host asks
            return str(specific["permissionDecisionReason"])
        about["tool_input"] = specific.get("updatedInput", arguments)
        _, final = self.tools.to_hookline(name, about["tool_input"])
        function = next(each for each in self.scene.functions if each.__name__ == given["tool"])
        try:
            result = function(**final)
        except ConnectionError as error:
            answer = await self.send("PostToolUseFailure", error=str(error), **about)
            return str(answer.get("reason", error))
        answer = await self.send("PostToolUse", tool_response=result, **about)
        updated = answer.get("hookSpecificOutput", {}).get("updatedToolOutput", result)
        return str(answer["reason"] if answer.get("decision") == "block" else updated)
