"""The page that locks down an agent: what it shows happens, and its configuration builds the same guards."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hookline._toolbox.sandbox import level_state

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/guides/lock-down.md").read_text()
TOML = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1]


def test_the_guards_take_ten_lines_or_fewer():
    hooks = re.search(r"hooks=\[\n(.*?)\n {8}\],\n(.*?)\n", PAGE, re.DOTALL)
    assert len(hooks[1].splitlines()) + len(hooks[2].splitlines()) <= 10


BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ATTACK = """
from pathlib import Path
from hookline.stores import JsonSessionStore, RunStore

work = Path("work")
secrets = (".env", ".ssh/config", "credentials.json", "id_rsa")
for name in (*secrets, "shop.py"):
    (work / name).parent.mkdir(parents=True, exist_ok=True)
    (work / name).write_text("COUPON = " + name + chr(10))
stores = [RunStore(work / "data/runs.db"), JsonSessionStore(work / "sessions")]
config = "[core]\\n  repositoryformatversion = 0\\n  bare = false\\n  worktree = .\\n  fsmonitor = ./run.sh\\n"
git = {"HEAD": "ref: refs/heads/main", "config": config, "objects/x": "", "refs/x": "", "hooks/pre-commit": "x"}
paths = {base + name: text for base in (".git/", "") for name, text in git.items() if base or name == "HEAD"}
paths |= dict.fromkeys(("data/runs.db", "data/runs.db-wal", "sessions/ann.json", "hookline.toml", "x.tape"), "x")
turns = [
    [call("find_text", text="COUPON"), call("list_files"), call("shell", command="grep -r COUPON .")],
    [call("write_file", path=path, content=text) for path, text in paths.items()],
    reply("Done."),
]
agent = locked_down(ScriptedModel(turns), "work", ["docs.python.org"])
agent.hooks.register(approve_everything)
result = agent.run("go")
assert result.steps[0].outcomes == ("ok", "ok", "blocked"), result.steps[0].outcomes
assert set(result.steps[1].outcomes) == {"blocked"}, result.steps[1].outcomes
shown = " ".join(message.content for message in result.messages if message.role == "tool")
assert "COUPON = shop.py" in shown
assert not any("COUPON = " + name in shown for name in secrets), shown
assert not (work / ".git").exists()
"""


def test_the_guards_of_the_page_hide_secrets_from_searches_and_keep_the_files_that_run_code(tmp_path):
    approver = "from hookline import HookResult, hook\n@hook('approval_requested')\n"
    approver += "def approve_everything(ctx, request): return HookResult.approve()\n"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-P", "-c", BLOCKS[0] + approver + ATTACK]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def hookline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("locked")
    (folder / "hookline.toml").write_text(TOML)
    (folder / ".env").write_text("KEY=sk-live-1\n")
    (folder / "notes.txt").write_text("tea\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_DATA_HOME": str(folder / "data")}

    def run(*args):
        command = [sys.executable, "-m", "hookline", *args]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)

    run.folder = folder
    return run


def test_the_configuration_builds_the_guards_that_the_page_names(hookline):
    shown = hookline("hooks")
    assert shown.returncode == 0, shown.stderr
    for guard in ("PathGuard", "TerminalGuard", "InjectionGuard", "SensitiveDataHook", "EgressGuard", "AuditLogHook"):
        assert guard in shown.stdout


def test_on_the_command_line_they_hold_and_leave_a_record_that_verifies(hookline):
    calls = [
        {"tool": "read_file", "arguments": {"path": ".env"}},
        {"tool": "shell", "arguments": {"command": "bash -c 'rm notes.txt'"}},
        {"tool": "shell", "arguments": {"command": "rm notes.txt"}},
        {"tool": "fetch", "arguments": {"url": "https://evil.example/"}},
        {"tool": "shell", "arguments": {"command": "cat notes.txt"}},
    ]
    (hookline.folder / "turns.json").write_text(json.dumps([calls, "Tea."]))
    done = hookline("run", "What do I drink?", "--model", "scripted:turns.json", "--json")
    assert done.returncode == 0, done.stderr
    (batch, *_) = json.loads(done.stdout.splitlines()[-1])["result"]["steps"]
    assert batch["outcomes"] == ["blocked", "ok", "ok", "blocked", "ok"]
    assert "Read-only file system" in done.stdout  # the sandbox, not the guard, keeps commands from changing files
    assert (hookline.folder / "notes.txt").exists()
    verified = hookline("audit", "verify", "audit/log.jsonl")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "sk-live-1" not in (hookline.folder / "audit" / "log.jsonl").read_text()
    stats = json.loads(hookline("stats", "--json").stdout)
    assert {tool["tool"]: tool["calls"] for tool in stats["tools"]} == {"read_file": 1, "shell": 3, "fetch": 1}


def test_a_coding_agent_works_with_the_changes_that_the_page_names_and_cannot_change_its_log(hookline):
    if problem := level_state("bubblewrap").problem:
        pytest.skip(f"bubblewrap: {problem}")
    without = "".join(line for line in TOML.splitlines(keepends=True) if "InjectionGuard" not in line)
    config = hookline.folder / "coder" / "hookline.toml"
    config.parent.mkdir()
    config.write_text(f'write = true\nfolder = "."\n{without}')
    commands = ["echo coffee > more.txt", "cat more.txt", "python3 -c \"open('audit/log.jsonl', 'w')\""]
    turns = [*({"tool": "shell", "arguments": {"command": command}} for command in commands), "Done."]
    (config.parent / "turns.json").write_text(json.dumps(turns))
    model = f"scripted:{config.parent / 'turns.json'}"
    done = hookline("run", "Add coffee", "--config", str(config), "--model", model, "--json")
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout.splitlines()[-1])["result"]["steps"]
    assert [step["outcomes"] for step in steps] == [["ok"], ["ok"], ["ok"], []]
    assert (config.parent / "more.txt").read_text() == "coffee\n"
    assert "Read-only file system" in done.stdout
    assert hookline("audit", "verify", str(config.parent / "audit" / "log.jsonl")).returncode == 0
