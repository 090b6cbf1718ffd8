"""Blackboard."""

import asyncio
import logging
import subprocess
import sys
import threading

import pytest

from hookline import Agent, AgentContext, ScriptedModel, call, reply, tool
from hookline.stores import Blackboard, DatabaseBlackboard, StoreError, blackboard
from tests.waiting import block_until


@pytest.fixture(params=["memory", "database"])
def board(request, tmp_path):
    made = Blackboard() if request.param == "memory" else DatabaseBlackboard(tmp_path / "board.db")
    yield made
    if isinstance(made, DatabaseBlackboard):
        made.close()


def test_a_value_stays_until_it_is_deleted(board):
    assert board.get("a") is None
    assert board.get("a", 3) == 3
    board.set("a", {"b": [1]})
    assert board.get("a") == {"b": [1]}
    assert board.snapshot() == {"a": {"b": [1]}}
    assert board.delete("a")
    assert not board.delete("a")
    assert board.snapshot() == {}


def test_values_are_frozen(board):
    given = {"b": [1]}
    board.set("a", given)
    given["b"].append(2)
    for change in (lambda: board.get("a")["b"].append(3), lambda: board.snapshot().update(a=1)):
        with pytest.raises(TypeError):
            change()
    before = board.snapshot()
    board.set("c", 1)
    assert before == {"a": {"b": [1]}}


@pytest.mark.parametrize("use", [lambda b: b.set("a", object()), lambda b: b.set(1, 1), lambda b: b.update("a", set)])
def test_values_that_are_not_json_are_refused(board, use):
    with pytest.raises(TypeError):
        use(board)
    assert board.snapshot() == {}


