"""The sandbox with real commands at both levels. Tests try forbidden actions, and check their effect from outside."""

import asyncio
import gc
import os
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hookline import Agent, RegistrationError, ScriptedModel, call, reply
from hookline._base.own_files import OwnFile, register_own_file
from hookline._toolbox import sandbox as module
from hookline._toolbox.sandbox import LEVELS, level_state
from hookline._toolbox.sandbox_canaries import run_canaries
from hookline.hooks import AuditLogHook
from hookline.stores import ArtifactStore, JsonSessionStore, MemoryStore, NotesFile, SkillStore
from hookline.stores.audit.keys import make_keys
from hookline.tape import TapeHook
from hookline.tools import Sandbox, file_tools, mcp, shell_tool

from ..ordinary_user import run_as_an_ordinary_user, run_python
from ..waiting import block_until

ROOT = Path(__file__).parents[2]
PYTHON = shlex.quote(os.path.realpath(sys.executable))
SYSCALL = (
    "import ctypes, os; number = {{'x86_64': 0, 'aarch64': 1}}[os.uname().machine]\n"
    "numbers = {{'io_uring_setup': (425, 425), 'keyctl': (250, 219), 'unshare': (272, 97)}}['{}']\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "if libc.syscall(numbers[number], {}) < 0: raise OSError(ctypes.get_errno(), 'denied')"
)


def need(level):
    if problem := level_state(level).problem:
        pytest.skip(f"{level}: {problem}")


@pytest.fixture(params=LEVELS)
def level(request):
    need(request.param)
    return request.param


@pytest.fixture
def bubblewrap():
    need("bubblewrap")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "work"
    made.mkdir()
    (made / "a.txt").write_text("one\n")
    return made


def run(folder, command, sandbox="auto", **options):
    """Return the result of the tool."""
    return asyncio.run(shell_tool(folder, sandbox=sandbox, **options)(command))


# --- What is kept in -------------------------------------------------------------------------------------------------


def test_no_attempt_gets_out_of_the_sandbox(level):
    results = list(run_canaries(level))
    assert len(results) == 11
    assert [result for result in results if not result.passed] == []


def test_without_a_sandbox_the_same_attempts_succeed():
    first, *others = run_canaries("off")
    assert first.passed
    assert [result for result in others if result.passed] == []


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="the other tests run as an ordinary user already")
def test_the_sandbox_holds_for_ordinary_users_too():
    code = "from hookline._toolbox.sandbox_canaries import run_canaries\n"
    code += (
        "for level in ('off', 'landlock', 'bubblewrap'): print(level, *[int(r.passed) for r in run_canaries(level)])"
    )
    done = run_python(["-P", "-c", code])
    held = " ".join("1" * 11)
    assert done.stdout.splitlines() == [f"off 1{' 0' * 10}", f"landlock {held}", f"bubblewrap {held}"], done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "cat ../secret/key",
        "cat $(echo ../secret/key)",
        "cd ..; cat secret/key",
        "eval 'cat ../secret/key'",
        "cp ../secret/key mine; cat mine",
        "ln ../secret/key mine; cat mine",
        "tar cf - ../secret | tar xOf -",
        "git diff --no-index /dev/null ../secret/key",
        "cat /proc/self/root{secret}",
        "cat /proc/self/cwd/../secret/key",
        "cat < ../secret/key",
        ". ../secret/key",
        f"{PYTHON} -c 'print(open(\"../secret/key\").read())'",
        "find .. -name key -exec cat {} +",
        "cat /etc/shadow",
        "unshare -rm cat {secret}",
        "mount --bind .. /mnt; cat /mnt/secret/key",
    ],
)
@pytest.mark.slow
def test_no_spelling_reads_a_secret(level, folder, command):
    secret = folder.parent / "secret" / "key"
    secret.parent.mkdir()
    secret.write_text("t0p-secret-token:$6$")
    output = run(folder, command.replace("{secret}", str(secret)), level)
    assert "t0p-secret" not in output
    assert "$6$" not in output


@pytest.mark.parametrize(
    "command",
    [
        "echo x > ../canary",
        "echo x | tee ../canary",
        "mv a.txt ../canary",
        "ln -s ../canary out; echo x > out",
        "mkdir ../canary",
        "cd / && cp {folder}/a.txt {folder}/../canary",
        f"{PYTHON} -c 'import os; os.mkfifo(\"../canary\")'",
        "echo x > /proc/self/root{folder}/../canary",
        "unshare -r touch {folder}/../canary",
        "(sleep 0.2; touch ../canary) & wait",
    ],
)
@pytest.mark.slow
def test_no_spelling_writes_outside(level, folder, command):
    before = set(folder.parent.iterdir())
    run(folder, command.replace("{folder}", str(folder)), level)
    assert set(folder.parent.iterdir()) == before


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.socket(socket.AF_VSOCK)",
        "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "import socket; socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
        SYSCALL.format("io_uring_setup", "8, ctypes.create_string_buffer(120)"),
        SYSCALL.format("keyctl", "0, -3, 1"),
        SYSCALL.format("unshare", "0x10000000"),
        "import os; os.setuid(12345)",
        "import os; os.chroot('.')",
        "open('/proc/sys/kernel/core_pattern', 'r+')",
        "import os; os.mknod('device', 0o60600, os.makedev(8, 0)); open('device')",
    ],
)
@pytest.mark.slow
def test_ways_around_the_sandbox_are_closed(level, folder, code):
    output = run(folder, f"{PYTHON} -c {shlex.quote(code)}", level)
    assert output.endswith("[exit code 1]")
    assert "Error: [Errno " in output


