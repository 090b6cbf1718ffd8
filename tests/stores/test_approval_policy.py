"""ApprovalPolicy: who may approve which calls, and which calls need two people."""

import sqlite3
from contextlib import closing

import msgspec
import pytest

from hookline.stores import ApprovalPolicy, ApprovalStore, ApproverRights, CallPattern, DecisionRefusedError, approvals

from .test_approvals import IDS, decide, refusal, request

REFUND = CallPattern(tool="refund", up_to=500)
POLICY = ApprovalPolicy(
    people={
        "ann": ApproverRights(by=("ann@terminal", "slack:U1"), can_approve=(REFUND, CallPattern(tool="note"))),
        "ben": ApproverRights(by=("key_ben",), can_approve=(CallPattern(),)),
        "cleo": ApproverRights(can_approve=(CallPattern(),)),
    },
    four_eyes=(CallPattern(tool="refund", above=300), CallPattern(tool="deploy", where={"env": "prod*"})),
)


@pytest.fixture
def store(tmp_path):
    made = ApprovalStore(tmp_path / "approvals.db", policy=POLICY)
    yield made
    made.close()


@pytest.fixture
def elsewhere(store):
    """The same calls in a program that was given no policy."""
    made = ApprovalStore(store.path)
    yield made
    made.close()


def ask(store, tool="refund", *, asked_by="dan", **arguments):
    return store.ask(request(tool, **arguments), seconds=60, ids=IDS, asked_by=asked_by)


def test_people_approve_the_tools_and_amounts_that_they_may(store, elsewhere):
    row = ask(store, amount=200)
    assert row.approvers == ("ann", "ben", "cleo")
    assert decide(elsewhere, row, by="slack:U1").approved_by[0].person == "ann"
    large = ask(store, amount=501)
    refused = refusal(elsewhere, large, by="ann@terminal")
    assert (refused.code, "ann may not approve this call of refund" in str(refused)) == ("rights", True)
    assert refusal(elsewhere, ask(store, "delete"), by="ann@terminal").code == "rights"
    assert "dora is not in people" in str(refusal(elsewhere, ask(store, "note"), by="dora"))
    assert store.find(large.id).status == "pending"


@pytest.mark.parametrize("amount", ["200", -200, 200.0, 0])
def test_an_amount_counts_by_its_size_also_as_text(store, amount):
    assert decide(store, ask(store, amount=amount), by="slack:U1").status == "approved"


@pytest.mark.parametrize(
    "arguments",
    [{}, {"amount": "two hundred"}, {"amount": "1e3"}, {"amount": None}, {"amount": True}, {"amount": [5]}]
    + [{"amount": 10**400}, {"amount": -501}, {"amount": "501"}],
)
def test_an_amount_that_cannot_be_judged_is_above_every_limit(store, arguments):
    row = ask(store, **arguments)
    assert refusal(store, row, by="slack:U1").code == "rights"
    assert row.needed == 2


@pytest.mark.parametrize("amount", ["300.00000000000000000001", "-300.00000000000000000001", 10**30, "9" * 300])
def test_an_amount_is_compared_with_all_its_digits(amount):
    above, up_to = CallPattern(above=300), CallPattern(up_to=300)
    assert above.matches("refund", {"amount": amount}, unknown=False)
    assert not up_to.matches("refund", {"amount": amount}, unknown=True)


@pytest.mark.parametrize("amount", ["0.3", "0.30", 0.3, "-0.3"])
def test_the_limit_itself_is_not_above_it(amount):
    assert not CallPattern(above=0.3).matches("refund", {"amount": amount}, unknown=True)
    assert CallPattern(up_to=0.3).matches("refund", {"amount": amount}, unknown=False)


def test_two_different_people_approve_a_call_that_needs_four_eyes(store, elsewhere):
    row = ask(store, amount=400)
    assert row.who_is_needed == "Two people must approve it: ann or ben or cleo."
    half = decide(elsewhere, row, by="slack:U1")
    assert (half.status, half.needed, half.approvers, half.by) == ("pending", 1, ("ben", "cleo"), "")
    assert store.find(row.id) == half
    assert half.who_is_needed == "Approved by slack:U1. One more person must approve it: ben or cleo."
    again = refusal(elsewhere, row, by="ann@terminal")  # the same person, through another door
    assert (again.code, "ann has approved this call already" in str(again)) == ("rights", True)
    done = decide(elsewhere, row, by="key Ben (key_ben)", person="key_ben")
    assert (done.status, done.by, done.needed) == ("approved", "slack:U1 and key Ben (key_ben)", 0)
    assert [each.person for each in store.find(row.id).approved_by] == ["ann", "ben"]


