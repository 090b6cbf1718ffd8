"""The ledger of a run: what counts where, and when a limit is reached (DESIGN 5.4)."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Budget
from hookline.payloads import Usage


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now


def test_a_fresh_budget_has_used_nothing_and_limits_nothing():
    budget = Budget()
    assert (budget.usage, budget.tokens, budget.cost, budget.tool_calls, budget.steps) == (Usage(), 0, 0.0, 0, 0)
    assert budget.elapsed == 0.0
    assert not budget.limited
    assert budget.exceeded() is None
    assert budget.tool_calls_left()


@given(st.lists(st.tuples(*[st.integers(0, 1000)] * 3, st.floats(0, 10)), max_size=10))
def test_charges_add_up(charges):
    budget = Budget()
    for given_in, given_out, cached, cost in charges:
        budget.charge(Usage(given_in, given_out, cached), cost)
    assert budget.usage == Usage(*(sum(c[i] for c in charges) for i in range(3)))
    assert budget.tokens == sum(c[0] + c[1] for c in charges)
    assert budget.cost == pytest.approx(sum(c[3] for c in charges))


def test_the_cost_is_unknown_from_the_first_unknown_price_on():
    budget = Budget()
    budget.charge(Usage(1), 0.5)
    budget.charge(Usage(1), None)
    budget.charge(Usage(1), 0.5)
    assert budget.cost is None


def step(budget):
    budget.count_step()


def tokens(budget):
    budget.charge(Usage(2, 1), 0.0)


def dollars(budget):
    budget.charge(Usage(), 3.0)


def calls(budget):
    budget.count_tool_call()


@pytest.mark.parametrize(
    ("limit", "use", "times", "kind", "message"),
    [
        ({"max_steps": 2}, step, 2, "steps_limit", "Step limit reached: 2/2"),
        ({"max_tokens": 6}, tokens, 2, "token_limit", "Token limit reached: 6/6"),
        ({"max_tokens": 5}, tokens, 2, "token_limit", "Token limit reached: 6/5"),
        ({"max_cost": 6}, dollars, 2, "cost_limit", "Cost limit reached: 6.0/6"),
        ({"max_tool_calls": 2}, calls, 2, "tool_calls_limit", "Tool call limit reached: 2/2"),
    ],
)
def test_a_limit_is_reached_at_exactly_its_value(limit, use, times, kind, message):
    budget = Budget(**limit)
    for _ in range(times):
        assert budget.exceeded() is None
        use(budget)
    signal = budget.exceeded()
    assert (signal.kind, signal.message) == (kind, message)


def test_the_time_limit_counts_from_the_first_begin():
    clock = FakeClock()
    budget = Budget(max_seconds=5, clock=clock)
    clock.now += 50
    assert budget.exceeded() is None
    budget.begin()
    clock.now += 4
    budget.begin()
    assert (budget.elapsed, budget.exceeded()) == (4.0, None)
    clock.now += 1
    assert budget.exceeded().kind == "time_limit"


@pytest.mark.parametrize("limit", ["max_steps", "max_tokens", "max_cost", "max_tool_calls", "max_seconds"])
def test_a_limit_of_nothing_is_reached_at_once(limit):
    budget = Budget(**{limit: 0})
    budget.begin()
    assert budget.exceeded() is not None


@pytest.mark.parametrize("limit", ["max_steps", "max_tokens", "max_seconds", "max_cost", "max_tool_calls"])
@pytest.mark.parametrize("bad", [-1, "5", True, [1], float("nan")])
def test_a_limit_that_is_no_number_is_refused(limit, bad):
    with pytest.raises(ValueError, match="a limit is a number"):
        Budget(**{limit: bad})


def test_the_strongest_reached_limit_is_told_first():
    clock = FakeClock()
    budget = Budget(max_steps=1, max_tokens=1, max_seconds=1, max_cost=1, max_tool_calls=1, clock=clock)
    budget.begin()
    clock.now += 9
    for use in (calls, dollars, tokens, step):
        use(budget)
    seen = []
    for limit in ("max_steps", "max_tokens", "max_seconds", "max_cost", "max_tool_calls"):
        seen.append(budget.exceeded().kind)
        setattr(budget, limit, None)
    assert seen == ["steps_limit", "token_limit", "time_limit", "cost_limit", "tool_calls_limit"]
    assert budget.exceeded() is None


# Parents


def test_a_childs_use_counts_live_in_all_its_parents_but_steps_do_not():
    top = Budget()
    middle = top.child()
    child = middle.child()
    child.charge(Usage(2, 1, 1), 0.5)
    child.count_tool_call()
    child.count_step()
    for budget in (child, middle, top):
        assert (budget.usage, budget.cost, budget.tool_calls) == (Usage(2, 1, 1), 0.5, 1)
    assert [b.steps for b in (child, middle, top)] == [1, 0, 0]


def test_a_parents_use_does_not_count_in_its_child():
    parent = Budget()
    child = parent.child()
    parent.charge(Usage(5), 1.0)
    assert child.tokens == 0


@pytest.mark.parametrize(
    ("limit", "use", "kind"),
    [
        ({"max_tokens": 3}, tokens, "token_limit"),
        ({"max_cost": 3}, dollars, "cost_limit"),
        ({"max_tool_calls": 1}, calls, "tool_calls_limit"),
    ],
)
def test_a_parents_limit_holds_for_its_child(limit, use, kind):
    parent = Budget(**limit)
    child = parent.child().child()
    assert child.limited
    assert child.exceeded() is None
    use(child)
    assert child.exceeded().kind == kind
    assert parent.exceeded().kind == kind


def test_a_parents_steps_are_its_own():
    parent = Budget(max_steps=1)
    child = parent.child(max_steps=2)
    parent.count_step()
    child.count_step()
    assert parent.exceeded().kind == "steps_limit"
    assert child.exceeded() is None
    child.count_step()
    assert child.exceeded().kind == "steps_limit"
    assert child.exceeded(steps=False) is None


def test_a_parents_clock_starts_with_its_first_child():
    clock = FakeClock()
    parent = Budget(max_seconds=5, clock=clock)
    first = parent.child()
    first.begin()
    clock.now += 3
    second = parent.child()
    second.begin()
    clock.now += 2
    assert (first.elapsed, second.elapsed, parent.elapsed) == (5.0, 2.0, 5.0)
    assert second.exceeded().kind == "time_limit"


def test_tool_calls_left_looks_at_every_ledger():
    parent = Budget(max_tool_calls=2)
    child = parent.child()
    child.count_tool_call()
    assert child.tool_calls_left()
    parent.count_tool_call()
    assert not child.tool_calls_left()
    own = Budget(max_tool_calls=0)
    assert not own.tool_calls_left()


def test_children_in_many_threads_lose_nothing():
    parent = Budget()

    def work(child):
        for _ in range(500):
            child.charge(Usage(1, 1, 1), 0.5)
            child.count_tool_call()

    threads = [threading.Thread(target=work, args=(parent.child(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (parent.usage, parent.cost, parent.tool_calls) == (Usage(4000, 4000, 4000), 2000.0, 4000)


def test_what_is_known_of_the_cost_can_be_read_when_a_price_is_unknown():
    budget = Budget()
    for cost in (0.25, None, 0.5):
        budget.charge(Usage(1, 1), cost)
    assert (budget.cost, budget.known_cost) == (None, 0.75)


def test_a_budget_says_what_was_used():
    budget = Budget()
    budget.charge(Usage(3, 4), 0.5)
    budget.count_tool_call()
    budget.count_step()
    assert repr(budget) == "Budget(tokens=7, cost=0.5, tool_calls=1, steps=1)"


def test_the_time_left_is_the_shortest_here_or_above_and_never_less_than_none():
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    assert Budget(clock=clock).seconds_left() is None
    parent = Budget(max_seconds=10, clock=clock)
    child = Budget(max_seconds=4, parent=parent, clock=clock)
    free = Budget(parent=parent, clock=clock)
    alone = Budget(max_seconds=3, parent=Budget(clock=clock), clock=clock)
    for budget in (child, free, alone):
        budget.begin()
    clock.now = 1.0
    assert (child.seconds_left(), free.seconds_left(), alone.seconds_left()) == (3.0, 9.0, 2.0)
    clock.now = 5.0
    assert (child.seconds_left(), free.seconds_left()) == (0.0, 5.0)
    assert child.out_of_time().message == "Time limit reached: 5.0/4"
    assert (free.out_of_time(), Budget(clock=clock).out_of_time()) == (None, None)
    clock.now = 10.04
    assert free.out_of_time().message == free.exceeded().message == "Time limit reached: 10.0/10"
    assert (free.exceeded().kind, parent.elapsed) == ("time_limit", 10.04)


def test_the_clock_of_a_budget_is_its_childrens():
    class Clock:
        now = 3.0

        def monotonic(self):
            return self.now

    clock = Clock()
    child = Budget(clock=clock).child(max_steps=2)
    assert (child.max_steps, child.elapsed) == (2, 0.0)
    child.begin()
    clock.now = 4.5
    child.begin()
    assert (child.elapsed, child.parent.elapsed) == (1.5, 1.5)


def test_a_cost_limit_says_what_was_spent_in_a_few_digits():
    budget = Budget(max_cost=0.25)
    budget.charge(Usage(), 0.1 + 0.2)
    assert budget.exceeded().message == "Cost limit reached: 0.3/0.25"


def test_what_is_limited_above_is_limited_here():
    assert not Budget(max_steps=3).limited
    assert not Budget(parent=Budget()).limited
    assert Budget(max_tokens=1).limited
    assert Budget(parent=Budget(parent=Budget(max_cost=1))).limited


def test_a_ledger_of_many_runs_has_a_lock_and_one_of_a_single_run_needs_none():
    parent = Budget()
    parent.child()
    lock = parent._lock
    parent.child()
    assert lock is parent._lock
    parent.charge(Usage(1, 1), 0.0)
    assert not lock.locked()