def test_an_update_is_atomic(board):
    def work():
        for _ in range(300):
            board.update("n", lambda n: (n or 0) + 1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert board.get("n") == 2400


def test_an_update_that_fails_changes_nothing(board):
    board.set("n", 1)
    seen = []
    board.watch("*", lambda *change: seen.append(change))
    with pytest.raises(ZeroDivisionError):
        board.update("n", lambda n: n / 0)
    assert board.get("n") == 1
    assert seen == []
    board.set("n", 2)
    assert seen == [("n", 2)]


def test_watchers_are_called_for_matching_keys_until_they_unsubscribe(board):
    seen = []
    stop = board.watch("task.*", lambda *change: seen.append(change))
    board.set("task.1", "open")
    board.set("other", 1)
    assert board.update("task.1", lambda value: f"{value}ed") == "opened"
    board.delete("task.1")
    stop()
    stop()
    board.set("task.1", "again")
    assert seen == [("task.1", "open"), ("task.1", "opened"), ("task.1", None)]


def test_a_failing_watcher_is_logged_and_does_not_affect_others(board, caplog):
    seen = []
    board.watch("*", lambda key, value: 1 / 0)
    board.watch("*", lambda *change: seen.append(change))
    with caplog.at_level(logging.ERROR):
        board.set("a", 1)
    assert seen == [("a", 1)]
    assert "a watcher of the key 'a' failed" in caplog.text


@pytest.mark.parametrize("watcher", [None, 3])
def test_a_watcher_that_is_not_callable_is_refused(board, watcher):
    with pytest.raises(TypeError, match="plain function"):
        board.watch("*", watcher)


def test_an_async_watcher_is_refused(board):
    async def watcher(key, value):
        pass

    with pytest.raises(TypeError, match="use changed"):
        board.watch("*", watcher)


def test_watchers_are_called_outside_the_lock(board):
    free = []

    def watcher(key, value):
        thread = threading.Thread(target=lambda: free.append(board.get(key)))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    board.watch("*", watcher)
    board.set("a", 1)
    board.update("a", lambda a: board.set("b", a) or 2)
    assert free == [1, 1, 2]


def test_a_watcher_may_write_and_changes_of_a_key_stay_in_order(board):
    seen = []

    def echo(key, value):
        if value < 5:
            board.set(key, value + 1)
        seen.append(value)

    board.watch("n", echo)
    board.watch("n", lambda key, value: seen.append(value))
    board.set("n", 1)
    assert seen == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_watchers_see_concurrent_writes_of_a_key_in_order(board):
    seen, made = [], []
    board.watch("n", lambda key, value: seen.append(value))

    def change(n):
        made.append((n or 0) + 1)
        return made[-1]

    threads = [threading.Thread(target=lambda: [board.update("n", change) for _ in range(200)]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == made == list(range(1, 1201))


def test_a_slow_watcher_of_one_key_does_not_block_another_key(board):
    begun, go, seen = threading.Event(), threading.Event(), []
    board.watch("slow", lambda key, value: begun.set() or go.wait(60))
    board.watch("quick", lambda key, value: seen.append(value))
    thread = threading.Thread(target=board.set, args=("slow", 1))
    thread.start()
    begun.wait(60)
    board.set("quick", 2)
    assert seen == [2]
    go.set()
    thread.join()


async def test_changed_waits_for_a_change(board):
    waiting = asyncio.create_task(board.changed("task.*"))
    await asyncio.sleep(0)
    board.set("other", 0)
    threading.Thread(target=board.set, args=("task.1", {"done": True})).start()
    assert await asyncio.wait_for(waiting, 60) == ("task.1", {"done": True})
    assert board._watchers == {}


async def test_changed_times_out_and_removes_its_watcher(board):
    with pytest.raises(TimeoutError):
        await board.changed("*", timeout=0.01)
    waiting = asyncio.create_task(board.changed("*"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert board._watchers == {}


async def test_agents_share_a_blackboard_through_their_context(board):
    @tool
    async def find(ctx) -> str:
        ctx.blackboard.set("found", "gold")
        return "told"

    @tool
    async def wait(ctx) -> str:
        _, value = await ctx.blackboard.changed("found", timeout=60)
        return value

    def run(name):
        model = ScriptedModel([call(name), reply("ok")])
        return Agent(name, llm=model, tools=[find, wait]).arun("go", ctx=AgentContext(blackboard=board))

    waiting = asyncio.create_task(run("wait"))
    while not board._watchers:
        await asyncio.sleep(0)
    await run("find")
    assert (await waiting).messages[2].content == "gold"


def test_watchers_see_changes_that_a_failed_update_made_to_other_keys(board):
    changes = []
    board.watch("*", lambda key, value: changes.append((key, value)))

    def fails(_):
        board.set("other", 1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        board.update("a", fails)
    assert (board.get("a"), changes) == (None, [("other", 1)])


# Several processes.


@pytest.fixture
def path(tmp_path):
    return tmp_path / "board.db"


@pytest.fixture
def shared(path):
    made = DatabaseBlackboard(path)
    yield made
    made.close()


def elsewhere(path, code):
    """Run code in another process, with the same board."""
    program = (
        f"import sys; from hookline.stores import DatabaseBlackboard\nboard = DatabaseBlackboard(sys.argv[1])\n{code}"
    )
    return subprocess.Popen([sys.executable, "-c", program, path])


def test_values_outlive_the_process_and_are_seen_by_others(path, shared):
    assert (
        elsewhere(path, "board.set('a\\0\\ud800', {'b': [1, None, 'ü\\ud800']}); board.set('none', None)").wait() == 0
    )
    assert shared.snapshot() == {"a\0?": {"b": [1, None, "ü?"]}, "none": None}
    assert shared.get("none", 3) is None


def test_updates_by_several_processes_are_atomic(path, shared):
    code = "for _ in range(40): board.update('count', lambda count: (count or 0) + 1)"
    programs = [elsewhere(path, code) for _ in range(3)]
    assert [program.wait() for program in programs] == [0, 0, 0]
    assert shared.get("count") == 120


def test_watchers_are_called_for_changes_by_other_processes(path, shared):
    shared.set("task.0", "before")
    seen = []
    stop = shared.watch("task.*", lambda key, value: seen.append((key, value)))
    shared.set("task.1", "mine")
    assert elsewhere(path, "board.set('task.2', [2]); board.set('other', 1); board.delete('task.1')").wait() == 0
    block_until(lambda: len(seen) == 3)
    shared.set("task.3", "mine")
    assert seen == [("task.1", "mine"), ("task.2", [2]), ("task.1", None), ("task.3", "mine")]
    stop()


def test_a_watcher_gets_the_last_value_of_another_process_and_its_own_changes_once(path, shared):
    seen = []
    shared.watch("*", lambda key, value: seen.append((key, value)))
    program = elsewhere(path, "for n in range(50): board.set('theirs', n)")
    for n in range(50):
        shared.set("mine", n)
    assert program.wait() == 0
    block_until(lambda: ("theirs", 49) in seen)
    shared.set("end", 1)
    block_until(lambda: ("end", 1) in seen)
    assert [value for key, value in seen if key == "mine"] == list(range(50))
    theirs = [value for key, value in seen if key == "theirs"]
    assert theirs == sorted(set(theirs))


async def test_changed_waits_for_a_change_by_another_process(path, shared):
    waiting = asyncio.create_task(shared.changed("answer"))
    while not shared._watchers:
        await asyncio.sleep(0)
    program = elsewhere(path, "board.set('answer', 42)")
    assert await waiting == ("answer", 42)
    assert program.wait() == 0


def test_a_database_that_fails_stores_nothing_and_calls_no_watcher(shared, monkeypatch):
    seen = []
    shared.watch("*", lambda key, value: seen.append(key))

    def fail(value):
        shared.set("inner", 1)
        raise StoreError("the database is away")

    with pytest.raises(StoreError):
        shared.update("a", fail)
    shared.set("b", 1)
    assert (shared.snapshot(), seen) == ({"b": 1}, ["b"])


def test_deleted_keys_leave_the_database_in_time(shared, monkeypatch):
    monkeypatch.setattr(blackboard, "_KEPT", 3)
    for n in range(10):
        shared.set("a", n)
        shared.delete("a" if n % 2 else "none")
    shared.delete("a")
    for n in range(5):
        shared.set("b", n)
    shared.delete("b")
    with shared._db.transaction() as db:
        assert db.execute("SELECT key FROM board").fetchall() == [("b",)]
