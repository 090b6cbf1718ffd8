"""The scene of the tests of durable runs: an agent whose model and tools answer something else each time.

Nothing here is repeatable by itself, so a run that continues correctly does so because of its journal. What happens is
noted in files of a folder (the *world*), also by processes that are killed.

As a program: ``python durable_scene.py WORLD RUN_ID`` starts or continues a run. The variable ``KILL_AT`` names the
moment at which the program kills itself, ``STOP_AT`` the one at which it stops itself until it gets ``SIGCONT``,
``PACE`` the longest pause in seconds, and ``LEASE`` the seconds of a lease.
``FULL_AT`` names the moment from which on the file of the run cannot grow, and ``FULL`` how that is done: by a limit of
its pages, or by a limit of the system for the size of files.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from hookline import Agent, HookResult, guard, hook, observer, tool
from hookline.errors import RunHeldError, RunWaitingError
from hookline.models import ModelResponse
from hookline.payloads import ToolCall, Usage
from hookline.stores import RunStore
from hookline.teams import Team
from tests.lines import add_line, read_lines

BLOCK_EACH = 5


class World:
    """A folder in which everything that happens is noted, one line each."""

    def __init__(self, folder: Path, pace: float = 0.0) -> None:
        self.folder, self.pace = folder, pace
        self.reached = 0
        self.fill: Callable[[], object] = lambda: None
        """Make the file of the run full."""

    def note(self, name: str, *values: object) -> None:
        """Append a line, which also a killed process leaves behind."""
        add_line(self.folder / name, *map(str, values))
        self.reach(name)

    def reach(self, moment: str) -> None:
        """Do what is to be done at this moment: ``KILL_AT="ran 3"`` means at the third time that a tool runs."""
        what = next((each for each in ("KILL_AT", "STOP_AT", "FULL_AT") if os.environ.get(each)), "")
        name, _, number = os.environ.get(what, "").partition(" ")
        if name == moment:
            self.reached += 1
            if self.reached == int(number):
                if what == "FULL_AT":
                    self.fill()
                else:
                    os.kill(os.getpid(), signal.SIGKILL if what == "KILL_AT" else signal.SIGSTOP)

    def lines(self, name: str) -> list[list[str]]:
        """Return the values of each line of a file, as texts."""
        return read_lines(self.folder / name)

    async def pause(self, most: float = 1.0) -> None:
        """Wait for a random time."""
        await asyncio.sleep(self.pace * random.uniform(0.0, most))


def call_keys(entries: Iterable[Any], run_id: str) -> list[tuple[str, str]]:
    """Return the entries of a journal about calls of tools: the kind of each, and the ``ctx.call_key`` of its call.

    The lane of a call is a part of that of its run, which is ``LANE/run.N`` if its id is the N-th that LANE has made.
    """
    runs, made, found = {"1": run_id}, Counter[str](), []
    for lane, kind, key, data in entries:
        for what, value in data if kind == "draws" else ():
            if what == "id" and value.startswith("run_"):
                made[lane] += 1
                runs[f"{lane}/run.{made[lane]}"] = runs[f"{lane}&{made[lane]}"] = value
        if key.startswith("tool "):
            _, _, call_id, attempt, _ = key.split(" ")
            text = "\n".join((runs[lane.rpartition("/")[0]], call_id, attempt))
            found.append((kind, sha256(text.encode()).hexdigest()[:32]))
    return found


class RandomModel:
    """A model whose replies have random numbers in them."""

    name, provider = "random", "scene"

    def __init__(self, world: World) -> None:
        self.world = world

    def _reply(self, request: Any) -> ModelResponse:
        who, turn = request.ids.agent, sum(message.role == "assistant" for message in request.messages)
        self.world.note("asked", request.ids.run_id, request.purpose, turn, os.getpid())
        calls: list[ToolCall] = []
        if request.purpose != "step":
            return ModelResponse(f"opinion {_number()}", usage=Usage(5, 5), cost=0.001)
        if who == "boss":
            if turn in (0, 3):
                calls = [ToolCall(f"c{turn}{i}", "write", {"n": _number()}) for i in range(3)]
            elif turn == 1:
                calls = [
                    ToolCall("c1a", "delegate", {"to": "helper", "task": f"do {_number()}"}),
                    ToolCall("c1b", "write", {"n": _number()}),
                    ToolCall("c1c", "delegate", {"to": "helper", "task": f"do {_number()}"}),
                ]
            elif turn == 2:
                calls = [ToolCall("c2", "pay", {"n": _number()})]
            elif turn == 4:
                calls = [ToolCall("c4", "write", {"n": _number()})]
        elif turn == 0:
            calls = [ToolCall(f"h{_number()}", "write", {"n": _number()})]
        text = f"turn {turn} of {who} says {_number()}"
        usage = Usage(100, 10)
        return ModelResponse(
            text, tuple(calls), usage=usage, cost=0.01, finish_reason="tool_calls" if calls else "stop"
        )

    async def complete(self, request: Any) -> ModelResponse:
        await self.world.pause()
        return self._reply(request)

    async def stream(self, request: Any) -> Any:
        response = self._reply(request)
        for word in response.content.split():
            await self.world.pause(0.3)
            yield word + " "
        yield response

    def count_tokens(self, content: Any) -> int:
        return 7


def _number() -> int:
    return secrets.randbelow(10**6)


class EachFifth:
    """A guard with state: of all calls of a run and its nested runs, each fifth is blocked."""

    points = frozenset({"before_tool"})
    phase = "guard"
    name = "each_fifth"

    def __init__(self, each: int = BLOCK_EACH) -> None:
        self.each = each

    def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
        count = ctx.tree_state.setdefault(id(self), [0])
        count[0] += 1
        return HookResult.block(f"call {count[0]} is not allowed") if count[0] % self.each == 0 else None


def make_agent(world: World, *, stream: bool = True, each: int = BLOCK_EACH, more: Any = ()) -> Agent:
    """Return the agent of the scene."""

    @tool
    async def write(n: int, ctx: Any) -> str:
        """Write a number."""
        await world.pause()
        world.note("ran", ctx.call_key, "write", n, ctx.ids.correlation_id, os.getpid())
        await world.pause()
        return f"write {n} under {ctx.call_key}"

    @tool(repeatable=False)
    async def pay(n: int, ctx: Any) -> str:
        """Pay."""
        await world.pause()
        world.note("ran", ctx.call_key, "pay", n, ctx.ids.correlation_id, os.getpid())
        return f"pay {n} under {ctx.call_key}"

    @hook("before_llm", name="stamp")
    def stamp(ctx: Any, request: Any) -> Any:
        mark = f"[{ctx.new_id('mark')} {ctx.random.random():.6f} {ctx.clock.time():.3f}]"
        return HookResult.replace({"params": {**request.params, "user": mark}})

    @guard("before_tool", tools="write", name="judge")
    async def judge(ctx: Any, request: Any) -> Any:
        if request.id == "c4":
            reply = await ctx.llm.complete("Is this fine?", purpose="judge")
            day = await ctx.once("day", lambda: {"day": _number()})
            return HookResult.cont(reason=f"{reply.content} on {day['day']}")
        return None

    @guard("before_tool", tools="pay", name="asks")
    def asks(ctx: Any, request: Any) -> Any:
        return HookResult.ask("really?")

    @observer("after_tool", name="ledger")
    def ledger(ctx: Any, result: Any) -> None:
        world.note("ledger", ctx.run_id, result.id, result.attempt, result.outcome, os.getpid())

    @observer("on_run_end", name="end")
    def end(ctx: Any, result: Any) -> None:
        world.note("ended", ctx.run_id, result.status, os.getpid())

    @hook("approval_requested", name="person")
    async def person(ctx: Any, request: Any) -> Any:
        world.note("person", ctx.run_id, request.call.id, os.getpid())
        if (world.folder / "later").exists():
            return HookResult.wait()
        await world.pause(3)
        return HookResult.approve(by=f"person-{secrets.token_hex(3)}")

    helper = Agent("helper", llm=RandomModel(world), tools=[write])
    hooks: list[Any] = [EachFifth(each), stamp, judge, asks, ledger, end, person, *more]
    if stream:
        hooks.append(hook("on_token", name="reader")(lambda ctx, delta: None))
    return Agent("boss", llm=RandomModel(world), tools=[write, pay, Team([helper])], hooks=hooks)


def main() -> None:
    """Start or continue a run; the result is in the folder afterwards."""
    world = World(Path(sys.argv[1]), pace=float(os.environ.get("PACE", "0.05")))
    run_id = sys.argv[2]
    store = RunStore(world.folder / "runs.db", lease_seconds=float(os.environ.get("LEASE", "15")))
    agent = make_agent(world)
    append = store.journal.append

    def killed_around_commits(*args: Any, **options: Any) -> None:
        world.reach("before_commit")
        append(*args, **options)
        world.reach("after_commit")

    store.journal.append = killed_around_commits  # type: ignore[method-assign]

    def fill() -> None:
        world.note("full")
        if os.environ["FULL"] == "pages":
            with store.db.transaction() as db:
                db.execute("PRAGMA max_page_count = 1")  # that is, not more than there are
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    world.fill = fill
    world.note("started", os.getpid())
    try:
        result = None
        while result is None:
            try:
                result = agent.run("go", durable=store, run_id=run_id)
            except RunHeldError:  # until the lease of the killed process expires
                time.sleep(0.05)
    except RunWaitingError:
        world.note("waiting", run_id)
        return
    except Exception as error:
        world.note("failed", os.getpid(), type(error).__name__, error)
        raise
    (world.folder / f"{run_id}.json").write_bytes(result.to_json())


if __name__ == "__main__":
    main()
