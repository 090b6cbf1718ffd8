"""The background writer: items are written in order, callers never wait, and no loss is silent."""

import os
import subprocess
import sys
import threading

import pytest

from hookline._base import background_writer
from hookline._base.background_writer import BackgroundWriter


def gathering(**options):
    batches, failures = [], []
    return BackgroundWriter(batches.append, lambda *reported: failures.append(reported), **options), batches, failures


def test_items_are_written_in_order_and_in_batches():
    writer, batches, failures = gathering(linger=0.05)
    assert all(writer.put(n) for n in range(500))
    assert writer.flush(10)
    assert [n for batch in batches for n in batch] == list(range(500))
    assert len(batches) < 100
    assert failures == []
    assert writer.pending == 0


def test_items_of_many_threads_are_written_in_the_order_of_each_thread():
    writer, batches, _ = gathering()
    threads = [threading.Thread(target=lambda who=who: [writer.put((who, n)) for n in range(200)]) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush(10)
    items = [item for batch in batches for item in batch]
    assert all([n for w, n in items if w == who] == list(range(200)) for who in range(8))


def test_a_full_queue_rejects_items_at_once_and_writes_those_it_has():
    gate, written = threading.Event(), []

    def write(batch):
        gate.wait(10)
        written.extend(batch)

    writer = BackgroundWriter(write, print, limit=10, linger=0)
    taken = [n for n in range(30) if writer.put(n)]
    assert len(taken) == 10
    assert not writer.flush(0.01)
    gate.set()
    assert writer.flush(10)
    assert written == taken
    assert writer.put("again")


def test_sizes_count_but_a_single_item_always_fits():
    gate, written = threading.Event(), []
    writer = BackgroundWriter(lambda batch: gate.wait(10) and written.extend(batch), print, limit=100)
    assert writer.put("huge", 1000)
    assert not writer.put("small", 1)
    gate.set()
    assert writer.flush(10)
    assert written == ["huge"]


def test_a_failed_batch_is_reported_with_its_error_and_the_next_batch_is_written():
    failures, written = [], []

    def write(batch):
        if not failures:
            raise OSError("no space left")
        written.extend(batch)

    writer = BackgroundWriter(write, lambda error, batch: failures.append((str(error), batch)))
    writer.put("one")
    assert writer.flush(10)
    writer.put("two")
    assert writer.flush(10)
    assert failures == [("no space left", ["one"])]
    assert written == ["two"]


def test_a_thread_with_nothing_to_do_ends_and_the_next_item_starts_another(monkeypatch):
    monkeypatch.setattr(background_writer, "IDLE_SECONDS", 0.01)
    writer, batches, _ = gathering(linger=0)
    writer.put(1)
    assert writer.flush(10)
    first = writer._thread
    if first is not None:
        first.join(10)
        assert not first.is_alive()
    writer.put(2)
    assert writer.flush(10)
    assert batches == [[1], [2]]


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0"])
def test_the_program_waits_at_exit_for_items_that_are_not_written(tmp_path, ending):
    program = f"""
import time
from hookline._base.background_writer import BackgroundWriter
def write(batch):
    time.sleep(0.2)
    open({str(tmp_path / "out")!r}, "a").write("".join(batch))
writer = BackgroundWriter(write, print, linger=0)
for n in range(10):
    writer.put(str(n))
    time.sleep(0.01)
{ending}
"""
    subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert (tmp_path / "out").read_text() == "0123456789"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_writes_its_own_items_and_not_its_parents(tmp_path):
    program = f"""
import os
from hookline._base.background_writer import BackgroundWriter
def write(batch):
    with open({str(tmp_path)!r} + "/" + str(os.getpid() == parent), "a") as file:
        file.write("".join(batch))
parent = os.getpid()
writer = BackgroundWriter(write, print, linger=0.2)
writer.put("p")
child = os.fork()
if not child:
    writer.put("c")
    assert writer.flush(10)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
writer.flush(10)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
    assert (tmp_path / "True").read_text() == "p"
    assert (tmp_path / "False").read_text() == "c"


def test_write_now_writes_without_waiting_for_more_items():
    writer, batches, _ = gathering(linger=30)
    done = threading.Event()
    writer.put(1)
    writer.write_now()
    writer._write = lambda batch: (batches.append(batch), done.set())
    assert done.wait(10)
    assert batches == [[1]]


def test_an_idle_thread_calls_idle_once_before_it_ends(monkeypatch):
    monkeypatch.setattr(background_writer, "IDLE_SECONDS", 0.02)
    idle = threading.Event()
    writer, batches, _ = gathering(idle=idle.set)
    writer.put(1)
    assert idle.wait(10)
    writer.put(2)
    assert writer.flush(10)
    assert batches == [[1], [2]]


def test_an_item_is_rejected_if_no_thread_can_be_started_and_the_next_one_is_written(monkeypatch):
    writer, batches, _ = gathering()

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            writer.put("lost")
    assert writer.put("kept")
    assert writer.flush(10)
    assert batches == [["kept"]]