def test_one_denial_is_enough_also_after_an_approval_and_by_anybody(store):
    row = ask(store, amount=400)
    decide(store, row, by="ben")
    assert decide(store, row, "deny", by="dan", message="I was wrong").status == "denied"


def test_a_pattern_with_an_argument_that_the_call_lacks_needs_two_people(store):
    assert ask(store, "deploy", env="staging").needed == 1
    assert ask(store, "deploy", env="prod-eu").needed == 2
    assert ask(store, "deploy").needed == 2


def test_nobody_approves_the_calls_of_their_own_run_unless_it_is_allowed(store, tmp_path):
    row = ask(store, "note", asked_by="slack:U1")
    assert row.approvers == ("ben", "cleo")
    refused = refusal(store, row, by="ann@terminal")  # the same person asks in Slack and decides at a terminal
    assert (refused.code, "ann started the run" in str(refused)) == ("rights", True)
    own = ApprovalStore(tmp_path / "own.db", policy=msgspec.structs.replace(POLICY, own_calls=True))
    assert decide(own, ask(own, "note", asked_by="slack:U1"), by="ann@terminal").status == "approved"
    owned = store.ask(request("note"), seconds=60, ids=IDS, owner="key_ben")
    assert refusal(store, owned, by="key Ben (key_ben)", person="key_ben").code == "rights"


def test_an_edit_needs_the_rights_for_the_new_arguments(store):
    row = ask(store, amount=100)
    edited = {"decision": "edit", "by": "ann"}
    assert refusal(store, row, arguments={"amount": 900}, **edited).code == "rights"
    assert "two people" in str(refusal(store, row, arguments={"amount": 400}, **edited))
    assert refusal(store, ask(store, amount=400), arguments={"amount": 1}, **edited).code == "rights"
    assert decide(store, row, arguments={"amount": 50}, **edited).status == "edited"


def test_a_permission_covers_only_calls_that_its_giver_may_approve_alone(store):
    everything = {"remember": "always", "pattern": {"*": "*"}}
    decide(store, ask(store, amount=100), by="ann", **everything)
    assert ask(store, amount=300).status == "approved"
    assert ask(store, amount=301).status == "pending"
    assert ask(store, amount=600).status == "pending"
    assert ask(store, amount=100, asked_by="slack:U1").status == "pending"
    assert refusal(store, ask(store, amount=400), by="ben", **everything).code == "rights"
    waiting = ask(store, "note", text="a", asked_by="slack:U1")
    decide(store, ask(store, "note", text="b"), by="ann", **everything)
    assert store.find(waiting.id).status == "pending"


def test_a_permission_from_before_the_policy_covers_nothing_that_its_giver_may_not_approve(store, elsewhere):
    decide(elsewhere, ask(elsewhere, amount=1), by="dora", remember="always", pattern={"*": "*"})
    assert ask(elsewhere, amount=2).status == "approved"
    assert ask(store, amount=2).status == "pending"


def test_a_call_that_too_few_people_may_approve_is_denied_at_once(tmp_path):
    two = {"ann": ApproverRights(can_approve=(REFUND,)), "ben": ApproverRights(can_approve=(REFUND,))}
    store = ApprovalStore(tmp_path / "a.db", policy=ApprovalPolicy(people=two, four_eyes=(CallPattern(),)))
    assert ask(store, amount=1).status == "pending"
    for row in (ask(store, amount=501), ask(store, amount=1, asked_by="ann"), ask(store, "note")):
        assert (row.status, row.by) == ("denied", "approval policy")
        assert "too few people" in row.message


def test_a_partial_approval_changes_the_pulse_so_that_open_pages_show_it(store):
    row = ask(store, amount=400)
    before = store.pulse()
    decide(store, row, by="ben")
    assert store.pulse() != before


