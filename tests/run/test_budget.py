"""The budget of a run: what counts where, and when a limit is reached (DESIGN 5.4)."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Agent, AgentContext, Budget, Limits, RegistrationError, ScriptedModel, call, reply, tool
from hookline._run.budget import BudgetView
from hookline.hooks import StepsLimitHook
from hookline.models import ModelResponse
from hookline.payloads import Usage
from hookline.testing import scripted_agent
from tests.cases import each_case


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
    assert budget.left == Limits()


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


@pytest.mark.parametrize("cost", [-0.5, math.nan, math.inf])
def test_a_reply_with_impossible_numbers_makes_no_room_in_a_budget(cost):
    class Wrong:
        name, provider = "wrong", "test"

        async def complete(self, request):
            return ModelResponse("Hi.", usage=Usage(-7, 5, -1), cost=cost)

        def count_tokens(self, content):
            return 5

    budget = Budget()
    Agent("bob", llm=Wrong()).run("Hi.", ctx=AgentContext(budget=budget))
    assert (budget.usage, budget.cost, budget.known_cost) == (Usage(0, 5, 0), None, 0.0)


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
        ({"steps": 2}, step, 2, "steps_limit", "Step limit reached: 2/2"),
        ({"tokens": 6}, tokens, 2, "token_limit", "Token limit reached: 6/6"),
        ({"tokens": 5}, tokens, 2, "token_limit", "Token limit reached: 6/5"),
        ({"cost": 6}, dollars, 2, "cost_limit", "Cost limit reached: 6.0/6.0"),
        ({"tool_calls": 2}, calls, 2, "tool_calls_limit", "Tool call limit reached: 2/2"),
    ],
)
def test_a_limit_is_reached_at_exactly_its_value(limit, use, times, kind, message):
    budget = Budget(Limits(**limit))
    for _ in range(times):
        assert budget.exceeded() is None
        use(budget)
    signal = budget.exceeded()
    assert (signal.kind, signal.message) == (kind, message)


def test_the_time_limit_counts_from_the_first_begin():
    clock = FakeClock()
    budget = Budget(Limits(seconds=5), clock=clock)
    clock.now += 50
    assert budget.exceeded() is None
    budget.begin()
    clock.now += 4
    budget.begin()
    assert (budget.elapsed, budget.exceeded()) == (4.0, None)
    clock.now += 1
    assert budget.exceeded().kind == "time_limit"


@pytest.mark.parametrize("limit", ["steps", "tokens", "cost", "tool_calls", "seconds"])
def test_a_limit_of_nothing_is_reached_at_once(limit):
    budget = Budget(Limits(**{limit: 0}))
    budget.begin()
    assert budget.exceeded() is not None


@pytest.mark.parametrize("limit", ["steps", "tokens", "seconds", "cost", "tool_calls"])
@each_case("bad", [-1, "5", True, [1], float("nan"), 10**400])
def test_a_limit_that_is_no_number_is_rejected(limit, bad):
    with pytest.raises(RegistrationError, match=rf"^Limits\({limit}=.*a limit must be 0 or more, such as {limit}=10"):
        Budget(Limits(**{limit: bad}))


def test_the_strongest_reached_limit_comes_first():
    names, seen = ["steps", "tokens", "seconds", "cost", "tool_calls"], []
    while names:
        clock = FakeClock()
        budget = Budget(Limits(**dict.fromkeys(names, 1)), clock=clock)
        budget.begin()
        clock.now += 9
        for use in (calls, dollars, tokens, step):
            use(budget)
        seen.append(budget.exceeded().kind)
        del names[0]
    assert seen == ["steps_limit", "token_limit", "time_limit", "cost_limit", "tool_calls_limit"]


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
        ({"tokens": 3}, tokens, "token_limit"),
        ({"cost": 3}, dollars, "cost_limit"),
        ({"tool_calls": 1}, calls, "tool_calls_limit"),
    ],
)
def test_a_parents_limit_holds_for_its_child(limit, use, kind):
    parent = Budget(Limits(**limit))
    child = parent.child().child()
    assert child.limited
    assert child.exceeded() is None
    use(child)
    assert child.exceeded().kind == kind
    assert parent.exceeded().kind == kind


def test_a_parents_steps_are_its_own():
    parent = Budget(Limits(steps=1))
    child = parent.child(Limits(steps=2))
    parent.count_step()
    child.count_step()
    assert parent.exceeded().kind == "steps_limit"
    assert child.exceeded() is None
    child.count_step()
    assert child.exceeded().kind == "steps_limit"
    assert child.exceeded(steps=False) is None


def test_a_parents_clock_starts_with_its_first_child():
    clock = FakeClock()
    parent = Budget(Limits(seconds=5), clock=clock)
    first = parent.child()
    first.begin()
    clock.now += 3
    second = parent.child()
    second.begin()
    clock.now += 2
    assert (first.elapsed, second.elapsed, parent.elapsed) == (5.0, 2.0, 5.0)
    assert second.exceeded().kind == "time_limit"


def test_tool_calls_left_looks_at_every_budget():
    parent = Budget(Limits(tool_calls=2))
    child = parent.child()
    child.count_tool_call()
    assert child.left.tool_calls == 1
    parent.count_tool_call()
    assert child.left.tool_calls == 0
    own = Budget(Limits(tool_calls=0))
    assert own.left.tool_calls == 0


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


def test_the_known_cost_can_be_read_when_a_price_is_unknown():
    budget = Budget()
    for cost in (0.25, None, 0.5):
        budget.charge(Usage(1, 1), cost)
    assert (budget.cost, budget.known_cost) == (None, 0.75)


def test_the_repr_of_a_budget_contains_the_usage():
    budget = Budget()
    budget.charge(Usage(3, 4), 0.5)
    budget.count_tool_call()
    budget.count_step()
    assert repr(budget) == "Budget(tokens=7, cost=0.5, tool_calls=1, steps=1)"


def test_the_time_left_is_the_shortest_of_all_budgets_and_never_negative():
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    assert Budget(clock=clock).left.seconds is None
    parent = Budget(Limits(seconds=10), clock=clock)
    child = Budget(Limits(seconds=4), parent=parent, clock=clock)
    free = Budget(parent=parent, clock=clock)
    alone = Budget(Limits(seconds=3), parent=Budget(clock=clock), clock=clock)
    for budget in (child, free, alone):
        budget.begin()
    clock.now = 1.0
    assert (child.left.seconds, free.left.seconds, alone.left.seconds) == (3.0, 9.0, 2.0)
    clock.now = 5.0
    assert (child.left.seconds, free.left.seconds) == (0.0, 5.0)
    assert child.out_of_time().message == "Time limit reached: 5.0/4.0"
    assert (free.out_of_time(), Budget(clock=clock).out_of_time()) == (None, None)
    clock.now = 10.04
    assert free.out_of_time().message == free.exceeded().message == "Time limit reached: 10.0/10.0"
    assert (free.exceeded().kind, parent.elapsed) == ("time_limit", 10.04)


def test_the_clock_of_a_budget_is_its_childrens():
    class Clock:
        now = 3.0

        def monotonic(self):
            return self.now

    clock = Clock()
    child = Budget(clock=clock).child(Limits(steps=2))
    assert (child.limits.steps, child.elapsed) == (2, 0.0)
    child.begin()
    clock.now = 4.5
    child.begin()
    assert (child.elapsed, child.parents[0].elapsed) == (1.5, 1.5)


def test_a_cost_limit_says_what_was_spent_in_a_few_digits():
    budget = Budget(Limits(cost=0.25))
    budget.charge(Usage(), 0.1 + 0.2)
    assert budget.exceeded().message == "Cost limit reached: 0.3/0.25"


def test_limits_of_a_parent_limit_the_child():
    assert not Budget(Limits(steps=3)).limited
    assert not Budget(parent=Budget()).limited
    assert Budget(Limits(tokens=1)).limited
    assert Budget(parent=Budget(parent=Budget(Limits(cost=1)))).limited


# Limits


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.2, float("nan"), True, "0.8"])
def test_the_share_of_a_note_is_between_0_and_1(share):
    with pytest.raises(RegistrationError, match=r"^Limits\(soft=.*soft must be between 0 and 1, or None"):
        Limits(soft=share)


def test_a_budget_and_an_agent_say_how_limits_are_written():
    with pytest.raises(TypeError, match=r"write Budget\(Limits\(tokens=20000\)\), not Budget\(5\)"):
        Budget(5)
    with pytest.raises(RegistrationError, match=r"limits= takes Limits\(steps=10, tokens=20000\), not \{'steps': 3\}"):
        scripted_agent([], limits={"steps": 3})
    with pytest.raises(RegistrationError, match=r"Limits\(steps='3'\)"):
        scripted_agent([], limits=Limits(steps="3"))


def test_counts_are_whole_and_amounts_are_not_however_they_are_written():
    assert repr(Limits(steps=2.0, tokens=1e3, seconds=3, cost=4, tool_calls=1.5)) == (
        "Limits(steps=2, tokens=1000, seconds=3.0, cost=4.0, tool_calls=1.5, soft=0.8)"
    )


def test_of_two_limits_the_lower_one_holds():
    one, other = Limits(steps=3, tokens=50, soft=0.5), Limits(steps=math.inf, tokens=20, cost=1.0)
    assert one.stricter(other) == other.stricter(one) == Limits(steps=3, tokens=20, cost=1.0, soft=0.5)


@pytest.mark.parametrize("nothing", [Limits(), Limits(steps=math.inf), Limits(soft=0.1)])
def test_the_note_follows_the_share_of_the_limits_that_limit_something(nothing):
    quiet = Limits(tokens=5, soft=None)
    assert nothing.stricter(quiet).soft is None
    assert quiet.stricter(nothing).soft is None
    assert quiet.stricter(Limits(cost=1)).soft == 0.8


# The limits of a run


def steps_of(agent, **options):
    return len(agent.run("x", **options).steps)


def endless(**options):
    return scripted_agent([call("nothing")] * 60 + [reply("done")], **options)


def test_a_run_without_a_step_limit_stops_after_20_steps():
    assert (
        steps_of(endless())
        == steps_of(endless(limits=Limits(tokens=10**6)))
        == steps_of(endless(limits=Limits(steps=None)))
        == 20
    )


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"limits": Limits(steps=30)}, 30),
        ({"limits": Limits(steps=math.inf)}, 61),
        ({"hooks": [StepsLimitHook(50)]}, 50),
        ({"hooks": [StepsLimitHook(50), StepsLimitHook(40)]}, 40),
        ({"hooks": [StepsLimitHook(50)], "limits": Limits(steps=30)}, 30),
        ({"hooks": [StepsLimitHook(50)], "limits": Limits(steps=math.inf)}, 50),
        ({"hooks": [StepsLimitHook(50, lambda state: state.step_count)]}, 20),
    ],
)
def test_the_lowest_explicit_step_limit_replaces_the_default(options, steps):
    assert steps_of(endless(**options)) == steps


def test_a_conversation_and_the_outer_run_can_only_lower_the_steps():
    assert steps_of(endless(), ctx=AgentContext(budget=Budget(Limits(steps=50)))) == 20
    assert steps_of(endless(), ctx=AgentContext(budget=Budget(Limits(steps=5)))) == 5
    inner, found = endless(limits=Limits(steps=30)), []

    @tool
    async def ask(ctx) -> str:
        """Ask another agent."""
        found.append(len((await inner.arun("x", ctx=ctx)).steps))
        return "asked"

    for limit in (None, 25, math.inf):
        inner.model = endless().model
        scripted_agent([call("ask"), reply("done")], tools=[ask], limits=Limits(steps=limit)).run("x")
    assert found == [20, 25, 30]


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        (Limits(tokens=40), "token_limit"),
        (Limits(cost=0.5), "cost_limit"),
        (Limits(tool_calls=2), "tool_calls_limit"),
        (Limits(seconds=0), "time_limit"),
    ],
)
def test_an_agents_limits_hold_for_each_run_anew(limits, kind):
    turn = reply("", tool_calls=[call("look")], usage=Usage(10, 10), cost=0.25)
    agent = Agent("a", llm=ScriptedModel([turn], loop=True), tools=[tool(name="look")(lambda: "seen")], limits=limits)
    ctx = AgentContext()
    runs = [agent.run("x", ctx=ctx) for _ in range(2)]
    assert [(run.stop.kind, run.stop.hook) for run in runs] == [(kind, "")] * 2
    assert {len(run.steps) for run in runs} == {0 if kind == "time_limit" else 2}


def test_the_note_contains_the_limits_of_agent_conversation_and_outer_runs():
    inner = scripted_agent([reply("found", usage=Usage(5, 5))])

    @tool
    async def ask(ctx) -> str:
        """Ask another agent."""
        return (await inner.arun("look", ctx=ctx)).reply

    turns = [reply("", tool_calls=[call("ask")], usage=Usage(10, 10)), reply("done")]
    agent = scripted_agent(turns, tools=[ask], limits=Limits(steps=2, tokens=60, soft=0.3))
    agent.run("x", ctx=AgentContext(budget=Budget(Limits(tool_calls=2, soft=0.5))))
    wrap_up = " Wrap up now: finish with what you have and give your final answer."
    assert inner.model.requests[0].messages[-1].content == (
        f"You have used 20 of 60 tokens.\nYou have used 1 of 2 tool calls.{wrap_up}"
    )
    assert agent.model.requests[1].messages[-1].content == (
        f"You have used 1 of 2 steps.\nYou have used 30 of 60 tokens.\nYou have used 1 of 2 tool calls.{wrap_up}"
    )


def test_limits_without_a_share_add_no_note():
    agent = endless(limits=Limits(soft=None))
    agent.run("x")
    assert all(request.messages[-1].role == "tool" for request in agent.model.requests[1:])


# What hooks see


def test_a_view_shows_what_is_used_and_left_and_can_change_nothing():
    ledger = Budget(Limits(steps=3, tokens=10, cost=2.0), parent=Budget(Limits(tokens=9, seconds=60, steps=1)))
    ledger.charge(Usage(3, 1, 1), 0.5)
    ledger.count_step()
    ledger.count_tool_call()
    view = BudgetView(ledger)
    assert view.limits == Limits(steps=3, tokens=10, cost=2.0)
    assert view.left == Limits(steps=2, tokens=5, cost=1.5, seconds=60)
    assert (view.usage, view.tokens, view.cost, view.known_cost) == (Usage(3, 1, 1), 4, 0.5, 0.5)
    assert (view.tool_calls, view.steps, view.elapsed, view.exceeded()) == (1, 1, 0.0, None)
    assert repr(view) == repr(ledger)
    public = {name for name in dir(view) if not name.startswith("_")}
    assert public == {
        "cost",
        "elapsed",
        "exceeded",
        "known_cost",
        "left",
        "limits",
        "steps",
        "tokens",
        "tool_calls",
        "usage",
    }
    for name in (*public, "anything"):
        with pytest.raises(AttributeError):
            setattr(view, name, 0)
    ledger.charge(Usage(5, 0), None)
    assert (view.exceeded().kind, view.left.tokens) == ("token_limit", 0)


def test_a_run_and_a_conversation_have_limits_of_their_own_and_the_lowest_applies():
    agent = endless(limits=Limits(steps=6))
    assert len(agent.run("x", limits=Limits(steps=3)).steps) == 3
    assert len(agent.run("x", limits=Limits(steps=9)).steps) == 6
    ctx = AgentContext(limits=Limits(tokens=1))
    runs = [agent.run("x", ctx=ctx, limits=Limits(steps=5)) for _ in range(2)]
    assert [(run.stop.kind, len(run.steps)) for run in runs] == [("token_limit", 1), ("token_limit", 0)]
    with pytest.raises(TypeError, match=r"limits= takes Limits\(steps=10, tokens=20000\), not 5"):
        agent.run("x", limits=5)
    with pytest.raises(TypeError, match="give limits= or budget="):
        AgentContext(limits=Limits(cost=1), budget=Budget(Limits(cost=2)))
