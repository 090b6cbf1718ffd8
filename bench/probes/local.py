"""Measure what the adapter of the local model adds to llama.cpp."""

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

PROMPT = "Tell a long story about the sea."


class Clocked:
    """Wrap the server of an engine and record its requests and the time of each piece of text."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.times: list[float] = []
        self.body: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def handle_chat_completions(self, body: dict[str, Any], take: Callable[[Any], bool]) -> Any:
        def clocked(chunk: Any) -> bool:
            now = time.perf_counter()
            if has_text(chunk):
                self.times.append(now)
            return take(chunk)

        self.times, self.body = [], body
        return self._server.handle_chat_completions(body, clocked)


def has_text(chunk: Any) -> bool:
    return any(choice["delta"].get("content") for choice in chunk["choices"])


def gaps(times: list[float]) -> list[float]:
    """Return the seconds between pieces."""
    return [after - before for before, after in pairwise(times)]


def tokens(rounds: int, count: int) -> dict[str, list[float]]:
    """Return seconds per token, bare and adapted, and the delay from the callback of llama.cpp to the reader."""
    from hookline import Message, ModelRequest
    from hookline.providers.local.model import LocalModel

    model = LocalModel()
    engine = model.load()
    server = engine._server
    params = {"max_tokens": count, "temperature": 0, "ignore_eos": True}
    request = ModelRequest((Message("user", PROMPT),), params=params)
    clock, loop = Clocked(server), asyncio.new_event_loop()
    engine._server = clock

    def bare() -> list[float]:
        clock.handle_chat_completions(clock.body, lambda chunk: False)
        return clock.times

    async def adapted() -> tuple[list[float], list[float]]:
        read = [time.perf_counter() async for piece in model.stream(request) if isinstance(piece, str)]
        return read, clock.times

    loop.run_until_complete(adapted())
    seen: dict[str, list[float]] = {"bare": [], "adapted": [], "delay": [], "first": []}
    for _ in range(rounds):
        seen["bare"] += gaps(bare())
        read, produced = loop.run_until_complete(adapted())
        delays = [there - here for here, there in zip(produced, read, strict=True)]
        seen["adapted"] += gaps(read)
        seen["delay"] += delays[1:]
        seen["first"].append(delays[0])
    return seen


def memory() -> dict[str, float]:
    """Return the memory of this process in megabytes: before and after loading the weights, and after a request."""
    from hookline import Message, ModelRequest
    from hookline.providers.local.model import LocalModel

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024

    model, before = LocalModel(), resident()
    model.load()
    loaded = resident()
    asyncio.run(model.complete(ModelRequest((Message("user", PROMPT),), params={"max_tokens": 8})))
    return {"before": before, "loaded": loaded, "used": resident()}