def test_without_a_policy_the_first_approval_counts_and_is_kept(elsewhere):
    row = decide(elsewhere, ask(elsewhere, amount=1_000_000, asked_by="dora"), by="dora")
    assert (row.status, row.approvers, row.who_is_needed) == ("approved", (), "")
    assert [(each.by, each.person) for each in row.approved_by] == [("dora", "dora")]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: ApprovalPolicy(people={}), "nobody may approve"),
        (lambda: ApproverRights(can_approve=()), "can_approve is empty"),
        (
            lambda: ApprovalPolicy(people={"a": ApproverRights(can_approve=(REFUND,))}, four_eyes=(REFUND,)),
            "two people",
        ),
        (
            lambda: ApprovalPolicy(
                people={
                    "a": ApproverRights(by=("x",), can_approve=(REFUND,)),
                    "b": ApproverRights(by=("x",), can_approve=(REFUND,)),
                }
            ),
            "'x' stands for two people: a and b",
        ),
        (lambda: ApprovalPolicy(people={"a": ApproverRights(by=(" x",), can_approve=(REFUND,))}), "' x'"),
        (lambda: CallPattern(up_to=-1), "up_to must be a number"),
        (lambda: CallPattern(above=float("nan")), "above must be a number"),
        (lambda: CallPattern(above=5, up_to=5), "no amount is above 5"),
        (lambda: CallPattern(tool=""), "must not be empty"),
    ],
)
def test_a_policy_that_cannot_work_is_an_error(made, why):
    with pytest.raises(ValueError, match=why):
        made()


def test_a_decision_that_is_refused_names_the_call(store):
    row = ask(store, amount=1)
    with pytest.raises(DecisionRefusedError) as caught:
        decide(store, row, by="dora")
    assert caught.value.row == row


def test_a_file_of_the_first_version_keeps_its_calls_and_permissions(tmp_path, pytestconfig):
    if pytestconfig.getoption("database") == "postgresql":
        pytest.skip("the test writes an SQLite file")
    path = tmp_path / "old.db"
    first = msgspec.structs.replace(
        approvals.SCHEMA, version=1, statements=approvals._TABLES, upgrades={}, min_writer=1
    )
    with closing(sqlite3.connect(path)) as db, db:
        for statement in first.statements:
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {first.application_id}")
        db.execute("PRAGMA user_version = 1")
        known = {"id": "appr_1", "status": "approved", "arguments": "{}", "questions": "[]", "by": "ann", "owner": ""}
        db.execute(f"INSERT INTO approvals ({', '.join(known)}) VALUES (?, ?, ?, ?, ?, ?)", tuple(known.values()))
    store = ApprovalStore(path)
    (row,) = store.rows()
    assert (row.by, row.asked_by, row.policy, row.approved_by) == ("ann", "", None, ())
    assert decide(store, ask(store, amount=1)).status == "approved"


def test_a_call_needs_two_people_though_the_text_that_says_so_is_not_stored(store, elsewhere):
    asked = request("deploy", env="prod-7")
    row = store.ask(asked, seconds=60, ids=IDS, asked_by="dan", clean=hidden)
    assert (row.arguments, row.needed) == ({"env": "[hidden]"}, 2)
    assert decide(elsewhere, row, by="cleo").status == "pending"
    assert decide(elsewhere, row, by="key_ben").status == "approved"


def hidden(value):
    return dict.fromkeys(value, "[hidden]") if isinstance(value, dict) or hasattr(value, "items") else value


def test_a_right_is_judged_by_the_arguments_of_the_call_though_they_are_not_stored(tmp_path):
    people = {
        "ann": ApproverRights(can_approve=(CallPattern(tool="deploy", where={"env": "[!p]*"}),)),
        "ben": ApproverRights(can_approve=(CallPattern(tool="deploy"),)),
    }
    store = ApprovalStore(tmp_path / "approvals.db", policy=ApprovalPolicy(people=people))
    row = store.ask(request("deploy", env="prod"), seconds=60, ids=IDS, asked_by="dan", clean=hidden)
    assert (row.arguments, row.approvers) == ({"env": "[hidden]"}, ("ben",))  # "[hidden]" would match Ann's pattern
    assert refusal(store, row, by="ann").code == "rights"
    assert decide(store, row, by="ben").status == "approved"
    store.close()
