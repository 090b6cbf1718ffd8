"""Durable runs whose processes are really killed, paused and replaced (DESIGN 6.17)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline.payloads import AgentResult
from hookline.stores import RunStore
from tests.durable_scene import World, call_keys
from tests.environment import with_source
from tests.waiting import block_until

MOMENTS = ("ran 4", "ledger 4", "person 1", "asked 6", "before_commit 5", "after_commit 9", "after_commit 20")

SCENE = Path(__file__).parents[1] / "durable_scene.py"


def start(world: World, run_id: str = "r", **env: str) -> subprocess.Popen[bytes]:
    """Start a process that starts or continues the run of the scene."""
    with open(world.folder / "output", "ab") as output:
        env = with_source() | {"LEASE": "1"} | env
        return subprocess.Popen([sys.executable, SCENE, world.folder, run_id], env=env, stderr=output)


def finish(process: subprocess.Popen[bytes], world: World) -> AgentResult[Any]:
    """Wait for the process and return the result of its run."""
    assert process.wait() == 0, (world.folder / "output").read_text()[-2000:]
    return msgspec.json.decode((world.folder / "r.json").read_bytes(), type=AgentResult)


def check(world: World, result: AgentResult[Any], kills: int) -> None:
    """Check everything that is promised about a run that was killed so many times."""
    assert result.status == "completed"
    waiting: list[str] = []
    for message in result.messages:
        if message.role == "tool":
            assert message.call_id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in message.tool_calls]
    assert not waiting
    # The model was told what was done, under the key that was done.
    done = {line[0]: line[2] for line in world.lines("ran")}
    told = [m.content.split() for m in result.messages if m.role == "tool" and " under " in m.content]
    assert all(done[words[-1]] == words[1] for words in told)
    # Readers see gap-free numbers, and each call once.
    store = RunStore(world.folder / "runs.db")
    events = store.events("r", limit=100_000)
    store.close()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert sum(b"each_fifth" in event.data and b'"verb":"block"' in event.data for event in events) == 13 // 5
    # A call in flight may be repeated with its key; a committed one is not. At most three calls are in flight at once.
    ran = Counter(line[0] for line in world.lines("ran"))
    assert ran.total() - len(ran) <= 3 * kills
    assert all(count <= kills + 1 for count in ran.values())
    assert Counter(line[1] for line in world.lines("ran"))["pay"] <= 1
    # Observers are called for each call, and again only around a kill.
    ledger = Counter(tuple(line[:3]) for line in world.lines("ledger"))
    assert len(ledger) == 13
    assert ledger.total() - len(ledger) <= 3 * kills


@pytest.mark.parametrize(
    "moment",
    ["ran 2", *(pytest.param(each, marks=pytest.mark.slow) for each in MOMENTS)],
)
def test_a_killed_run_is_continued_by_another_process(tmp_path: Path, moment: str) -> None:
    world = World(tmp_path)
    assert start(world, KILL_AT=moment, PACE="0.01").wait() == -signal.SIGKILL
    check(world, finish(start(world, PACE="0.01"), world), kills=1)


def test_a_paused_process_whose_run_was_taken_over_begins_no_further_tool(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = start(world, LEASE="2", PACE="0.1", STOP_AT="ran 1")
    assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1])
    store = RunStore(tmp_path / "runs.db")
    block_until(lambda: store.journal.get("r").lease < time.time())
    store.close()
    second = start(world, LEASE="60", PACE="0.1")
    block_until(lambda: len(world.lines("started")) == 2 and len(world.lines("asked")) > 3)
    before = len([line for line in world.lines("ran") if line[-1] == str(first.pid)])
    first.send_signal(signal.SIGCONT)
    result = finish(second, world)
    assert first.wait() == 1
    assert [line[1] for line in world.lines("failed")] == ["LeaseLostError"]
    assert result.status == "completed"
    # Calls that had begun before the pause may still end in the first process; none begins there.
    after = [line for line in world.lines("ran") if line[-1] == str(first.pid)]
    assert len(after) - before <= 3
    keys = [line[0] for line in world.lines("ran") if line[-1] == str(first.pid)]
    assert len(keys) == len(set(keys)) <= 3


def test_a_waiting_run_needs_no_process(tmp_path: Path) -> None:
    world = World(tmp_path)
    (tmp_path / "later").touch()
    assert start(world, PACE="0.01").wait() == 0
    assert world.lines("waiting") == [["r"]]
    (tmp_path / "later").unlink()
    check(world, finish(start(world, PACE="0.01"), world), kills=1)
    assert len(world.lines("person")) == 2


@pytest.mark.slow
@pytest.mark.sqlite
def test_after_a_power_loss_the_journal_is_a_consistent_beginning(tmp_path: Path) -> None:
    """SQLite without ``synced`` may lose the end of its log: here, the process is killed and half of the log is cut."""
    (tmp_path / "a").mkdir()
    world = World(tmp_path / "a")
    assert start(world, KILL_AT="ledger 7", PACE="0.01").wait() == -signal.SIGKILL
    log = world.folder / "runs.db-wal"
    with open(log, "r+b") as file:
        file.truncate(log.stat().st_size // 2)
    (world.folder / "runs.db-shm").unlink()
    result = finish(start(world, PACE="0.01"), world)
    assert result.status == "completed"


SCRIPTED = """
import os, signal, sys
from hookline import Agent, ScriptedModel, call, reply, tool
from hookline.stores import RunStore

