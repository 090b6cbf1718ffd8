"""Questions about many served runs: the filters of lists, their verdicts, and what was refused."""

import json
import time

import pytest

from hookline.stores import RunRecord, RunStore, run_queries, runs
from hookline.stores.run_queries import open_runs, pulse, refusals, search_refusals, verdict_counts
from hookline.stores.runs import RunSearch, StoredEvent

NOW = time.time()


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "runs.db")
    yield made
    made.close()


def run(id, ago=100.0, **known):
    known = {"status": "completed", "created": NOW - ago, "ended": NOW - ago + 1, "owner": "me", **known}
    fields = {"agent": "helper", "session": "", "session_id": "s", "task_id": id, "correlation_id": f"c-{id}"}
    return RunRecord(**{"id": id, **fields, "transport": "api", "task": f"the task {id}", **known})


def event(id, seq, type="hook_executed", *, at=NOW, tool="", hook="", verb="", refused=0, **data):
    raw = json.dumps({"type": type, "seq": seq, "run_id": id, "at": at, **data}).encode()
    return StoredEvent(id, seq, type, at, raw, tool, hook, verb, refused)


def block(id, seq, **known):
    known = {"tool": "shell", "hook": "no_deleting", "reason": "nothing is deleted", "call_id": "1", **known}
    return event(id, seq, verb="block", refused=1, point="before_tool", **known)


@pytest.fixture
def filled(store):
    store.write(
        [
            run("a", 400, status="failed", reply="The Invoice is 50% paid"),
            run("b", 300, owner="you", agent="other"),
            run("c", 200, status="waiting", ended=None, host="elsewhere", pid=1),
            run("d", 100, task="snow_man in Ärmelkanal"),
        ],
        [
            event("a", 1, "tool_started", tool="shell"),
            block("a", 2),
            event("b", 1, tool="mail", hook="redact", verb="replace"),
            event("b", 2, tool="mail", hook="no_mail", verb="ask"),
            event("d", 1, "tool_ended", tool="mail"),
        ],
    )
    return store


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, "dcba"),
        ({"owner": "me"}, "dca"),
        ({"agent": "other"}, "b"),
        ({"states": ("waiting", "failed")}, "ca"),
        ({"states": ("failed", "completed")}, "dba"),
        ({"created_from": NOW - 300}, "dcb"),
        ({"created_to": NOW - 300}, "a"),
        ({"created_from": NOW - 300, "created_to": NOW - 100}, "cb"),
        ({"correlation_id": "c-b"}, "b"),
        ({"text": "invoice"}, "a"),
        ({"text": "the TASK"}, "cba"),
        ({"text": "50%"}, "a"),
        ({"text": "0%p"}, ""),
        ({"text": "w_m"}, "d"),
        ({"text": "s_ow"}, ""),
        ({"text": "Ärmel"}, "d"),
        ({"text": "\\"}, ""),
        ({"text": "\ud800"}, ""),
        ({"tool": "mail"}, "db"),
        ({"tool": "shell"}, "a"),
        ({"tool": "nothing"}, ""),
        ({"hook": "redact"}, "b"),
        ({"verb": "block"}, "a"),
        ({"hook": "redact", "verb": "ask"}, ""),  # one verdict has both
        ({"hook": "no_mail", "verb": "ask", "tool": "mail", "owner": "you"}, "b"),
    ],
)
def test_a_filter_finds_the_runs_that_match(filled, chosen, found):
    assert "".join(each.id for each in filled.runs(served=True, **chosen)) == found
    assert filled.count(served=True, **chosen) == len(found)
    search = filled.search(20, served=True, **chosen)
    assert ("".join(each.id for each in search.runs), search.stopped_at) == (found, "")


def test_a_filtered_list_has_pages(filled):
    assert [each.id for each in filled.runs(1, served=True, tool="mail")] == ["d"]
    assert [each.id for each in filled.runs(1, served=True, tool="mail", before="d")] == ["b"]
    assert filled.runs(1, served=True, tool="mail", before="b") == []


def test_a_search_that_takes_too_long_stops_and_says_where_to_go_on(filled, monkeypatch):
    monkeypatch.setattr(runs, "SEARCHED_AT_ONCE", 2)
    first = filled.search(5, served=True, tool="shell", seconds=0)
    assert first == RunSearch([], "c", NOW - 200, 2)
    assert [each.id for each in filled.search(5, served=True, tool="shell", seconds=0, before="c").runs] == ["a"]
    assert [each.id for each in filled.search(5, served=True, tool="shell", seconds=60).runs] == ["a"]
    assert [each.id for each in filled.search(1, served=True, text="the task", seconds=0).runs] == ["c"]  # enough
    mine = filled.search(5, served=True, owner="me", text="nothing", seconds=0)
    assert (mine.stopped_at, mine.looked_at) == ("c", 2)
    assert filled.search(5, served=True, owner="me", text="nothing", seconds=0, before="c") == RunSearch([])


