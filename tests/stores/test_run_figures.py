"""Figures of served runs over time."""

import random
import time

import msgspec
import pytest

from hookline.stores import RunRecord, RunStore
from hookline.stores.errors import StoreError
from hookline.stores.facts import ROLL_AFTER, FactWriter, Gate, ObservedRun, RunFact
from hookline.stores.run_figures import MAX_BARS, Used, costs, hook_figures, period_of
from hookline.stores.run_statistics import run_stats

NOON = 1_794_916_800.0  # in UTC
DAY = 86400.0


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "runs.db")
    yield made
    made.close()


def add(store, facts, at):
    with store.db.transaction(write=True) as db:
        FactWriter(store.db).write(db, [msgspec.structs.replace(fact, at=at) for fact in facts])


def called(
    verb="cont", calls=1, *, hook="tidy", point="before_tool", owner="me", agent="clerk", seconds=0.0, shadow=False
):
    run = ObservedRun("run_1", "inner", asked=agent, owner=owner)
    if shadow:
        return [RunFact(run, 0.0, "shadow", point=point, hook=hook, verb=verb)] * calls
    gate = Gate(hook, "guard", verb, int(seconds * 1e6))
    return [RunFact(run, 0.0, "fire", point=point, hook=hook, verb=verb, gates=(gate,))] * calls


def used(cost=0.5, *, model="small", owner="me", agent="clerk", run="run_1", tokens=100):
    numbers = {"input_tokens": tokens, "output_tokens": 10, "cached_tokens": 5, "cost": cost}
    return [
        RunFact(
            ObservedRun(run, "inner", asked=agent, owner=owner), 0.0, "model", model=model, source="model", **numbers
        )
    ]


def test_calls_are_added_up_by_hook_point_and_verb(store):
    for verb, calls in (("cont", 5), ("block", 1), ("cont", 2), ("failed", 3)):
        add(store, called(verb, calls), NOON)
    add(store, called(hook="other"), NOON)
    add(store, called(point="after_tool"), NOON)
    found = {(each.point, each.hook): each for each in hook_figures(store, "day", now=NOON)}
    assert found["before_tool", "tidy"].calls == 11
    assert found["before_tool", "tidy"].verbs == {"cont": 7, "failed": 3, "block": 1}
    assert found["before_tool", "other"].calls == found["after_tool", "tidy"].calls == 1


def test_decisions_in_shadow_mode_are_not_calls(store):
    add(store, called("cont", 4, hook="shadow(strict)"), NOON)
    add(store, called("block", 3, hook="shadow(strict)", shadow=True), NOON)
    (found,) = hook_figures(store, "day", now=NOON)
    assert (found.calls, found.verbs, found.shadow) == (4, {"cont": 4}, {"block": 3})


PERIODS = {
    "hour": (NOON - 11 * 300, NOON - 11 * 300 - 1),
    "day": (NOON - 23 * 3600, NOON - 23 * 3600 - 1),
    "week": (NOON - 6.5 * DAY, NOON - 6.5 * DAY - 1),
    "month": (NOON - 29.5 * DAY, NOON - 29.5 * DAY - 1),
}


@pytest.mark.parametrize("period", PERIODS)
def test_a_period_has_its_slots_and_nothing_before(store, period):
    first, before = PERIODS[period]
    assert period_of(period, NOON)[1] == first
    for at, calls in ((before, 1), (first, 10), (NOON, 100)):
        add(store, called(calls=calls), at)
        add(store, used(calls / 100), at)
    (found,) = hook_figures(store, period, now=NOON)
    assert found.calls == 110
    assert costs(store, period, now=NOON).total.cost == pytest.approx(1.1)
    assert hook_figures(store, "all", now=NOON)[0].calls == 111


@pytest.mark.parametrize("size", [3e-5, 0.002, 0.4, 20.0])
def test_percentiles_are_right_to_a_tenth(store, size):
    source = random.Random(7)
    values = sorted(size * source.uniform(1, 3) for _ in range(400))
    for value in values:
        add(store, called(seconds=value), NOON)
    (found,) = hook_figures(store, "hour", now=NOON)
    assert found.p50 == pytest.approx(values[199], rel=0.1)
    assert found.p95 == pytest.approx(values[379], rel=0.1)


def test_odd_durations_are_counted(store):
    for seconds in (0.0, 1e-6, 1e9):
        add(store, called(seconds=seconds), NOON)
    (found,) = hook_figures(store, "hour", now=NOON)
    assert found.calls == 3
    assert found.p50 == pytest.approx(1e-6, rel=0.1)


def test_a_caller_or_an_agent_has_its_own_figures(store):
    for owner, agent, calls in (("me", "clerk", 1), ("me", "cook", 2), ("you", "clerk", 4)):
        add(store, called(calls=calls, owner=owner, agent=agent), NOON)
        add(store, used(calls, owner=owner, agent=agent), NOON)

    def found(**chosen):
        calls = {(each.agent, each.calls) for each in hook_figures(store, "day", now=NOON, **chosen)}
        return calls, costs(store, "day", now=NOON, **chosen).total.cost

    assert found() == ({("clerk", 5), ("cook", 2)}, 7.0)
    assert found(owner="me") == ({("clerk", 1), ("cook", 2)}, 3.0)
    assert found(owner="you", agent="clerk") == ({("clerk", 4)}, 4.0)
    for nobody in ("nobody", "", "*"):
        assert found(owner=nobody) == (set(), 0.0)


