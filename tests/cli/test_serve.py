"""``hookline serve`` as people start it."""

import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from hookline._kernel.payloads import Question
from hookline.cli.serve import make_view
from hookline.cli.server_log import ServerLog
from hookline.cli.server_screen import ServerScreen, status_table
from hookline.cli.text import rough_duration
from hookline.server.agents import ServedAgent
from hookline.server.app import Status
from hookline.stores import verify_audit
from hookline.stores.approvals import ApprovalRow
from hookline.stores.keys import KeyStore
from hookline.stores.runs import RunRecord, RunStore

from ..waiting import block_until
from .conftest import COMMAND, ROOT

pytestmark = pytest.mark.slow


EXAMPLE = ROOT / "examples" / "serve"
CONFIG = """
sessions = "sessions.db"
approval_file = "approvals.db"
default_tools = false
runs = "runs.db"
[server]
port = 0
"""


HOOKS = """
import asyncio, logging
from hookline import hook


@hook("on_run_start", timeout=600)
async def tell(ctx, payload):
    logging.getLogger("elsewhere").warning("asked: %s", payload.task)
    if payload.task == "wait":
        await asyncio.sleep(600)
"""


class Serving:
    """The program, serving."""

    def __init__(self, folder, env, *args):
        self.folder, self.env = Path(folder), {**os.environ, **env}
        self.log = self.folder / "log.jsonl"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", *args], cwd=folder, env=self.env, stdin=subprocess.DEVNULL, stderr=out, text=True
            )
        while not (started := [line for line in self.lines() if "listening at" in line["message"]]):
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        self.url = started[0]["message"].split()[2].rstrip(",")

    def lines(self):
        """Return the complete lines of the log."""
        return [json.loads(line) for line in self.log.read_text().split("\n")[:-1]]

    def hookline(self, *args):
        """Another command in the same folder."""
        return subprocess.run(
            [*COMMAND, *args], cwd=self.folder, env=self.env, capture_output=True, text=True, check=True
        ).stdout

    def stop(self, *signals):
        """End it; the exit code."""
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait()


