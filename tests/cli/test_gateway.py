"""``hookline gateway`` as people start it."""

import io
import logging
import re
import signal
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import pytest
from rich.console import Console

from hookline import HookResult, call, guard, tool
from hookline.channels.gateway import Status
from hookline.channels.protocol import Health
from hookline.cli.app import run_app
from hookline.cli.errors import report_error
from hookline.cli.gateway import GatewayLog, GatewayScreen, RunWatcher, status_table
from hookline.cli.services import timestamped
from hookline.cli.text import short_id
from hookline.stores.approvals import ApprovalStore
from hookline.stores.mailbox import gateway_database
from hookline.stores.pairing import create_code
from hookline.testing import scripted_agent

from .conftest import COMMAND

CONFIG = """
sessions = "sessions.db"
default_tools = false
[gateway]
database = "gateway.db"
"""


@pytest.fixture
def gateway(folder, env, script):
    def start(*args, config='channels = ["console"]', turns=("Hello.", "Again."), **options):
        model = script(*turns)
        (folder / "hookline.toml").write_text(f'model = "{model}"\n{config}\n{CONFIG}')
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*COMMAND, "gateway", *args], cwd=folder, env=env, text=True, **pipes, **options)

    return start


@pytest.mark.slow
def test_lines_in_and_answers_out(gateway):
    out, err = gateway().communicate("hi\n")
    assert out == "Hello.\n"
    assert "listening on 1 channel: console" in err
    assert "stopped: 1 message received, 1 sent" in err


@pytest.mark.slow
def test_an_approver_is_asked_in_the_conversation(gateway, folder):
    (folder / "rules.py").write_text(
        "from hookline import HookResult, guard\n\n\n"
        "@guard('before_tool')\ndef careful(ctx, request):\n    return HookResult.ask('Really?', reason='rule 7')\n"
    )
    channels = (
        'channels = [{ use = "console", approve = ["*"] }]\ntools = ["hookline.tools:calculator"]\nhooks = ["rules.py"]'
    )
    call = {"tool": "calculate", "arguments": {"expression": "6 * 7"}}
    process = gateway(config=f'{channels}\napproval_file = "approvals.db"', turns=([call], "It is 42."))
    process.stdin.write("go\n")
    process.stdin.flush()
    shown = [process.stdout.readline() for _ in range(7)]
    assert shown[0].endswith("wants to call `calculate` with\n")
    assert shown[2] == '{"expression": "6 * 7"}\n'
    assert "careful asks: Really? (rule 7)\n" in shown
    out, _ = process.communicate("yes\n")
    assert out == f"{shown[0][:4]}: approved. calculate runs.\nIt is 42.\n"
    (row,) = ApprovalStore(folder / "approvals.db").rows()
    assert (row.status, row.by, row.owner) == ("approved", "console:you", "channel:console")


@pytest.mark.slow
def test_a_durable_gateway_that_is_killed_continues_its_run_after_a_restart(gateway, folder, env):
    (folder / "tools.py").write_text(
        "import os, signal\nfrom pathlib import Path\nfrom hookline import tool\n\n\n"
        "@tool\ndef note(text: str) -> str:\n"
        '    """Write a note."""\n'
        "    with open('notes', 'a') as file:\n        file.write(text)\n    return 'noted'\n\n\n"
        "@tool\ndef crash() -> str:\n"
        '    """End the process, the first time."""\n'
        "    if not Path('crashed').exists():\n        Path('crashed').touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    return 'still here'\n"
    )
    turns = ([{"tool": "note", "arguments": {"text": "x"}}], [{"tool": "crash", "arguments": {}}], "All is done.")
    config = 'channels = ["console"]\ntools = ["tools.py:note", "tools.py:crash"]\nruns = "runs.db"\naudit = ""'
    first = gateway("--durable", config=config, turns=turns)
    first.communicate("go\n")
    assert first.returncode == -signal.SIGKILL
    resume = [*COMMAND, "runs", "resume", "last"]
    resumed = subprocess.run(resume, cwd=folder, env=env, text=True, capture_output=True, check=False)
    assert "belongs to a gateway: hookline gateway --durable continues it" in resumed.stderr
    out, _ = gateway("--durable", config=config, turns=turns).communicate("")
    assert out == "All is done.\n"
    assert (folder / "notes").read_text() == "x"


