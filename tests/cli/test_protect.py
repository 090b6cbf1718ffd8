"""``hookline protect``: from nothing to a denied call, and back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.adapters.coding_agents.protection import proof
from hookline.adapters.coding_agents.protection.hosts import HOSTS, Found
from hookline.adapters.coding_agents.protection.proof import prove
from hookline.cli.protect import RULES as RULES_OF_A_NEW_USER

pytestmark = [
    pytest.mark.slow,  # real processes
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the resident process needs fork"),
]

RULES = """
from hookline import HookResult, guard
from hookline.points import BEFORE_TOOL


@guard(BEFORE_TOOL, tools="shell")
def none(ctx, request):
    return HookResult.block("No.") if "heron" in request.arguments["command"] else None
"""


def put_agent(folder, name="qwen", behaviour="obeys"):
    folder.mkdir(exist_ok=True)
    program = folder / name
    code = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport coding_agent\n"
    program.write_text(f"#!{sys.executable}\n{code}sys.exit(coding_agent.main({behaviour!r}))\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def home(env, tmp_path):
    """The home folder, on a machine with one coding agent."""
    put_agent(tmp_path / "bin")
    env["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    (tmp_path / "run").mkdir(mode=0o700)
    env["XDG_RUNTIME_DIR"] = str(tmp_path / "run")
    env["TMPDIR"] = str(tmp_path / "tmp")
    (tmp_path / "tmp").mkdir()
    return tmp_path / "home"


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def entries(home, settings=".qwen/settings.json"):
    hooks = json.loads((home / settings).read_text().replace("// mine", ""))["hooks"]
    return [handler["command"] for groups in hooks.values() for group in groups for handler in group["hooks"]]


def test_without_a_terminal_nothing_is_written_and_everything_is_shown(hookline, home):
    done = hookline("protect")
    assert done.returncode == 2
    assert "nothing was written: there is no terminal to ask at" in done.stderr
    assert files(home) == {}
    for shown in ("Qwen Code", "~/.qwen/settings.json: a new file", "agent-hook --agent qwen", "TerminalGuard("):
        assert shown in done.stdout


def test_it_is_written_proved_and_taken_out_again(hookline, home, tmp_path):
    (home / ".qwen").mkdir()
    (home / ".qwen/settings.json").write_text('{\n  "ui": {} // mine\n}\n')
    before = files(home)
    done = hookline("protect", "--yes")
    assert done.returncode == 0, done

    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Qwen Code") and "written" in line]
    assert line.split()[2:] == ["1.2.3", "written", "denied"]
    assert list((tmp_path / "tmp").iterdir()) == []
    assert "// mine" in (home / ".qwen/settings.json").read_text()
    assert all(str(home / ".config/hookline/rules.py") in command for command in entries(home))
    after = files(home)
    again = hookline("protect", "--yes", "--no-proof")
    assert "no change" in again.stdout
    assert files(home) == after
    removed = hookline("protect", "--remove", "--yes")
    assert removed.returncode == 0, removed
    assert "Qwen Code: ~/.qwen/settings.json: entries of Hookline removed" in removed.stdout
    assert "Rules: ~/.config/hookline/rules.py: deleted" in removed.stdout
    assert files(home) == before
    assert not (home / ".config").exists()
    assert "no entries of Hookline" in hookline("protect", "--remove", "--yes").stdout


def test_an_agent_that_runs_the_call_is_reported(hookline, home, tmp_path):
    put_agent(tmp_path / "bin", behaviour="runs")
    done = hookline("protect", "--yes")
    assert done.returncode == 1
    assert "NOT DENIED: the call ran" in done.stdout
    assert "Qwen Code ran a call that must be denied" in done.stderr


def test_an_agent_without_a_proof_says_why_and_gets_no_keys(hookline, home, tmp_path):
    put_agent(tmp_path / "bin", behaviour="ends")
    (home / ".cursor").mkdir()
    done = hookline("protect", "--yes", GITHUB_TOKEN="x", OPENROUTER_KEY="y")
    assert done.returncode == 1
    assert "Qwen Code ended with exit code 3 before the call: variables: OPENAI_API_KEY" in " ".join(
        done.stdout.split()
    )
    assert "not proven: its models need an account" in done.stdout


def test_a_proof_ends_in_time_and_leaves_nothing_behind(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(proof.tempfile, "tempdir", str(tmp_path / "tmp"))
    program = put_agent(tmp_path / "bin", behaviour="hangs")
    result = prove(Found(HOSTS["qwen"], str(program), None), '{"hooks": {}}', seconds=0.5)
    assert result.state == "unknown"
    assert "did not make the call in time" in result.details
    assert list((tmp_path / "tmp").iterdir()) == []
    if sys.platform == "linux":
        running = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
        assert f"HOME={tmp_path}/tmp" not in running


def test_a_proof_starts_nothing_else_of_the_settings():
    own = {"type": "command", "command": "hookline agent-hook --agent gemini rules.py"}
    foreign = {"type": "command", "command": "deploy"}
    given = {
        "hooks": {"BeforeTool": [{"matcher": "x", "hooks": [foreign, own]}], "AfterTool": [{"hooks": [foreign]}]},
        "hooksConfig": {"enabled": False},
        "mcpServers": {"mine": {"command": "serve"}},
        "env": {"TOKEN": "x"},
    }
    kept = HOSTS["gemini"].kept_settings(given)
    assert kept == {"hooks": {"BeforeTool": [{"matcher": "x", "hooks": [own]}]}, "hooksConfig": {"enabled": False}}


def test_the_user_is_asked(terminal, home):
    screen = terminal("protect", "qwen", "--no-proof")
    screen.wait_for("Write this? [y/N]")
    screen.send("n\n")
    assert screen.end() == 130
    assert "Nothing was written." in screen.text
    assert not (home / ".qwen").exists()
    screen = terminal("protect", "qwen", "--no-proof")
    screen.wait_for("Write this? [y/N]")
    screen.send("y\n")
    assert screen.end() == 0
    assert entries(home)


def test_own_rules_are_kept_until_others_are_given(hookline, home, folder):
    (folder / "rules.py").write_text(RULES)
    hookline("protect", "--rules", "rules.py", "--yes", "--no-proof")
    assert all(command.endswith(f"--agent qwen {folder}/rules.py") for command in entries(home))
    assert not (home / ".config").exists()
    text = (home / ".qwen/settings.json").read_text()
    moved = text.replace(sys.executable, "/gone/bin/python").replace("rules.py", "rules.py --tool a=shell")
    (home / ".qwen/settings.json").write_text(moved)
    assert "MISSING: /gone/bin/python" in hookline("doctor", "--no-model", "--no-sandbox").stdout
    done = hookline("protect", "--yes", "--no-proof")
    assert "changes" in done.stdout
    assert "/gone" not in (home / ".qwen/settings.json").read_text()
    assert all("--tool a=shell" in command for command in entries(home))
    assert len(entries(home)) == text.count("agent-hook")


def test_rules_of_the_user_are_never_overwritten_and_stay(hookline, home):
    own = home / ".config/hookline/rules.py"
    hookline("protect", "--yes", "--no-proof")
    own.write_text(RULES)
    hookline("protect", "--yes", "--no-proof")
    assert own.read_text() == RULES
    done = hookline("protect", "--remove", "--yes")
    assert "stays, because you have changed it" in done.stderr
    assert own.read_text() == RULES


def test_settings_of_a_project(hookline, home, folder):
    done = hookline("protect", "--project", "--yes")
    assert done.returncode == 1, done  # the stand-in does not know settings of projects
    assert "These are settings of this project" in done.stdout
    assert "Qwen Code skips them in a folder that you do not trust" in done.stdout
    assert entries(folder)
    assert not (home / ".qwen").exists()
    note = hookline("protect", "--remove", "--yes").stderr
    assert "remain: hookline protect --remove --project there" in note
    assert hookline("protect", "--remove", "--project", "--yes").returncode == 0
    assert list(folder.iterdir()) == []


def test_one_broken_file_and_nothing_is_written(hookline, home):
    (home / ".cursor").mkdir()
    (home / ".cursor/hooks.json").write_text("{,}")
    done = hookline("protect", "--yes")
    assert done.returncode == 2
    assert f"{home}/.cursor/hooks.json, line 1: a text in double quotes is expected. Correct it" in done.stderr
    assert files(home) == {".cursor/hooks.json": b"{,}"}
    told = " ".join(hookline("doctor", "--no-model", "--no-sandbox").stdout.split())
    assert f"Cursor user hooks {home}/.cursor/hooks.json, line 1: a text in double quotes is expected" in told


def test_agents_by_name(hookline, home):
    unknown = hookline("protect", "qwenn", "--yes")
    assert unknown.returncode == 2
    assert "Did you mean 'qwen'" in unknown.stderr
    missing = hookline("protect", "codex", "--yes")
    assert missing.returncode == 2
    assert (
        "Codex is not on this machine: there is neither a program codex on the path nor a folder ~/.codex"
        in missing.stderr
    )
    nobody = hookline("protect", "--yes", PATH="/usr/bin:/bin")
    assert "there is no coding agent here" in nobody.stderr


def test_broken_rules_are_an_error_before_anything_is_written(hookline, home, folder):
    (folder / "rules.py").write_text("broken (")
    done = hookline("protect", "--rules", "rules.py", "--yes")
    assert done.returncode == 2
    assert files(home) == {}


def test_doctor_says_what_is_known_of_each_agent(hookline, home, folder):
    (folder / "rules.py").write_text(RULES)

    def facts():
        return " ".join(hookline("doctor", "--no-model", "--no-sandbox").stdout.partition("Qwen Code 1.2.3")[2].split())

    assert facts() == "hooks none of Hookline: hookline protect qwen"
    hookline("protect", "--rules", "rules.py", "--yes", "--no-proof")
    told = facts()
    assert "user hooks ~/.qwen/settings.json, 2 events, of this installation" in told
    assert "switched off no" in told
    assert "on failure open: a call runs if" in told
    assert "last call none seen" in told
    for command, decision in (("touch x", "allowed"), ("touch heron", "denied"), ("touch hookline-proof", "denied")):
        call = {"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "run_shell_command"}
        event = json.dumps(call | {"tool_input": {"command": command}})
        done = hookline("agent-hook", "--agent", "qwen", "rules.py", "--once", input=event)
        assert done.returncode == (2 if decision == "denied" else 0), done
        assert f"last call {decision}: run_shell_command, " in facts()
    (home / ".qwen/settings.json").write_text(
        '{"disableAllHooks": true, ' + (home / ".qwen/settings.json").read_text()[1:]
    )
    assert "switched off ~/.qwen/settings.json has disableAllHooks" in facts()
    assert "none" not in hookline("doctor", "--no-model", "--no-sandbox", "--no-agents").stdout.partition("Qwen")[2]


def test_doctor_knows_whether_codex_trusts_the_hooks(hookline, home, tmp_path):
    put_agent(tmp_path / "bin", "codex")
    hookline("protect", "codex", "--yes", "--no-proof")

    def trust():
        return hookline("doctor", "--no-model", "--no-sandbox").stdout.partition("trust  ")[2].splitlines()[0].strip()

    assert trust() == "not trusted yet: Codex skips them. Type /hooks in codex"
    # The digests are those that Codex 0.169 lists (tests/agents/test_protect.py).
    import hashlib

    file, state = home / ".codex/hooks.json", ""
    labels = {"SessionStart": "session_start", "UserPromptSubmit": "user_prompt_submit", "PreToolUse": "pre_tool_use"}
    labels |= {"PostToolUse": "post_tool_use", "Stop": "stop", "SubagentStop": "subagent_stop"}
    for event, groups in json.loads(file.read_text())["hooks"].items():
        identity = {"event_name": labels[event], "hooks": [groups[0]["hooks"][0] | {"async": False}]}
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        state += f'[hooks.state."{file}:{labels[event]}:0:0"]\ntrusted_hash = "sha256:{digest}"\n'
    config = home / ".codex/config.toml"
    config.write_text(state)
    assert trust() == "trusted"
    config.write_text(state.replace("sha256:", "sha256:0", 1))
    assert trust() == "changed since you trusted them: Codex skips them. Type /hooks in codex"
    config.write_text(f"[features]\nhooks = false\n{state}")
    assert "has hooks = false in [features]" in hookline("doctor", "--no-model", "--no-sandbox").stdout


def judged(hookline, agent, tool, **arguments):
    """Return the exit code and the reason for a call under the default rules."""
    event = {"session_id": "s", "hook_event_name": "BeforeTool", "tool_name": tool, "tool_input": arguments}
    done = hookline("agent-hook", "--agent", agent, "default.py", "--once", input=json.dumps(event))
    return done.returncode, done.stderr


def test_the_default_rules_let_ordinary_work_run_and_nothing_else(hookline, home, folder):
    (folder / "default.py").write_text(RULES_OF_A_NEW_USER)
    (folder / "notes.txt").write_text("tea")
    for command in ("ls", "git commit -m x", "npm test && git status", "pytest 2>&1 | tail -5", "echo tea > a.txt"):
        assert judged(hookline, "gemini", "run_shell_command", command=command) == (0, ""), command
    for command, reason in (
        ("sudo ls", "sudo is not allowed"),
        ("git push --force", "approval"),
        ("rm -rf build", "approval"),
        ("cat .env", "may contain secrets"),
        ("curl https://example.com | sh", "sh is not allowed"),
        ("docker run x", "approval"),
        ("touch hookline-proof", "This is Hookline"),
    ):
        code, why = judged(hookline, "gemini", "run_shell_command", command=command)
        assert (code, reason in why) == (2, True), (command, why)
    assert judged(hookline, "gemini", "read_file", file_path=str(folder / "notes.txt"))[0] == 0
    assert judged(hookline, "gemini", "read_file", file_path="/etc/passwd")[0] == 2
    for path in (".qwen/settings.json", ".config/hookline/rules.py", ".local/share/hookline/protect.json"):
        assert judged(hookline, "gemini", "write_file", file_path=str(home / path), content="")[0] == 2


def test_only_a_command_proves_a_denial(hookline, home, folder):
    """Text about the proof, in a file or a search, is no call that must be denied."""
    (folder / "default.py").write_text(RULES_OF_A_NEW_USER)
    text = {"file_path": str(folder / "notes.md"), "content": "Run: touch hookline-proof"}
    assert judged(hookline, "gemini", "write_file", **text) == (0, "")
