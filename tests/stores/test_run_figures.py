"""Figures of served runs over time."""

import random
import time

import pytest

from hookline.stores import RunRecord, RunStore
from hookline.stores.errors import StoreError
from hookline.stores.run_figures import HookKey, ModelKey, Tally, Used, period_of, took

NOON = 1_794_916_800.0  # in UTC
DAY = 86400.0


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "runs.db")
    yield made
    made.close()


def called(
    verb="cont", calls=1, *, hook="tidy", point="before_tool", owner="me", agent="clerk", seconds=None, shadow=0
):
    tally = Tally()
    tally.hooks[HookKey(owner, agent, point, hook, shadow, verb, took(seconds))] += calls
    return tally


def used(cost=0.5, *, model="small", owner="me", agent="clerk", run="run_1", tokens=100):
    tally = Tally()
    tally.models[ModelKey(owner, agent, model)] = Used(1, tokens, 10, 5, cost or 0.0, int(cost is None))
    tally.models_of.add((run, model))
    return tally


def test_calls_are_added_up_by_hook_point_and_verb(store):
    for verb, calls in (("cont", 5), ("block", 1), ("cont", 2), ("failed", 3)):
        store.figures.add(called(verb, calls), NOON)
    store.figures.add(called(hook="other"), NOON)
    store.figures.add(called(point="after_tool"), NOON)
    found = {(each.point, each.hook): each for each in store.figures.hooks("day", now=NOON)}
    assert found["before_tool", "tidy"].calls == 11
    assert found["before_tool", "tidy"].verbs == {"cont": 7, "failed": 3, "block": 1}
    assert found["before_tool", "other"].calls == found["after_tool", "tidy"].calls == 1


def test_decisions_in_shadow_mode_are_not_calls(store):
    store.figures.add(called("cont", 4, hook="shadow(strict)"), NOON)
    store.figures.add(called("block", 3, hook="shadow(strict)", shadow=1), NOON)
    (found,) = store.figures.hooks("day", now=NOON)
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
        store.figures._pruned = time.monotonic()  # nothing is deleted
        store.figures.add(called(calls=calls), at)
        store.figures.add(used(calls / 100), at)
    (found,) = store.figures.hooks(period, now=NOON)
    assert found.calls == 110
    assert store.figures.costs(period, now=NOON).total.cost == pytest.approx(1.1)
    assert store.figures.hooks("all", now=NOON)[0].calls == 111


@pytest.mark.parametrize("size", [1e-6, 3e-5, 0.002, 0.4, 20.0])
def test_percentiles_are_right_to_a_tenth(store, size):
    source = random.Random(7)
    values = sorted(size * source.uniform(1, 3) for _ in range(400))
    for value in values:
        store.figures.add(called(seconds=value), NOON)
    (found,) = store.figures.hooks("hour", now=NOON)
    assert found.p50 == pytest.approx(values[199], rel=0.1)
    assert found.p95 == pytest.approx(values[379], rel=0.1)


def test_calls_without_a_duration_have_no_percentiles_and_odd_durations_are_counted(store):
    store.figures.add(called("cont", 3), NOON)
    (found,) = store.figures.hooks("hour", now=NOON)
    assert (found.p50, found.p95) == (None, None)
    for seconds in (0.0, -1.0, 1e9):
        store.figures.add(called(seconds=seconds), NOON)
    (found,) = store.figures.hooks("hour", now=NOON)
    assert found.calls == 6
    assert found.p50 == pytest.approx(1e-6, rel=0.1)


def test_a_caller_or_an_agent_has_its_own_figures(store):
    for owner, agent, calls in (("me", "clerk", 1), ("me", "cook", 2), ("you", "clerk", 4)):
        store.figures.add(called(calls=calls, owner=owner, agent=agent), NOON)
        store.figures.add(used(calls, owner=owner, agent=agent), NOON)

    def found(**chosen):
        calls = {(each.agent, each.calls) for each in store.figures.hooks("day", now=NOON, **chosen)}
        return calls, store.figures.costs("day", now=NOON, **chosen).total.cost

    assert found() == ({("clerk", 5), ("cook", 2)}, 7.0)
    assert found(owner="me") == ({("clerk", 1), ("cook", 2)}, 3.0)
    assert found(owner="you", agent="clerk") == ({("clerk", 4)}, 4.0)
    for nobody in ("nobody", "", "*"):
        assert found(owner=nobody) == (set(), 0.0)


def test_costs_are_by_time_agent_caller_and_model(store):
    store.figures.add(used(0.25, model="small"), NOON - DAY)
    store.figures.add(used(1.0, model="large", agent="cook", owner="you"), NOON)
    store.figures.add(used(None, model="local"), NOON)
    found = store.figures.costs("week", now=NOON)
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
    assert store.figures.costs("all", now=NOON).bars == ()
    store.figures.add(used(1.0), NOON - 2 * DAY)
    assert [bar.used.cost for bar in store.figures.costs("all", now=NOON).bars] == [1, 0, 0]
    store.figures.add(used(3.0), NOON - 400 * DAY)
    found = store.figures.costs("all", now=NOON)
    assert len(found.bars) <= store.figures.max_bars
    assert sum(bar.used.cost for bar in found.bars) == found.total.cost == 4.0
    assert all(first.ended == then.began for first, then in zip(found.bars, found.bars[1:], strict=False))
    assert found.bars[-1].ended == NOON + 0.5 * DAY


def test_short_slots_are_deleted_and_days_stay(store):
    store.figures.add(called(), NOON - 3 * DAY)
    store.figures._pruned = float("-inf")
    store.figures.add(called(), NOON)
    lengths = store.db.execute("SELECT length, count(*) FROM hook_figures GROUP BY length ORDER BY length")
    assert [tuple(row) for row in lengths] == [(300, 2), (3600, 2), (86400, 4)]  # a caller, and everyone
    assert store.figures.hooks("all", now=NOON)[0].calls == 2


def test_figures_stay_when_their_runs_are_deleted_and_the_models_of_a_run_go(store):
    fields = {"agent": "clerk", "owner": "me", "session": "", "session_id": "s", "task_id": "", "correlation_id": ""}
    known = {"transport": "api", "task": "", "status": "completed", "created": 5.0, "ended": 6.0}
    store.write([RunRecord("run_1", **fields, **known)], [])
    store.figures.add(used(1.0), NOON)
    assert [run.id for run in store.runs(served=True, model="small")] == ["run_1"]
    assert store.runs(served=True, model="large") == []
    store.prune_served(1)
    assert store.db.execute("SELECT count(*) FROM run_models")[0][0] == 0
    assert store.figures.costs("day", now=NOON).total.cost == 1.0


def test_texts_that_no_database_can_store_are_replaced(store):
    store.figures.add(called(hook="a\ud800"), NOON)
    store.figures.add(used(model="b\ud800"), NOON)
    assert store.figures.hooks("day", now=NOON)[0].hook == "a?"
    assert store.figures.costs("day", now=NOON).models[0].name == "b?"


@pytest.mark.sqlite
def test_a_file_that_cannot_be_used_is_an_error(tmp_path):
    (tmp_path / "runs.db").write_text("not a database, and longer than its header would be")
    with pytest.raises(StoreError):
        RunStore(tmp_path / "runs.db").figures.add(called(), NOON)
