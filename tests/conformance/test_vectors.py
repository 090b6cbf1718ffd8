"""The table of vectors is complete: every verb at every point of a run, every failure policy, every approval."""

from collections import Counter
from fnmatch import fnmatchcase

from hookline._kernel.points import is_fired_by_loop
from hookline.points import POINTS

from .vectors import doors, groups, vectors

RUN_POINTS = [point for point in POINTS.values() if is_fired_by_loop(point) or point == "before_compaction"]


def rules():
    return [rule for vector in vectors() for rule in vector.hooks]


def test_each_verb_at_each_point_that_allows_it_is_a_vector():
    wanted = {(point, verb) for point in RUN_POINTS for verb in point.verbs}
    assert wanted - {(rule.point, rule.verb) for rule in rules()} == set()


def test_a_hook_fails_closed_at_each_point_where_hooks_decide():
    deciding = {point for point in RUN_POINTS if point.verbs or point.model in ("merge", "claim")}
    closed = {rule.point for rule in rules() if rule.verb == "raise" and rule.on_failure in ("", "closed")}
    assert deciding - closed == set()


def test_each_failure_and_each_policy_is_a_vector():
    found = {(rule.verb, rule.on_failure or "closed") for rule in rules() if rule.point == "before_tool"}
    assert {(how, policy) for how in ("raise", "hang", "nonsense") for policy in ("closed", "block", "open")} <= found


def test_each_decision_about_an_approval_is_a_vector():
    decisions = {each.decision for vector in vectors() for each in vector.expect.approvals}
    assert decisions == {"approved", "denied", "edited", "cancelled"}


def test_each_status_and_each_outcome_of_a_call_is_expected_somewhere():
    assert {v.expect.status for v in vectors()} == {"completed", "stopped", "ended", "failed", "cancelled"}
    outcomes = {call.outcome for vector in vectors() for call in vector.expect.calls}
    assert outcomes == {"ok", "error", "blocked", "answered", "cancelled"}


def test_names_are_unique():
    assert [id for id, count in Counter(vector.id for vector in vectors()).items() if count > 1] == []
    assert all(some for _, some in groups().values())


def test_what_a_door_cannot_do_names_vectors_that_exist_and_has_a_reason():
    for door in doors().values():
        for listed in (*door.cannot, *door.partly):
            assert listed.reason.endswith(".")
            for glob in listed.vectors:
                assert any(fnmatchcase(vector.id, glob) for vector in vectors()), (door.id, glob)
        assert any(door.why_not(vector) is None for vector in vectors())