@tool
async def work(n: int) -> str:
    "Work, and be killed the first time."
    with open(sys.argv[2], "a+") as done:
        done.write(str(n))
        done.seek(0)
        if done.read().count(str(n)) == 1:
            done.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    return f"worked {n}"

model = ScriptedModel([call("work", n=1), call("work", n=2), reply("done"), reply("and more")])
agent = Agent("a", llm=model, tools=[work])
store = RunStore(sys.argv[1])
results = [agent.run("go", durable=store, run_id="r"), agent.run("more", durable=store, run_id="s")]
print([[message.content for message in result.messages[1:]] for result in results])
"""


@pytest.mark.sqlite  # on PostgreSQL, the run could be continued only when the lease of the killed process has expired
def test_a_killed_run_with_a_scripted_model_continues_its_script(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPTED, tmp_path / "runs.db", tmp_path / "done"]
    options: Any = {"env": with_source(), "capture_output": True, "text": True, "timeout": 60}
    for _ in range(2):
        assert subprocess.run(command, **options, check=False).returncode == -signal.SIGKILL
    for _ in range(2):  # the second time, both runs have ended
        done = subprocess.run(command, **options, check=True)
        assert done.stdout == "[['', 'worked 1', '', 'worked 2', 'done'], ['and more']]\n"
    assert (tmp_path / "done").read_text() == "1122"


def test_a_forked_child_leaves_the_run_of_its_parent_alone(tmp_path: Path) -> None:
    program = """
import os, sys
from hookline import Agent, tool
from hookline.stores import RunStore
from hookline.testing import ScriptedModel, call, reply

@tool
async def fork() -> str:
    "Fork."
    child = os.fork()
    if child == 0:
        os._exit(7)
    return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