@pytest.fixture
def serve(folder, env):
    begun = []

    def start(*args, config=CONFIG, **more):
        (folder / "hookline.toml").write_text(config)
        begun.append(Serving(folder, env | more, *args))
        return begun[-1]

    yield start
    for one in begun:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def events(client, run_id):
    with client.stream("GET", f"/runs/{run_id}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


def test_the_example_on_the_embedded_model_is_watched_approved_cancelled_and_stopped(
    tmp_path, env, monkeypatch, capsys
):
    folder = tmp_path / "desk"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    serving = Serving(folder, {**env, "HOOKLINE_CACHE": os.environ.get("HOOKLINE_CACHE", _weights())}, "--port", "0")
    try:
        with httpx.Client(base_url=serving.url, timeout=60) as client:
            run = client.post(
                "/runs", json={"task": "Deploy the shop."}, headers={"X-Correlation-ID": "ship-it"}
            ).json()
            seen = []
            for event in events(client, run["id"]):
                seen.append(event)
                if event["type"] == "approval_asked":
                    (call,) = client.get("/approvals").json()["approvals"]
                    assert (call["tool"], call["arguments"]) == ("deploy", {"service": "shop"})
                    assert client.get(f"/runs/{run['id']}").json()["status"] == "waiting"
                    assert "approved" in serving.hookline("approvals", "approve", call["id"][5:17])
            assert [each["message"] for each in seen if each["type"] == "tool_progressed"] == [
                "deploy: building shop (0%)",
                "deploy: testing shop (33%)",
                "deploy: switching over shop (67%)",
            ]
            assert (seen[-1]["type"], seen[-1]["status"]) == ("run_closed", "completed")
            assert seen[-1]["reply"] == "shop runs version 42 now."

            other = client.post("/runs", json={"task": "Deploy search."}).json()
            for event in events(client, other["id"]):
                if event["type"] == "run_started":
                    assert client.post(f"/runs/{other['id']}/cancel", json={}).json()["status"] == "cancelled"
            assert (event["type"], event["status"]) == ("run_closed", "cancelled")

        monkeypatch.setenv("HOOKLINE_URL", serving.url)
        monkeypatch.setattr(sys, "argv", ["client.py", "What can you do?"])
        for name in ("watch.py", "openai_client.py", "a2a_client.py"):
            runpy.run_path(str(folder / name), run_name="__main__")
            assert "Ask for the status of shop or search" in capsys.readouterr().out, name
        assert serving.stop(signal.SIGTERM) == 0
    finally:
        serving.process.kill()
        serving.process.wait()
    lines = serving.lines()
    assert lines[-1]["message"].startswith("stopped: ")
    assert [line for line in lines if line["level"] not in ("INFO",)] == []
    assert verify_audit(folder / "data" / "audit.jsonl").ok


def _weights():
    from hookline.providers.local import weights

    return str(weights.fetch().parent)


def test_no_key_is_ever_in_the_log_whose_lines_tell_which_request_and_run_they_are_of(serve, folder, script):
    keys = KeyStore(folder / "keys.db")
    row, key = keys.add("ci", ["read", "run"])
    _, useless = keys.add("viewer", ["read"])
    wrong = "hl_aaaaaaaa_" + "k" * 43
    (folder / "hooks.py").write_text(HOOKS)
    serving = serve("--grace", "600", config=f'model = "{script("Hello.", "Again.")}"\nhooks = ["hooks.py"]\n{CONFIG}')
    good = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=serving.url, timeout=60) as client:
        asked = {**good, "X-Correlation-ID": "from-ci"}
        run = client.post("/runs", json={"task": f"use {key}\n\x1b[31mnow", "wait": 60}, headers=asked).json()
        assert run["status"] == "completed"
        for path in (f"/runs/{key}", f"/{key}", f"/runs?before={key}", f"/v1/models/{key}", f"/a2a/{key}"):
            client.get(path, headers=good)
            client.post(path, headers=good, json={"task": key})
        for headers in (
            {"Authorization": f"Bearer {wrong}"},
            {"X-API-Key": wrong},
            {"X-API-Key": useless},
            {"Authorization": key},
            {"Authorization": f"Basic {key}"},
            {**good, "X-Correlation-ID": key},
            {**good, "User-Agent": key},
            {**good, "Cookie": f"key={key}"},
            {**good, "Host": key},
            {**good, "Last-Event-ID": key},
        ):
            client.get(f"/runs/{run['id']}/events", headers=headers)
            client.post("/runs", headers=headers, content=b'{"task": "' + key.encode())
            client.post("/a2a/hookline", headers=headers, content=f'{{"jsonrpc": "{key}"}}')
        client.request(f"GET{key}"[:40].replace("_", "-"), "/runs", headers=good)
    with socket.create_connection(("127.0.0.1", int(serving.url.rpartition(":")[2]))) as raw:
        raw.sendall(f"GET /{key} HTTP/9.9\r\n{key}: {key}\r\n\r\n".encode())
        raw.recv(1000)
    waiting = stopped_twice(serving, good)
    assert RunStore(folder / "runs.db").get(waiting).status == "interrupted"
    text, lines = serving.log.read_text(), serving.lines()
    for secret in (key, useless, wrong):
        assert secret.split("_")[2] not in text
    assert "\x1b" not in text
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    requests = [line for line in lines if line["logger"] == "hookline.access"]
    assert len(requests) > 30
    assert all(line["correlation_id"] and line["route"] and line["status"] for line in requests)
    first = next(line for line in requests if line["correlation_id"] == "from-ci")
    assert (first["method"], first["route"], first["status"], first["caller"]) == ("POST", "/runs", 201, row.id)
    (inside,) = [line for line in lines if line["logger"] == "elsewhere"][:1]
    assert (inside["run_id"], inside["correlation_id"], inside["caller"]) == (run["id"], "from-ci", row.id)
    assert [line for line in lines if line["level"] == "ERROR"] == []


def test_statistics_and_the_server_have_one_row_of_a_run_also_after_a_kill(folder, script, serve):
    config = f'model = "{script("Hello.", delay=600)}"\n{CONFIG}'
    serving = serve(config=config)
    with httpx.Client(base_url=serving.url, timeout=60) as client:
        killed = client.post("/runs", json={"task": "Hi, this is Ann."}).json()["id"]
        store = RunStore(folder / "runs.db")
        while not store.get(killed).observed:
            time.sleep(0.02)
    serving.process.kill()
    serving.process.wait()
    script("Hello.")
    again = serve(config=config)
    with httpx.Client(base_url=again.url, timeout=60) as client:
        done = client.post("/runs", json={"task": "Hi.", "wait": 60}).json()["id"]
        served = {run["id"]: run["status"] for run in client.get("/runs").json()["runs"]}
    assert served == {killed: "interrupted", done: "completed"}
    assert again.stop(signal.SIGINT) == 0
    text = again.hookline("stats", "--last", "9", "--json")
    assert {run["run_id"]: run["status"] for run in json.loads(text)} == served
    assert "Ann" not in text
    totals = json.loads(again.hookline("stats", "--json"))["totals"]
    assert (totals["runs"], totals["model_calls"]) == (2, 1)
    assert totals["statuses"] == {"interrupted": 1, "completed": 1}
    assert (folder / "runs.db").stat().st_mode & 0o777 == 0o600


