"""``--claude-hooks`` and the setting ``claude_hooks``: hooks of Claude Code in the commands that run an agent."""

import json
import subprocess

import pytest

from .conftest import COMMAND

pytestmark = pytest.mark.slow  # real processes and servers

DENY = "#!/bin/sh\ncat > /dev/null\ntouch \"$CLAUDE_PROJECT_DIR/canary\"\necho 'Not here.' >&2\nexit 2\n"


@pytest.fixture
def clone(folder):
    """A project with settings of Claude Code, whose hook leaves a canary when it runs."""
    hooks = folder / ".claude" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "deny.sh").write_text(DENY)
    (hooks / "deny.sh").chmod(0o755)
    handler = {"type": "command", "command": '"$CLAUDE_PROJECT_DIR"/.claude/hooks/deny.sh'}
    settings = {"hooks": {"PreToolUse": [{"matcher": "Glob|Write", "hooks": [handler]}]}}
    (folder / ".claude" / "settings.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def turns(script):
    return script([{"tool": "list_files", "arguments": {}}], "Done.")


def blocked(folder):
    return (folder / "canary").exists()


@pytest.mark.parametrize("place", [".claude/settings.json", "."])
def test_a_flag_names_a_settings_file_or_the_folder_of_a_project(hookline, clone, turns, place):
    done = hookline("run", "Go.", "-m", turns, "--claude-hooks", place)
    assert done.returncode == 0, done.stderr
    assert blocked(clone)
    assert "Not here." in done.stderr


def test_a_setting_is_relative_to_its_file_and_a_flag_adds_to_it(hookline, clone, turns):
    (clone / "hookline.toml").write_text('claude_hooks = [".claude/settings.json"]\n')
    (clone / "sub").mkdir()
    (clone / "sub" / "other.json").write_text('{"hooks": {"FileChanged": []}}')
    (clone / "sub" / "turns.json").write_text((clone / "turns.json").read_text())
    done = hookline("run", "Go.", "-m", turns, "--claude-hooks", "other.json", cwd=clone / "sub")
    assert done.returncode == 0, done.stderr
    assert blocked(clone)
    assert "hooks.FileChanged: Hookline has no moment for this event" in done.stderr


def test_a_hook_in_the_settings_of_hookline_can_have_arguments(hookline, clone, turns):
    (clone / "hookline.toml").write_text(
        'hooks = [{ use = "ClaudeHooks", args = { settings = [".claude/settings.json"], on_failure = "block" } }]\n'
    )
    done = hookline("run", "Go.", "-m", turns)
    assert done.returncode == 0, done.stderr
    assert blocked(clone)


def test_a_mistake_in_the_settings_is_reported_before_the_run(hookline, clone, turns):
    (clone / ".claude" / "settings.json").write_text('{"hooks": {"Stop": [{"hooks": [{"type": "prompt"}]}]}}')
    done = hookline("run", "Go.", "-m", turns, "--claude-hooks", ".")
    assert done.returncode == 2
    assert "claude_hooks: " in done.stderr
    assert "hooks.Stop[0].hooks[0]" in " ".join(done.stderr.split())


def test_the_failure_of_a_hook_and_its_message_are_shown(hookline, clone, script):
    message = {"type": "command", "command": 'echo \'{"systemMessage": "Mind the gap."}\''}
    handlers = [message, {"type": "command", "command": "exit 3"}]
    (clone / ".claude" / "settings.json").write_text(json.dumps({"hooks": {"Stop": [{"hooks": handlers}]}}))
    done = hookline("run", "Go.", "-m", script("Done."), "--claude-hooks", ".")
    assert "Stop hook: Mind the gap.; The Stop hook exit 3 failed: it ended with exit code 3" in done.stderr


def test_the_agent_cannot_change_the_hooks_that_judge_it(hookline, clone, script):
    handler = {"type": "command", "command": ".claude/hooks/deny.sh"}
    (clone / ".claude" / "settings.json").write_text(json.dumps({"hooks": {"PostCompact": [{"hooks": [handler]}]}}))
    paths = (".claude/settings.json", ".claude/hooks/deny.sh", ".claude/settings.local.json")
    calls = [{"tool": "write_file", "arguments": {"path": path, "content": "{}"}} for path in paths]
    before = {path: (clone / path).read_text() for path in paths[:2]}
    done = hookline("run", "Go.", "-m", script(calls, "Done."), "--claude-hooks", ".", "--write")
    assert done.returncode == 0, done.stderr
    assert {path: (clone / path).read_text() for path in paths[:2]} == before
    assert not (clone / paths[2]).exists()


@pytest.mark.slow
def test_session_end_hooks_are_called_when_the_command_ends(clone, turns, env):
    handler = {"type": "command", "command": "cat > ended", "timeout": 60}
    settings = {"hooks": {"SessionEnd": [{"hooks": [handler]}]}}
    (clone / ".claude" / "settings.json").write_text(json.dumps(settings))
    command = [*COMMAND, "run", "Go.", "-m", turns, "--claude-hooks", "."]
    subprocess.run(command, cwd=clone, env=env, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    assert json.loads((clone / "ended").read_text())["reason"] == "other"


@pytest.mark.slow
def test_the_gateway_calls_the_hooks(clone, turns, env):
    (clone / "hookline.toml").write_text('channels = ["console"]\n[gateway]\ndatabase = "gateway.db"\n')
    command = [*COMMAND, "gateway", "-m", turns, "--claude-hooks", "."]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=clone, env=env, text=True, **pipes) as process:
        out, err = process.communicate("hi\n")
    assert "Done." in out, err
    assert blocked(clone)


@pytest.mark.slow
def test_no_command_loads_the_adapter_without_the_setting(folder, turns, env):
    code = (
        "import sys\nfrom hookline.cli.app import run_app\n"
        f"assert run_app(['run', 'Go.', '-m', {turns!r}, '--no-default-tools']) == 0\n"
        "print([name for name in sys.modules if name.startswith('hookline.adapters')])"
    )
    command = [COMMAND[0], "-c", code]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# Trust.


@pytest.fixture
def untrusted(hookline, clone, turns):
    """The program for a user who has trusted nothing, in a project whose configuration names the settings."""
    (clone / "hookline.toml").write_text(f'model = "{turns}"\nclaude_hooks = ["."]\n')
    return lambda *args: hookline(*args, HOOKLINE_TRUST="0")


def test_the_settings_and_their_scripts_need_trust_and_again_after_a_change(untrusted, clone):
    assert untrusted("run", "Go.").returncode == 2
    assert not blocked(clone)
    shown = untrusted("trust", "--yes").stderr
    assert ".claude/settings.json" in shown
    assert ".claude/hooks/deny.sh" in shown
    done = untrusted("run", "Go.")
    assert done.returncode == 0, done.stderr
    assert blocked(clone)
    for file in (clone / ".claude" / "hooks" / "deny.sh", clone / ".claude" / "settings.json"):
        (clone / "canary").unlink(missing_ok=True)
        before = file.read_text()
        file.write_text(before + "\n")
        done = untrusted("run", "Go.")
        assert done.returncode == 2
        assert "has changed" in done.stderr
        assert not blocked(clone)
        file.write_text(before)


def test_new_local_settings_need_trust_too(untrusted, clone):
    assert untrusted("trust", "--yes").returncode == 0
    canary = {"type": "command", "command": "touch canary"}
    (clone / ".claude" / "settings.local.json").write_text(
        json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [canary]}]}})
    )
    assert untrusted("run", "Go.").returncode == 2
    assert not blocked(clone)


