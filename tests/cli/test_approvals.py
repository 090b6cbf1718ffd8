"""``hookline approvals``, and questions that can be answered elsewhere."""

import json

import pytest

from hookline._kernel.payloads import ApprovalRequest, ToolCallRequest
from hookline.cli import approval_prompt
from hookline.payloads import Ids, Question
from hookline.stores import ApprovalPolicy, ApprovalStore, ApproverRights, CallPattern

from ..waiting import block_until

CALL = {"tool": "calculate", "arguments": {"expression": "6*7"}}
RULES = """
from hookline import HookResult, guard

@guard("before_tool")
def careful(ctx, request):
    return HookResult.ask("Is this needed?", reason="rule 7")
"""
EVIL = "evil\x1b[2J\x9b2J\n\u202ename"


@pytest.fixture
def store(folder):
    made = ApprovalStore(folder / "approvals.db")
    yield made
    made.close()


@pytest.fixture
def approvals(in_process, monkeypatch, folder):
    """Run a command on the file of this folder: its exit code, what it wrote, what it complained about."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOOKLINE_APPROVAL_FILE", "approvals.db")
    monkeypatch.setenv("LOGNAME", "ann")
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *args: in_process("approvals", *args)


@pytest.fixture
def rules(folder, env):
    (folder / "rules.py").write_text(RULES)
    env |= {"HOOKLINE_APPROVAL_FILE": "approvals.db", "HOOKLINE_HOOKS": "rules.py", "LOGNAME": "ann"}


def ask(store, tool="write_file", hook="careful", **arguments):
    request = ToolCallRequest("call_1", tool, arguments)
    asked = ApprovalRequest(request, (Question("May it?", hook, "rule 7"),), request.digest)
    return store.ask(asked, seconds=600, ids=Ids("run_1", "task_1", "corr_1", "session_1", "worker"))


def waiting(store):
    """The call that another program has put into the file."""
    block_until(lambda: store.rows(status="pending"))
    return store.rows(status="pending")[0]


def decide(store, row, decision="approve", **more):
    return store.decide(row.id, decision=decision, digest=row.digest, by="bob", **more)


# The command.


def test_waiting_calls_are_listed_and_shown(approvals, store):
    assert approvals() == (0, "No calls waiting for approval in approvals.db.\n", "")
    row = ask(store, path="notes/a.md", text="x" * 100)
    code, out, _ = approvals()
    assert code == 0
    assert row.id[5:13] in out
    assert '{"path":"notes/a.md","text":"xxx' in out
    assert "careful: May it? (rule 7)  worker" in " ".join(out.split("\n"))
    assert "10 min" in out
    code, out, _ = approvals("show", row.id[5:9])
    assert f'"text": "{"x" * 100}"' in out
    assert row.digest in out
    assert json.loads(approvals("--json")[1])[0]["id"] == row.id
    assert json.loads(approvals("show", row.id, "--json")[1])["arguments"] == row.arguments


def test_a_call_is_approved_denied_or_edited(approvals, store):
    rows = [ask(store, n=n) for n in range(3)]
    code, out, _ = approvals("approve", rows[0].id[5:13])
    assert (code, out.splitlines()[-1]) == (0, "approved")
    assert 'write_file (worker) wants to run with {"n":0}' in out
    approvals("deny", rows[1].id, "use", "the other file")
    assert f"in {rows[0].run_id[:16]}" in out
    _, out, _ = approvals("edit", rows[2].id, '{"n": 7, "m": 1}')
    assert 'edited: the call runs with {"n":7,"m":1} if the guards allow it' in out
    assert "note: the original call has no argument m" in out
    done = [store.find(row.id) for row in rows]
    assert [row.status for row in done] == ["approved", "denied", "edited"]
    assert (done[1].message, done[2].edit, done[0].by) == ("use the other file", {"n": 7, "m": 1}, "ann@terminal")
    code, out, err = approvals("deny", rows[0].id)
    assert (code, "it was approved by ann@terminal" in err, "wants to run" in out) == (2, True, False)
    _, out, _ = approvals("--all")
    assert [word in out for word in ("approved", "denied", "edited", "ann@terminal")] == [True] * 4


def test_permissions_are_given_listed_and_revoked(approvals, store):
    first, second = ask(store, path="notes/a"), ask(store, path="b")
    _, out, _ = approvals("approve", first.id, "--session", "--pattern", "path=notes/*")
    assert out.splitlines()[-1] == "approved, and later calls in this session with path=notes/*"
    _, out, _ = approvals("approve", second.id, "--always")
    assert out.splitlines()[-1] == "approved, and later calls of worker"
    _, out, _ = approvals("grants")
    shown = ("path=notes/*", 'exactly {"path":"b"}', "session session_1", "agent worker")
    assert [words for words in shown if words not in out] == []
    assert len(json.loads(approvals("grants", "--json")[1])) == 2
    for grant in store.grants():
        assert approvals("revoke", grant.id[6:14]) == (0, "revoked\n", "")
    assert "hookline approvals grants lists the ids" in approvals("revoke", "nothing")[2]
    assert approvals("grants")[1] == "No permissions in approvals.db.\n"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["approve", "ID", "--session", "--always"], "use only one"),
        (["approve", "ID", "--pattern", "path=*"], "add --session or --always"),
        (["approve", "ID", "--always", "--pattern", "path"], "is not NAME=GLOB"),
        (["approve", "ID", "--always", "--pattern", "path=*", "--pattern", "path=a"], "two patterns"),
        (["approve", "ID", "--always", "--pattern", "other=*"], "has no argument 'other'"),
        (["edit", "ID", "no JSON"], "must be a JSON object"),
        (["show", "nothing"], "there is no call 'nothing'"),
        (["revoke", "nothing"], "there is no permission 'nothing'"),
        (["--watch", "--all"], "cannot be combined"),
    ],
)
def test_invalid_input_gets_advice_and_decides_nothing(approvals, store, args, why):
    row = ask(store, path="a")
    code, _, err = approvals(*(row.id if arg == "ID" else arg for arg in args))
    assert (code, why in err) == (2, True), err
    assert store.find(row.id).status == "pending"


def test_the_name_of_a_person_cannot_add_a_line_to_an_error(approvals, store):
    row = ask(store, path="a")
    store.decide(row.id, decision="deny", digest=row.digest, by="mqtt:lamp/x\napproved")
    code, _, err = approvals("approve", row.id)
    assert (code, err.endswith("it was denied by mqtt:lamp/x\\napproved\n"), err.count("\n")) == (2, True, 1), err


def test_text_from_a_model_cannot_move_the_cursor_or_add_lines(approvals, store):
    row = ask(store, tool=EVIL, hook=EVIL, **{EVIL: EVIL})
    shown = ((), ("--all",), ("show", row.id), ("--json",), ("show", row.id, "--json"), ("approve", row.id, "--always"))
    for args in (*shown, ("grants",), ("grants", "--json")):
        _, out, err = approvals(*args)
        assert "\x1b[2J" not in out + err
        assert "\u202e" not in out + err
        assert "\x9b" not in out + err
        assert not any(line.strip().startswith("\\u202ename") for line in out.splitlines()), args


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no", ""),
        ("n", ""),
        ("No.", ""),
        ("no, use the other file", "use the other file"),
        ("n: Too late.", "Too late."),
    ],
)
def test_a_no_may_say_why(text, message):
    assert (approval_prompt._DENY.match(text)[1] or "").strip() == message


@pytest.mark.parametrize("text", ["nothing", "not sure", "now", "maybe no"])
def test_a_word_that_only_begins_like_no_is_not_a_denial(text):
    assert approval_prompt._DENY.match(text) is None


# At the terminal of a run.


@pytest.mark.slow
def test_a_question_that_is_answered_elsewhere_is_withdrawn(terminal, script, store, rules):
    screen = terminal("run", "task", "-m", script(CALL, "done"))
    screen.wait_for("[e]dit: ")
    decide(store, waiting(store), "edit", arguments={"expression": "2+3"})
    screen.wait_for("calculate was edited by bob")
    assert screen.end() == 0
    assert "tool calculate ok: 5" in screen.text


@pytest.mark.slow
def test_a_partial_answer_to_a_withdrawn_question_is_discarded(terminal, script, store, rules):
    screen = terminal("chat", "-m", script(CALL, "done", "what is that?"))
    screen.wait_for("❯ ")
    screen.send("go\n")
    screen.wait_for("[e]dit: ")
    screen.send("ye")
    screen.wait_for("ye")
    decide(store, waiting(store))
    screen.wait_for("done")
    screen.wait_for("❯ ")
    screen.send("/quit\n")
    assert screen.end() == 0
    assert "what is that?" not in screen.text


@pytest.mark.slow
def test_an_answer_at_the_terminal_may_say_why_or_be_remembered(terminal, script, store, rules):
    turns = [[CALL, {"tool": "calculate", "arguments": {"expression": "6*8"}}], CALL, "done"]
    screen = terminal("run", "task", "-m", script(*turns))
    screen.wait_for("[e]dit: ")
    screen.send("no, use paper\n")
    screen.wait_for("[e]dit: ")
    screen.send("session\n")
    screen.wait_for("(empty: these;")
    screen.send("expression='6?['\n")
    screen.wait_for("does not match")
    screen.wait_for("[e]dit: ")
    screen.send("session expression='6?[78]'\n")
    assert screen.end() == 0
    assert "The user denied this call: use paper" in screen.text
    assert screen.text.count("tool calculate ok: 4") == 2
    (grant,) = store.grants()
    assert (grant.pattern, grant.by) == ({"expression": "6?[78]"}, "ann@terminal")


@pytest.mark.slow
def test_without_the_file_the_question_is_still_asked(terminal, script, folder, rules):
    (folder / "approvals.db").write_text("not a database, but long enough to look like one" * 100)
    screen = terminal("run", "task", "-m", script(CALL, CALL, "done"))
    screen.wait_for("note: this call can only be decided here, not with hookline approvals: ")
    for _ in range(2):
        screen.wait_for("[y]es / [n]o / [e]dit: ")
        screen.send("yes\n")
    assert screen.end() == 0
    assert screen.text.count("tool calculate ok: 42") == 2
    assert screen.text.count("can only be decided here") == 1


@pytest.mark.slow
def test_a_run_without_a_terminal_can_wait(start, script, store, rules):
    running = start("run", "task", "-m", script(CALL, "done"), "--wait")
    row = waiting(store)
    decide(store, row)
    _, err = running.communicate()
    assert f"waiting: calculate needs approval: hookline approvals show {row.id[5:13]}" in err
    assert "tool calculate ok: 42" in err
    assert "calculate approved by bob" in err


def test_watch_asks_about_each_new_call(terminal, store, rules):
    first = ask(store, path="a")
    screen = terminal("approvals", "--watch")
    screen.wait_for('write_file (worker) wants to run with {"path":"a"}')
    screen.wait_for("[e]dit: ")
    screen.send("skip\n")
    screen.wait_for("Ctrl-C quits")
    second = ask(store, path="b")
    screen.wait_for('{"path":"b"}')
    screen.wait_for("[e]dit: ")
    screen.send("no, not b\n")
    screen.wait_for("denied")
    third = ask(store, path="c")
    screen.wait_for('{"path":"c"}')
    screen.wait_for("[e]dit: ")
    decide(store, third)
    screen.wait_for("write_file was approved by bob")
    screen.interrupt("\n")
    assert screen.end() == 0
    assert [store.find(row.id).status for row in (first, second, third)] == ["pending", "denied", "approved"]


def test_watch_without_a_terminal_prints_new_calls(start, store, rules):
    watching = start("approvals", "--watch")
    row = ask(store, path="a")
    assert watching.stdout.readline().startswith(f'{row.id[5:13]}  write_file {{"path":"a"}}')


# Who may approve.

POLICY = """
[approval_policy.people.ann]
by = ["ann@terminal"]
can_approve = [{ tool = "*" }]

