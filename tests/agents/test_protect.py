"""A new user's walk with ``hookline protect`` and the real coding agents: ``make test-agents``."""

import json
import os
import subprocess
import sys

import pytest

from hookline.adapters.coding_agents.protection.changes import entries_in
from hookline.adapters.coding_agents.protection.hosts import HOSTS, Place
from hookline.adapters.coding_agents.protection.loopback_model import serving
from hookline.adapters.coding_agents.protection.proof import FOLDERS
from tests.agents.agents import AGENTS, environment
from tests.agents.sessions import LIMIT

NAMES = os.environ.get("TEST_AGENTS", "").split()
pytestmark = [
    pytest.mark.skipif(not NAMES, reason="real coding agents: make test-agents"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
OWN = {"gemini": '{\n  // mine\n  "ui": {"theme": "Dracula"}\n}\n', "qwen": '{"ui": {}}', "codex": '{"hooks": {}}\n'}
"""Settings that a user has already."""


@pytest.fixture(params=[pytest.param(AGENTS[name], id=name) for name in NAMES])
def agent(request):
    return request.param


class User:
    """A user with a home folder of their own, and one coding agent on the path."""

    def __init__(self, agent, folder):
        self.agent, self.home, self.project = agent, folder / "home", folder / "project"
        self.project.mkdir()
        for name in FOLDERS.values():
            (self.home / name).mkdir(parents=True, mode=0o700)
        env = environment(self.home)
        self.env = env | {"PATH": os.pathsep.join((str(agent.path.parent), env["PATH"]))}
        self.settings = agent.host.user_file(self.env)

    def hookline(self, *args, code=0):
        command = [sys.executable, "-P", "-m", "hookline", *args]
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done
        return done.stdout

    def work(self, *commands):
        """Let the agent run commands under the settings that are there. Return what its model read."""
        calls = [self.agent.shell(command) for command in commands]
        with serving({"MAIN": calls}) as model:
            place = Place(self.home, self.project, model.url)
            file, more = self.agent.host.model_settings(place)
            before = file.read_bytes() if file.exists() else None
            if before is not None:
                text = before.decode().replace("// mine", "")
                more = json.dumps(json.loads(text) | more) if isinstance(more, dict) else text + more
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(more if isinstance(more, str) else json.dumps(more))
            subprocess.run(
                [self.agent.path, *self.agent.command(self.project, "MAIN: do it")],
                cwd=self.project,
                env={**self.env, **self.agent.variables(self.home, self.project, model.url)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT,
                check=False,
            )
            if before is None:
                file.unlink()
            else:
                file.write_bytes(before)
            return model.results["MAIN"]


def test_from_nothing_to_a_denied_call_and_back(agent, tmp_path):
    user = User(agent, tmp_path)
    if agent.name in OWN:
        user.settings.parent.mkdir(parents=True, exist_ok=True)
        user.settings.write_text(OWN[agent.name])
    done = user.hookline("protect", agent.name, "--yes")
    version = agent.package.rpartition("@")[2]
    (line,) = [line for line in done.splitlines() if line.startswith(agent.host.title) and "written" in line]
    assert line.split()[-3:] == [version, "written", "denied"]
    assert "last call none seen" in " ".join(user.hookline("doctor", "--no-model", "--no-sandbox").split())

    read = user.work("touch allowed", "sudo touch denied")
    assert (user.project / "allowed").exists()
    assert "sudo is not allowed" in read[1]
    facts = " ".join(user.hookline("doctor", "--no-model", "--no-sandbox").split())
    assert f"{agent.host.title} {version}" in facts
    assert "of this installation" in facts
    assert "last call denied:" in facts
    assert ("not trusted yet" in facts) == (agent.name == "codex")

    user.hookline("protect", "--remove", "--yes")
    if agent.name in OWN:
        assert user.settings.read_text() == OWN[agent.name]
    else:
        assert not user.settings.exists()
    assert not (user.home / ".config/hookline").exists()
    assert not list((user.home / "tmp").glob("hookline-proof-*"))


def test_settings_of_a_project_are_proved_too(agent, tmp_path):
    user = User(agent, tmp_path)
    done = user.hookline("protect", agent.name, "--project", "--yes")
    (line,) = [line for line in done.splitlines() if line.startswith(agent.host.title) and "written" in line]
    assert line.split()[-1] == "denied"
    user.hookline("protect", agent.name, "--project", "--remove", "--yes")
    assert list(user.project.iterdir()) == []


def test_settings_that_switch_hooks_off_are_found_out(agent, tmp_path):
    switches = {"gemini": {"hooksConfig": {"enabled": False}}, "qwen": {"disableAllHooks": True}}
    if agent.name not in switches:
        pytest.skip("nothing in its file of hooks switches them off")
    user = User(agent, tmp_path)
    user.settings.parent.mkdir(parents=True, exist_ok=True)
    user.settings.write_text(json.dumps(switches[agent.name]))
    assert "NOT DENIED: the call ran" in user.hookline("protect", agent.name, "--yes", code=1)
    assert "switched off no" not in " ".join(user.hookline("doctor", "--no-model", "--no-sandbox").split())


@pytest.mark.skipif("codex" not in NAMES, reason="about Codex")
def test_the_digests_of_trusted_hooks_are_those_of_codex(tmp_path):
    user = User(AGENTS["codex"], tmp_path)
    user.hookline("protect", "codex", "--yes", "--no-proof")
    with subprocess.Popen(
        [user.agent.path, "app-server"],
        cwd=user.project,
        env=user.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:

        def call(number, method, **params):
            server.stdin.write(json.dumps({"id": number, "method": method, "params": params}) + "\n")
            server.stdin.flush()
            while (answer := json.loads(server.stdout.readline())).get("id") != number:
                pass
            return answer["result"]

        call(1, "initialize", clientInfo={"name": "hookline", "title": "Hookline", "version": "1"})
        listed = call(2, "hooks/list", cwds=[str(user.project)])["data"][0]["hooks"]
        server.kill()
    assert {hook["trustStatus"] for hook in listed} == {"untrusted"}
    states = "".join(f'[hooks.state.{json.dumps(h["key"])}]\ntrusted_hash = "{h["currentHash"]}"\n' for h in listed)
    (user.home / ".codex/config.toml").write_text(states)
    host = HOSTS["codex"]
    entries = entries_in(host, user.settings)
    assert len(entries) == len(listed)
    assert host.trust(user.env, user.settings, entries) == "trusted"