def test_settings_that_the_user_names_with_a_flag_are_used(untrusted, clone, turns):
    (clone / "hookline.toml").write_text(f'model = "{turns}"\n')
    assert untrusted("trust", "--yes").returncode == 0
    done = untrusted("run", "Go.", "--claude-hooks", ".")
    assert done.returncode == 0, done.stderr
    assert blocked(clone)


def test_settings_that_other_users_can_write_are_refused(hookline, clone, turns):
    (clone / ".claude" / "hooks" / "deny.sh").chmod(0o777)
    done = hookline("run", "Go.", "-m", turns, "--claude-hooks", ".")
    assert done.returncode == 2
    assert "deny.sh is not used" in " ".join(done.stderr.split())


def test_settings_that_are_named_twice_are_an_error(hookline, clone, turns):
    (clone / "hookline.toml").write_text(
        'claude_hooks = ["."]\nhooks = [{ use = "ClaudeHooks", args = { settings = ".claude/settings.json" } }]\n'
    )
    done = hookline("run", "Go.", "-m", turns)
    assert done.returncode == 2
    assert "its hooks would run twice" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_chat_ends_its_session(clone, script, terminal):
    handler = {"type": "command", "command": "jq -r .reason >> ended", "timeout": 60}
    (clone / ".claude" / "settings.json").write_text(json.dumps({"hooks": {"SessionEnd": [{"hooks": [handler]}]}}))
    chat = terminal("chat", "-m", script("Hello.", "Hello again."), "--claude-hooks", ".")
    chat.wait_for("❯ ")
    chat.send("Hi.\n")
    chat.wait_for("Hello.")
    chat.wait_for("❯ ")
    chat.send("/clear\n")
    chat.wait_for("Conversation cleared.")
    assert (clone / "ended").read_text() == "clear\n"
    chat.wait_for("❯ ")
    chat.send("Hi.\n")
    chat.wait_for("Hello again.")
    chat.wait_for("❯ ")
    chat.send("/quit\n")
    chat.end()
    assert (clone / "ended").read_text() == "clear\nprompt_input_exit\n"