@pytest.mark.parametrize("function", ["shmget", "shmat", "shmctl", "semget", "semctl", "msgget", "msgctl"])
@pytest.mark.slow
def test_landlock_denies_memory_that_is_shared_with_others(folder, function):
    need("landlock")
    code = (
        f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.{function}(-1, 0, 0), ctypes.get_errno())"
    )
    assert run(folder, f"python -c {shlex.quote(code)}", "landlock") == "-1 1\n[exit code 0]"


@pytest.mark.parametrize("kind", ["SOCK_DGRAM", "SOCK_RAW"])
@pytest.mark.slow
def test_one_of_a_pair_of_sockets_cannot_send_to_another_program(level, folder, kind):
    path = folder.parent / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.setblocking(False)
        code = f"import socket; socket.socketpair(socket.AF_UNIX, socket.{kind})[0].sendto(b'x', {str(path)!r})"
        assert run(folder, f"{PYTHON} -c {shlex.quote(code)}", level).endswith("[exit code 1]")
        with pytest.raises(BlockingIOError):
            listening.recv(1)


@pytest.mark.slow
def test_a_command_cannot_change_the_limits_of_hookline(level, folder):
    before = resource.getrlimit(resource.RLIMIT_CORE)
    code = f"import resource; resource.prlimit({os.getpid()}, resource.RLIMIT_CORE, (0, {before[1]}))"
    assert run(folder, f"{PYTHON} -c {shlex.quote(code)}", level).endswith("[exit code 1]")
    assert run(folder, "ulimit -n 50 && ulimit -n", level) == "50\n[exit code 0]"


SCHEDULING = {
    "priority": "os.setpriority(os.PRIO_PROCESS, {pid}, 5)",
    "processors": "os.sched_setaffinity({pid}, os.sched_getaffinity({pid}))",
    "scheduler": "os.sched_setscheduler({pid}, os.SCHED_BATCH, os.sched_param(0))",
    "all priorities": "os.setpriority(os.PRIO_USER, 0, 5)",
}


@pytest.mark.parametrize("kind", SCHEDULING)
def test_a_command_slows_down_no_process_outside(level, folder, kind):
    """It may lower its own priority."""
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    run(folder, f"python -c 'import os; {SCHEDULING[kind].format(pid=os.getpid())}'", level)
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)) == before
    assert run(folder, "python -c 'import os; print(os.nice(5)); os.sched_setaffinity(0, [0])'", level).startswith("5")


def test_no_secret_of_the_environment_gets_in(level, folder, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setenv("HOME", "/home/of/the/user")
    output = run(folder, "env; cat /proc/[0-9]*/environ", level, env={"MINE": "1"})
    assert "sk-very-secret" not in output
    assert "/home/of/the/user" not in output
    assert "MINE=1" in output


@pytest.mark.slow
def test_root_has_no_capabilities_inside(level, folder):
    assert run(folder, "grep -c 'Cap[IPE].*0000000000000000' /proc/self/status", level) == "3\n[exit code 0]"


def test_processes_outside_are_invisible_with_bubblewrap(bubblewrap, folder):
    output = run(folder, f"ls /proc | grep -x {os.getpid()}; ls /proc | grep -c '^[0-9]'", "bubblewrap")
    assert int(output.split()[0]) < 10


# --- What is possible ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo hi", "hi\n[exit code 0]"),
        ("cat a.txt | tr o O && false || echo no; pwd | xargs basename", "One\nno\nwork\n[exit code 0]"),
        ("for x in 1 2; do echo $x; done", "1\n2\n[exit code 0]"),
        ('X=$(cat a.txt); echo "<$X>"', "<one>\n[exit code 0]"),
        ("cat <<END\n$((6 * 7))\nEND", "42\n[exit code 0]"),
        ("echo x > new && mv new b.txt && cp b.txt c.txt && rm b.txt && ls", "a.txt\nc.txt\n[exit code 0]"),
        ("ln a.txt hard; ln -s a.txt soft; cat hard soft; mkfifo pipe", "one\none\n[exit code 0]"),
        ("mkdir -p d/e && mv d/e . && ls -d e", "e\n[exit code 0]"),
        ("chmod +x a.txt && test -x a.txt", "[exit code 0]"),
        ("echo x > /dev/null; head -c 2 /dev/zero | wc -c; head -c 1 /dev/urandom | wc -c", "2\n1\n[exit code 0]"),
        ('echo x > "$TMPDIR/t" && cat "$TMPDIR/t"; echo y > ~/h; cat ~/h', "x\ny\n[exit code 0]"),
        ("mktemp > /dev/null", "[exit code 0]"),
        (
            "python -c 'import sys, msgspec, tempfile; tempfile.mkstemp(); print(sys.version_info[0])'",
            "3\n[exit code 0]",
        ),
        ("python -c 'import asyncio; asyncio.run(asyncio.sleep(0))'", "[exit code 0]"),
        ("git init -q . && git add a.txt && git commit -qm first && git log --format=%s", "first\n[exit code 0]"),
        ("cat", "[exit code 0]"),
        ("yes | head -1", "y\n[exit code 0]"),
        ("sh -c 'exit 7'", "[exit code 7]"),
        ("nosuchprogram 2> /dev/null", "[exit code 127]"),
        ("kill -TERM $$; sleep 9", "[exit code 143]"),
    ],
)
@pytest.mark.slow
def test_everyday_commands_work(level, folder, command, expected):
    output = run(folder, command, level)
    assert output.replace("[ended by signal 15, Terminated]", "[exit code 143]") == expected


