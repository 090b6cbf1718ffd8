"""The floor: a hand-written loop over plain dicts, without checks, events or state."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from workload import ARGUMENTS, FINAL, PROMPT, Spec

HOOKS, TOOLS = {"noop"}, {"add"}


async def noop(event: Any, other: Any = None) -> None:
    pass


def noop_sync(event: Any, other: Any = None) -> None:
    pass


async def add(a: int, b: int) -> str:
    return "3"


def build(spec: Spec) -> Callable[[], Awaitable[int]]:
    hooks = [noop] * spec.count()
    tools = {"add": add}

    async def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if spec.delay:
            await asyncio.sleep(spec.delay)
        done = len(messages) // 2
        if done < spec.steps - 1:
            return {"role": "assistant", "tool_calls": [{"id": f"c{done}", "name": "add", "arguments": ARGUMENTS}]}
        return {"role": "assistant", "content": FINAL}

    async def fire(event: Any) -> None:
        for hook in hooks:
            await hook(event)

    async def run() -> int:
        messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
        steps = 0
        await fire(messages)
        while True:
            await fire(messages)
            message = await model(messages)
            steps += 1
            await fire(message)
            messages.append(message)
            calls = message.get("tool_calls")
            if not calls:
                break
            for call in calls:
                await fire(call)
                out = await tools[call["name"]](**json.loads(call["arguments"]))
                await fire(out)
                messages.append({"role": "tool", "id": call["id"], "content": out})
        await fire(messages)
        return steps

    return run


def dispatchers() -> dict[str, tuple[bool, Callable[[int], Callable[[], Any]]]]:
    def sync(n: int) -> Callable[[], Any]:
        hooks = [noop_sync] * n

        def fire() -> None:
            for hook in hooks:
                hook(1, 2)

        return fire

    def asynchronous(n: int) -> Callable[[], Any]:
        hooks = [noop] * n

        async def fire() -> None:
            for hook in hooks:
                await hook(1, 2)

        return fire

    return {"for-loop, sync hooks": (False, sync), "for-loop, async hooks": (True, asynchronous)}
