"""``hookline explain`` as a program."""

import json
import os
import re

import pytest

from hookline.records import read_runs

from ..explain import office


@pytest.fixture
def records(folder, monkeypatch):
    """A folder with one recorded run."""
    monkeypatch.chdir(folder)
    office.agent(folder / "records").run(office.TASK)
    return folder / "records"


def test_the_last_run_is_shown_step_by_step(hookline, records):
    done = hookline("explain", "last", "--records", "records")
    assert (done.returncode, done.stderr) == (0, "")
    out = done.stdout
    assert out.startswith("completed run_")
    assert "why it stopped  The model replied without calling a tool." in out
    assert re.findall(r"^Step \d", out, re.MULTILINE) == [f"Step {n}" for n in range(1, 7)]
    assert "#30 before_tool  ┃ no_deleting ┄ · no_network ─ ○ audit  (2 hooks for other tools)" in out
    assert "blocked no_deleting (guard)  rule 3: nothing is deleted" in out
    assert "card [-4111-1111-1111-1111-]{+[card number]+}." in out
    assert "failed shaky (rewrite)  hook 'shaky' failed at after_tool: KeyError: 'eur'" in out
    assert "approved by ann" in out
    assert "      Step 1 of researcher" in out
    (run, *_) = read_runs("records")
    assert f"rules {run.info.rules[:8]}" in out


def test_a_terminal_shows_differences_in_colour(terminal, records):
    shown = terminal("explain", "last", "--records", "records", "--hook", "hide_cards", TERM="xterm-256color")
    shown.wait_for("Account holder: Jane Roe, card \x1b[9;31m4111-1111-1111-1111\x1b[0m\x1b[32m[card number]\x1b[0m.")


@pytest.mark.parametrize(
    ("options", "contained", "missing"),
    [
        (["--only", "blocked"], ["rm -rf reports/old", "rm invoices.md"], ["send_mail ok", "read_file ok"]),
        (["--only", "changed"], ["hide_cards", "sign"], ["rm -rf"]),
        (["--only", "asked"], ["approved by ann"], ["read_file ok"]),
        (["--only", "failed"], ["KeyError"], ["read_file ok"]),
        (["--hook", "hide_cards"], ["read_file ok"], ["send_mail ok"]),
        (["--tool", "send_mail"], ["send_mail ok"], ["read_file ok", "shell ok"]),
        (["--at", "8"], ["Step 2", "#8 after_tool"], ["Step 1", "Step 3"]),
        (["--tool", "send_mail", "--only", "blocked"], ["Nothing in this run matches."], ["Step"]),
        (["--full"], ["user: Check the ledger"], []),
    ],
)
def test_options_select_what_is_shown(in_process, records, options, contained, missing):
    code, out, _ = in_process("explain", "last", "--records", "records", *options)
    assert code == 0
    shown = out.partition("█ tools\n")[2]  # below the header
    for text in contained:
        assert text in shown
    for text in missing:
        assert text not in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["last", "--only", "blockd"], "--only: expected blocked, changed, asked, failed"),
        (["last", "--hook", "hide_card"], "--hook: the run has no hook 'hide_card'. Did you mean 'hide_cards'?"),
        (["last", "--tool", "shel"], "--tool: the run has no call of 'shel'. Did you mean 'shell'?"),
        (["last", "--at", "99"], "--at: the run has no moment 99; it has 44 moments"),
        (["nope"], "no recorded run begins with 'nope' in "),
        (["absent.moments"], "absent.moments cannot be read: No such file or directory"),
        (["last", "--html", "absent/run.html"], "absent/run.html cannot be written: No such file or directory"),
    ],
)
def test_a_mistake_is_explained(in_process, records, options, message):
    code, out, told = in_process("explain", *options, "--records", "records")
    assert (code, out) == (2, "")
    assert message in told


def test_a_run_is_found_by_its_id_its_beginning_or_its_file(in_process, records):
    (file,) = records.glob("*.moments")
    id = json.loads(file.read_bytes().splitlines()[2])[2]["ids"]["run_id"]
    for name in (id, id[:10], id.removeprefix("run_")[:6], str(file)):
        code, out, _ = in_process("explain", name, "--records", "records")
        assert (code, out.split()[1]) == (0, id)


def test_an_ambiguous_id_lists_the_candidates(in_process, records):
    office.agent(records).run(office.TASK)
    code, _, told = in_process("explain", "run_", "--records", "records")
    assert code == 2
    assert "recorded runs begin with 'run_'" in told


def test_json_is_the_view_of_the_run(in_process, records):
    code, out, _ = in_process("explain", "last", "--records", "records", "--json")
    view = json.loads(out)
    assert (code, view["status"], view["events"]) == (0, "completed", 44)
    assert [step["index"] for step in view["steps"]] == [-1, 0, 1, 2, 3, 4, 5]


def test_a_page_is_written_for_its_owner_only(in_process, records):
    code, out, told = in_process("explain", "last", "--records", "records", "--html", "run.html")
    assert (code, out) == (0, "")
    assert told.startswith("written: run.html (")
    page = records.with_name("run.html")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert os.stat(page).st_mode & 0o077 == 0


def test_what_could_not_be_read_is_reported_and_the_rest_is_shown(in_process, records):
    (file,) = records.glob("*.moments")
    data = file.read_bytes()
    lines = data.splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:9], b"garbage\n", *lines[9:20]]) + lines[20][:30])
    code, out, told = in_process("explain", "last", "--records", "records")
    assert code == 0
    assert out.startswith("interrupted run_")
    assert "skipped 1: the line is not a line of a record, first in line 10" in told
    assert "skipped 1: the last line is incomplete" in told


def test_text_of_a_run_cannot_control_the_terminal(in_process, folder, monkeypatch):
    monkeypatch.chdir(folder)
    office.agent(folder / "records").run("\x1b[2J\x1b]0;owned\x07 task")
    _, out, _ = in_process("explain", "last", "--records", "records", "--full")
    assert "\x1b" not in out
    assert "\\x1b[2J" in out


def test_without_records_the_message_says_how_to_record(hookline, folder):
    done = hookline("explain", "last")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no runs are recorded in" in done.stderr
    assert "(hookline run --record records a run)" in done.stderr


def test_a_recorded_run_is_found_without_further_options(hookline, script, folder):
    done = hookline("run", "Say hello.", "-m", script("Hello."), "--record")
    assert done.returncode == 0, done.stderr
    done = hookline("explain", "last")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Say hello." in done.stdout
    assert "why it stopped  The model replied without calling a tool." in done.stdout