def test_costs_are_by_time_agent_caller_and_model(store):
    add(store, used(0.25, model="small"), NOON - DAY)
    add(store, used(1.0, model="large", agent="cook", owner="you"), NOON)
    add(store, used(None, model="local"), NOON)
    found = costs(store, "week", now=NOON)
    assert found.total == Used(3, 300, 30, 15, 1.25, 1)
    assert found.total.tokens == 330
    assert [(row.name, row.used.cost, row.used.unpriced) for row in found.models] == [
        ("large", 1.0, 0),
        ("small", 0.25, 0),
        ("local", 0.0, 1),
    ]
    assert [(row.name, row.used.cost) for row in found.agents] == [("cook", 1.0), ("clerk", 0.25)]
    assert [(row.name, row.used.cost) for row in found.callers] == [("you", 1.0), ("me", 0.25)]
    assert [bar.used.cost for bar in found.bars] == [0, 0, 0, 0, 0, 0.25, 1.0]
    assert found.bars[0].began == found.since == NOON - 6.5 * DAY
    assert found.bars[-1].ended == NOON + 0.5 * DAY


def test_all_begins_with_the_first_day_and_has_a_bounded_number_of_bars(store):
    assert costs(store, "all", now=NOON).bars == ()
    add(store, used(1.0), NOON - 2 * DAY)
    assert [bar.used.cost for bar in costs(store, "all", now=NOON).bars] == [1, 0, 0]
    add(store, used(3.0), NOON - 400 * DAY)
    found = costs(store, "all", now=NOON)
    assert len(found.bars) <= MAX_BARS
    assert sum(bar.used.cost for bar in found.bars) == found.total.cost == 4.0
    assert all(first.ended == then.began for first, then in zip(found.bars, found.bars[1:], strict=False))
    assert found.bars[-1].ended == NOON + 0.5 * DAY


def test_short_slots_are_deleted_and_days_stay(store):
    now = time.time()
    for days in (50, 1, 0):
        add(store, called(), now - days * DAY)
    list(FactWriter(store.db).tidy())
    lengths = store.db.execute("SELECT length, count(*) FROM rollups GROUP BY length ORDER BY length")
    assert [tuple(row) for row in lengths] == [(300, 2), (3600, 4), (86400, 6)]  # a caller, and everyone
    assert hook_figures(store, "all")[0].calls == 3


@pytest.mark.parametrize("owner", [None, "me", "nobody"])
@pytest.mark.parametrize("agent", ["", "cook"])
@pytest.mark.parametrize("period", ["hour", "day", "month", "all"])
def test_figures_are_the_same_before_and_after_new_sums_are_rolled_up(store, period, owner, agent):
    now = time.time()
    for days in (50, 20, 1, 0, 0):
        for facts in (called(), used(2.0, agent="cook"), used(owner="you"), used(owner=""), called(shadow=True)):
            add(store, facts, now - days * DAY)

    def figures():
        found = costs(store, period, owner=owner, agent=agent, now=now)
        stats = run_stats(store, since=now - 30 * DAY, owner=owner, agent=agent or None)
        return found, hook_figures(store, period, owner=owner, agent=agent, now=now), stats

    before = figures()
    list(FactWriter(store.db).roll_up())
    assert store.db.execute("SELECT count(*) FROM new_sums") == [(0,)]
    assert figures() == before
    assert before[0].total.calls > 0 or owner == "nobody"


def test_new_sums_are_rolled_up_by_the_transactions_that_add_them(store, tmp_path):
    now = time.time()
    other = RunStore(store.path)
    for number in range(2 * ROLL_AFTER):
        add((store, other)[number % 2], called(calls=2), now - 2 * DAY)
    other.close()
    assert store.db.execute("SELECT count(*) FROM new_sums") == [(0,)]
    rows = store.db.execute("SELECT count, process FROM rollups WHERE length = 86400 ORDER BY everyone")
    assert [tuple(row) for row in rows] == [(4 * ROLL_AFTER, ""), (4 * ROLL_AFTER, "")]  # a caller, and everyone
    assert hook_figures(store, "month")[0].calls == 4 * ROLL_AFTER


def test_figures_stay_when_their_runs_are_deleted_and_the_facts_of_a_run_go(store):
    fields = {"agent": "clerk", "owner": "me", "session": "", "session_id": "s", "task_id": "", "correlation_id": ""}
    known = {"transport": "api", "task": "", "status": "completed", "created": 5.0, "ended": 6.0}
    store.write([RunRecord("run_1", **fields, **known)], [])
    add(store, used(1.0), NOON)
    assert [run.id for run in store.runs(served=True, model="small")] == ["run_1"]
    assert store.runs(served=True, model="large") == []
    store.prune_served(1)
    assert store.facts("run_1") == []
    assert costs(store, "day", now=NOON).total.cost == 1.0


def test_texts_that_no_database_can_store_are_replaced(store):
    add(store, called(hook="a\ud800"), NOON)
    add(store, used(model="b\ud800"), NOON)
    assert hook_figures(store, "day", now=NOON)[0].hook == "a?"
    assert costs(store, "day", now=NOON).models[0].name == "b?"


@pytest.mark.sqlite
def test_a_file_that_cannot_be_used_is_an_error(tmp_path):
    (tmp_path / "runs.db").write_text("not a database, and longer than its header would be")
    with pytest.raises(StoreError):
        hook_figures(RunStore(tmp_path / "runs.db"), "day")
