"""The processes of examples/fleet/compose.yaml without containers: its commands, on PostgreSQL, behind nginx.

A run is started through one server and watched through the other; its worker is killed in a tool; everything is stopped
while the run waits for an approval; and it completes with every effect made once.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import yaml

from hookline.stores import RunStore
from tests.postgres_cluster import BIN
from tests.waiting import block_until

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "examples" / "fleet"
SERVICES = yaml.safe_load((FLEET / "compose.yaml").read_text())["services"]
HOOKLINE = [sys.executable, "-m", "hookline"]
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = """
from hookline import BEFORE_LLM, HookResult, hook
from hookline.payloads import ToolCall
from hookline.models import ModelResponse


@hook(BEFORE_LLM)
def model(ctx, request):
    turn = sum(message.role == "assistant" for message in request.messages)
    calls = ToolCall("c0", "ship", {"item": "lamp"}), ToolCall("c1", "pay_back", {"amount": 5})
    return HookResult.answer(ModelResponse("", (calls[turn],)) if turn < 2 else ModelResponse("All done."))
"""


class Fleet:
    """The services of compose.yaml as processes."""

    def __init__(self, folder, database):
        self.folder, self.processes, self.urls = folder, {}, {}
        self.store = RunStore(database)
        settings = (FLEET / "hookline.toml").read_text()
        settings = settings.replace("hooks = [", 'hooks = ["model.py", ').replace("172.30.84.0/24", "127.0.0.1")
        (folder / "hookline.toml").write_text(settings)
        (folder / "model.py").write_text(MODEL)
        shutil.copy(FLEET / "shop.py", folder)
        self.world = folder / "world"
        self.world.mkdir()
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "HOOKLINE_DATABASE": database,
            "HOOKLINE_TRUST": "1",
            "OPENAI_API_KEY": "none",
            "SHOP_FOLDER": str(self.world),
            "SHOP_SECONDS": "2",
            "XDG_DATA_HOME": str(folder / "data"),
        }

    def run(self, *args):
        command = [*HOOKLINE, *args]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self, name):
        """Start a service with its command, on a free port."""
        program, *args = SERVICES[name]["command"]
        assert program == "hookline"
        args = [arg.replace("0.0.0.0:9464", "127.0.0.1:0") for arg in args]
        more = ["--host", "127.0.0.1", "--port", "0"] if name.startswith("server") else []
        with (self.folder / f"{name}.log").open("w") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            command = [*HOOKLINE, *args, *more]
            self.processes[name] = subprocess.Popen(command, cwd=self.folder, env=self.env, **streams)

    def start_all(self):
        names = [name for name in SERVICES if name.startswith(("server", "worker"))]
        for name in names:
            self.start(name)
        for name in names:
            block_until(lambda name=name: self.is_up(name))

    def is_up(self, name):
        text = (self.folder / f"{name}.log").read_text()
        assert self.processes[name].poll() is None, f"{name}: {text}"
        if name.startswith("worker"):
            found = re.search(r"metrics at (http://[^ ,\"]+)", text)
        else:
            found = re.search(r"listening at (http://[^ ,\"]+)", text)
        self.urls[name] = found and found[1]
        return found

    def worker_of(self, run_id):
        """The worker that executes a run."""
        pid = self.store.journal.get(run_id).pid
        return next(process for process in self.processes.values() if process.pid == pid)

    def stop_all(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        return [process.wait() for process in self.processes.values()]

    @contextmanager
    def proxy(self):
        """Start nginx with the configuration of the example, and with the ports of the servers here."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        text = (FLEET / "nginx.conf").read_text().replace("listen 8080", f"listen 127.0.0.1:{port}")
        for name, url in self.urls.items():
            text = text.replace(f"{name}:8420", url.removeprefix("http://"))
        text = text.replace("/tmp/", f"{self.folder}/").replace("worker_processes auto", "worker_processes 1")
        (self.folder / "nginx.conf").write_text(f"daemon off;\n{'user root;' * (os.geteuid() == 0)}\n{text}")
        command = [NGINX, "-c", self.folder / "nginx.conf", "-p", self.folder]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            yield f"http://localhost:{port}"
        finally:
            process.terminate()
            process.wait()


@pytest.fixture
def cluster(own_cluster):
    """A server that is restarted here, and copied as a whole."""
    return own_cluster


@pytest.fixture
def fleet(tmp_path, postgres_url):
    started = Fleet(tmp_path, postgres_url)
    yield started
    for process in started.processes.values():
        if process.poll() is None:
            process.kill()
            process.wait()
    started.store.close()


def follow(url, headers, run_id, seen, after=0):
    """Add the events of a run until its end, or until the server goes away."""
    headers = {**headers, "Last-Event-ID": str(after)}
    with (
        suppress(httpx.TransportError),
        httpx.stream("GET", f"{url}/runs/{run_id}/events", headers=headers, timeout=120) as stream,
    ):
        for line in stream.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))