def test_a_search_for_refusals_that_takes_too_long_stops_and_says_where_to_go_on(store, monkeypatch):
    monkeypatch.setattr(run_queries, "SEARCHED_AT_ONCE", 2)
    owners = {"a": "me", "b": "you", "c": "you", "d": "you", "e": "me"}
    ages = dict(zip(owners, (500, 300, 300, 300, 100), strict=True))
    store.write(
        [run(id, ages[id], owner=owner) for id, owner in owners.items()],
        [block(id, 1, at=NOW - ages[id]) for id in owners],
    )

    def searched(**chosen):
        found = search_refusals(store, chosen.pop("limit", 5), seconds=0, **chosen)
        return "".join(each.run_id for each in found.refusals), found.stopped_at, found.looked_at

    assert searched(owner="me") == ("e", "d:1", 2)
    assert searched(owner="me", before="d:1") == ("", "b:1", 2)
    assert searched(owner="me", before="b:1") == ("a", "", 0)
    assert searched(owner="me", limit=1) == ("e", "", 0)
    assert searched(owner="me", since=NOW - 350) == ("e", "d:1", 2)
    assert searched(owner="me", since=NOW - 350, before="d:1") == ("", "b:1", 2)
    assert searched(owner="me", until=NOW - 350) == ("a", "", 0)
    everything = search_refusals(store, 5, seconds=60)
    assert "".join(each.run_id for each in everything.refusals) == "edcba"


def test_verdicts_are_counted_by_run_and_verb(filled):
    assert verdict_counts(filled, ["a", "b", "c", "d"]) == {"a": {"block": 1}, "b": {"ask": 1, "replace": 1}}
    assert verdict_counts(filled, []) == {}


def test_a_refusal_has_its_reason_and_the_arguments_of_the_call(store):
    reply = event("a", 1, "model_replied", tool_calls=[{"id": "1", "name": "shell", "arguments": {"command": "rm x"}}])
    store.write([run("a")], [reply, block("a", 2), block("a", 3, call_id="unknown"), block("a", 4, call_id="")])
    last, unknown, found = refusals(store, 10)
    assert (found.hook, found.tool, found.point, found.verb) == ("no_deleting", "shell", "before_tool", "block")
    assert (found.reason, json.loads(found.arguments)) == ("nothing is deleted", {"command": "rm x"})
    assert (found.agent, found.owner, found.id) == ("helper", "me", "a:2")
    assert (unknown.arguments, last.arguments) == ("", "")


def test_a_refusal_in_a_subagent_belongs_to_the_run_of_the_caller(store):
    inner = {"type": "hook_executed", "run_id": "sub", "point": "before_tool", "call_id": "1", "reason": "no"}
    calls = [{"id": "1", "name": "shell", "arguments": {"n": 2}}]
    other = {"type": "model_replied", "run_id": "sub-2", "tool_calls": [{"id": "1", "name": "x", "arguments": {}}]}
    reply = {"type": "model_replied", "run_id": "sub", "tool_calls": calls}
    nested = event("a", 3, "subagent_event", tool="shell", hook="h", verb="block", refused=1, event=inner)
    before = [event("a", 1, "subagent_event", event=reply), event("a", 2, "subagent_event", event=other)]
    store.write([run("a")], [*before, nested])
    (found,) = refusals(store, 10, owner="me")
    assert (found.run_id, found.reason, found.arguments) == ("a", "no", '{"n": 2}')


def test_a_denial_names_the_person_and_the_message(store):
    denied = event("a", 1, "approval_decided", tool="mail", verb="denied", refused=1, by="ann", message="not today")
    store.write([run("a")], [denied])
    (found,) = refusals(store, 10)
    assert (found.verb, found.by, found.reason, found.hook) == ("denied", "ann", "not today", "")


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, [4, 3, 2, 1]),
        ({"owner": "me"}, [3, 2, 1]),
        ({"agent": "other"}, [4]),
        ({"tool": "mail"}, [2]),
        ({"hook": "h"}, [3]),
        ({"verb": "denied"}, [1]),
        ({"since": NOW - 20}, [4, 3, 2]),
        ({"until": NOW - 20}, [1]),
        ({"tool": "mail", "verb": "denied"}, []),
        ({"before": "a:3"}, [2, 1]),
        ({"before": "a:1"}, []),
        ({"before": "nonsense"}, []),
    ],
)
def test_refusals_are_filtered_and_come_the_newest_first(store, chosen, found):
    store.write(
        [run("a"), run("b", owner="you", agent="other")],
        [
            event("a", 1, "approval_decided", at=NOW - 30, verb="denied", refused=1),
            block("a", 2, at=NOW - 20, tool="mail"),
            block("a", 3, at=NOW - 10, hook="h"),
            block("b", 4, at=NOW),
            event("b", 5, hook="h", verb="replace"),
        ],
    )
    assert [each.seq for each in refusals(store, 10, **chosen)] == found
    assert [each.seq for each in refusals(store, 1, **chosen)] == found[:1]


def test_every_change_of_runs_changes_the_pulse(store):
    def change(runs, events):
        before = pulse(store)
        store.write(runs, events)
        assert pulse(store) != before

    open_run = {"status": "running", "ended": None, "host": "elsewhere", "pid": 1}
    change([run("a", **open_run)], [])
    change([], [event("a", 1)])
    change([run("a", **{**open_run, "status": "waiting"})], [])
    change([run("a")], [])
    change([run("b", 50)], [])


def test_open_runs_say_when_their_last_event_was(store):
    durable = {"status": "running", "ended": None, "host": "durable", "pid": 0}
    store.write([run("a", 300, **durable), run("b", 200, **durable), run("c")], [event("a", 1, at=NOW - 5)])
    assert [(each.run.id, each.last_event) for each in open_runs(store, None, 10)] == [("b", NOW - 200), ("a", NOW - 5)]
