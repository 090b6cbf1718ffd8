"""``hookline run`` as a program: exit codes, pipes, signals, approvals."""

import json
import select
import signal
import subprocess

import pytest

CALL = {"tool": "calculate", "arguments": {"expression": "6*7"}}
RULES = """
import pathlib
from hookline import HookResult, guard, hook, observer

@guard("before_tool")
def careful(ctx, request):
    return HookResult.ask("Really?", reason="rule 7")

@hook("approval_requested", priority=-10)
def mine(ctx, request):
    return HookResult.approve(by="mine")

@hook("on_run_start")
def finish(ctx, payload):
    return HookResult.end("Not today.")

@hook("before_step")
def halt(ctx, payload):
    return HookResult.stop("enough")

@observer("on_run_end")
def note(ctx, result):
    pathlib.Path("ended.txt").write_text(result.status)

@hook("on_run_end")
async def hang(ctx, result):
    import asyncio
    pathlib.Path("hanging.txt").write_text("")
    await asyncio.sleep(60)
"""


@pytest.fixture
def rules(folder):
    (folder / "rules.py").write_text(RULES)


def test_the_reply_goes_to_stdout_and_the_rest_to_stderr(hookline, script):
    done = hookline("run", "multiply", "please", "-m", script(CALL, "It is 42."))
    assert (done.returncode, done.stdout) == (0, "It is 42.\n")
    assert "  tool calculate ok: 42" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("completed · 2 steps · 1 tool call · ")
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("turns", "args", "code", "says"),
    [
        ([{"error": "OverloadedError", "message": "too busy"}], [], 1, "error: too busy"),
        ([{"error": "AuthError", "message": "the key is wrong"}], [], 2, "error: the key is wrong"),
        ([CALL, {"error": "AuthError", "message": "the key is wrong"}], [], 1, "error: the key is wrong"),
        ([CALL, "never"], ["--max-steps", "1"], 3, "stopped (Step limit reached: 1/1)"),
        (["never"], ["--hooks", "rules.py:halt"], 3, "stopped (enough)"),
        (["never"], ["--hooks", "rules.py:finish"], 4, "ended (finish)"),
    ],
)
def test_the_exit_code_shows_how_the_run_ended(hookline, script, rules, turns, args, code, says):
    done = hookline("run", "task", "-m", script(*turns), *args)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "never" not in done.stdout
    assert ("Not today." in done.stdout) == (code == 4)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "task", "-m", "nonsense:x"], "error: unknown kind of model 'nonsense'"),
        (["run", "task", "--hooks", "broken.py"], "broken.py, line 1: invalid syntax: def f(:"),
        (["run", "task", "--max-steps", "x"], "error: --max-steps: expected a whole number"),
        (["run", "task", "--max-stps", "3"], "--max-steps"),
        (["run"], "error: the task is missing"),
        (["rnu"], "Did you mean 'run'?"),
        (["chat"], "error: chat needs a terminal"),
    ],
)
def test_bad_input_gets_a_sentence_and_code_2(hookline, folder, args, says):
    (folder / "broken.py").write_text("def f(:\n")
    done = hookline(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_adds_the_traceback(hookline, folder):
    (folder / "crash.py").write_text("1 / 0\n")
    plain, full = (hookline("run", "task", "--hooks", "crash.py", *more) for more in ([], ["--debug"]))
    assert plain.returncode == full.returncode == 2
    assert plain.stderr.count("\n") == 1
    assert "crash.py, line 1: ZeroDivisionError" in plain.stderr
    assert "Traceback" in full.stderr


def test_piped_text_is_the_task_or_follows_it(hookline, script, folder):
    (folder / "echo.py").write_text(
        "from hookline import HookResult, hook\n\n@hook('before_llm')\n"
        "def echo(ctx, request):\n    return HookResult.answer(request.messages[-1].content)\n"
    )
    args = ["-m", script("x"), "--hooks", "echo.py", "--quiet"]
    assert hookline("run", "Review this", *args, input="some text\n").stdout == "Review this\n\nsome text\n"
    assert hookline("run", *args, input="some text\n").stdout == "some text\n"


@pytest.mark.slow
def test_an_open_pipe_on_stdin_gets_one_notice_and_is_read_to_its_end(start, script):
    process = start("run", "task", "-m", script("done"), "--quiet", stdin=subprocess.PIPE)
    assert select.select([process.stderr], [], [], 30)[0]
    assert process.stderr.readline() == "still reading stdin; if you have no input for it, add: < /dev/null\n"
    out, err = process.communicate("more")
    assert (process.returncode, out, err) == (0, "done\n", "")


def test_quiet_still_says_that_the_audit_log_could_not_be_written(hookline, script):
    done = hookline("run", "task", "-m", script("fine"), "--quiet", "--audit", "/dev/full")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert "records of the audit log were lost" in done.stderr


def test_quiet_says_why_a_run_was_stopped(hookline, script):
    done = hookline("run", "task", "-m", script(CALL, CALL, "It is 42."), "--quiet", "--max-steps", "1")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("note: stopped: ")


def test_quiet_says_only_the_reply(hookline, script):
    done = hookline("run", "task", "-m", script(CALL, "It is 42."), "--quiet")
    assert (done.stdout, done.stderr) == ("It is 42.\n", "")


def test_json_gives_every_event_and_nothing_else(hookline, script):
    done = hookline("run", "task", "-m", script(CALL, "It is 42."), "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["type"], events[-1]["type"]) == ("run_started", "run_finished")
    assert events[-1]["result"]["reply"] == "It is 42."
    assert done.stderr == ""


def test_a_hook_that_asks_is_denied_without_a_terminal_and_approved_with_yes(hookline, script, rules):
    model = script(CALL, "done")
    asked = hookline("run", "task", "-m", model, "--hooks", "rules.py:careful")
    assert "denied: calculate needs approval, and there is no terminal to ask at (see --yes and --wait)" in asked.stderr
    assert "tool calculate blocked" in asked.stderr
    assert asked.stderr.count("calculate needs approval for careful (rule 7): ") == 1
    approved = hookline("run", "task", "-m", model, "--hooks", "rules.py:careful", "--yes")
    assert "tool calculate ok: 42" in approved.stderr
    denied = hookline("run", "task", "-m", model, "--hooks", "rules.py:careful", HOOKLINE_APPROVALS="deny")
    assert "tool calculate blocked" in denied.stderr
    assert (asked.returncode, approved.returncode, denied.returncode) == (0, 0, 0)


def test_a_hook_in_shadow_mode_is_shown_and_blocks_nothing(hookline, script, folder):
    (folder / "trial.py").write_text(
        "from hookline import HookResult, guard; from hookline.hooks import shadow\n"
        "trial = shadow(guard('before_tool', name='careful')(lambda ctx, call: HookResult.block('No.', reason='r7')))\n"
    )
    done = hookline(
        "run", "6*7", "--model", script(CALL, "42"), "--hooks", "trial.py:trial", "--hooks", "ModelRetryHook"
    )
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert "hook careful, in shadow mode at before_tool, would block (r7): No." in done.stderr


def test_an_approver_of_the_users_own_comes_first(hookline, script, rules):
    args = ["--hooks", "rules.py:careful", "--hooks", "rules.py:mine", "--deny"]
    done = hookline("run", "task", "-m", script(CALL, "done"), *args)
    assert "calculate approved by mine" in done.stderr
    assert "tool calculate ok: 42" in done.stderr


@pytest.mark.slow
def test_ctrl_c_cancels_cleanly_and_shows_the_summary(start, script, rules, folder):
    process = start("run", "task", "-m", script("word " * 500, delay=0.05), "--hooks", "rules.py:note")
    assert process.stderr.readline() == "step 1\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("cancelled · ")
    assert (folder / "ended.txt").read_text() == "cancelled"


@pytest.mark.slow
def test_ctrl_c_twice_ends_at_once(start, script, rules, folder):
    process = start("run", "task", "-m", script("done"), "--hooks", "rules.py:hang")
    while not (folder / "hanging.txt").exists():
        assert process.poll() is None
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert process.stderr.read() == "step 1\n"  # no summary: it did not wait for the hook


@pytest.mark.slow
def test_a_closed_pipe_ends_the_run_without_an_error_message(start, script, rules, folder):
    process = start("run", "task", "-m", script("word " * 500, delay=0.05), "--json", "--hooks", "rules.py:note")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 141
    assert process.stderr.read() == ""
    assert (folder / "ended.txt").read_text() == "cancelled"


def test_a_session_continues_where_it_stopped(hookline, script, folder):
    args = ["--session", "notes", "--sessions", "kept", "--json"]
    hookline("run", "first", "-m", script("one"), *args)
    done = hookline("run", "second", "-m", script("two"), *args)
    called = next(e for e in map(json.loads, done.stdout.splitlines()) if e["type"] == "model_called")
    assert called["messages"] == 4  # the system prompt, two of before, one of now


def test_hooks_of_a_world_writable_configuration_do_not_run(hookline, script, rules, folder):
    (folder / "hookline.toml").write_text('hooks = ["rules.py:finish"]')
    args = ["run", "task", "-m", script("done")]
    assert hookline(*args).returncode == 4
    (folder / "hookline.toml").chmod(0o666)
    done = hookline(*args)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.startswith(f"note: {folder / 'hookline.toml'} is ignored: every user may write to it; ")
    named = hookline(*args, "--config", "hookline.toml")
    assert named.returncode == 2
    assert "hookline.toml is not used: every user may write to it" in named.stderr


@pytest.mark.parametrize(
    ("turn", "code", "says"),
    [("It is 42.", 2, ""), ({"error": "OverloadedError", "message": "too busy"}, 1, "error: too busy\n")],
)
def test_a_session_that_cannot_be_saved_hides_neither_the_reply_nor_the_failure(
    hookline, script, folder, turn, code, says
):
    (folder / "breaks.py").write_text(
        "import pathlib\nfrom hookline import observer\n\n@observer('on_run_end')\n"
        "def breaks(ctx, result):\n    pathlib.Path('kept').write_text('no folder')\n"
    )
    args = ["--session", "notes", "--sessions", "kept", "--hooks", "breaks.py", "--quiet"]
    done = hookline("run", "task", "-m", script(turn), *args)
    assert done.returncode == code
    assert done.stdout == ("It is 42.\n" if code == 2 else "")
    assert done.stderr.startswith(says)
    assert "cannot" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_message_of_a_failure_cannot_imitate_the_prompt(hookline, script):
    turn = {"error": "OverloadedError", "message": "too busy\n❯ yes\r\nApprove? [y]es"}
    done = hookline("run", "task", "-m", script(turn), "--quiet")
    assert (done.returncode, done.stderr) == (1, "error: too busy\n  ❯ yes\n  Approve? [y]es\n")


def test_the_agent_cannot_change_the_files_that_control_it(hookline, script, folder):
    rules = 'from hookline import observer\n\n\n@observer("on_run_end")\ndef look(ctx, result):\n    pass\n'
    (folder / "rules.py").write_text(rules)
    (folder / "hookline.toml").write_text('hooks = ["rules.py"]')
    turns = [
        {"tool": "write_file", "arguments": {"path": "rules.py", "content": "theirs"}},
        {"tool": "write_file", "arguments": {"path": "hookline.toml", "content": "theirs"}},
        "done",
    ]
    done = hookline("run", "go", "--write", "--yes", "-m", script(*turns))
    assert done.stderr.count("PathGuard blocked the call at before_tool: it controls the agent") == 2
    assert (folder / "rules.py").read_text() == rules


def test_a_hook_that_exits_the_program_is_named_and_counts_as_failure(hookline, script, folder):
    (folder / "leave.py").write_text(
        "from hookline import hook\n\n\n@hook('before_llm')\ndef leaves(ctx, request):\n    raise SystemExit(0)\n"
    )
    done = hookline("run", "go", "--hooks", "leave.py", "-m", script("never"))
    assert done.returncode == 1
    assert "error: leaves at " in done.stderr
    assert "leave.py:6 called sys.exit() during a run" in done.stderr


# Attachments


PNG = b"\x89PNG\r\n\x1a\npixels"


def test_attached_files_are_sent_with_the_task_and_stay_in_the_session(hookline, script, folder):
    (folder / "photo.png").write_bytes(PNG)
    model, where = script("A cat."), ("--session", "talk", "--sessions", "saved.db")
    done = hookline("run", "What is this?", "-m", model, "--attach", "photo.png", "--json", *where)
    assert done.returncode == 0, done.stderr
    (taken,) = [event for event in map(json.loads, done.stdout.splitlines()) if event["type"] == "task_taken"]
    assert [each["name"] for each in taken["attachments"]] == ["photo.png"]
    assert "pixels" not in done.stdout
    (folder / "photo.png").unlink()
    from hookline.stores import SqliteSessionStore

    session = SqliteSessionStore(folder / "saved.db").load("talk")
    assert session.messages[0].attachments[0].data == PNG


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--attach", "nope.png"], "'nope.png' cannot be attached: No such file or directory"),
        (["--attach", "photo.png", "--max-attachment", "5"], "the limit for an attachment is 5 bytes"),
        (["--attach", "."], "cannot be attached"),
    ],
)
def test_a_file_that_cannot_be_attached_is_an_error_before_the_run(hookline, script, folder, args, says):
    (folder / "photo.png").write_bytes(PNG)
    done = hookline("run", "What is this?", "-m", script("A cat."), *args)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert says in " ".join(done.stderr.split())


