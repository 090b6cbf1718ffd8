"""``hookline worker`` as people start it."""

import json
import signal
import subprocess
import time

import httpx
import pytest

from hookline.stores.runs import RunStore

from ..waiting import block_until
from .conftest import COMMAND
from .test_serve import Serving

pytestmark = pytest.mark.slow

CONFIG = """
model = "scripted:turns.json"
sessions = "sessions.db"
approval_file = "approvals.db"
default_tools = false
runs = "runs.db"
[server]
port = 0
durable = true
burst = 100000
"""


def test_a_worker_executes_the_runs_that_a_server_accepts_and_ends_at_sigterm(folder, env):
    (folder / "hookline.toml").write_text(CONFIG)
    (folder / "turns.json").write_text(json.dumps(["hello"]))
    server = Serving(folder, env, "--no-execute")
    worker = None
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            run = client.post("/runs", json={"task": "Say hello."}).json()
            time.sleep(0.5)
            assert client.get(f"/runs/{run['id']}").json()["status"] == "queued"
            with open(folder / "worker.log", "w") as out:
                worker = subprocess.Popen(
                    [*COMMAND, "worker", "--concurrency", "2"], cwd=folder, env=server.env, stderr=out, text=True
                )
            block_until(lambda: client.get(f"/runs/{run['id']}").json()["status"] == "completed")
            assert client.get(f"/runs/{run['id']}").json()["reply"] == "hello"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0, (folder / "worker.log").read_text()
        assert "at most 2 at once" in (folder / "worker.log").read_text()
        assert server.stop(signal.SIGTERM) == 0
        assert "after the current runs" not in server.log.read_text()
    finally:
        for process in (server.process, worker):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def test_a_server_that_is_killed_continues_its_runs_when_it_starts_again(folder, env):
    (folder / "hookline.toml").write_text(CONFIG.replace("default_tools", 'tools = ["slow.py"]\ndefault_tools'))
    (folder / "turns.json").write_text(json.dumps([{"tool": "slow", "arguments": {}}, "hello"]))
    (folder / "slow.py").write_text(
        "import pathlib, time\nfrom hookline import tool\n\n\n@tool\ndef slow(ctx) -> str:\n"
        '    """Wait for a file."""\n    with open("calls", "a") as file:\n        file.write(ctx.call_key + "\\n")\n'
        '    while not pathlib.Path("go").exists():\n        time.sleep(0.05)\n    return "done"\n'
    )
    servers = [Serving(folder, env)]
    try:
        run = httpx.post(f"{servers[0].url}/runs", json={"task": "Say hello."}, timeout=60).json()
        block_until(lambda: (folder / "calls").exists() and (folder / "calls").read_text().endswith("\n"))
        servers[0].process.kill()
        servers[0].process.wait()
        (folder / "go").touch()
        servers.append(Serving(folder, env))
        store = RunStore(folder / "runs.db")
        block_until(lambda: store.get(run["id"]).is_over)
        assert (store.get(run["id"]).status, store.get(run["id"]).reply) == ("completed", "hello")
        numbers = [event.seq for event in store.events(run["id"])]
        assert numbers == list(range(1, len(numbers) + 1))
        store.close()
        keys = (folder / "calls").read_text().split()
        assert len(keys) == 2  # the call was in flight, so it was made again with the same key
        assert len(set(keys)) == 1
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_database_that_does_not_answer_is_reported_once(folder, env, command):
    pytest.importorskip("psycopg")
    (folder / "hookline.toml").write_text(CONFIG.replace('runs = "runs.db"\n', ""))
    (folder / "turns.json").write_text(json.dumps(["hello"]))
    address = "postgresql://127.0.0.1:1/agents?connect_timeout=2"
    order = [*COMMAND, command, "--database", address]
    told = subprocess.run(order, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert told.returncode != 0
    assert told.stderr.count("cannot be reached") == 1, told.stderr