@pytest.mark.slow
def test_a_configuration_file_can_guard_the_channels(gateway):
    guard = '{ use = "ChannelGuard", args = { per_sender = 3, links = [], deny = [{ channel = "web" }, "mallory"] } }'
    turns = ("The password is: hunter2-and-more",)
    config = f'channels = ["console"]\nhooks = [{guard}]'
    out, err = gateway(config=config, turns=turns).communicate("hi\nhttps://x.example\n/help\n/help\n")
    assert "The password is: [secret]\n" in out
    assert "it contains a link that is not accepted here" in out
    assert "hunter2" not in out + err


@pytest.mark.slow
def test_an_interrupt_stops_the_gateway_gracefully(gateway):
    process = gateway()
    while "listening" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 0
    assert "stopping after the current runs" in err
    assert "stopped: 0 messages received" in err


def test_a_durable_gateway_needs_a_file_for_its_journals(here, monkeypatch, tmp_path):
    (tmp_path / "hookline.toml").write_text(
        'model = "scripted:turns.json"\nchannels = ["console"]\n[gateway]\ndatabase = "gateway.db"\ndurable = true\n'
    )
    monkeypatch.setenv("HOOKLINE_RUNS", "none")
    code, told = here()
    assert code == 2
    assert "durable runs need a file or a database: set runs" in told


@pytest.mark.parametrize("package", ["starlette", "websockets"])
def test_a_missing_package_is_reported_before_the_model_is_loaded(here, monkeypatch, tmp_path, package):
    (tmp_path / "hookline.toml").write_text('channels = ["web"]\n[gateway]\ndatabase = "gateway.db"\nport = 0\n')
    monkeypatch.setattr("hookline.cli.weights.prepare_model", lambda model: pytest.fail("the model was loaded"))
    monkeypatch.setitem(sys.modules, package, None)
    code, told = here()
    assert code == 2
    assert f"{package} is not installed: pip install -e " in told
    assert "stopped" not in told


def test_a_gateway_that_cannot_start_does_not_print_that_it_stopped(here, tmp_path):
    (tmp_path / "bad.py").write_text(
        "from hookline.channels.in_memory import MemoryChannel\n\n\n"
        "class Bad(MemoryChannel):\n    async def start(self, deliver):\n        raise OSError('no way')\n"
    )
    (tmp_path / "hookline.toml").write_text(
        'model = "scripted:turns.json"\nchannels = ["bad.py:Bad"]\n[gateway]\ndatabase = "gateway.db"\n'
    )
    logger = logging.getLogger("hookline")
    before = logger.level, logger.propagate
    code, told = here()
    assert code != 0
    assert "no way" in told
    assert "stopped" not in told
    assert (logger.level, logger.propagate) == before, "what the view changed about logging is undone"


