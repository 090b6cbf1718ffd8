"""The program of the guide to other engines, in DBOS: it is killed, started again, and every effect is made once."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("dbos") is None:
    pytest.skip("dbos is not installed: make test-adapters ONLY=dbos", allow_module_level=True)

from hookline.stores import ApprovalStore, RunStore
from tests.pages.blocks import PAGES
from tests.waiting import block_until

ROOT = Path(__file__).parents[2]
CODE = [block.text for block in PAGES["docs/guides/durable-engines.md"] if block.kind == "python"]

DRIVER = """
import os, sys, time
import shop
from shop import *

order, *wanted = sys.argv[1:]
send_parcel, open_file = shop.send_parcel, Path.open

def send_and_die(key, item):
    send_parcel(key, item)
    os.kill(os.getpid(), 9)

def write_and_die(path, mode):
    with open_file(path, mode) as file:
        file.write("5\\n")
    os.kill(os.getpid(), 9)

async def work():
    if "approve" in wanted:
        await approve(order)
    with SetWorkflowID(order):
        handle = await DBOS.start_workflow_async(handle_order, order, "The lamp was late.")
    print(await handle.get_result(), flush=True)

def send_and_hang(key, item):
    send_parcel(key, item)
    time.sleep(60)

if "die in ship" in wanted:
    shop.send_parcel = send_and_die
if "hang in ship" in wanted:
    shop.send_parcel = send_and_hang
if "die in pay_back" in wanted:
    Path.open = write_and_die
DBOS.launch()
asyncio.run(work())
DBOS.destroy()
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "shop.py").write_text(CODE[0] + CODE[1].partition("async def main")[0])
    (tmp_path / "driver.py").write_text(DRIVER)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    started = []

    def start(*wanted):
        command = [sys.executable, "driver.py", "order-1", *wanted]
        started.append(process := subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True))
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for_question(tmp_path):
    store = ApprovalStore(tmp_path / "approvals.db")
    block_until(lambda: (tmp_path / "approvals.db").exists() and store.rows(status="pending"))
    store.close()
    runs = RunStore(tmp_path / "runs.db")
    block_until(lambda: runs.journal.get("order-1").status == "waiting")
    runs.close()


def parcels(tmp_path):
    return [path.read_text() for path in (tmp_path / "parcels").iterdir()]


def test_a_run_killed_in_a_tool_is_continued_by_the_engine_with_the_same_key(start, tmp_path):
    assert start("die in ship").wait() == -signal.SIGKILL
    assert parcels(tmp_path) == ["lamp"]
    start()
    wait_for_question(tmp_path)
    assert parcels(tmp_path) == ["lamp"]


def test_a_run_of_a_program_that_is_stopped_with_ctrl_c_is_continued_by_the_engine(start, tmp_path):
    process = start("hang in ship")
    block_until((tmp_path / "parcels").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait() != 0
    runs = RunStore(tmp_path / "runs.db")
    stored = runs.journal.get("order-1")
    assert (stored.status, stored.lease) == ("interrupted", 0.0)
    start()
    wait_for_question(tmp_path)
    assert parcels(tmp_path) == ["lamp"]
    runs.close()


def test_a_run_killed_while_it_waits_completes_after_the_decision_and_repeats_no_tool(start, tmp_path):
    process = start()
    wait_for_question(tmp_path)
    process.kill()
    process.wait()
    (parcel,) = (tmp_path / "parcels").iterdir()
    parcel.unlink()
    assert start("approve").communicate()[0] == "All done.\n"
    assert parcels(tmp_path) == []
    assert (tmp_path / "paid.txt").read_text() == "5\n"


def test_a_tool_that_must_not_be_repeated_is_called_once_though_it_was_killed(start, tmp_path):
    process = start()
    wait_for_question(tmp_path)
    process.kill()
    process.wait()
    assert start("approve", "die in pay_back").wait() == -signal.SIGKILL
    assert start().communicate()[0] == "All done.\n"
    assert (tmp_path / "paid.txt").read_text() == "5\n"