[approval_policy.people.bob]
can_approve = [{ tool = "calculate" }]

[approval_policy.people.cleo]
can_approve = [{ tool = "calculate" }]

[[approval_policy.four_eyes]]
tool = "calculate"
"""


def test_commands_obey_the_policy_that_is_stored_with_a_call(approvals, store):
    rights = {"can_approve": (CallPattern(tool="write_file", up_to=10),)}
    people = {"ann": ApproverRights(by=("ann@terminal",), **rights), "bob": ApproverRights(**rights)}
    store.policy = ApprovalPolicy(people=people, four_eyes=(CallPattern(above=5),))
    row = ask(store, amount=7)
    assert "Two people must approve it: ann or bob." in approvals("show", row.id)[1]
    code, out, _ = approvals("approve", row.id)
    assert (code, out.splitlines()[-1]) == (0, "Approved by ann@terminal. One more person must approve it: bob.")
    code, _, err = approvals("approve", row.id)
    assert (code, "ann has approved this call already" in err) == (2, True)
    assert decide(store, row).by == "ann@terminal and bob"


@pytest.mark.slow
def test_the_person_who_starts_a_run_does_not_approve_its_calls_at_the_terminal(terminal, script, store, rules, folder):
    (folder / "hookline.toml").write_text(POLICY)
    screen = terminal("run", "task", "-m", script(CALL, "done"), "--config", "hookline.toml")
    screen.wait_for("Two people must approve it: bob or cleo.")
    screen.wait_for("Approve?")
    screen.send("y")
    screen.wait_for("ann started the run that asks")
    row = waiting(store)
    assert decide(store, row).status == "pending"
    store.decide(row.id, decision="approve", digest=row.digest, by="cleo")
    screen.wait_for("done")
    assert store.find(row.id).by == "bob and cleo"


def test_the_option_that_approves_everything_is_refused_with_a_policy(in_process, monkeypatch, folder, script):
    monkeypatch.chdir(folder)
    (folder / "hookline.toml").write_text(POLICY)
    code, _, err = in_process("run", "task", "-m", script(CALL, "done"), "--yes", "--config", "hookline.toml")
    assert (code, "without the people of approval_policy" in err) == (2, True)