def stopped_twice(serving, headers):
    """Stop it while a run goes on, and then at once; the id of the run."""
    with httpx.Client(base_url=serving.url, timeout=60, headers=headers) as client:
        run = client.post("/runs", json={"task": "wait"}).json()["id"]
        block_until(lambda: client.get(f"/runs/{run}").json()["status"] == "running")
        serving.process.send_signal(signal.SIGTERM)
        block_until(lambda: client.get("/readyz").status_code == 503)
        refused = client.post("/runs", json={"task": "hi"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert serving.stop(signal.SIGINT) == 0
    assert serving.lines()[-2]["message"] == "stopping now"
    assert serving.lines()[-1]["message"].startswith("stopped: ")
    return run


# Invalid options and missing packages.


@pytest.fixture
def here(in_process, monkeypatch, tmp_path):
    """Call the command in this process; the exit code and what it wrote."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "turns.json").write_text("[]")
    monkeypatch.setattr("hookline.cli.weights.prepare_model", lambda model: None)

    def run(*args, server="port = 0"):
        (tmp_path / "hookline.toml").write_text(
            'model = "scripted:turns.json"\nsessions = "sessions.db"\nruns = "runs.db"\napproval_file = "a.db"\n'
            f"[server]\n{server}\n"
        )
        code, out, err = in_process("serve", *args)
        return code, out + err

    return run


RULES = """
from hookline import HookResult, guard

@guard("before_llm")
def strict(ctx, payload):
    return HookResult.end("not today")
"""


def tried(client, rules, run):
    """Try rules on a run, and return the result."""
    job = client.post("/replays", json={"rules": rules, "runs": [run]}).json()
    while (found := client.get(f"/replays/{job['id']}").json())["status"] in ("queued", "running"):
        time.sleep(0.1)
    return found


def test_rules_of_the_configuration_and_of_an_option_are_tried_as_the_user_trusted_them(folder, env, script):
    for name in ("named.py", "given.py"):
        (folder / name).write_text(RULES)
    config = (
        f'model = "{script("Hello.", "Again.")}"\nrecord = true\nrecords = "records"\n{CONFIG}rules = ["named.py"]\n'
    )
    (folder / "hookline.toml").write_text(config)
    env = {**env, "HOOKLINE_TRUST": "0"}
    trust = [*COMMAND, "trust", "hookline.toml", "--yes"]
    subprocess.run(trust, cwd=folder, env={**os.environ, **env}, check=True, capture_output=True)
    serving = Serving(folder, env, "--rules", "given.py")
    try:
        with httpx.Client(base_url=serving.url, timeout=60) as client:
            run = client.post("/runs", json={"task": "hello", "wait": 60}).json()["id"]
            assert [each["name"] for each in client.get("/rules").json()["rules"]] == ["named.py", "given.py"]
            for name in ("named.py", "given.py"):
                found = tried(client, name, run)
                assert found["result"]["runs"][0]["differences"][0]["now"] == "ended the run by strict: not today", (
                    found
                )
            canary = folder / "canary"
            for name in ("named.py", "given.py"):
                (folder / name).write_text(f"open({str(canary)!r}, 'w')\n{RULES}")
            found = tried(client, "named.py", run)
            assert found["status"] == "failed"
            assert "is not trusted, or has changed" in found["error"]
            assert not canary.exists()
            assert tried(client, "given.py", run)["status"] == "done"  # the user named this file in the command
            assert canary.exists()
    finally:
        serving.stop(signal.SIGINT, signal.SIGINT)


@pytest.mark.parametrize(
    ("server", "args", "told"),
    [
        ("prot = 1", (), "unknown option 'prot'. Did you mean 'port'?"),
        ("port = 99999", (), "server.port: "),
        ("", ("--grace", "-1"), "server.grace: "),
        ("logs = 'yaml'", (), "server.logs: expected one of auto, json, text"),
        ("agents = ['hooklin']", (), "server.agents: there is no agent 'hooklin'. Did you mean 'hookline'?"),
        ("max_steps = 3", (), "move it above [server]"),
        ("rules = ['hookline:one']", (), "name a file such as rules.py"),
        ("", ("--host", "0.0.0.0", "--port", "0"), "make one with hookline keys add"),
        ("port = 0", ("--host", "host.of.nobody"), "there is none: make one with hookline keys add"),
    ],
)
def test_invalid_options_are_reported_before_the_server_starts(here, server, args, told):
    code, text = here(*args, server=server)
    assert code == 2
    assert told in text
    assert "Traceback" not in text
    assert "listening" not in text


def test_a_port_in_use_is_reported(here):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, text = here("--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "is taken by another program: choose another" in text


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_package_is_reported(here, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    code, text = here()
    assert code == 2
    assert f"{package} is not installed: pip install -e " in text
    assert "[server]" in text


# The live view.

NOW = 1_000_000.0


def shown(width=80, height=45, **fields):
    from rich.console import Console

    given = {
        "state": "running",
        "url": "http://127.0.0.1:8420",
        "needs_keys": False,
        "agents": (ServedAgent("desk\x1b[2J"),),
        "runs": (),
        "approvals": (),
        "streams": 0,
        "requests": 0,
        "refused": 0,
        "per_second": 0.0,
        "problem": "",
    }
    console = Console(width=width, force_terminal=False)
    with console.capture() as text:
        status = Status(**{**given, **fields})
        console.print(status_table(status, ["12:00:00 GET  /runs 200 " + "x" * 200], NOW, height))
    assert "\x1b" not in text.get()
    assert all(len(line) <= width for line in text.get().splitlines())
    return text.get()


def run_of(number, **fields):
    given = {"status": "running", "created": NOW - 61, **fields}
    return RunRecord(
        f"run_{number:024d}", "desk", "k1", "s", "sid", "t", "c", "api", "Do\nthis\x1b[2J " + "x" * 300, **given
    )


def call_of(number):
    return ApprovalRow(
        id=f"appr_{number:024d}",
        run_id="r",
        root_id="r",
        call_id="c",
        attempt=1,
        tool="deploy",
        arguments={"service": "shop\x1b[2J" + "x" * 200},
        questions=(Question("plan", "May it?", ""),),
        digest="d",
        agent="desk",
        session_id="s",
        owner="o",
        correlation_id="c",
        asked=NOW - 5,
        expires=NOW + 7200,
        status="pending",
        decided=None,
        by="",
        message="",
        edit=None,
        remember="once",
    )


@pytest.mark.parametrize("width", [80, 140])
def test_the_view_shows_the_address_the_runs_and_the_waiting_calls(width):
    runs = ((run_of(1), "read_file", "ci\x1b[2J"), (run_of(2, status="queued"), "", "local"))
    text = shown(width, runs=runs, approvals=(call_of(7),), streams=2, refused=3, per_second=4.25, needs_keys=True)
    assert "http://127.0.0.1:8420 · keys required" in text
    assert "http://127.0.0.1:8420/a2a/desk" in text
    assert "run_000000000000  desk" in text
    assert "read_file" in text
    assert "1 min" in text
    assert "queued   Do this" in text
    assert "1 call waiting for approval" in text
    assert "hookline approvals approve 00000000  for 5 s, 2 h left" in text
    assert "4.2 requests/s · 2 streams · 3 refused · Ctrl-C stops it" in text
    assert "12:00:00 GET  /runs 200 xx" in text


def test_the_view_shows_whether_other_machines_can_connect():
    assert "8420 and all other addresses of this machine · keys required" in shown(host="0.0.0.0", needs_keys=True)
    assert "other addresses" not in shown()


@pytest.mark.parametrize("height", [24, 45])
def test_the_view_of_a_busy_server_fits_the_terminal(height):
    many = shown(
        height=height,
        agents=tuple(ServedAgent(f"a{n}") for n in range(30)),
        problem="the disk is full\x1b[2J",
        runs=tuple((run_of(n), "step 1", "ci") for n in range(2000)),
        approvals=tuple(map(call_of, range(6))),
        state="stopping",
    )
    assert len(many.splitlines()) <= height + 5
    assert "http://127.0.0.1:8420 is stopping" in many
    assert "Ctrl-C stops it at once" in many
    assert "✗ runs cannot be stored: the disk is full" in many
    assert "more than 5 calls waiting for approval" in many
    assert "more" in many


def test_an_idle_server_shows_no_active_runs():
    text = shown()
    assert "no active runs" in text
    assert "no keys needed on this machine" in text


def test_ages_are_short():
    ages = {-1: "0 s", 0.4: "0 s", 59: "59 s", 60: "1 min", 3700: "1 h", 200_000: "2 d"}
    assert {seconds: rough_duration(seconds) for seconds in ages} == ages


@pytest.mark.parametrize(
    ("logs", "terminal", "kind"),
    [("auto", True, ServerScreen), ("text", True, ServerScreen), ("json", True, ServerLog), ("auto", False, ServerLog)],
)
def test_a_terminal_gets_the_live_view_unless_json_is_wanted(monkeypatch, logs, terminal, kind):
    class Options:
        pass

    server, Options.logs = type("S", (), {"options": Options})(), logs
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert type(make_view(server)) is kind
