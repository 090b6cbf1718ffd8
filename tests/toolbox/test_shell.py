"""The shell tool without a sandbox, with real processes, none of which may be left behind."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hookline import Agent, RegistrationError, ScriptedModel, call, reply
from hookline._toolbox import processes
from hookline.events import ToolProgressed
from hookline.testing import EventLog
from hookline.tools import shell_tool

from ..waiting import block_until


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "work"
    (made / "sub").mkdir(parents=True)
    (made / "a.txt").write_text("one\n")
    (made / "b.txt").write_text("two\n")
    (made / "-n").write_text("")
    return made


def run(folder, command, **options):
    """Return the result of the tool."""
    return asyncio.run(shell_tool(folder, sandbox="off", **options)(command))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the process may end meanwhile
        return False


def pids_in(folder, count):
    """Return the process ids that a script wrote, once all are there."""
    file = folder / "pids"
    block_until(lambda: file.exists() and len(file.read_text().split()) == count)
    return [int(pid) for pid in file.read_text().split()]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo hi", "hi\n[exit code 0]"),
        ("printf hi", "hi\n[exit code 0]"),
        ("true", "[exit code 0]"),
        ("false", "[exit code 1]"),
        ("! false", "[exit code 0]"),
        ("cat a.txt b.txt | sort -r | head -1", "two\n[exit code 0]"),
        ("false && echo no || echo yes; echo end", "yes\nend\n[exit code 0]"),
        ("true || echo no && echo yes", "yes\n[exit code 0]"),
        ("cat < a.txt", "one\n[exit code 0]"),
        ("cat nothing 2>&1 | wc -l", "1\n[exit code 0]"),
        ("cat nothing 2>/dev/null", "[exit code 1]"),
        ("cat nothing 2>/dev/null || echo none", "none\n[exit code 0]"),
        ("echo x > /dev/null", "[exit code 0]"),
        ("echo c > new; echo d >> new; cat new", "c\nd\n[exit code 0]"),
        ("> new; wc -c new", "0 new\n[exit code 0]"),
        ("cd sub && pwd | xargs basename; cd ..; ls a.txt", "sub\na.txt\n[exit code 0]"),
        ("cd nothing && echo no", "cd: no such folder: 'nothing'\n[exit code 1]"),
        ("echo *.txt", "a.txt b.txt\n[exit code 0]"),
        ("echo *", "./-n a.txt b.txt sub\n[exit code 0]"),
        ("echo '*' \\* *.none [ab].txt", "* * *.none a.txt b.txt\n[exit code 0]"),
        ("echo 'two  words' \"$\"", "two  words $\n[exit code 0]"),
        ("X=5 sh -c 'echo $X'", "5\n[exit code 0]"),
        ("nosuchprogram", "nosuchprogram: program not found\n[exit code 127]"),
        ("./a.txt", "{folder}/./a.txt: Permission denied\n[exit code 126]"),
        ("cat a.txt > sub/no/x", "{folder}/sub/no/x: No such file or directory\n[exit code 126]"),
        ("sh -c 'kill -TERM $$'", "[ended by signal 15, Terminated]"),
        ("sh -c 'exit 7'", "[exit code 7]"),
        ("cat", "[exit code 0]"),
        ("printf 'a\\377b'", "a\ufffdb\n[exit code 0]"),
        ("printf 'a\\000b'", "a\ufffdb\n[exit code 0]"),
    ],
)
def test_a_command_line_runs_without_a_shell(folder, command, expected):
    assert run(folder, command) == expected.replace("{folder}", str(folder))


@pytest.mark.parametrize("stream", ["/dev/stdout", "/dev/stderr", "/dev/fd/1", "/proc/self/fd/2", "/dev/../dev/stdout"])
def test_a_redirect_to_a_stream_is_that_of_the_command_and_not_the_users_terminal(folder, capfd, stream):
    assert run(folder, f"echo x > {stream}") == "x\n[exit code 0]"
    assert run(folder, f"echo x >> {stream}") == "x\n[exit code 0]"
    assert capfd.readouterr() == ("", "")


def test_a_redirect_from_standard_input_does_not_read_what_the_user_types(folder):
    code = (
        "import asyncio, sys; from hookline.tools import shell_tool\n"
        "print(asyncio.run(shell_tool(sys.argv[1], sandbox='off')('cat < /dev/stdin')))"
    )
    words = [sys.executable, "-c", code, folder]
    done = subprocess.run(words, input="typed\n", capture_output=True, text=True, check=True)
    assert done.stdout == "[exit code 0]\n"


def test_a_tilde_is_the_home_folder_of_the_environment(folder):
    assert run(folder, "echo ~ ~/x '~'", env={"HOME": "/h"}) == "/h /h/x ~\n[exit code 0]"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("echo $HOME", "write the value itself"),
        ("echo $(id)", "separately first"),
        ("sleep 9 &", "background"),
        ("for x in y; do z; done", "without loops"),
        ("cat {a,b}.txt", "braces"),
        ("cat <<X", "pipe the text in"),
        ("cd sub | ls", "cd FOLDER &&"),
        ("echo x > *.txt", "one file"),
        ("ls ~root", "write the path"),
        ("", "empty"),
        ("a \ud800", "D800"),
        ("a\0b", "0000"),
    ],
)
def test_an_unsupported_command_says_what_to_write_instead(folder, command, says):
    with pytest.raises(ValueError, match=says):
        run(folder, command)


def test_a_real_shell_is_used_only_with_the_option(folder):
    loop = "for x in 1 2; do echo $x; done"
    with pytest.raises(ValueError, match="loops"):
        run(folder, loop)
    assert run(folder, loop, shell=True) == "1\n2\n[exit code 0]"


def test_programs_do_not_inherit_secrets(folder, monkeypatch):
    for name in ("OPENAI_API_KEY", "GITHUB_TOKEN", "MY_SECRET", "AWS_ACCESS_KEY_ID", "DATABASE_URL", "LD_PRELOAD_X"):
        monkeypatch.setenv(name, "sk-very-secret")
    monkeypatch.setenv("PATH", f".:relative::{os.environ['PATH']}")
    text = run(folder, "env", env={"MINE": "1"})
    assert "sk-very-secret" not in text
    assert {"MINE=1", "TERM=dumb"} <= set(text.splitlines())
    (path,) = [line[5:] for line in text.splitlines() if line.startswith("PATH=")]
    assert all(part.startswith("/") for part in path.split(":"))


def test_a_program_in_the_folder_is_not_found_by_its_name(folder, monkeypatch):
    (folder / "ls").write_text("#!/bin/sh\necho mine\n")
    (folder / "ls").chmod(0o755)
    monkeypatch.setenv("PATH", f".::{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    assert "mine" not in run(folder, "ls")
    assert run(folder, "./ls") == "mine\n[exit code 0]"


def test_long_output_keeps_its_head_and_tail(folder):
    text = run(folder, "seq 1 200000", max_output=1000)
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("\n199999\n200000\n[exit code 0]")
    assert "bytes omitted" in text
    assert len(text) < 1200
    assert run(folder, "seq 1 100", max_output=1000).count("\n") == 100


def test_output_written_just_before_the_end_is_kept(folder, monkeypatch):
    def ends_now(process):  # after the tool looked for output, and before it looks for the end
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT) is not None

    monkeypatch.setattr(processes, "has_ended", ends_now)
    assert run(folder, "sh -c 'sleep 0.3; seq 1 9000 | tail -8000'").startswith("1001\n1002\n")


def test_fifty_megabytes_do_not_fill_the_memory(folder):
    import tracemalloc

    tracemalloc.start()
    text = run(folder, "head -c 50000000 /dev/zero")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(text) < 70_000
    assert peak < 3_000_000


def test_endless_output_is_stopped(folder):
    text = run(folder, "yes")
    assert text.endswith("[stopped after 200000000 bytes, because it printed too much]")


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

HIDE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
def note():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
note()
if os.fork() == 0:
    note()
    os.setsid()
    if os.fork() == 0:  # a daemon: no parent, its own session
        note()
        time.sleep(600)
    os._exit(0)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def hide(folder):
    (folder / "hide.py").write_text(HIDE)
    return f"{sys.executable} hide.py"


@linux
def test_a_timeout_kills_all_processes(folder, hide):
    text = run(folder, f"echo begun; {hide} 600 | cat", timeout=1.5)
    assert text == "begun\n[stopped after 1.5 s, because it took too long]"
    for pid in pids_in(folder, 3):
        block_until(lambda pid=pid: not is_alive(pid))


@linux
def test_no_process_outlives_its_command(folder, hide):
    assert run(folder, f"{hide} 0.3; echo end") == "end\n[exit code 0]"
    for pid in pids_in(folder, 3):
        block_until(lambda pid=pid: not is_alive(pid))


@linux
@pytest.mark.parametrize("how", ["cancel", "interrupt", "task"])
async def test_cancelling_the_run_kills_all_processes(folder, hide, how):
    agent = Agent(
        "a",
        llm=ScriptedModel([call("shell", command=f"{hide} 600"), reply("no")]),
        tools=[shell_tool(folder, sandbox="off")],
    )
    if how == "task":
        task = asyncio.create_task(agent.arun("go"))
    else:
        handle = agent.start("go")
    pids = await asyncio.to_thread(pids_in, folder, 3)
    if how == "task":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        handle.cancel("enough")
        assert (await handle.result()).status == "cancelled"
    for pid in pids:
        await asyncio.to_thread(block_until, lambda pid=pid: not is_alive(pid))


@linux
def test_no_zombies_and_no_open_files_are_left(folder):
    tool = shell_tool(folder, sandbox="off", timeout=0.3)

    async def several():
        await asyncio.gather(
            *(tool(command) for command in ("echo a | cat | cat", "nosuch", "sleep 5 | cat", "ls > x/y"))
        )

    asyncio.run(several())
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(several())
    assert len(os.listdir("/proc/self/fd")) == before
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children]
    assert "Z" not in states


def test_reading_from_a_pipe_that_nobody_writes_does_not_hang(folder):
    os.mkfifo(folder / "pipe")
    assert run(folder, "cat < pipe", timeout=20).endswith("[exit code 0]")
    assert "[exit code 126]" in run(folder, "echo x > pipe", timeout=20)


def test_the_shell_tool_works_in_sync_and_async_runs(folder):
    turns = [call("shell", command="echo hi | tr h H"), reply("ok")]

    def agent():
        return Agent("a", llm=ScriptedModel(turns), tools=[shell_tool(folder, sandbox="off")])

    results = [agent().run("go"), asyncio.run(agent().arun("go")), agent().start("go").wait()]
    assert [result.messages[2].content for result in results] == ["Hi\n[exit code 0]"] * 3


def test_many_commands_run_at_once(folder):
    turns = [[call("shell", command=f"sleep 0.2; echo {n}") for n in range(8)], reply("ok")]
    result = Agent("a", llm=ScriptedModel(turns), tools=[shell_tool(folder, sandbox="off")]).run("go")
    assert [message.content for message in result.messages[2:10]] == [f"{n}\n[exit code 0]" for n in range(8)]


def test_the_last_line_is_reported_as_progress(folder):
    log = EventLog()
    script = f"{sys.executable} -uc 'import time\nfor n in range(15): print(\"line\", n); time.sleep(0.1)'"
    model = ScriptedModel([call("shell", command=script), reply("ok")])
    Agent("a", llm=model, tools=[shell_tool(folder, sandbox="off")]).run("go", sinks=[log])
    assert any(event.message.startswith("shell: line ") for event in log.of(ToolProgressed))


def test_the_shell_tool_has_its_flags_and_description(folder):
    tool = shell_tool(folder, sandbox="off")
    assert tool.sandbox == ""
    assert (tool.name, tool.dangerous, tool.untrusted, tool.folder) == ("shell", True, True, str(folder.resolve()))
    assert list(tool.spec.parameters["properties"]) == ["command"]


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": True},
        {"timeout": float("nan")},
        {"max_output": 5},
        {"max_output": 1.5},
        {"env": {"a": 1}},
        {"env": {"a": "\0"}},
        {"shell": "yes"},
        {"sandbox": "none"},
        {"sandbox": True},
        {"sandbox": None},
    ],
)
def test_invalid_options_are_rejected(folder, options):
    with pytest.raises(RegistrationError):
        shell_tool(folder, **options)
    with pytest.raises(RegistrationError, match="does not exist"):
        shell_tool(folder / "no")