def test_a_local_server_can_be_tested_with_bubblewrap(bubblewrap, folder):
    (folder / "serve.py").write_text(
        "import socket, threading\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "server.accept()[0].sendall(b'pong')\nprint(client.recv(9).decode())\n"
    )
    assert run(folder, "python serve.py", "bubblewrap") == "pong\n[exit code 0]"


def test_processes_can_share_memory_with_bubblewrap(bubblewrap, folder):
    code = "from multiprocessing import Pool\nif __name__ == '__main__':\n    print(Pool(2).map(abs, [-1, -2]))\n"
    (folder / "pool.py").write_text(code)
    assert run(folder, "python pool.py", "bubblewrap") == "[1, 2]\n[exit code 0]"


def test_a_read_only_sandbox_writes_nothing(level, folder):
    output = run(
        folder,
        "cat a.txt; echo x > new; echo x >> a.txt; rm a.txt; echo x > ~/mine && cat ~/mine",
        Sandbox(level, write=False),
    )
    assert output.startswith("one\n")
    assert output.endswith("x\n[exit code 0]")
    assert os.listdir(folder) == ["a.txt"]
    assert (folder / "a.txt").read_text() == "one\n"


@pytest.mark.slow
def test_further_folders_may_be_read_or_written(level, folder, tmp_path):
    for name in ("library", "results", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"{name}\n")
    sandbox = Sandbox(level, readable=[tmp_path / "library"], writable=[tmp_path / "results"])
    command = "cat ../library/file ../results/file; echo x > ../library/new; echo x > ../results/new; cat ../other/file"
    output = run(folder, command, sandbox)
    assert output.startswith("library\nresults\n")
    assert "other\n" not in output
    assert os.listdir(tmp_path / "library") == ["file"]
    assert sorted(os.listdir(tmp_path / "results")) == ["file", "new"]


@pytest.mark.slow
def test_pytest_finds_the_plugin_of_a_hookline_that_is_installed_from_its_sources(level, folder):
    sources = str(Path(module.__file__).parents[2])  # where `pip install -e` leads to, outside the environment
    (folder / "test_a.py").write_text("def test_a(): pass\n")
    tool = shell_tool(folder, sandbox=level, env={"PYTHONPATH": sources})
    output = asyncio.run(tool("python -m pytest -q -p no:cacheprovider test_a.py; echo x > $PYTHONPATH/hookline/new"))
    assert "1 passed" in output
    assert not (Path(sources) / "hookline" / "new").exists()


@pytest.mark.slow
def test_the_folder_may_be_inside_a_folder_of_the_system(level, folder, monkeypatch):
    monkeypatch.setattr(module, "_SYSTEM", (*module._SYSTEM, str(folder.parent)))  # such as /usr/src/app in /usr
    assert run(folder, "echo x > new; echo x > ../new; cat a.txt", level).endswith("one\n[exit code 0]")
    assert (folder / "new").exists()
    assert not (folder.parent / "new").exists()


@pytest.mark.slow
def test_a_link_in_the_place_of_a_further_folder_opens_nothing(level, folder, tmp_path):
    (folder / "out").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("other\n")
    tool = shell_tool(folder, sandbox=Sandbox(level, writable=[folder / "out"], readable=[folder / "a.txt"]))
    asyncio.run(tool("rm -rf out a.txt; ln -s ../other out; ln -s ../other/file a.txt"))
    output = asyncio.run(tool("cat a.txt out/file; echo x > out/new"))
    assert "other\n" not in output
    assert os.listdir(tmp_path / "other") == ["file"]


@pytest.mark.slow
def test_calls_share_a_home_that_ends_with_the_tool(level, folder):
    tool = shell_tool(folder, sandbox=level)
    home = asyncio.run(tool("echo kept > ~/note; echo ~")).splitlines()[0]
    assert asyncio.run(tool("cat ~/note")) == "kept\n[exit code 0]"
    assert Path(home).is_dir()
    del tool
    block_until(lambda: gc.collect() >= 0 and not Path(home).parent.exists())


