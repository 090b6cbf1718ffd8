"""SpendingLimit: what users, sessions and agents may spend on model calls in a window."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    Agent,
    AgentContext,
    HookResult,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.backtest import backtest
from hookline.hooks import ModelRetryHook, RecordHook, ResponseCacheHook, SpendingLimit, TapeHook, shadow
from hookline.models import ModelResponse, ModelTimeoutError, Price, RateLimitError
from hookline.payloads import Usage
from hookline.stores import RunStore, SpendingStore
from hookline.tape import replay
from hookline.teams import Team

PRICE = Price(input=1000, output=1000)  # a tenth of a cent per token
USED = Usage(10, 20)  # 3 cents


class Priced(ScriptedModel):
    """A scripted model with a price, whose replies use 30 tokens and cost 3 cents."""

    def __init__(self, turns=("Here you are.",), price=PRICE, **options):
        super().__init__(list(turns), loop=True, **options)
        self.tariff = price

    def price(self, usage):
        return None if self.tariff is None else self.tariff.of(usage)

    def count_tokens(self, content):
        return 10

    def _response(self, turn, number, request):
        made = super()._response(turn, number, request)
        return made.replace(usage=USED, cost=self.price(USED))


@pytest.fixture
def store(tmp_path):
    with closing(SpendingStore(tmp_path / "spending.db")) as made:
        yield made


def limited(store, usd=0.1, **options):
    return SpendingLimit(usd, store=store, **{"max_reply_tokens": 20, **options})


def account(store, subject="ann"):
    (found,) = store.accounts(subject)
    return found


def spent(store, subject="ann"):
    """What was spent, in cents, with nothing left reserved."""
    found = account(store, subject)
    assert (found.reserved.usd, found.reserved.tokens) == (0, 0)
    return round(found.spent.usd * 100, 6)


def helper(*hooks, turns=("Here you are.",), **options):
    return Agent("helper", llm=Priced(turns), hooks=hooks, **options)


ANN = {"user": "ann"}


def test_a_user_who_has_spent_the_allowance_gets_no_further_call_and_others_do(store):
    agent = helper(limited(store))
    assert [agent.run("Help.", metadata=ANN).status for _ in range(3)] == ["completed"] * 3
    result = agent.run("Help.", metadata=ANN)
    assert (result.status, result.stop.kind, result.stop.hook) == ("stopped", "cost_limit", "SpendingLimit")
    assert result.stop.message.startswith(
        "Spending limit of user ann reached: $0.0900 of $0.1000 used today, and this call may cost up to $0.0300. "
        "There is room again at "
    )
    assert result.stop.message.endswith(" 00:00 UTC.")
    assert agent.run("Help.", metadata={"user": "ben"}).status == "completed"
    assert (spent(store), spent(store, "ben")) == (9, 3)
    assert len(agent.model.requests) == 4


def test_tokens_are_limited_too(store):
    agent = helper(SpendingLimit(tokens=70, store=store, max_reply_tokens=20))
    assert [agent.run("Help.", metadata=ANN).status for _ in range(3)] == ["completed", "completed", "stopped"]
    stop = agent.run("Help.", metadata=ANN).stop
    assert stop.kind == "token_limit"
    assert "60 of 70 tokens used today, and this call may use up to 30." in stop.message


def test_the_reply_that_a_request_allows_is_reserved_and_what_was_used_is_counted(store):
    seen = []

    @guard(BEFORE_LLM, priority=-300)
    def look(ctx, request):
        seen.append(account(store).reserved)

    agent = helper(limited(store, usd=1.0), look, params={"max_tokens": 500})
    agent.run("Help.", metadata=ANN)
    assert [(round(each.usd, 6), each.tokens) for each in seen] == [(0.51, 510)]
    assert (spent(store), account(store).spent.tokens, account(store).calls) == (3, 30, 1)


def test_a_limit_below_one_call_says_what_to_change(store):
    stop = helper(limited(store, usd=0.01)).run("Help.", metadata=ANN).stop
    assert stop.message.endswith(
        "That is more than the whole limit: set max_tokens of the model lower, or the limit higher."
    )


@pytest.mark.parametrize(
    ("metadata", "subject"),
    [
        ({"user": "ann", "caller_id": "key_1"}, "ann"),
        ({"user": 7}, "7"),
        ({"caller": "Ann", "caller_id": "key_1"}, "key_1"),
        ({"channel": "telegram", "sender": "12345"}, "telegram:12345"),
        ({"user": ""}, ""),
        ({}, ""),
    ],
)
def test_the_user_is_that_of_the_metadata_the_caller_or_the_sender(store, metadata, subject):
    helper(limited(store)).run("Help.", metadata=metadata)
    assert [each.subject for each in store.accounts()] == [subject]


def test_runs_without_a_user_share_an_account(store):
    agent = helper(limited(store, usd=0.05))
    assert [agent.run("Help.").status for _ in range(2)] == ["completed", "stopped"]
    assert "Spending limit of runs without a user reached" in agent.run("Help.").stop.message


def test_a_session_an_agent_or_what_a_function_says_can_be_limited(store):
    def team(ctx):
        return str(ctx.state.metadata["team"])

    limits = [limited(store, per=per) for per in ("session", "agent", team)]
    agent = helper(*limits)
    agent.run("Help.", session=Session("s1"), metadata={"team": "sales"})
    assert {(each.account, each.subject) for each in store.accounts()} == {
        ("session 1d", "s1"),
        ("agent 1d", "helper"),
        ("team 1d", "sales"),
    }


def test_two_limits_hold_at_once(store):
    agent = helper(limited(store, usd=0.04), limited(store, usd=0.07, per="agent"))
    users = ("ann", "ann", "ben", "cid")
    runs = [agent.run("Help.", metadata={"user": user}) for user in users]
    assert [run.status for run in runs] == ["completed", "stopped", "completed", "stopped"]
    assert "of user ann reached" in runs[1].stop.message
    assert "of agent helper reached" in runs[3].stop.message
    assert (spent(store, "ann"), spent(store, "ben"), spent(store, "helper")) == (3, 3, 6)
    assert spent(store, "cid") == 0  # its reservation was given back


@tool
def look_up(key: str) -> str:
    """Look something up."""
    return key


def test_subagents_count_for_the_user_and_the_agent_of_the_outer_run(store):
    boss_turns = [call("delegate", to="clerk", task="Look."), reply("Done.")]
    team = Team()
    clerk = Agent("clerk", llm=Priced(), hooks=[limited(store)])
    boss = Agent("boss", llm=Priced(boss_turns), tools=[team], hooks=[limited(store), limited(store, 1.0, per="agent")])
    team.add(boss)
    team.add(clerk)
    result = boss.run("Go.", metadata=ANN)
    assert result.status == "completed"
    assert (spent(store), spent(store, "boss")) == (9, 9)
    assert account(store).calls == 3  # the clerk's own limit has the same account
    assert {each.subject for each in store.accounts()} == {"ann", "boss"}


def test_a_limit_of_a_subagents_own_counts_a_call_once_for_the_user_and_for_its_own_name(store):
    team = Team()
    clerk = Agent("clerk", llm=Priced(), hooks=[limited(store, 1.0), limited(store, 1.0, per="agent")])
    boss = Agent("boss", llm=Priced([call("delegate", to="clerk", task="Look."), reply("Done.")]), tools=[team])
    team.add(boss)
    team.add(clerk)
    boss.run("Go.", metadata=ANN)
    assert {each.subject: each.spent.usd for each in store.accounts()} == {"ann": 0.03, "clerk": 0.03}


def test_calls_of_hooks_count_at_the_price_of_their_model(store):
    judge = Priced(["fine"], price=Price(input=2000, output=2000), name="judge")

    @hook(AFTER_LLM)
    async def ask(ctx, given):
        if given.purpose == "step":
            await ctx.llm.using(judge).complete("Is it fine?")
            assert (await ctx.llm.complete("Really?")).cost == 0.03

    helper(limited(store, usd=1.0), ask).run("Help.", metadata=ANN)
    assert spent(store) == 3 + 6 + 3


def test_concurrent_calls_of_tools_are_all_counted(store):
    @tool
    async def think(about: str, ctx: AgentContext) -> str:
        """Think."""
        await asyncio.sleep(0)
        return (await ctx.llm.complete(about)).content

    calls = [call("think", about=about) for about in "abcd"]
    agent = helper(limited(store, usd=1.0), turns=[calls, *["ok"] * 5], tools=[think])
    agent.run("Help.", metadata=ANN)
    assert (spent(store), account(store).calls) == (18, 6)


def test_each_attempt_counts(store):
    @hook(AFTER_LLM)
    def again(ctx, given):
        return HookResult.retry("Better.") if given.attempt < 3 else None

    helper(limited(store, usd=1.0), again).run("Help.", metadata=ANN)
    assert (spent(store), account(store).calls) == (9, 3)


def test_an_answer_of_a_hook_costs_nothing(store):
    agent = helper(limited(store, usd=1.0), ResponseCacheHook())
    for _ in range(3):
        agent.run("Help.", session=Session("s"), metadata=ANN)
    assert (spent(store), account(store).calls) == (3, 1)


def test_a_call_that_another_hook_stops_gives_its_reservation_back(store):
    @guard(BEFORE_LLM, priority=-300)
    def never(ctx, request):
        return HookResult.stop("not now")

    assert helper(limited(store), never).run("Help.", metadata=ANN).status == "stopped"
    assert (spent(store), account(store).calls) == (0, 0)


@pytest.mark.parametrize(
    ("error", "cents"),
    [
        (RateLimitError("slow down"), 0),  # no provider bills these
        (ModelTimeoutError("no answer"), 3),  # the provider may bill it
        (ValueError("what?"), 3),
    ],
)
def test_a_failed_call_counts_with_what_was_reserved_unless_nobody_bills_it(store, error, cents):
    agent = helper(limited(store), turns=[error])
    with pytest.raises(RunFailedError):
        agent.run("Help.", metadata=ANN)
    assert spent(store) == cents


def test_a_retry_after_a_failure_counts_both_calls(store):
    agent = helper(limited(store, usd=1.0), ModelRetryHook(base_delay=0), turns=[ModelTimeoutError("no answer"), "ok"])
    assert agent.run("Help.", metadata=ANN).status == "completed"
    assert spent(store) == 6


def test_a_reply_without_usage_counts_with_what_was_reserved(store):
    class Silent(Priced):
        def _response(self, turn, number, request):
            return super()._response(turn, number, request).replace(usage=Usage(), cost=None)

    Agent("helper", llm=Silent(), hooks=[limited(store)]).run("Help.", metadata=ANN)
    assert (spent(store), account(store).spent.tokens) == (3, 30)


@pytest.mark.parametrize("with_trial", [False, True])
async def test_a_cancelled_call_counts_with_what_was_reserved(store, with_trial):
    asked = asyncio.Event()

    class Hanging(Priced):
        async def stream(self, request):
            asked.set()
            await asyncio.sleep(60)
            yield ""

    trial = [shadow(limited(store, usd=0.05))] if with_trial else []  # of a lower limit, which has the same account
    agent = Agent("helper", llm=Hanging(), hooks=[*trial, limited(store)])
    run = agent.start("Help.", metadata=ANN)
    await asked.wait()
    run.cancel("enough")
    assert (await run.result()).status == "cancelled"
    assert (spent(store), account(store).calls) == (3, 1)


async def test_a_cancelled_stream_counts_with_what_the_run_has_counted(store):
    class Streaming(Priced):
        async def stream(self, request):
            yield "Here "
            await asyncio.sleep(60)

    agent = Agent("helper", llm=Streaming(), hooks=[limited(store, max_reply_tokens=90)])
    shown = []
    run = agent.start("Help.", metadata=ANN, sinks=[shown.append], stream="live")
    async for event in run.events():
        if getattr(event, "text", "") == "Here ":
            run.cancel("enough")
    result = await run.result()
    assert result.status == "cancelled"
    assert spent(store) == round(result.cost * 100, 6) == 2  # 10 tokens each way


def test_a_price_that_nobody_knows_is_refused_unless_an_amount_is_given_for_it(store):
    agent = Agent("helper", llm=Priced(price=None), hooks=[limited(store)])
    with pytest.raises(RunFailedError, match=r"the price of model 'scripted' is unknown, so 'user 1d' cannot limit it"):
        agent.run("Help.", metadata=ANN)
    assert store.accounts() == []
    Agent("helper", llm=Priced(price=None), hooks=[limited(store, reserve_usd=0.02)]).run("Help.", metadata=ANN)
    assert spent(store) == 2
    only_tokens = SpendingLimit(tokens=100, store=store, account="tokens", max_reply_tokens=20)
    Agent("helper", llm=Priced(price=None), hooks=[only_tokens]).run("Help.", metadata={"user": "ben"})
    assert account(store, "ben").spent.tokens == 30


async def test_concurrent_runs_never_spend_more_than_the_limit(store):
    agent = Agent("helper", llm=Priced(delay=0.001), hooks=[limited(store, usd=0.1)])
    results = await asyncio.gather(*(agent.arun("Help.", metadata=ANN) for _ in range(12)))
    # Before its calls are settled, each reserves exactly what it spends.
    assert sorted(result.status for result in results) == ["completed"] * 3 + ["stopped"] * 9
    assert spent(store) == 9


def test_a_store_that_cannot_be_used_fails_closed(tmp_path):
    (tmp_path / "spending.db").write_text("this is not a database, and long enough to be read as one " * 20)
    limit = SpendingLimit(1.0, store=tmp_path / "spending.db")
    agent = helper(limit)
    with pytest.raises(RunFailedError, match="SpendingLimit"):
        agent.run("Help.", metadata=ANN)
    assert agent.model.requests == []


def test_a_reservation_that_could_not_be_settled_is_settled_when_the_run_ends(store, monkeypatch):
    tried = []
    real = store.settle

    def settle(*args, **options):
        tried.append(args)
        if len(tried) == 1:
            raise sqlite3.OperationalError("database is locked")
        return real(*args, **options)

    monkeypatch.setattr(store, "settle", settle)
    result = helper(limited(store)).run("Help.", metadata=ANN)
    assert (result.status, len(result.errors)) == ("completed", 1)
    assert spent(store) == 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "give a limit: usd= or tokens="),
        ({"usd": 0}, "usd must be a number above 0"),
        ({"tokens": 1.5}, "tokens must be a whole number"),
        ({"usd": 1, "per": "caller"}, "per must be 'user', 'session', 'agent' or a function"),
        ({"usd": 1, "per": lambda ctx: "a"}, "needs account="),
        ({"usd": 1, "window": "2d"}, "window must be one of 1h, 1d, 1w, 1mo"),
        ({"usd": 1, "timezone": "Mars"}, "timezone must be a name"),
        ({"usd": 1, "reserve_usd": -1}, "reserve_usd must be a number above 0"),
        ({"usd": 1, "account": " "}, "account must be a name"),
    ],
)
def test_bad_arguments_are_refused(arguments, problem, tmp_path):
    with pytest.raises(RegistrationError, match=problem):
        SpendingLimit(**arguments, store=tmp_path / "spending.db")


# Replay, shadow mode, backtest.


def test_a_replay_spends_nothing_and_decides_the_same(store, tmp_path):
    agent = helper(limited(store, usd=0.05), TapeHook(tmp_path / "tapes"))
    for _ in range(2):
        agent.run("Help.", metadata=ANN)
    before = store.accounts()
    completed, stopped = sorted((tmp_path / "tapes").iterdir(), key=lambda path: path.stat().st_size, reverse=True)
    for tape, status in ((completed, "completed"), (stopped, "stopped")):
        for again in (replay(tape, agent), replay(tape, [limited(store, usd=0.05)])):
            assert again.first_difference == ""
            assert again.result.status == status
    assert store.accounts() == before


def test_a_replay_of_a_run_without_the_limit_reserves_nothing(store, tmp_path):
    helper(TapeHook(tmp_path / "run.tape")).run("Help.", metadata=ANN)
    assert replay(tmp_path / "run.tape", [limited(store)]).result.status == "completed"
    assert store.accounts() == []


def test_a_backtest_spends_nothing(store, tmp_path):
    helper(RecordHook(tmp_path / "records")).run("Help.", metadata=ANN)
    report = backtest([limited(store)], tmp_path / "records")
    assert report.moments
    assert store.accounts() == []


def test_a_limit_in_shadow_mode_counts_and_stops_nothing(store):
    trial = shadow(limited(store, usd=0.05))
    agent = helper(trial)
    assert [agent.run("Help.", metadata=ANN).status for _ in range(2)] == ["completed"] * 2
    assert [decision.verb for decision in trial.decisions] == ["stop"]
    assert spent(store) == 3


def test_a_hook_that_catches_the_refusal_of_its_call_does_not_help(store):
    @hook(AFTER_TOOL)
    async def ask(ctx, result):
        await ctx.llm.complete("Is it fine?")

    turns = [call("look_up", key="k"), "done"]
    result = helper(limited(store, usd=0.05), ask, turns=turns, tools=[look_up]).run("Help.", metadata=ANN)
    assert (result.status, result.stop.kind) == ("stopped", "cost_limit")
    assert spent(store) == 3


class Reporting:
    """A model that says what a call has cost, and whose price nobody knows before."""

    name, provider = "reporting", "test"

    def __init__(self, cost):
        self.cost = cost

    async def complete(self, request):
        return ModelResponse("ok", usage=Usage(5, 5), cost=self.cost)

    def count_tokens(self, content):
        return 5


@pytest.mark.parametrize("cost", [1e10, 1e12, 1e300])
def test_a_reply_that_costs_more_than_can_be_stored_leaves_no_room(store, cost):
    agent = Agent("helper", llm=Reporting(cost), hooks=[limited(store, reserve_usd=0.03)])
    assert [agent.run("Help.", metadata=ANN).status for _ in range(3)] == ["completed", "stopped", "stopped"]
    assert account(store).reserved.usd == 0


def test_a_reply_with_more_tokens_than_can_be_stored_leaves_no_room(store):
    def endless(request):
        return reply("ok", usage=Usage(5, 10**30))

    agent = Agent("helper", llm=ScriptedModel([endless], loop=True), hooks=[limited(store, usd=None, tokens=1000)])
    assert [agent.run("Help.", metadata=ANN).status for _ in range(3)] == ["completed", "stopped", "stopped"]
    assert account(store).reserved.tokens == 0


def test_a_run_with_the_id_of_one_that_was_deleted_counts_again(store, tmp_path):
    runs = RunStore(tmp_path / "runs.db")
    agent, found = helper(limited(store)), []
    for _ in range(4):
        found.append(agent.run("Help.", metadata=ANN, durable=runs, run_id="nightly").status)
        runs.delete("nightly")
    assert found == ["completed"] * 3 + ["stopped"]
    assert spent(store) == 9


@pytest.mark.parametrize("cost", [-5.0, float("nan"), float("inf"), float("-inf")])
def test_a_reply_with_an_impossible_cost_counts_with_what_was_reserved_and_makes_no_room(store, cost):
    agent = Agent("helper", llm=Reporting(cost), hooks=[limited(store, reserve_usd=0.03)])
    assert [agent.run("Help.", metadata=ANN).status for _ in range(4)] == ["completed"] * 3 + ["stopped"]
    assert spent(store) == 9


def test_a_model_may_report_its_cost_itself(store):
    Agent("helper", llm=Reporting(0.007), hooks=[limited(store, reserve_usd=0.05)]).run("Help.", metadata=ANN)
    assert spent(store) == 0.7
