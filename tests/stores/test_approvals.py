"""ApprovalStore: each call is decided once, by the first decider, who must have seen this call."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline._kernel.payloads import ApprovalRequest, ToolCallRequest
from hookline._kernel.values import Ids
from hookline.payloads import Question
from hookline.stores import ApprovalStore, DecisionRefusedError, StoreError, approvals
from hookline.stores.approvals import matches
from hookline.stores.errors import LockedFileError
from hookline.stores.leases import process_start
from tests.environment import with_source
from tests.properties import examples

ROOT = Path(__file__).parents[2]
IDS = Ids("run_1", "task_1", "corr_1", "session_1", "agent_1")


def request(tool="write", hooks=("careful",), **arguments):
    call = ToolCallRequest("call_1", tool, arguments)
    return ApprovalRequest(call, tuple(Question("May it?", hook, "rule 7") for hook in hooks), call.digest)


@pytest.fixture
def store(tmp_path):
    made = ApprovalStore(tmp_path / "approvals.db")
    yield made
    made.close()


def ask(store, *, seconds=60, ids=IDS, owner="", root_id="", **call):
    return store.ask(request(**call), seconds=seconds, ids=ids, owner=owner, root_id=root_id)


def decide(store, row, decision="approve", **more):
    return store.decide(row.id, decision=decision, **{"digest": row.digest, "by": "ann", **more})


def refusal(store, row, *args, **more):
    with pytest.raises(DecisionRefusedError) as caught:
        decide(store, row, *args, **more)
    return caught.value


# Asking and deciding.


def test_a_call_is_stored_with_its_exact_arguments_and_the_asking_hooks(store):
    arguments = {"path": "a/b", "deep": {"list": [1, 2.5, None, True, "é\n"]}, "big": 2**70}
    row = ask(store, owner="o", root_id="root", hooks=("careful", "guard"), **arguments)
    assert store.find(row.id) == row == store.rows()[0]
    assert row.arguments == arguments
    assert (row.status, row.hooks, row.digest) == ("pending", ("careful", "guard"), request(**arguments).digest)
    assert (row.run_id, row.root_id, row.session_id, row.agent) == ("run_1", "root", "session_1", "agent_1")
    assert (row.owner, row.correlation_id, row.questions[0].reason) == ("o", "corr_1", "rule 7")
    assert row.expires == row.asked + 60
    assert ask(store).root_id == "run_1"


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "b\udfff", {"\ud800": 1}])
def test_arguments_that_json_cannot_express_are_not_asked_about_and_no_edit_has_them(store, value):
    """The approver would see another value than the tool gets."""
    with pytest.raises(ValueError, match="JSON|surrogate"):
        ask(store, path=value)
    row = ask(store, path="a")
    with pytest.raises(DecisionRefusedError, match="the new arguments are not a JSON object: path"):
        decide(store, row, decision="edit", arguments={"path": value})
    assert decide(store, row, message="\ud800").message == "?"


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        ({"decision": "approve", "message": "fine"}, "approved"),
        ({"decision": "deny", "message": "use the other file"}, "denied"),
        ({"decision": "edit", "arguments": {"path": "b", "n": [1]}}, "edited"),
    ],
)
def test_a_decision_is_stored_with_its_decider(store, decision, status):
    row = ask(store, path="a")
    done = store.decide(row.id, digest=row.digest, by="ann", **decision)
    assert done == store.find(row.id)
    assert (done.status, done.by, done.message) == (status, "ann", decision.get("message", ""))
    assert done.edit == decision.get("arguments")
    assert done.arguments == {"path": "a"}
    assert done.decided >= done.asked


def test_a_call_is_decided_once_and_later_decisions_are_refused(store):
    row = ask(store)
    decide(store, row, "deny")
    late = refusal(store, row, by="bob")
    assert (late.code, late.row.by) == ("gone", "ann")
    assert "it was denied by ann" in str(late)
    assert store.find(row.id).status == "denied"


def test_a_decision_with_the_wrong_digest_is_refused(store):
    row = ask(store, path="a")
    assert refusal(store, row, digest=request(path="b").digest).code == "digest"
    assert store.find(row.id).status == "pending"


def test_an_expired_call_cannot_be_decided(store, monkeypatch):
    row = ask(store, seconds=60)
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    assert store.find(row.id).status == "expired"
    assert (store.pending_count(), store.rows(status="pending")) == (0, [])
    assert [found.id for found in store.rows(status="expired")] == [row.id]
    assert refusal(store, row).code == "gone"


def test_ending_a_call_does_not_change_an_earlier_decision(store):
    decided, cancelled = ask(store), ask(store)
    decide(store, decided)
    assert store.end_pending(decided.id, "expired").status == "approved"
    assert store.end_pending(cancelled.id, "cancelled").status == "cancelled"
    assert "its run has ended" in str(refusal(store, cancelled))


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        ({"decision": "maybe"}, "approve, deny or edit"),
        ({"by": " "}, "the name of the decider"),
        ({"by": None}, "the name of the decider"),
        ({"digest": None}, "the digest"),
        ({"message": "x" * 4001}, "at most 4000"),
        ({"arguments": {}}, "required for edit"),
        ({"decision": "edit"}, "required for edit"),
        ({"decision": "edit", "arguments": [1]}, "JSON object"),
        ({"decision": "edit", "arguments": {"a": object()}}, "not a JSON object"),
        ({"remember": "never"}, "once, session or always"),
        ({"decision": "deny", "remember": "always"}, "only an approval"),
        ({"pattern": {"path": "*"}}, "a pattern needs remember=session"),
        ({"remember": "always", "pattern": {}}, "argument names to globs"),
        ({"remember": "always", "pattern": {"path": 1}}, "must be a text of at most 1000"),
        ({"remember": "always", "pattern": {"path": "x" * 1001}}, "must be a text of at most 1000"),
        ({"remember": "always", "pattern": {"path": "b*"}}, "does not cover this call"),
        ({"remember": "always", "pattern": {"path": "a", "mode": "*"}}, "does not cover this call"),
    ],
)
def test_an_invalid_decision_is_refused_and_changes_nothing(store, decision, why):
    row = ask(store, path="a")
    bad = refusal(store, row, **decision)
    assert (bad.code, why in str(bad)) == ("bad", True), str(bad)
    assert (store.find(row.id).status, store.grants()) == ("pending", [])


def test_rows_are_found_by_owner_run_and_status(store):
    mine, other = ask(store, owner="me", root_id="r1"), ask(store, owner="you", root_id="r2")
    decide(store, other)
    assert [row.id for row in store.rows()] == [other.id, mine.id]
    assert [row.id for row in store.rows(owner="me")] == [mine.id]
    assert [row.id for row in store.rows(root_id="r2")] == [other.id]
    assert [row.id for row in store.rows(status="approved")] == [other.id]
    assert [row.id for row in store.rows(limit=1)] == [other.id]
    assert store.pending_count() == 1
    for act in (lambda: store.find(mine.id, owner="you"), lambda: decide(store, mine, owner="you")):
        with pytest.raises(StoreError, match="there is no call"):
            act()
    assert decide(store, mine, owner="me").status == "approved"


def test_ids_can_be_shortened_only_with_short(store):
    row = ask(store)
    assert store.find(row.id[:9], short=True) == store.find(row.id[5:9], short=True) == row
    for short in (row.id[:9], "", "%"):
        with pytest.raises(StoreError, match="there is no call"):
            store.find(short)
    ask(store)
    with pytest.raises(StoreError, match="more than one"):
        store.find("appr", short=True)


def test_old_calls_are_pruned_but_permanent_grants_are_not(store, monkeypatch):
    for remember in ("session", "always"):
        decide(store, ask(store, path=remember), remember=remember)
    ask(store)
    later = time.time() + 91 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    store._pruned = float("-inf")
    new = ask(store)
    assert [row.id for row in store.rows()] == [new.id]
    assert [grant.scope for grant in store.grants()] == ["always"]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "60", None, True])
def test_the_waiting_time_must_be_a_positive_number(store, seconds):
    with pytest.raises(StoreError, match="must be a positive number"):
        ask(store, seconds=seconds)


# Grants.


@pytest.mark.parametrize(
    ("pattern", "arguments", "covered"),
    [
        ({"path": "notes/*"}, {"path": "notes/a"}, True),
        ({"path": "notes/*"}, {"path": "notes/a/b\nc"}, True),
        ({"path": "notes/*"}, {"path": "other"}, False),
        ({"path": "notes/*"}, {"path": "Notes/a"}, False),
        ({"path": "notes/*"}, {"path": "notes/a", "mode": "w"}, False),
        ({"path": "notes/*"}, {}, False),
        ({"path": "notes/*", "*": "*"}, {"path": "notes/a", "mode": "w"}, True),
        ({"path": "notes/*", "*": "r"}, {"path": "notes/a", "mode": "w"}, False),
        ({"*": "*"}, {"path": ["any", {"thing": 1}]}, True),
        ({"*": "*"}, {}, True),
        ({"n": "1?"}, {"n": 12}, True),
        ({"n": "true"}, {"n": True}, True),
        ({"n": '{"a":1,"b":*}'}, {"n": {"b": [2], "a": 1}}, True),
        ({"n": "[*]"}, {"n": [1]}, False),
        ({"n": "[[]*]"}, {"n": [1]}, True),
    ],
)
def test_a_pattern_covers_a_call_if_every_argument_matches(pattern, arguments, covered):
    assert matches(pattern, arguments) is covered


@given(
    st.dictionaries(st.text(max_size=3), st.text("ab*?", max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.text("ab", max_size=3) | st.integers(0, 3), max_size=3),
)
@settings(max_examples=examples(60))
def test_every_argument_needs_a_glob(pattern, arguments):
    if matches(pattern, arguments) and "*" not in pattern:
        assert set(arguments) == set(pattern)


def test_a_grant_without_a_pattern_covers_exactly_the_same_arguments(store):
    decide(store, ask(store, path="a*", n=1), remember="session")
    assert ask(store, n=1, path="a*").status == "approved"
    for other in ({"path": "ab", "n": 1}, {"path": "a*", "n": "1"}, {"path": "a*"}, {"path": "a*", "n": 1, "m": 0}):
        assert ask(store, **other).status == "pending"
    (grant,) = store.grants()
    assert (grant.pattern, grant.arguments, grant.by) == ({}, {"path": "a*", "n": 1}, "ann")
    assert store.rows(status="approved")[0].by == f"grant {grant.id} of ann"


def test_a_grant_holds_only_for_its_agent_owner_and_session(store):
    decide(store, ask(store, path="s", owner="o"), remember="session")
    decide(store, ask(store, path="a", owner="o"), remember="always")
    elsewhere, another = IDS.replace(session_id="session_2"), IDS.replace(agent="agent_2")

    def state(path, **more):
        return ask(store, **{"path": path, "owner": "o", **more}).status

    assert (state("s"), state("s", ids=another), state("s", ids=elsewhere)) == ("approved", "pending", "pending")
    assert (state("a"), state("a", ids=another), state("a", ids=elsewhere)) == ("approved", "pending", "approved")
    for owner in ("n", "p", ""):
        assert (state("a", owner=owner), state("s", owner=owner)) == ("pending", "pending")
    assert state("a", tool="read") == "pending"


def test_a_grant_answers_only_the_hooks_that_asked_for_it(store):
    decide(store, ask(store, hooks=("careful", "guard")), remember="always")
    assert ask(store, hooks=("guard",)).status == "approved"
    assert ask(store, hooks=("careful", "other")).status == "pending"


def test_a_new_grant_approves_pending_calls(store):
    first, second, other = ask(store, path="a/1"), ask(store, path="a/2"), ask(store, path="b")
    expired = ask(store, path="a/3", seconds=1e-9)
    decide(store, first, remember="session", pattern={"path": "a/*"})
    assert [store.find(row.id).status for row in (first, second, other)] == ["approved", "approved", "pending"]
    assert store.find(second.id).by.startswith("grant grant_")
    assert store.find(expired.id).status == "expired"


def test_a_new_grant_with_a_pattern_approves_no_pending_call_whose_arguments_are_not_stored(store):
    def hidden(value):
        return {"to": "[email]"} if hasattr(value, "items") else value

    def ask_about(to):
        return store.ask(request("mail", to=to), seconds=60, ids=IDS, clean=hidden)

    first, same, other = ask_about("ann@example.org"), ask_about("ann@example.org"), ask_about("eve@example.org")
    decide(store, first, remember="session", pattern={"to": "[[]email]"})
    assert store.find(other.id).status == "pending"
    decide(store, same, remember="session")
    assert (ask_about("ann@example.org").status, store.find(other.id).status) == ("approved", "pending")


def test_an_edit_with_too_many_values_is_refused(store):
    row = ask(store, path="a")
    for many in ({"path": [[]] * 10_001}, {str(n): n for n in range(10_001)}, {"path": [[0] * 200] * 51}):
        assert "more than 10,000 values" in str(refusal(store, row, "edit", arguments=many))
    assert decide(store, row, "edit", arguments={"path": ["x"] * 9_000}).status == "edited"


def test_a_new_grant_does_not_approve_pending_calls_outside_its_scope(store):
    others = [
        ask(store, owner="o", ids=IDS.replace(session_id="session_2")),
        ask(store, owner="p"),
        ask(store, owner="o", ids=IDS.replace(agent="agent_2")),
        ask(store, owner="o", tool="read"),
        ask(store, owner="o", hooks=("careful", "other")),
        ask(store, owner="o", path="b"),
    ]
    same = ask(store, owner="o")
    decide(store, ask(store, owner="o"), remember="session")
    assert [store.find(row.id).status for row in (same, *others)] == ["approved"] + ["pending"] * 6


def test_a_revoked_grant_approves_no_call(store):
    decide(store, ask(store, owner="o"), remember="always")
    (grant,) = store.grants(owner="o")
    assert store.grants(owner="p") == []
    with pytest.raises(StoreError, match="there is no permission"):
        store.revoke(grant.id, owner="p")
    store.revoke(grant.id[6:12], short=True)
    assert (store.grants(), ask(store, owner="o").status) == ([], "pending")


def test_a_call_without_a_session_cannot_be_remembered_for_the_session(store):
    assert refusal(store, ask(store, ids=Ids("run_1")), remember="session").code == "bad"


# Several processes.

DECIDE = """
import sys
from hookline.stores import ApprovalStore, DecisionRefusedError
store = ApprovalStore(sys.argv[1])
sys.stdin.readline()
for row in reversed(store.rows(limit=1000)):
    try:
        store.decide(row.id, decision="approve", digest=row.digest, by=sys.argv[2])
        print(row.id, sys.argv[2])
    except DecisionRefusedError as refused:
        print(row.id, refused.row.by)