def metric(text, name):
    found = re.search(rf"^hookline_{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def prepare(fleet):
    """Create the tables and a key; return the headers of requests."""
    fleet.run("db", "init")
    key = fleet.run("keys", "add", "me", "--scope", "read,run,approve,admin").split()[-1]
    fleet.start_all()
    return {"Authorization": f"Bearer {key}"}


def approve(url, headers, run_id=""):
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        (question,) = [q for q in client.get("/approvals").json()["approvals"] if run_id in ("", q["run_id"])]
        assert (question["tool"], question["arguments"]) == ("pay_back", {"amount": 5})
        decision = {"decision": "approve", "digest": question["digest"]}
        assert client.post(f"/approvals/{question['id']}", json=decision).status_code == 200


def effects(fleet):
    """The numbers of parcels and of payments."""
    return len(list((fleet.world / "parcels").iterdir())), len((fleet.world / "paid.txt").read_text().splitlines())


def test_a_run_survives_its_worker_and_a_restart_of_everything_and_makes_every_effect_once(fleet):
    headers = prepare(fleet)
    one, two = fleet.urls["server-1"], fleet.urls["server-2"]
    run = httpx.post(f"{one}/runs", headers=headers, json={"task": "The lamp was late."}, timeout=60).json()
    seen = []
    watching = threading.Thread(target=follow, args=(two, headers, run["id"], seen), daemon=True)
    watching.start()

    # Its worker is killed in the tool.
    parcels = fleet.world / "parcels"
    block_until(lambda: parcels.exists() and list(parcels.iterdir()))
    fleet.worker_of(run["id"]).kill()

    # Another worker continues, and the run is suspended for an approval.
    block_until(lambda: fleet.store.journal.get(run["id"]).status == "waiting")
    with httpx.Client(base_url=two, headers=headers, timeout=60) as client:
        assert client.get(f"/runs/{run['id']}").json()["status"] == "waiting"
        assert metric(client.get("/metrics").text, "takeovers_total") == 1

    # Everything is stopped and started again; the decision comes through the other server.
    codes = fleet.stop_all()
    assert sorted(codes) == [-signal.SIGKILL, 0, 0, 0]
    watching.join()
    fleet.start_all()
    approve(fleet.urls["server-1"], headers)
    follow(fleet.urls["server-2"], headers, run["id"], seen, after=seen[-1]["seq"])
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    with httpx.Client(base_url=fleet.urls["server-2"], headers=headers, timeout=60) as client:
        done = client.get(f"/runs/{run['id']}").json()
    assert (done["status"], done["reply"]) == ("completed", "All done.")
    texts = [httpx.get(fleet.urls[name]).text for name in ("worker-1", "worker-2")]
    assert sum(metric(text, 'tool_calls_total{outcome="ok",tool="pay_back"}') for text in texts) == 1
    assert effects(fleet) == (1, 1)


def replace_worker(fleet, name, old, new):
    """Stop a worker, change the settings, and start it again."""
    fleet.processes[name].send_signal(signal.SIGTERM)
    assert fleet.processes[name].wait(60) == 0
    settings = fleet.folder / "hookline.toml"
    settings.write_text(settings.read_text().replace(old, new))
    fleet.start(name)
    block_until(lambda: fleet.is_up(name))


@pytest.mark.timeout(600)
def test_during_an_upgrade_old_workers_end_the_old_runs_and_a_run_without_one_says_what_it_waits_for(fleet):
    headers = prepare(fleet)
    url = fleet.urls["server-1"]
    request = {"headers": headers, "json": {"task": "The lamp was late."}, "timeout": 60}
    first, second = [httpx.post(f"{url}/runs", **request).json()["id"] for _ in range(2)]
    for run_id in (first, second):
        block_until(lambda run_id=run_id: fleet.store.journal.get(run_id).status == "waiting")
    old = fleet.store.journal.get(first).digest
    change = "Ship what was ordered.", "Ship what was ordered, at once."

    # Old and new workers side by side: the old one continues the old run.
    replace_worker(fleet, "worker-1", *change)
    (new,) = {digest for worker in fleet.store.workers.running() for digest in worker.digests} - {old}
    shown = " ".join(fleet.run("doctor", "--no-model", "--no-sandbox").split())
    assert f"workers 1 with digest {old}" in shown
    assert f"workers 1 with digest {new}" in shown
    assert "waits for a worker" not in shown
    approve(url, headers, first)
    block_until(lambda: fleet.store.journal.get(first).status == "completed")
    assert fleet.store.journal.get(first).digest == old

    # Without an old worker, everything that an operator looks at says what the run waits for.
    replace_worker(fleet, "worker-2", *change)
    problem = (
        f"run {second} waits for a worker with digest {old}; the running workers have {new} (different: instructions"
    )
    for command in (("doctor", "--no-model", "--no-sandbox"), ("runs",)):
        assert problem in " ".join(fleet.run(*command).split())
    text = httpx.get(f"{url}/metrics", headers=headers, timeout=60).text
    assert (metric(text, f'pinned_runs{{digest="{old}"}}'), metric(text, f'workers{{digest="{new}"}}')) == (1, 2)
    approve(url, headers, second)
    block_until(lambda: any(second in (fleet.folder / f"worker-{n}.log").read_text() for n in (1, 2)))

    # An old worker completes it.
    replace_worker(fleet, "worker-2", *reversed(change))
    block_until(lambda: fleet.store.journal.get(second).status == "completed")
    assert effects(fleet) == (2, 2)


def test_a_restart_of_the_database_under_a_run_loses_nothing(fleet, cluster):
    headers = prepare(fleet)
    url = fleet.urls["server-1"]
    run = httpx.post(f"{url}/runs", headers=headers, json={"task": "The lamp was late."}, timeout=60).json()
    block_until((fleet.world / "parcels").exists)
    cluster.restart()
    block_until(lambda: fleet.store.journal.get(run["id"]).status == "waiting")
    block_until(lambda: httpx.get(f"{url}/readyz").status_code == 200)
    approve(url, headers)
    block_until(lambda: fleet.store.journal.get(run["id"]).status == "completed")
    seqs = [event.seq for event in fleet.store.events(run["id"])]
    assert seqs == list(range(1, len(seqs) + 1))
    assert effects(fleet) == (1, 1)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt install nginx-light")
def test_the_proxy_passes_events_on_at_once_and_goes_around_a_server_that_is_away(fleet):
    headers = prepare(fleet)
    with fleet.proxy() as url:
        block_until(lambda: is_open(url))
        run = httpx.post(f"{url}/runs", headers=headers, json={"task": "The lamp was late."}, timeout=60).json()
        seen = []
        watching = threading.Thread(target=follow, args=(url, headers, run["id"], seen), daemon=True)
        watching.start()
        block_until(lambda: any(event["type"] == "tool_started" for event in seen))  # the tool still runs: not buffered
        so_far, more = seen[:], []
        fleet.processes["server-1"].kill()
        fleet.processes["server-1"].wait()
        answers = [httpx.get(f"{url}/runs/{run['id']}", headers=headers, timeout=60).status_code for _ in range(4)]
        assert answers == [200] * 4
        args = (url, headers, run["id"], more, so_far[-1]["seq"])
        threading.Thread(target=follow, args=args, daemon=True).start()
        block_until(lambda: any(event["type"] == "approval_asked" for event in more))
        assert [event["seq"] for event in so_far + more] == list(range(1, len(so_far + more) + 1))


def is_open(url):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0


def test_a_backup_restored_elsewhere_continues_the_run_where_it_was(fleet, cluster):
    headers = prepare(fleet)
    url = fleet.urls["server-1"]
    run = httpx.post(f"{url}/runs", headers=headers, json={"task": "The lamp was late."}, timeout=60).json()
    block_until((fleet.world / "parcels").exists)
    block_until(lambda: fleet.store.journal.get(run["id"]).status == "waiting")
    before = fleet.store.events(run["id"])
    address = ["--host", cluster.folder, "--username=postgres"]
    dump = [f"{BIN}/pg_dump", "--format=custom", *address, "--dbname=postgres"]
    with (fleet.folder / "hookline.dump").open("wb") as file:
        subprocess.run(dump, stdout=file, check=True)  # while everything runs
    fleet.stop_all()
    fleet.store.close()
    subprocess.run([f"{BIN}/createdb", *address, "restored"], check=True)
    try:
        restore = [
            f"{BIN}/pg_restore",
            "--exit-on-error",
            *address,
            "--dbname=restored",
            fleet.folder / "hookline.dump",
        ]
        subprocess.run(restore, check=True)
        fleet.env["HOOKLINE_DATABASE"] = fleet.env["HOOKLINE_DATABASE"].replace("/postgres?", "/restored?")
        fleet.store = RunStore(fleet.env["HOOKLINE_DATABASE"])
        assert fleet.store.events(run["id"]) == before
        fleet.run("db", "check")
        fleet.start_all()
        approve(fleet.urls["server-2"], headers)  # the key is in the backup, too
        block_until(lambda: fleet.store.journal.get(run["id"]).status == "completed")
        assert effects(fleet) == (1, 1)
        fleet.stop_all()
        fleet.store.close()
    finally:
        subprocess.run([f"{BIN}/dropdb", "--force", *address, "restored"], check=True)