@pytest.fixture
def here(capsys, monkeypatch, tmp_path):
    """Call the command in this process; its exit code and what it wrote."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hookline.toml").write_text('model = "scripted:turns.json"\n[gateway]\ndatabase = "gateway.db"\n')
    (tmp_path / "turns.json").write_text("[]")

    def run(*args):
        try:
            code = run_app(["gateway", *args])
        except Exception as error:
            code = report_error(error, args)
        return code, "".join(capsys.readouterr())

    return run


def test_a_gateway_without_channels_explains_how_to_set_them(here):
    code, told = here()
    assert code == 2
    assert "add some in " in told
    assert 'hookline.toml, such as channels = ["console"]' in told


def test_a_sender_is_paired_and_revoked(here, tmp_path):
    assert "No senders" in here("list")[1]
    database = gateway_database(tmp_path / "gateway.db")
    with database.transaction(write=True) as db:
        code = create_code(db, "console", "bob\x1b[2J")
    database.close()
    assert re.search(r"console +bob.* +code valid until", here("list")[1])
    assert here("pair", code)[1].endswith("may now talk to the agent through console.\n")
    listed = here("list")[1]
    assert re.search(rf"console +bob.* +paired {time.strftime('%Y-')}", listed)
    assert "\x1b" not in listed
    assert here("pair", code) == (
        2,
        "error: the code does not exist or has expired: the sender gets a new one by writing again\n",
    )
    assert here("revoke", "console", "bob\x1b[2J")[1].startswith("Revoked")
    assert "is not paired" in here("revoke", "console", "bob")[1]
    assert here("pair")[0] == 2


def test_a_long_line_wraps_below_its_text():
    from rich.console import Console

    console = Console(width=30, force_terminal=False)
    with console.capture() as shown:
        console.print(timestamped("telegram: the server cannot be reached\x1b[2J"))
    first, *rest = shown.get().splitlines()
    assert first[8:].startswith(" telegram: the")
    assert [line[:9].strip() for line in rest] == [""] * len(rest)
    assert "\x1b" not in shown.get()


def test_the_live_view_shows_channels_and_numbers():
    from rich.console import Console

    status = Status({"web": Health(True), "mqtt": Health(False, "no\x1b[2J broker")}, 3, 1, 2, 0, 9, 0, 1, 7, 0, 0)
    console = Console(width=100, force_terminal=False)
    with console.capture() as shown:
        console.print(status_table(status))
    text = shown.get()
    assert "● web" in text
    assert "✗ mqtt" in text
    assert "conversations 3" in text
    assert "refused 1" in text
    assert "\x1b[2J" not in text


def watched(show):
    """Run a conversation with a secret call, with the hook of the gateway."""

    @tool
    def copy(path: str) -> str:
        """Copy a file."""
        return "copied"

    @guard("before_tool")
    def no_secrets(ctx, request):
        if request.arguments["path"] == "secret":
            return HookResult.block("Not that one.", reason="rule 3")

    watcher = RunWatcher()
    watcher.show = show
    turns = [["I try it.", call("copy", path="secret")], call("copy", path="a"), "My private answer."]
    return scripted_agent(turns, tools=[copy], hooks=[no_secrets, watcher], name="bot").run("My private question.")


def test_the_gateway_shows_calls_and_verdicts_of_its_runs_but_not_what_is_said():
    shown = []
    result = watched(shown.append)
    assert [line.text for line in shown] == [
        'calls copy {"path":"secret"}',
        "no_secrets blocked the call at before_tool: rule 3",
        "tool copy blocked: Not that one.",
        'calls copy {"path":"a"}',
        "tool copy ok: copied",
    ]
    assert {line.agent for line in shown} == {f"bot {short_id(result.ids.run_id)}"}


@pytest.mark.parametrize(("debug", "lines"), [(True, 5), (False, 0)])
def test_a_log_of_the_gateway_has_lines_about_runs_only_for_debugging(capsys, debug, lines):
    view = GatewayLog(SimpleNamespace(channels={}), debug=debug)
    watched(view.show_run_line)
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_the_screen_of_the_gateway_shows_verdicts_in_colour(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    view = GatewayScreen(SimpleNamespace(channels={}), debug=False)
    view.is_started = False
    monkeypatch.setattr("hookline.cli.gateway.Console", partial(Console, file=out, force_terminal=True, width=120))
    with view:
        watched(view.show_run_line)
    assert re.search(
        r"\d\d:\d\d:\d\d.*bot .*\x1b\[31m.*no_secrets blocked the call at before_tool: rule 3", out.getvalue()
    )