"""


def python(code, *args, **more):
    env = with_source()
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **more,
    )


def test_if_two_processes_decide_at_once_one_wins_and_the_other_is_refused(store):
    rows = [ask(store, n=n) for n in range(30)]
    both = [python(DECIDE, store.path, name) for name in ("ann", "bob")]
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [dict(line.split() for line in process.communicate()[0].splitlines()) for process in both]
    assert printed[0] == printed[1] == {row.id: store.find(row.id).by for row in rows}


def test_a_call_of_a_dead_process_is_cancelled(store):
    code = """
import sys
sys.path.insert(0, sys.argv[2])
from test_approvals import *
print(ask(ApprovalStore(sys.argv[1]), path="a").id)
"""
    process = python(code, store.path, Path(__file__).parent)
    row = store.find(process.communicate()[0].strip())
    assert process.returncode == 0
    assert (row.status, store.pending_count(), store.rows(status="pending")) == ("cancelled", 0, [])
    assert [found.id for found in store.rows(status="cancelled")] == [row.id]
    assert refusal(store, row).code == "gone"
    decide(store, ask(store, path="b"), remember="session", pattern={"path": "*"})
    assert store.find(row.id).status == "cancelled"


@pytest.mark.skipif(process_start(os.getpid()) is None, reason="the system does not tell when programs began")
@pytest.mark.sqlite  # on PostgreSQL a process has a lease
def test_a_call_of_a_dead_process_is_cancelled_even_if_its_pid_is_reused(store):
    row = ask(store)
    with store.db.transaction(write=True) as db:
        db.execute("UPDATE approvals SET born = born - 0.01")  # as in a container, where each main process has pid 1
    assert (store.find(row.id).status, store.pending_count(), refusal(store, row).code) == ("cancelled", 0, "gone")


@pytest.mark.parametrize("jump", [-7200, 7200])
def test_a_clock_change_cancels_no_call_of_another_process(store, monkeypatch, jump):
    row, now = ask(store, seconds=86400), time.time() + jump
    monkeypatch.setattr(time, "time", lambda: now)
    assert store.find(row.id).status == "pending"


def test_a_process_on_another_machine_counts_as_running_for_a_day(store, monkeypatch):
    row = ask(store, seconds=1e6)
    with store.db.transaction(write=True) as db:
        db.execute("UPDATE approvals SET host = 'far away'")
    assert store.find(row.id).status == "pending"
    later = time.time() + 86401
    monkeypatch.setattr(time, "time", lambda: later)
    assert store.find(row.id).status == "cancelled"


# Watching for decisions.


class Callback(list):
    """Collects the outcomes that a callback gets, and its threads."""

    def __init__(self):
        self.event, self.threads = threading.Event(), set()

    def __call__(self, outcome):
        self.append(outcome)
        self.threads.add(threading.current_thread())
        self.event.set()

    def wait(self):
        assert self.event.wait(60)
        return self


def test_a_decision_of_this_process_reaches_the_watcher_at_once(store, monkeypatch):
    monkeypatch.setattr(approvals, "POLL_SECONDS", 3600)
    other, callback, row = ApprovalStore(store.path), Callback(), ask(store)
    with store.watch(row.id, callback):
        done = decide(other, row)
        assert callback.wait() == [done]
    other.close()


def test_a_decision_made_before_watching_reaches_the_watcher(store, monkeypatch):
    monkeypatch.setattr(approvals, "POLL_SECONDS", 3600)
    callback, row = Callback(), ask(store)
    with store.db.transaction(write=True) as db:  # as another process would
        db.execute("UPDATE approvals SET status = 'approved'")
    with store.watch(row.id, callback):
        assert [outcome.status for outcome in callback.wait()] == ["approved"]


def test_one_thread_polls_for_all_watchers_and_ends_with_the_last(store, monkeypatch):
    monkeypatch.setattr(approvals, "POLL_SECONDS", 0.01)
    looks = Counter()
    look = store._watcher._read
    store._watcher._read = lambda ids: looks.update([len(ids)]) or look(ids)
    rows, callback = [ask(store, n=n) for n in range(5)], [Callback() for _ in range(5)]
    blocks = [store.watch(row.id, one) for row, one in zip(rows, callback, strict=True)]
    for block in blocks:
        block.__enter__()
    thread = store._watcher._thread
    for row in rows:
        decide(store, row)
    assert {one.wait().threads.pop() for one in callback} == {thread}
    for block in blocks:
        block.__exit__(None, None, None)
    thread.join(60)
    assert not thread.is_alive()
    assert store._watcher._thread is None
    assert max(looks) <= 5


def test_a_watcher_that_has_left_is_not_called(store):
    callback, row = Callback(), ask(store)
    with store.watch(row.id, callback):
        pass
    decide(store, row)
    assert callback == []


def test_a_failing_thread_start_or_callback_does_not_affect_other_watchers(store, monkeypatch, caplog):
    rows, callback = [ask(store, n=n) for n in range(2)], Callback()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError), store.watch(rows[0].id, callback):
            pass
    failing = Callback()
    with store.watch(rows[0].id, lambda outcome: (failing(outcome), 1 / 0)), store.watch(rows[1].id, callback):
        decide(store, rows[0])
        failing.wait()
        done = decide(store, rows[1])
        assert callback.wait() == [done]
    assert "callback for the decision" in caplog.text


# Unusable files.


@pytest.mark.sqlite
def test_watchers_wait_while_the_file_is_locked(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("hookline.stores.sqlite.BUSY_SECONDS", 0.01)
    monkeypatch.setattr(approvals, "POLL_SECONDS", 0.01)
    before = ApprovalStore(tmp_path / "approvals.db")
    callback, row = Callback(), ask(before)
    before.close()
    holder = sqlite3.connect(before.path, isolation_level=None)
    holder.execute("PRAGMA locking_mode=EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    store = ApprovalStore(before.path)
    with pytest.raises(StoreError, match="was locked"):
        ask(store)
    with store.watch(row.id, callback):
        while "cannot read decisions" not in caplog.text:
            time.sleep(0.005)
        assert callback == []
        holder.execute("COMMIT")
        holder.close()
        done = None
        while done is None:  # threads behind a failed poll fail at once too
            with suppress(LockedFileError):
                done = decide(store, row)
        assert callback.wait() == [done]
    assert caplog.text.count("cannot read decisions") >= 1
    store.close()


@pytest.mark.sqlite
def test_if_the_file_is_deleted_watchers_get_an_error_and_the_next_call_creates_a_new_file(store):
    callback, row = Callback(), ask(store)
    with store.watch(row.id, callback):
        for name in ("-wal", "-shm", ""):  # the watcher creates a new file as soon as it does not find its own
            Path(f"{store.path}{name}").unlink(missing_ok=True)
        assert "deleted or replaced" in str(callback.wait()[0])
    with pytest.raises(StoreError, match="there is no call"):
        decide(store, row)
    new = ask(store)
    other = ApprovalStore(store.path)
    assert [found.id for found in other.rows()] == [new.id]
    other.close()


@pytest.mark.sqlite
def test_if_the_file_is_damaged_watchers_get_an_error(store):
    callback, row = Callback(), ask(store)
    with store.watch(row.id, callback):
        other = Path(f"{store.path}.new")
        other.write_text("not a database, but long enough to look like one" * 100)
        other.replace(store.path)
        assert "is not a SQLite database" in str(callback.wait()[0])
    with pytest.raises(StoreError, match="is not a SQLite database"):
        ask(store)


@pytest.mark.sqlite
def test_a_file_that_cannot_be_written_is_an_error(store):
    row = ask(store)
    with store.db.transaction() as db:
        db.execute("PRAGMA query_only=ON")
    with pytest.raises(StoreError, match="read-only"):
        decide(store, row)
    assert store.find(row.id).status == "pending"


def test_a_damaged_row_is_an_error(store):
    row = ask(store)
    with store.db.transaction(write=True) as db:
        db.execute("UPDATE approvals SET arguments = 'no JSON'")
    with pytest.raises(StoreError, match="is damaged"):
        store.find(row.id)


@pytest.mark.sqlite
def test_the_file_is_created_when_first_used(tmp_path):
    store = ApprovalStore(tmp_path / "sub" / "approvals.db")
    assert not (tmp_path / "sub").exists()
    store.open()
    assert (tmp_path / "sub" / "approvals.db").stat().st_mode & 0o077 == 0
    assert approvals.KEEP_DAYS == 90
    store.close()
