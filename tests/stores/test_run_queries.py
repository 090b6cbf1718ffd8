"""Questions about many served runs: the filters of lists, their verdicts, and what was refused."""

import json
import time
from contextlib import contextmanager
from operator import itemgetter

import msgspec
import pytest

from hookline.stores import RunRecord, RunStore, runs
from hookline.stores.facts import Gate, ObservedRun, RunFact
from hookline.stores.run_queries import open_runs, pulse, refusals, verdict_times
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


def event(id, seq, type="hook_executed", *, at=NOW, **data):
    raw = json.dumps({"type": type, "seq": seq, "run_id": id, "at": at, **data}).encode()
    return StoredEvent(id, seq, type, at, raw)


def fact(id, *gates, at=NOW, kind="fire", owner="me", asked="helper", root="", **known):
    about = ObservedRun(id, "some", root_run_id=root or id, asked=asked, owner=owner, rules="0123456789abcdef")
    refused = any(gate.refused for gate in gates)
    decided = gates[-1] if gates else Gate("", "")
    known = {"hook": decided.hook, "verb": decided.verb, "refused": refused, "reason": decided.reason, **known}
    return RunFact(about, at, kind, **known, gates=gates)


def block(id, *, hook="no_deleting", reason="nothing is deleted", tool="shell", call_id="1", **known):
    gate = Gate(hook, "guard", "block", 5, reason, True)
    return fact(id, gate, point="before_tool", tool=tool, call_id=call_id, **known)


def denied(id, **known):
    return fact(id, kind="approval", point="approval_requested", verb="denied", refused=True, **known)


