"""Scripts that misbehave: a clear failure, the declared failure policy, and nothing left behind or hanging."""

import os
import stat
import threading

import pytest

from hookline import Agent, RunFailedError, ScriptedModel, call, tool
from hookline.adapters.claude_code.processes import MAX_OUTPUT, Script

from ...waiting import block_until

pytestmark = pytest.mark.slow  # real processes and servers


def script(*argv, data=b"{}", folder="/", seconds=30.0, env=None):
    return Script(argv, data, str(folder), {"PATH": os.environ["PATH"], **(env or {})}, seconds)


def bash(line, **options):
    return script("bash", "-c", line, **options)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_script_gets_its_input_and_returns_its_output_and_code():
    ran = bash("cat; echo oops >&2; exit 3", data=b'{"a": 1}').run()
    assert (ran.code, ran.stdout, ran.stderr, ran.problem) == (3, '{"a": 1}', "oops\n", "")


def test_a_script_gets_an_input_that_is_larger_than_a_pipe_while_it_prints():
    data = b"x" * 1_000_000
    ran = bash("head -c 300000 /dev/zero | tr '\\0' y; cat", data=data).run()
    assert (ran.code, len(ran.stdout)) == (0, 1_300_000)


def test_a_script_that_never_reads_its_input_does_not_hang():
    ran = bash("echo fine", data=b"x" * 5_000_000).run()
    assert (ran.code, ran.stdout, ran.problem) == (0, "fine\n", "")


def test_a_script_that_prints_100_mb_is_killed():
    ran = bash("exec head -c 100000000 /dev/zero").run()
    assert ran.problem == f"it printed more than {MAX_OUTPUT} bytes"
    assert ran.code == -9


def test_a_script_that_prints_much_to_stderr_is_killed():
    assert "it printed more" in bash("head -c 100000000 /dev/zero >&2").run().problem


def test_a_script_that_takes_too_long_is_killed_with_everything_that_it_started(tmp_path):
    ran = bash("sleep 600 & echo $! > a; setsid sleep 600 & echo $! > b; wait", folder=tmp_path, seconds=0.5).run()
    assert ran.problem == "it took longer than 0.5 s"
    for name in ("a", "b"):
        pid = int((tmp_path / name).read_text())
        block_until(lambda pid=pid: not is_running(pid))


def test_a_script_that_closes_its_output_and_stays_is_killed():
    assert "took longer" in bash("exec 0<&- 1>&- 2>&-; sleep 600", seconds=0.3).run().problem