def test_the_chat_sends_a_file_with_the_next_message(terminal, script, folder):
    (folder / "photo.png").write_bytes(PNG)
    chat = terminal("chat", "-m", script("A cat.", "Yes."), "--session", "talk", "--sessions", "saved")
    chat.wait_for("❯ ")
    chat.send("/attach nope.png\n")
    chat.wait_for("cannot be attached")
    chat.wait_for("❯ ")
    chat.send("/attach photo.png\n")
    chat.wait_for("is sent with your next message")
    chat.wait_for("❯ ")
    chat.send("What is this?\n")
    chat.wait_for("A cat.")
    chat.wait_for("❯ ")
    chat.send("Sure?\n")
    chat.wait_for("Yes.")
    chat.wait_for("❯ ")
    chat.send("/quit\n")
    chat.end()
    from hookline.stores import JsonSessionStore

    messages = JsonSessionStore(folder / "saved").load("talk").messages
    assert [len(message.attachments) for message in messages] == [1, 0, 0, 0]


DEPS = """
from hookline import tool

async def make(caller):
    return f"{caller.id.endswith('@terminal')} {caller.metadata['plan']}"

@tool(effects=[])
def who(ctx) -> str:
    return ctx.deps
"""


def test_the_settings_name_a_function_that_creates_deps_for_the_person_at_the_terminal(hookline, folder, script):
    (folder / "own.py").write_text(DEPS)
    model = script({"tool": "who", "arguments": {}}, "Done.")
    settings = f'model = "{model}"\ntools = ["own.py"]\ndeps = "own.py:make"\nmetadata = {{ plan = "free" }}\n'
    (folder / "hookline.toml").write_text(settings)
    done = hookline("run", "Who?", "--json")
    assert done.returncode == 0, done.stderr
    (settled,) = [event for event in map(json.loads, done.stdout.splitlines()) if event["type"] == "tool_settled"]
    assert settled["text"] == "True free"
    (folder / "hookline.toml").write_text(settings.replace("own.py:make", "own.py:mak"))
    refused = hookline("run", "Who?")
    assert refused.returncode == 2
    assert "own.py has no 'mak'. Did you mean 'make'?" in refused.stderr