@pytest.fixture
def filled(store):
    store.write(
        [
            run("a", 400, status="failed", reply="The Invoice is 50% paid"),
            run("b", 300, owner="you", agent="other"),
            run("c", 200, status="waiting", ended=None, host="elsewhere", pid=1),
            run("d", 100, task="snow_man in Ärmelkanal"),
        ],
        [],
        [
            fact("a", kind="tool", tool="shell"),
            block("a"),
            fact("b", Gate("no_mail", "guard", "ask"), Gate("redact", "rewrite", "replace"), tool="mail"),
            fact("inner", kind="tool", tool="mail", root="d"),
            fact("d", Gate("quiet", "guard", "cont"), point="before_tool"),
            fact("d", kind="shadow", hook="shadow(strict)", verb="block"),
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
        ({"text": "paid invoice"}, "a"),
        ({"text": "invoices"}, ""),
        ({"text": "inv"}, ""),
        ({"text": "inv*"}, "a"),
        ({"text": "invoice task"}, "a"),
        ({"text": "invoice snow"}, ""),
        ({"text": "snow"}, "d"),
        ({"text": "snow_man"}, "d"),
        ({"text": "ÄRMELKANAL"}, "d"),
        ({"text": "Ärmel*"}, "d"),
        ({"text": "task", "owner": "you"}, "b"),
        ({"text": "task", "agent": "other"}, "b"),
        ({"text": "task", "states": ("waiting", "failed")}, "ca"),
        ({"text": "task", "tool": "mail"}, "b"),
        ({"text": "owner_6d65"}, ""),
        ({"text": "'; --"}, ""),
        ({"text": "\\"}, ""),
        ({"text": "\ud800"}, ""),
        ({"tool": "mail"}, "db"),
        ({"tool": "shell"}, "a"),
        ({"tool": "nothing"}, ""),
        ({"hook": "redact"}, "b"),
        ({"verb": "block"}, "a"),
        ({"verb": "ask"}, "b"),
        ({"verb": "cont", "hook": "no_mail"}, ""),
        ({"hook": "redact", "verb": "ask"}, ""),  # one verdict has both
        ({"hook": "shadow(strict)", "verb": "shadow"}, "d"),
        ({"hook": 'no_mail","guard'}, ""),
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
    assert [each.id for each in filled.search(5, served=True, tool="shell", seconds=0).runs] == ["a"]
    monkeypatch.setattr(runs, "_FEW", 0)  # as if many runs had called the tool
    monkeypatch.setattr(runs, "SEARCHED_AT_ONCE", 2)
    first = filled.search(5, served=True, tool="shell", seconds=0)
    assert first == RunSearch([], "c", NOW - 200, 2)
    assert [each.id for each in filled.search(5, served=True, tool="shell", seconds=0, before="c").runs] == ["a"]
    assert [each.id for each in filled.search(5, served=True, tool="shell", seconds=60).runs] == ["a"]
    monkeypatch.setattr(runs, "_MATCHES", 2)
    assert [each.id for each in filled.search(1, served=True, text="the task", seconds=0).runs] == ["c"]  # enough
    failed = filled.search(5, served=True, states=("failed",), text="task", seconds=0)
    assert (failed.runs, failed.stopped_at, round(failed.back_to), failed.looked_at) == ([], "b", round(NOW - 300), 2)
    following = filled.search(5, served=True, states=("failed",), text="task", seconds=0, before="b")
    assert ([each.id for each in following.runs], following.stopped_at) == (["a"], "")
    assert filled.count(served=True, text="task") == 3


TEXTS = {
    "german": "Die Straße ist naß, die STRASSE bleibt naß.",
    "chinese": "删除文件 report.txt",
    "quotes": "“Hello,” she said—twice…",
    "numbers": "invoice 2026-11-18: 1.5 of 3e10",
    "path": "C:\\temp\\x_y.log and https://example.org/a?b=c",
    "marks": "Cafe\u0301 NAI\u0308VE \x00 nul",
    "long": "a" * 3000,
    "many": " ".join(f"w{n}" for n in range(30_000)),
}
SOUGHT = {
    "strasse": "german",
    "文": "chinese",
    "文件 report": "chinese",
    "hello twice": "quotes",
    "18 11": "numbers",
    "3e10": "numbers",
    "y log temp": "path",
    "example.org": "path",
    "café naïve nul": "marks",
    "a" * 3000: "long",
    "w100*": "many",
    "W7": "many",
}


def test_both_databases_find_the_same_words(store):
    store.write([run(id, n, task=text, reply="") for n, (id, text) in enumerate(TEXTS.items())], [])
    assert {text: [each.id for each in store.runs(text=text)] for text in SOUGHT} == {
        text: [id] for text, id in SOUGHT.items()
    }


def test_the_words_of_a_run_are_those_of_its_row_and_go_with_them(store):
    created = NOW - 40 * 86400
    open_run = run("old", task="first words", status="running", created=created, ended=None)
    store.write([open_run], [])
    store.write([msgspec.structs.replace(open_run, status="completed", reply="the answer", ended=created + 1)], [])
    texts = ("first", "words", "answer")
    assert [[each.id for each in store.runs(text=text)] for text in texts] == [["old"]] * 3
    assert store.prune_served(30) == 1
    assert [store.runs(text=text) for text in texts] == [[]] * 3
    assert store.db.execute("SELECT count(*) FROM run_texts") == [(0,)]


def test_runs_that_were_created_at_once_all_have_their_words(store):
    store.write([run(f"run_{n}", task=f"same n{n}", created=NOW) for n in range(50)], [])
    assert len(store.runs(100, text="same")) == 50
    assert [store.runs(text=f"n{n}")[0].id for n in range(50)] == [f"run_{n}" for n in range(50)]


def test_refusals_are_found_by_each_hook_that_refused_and_pages_continue_where_the_last_one_ended(store):
    second = Gate("watchdog", "guard", "claim", 5, "mine", True)
    first = Gate("no_deleting", "guard", "block", 5, "rule 3", True)
    both = [fact(f"both_{n}", first, second, at=NOW - n, verb="block", hook="no_deleting") for n in range(4)]
    store.add([], [*both, *(block(f"alone_{n}", at=NOW - 10 - n) for n in range(4))])

    def pages(limit, **chosen):
        found, before = [], ""
        while page := refusals(store, limit, before=before, **chosen):
            found += [each.run_id for each in page]
            before = page[-1].id
        return found

    everything = [f"both_{n}" for n in range(4)]
    for limit in (1, 3, 100):
        assert pages(limit, verb="claim") == pages(limit, hook="watchdog") == everything
        assert pages(limit, verb="block") == [*everything, *(f"alone_{n}" for n in range(4))]
        assert pages(limit, verb="claim", hook="no_deleting") == []


def test_verdicts_of_runs_have_their_times_and_verbs_in_order(filled):
    found = verdict_times(filled, ["a", "b", "c", "d"])
    verbs = {run_id: [verb for _, verb in spoken] for run_id, spoken in found.items()}
    assert {run_id: sorted(each) for run_id, each in verbs.items()} == {
        "a": ["block"],
        "b": ["ask", "replace"],
        "d": ["shadow"],
    }
    assert all(spoken == sorted(spoken, key=itemgetter(0)) for spoken in found.values())
    assert verdict_times(filled, []) == {}


def test_a_refusal_has_its_reason_and_the_arguments_of_the_call(store):
    calls = [{"id": "1", "name": "shell", "arguments": {"command": "rm x"}}]
    later = [{"id": "1", "name": "shell", "arguments": {"command": "ls"}}]
    events = [
        event("a", 1, "model_replied", at=NOW - 5, tool_calls=calls),
        *(event("a", seq, at=NOW) for seq in range(2, 40)),
        event("a", 40, "model_replied", at=NOW + 5, tool_calls=later),
    ]
    store.write([run("a")], events, [block("a"), block("a", call_id="unknown"), block("a", call_id="")])
    last, unknown, found = refusals(store, 10)
    assert (found.hook, found.tool, found.point, found.verb) == ("no_deleting", "shell", "before_tool", "block")
    assert (found.reason, json.loads(found.arguments)) == ("nothing is deleted", {"command": "rm x"})
    assert (found.agent, found.owner, found.run_id, found.rules) == ("helper", "me", "a", "0123456789abcdef")
    assert (unknown.arguments, last.arguments) == ("", "")


def test_refusals_of_many_runs_with_many_events_are_read_with_few_statements(store, monkeypatch):
    def replied(run_id, seq):
        calls = [{"id": f"{seq}", "name": "shell", "arguments": {"n": seq}}]
        return event(run_id, seq, "model_replied", at=NOW + seq, tool_calls=calls)

    ids, seqs = [f"run_{n}" for n in range(10)], (1, 290, 580, 581)
    written = [event("run_0", seq, at=NOW + seq) for seq in range(2, 600) if seq not in seqs]
    for id in ids:
        written += [replied(id, seq) for seq in seqs]
    blocked = [block(id, at=NOW + seq + 0.5, call_id=f"{seq}") for id in ids for seq in seqs]
    late = block("run_0", at=NOW + 599, call_id="580")  # another reply came between
    store.write([run(id) for id in ids], written, [*blocked, late])
    statements, transaction = [], store.db.transaction

    @contextmanager
    def watched(**options):
        with transaction(**options) as db:

            class Watched:
                def execute(self, statement, values=()):
                    statements.append(statement)
                    return db.execute(statement, values)

            yield Watched()

    monkeypatch.setattr(store.db, "transaction", watched)
    found = refusals(store, 100)
    assert [json.loads(each.arguments) for each in found] == [{"n": int(each.call_id)} for each in found]
    assert len(found) == len(blocked) + 1
    assert len(statements) < 12


def test_a_refusal_in_a_subagent_belongs_to_the_run_of_the_caller(store):
    calls = [{"id": "1", "name": "shell", "arguments": {"n": 2}}]
    other = {"type": "model_replied", "run_id": "sub-2", "tool_calls": [{"id": "1", "name": "x", "arguments": {}}]}
    reply = {"type": "model_replied", "run_id": "sub", "tool_calls": calls}
    before = [event("a", 1, "subagent_event", event=reply), event("a", 2, "subagent_event", event=other)]
    store.write([run("a")], before, [block("sub", root="a", reason="no")])
    (found,) = refusals(store, 10, owner="me")
    assert (found.run_id, found.reason, found.arguments) == ("a", "no", '{"n": 2}')


def test_a_denial_names_the_person_and_the_message(store):
    store.add([], [denied("a", tool="mail", source="ann", reason="not today")])
    (found,) = refusals(store, 10)
    assert (found.verb, found.by, found.reason, found.hook) == ("denied", "ann", "not today", "")


def test_each_hook_that_refused_is_listed_also_if_pages_end_between_them(store):
    gates = [
        Gate("first", "guard", "stop", 1, "one", True),
        Gate("x", "guard", "ask"),
        Gate("second", "guard", "block", 1, "two", True),
    ]
    store.add([], [fact("a", *gates, point="before_tool")])
    first, second = refusals(store, 10)
    assert [(each.hook, each.verb) for each in (first, second)] == [("first", "stop"), ("second", "block")]
    assert refusals(store, 1) == [first]
    assert refusals(store, 1, before=first.id) == [second]
    assert refusals(store, 1, before=second.id) == []
    assert [each.hook for each in store.verdicts("a", 0, 10)] == ["first", "x", "second"]
    assert [each.seq for each in store.verdicts("a", 1, 1)] == [2]


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
        ({"before": 3}, [2, 1]),
        ({"before": 1}, []),
        ({"before": "nonsense"}, []),
    ],
)
def test_refusals_are_filtered_and_come_the_newest_first(store, chosen, found):
    facts = [
        denied("a", at=NOW - 30, call_id="1"),
        block("a", at=NOW - 20, tool="mail", call_id="2"),
        block("a", at=NOW - 10, hook="h", call_id="3"),
        block("b", at=NOW, owner="you", asked="other", call_id="4"),
        fact("b", Gate("h", "rewrite", "replace")),
    ]
    store.add([], facts)
    ids = {int(each.call_id): each.id for each in refusals(store, 10)}
    chosen = {**chosen, "before": ids.get(chosen.get("before"), chosen.get("before", ""))}
    assert [int(each.call_id) for each in refusals(store, 10, **chosen)] == found
    assert [int(each.call_id) for each in refusals(store, 1, **chosen)] == found[:1]


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