def test_the_home_ends_with_the_process(bubblewrap, folder):
    code = f"{USE}\ntool = shell_tool('work')\nprint(asyncio.run(tool('echo ~')))"
    home = Path(in_new_process(folder.parent, code).splitlines()[0])
    assert home.name == "home"
    assert not home.parent.exists()


@pytest.mark.slow
def test_many_commands_run_at_once(level, folder):
    turns = [[call("shell", command=f"sleep 0.1; echo {n}") for n in range(6)], reply("ok")]
    result = Agent("a", llm=ScriptedModel(turns), tools=[shell_tool(folder, sandbox=level)]).run("go")
    assert [message.content for message in result.messages[2:8]] == [f"{n}\n[exit code 0]" for n in range(6)]


def test_the_tool_says_in_which_sandbox_it_runs(level, folder):
    tool = shell_tool(folder, sandbox=level)
    assert (tool.sandbox, tool.dangerous, tool.untrusted) == (level, True, True)
    assert "sandbox" in tool.spec.description


@pytest.mark.parametrize("command", ["", "  ", "a\0b", "a \ud800", "x" * 200_000])
def test_a_command_that_cannot_run_is_an_error(folder, command):
    with pytest.raises(ValueError, match="empty|U\\+|characters"):
        run(folder, command)


# --- Limits and processes --------------------------------------------------------------------------------------------


def test_one_process_cannot_allocate_too_much(level, folder):
    output = run(folder, "python -c 'bytearray(400_000_000)'", Sandbox(level, memory=200_000_000))
    assert "MemoryError" in output


@pytest.mark.slow
def test_processes_together_cannot_use_too_much(level, folder):
    code = "import time; x = b'x' * 60_000_000; time.sleep(60)"
    command = f"for n in 1 2 3 4 5; do python -c {shlex.quote(code)} & done; wait"
    assert run(folder, command, Sandbox(level, memory=200_000_000)).endswith("used more than 200 MB of memory]")


IN_MEMORY = {
    "memfd": "f = open(os.memfd_create('x'), 'wb', 0)",
    "shm": "f = open('/dev/shm/x', 'wb', 0)",
}


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_files_in_memory_count(bubblewrap, folder, kind):
    code = f"import os, time; {IN_MEMORY[kind]}; f.write(bytes(90_000_000)); f.write(bytes(90_000_000)); time.sleep(60)"
    command = f"python -c {shlex.quote(code)}"
    output = run(folder, command, Sandbox("bubblewrap", memory=150_000_000))
    assert "used more than 150 MB of memory" in output or "No space left on device" in output


@pytest.mark.parametrize("how", ["prctl", "an unreadable program"])
def test_a_process_that_hides_its_open_files_uses_no_memory_uncounted(level, folder, how):
    hide = "ctypes.CDLL(None).prctl(4, 0)" if how == "prctl" else "0"
    write = "f = open(os.memfd_create('x'), 'wb', 0); f.write(bytes(90_000_000)); f.write(bytes(90_000_000))"
    code = f"import ctypes, os, time; {hide}; {write}; time.sleep(60)"
    program = PYTHON if how == "prctl" else f"cp {PYTHON} ./py; chmod 111 py; ./py"
    output = run(folder, f"{program} -c {shlex.quote(code)}", Sandbox(level, memory=150_000_000))
    assert "used more than 150 MB of memory" in output or "so its memory cannot be counted" in output


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="the tests above run as an ordinary user already")
def test_memory_of_ordinary_users_is_counted_too():
    done = run_as_an_ordinary_user(__file__, "hides_its_open_files")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[100%]" in done.stdout


UNCOUNTED = {
    "memfd_secret": "libc.syscall(447, 0)",
    "a large System V segment": "libc.shmget(0, ctypes.c_size_t(4097), 0o1600)",
    "a huge System V segment": "libc.shmget(0, ctypes.c_size_t(2**32), 0o1600)",
    "a System V queue": "libc.msgget(0, 0o1600)",
}


@pytest.mark.parametrize("kind", UNCOUNTED)
def test_memory_that_could_not_be_counted_is_denied(level, folder, kind):
    code = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print({UNCOUNTED[kind]}, ctypes.get_errno())"
    assert run(folder, f"python -c {shlex.quote(code)}", level) == "-1 1\n[exit code 0]"


def test_a_small_system_v_segment_as_postgresql_uses_is_allowed_with_bubblewrap(bubblewrap, folder):
    code = "import ctypes; print(ctypes.CDLL(None).shmget(0, ctypes.c_size_t(56), 0o1600) >= 0)"
    assert run(folder, f"python -c {shlex.quote(code)}", "bubblewrap") == "True\n[exit code 0]"