store = RunStore(sys.argv[1])
agent = Agent("a", llm=ScriptedModel([call("fork"), reply("done")]), tools=[fork])
result = agent.run("go", durable=store, run_id="r")
print(result.reply, store.journal.get("r").status, len(store.events("r")))
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, tmp_path / "runs.db"]
    done = subprocess.run(command, env=with_source(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["done", "completed", "15"]


@pytest.mark.slow
def test_a_forked_child_that_outlives_its_killed_parent_does_not_hold_the_run(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from hookline import Agent, tool
from hookline.stores import RunStore
from hookline.testing import ScriptedModel, call, reply

@tool
async def fork() -> str:
    "Fork once, and let the parent be killed."
    if not os.path.exists(sys.argv[2]):
        child = os.fork()
        if child == 0:
            signal.pause()
        with open(sys.argv[2], "w") as file:
            file.write(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    return "forked"

def turn(request):
    return reply("done") if request.messages[-1].role == "tool" else call("fork")

store = RunStore(sys.argv[1], lease_seconds=1)
agent = Agent("a", llm=ScriptedModel([turn], loop=True), tools=[fork])
while True:
    try:
        result = agent.run("go", durable=store, run_id="r")
        break
    except Exception as error:
        if type(error).__name__ != "RunHeldError":
            raise
numbers = [event.seq for event in store.events("r")]
print(result.reply, store.journal.get("r").status, numbers == list(range(1, len(numbers) + 1)))
"""
    child = tmp_path / "child"
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, tmp_path / "runs.db", child]
    options: Any = {"env": with_source(), "stdout": subprocess.PIPE, "text": True}
    try:
        with subprocess.Popen(command, **options) as parent:
            assert parent.wait() == -signal.SIGKILL
            os.kill(int(child.read_text()), 0)  # the child lives
            done = subprocess.run(command, **options, check=True)
            os.kill(int(child.read_text()), signal.SIGKILL)
    finally:
        if child.exists():
            with suppress(ProcessLookupError):
                os.kill(int(child.read_text()), signal.SIGKILL)
    assert done.stdout.split() == ["done", "completed", "True"]


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("moment", ["ran 2", "person 1", "asked 6"])
@pytest.mark.parametrize("full", ["pages", "file size"])
def test_a_run_whose_disk_is_full_starts_no_tool_says_so_and_is_resumed_when_there_is_space(
    tmp_path: Path, full: str, moment: str
) -> None:
    world = World(tmp_path)
    assert start(world, FULL=full, FULL_AT=moment, PACE="0.01").wait() == 1
    ((_, error, *words),) = world.lines("failed")
    assert error == "StoreError"
    assert ("is full" if full == "pages" else "disk I/O error") in " ".join(words)
    # Every tool that began has its intent in the journal.
    store = RunStore(tmp_path / "runs.db")
    with store.db.transaction() as db:
        rows = db.execute("SELECT data FROM journal WHERE run_id = 'r'").fetchall()
    store.close()
    entries = [entry for (data,) in rows for entry in msgspec.json.decode(data)]
    asked = {key for kind, key in call_keys(entries, "r") if kind == "asked"}
    assert {line[0] for line in world.lines("ran")} <= asked
    check(world, finish(start(world, PACE="0.01"), world), kills=1)


@pytest.mark.sqlite
def test_after_a_full_disk_the_same_process_continues_the_run_at_once(tmp_path: Path) -> None:
    program = """
import resource, sys
from hookline import Agent, ScriptedModel, call, reply, tool
from hookline.stores import RunStore

limits = [4096]

@tool
def fill() -> str:
    if limits:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.pop(), resource.RLIM_INFINITY))
    return "x" * 100_000

agent = Agent("bot", llm=ScriptedModel([call("fill"), reply("done")]), tools=[fill])
try:
    agent.run("go", durable=RunStore(sys.argv[1]), run_id="r")
except Exception as error:
    print(type(error).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store = RunStore(sys.argv[1])  # another object for the same file
print(store.journal.get("r").status, store.journal.get("r").lease > 0)
try:
    print(agent.run("go", durable=store, run_id="r").status, store.journal.get("r").attempts)
except Exception as error:
    print(type(error).__name__)
"""
    command = [sys.executable, "-c", program, tmp_path / "runs.db"]
    done = subprocess.run(command, env=with_source(), stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines() == ["StoreError", "running True", "completed 1"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_run_is_lost_when_processes_are_killed_at_50_random_moments(tmp_path: Path) -> None:
    rng, kills, number = random.Random(21), 0, 0
    while kills < 50:
        number += 1
        (tmp_path / str(number)).mkdir()
        world, killed = World(tmp_path / str(number)), 0
        while killed < 4:
            process = start(world, PACE="0.04")
            count = killed + 1
            block_until(lambda c=count, p=process, w=world: len(w.lines("started")) == c or p.poll() is not None)
            time.sleep(rng.uniform(0.0, 0.5))
            process.kill()
            if process.wait() == 0:
                break
            killed += 1
        result = finish(start(world, PACE="0.01"), world)
        check(world, result, killed)
        kills += killed
