"""Calls of callers: counted once each, in all processes that share a database."""

import subprocess
import sys
import textwrap
import threading
from contextlib import closing

import pytest

from hookline.stores import CallStore, StoreError
from hookline.stores.calls import KEEP_SECONDS
from tests.environment import with_source

HOUR = ("refund", 3600.0)


class Clock:
    def __init__(self):
        self.now = 1_772_366_400.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    with closing(CallStore(tmp_path / "calls.db", clock=clock)) as made:
        yield made


def test_a_call_counts_those_before_it(store):
    assert [store.add("ann", str(n), "refund", [HOUR])[0] for n in range(3)] == [0, 1, 2]
    assert store.add("bob", "x", "refund", [HOUR]) == [0]
    assert store.count("ann", [HOUR]) == [3]


def test_a_call_that_was_added_already_keeps_its_place(store):
    assert [store.add("ann", each, "refund", [HOUR])[0] for each in ("a", "b", "a", "c", "b")] == [0, 1, 0, 2, 1]


def test_windows_have_tools_and_times_of_their_own(store, clock):
    for number, name in enumerate(["refund", "send_mail", "send_sms"]):
        store.add("ann", str(number), name, [HOUR])
        clock.now += 100
    windows = [("*", 3600.0), ("send_*", 3600.0), ("*", 250.0), ("refund", 50.0)]
    assert store.count("ann", windows) == [3, 2, 2, 0]


def test_a_call_that_did_not_run_is_removed(store):
    store.add("ann", "a", "refund", [HOUR])
    store.remove("a")
    store.remove("unknown")
    assert store.add("ann", "b", "refund", [HOUR]) == [0]


def test_old_calls_are_deleted(store, clock):
    store.add("ann", "a", "refund", [HOUR])
    clock.now += KEEP_SECONDS + 1
    store.add("bob", "b", "refund", [HOUR])
    assert store.db.execute("SELECT id FROM calls") == [("b",)]


def test_names_that_a_database_cannot_store_are_callers_too(store):
    for caller in ("", "a\0b", "\ud800", "é" * 10_000):
        assert [store.add(caller, f"{caller}{n}", "refund", [HOUR])[0] for n in range(2)] == [0, 1]


def test_calls_of_many_threads_are_counted_once_each(store):
    found, lock = [], threading.Lock()

    def work(number):
        for n in range(10):
            (before,) = store.add("ann", f"{number}-{n}", "refund", [HOUR])
            with lock:
                found.append(before)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(60))


PROGRAM = textwrap.dedent(
    """
    import sys
    from hookline.stores import CallStore

    store = CallStore(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(15):
        print(store.add("ann", f"{sys.argv[2]}-{n}", "refund", [("refund", 3600.0)])[0], flush=True)
    """
)


def in_processes(place, count):
    """What calls of several processes counted before them."""
    command = [sys.executable, "-c", PROGRAM, place]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": with_source()}
    processes = [subprocess.Popen([*command, str(number)], **pipes) for number in range(count)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return sorted(int(line) for process in processes for line in process.communicate(timeout=60)[0].split())


@pytest.mark.parametrize("place", ["file", "postgresql"])
def test_of_calls_in_several_processes_each_counts_the_others_once(tmp_path, request, place):
    where = str(tmp_path / "calls.db") if place == "file" else request.getfixturevalue("postgres_url")
    with closing(CallStore(where)):
        assert in_processes(where, 3) == list(range(45))


@pytest.mark.sqlite
def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "calls.db").write_text("no database")
    with pytest.raises(StoreError), closing(CallStore(tmp_path / "calls.db")) as store:
        store.count("ann", [HOUR])