def test_files_that_run_with_the_rights_of_their_owner_cannot_be_made(level, folder):
    code = """if True:
        import os
        open('own', 'w').close()
        for attempt in (
            lambda: os.chmod('own', 0o4755), lambda: os.chmod('own', 0o2755),
            lambda: os.fchmod(os.open('own', 0), 0o4755), lambda: os.chmod('own', 0o4755, dir_fd=os.open('.', 0)),
            lambda: os.open('new', os.O_CREAT | os.O_RDWR, 0o4755), lambda: os.mknod('new', 0o104755),
            lambda: os.open('.', os.O_TMPFILE | os.O_RDWR, 0o4755),
        ):
            try:
                attempt()
                print('made')
            except PermissionError:
                print('refused')
        os.chmod('own', 0o1755)
        print(open('own', 'w').write('x'), oct(os.stat('own').st_mode))
    """
    output = run(folder, f"python -c {shlex.quote(code)}; cp own other; mkdir -m 755 sub; chmod u+s own", level)
    assert output.split("\n")[:8] == [*["refused"] * 7, "1 0o101755"]
    assert "chmod" in output
    assert [name for name in ("own", "other") if (folder / name).stat().st_mode & 0o6000] == []


@pytest.mark.slow
def test_a_process_that_always_becomes_another_one_ends_with_the_command(level, folder):
    code = """if True:
        import os, time
        os.setsid()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
            os.setsid()
            with open('alive', 'w') as file:
                file.write(str(time.monotonic()))
    """
    for _ in range(3):
        command = f"python -c {shlex.quote(code)} & sleep 600"
        seconds = 4
        while not (folder / "alive").exists():  # on a busy machine, the program may begin later
            assert "took too long" in asyncio.run(shell_tool(folder, sandbox=level, timeout=seconds)(command))
            seconds *= 2
        before = (folder / "alive").read_text()
        time.sleep(0.5)
        assert (folder / "alive").read_text() == before
        (folder / "alive").unlink()


def test_too_many_processes_are_stopped(level, folder):
    output = run(folder, "for n in $(seq 50); do sleep 60 & done; wait", Sandbox(level, processes=20))
    assert output == "[stopped because it started more than 20 processes]"


def test_a_file_cannot_grow_too_large(level, folder):
    run(folder, "head -c 5000000 /dev/zero > big", Sandbox(level, file_size=1_000_000))
    assert (folder / "big").stat().st_size == 1_000_000


HIDE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # a daemon: no parent, its own session, and no mark in its environment
        code = "import time; open('hidden', 'w'); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-c", code, sys.argv[1]], {})
    os._exit(0)
while not os.path.exists("hidden"):
    time.sleep(0.01)
time.sleep(float(sys.argv[2]))
"""


def processes_with(word):
    """Return the running processes that have this word on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (path / "cmdline").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("end", ["done", "timeout", "cancel"])
@pytest.mark.slow
def test_no_process_is_left_behind_however_it_hides(level, folder, end):
    (folder / "hide.py").write_text(HIDE)
    word = f"canary-{os.urandom(8).hex()}"
    seconds = 0.1 if end == "done" else 600
    tool = shell_tool(folder, sandbox=level, timeout=2 if end == "timeout" else 60)

    async def go():
        task = asyncio.ensure_future(tool(f"{PYTHON} hide.py {word} {seconds}; echo end"))
        if end == "cancel":
            await asyncio.to_thread(block_until, (folder / "hidden").exists)
            assert processes_with(word)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return "cancelled"
        return await task

    output = asyncio.run(go())
    assert output == {"done": "end\n[exit code 0]", "cancel": "cancelled"}.get(end, output)
    assert (folder / "hidden").exists()
    block_until(lambda: not processes_with(word))


