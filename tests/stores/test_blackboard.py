"""Blackboard."""

import asyncio
import logging
import threading

import pytest

from hookline import Agent, AgentContext, ScriptedModel, call, reply, tool
from hookline.stores import Blackboard


@pytest.fixture
def board():
    return Blackboard()


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
        thread.join(5)
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
    board.watch("slow", lambda key, value: begun.set() or go.wait(5))
    board.watch("quick", lambda key, value: seen.append(value))
    thread = threading.Thread(target=board.set, args=("slow", 1))
    thread.start()
    begun.wait(5)
    board.set("quick", 2)
    assert seen == [2]
    go.set()
    thread.join()


async def test_changed_waits_for_a_change(board):
    waiting = asyncio.create_task(board.changed("task.*"))
    await asyncio.sleep(0)
    board.set("other", 0)
    threading.Thread(target=board.set, args=("task.1", {"done": True})).start()
    assert await asyncio.wait_for(waiting, 5) == ("task.1", {"done": True})
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
        _, value = await ctx.blackboard.changed("found", timeout=5)
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