def test_a_script_that_forks_and_stays_is_not_waited_for_and_its_group_is_killed(tmp_path):
    ran = bash("sleep 600 & echo $! > pid; echo done", folder=tmp_path, seconds=60).run()
    assert (ran.code, ran.stdout, ran.problem) == (0, "done\n", "")
    block_until(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_a_script_that_is_ended_by_a_signal_reports_it():
    assert bash("kill -SEGV $$").run().code == -11


@pytest.mark.parametrize("kind", ["missing", "not executable", "a folder", "without a known format"])
def test_a_program_that_cannot_be_started_is_a_problem(tmp_path, kind):
    file = tmp_path / "hook"
    if kind == "a folder":
        file.mkdir()
    elif kind != "missing":
        file.write_bytes(b"\x7fnothing")
        file.chmod(stat.S_IRUSR if kind == "not executable" else stat.S_IRWXU)
    ran = script(str(file)).run()
    assert ran.problem.startswith(f"it cannot be started: {file}: ")


def test_a_folder_that_does_not_exist_is_a_problem(tmp_path):
    assert str(tmp_path / "gone") in bash("true", folder=tmp_path / "gone").run().problem


def test_a_script_that_is_stopped_ends_at_once_and_a_stopped_one_never_starts(tmp_path):
    running = bash("touch started; sleep 600", folder=tmp_path)
    found = []
    thread = threading.Thread(target=lambda: found.append(running.run()))
    thread.start()
    block_until((tmp_path / "started").exists)
    running.stop()
    thread.join()
    assert found[0].problem or found[0].code == -9
    assert running.run().problem == "it was stopped"


# In a run.


@tool
def work() -> str:
    """Work."""
    done_work.append(1)
    return "done"


done_work = []
BAD = {
    "a missing program": ("/no/such/hook", "exit code 127"),
    "a file that is not executable": ("/etc/passwd", "exit code 126"),
    "exit code 1": ("echo broken >&2; exit 1", "exit code 1: broken"),
    "exit code 1 without a word": ("exit 1", "ended with exit code 1"),
    "a signal": ("kill -KILL $$", "ended by signal 9"),
    "too slow": ("sleep 600", "took longer than 0.3 s"),
    "100 MB": ("head -c 100000000 /dev/zero", "printed more than"),
    "exit code 1 after a part of an answer": ("echo '{\"decision\": '; exit 1", "ended with exit code 1"),
}


@pytest.mark.parametrize(("line", "problem"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("policy", ["open", "block", "closed"])
def test_a_hook_that_fails_follows_its_failure_policy(project, line, problem, policy, caplog):
    done_work.clear()
    given = {"onFailure": "block"} if policy == "block" else {"on_failure": policy}
    project.add("PreToolUse", line, timeout=0.3 if "sleep" in line else 60, **given)
    agent = Agent("worker", llm=ScriptedModel([call("work"), "Ok."]), tools=[work], hooks=[project.hooks()])
    if policy == "closed":
        with pytest.raises(RunFailedError, match="PreToolUse hook") as failed:
            agent.run("Go.")
        assert problem in str(failed.value)
        assert done_work == []
        return
    result = agent.run("Go.")
    assert problem in caplog.text
    assert done_work == ([1] if policy == "open" else [])
    if policy == "block":
        assert result.steps[0].outcomes == ("blocked",)
        assert problem in result.messages[2].content


NOT_UNDERSTOOD = {
    "garbage": ("echo '{\"decision\": '", "the JSON that it printed is not valid"),
    "another shape": ('echo \'{"hookSpecificOutput": {"permissionDecision": "deny"}}\'', "not valid"),
    "an unknown decision": (
        'echo \'{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "maybe"}}\'',
        "not valid",
    ),
    "nested too deeply": ("printf '{%s' '\"x\":'; head -c 200000 /dev/zero | tr '\\0' '['", "not valid"),
    "an input that is nested too deeply": (
        'python3 -c \'print("{\\"hookSpecificOutput\\":{\\"hookEventName\\":\\"PreToolUse\\",\\"updatedInput\\":" '
        '+ "{\\"a\\":" * 300 + "1" + "}" * 302)\'',
        "levels deep",
    ),
    "NaN": ('echo \'{"decision": "block", "more": NaN}\'', "not valid"),
    "another event": ('echo \'{"hookSpecificOutput": {"hookEventName": "Stop"}}\'', "is for 'Stop'"),
    "a question in the older field": ('echo \'{"decision": "ask"}\'', "not valid"),
    "a question with exit code 1": ('echo \'{"decision": "ask"}\'; exit 1', "not valid"),
    "two answers": ('echo \'{"systemMessage": "x"}\'; echo \'{"decision": "block"}\'', "not valid"),
}


@pytest.mark.parametrize(("line", "problem"), NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD)
@pytest.mark.parametrize("policy", ["open", "block", "closed"])
def test_an_answer_that_is_not_understood_blocks_whatever_the_failure_policy(project, line, problem, policy, caplog):
    done_work.clear()
    project.add("PreToolUse", line, on_failure=policy)
    agent = Agent("worker", llm=ScriptedModel([call("work"), "Ok."]), tools=[work], hooks=[project.hooks()])
    if policy == "closed":
        with pytest.raises(RunFailedError, match="PreToolUse hook"):
            agent.run("Go.")
    else:
        result = agent.run("Go.")
        assert result.steps[0].outcomes == ("blocked",)
        assert problem in result.messages[2].content
        assert problem in caplog.text
    assert done_work == []


def test_the_failure_policy_of_all_hooks_is_an_argument_and_that_of_a_hook_wins(project):
    project.add("PreToolUse", "exit 1").add("PreToolUse", "exit 3", on_failure="block")
    project.add("PreToolUse", "exit 4", on_failure="open").add("PreToolUse", "exit 5", onFailure="continue")
    handlers = project.hooks(on_failure="closed").handlers
    assert [handler.on_failure for handler in handlers] == ["closed", "block", "open", "open"]


def test_a_cancelled_run_kills_the_scripts_that_it_waits_for(project):
    project.add("PreToolUse", 'echo $$ > "$CLAUDE_PROJECT_DIR"/pid; sleep 600')
    agent = Agent("worker", llm=ScriptedModel([call("work"), "Ok."]), tools=[work], hooks=[project.hooks()])
    run = agent.start("Go.")
    file = project.folder / "pid"
    block_until(lambda: file.exists() and file.read_text().strip())
    run.cancel("enough")
    assert run.wait().status == "cancelled"
    block_until(lambda: not is_running(int(file.read_text())))


def test_hooks_of_one_event_run_in_parallel(project):
    wait = 'touch "$CLAUDE_PROJECT_DIR"/{0}; until [ -e "$CLAUDE_PROJECT_DIR"/{1} ]; do sleep 0.01; done'
    project.add("PreToolUse", wait.format("a", "b"), timeout=60).add("PreToolUse", wait.format("b", "a"), timeout=60)
    assert project.run([call("shell", command="true"), "Ok."]).steps[0].outcomes == ("ok",)


@pytest.mark.parametrize(
    "output",
    [
        r'{"decision": "block", "reason": "half of a pair: \ud83d"}',
        '\ufeff{"decision": "block", "reason": "after a byte order mark"}',
        '{"decision": "approve", "decision": "block", "reason": "the last of two keys"}',
        b'{"decision": "block", "reason": "not UTF-8: \xe9"}',
        '{"decision": "block", "reason": "one line"}\n\n',
    ],
    ids=["lone surrogate", "byte order mark", "duplicate key", "latin-1", "blank lines"],
)
def test_a_block_in_odd_json_that_javascript_accepts_is_a_block(project, output):
    (project.folder / "output").write_bytes(output if isinstance(output, bytes) else output.encode())
    done_work.clear()
    project.add("PreToolUse", "cat output")
    agent = Agent("worker", llm=ScriptedModel([call("work"), "Ok."]), tools=[work], hooks=[project.hooks()])
    assert agent.run("Go.").steps[0].outcomes == ("blocked",)
    assert done_work == []


def test_a_line_that_blocks_and_asks_for_the_background_blocks(project):
    project.add("PreToolUse", 'echo \'{"async": true, "decision": "block"}\'; echo')
    assert project.run([call("shell", command="true"), "Never."]).steps[0].outcomes == ("blocked",)


@pytest.mark.parametrize("limit", ["1" + "0" * 400, "1e300", "-1", "true", '"x"'])
def test_an_odd_time_limit_in_the_background_is_not_used(project, limit):
    project.add("PreToolUse", f'echo \'{{"async": true, "asyncTimeout": {limit}}}\'')
    assert project.run([call("shell", command="true"), "Ok."]).steps[0].outcomes == ("ok",)


def test_a_hook_that_deletes_the_folder_in_which_it_runs_makes_later_hooks_fail(project, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    project.add("UserPromptSubmit", f"rm -rf {folder}").add("PreToolUse", "true", on_failure="block")
    done_work.clear()
    hooks = project.hooks(folder=folder)
    agent = Agent("worker", llm=ScriptedModel([call("work"), "Ok."]), tools=[work], hooks=[hooks])
    result = agent.run("Go.")
    assert done_work == []
    assert "cannot be started" in result.messages[2].content