def test_no_process_is_left_behind_if_hookline_is_killed(level, folder):
    (folder / "hide.py").write_text(HIDE)
    word = f"canary-{os.urandom(8).hex()}"
    command = f"{PYTHON} hide.py {word} 600"
    code = (
        "import asyncio\nfrom hookline.tools import shell_tool\n"
        f"asyncio.run(shell_tool({str(folder)!r}, sandbox={level!r})({command!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as program:
        block_until((folder / "hidden").exists)
        assert processes_with(word)
        program.kill()
    block_until(lambda: not processes_with(word))


# --- Hookline's own files --------------------------------------------------------------------------------------------


class Owner:
    """Something that uses a file."""


def uses(path, **about):
    owner = Owner()
    register_own_file(owner, OwnFile(str(path), "a file of the test", **about))
    return owner


def test_landlock_refuses_a_folder_with_a_file_of_hookline(folder):
    need("landlock")
    config = folder / "hookline.toml"
    config.write_text("")
    owner = uses(config)
    with pytest.raises(RegistrationError, match=r"hookline.toml is a file of the test.*another folder") as caught:
        shell_tool(folder, sandbox="landlock")
    assert "install bubblewrap" in str(caught.value)
    shell_tool(folder, sandbox=Sandbox("landlock", write=False))
    del owner
    shell_tool(folder, sandbox="landlock")


@pytest.mark.parametrize(
    "command",
    [
        "echo x >> conf/hookline.toml",
        "rm -f conf/hookline.toml",
        "mv conf/hookline.toml other",
        "echo x > new; mv new conf/hookline.toml",
        "mv conf old; mkdir conf; echo x > conf/hookline.toml",
        "rm -rf conf",
        "ln conf/hookline.toml hard; echo x > hard",
        "ln -s conf/hookline.toml soft; echo x > soft",
        "chmod 777 conf/hookline.toml; touch -d 2000-01-01 conf/hookline.toml",
        "truncate -s 0 conf/hookline.toml",
        "umount conf/hookline.toml; echo x > conf/hookline.toml",
        "unshare -rm umount conf/hookline.toml; echo x > conf/hookline.toml",
    ],
)
@pytest.mark.slow
def test_with_bubblewrap_a_file_of_hookline_cannot_be_changed_or_replaced(bubblewrap, folder, command):
    config = folder / "conf" / "hookline.toml"
    config.parent.mkdir()
    config.write_text("shell = true\n")
    before = config.stat()
    owner = uses(config)
    run(folder, command, "bubblewrap")
    assert config.read_text() == "shell = true\n"
    assert (config.stat().st_mode, config.stat().st_mtime) == (before.st_mode, before.st_mtime)
    assert run(folder, "cat conf/hookline.toml; echo x > conf/new; ls conf", "bubblewrap").startswith(
        "shell = true\nhook"
    )
    assert (folder / "conf" / "new").exists()
    del owner


STORES = {
    "database": lambda folder: MemoryStore(folder / "data" / "memory.db"),
    "sessions": lambda folder: JsonSessionStore(folder / "data"),
    "artifacts": lambda folder: ArtifactStore(folder / "data"),
    "skills": lambda folder: SkillStore(folder / "data"),
    "notes": lambda folder: NotesFile(folder / "data" / "notes.md"),
    "audit": lambda folder: AuditLogHook(folder / "data" / "audit.jsonl"),
    "tape": lambda folder: TapeHook(folder / "data" / "run.tape"),
}


@pytest.mark.parametrize("kind", STORES)
def test_the_folder_of_a_store_is_read_only(bubblewrap, folder, kind):
    store = STORES[kind](folder)
    run(folder, "echo x > data/memory.db-wal; echo x > data/planted.json; mv data old", "bubblewrap")
    assert os.listdir(folder / "data") == []
    with pytest.raises(RegistrationError, match="Hookline's"):
        shell_tool(folder, sandbox="landlock")
    del store


@pytest.mark.parametrize("kind", ["stored data", "audit log"])
def test_files_of_keys_are_read_only(bubblewrap, folder, kind, monkeypatch):
    path = folder / "keys"
    log = None
    if kind == "stored data":
        path.write_text("a key")
        monkeypatch.setenv("HOOKLINE_DATA_KEY_FILE", str(path))
    else:
        make_keys(path)
        log = AuditLogHook(folder.parent / "audit.jsonl", sign=path)
    before = path.read_bytes()
    run(folder, "echo x > keys; rm -f keys; mv keys other", "bubblewrap")
    (write,) = (tool for tool in file_tools(folder, write=True) if tool.name == "write_file")
    with pytest.raises((OSError, ValueError), match="key"):
        write("keys", "x")
    assert path.read_bytes() == before
    with pytest.raises(RegistrationError, match="key"):
        shell_tool(folder, sandbox="landlock")
    del log


def test_the_script_of_an_mcp_server_and_what_it_could_import_are_read_only(bubblewrap, folder):
    (folder / "servers").mkdir()
    script = folder / "servers" / "server.py"
    script.write_text("")
    server = mcp(f"{PYTHON} {script}")
    run(
        folder,
        "echo x > servers/server.py; rm -f servers/server.py; echo x > servers/json.py; echo x > free",
        "bubblewrap",
    )
    assert script.read_text() == ""
    assert not (folder / "servers" / "json.py").exists()
    assert (folder / "free").exists()
    del server


def test_a_folder_from_which_an_mcp_server_imports_is_refused(bubblewrap, folder):
    (folder / "server.py").write_text("")
    server = mcp(f"{PYTHON} {folder / 'server.py'}")
    with pytest.raises(RegistrationError, match="from which the MCP server .* imports code"):
        shell_tool(folder, sandbox="bubblewrap")
    del server


def test_a_store_directly_in_the_folder_is_refused(bubblewrap, folder):
    store = MemoryStore(folder / "memory.db")
    with pytest.raises(RegistrationError, match=r"store of .*subfolder"):
        shell_tool(folder, sandbox="bubblewrap")
    del store


@pytest.mark.parametrize("link", ["hookline.toml", "conf"])
def test_a_link_to_a_file_of_hookline_is_refused(bubblewrap, folder, link):
    (folder / "real").mkdir()
    (folder / "real" / "hookline.toml").write_text("")
    (folder / link).symlink_to("real" if link == "conf" else "real/hookline.toml")
    owner = uses(folder / link / "hookline.toml" if link == "conf" else folder / link)
    with pytest.raises(RegistrationError, match="a link to a file of the test"):
        shell_tool(folder, sandbox="bubblewrap")
    del owner


def test_a_file_of_hookline_with_a_second_name_is_refused(bubblewrap, folder):
    (folder / "conf").mkdir()
    config = folder / "conf" / "hookline.toml"
    config.write_text("")
    tool = shell_tool(folder, sandbox="bubblewrap")
    asyncio.run(tool("ln conf/hookline.toml other"))
    owner = uses(config)
    with pytest.raises(RegistrationError, match="a second name"):
        asyncio.run(tool("echo x > other"))
    assert config.read_text() == ""
    del owner


def test_a_file_that_is_used_later_is_protected_too(bubblewrap, folder):
    tool = shell_tool(folder, sandbox="bubblewrap")
    (folder / "late.toml").write_text("mine")
    owner = uses(folder / "late.toml")
    asyncio.run(tool("echo x > late.toml"))
    assert (folder / "late.toml").read_text() == "mine"
    del owner


def in_new_process(folder, code, *options):
    """Run Python code in a new process, which can import hookline."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-P", *options, "-c", code]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


USE = """
import asyncio, sys
from hookline.tools import shell_tool
def go(command):
    print(asyncio.run(shell_tool("work", sandbox="bubblewrap")(command)))
"""


def test_loaded_code_and_its_folder_are_read_only(bubblewrap, folder):
    (folder / "rules").mkdir()
    (folder / "rules" / "mine.py").write_text("x = 1\n")
    code = f"{USE}\nsys.path.append('work/rules'); import mine; sys.path.pop()\n"
    code += "go('echo x > rules/mine.py; mkdir rules/mine; echo x > rules/other.py; echo ok > free; ls rules')"
    output = in_new_process(folder.parent, code)
    assert (folder / "rules" / "mine.py").read_text() == "x = 1\n"
    assert set(os.listdir(folder / "rules")) <= {"mine.py", "__pycache__"}
    assert (folder / "free").read_text() == "ok\n", output


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        ("sys.path.append('work')", "sys.path"),
        (
            "sys.path.append('work'); import mine; sys.path.pop()",
            "the folder from which this program has imported mine",
        ),
    ],
)
def test_a_folder_from_which_code_is_imported_is_refused(bubblewrap, folder, prepare, says):
    (folder / "mine.py").write_text("x = 1\n")
    assert says in in_new_process(folder.parent, f"{USE}\n{prepare}\ngo('true')")


def test_an_environment_of_python_that_is_in_use_is_read_only(bubblewrap, folder):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    packages = os.path.dirname(os.path.dirname(sys.modules["msgspec"].__file__))
    (next((folder / ".venv").glob("lib/*/site-packages")) / "more.pth").write_text(f"{packages}\n{ROOT / 'src'}\n")
    attempts = "for d in $(find .venv -type d); do echo x > $d/planted; done; mv .venv old; mv .venv/lib .venv/old"
    code = f"{USE}\ngo('{attempts}; echo ok > free')"
    command = [folder / ".venv" / "bin" / "python", "-P", "-c", code]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, check=False)
    assert (folder / "free").exists(), done.stdout + done.stderr
    assert list((folder / ".venv").rglob("planted")) == []
    assert (folder / ".venv" / "lib").is_dir()


@pytest.mark.slow
def test_the_programs_that_git_runs_later_cannot_be_planted(bubblewrap, folder):
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / ".git" / "hooks").mkdir(exist_ok=True)
    config = (folder / ".git" / "config").read_text()
    command = (
        "git config core.fsmonitor evil; echo x > .git/hooks/pre-commit; mv .git old; git add a.txt && git commit -qm m"
    )
    assert run(folder, command, "bubblewrap").endswith("[exit code 0]")
    assert (folder / ".git" / "config").read_text() == config
    assert not (folder / ".git" / "hooks" / "pre-commit").exists()
    module = folder / ".git" / "modules" / "part" / "config"
    module.parent.mkdir(parents=True)
    module.write_text("[core]\n")
    run(folder, "echo x > .git/modules/part/config; mv .git/modules old", "bubblewrap")
    assert module.read_text() == "[core]\n"


# --- Hosts -----------------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):  # noqa: N802
        self.server.asked.append((self.path, self.headers["Host"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"served\n")

    def do_POST(self):  # noqa: N802
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, body.decode()))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def servers():
    made = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    for server in made:
        server.asked = []
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield made
    for server in made:
        server.shutdown()
        server.server_close()


curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
FETCH = "python -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())'"


@pytest.mark.parametrize("client", [pytest.param("curl -sS", marks=curl), FETCH])
def test_only_listed_hosts_are_reached(bubblewrap, folder, servers, client):
    listed, other = servers
    sandbox = Sandbox("bubblewrap", hosts=[f"http://127.0.0.1:{listed.server_port}"])
    good, bad = (f"{client} http://127.0.0.1:{server.server_port}/page?q=1" for server in servers)
    assert "served" in run(folder, good, sandbox)
    assert listed.asked == [("/page?q=1", f"127.0.0.1:{listed.server_port}")]
    refused = run(folder, bad, sandbox)
    assert "served" not in refused
    assert "403" in refused or "port" in refused
    assert other.asked == []


@curl
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("curl -sS -p http://127.0.0.1:{other}/", "CONNECT tunnel failed, response 403"),
        ("curl -sS https://evil.example/", "403"),
        ("curl -sS http://evil.example/", "evil.example is not one of the allowed hosts"),
        ("curl -sS --noproxy '*' http://127.0.0.1:{listed}/", "(7)"),
        ("curl -sS --noproxy '*' http://evil.example/", "(6)"),
        ("printf 'GARBAGE\\r\\n\\r\\n' | python -c '{raw}'", "400"),
        ("printf 'GET /relative HTTP/1.1\\r\\n\\r\\n' | python -c '{raw}'", "403"),
        (
            "printf 'POST http://127.0.0.1:{listed}/ HTTP/1.1\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n'"
            " | python -c '{raw}'",
            "411",
        ),
    ],
)
@pytest.mark.slow
def test_the_proxy_refuses_everything_else(bubblewrap, folder, servers, command, says):
    listed, other = servers
    raw = 'import socket, sys; s = socket.create_connection(("127.0.0.1", 3128)); '
    raw += "s.sendall(sys.stdin.buffer.read()); print(s.recv(99))"
    command = (
        command.replace("{raw}", raw)
        .replace("{listed}", str(listed.server_port))
        .replace("{other}", str(other.server_port))
    )
    assert says in run(folder, command, Sandbox("bubblewrap", hosts=[f"http://127.0.0.1:{listed.server_port}"]))
    assert (listed.asked, other.asked) == ([], [])


@pytest.mark.slow
def test_a_second_request_on_the_connection_is_not_passed_on(bubblewrap, folder, servers):
    listed, _ = servers
    port = listed.server_port
    (folder / "two.py").write_text(
        "import socket\ns = socket.create_connection(('127.0.0.1', 3128))\n"
        f"one = b'POST http://127.0.0.1:{port}/one HTTP/1.1\\r\\nHost: evil\\r\\nContent-Length: 2\\r\\n\\r\\nhi'\n"
        f"two = b'GET /two HTTP/1.1\\r\\nHost: hidden.example\\r\\n\\r\\n'\n"
        "s.sendall(one + two)\nwhile s.recv(999): pass\n"
    )
    assert run(folder, "python two.py", Sandbox("bubblewrap", hosts=[f"http://127.0.0.1:{port}"])).endswith("code 0]")
    assert listed.asked == [("/one", "hi")]


def test_a_listed_name_with_a_private_address_is_refused(bubblewrap, folder, servers, monkeypatch):
    import socket

    look_up = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *a, **k: look_up("127.0.0.1" if host == "rebound.example" else host, *a, **k),
    )
    name = f"http://rebound.example:{servers[0].server_port}"
    output = run(folder, f"{FETCH} {name}/", Sandbox("bubblewrap", hosts=[name]))
    assert "403" in output
    assert servers[0].asked == []


def test_hosts_need_bubblewrap():
    with pytest.raises(RegistrationError, match="hosts= needs the level 'bubblewrap'"):
        shell_tool(".", sandbox=Sandbox("landlock", hosts=["example.com"]))


# --- Availability and options ----------------------------------------------------------------------------------------


@pytest.fixture
def fresh_checks():
    checks = (level_state, module._landlock_version, module._bubblewrap_program)
    for check in checks:
        check.cache_clear()
    yield
    for check in checks:
        check.cache_clear()


def test_a_missing_level_is_an_error_that_says_what_to_install(fresh_checks, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RegistrationError, match=r"bwrap is missing: install it .*'hookline doctor'.*sandbox='off'"):
        shell_tool(folder, sandbox="bubblewrap")


def test_auto_falls_back_to_landlock(fresh_checks, folder, tmp_path, monkeypatch):
    need("landlock")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shell_tool(folder).sandbox == "landlock"


def test_a_bubblewrap_that_fails_is_not_used(fresh_checks, folder, tmp_path, monkeypatch):
    need("landlock")
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'No permissions to create a new namespace' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert shell_tool(folder).sandbox == "landlock"
    with pytest.raises(RegistrationError, match=r"No permissions.*user namespaces"):
        shell_tool(folder, sandbox="bubblewrap")


@pytest.mark.parametrize(("version", "says"), [(0, "has no Landlock"), (5, "version 5 .* 6 is needed")])
def test_an_old_kernel_is_an_error(fresh_checks, folder, monkeypatch, version, says):
    monkeypatch.setattr(module, "_landlock_version", lambda: version)
    with pytest.raises(RegistrationError, match=says):
        shell_tool(folder, sandbox="landlock")
    monkeypatch.undo()


@pytest.mark.parametrize(
    "options",
    [
        {"level": "off"},
        {"level": "docker"},
        {"write": 1},
        {"writable": "work"},
        {"writable": ["/no/such/folder"]},
        {"writable": [__file__]},
        {"readable": ["/no/such/file"]},
        {"readable": [5]},
        {"hosts": "example.com"},
        {"hosts": ["not a host"]},
        {"memory": 5},
        {"memory": "4G"},
        {"processes": 0},
        {"processes": True},
        {"file_size": -1},
    ],
)
def test_invalid_options_are_rejected(options):
    with pytest.raises(RegistrationError):
        Sandbox(**options)


def test_the_whole_machine_cannot_be_writable(folder):
    with pytest.raises(RegistrationError, match="'/'"):
        shell_tool("/", sandbox=Sandbox())
