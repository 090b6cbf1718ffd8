"""The audit log that the program writes unless it is switched off."""

import json
import os
import signal
import subprocess

import httpx
import pytest

from hookline.stores import verify_audit

from .conftest import COMMAND
from .test_serve import Serving


@pytest.fixture
def logs(env):
    """The audit logs in the home of the program: function of their files."""
    data = os.path.join(env["HOME"], ".local", "share", "hookline")

    def find():
        names = sorted(os.listdir(data)) if os.path.isdir(data) else []
        return [os.path.join(data, name) for name in names if name.startswith("audit-") and name.endswith(".jsonl")]

    return find


def types(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line)["type"] for line in lines]


def test_a_run_is_audited_in_a_log_of_its_project(hookline, script, folder, tmp_path, logs):
    model = script("Hello.")
    assert hookline("run", "Hi.", "--model", model).returncode == 0
    (path,) = logs()
    assert types(path) == ["open", "run_start", "task", "model", "stop", "run_end"]
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert verify_audit(path).ok
    other = tmp_path / "other"
    other.mkdir()
    (other / "turns.json").write_text((folder / "turns.json").read_text())
    assert hookline("run", "Hi.", "--model", model, cwd=other).returncode == 0
    assert len(logs()) == 2, "projects do not share a log"
    assert hookline("run", "Hi.", "--model", model).returncode == 0
    assert sum(types(found).count("run_start") for found in logs()) == 3
    assert all(verify_audit(found).ok for found in logs())


@pytest.mark.parametrize("how", ["flag", "file", "environment"])
def test_the_log_is_switched_off_by_a_setting(hookline, script, folder, logs, how):
    args = ["run", "Hi.", "--model", script("Hello.")]
    more = {}
    if how == "flag":
        args += ["--audit", "none"]
    elif how == "file":
        (folder / "hookline.toml").write_text('audit = "none"\n')
    else:
        more = {"HOOKLINE_AUDIT": "none"}
    done = hookline(*args, **more)
    assert done.returncode == 0, done.stderr
    assert logs() == []


def test_a_chosen_file_replaces_the_log_of_the_project(hookline, script, folder, logs):
    assert hookline("run", "Hi.", "--model", script("Hello."), "--audit", "mine.jsonl").returncode == 0
    assert logs() == []
    assert verify_audit(folder / "mine.jsonl").ok


@pytest.mark.slow
def test_a_log_that_is_declared_as_a_hook_replaces_the_log_of_the_project(hookline, script, folder, logs):
    (folder / "hookline.toml").write_text('hooks = [{ use = "AuditLogHook", args = { path = "mine.jsonl" } }]\n')
    assert hookline("run", "Hi.", "--model", script("Hello.")).returncode == 0
    assert logs() == []
    assert "run_end" in types(folder / "mine.jsonl")
    assert "mine.jsonl" in hookline("audit", "verify").stdout
    assert "mine.jsonl" in hookline("doctor", "--no-model", COLUMNS="200").stdout


@pytest.mark.slow
def test_the_commands_find_the_log_of_the_project(hookline, script, logs):
    missing = hookline("audit", "verify")
    assert missing.returncode == 2
    assert "no audit log yet" in missing.stderr
    hookline("run", "Hi.", "--model", script("Hello."))
    (path,) = logs()
    name = os.path.basename(path)
    verified, shown = hookline("audit", "verify"), hookline("audit", "show")
    assert (verified.returncode, shown.returncode) == (0, 0)
    assert name in verified.stdout.replace("\n", "")
    assert "run_end" in shown.stdout
    assert name in hookline("doctor", "--no-model", COLUMNS="200").stdout
    assert "off (audit = none)" in hookline("doctor", "--no-model", HOOKLINE_AUDIT="none").stdout


def test_a_log_that_cannot_be_written_is_reported_and_the_run_continues(hookline, script, env):
    os.makedirs(os.path.join(env["HOME"], ".local", "share"))
    open(os.path.join(env["HOME"], ".local", "share", "hookline"), "w").close()  # a file where the folder should be
    done = hookline("run", "Hi.", "--model", script("Hello."), "--quiet", "--runs", "runs.db")
    assert (done.returncode, done.stdout) == (0, "Hello.\n")
    assert "audit log" in done.stderr
    # Without --runs, the database with the stop switch would be there too, and nobody knows whether that is on.
    done = hookline("run", "Hi.", "--model", script("Hello."), "--quiet")
    assert (done.returncode, done.stdout) == (3, "")
    assert "the stop switch cannot be read" in done.stderr


def test_a_replay_is_not_audited(hookline, script, logs):
    hookline("run", "Hi.", "--model", script("Hello."), "--tape", "one.tape", "--audit", "none")
    assert hookline("replay", "one.tape").returncode == 0
    assert logs() == []


def test_a_chat_is_audited(terminal, script, logs):
    chat = terminal("chat", "--model", script("Hello."))
    chat.wait_for("❯ ")
    chat.send("Hi.\n")
    chat.wait_for("Hello.")
    chat.wait_for("❯ ")
    chat.send("/quit\n")
    assert chat.end() == 0
    (path,) = logs()
    assert "run_end" in types(path)


@pytest.mark.slow
def test_a_gateway_audits_its_runs(script, folder, env, logs):
    settings = f'model = "{script("Hello.")}"\nchannels = ["console"]\n[gateway]\ndatabase = "gateway.db"\n'
    (folder / "hookline.toml").write_text(settings)
    command = [*COMMAND, "gateway"]
    pipes = {"capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run(command, cwd=folder, env=env, input="hi\n", check=True, **pipes)
    assert done.stdout == "Hello.\n", done.stderr
    (path,) = logs()
    assert "run_end" in types(path)
    assert verify_audit(path).ok


@pytest.mark.slow
def test_a_server_audits_its_runs_and_requests(script, folder, env, logs):
    settings = f'model = "{script("Hello.")}"\n[server]\nport = 0\n'
    (folder / "hookline.toml").write_text(settings)
    serving = Serving(folder, env)
    try:
        run = httpx.post(f"{serving.url}/runs", json={"task": "Hi."}, timeout=60).json()
        httpx.get(f"{serving.url}/runs/{run['id']}/events", headers={"Accept": "text/event-stream"}, timeout=60)
    finally:
        code = serving.stop(signal.SIGINT)
    assert code == 0
    (path,) = logs()
    assert {"run_end", "auth"} <= {*types(path)}
    assert verify_audit(path).ok
