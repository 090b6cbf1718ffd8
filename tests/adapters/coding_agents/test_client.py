"""The command in the settings of coding agents: whatever is broken around it, the call is denied.

``test_command.py`` and ``test_other_agents.py`` use the same command for everything else.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hookline.adapters import coding_agents
from hookline.adapters.coding_agents import client, options
from hookline.adapters.coding_agents.options import AGENTS, NoAnswerError
from hookline.adapters.coding_agents.refusal import refusal

from .test_codecs import prompt_event, shell_event
from .test_command import ENTRY, LEAN, NO_SUDO, ClaudeCode

pytestmark = [
    pytest.mark.slow,  # real processes
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the resident process needs fork"),
]
ONLY_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
NOBODY = 65534


def sudo(claude: ClaudeCode, padding: str = "") -> bytes:
    """A call that the rules deny."""
    given = {"description": padding, "command": "sudo true"}
    return claude.event("PreToolUse", tool_name="Bash", tool_input=given)


def denies(done) -> str:
    """Return the reason if an answer denies in Claude Code, by the exit code or by JSON; fail otherwise."""
    if done.returncode == 2:
        assert done.stderr.startswith(b"Hookline: ")
        return done.stderr.decode()
    assert done.returncode == 0
    answer = json.loads(done.stdout)["hookSpecificOutput"]
    assert answer["permissionDecision"] == "deny"
    return answer["permissionDecisionReason"]


def impostor(path: Path, program: str) -> subprocess.Popen:
    """Start a program that listens in place of the resident process; the socket is ``server``."""
    path.unlink(missing_ok=True)
    begin = "import os, socket, sys, time\nserver = socket.socket(socket.AF_UNIX)\nserver.bind(sys.argv[1])\n"
    process = subprocess.Popen([sys.executable, "-S", "-c", begin + program, str(path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"listening\n"
    return process


LISTEN = "server.listen()\nprint('listening', flush=True)\n"
ACCEPT = f"{LISTEN}connection, _ = server.accept()\n"


# What a call costs.


def test_a_call_loads_neither_the_installation_nor_what_is_slow(new):
    claude = new(NO_SUDO)
    assert claude.bash("sudo true") == "deny"
    command = [*LEAN[:3], "-X", "importtime", *LEAN[3:], "--agent", "claude", "rules.py"]
    done = subprocess.run(
        command, input=sudo(claude), cwd=claude.folder, env=claude.env(), capture_output=True, check=False
    )
    assert b'"deny"' in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    own = {"coding_agents", "coding_agents.options", "coding_agents.client"}
    assert own <= loaded
    assert {name for name in loaded if name.startswith(("coding_agents", "hookline"))} == own
    assert not loaded & {"site", "os", "socket", "json", "re", "__future__", "typing", "importlib", "hashlib"}


def test_no_adapter_takes_the_place_of_a_module_of_python():
    (package,) = coding_agents.__path__
    assert not {path.stem for path in Path(package).parent.iterdir()} & sys.stdlib_module_names


# The command in the settings.


@pytest.mark.parametrize("agent", AGENTS)
def test_the_printed_command_is_the_fast_one_and_denies(new, agent):
    claude = new(NO_SUDO, "--print-settings")
    claude.agent = agent
    settings = claude.call(b"").stdout.decode()
    if agent == "opencode":
        words = json.loads(settings.partition("COMMAND = ")[2].partition("\n")[0])
        assert words[:5] == LEAN
    else:
        settings = json.loads(settings)["hooks"]
        (entry,) = settings["preToolUse" if agent == "cursor" else "BeforeTool" if agent == "gemini" else "PreToolUse"]
        (entry,) = entry.get("hooks", [entry])
        command = entry.get("command", entry.get("bash"))
        assert command.startswith(" ".join(LEAN))
        words = ["sh", "-c", command]
    event = json.dumps(shell_event(agent, "sudo true")).encode()
    for _ in range(2):  # the first one starts the process
        done = subprocess.run(words, input=event, cwd="/", env=claude.env(), capture_output=True, check=False)
        assert b"No sudo." in done.stdout + done.stderr


def test_without_a_resident_process_the_printed_command_is_the_full_one(new):
    claude = new(NO_SUDO, "--once", "--print-settings")
    (entry,) = json.loads(claude.call(b"").stdout)["hooks"]["PreToolUse"]
    assert entry["hooks"][0]["command"].startswith(f"{sys.executable} -P {ENTRY} agent-hook --agent claude ")
    assert entry["hooks"][0]["command"].endswith(" --once")


# The full command takes over.


@pytest.mark.parametrize("change", ["the rules", "a cut answer", "no answer", "killed"])
def test_a_large_event_that_was_already_sent_is_judged_by_the_next_process(new, change):
    claude = new(NO_SUDO)
    assert claude.bash("sudo true") == "deny"
    (path,) = claude.sockets()
    (pid,) = claude.pids()
    server = None
    if change == "the rules":
        (claude.folder / "rules.py").write_text(NO_SUDO.replace("No sudo.", "Not at all."))
    else:
        os.kill(pid, signal.SIGKILL)
        answer = {"a cut answer": b"0 50 0\n{}", "no answer": b"", "killed": b""}[change]
        end = "os.unlink(sys.argv[1])\nwhile connection.recv(65536):\n    pass\n"
        end += "os._exit(1)" if change == "killed" else f"connection.sendall({answer!r})"
        server = impostor(path, ACCEPT + end)
    reason = denies(claude.call(sudo(claude, "x" * 5_000_000)))
    assert reason == ("Not at all." if change == "the rules" else "No sudo.")
    assert not [path for path in path.parent.iterdir() if path.suffix not in (".lock", ".log", ".sock", ".read")]
    if server is not None:
        server.communicate()


def test_the_full_command_gets_the_time_that_is_left(monkeypatch, tmp_path):
    begun = []

    def execve(program, words, environ):
        begun.append((program, words, float(environ[client.DEADLINE.encode()])))
        raise KeyboardInterrupt

    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(client.system, "execve", execve)
    monkeypatch.setattr(client.system, "_exit", end)
    monkeypatch.setattr(client, "_read_input", lambda data: data.extend(b"{}"))
    monkeypatch.setattr(client, "_write", lambda file, text: None)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    words = ["--agent", "codex", "rules.py", "--timeout", "7"]
    with pytest.raises(SystemExit) as ended:
        client.main(words)
    assert ended.value.code == 2
    assert begun == [(sys.executable, [sys.executable, "-P", ENTRY, "agent-hook", *words], 1007.0)]


@pytest.mark.parametrize("deadline", ["1", "soon"])
def test_no_time_left_is_a_denial(new, deadline):
    claude = new(NO_SUDO)
    own = claude.env()
    claude.env = lambda: {**own, client.DEADLINE: deadline}
    command = [sys.executable, "-P", ENTRY, *LEAN[4:], "--agent", "claude", "rules.py"]
    done = subprocess.run(
        command, input=sudo(claude), cwd=claude.folder, env=claude.env(), capture_output=True, check=False
    )
    assert done.returncode == 2
    denies(done)


def test_rules_do_not_see_how_much_time_is_left(new):
    claude = new(f"import os\nopen('seen', 'w').write(str(sorted(os.environ)))\n{NO_SUDO}")
    assert claude.bash("sudo true") == "deny"
    assert client.DEADLINE not in (claude.folder / "seen").read_text()


# Failure.


def test_an_installation_that_does_not_start_denies(new, tmp_path):
    claude = new(NO_SUDO)
    broken = tmp_path / "broken"
    (broken / "hookline").mkdir(parents=True)
    (broken / "hookline/__init__.py").write_text("raise ImportError('half of an installation')")
    own = claude.env()
    claude.env = lambda: {**own, "PYTHONPATH": str(broken)}
    done = claude.call(sudo(claude))
    assert (done.returncode, done.stdout) == (2, b"")
    assert "half of an installation" in denies(done)
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *LEAN, "--agent", "claude", "rules.py"]
    done = subprocess.run(
        command, input=b"{}", cwd=claude.folder, env=claude.env(), stdout=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_missing_installation_denies_without_a_word_of_hookline(tmp_path):
    done = subprocess.run(
        [*LEAN[:3], str(tmp_path / "entry.py"), "agent-hook"], input=b"{}", capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr


@pytest.mark.parametrize("moment", ["before the event", "before the answer"])
def test_an_interrupted_call_is_denied(new, moment):
    claude = new(NO_SUDO)
    assert claude.bash("sudo true") == "deny"
    (path,) = claude.sockets()
    (pid,) = claude.pids()
    os.kill(pid, signal.SIGKILL)
    read = "connection.recv(1)\n" if moment == "before the answer" else ""
    server = impostor(path, f"{ACCEPT}{read}print('called', flush=True)\ntime.sleep(600)")
    command = [*LEAN, "--agent", "claude", "rules.py"]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=claude.folder, env=claude.env(), **options) as process:
        event = sudo(claude)
        if moment == "before the answer":
            process.stdin.write(event)
            process.stdin.close()
            process.stdin = None
        assert server.stdout.readline() == b"called\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(event if process.stdin else None)
    server.kill()
    server.communicate()
    assert process.returncode == 2
    assert stderr.startswith(b"Hookline: KeyboardInterrupt")
    if moment == "before the answer":
        assert json.loads(stdout)["hookSpecificOutput"]["permissionDecision"] == "deny"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_a_call_with_closed_files_is_denied(new, agent, closed):
    claude = new(NO_SUDO)
    claude.agent = agent
    for _ in range(2):  # the first one starts the process
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", *LEAN, "--agent", agent, "rules.py"]
        event = json.dumps(shell_event(agent, "sudo true")).encode()
        done = subprocess.run(
            command, input=event, cwd=claude.folder, env=claude.env(), capture_output=True, check=False
        )
        assert done.returncode == 2
        claude.call(event)


def test_a_folder_that_is_a_link_is_not_used(new, tmp_path):
    claude = new(NO_SUDO)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (claude.runtime / "hookline").symlink_to(elsewhere)
    assert "that nobody else can enter" in denies(claude.call(sudo(claude)))
    assert not list(elsewhere.iterdir())


def test_a_file_at_the_place_of_the_folder_denies(new):
    claude = new(NO_SUDO)
    (claude.runtime / "hookline").touch(mode=0o600)
    assert "that nobody else can enter" in denies(claude.call(sudo(claude)))


@ONLY_ROOT
def test_a_folder_of_another_user_is_not_used(new):
    claude = new(NO_SUDO)
    (claude.runtime / "hookline").mkdir(mode=0o700)
    os.chown(claude.runtime / "hookline", NOBODY, NOBODY)
    assert "that nobody else can enter" in denies(claude.call(sudo(claude)))


@ONLY_ROOT
def test_the_answer_of_another_user_counts_for_nothing_and_he_gets_no_event(new):
    claude = new(NO_SUDO)
    assert claude.bash("sudo true") == "deny"
    (path,) = claude.sockets()
    (pid,) = claude.pids()
    os.kill(pid, signal.SIGKILL)
    program = f"os.setuid({NOBODY})\n{ACCEPT}print(connection.recv(1), flush=True)"
    server = impostor(path, program)
    assert "another user's program" in denies(claude.call(sudo(claude)))
    assert server.communicate()[0] == b"b''\n"


def test_a_process_that_hangs_is_ended_so_that_the_next_call_gets_another(new):
    claude = new(NO_SUDO, "--timeout", "3")
    assert claude.bash("sudo true") == "deny"
    (path,) = claude.sockets()
    (pid,) = claude.pids()
    os.kill(pid, signal.SIGKILL)
    server = impostor(path, f"{LISTEN}time.sleep(600)")
    assert "did not answer in time" in denies(claude.call(sudo(claude)))
    assert server.wait() == -signal.SIGKILL
    server.communicate()
    assert denies(claude.call(sudo(claude))) == "No sudo."


@pytest.mark.parametrize("missing", ["HOME", "PATH", "LANG"])
def test_a_call_needs_no_variables_of_a_login(new, missing):
    claude = new(NO_SUDO)
    own = {name: value for name, value in claude.env().items() if name not in (missing, "LC_ALL")}
    claude.env = lambda: own
    for _ in range(2):
        assert denies(claude.call(sudo(claude))) == "No sudo."


def test_names_that_are_no_text_keep_their_bytes():
    assert b"caf\xe9" in options.Options("codex", [os.fsdecode(b"/shop/caf\xe9.py")]).identity()


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("event", [shell_event, prompt_event])
def test_an_error_of_a_call_is_a_denial_in_the_form_of_each_agent(new, agent, event):
    claude = new(NO_SUDO)
    claude.agent = agent
    (claude.runtime / "hookline").mkdir(mode=0o755)
    (claude.runtime / "hookline").chmod(0o755)
    data = json.dumps(event(agent, "sudo true")).encode()
    problem = f"{claude.runtime}/hookline must be a folder of this user that nobody else can enter: remove it"
    done = claude.call(data)
    assert (done.stdout, done.stderr, done.returncode) == refusal(agent, "cli\0\0", data, problem)
    forms = (b'"deny"', b'"block"', b'"continue": false')
    assert done.returncode == 2 or any(form in done.stdout for form in forms)


@pytest.mark.parametrize("error", [NoAnswerError("no"), KeyboardInterrupt(), MemoryError(), OSError(28, "full")])
def test_an_error_without_an_agent_or_input_is_a_denial_that_all_agents_obey(monkeypatch, error):
    def broken(data):
        raise OSError("stdin")

    monkeypatch.setattr(client, "_read_input", broken)
    stdout, stderr, code = client.refuse("codex", bytearray(), error)
    assert (stdout, code) == (b"", 2)
    assert stderr.startswith(b"Hookline: ")


def test_the_user_behind_a_socket_is_read_on_macos_too(monkeypatch):
    class Connection:
        def getsockopt(self, level, name, size=None):
            assert level == 0
            return struct.pack("=IIh2x16I", 0, 501, 1, *[20] * 16) if (name, size) == (1, 76) else 4711

    monkeypatch.setattr(sys, "platform", "darwin")
    assert client._peer(Connection()) == (4711, 501)
    monkeypatch.setattr(sys, "platform", "freebsd14")
    assert client._peer(Connection()) == (0, os.getuid())


def test_the_environment_is_read_alike_with_and_without_os(monkeypatch):
    names = ("HOME", "PATH", "HOOKLINE_NOT_SET")
    with_os = [options.variable(name) for name in names]
    modules = {name: module for name, module in sys.modules.items() if name != "os"}
    monkeypatch.setattr(options, "sys", type("Sys", (), {**vars(sys), "modules": modules}))
    assert [options.variable(name) for name in names] == with_os
