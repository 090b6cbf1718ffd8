"""What was spent and reserved: exact in all processes, in windows of the calendar."""

import subprocess
import sys
import textwrap
import threading
import time
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from hookline import RegistrationError
from hookline.stores import SpendingStore
from hookline.stores.spending import KEEP_SECONDS, Amount, Calendar
from tests.environment import with_source
from tests.properties import examples
from tests.waiting import block_until

DAY = 86400.0
NOON = 1_772_366_400.0  # 2026-03-01 12:00 UTC
DAILY = Calendar("1d")


class Clock:
    def __init__(self, now=NOON):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    made = SpendingStore(tmp_path / "spending.db", clock=clock)
    yield made
    made.close()


def reserve(store, call, usd=0.0, tokens=0, *, subject="ann", account="user 1d", calendar=DAILY, **limits):
    return store.reserve(account, subject, call, Amount(usd, tokens), calendar=calendar, **limits)


def test_a_call_is_reserved_until_it_is_settled_with_what_it_spent(store):
    assert reserve(store, "a", 0.4, 100, usd_limit=1.0).granted
    (account,) = store.accounts()
    assert (account.spent, account.reserved, account.usd_left) == (Amount(), Amount(0.4, 100), 0.6)
    assert store.settle("user 1d", "ann", "a", Amount(0.1, 30))
    (account,) = store.accounts()
    assert (account.spent, account.reserved, account.usd_left, account.calls) == (Amount(0.1, 30), Amount(), 0.9, 1)


def test_a_call_that_would_exceed_a_limit_gets_nothing_and_the_limit_itself_can_be_reached(store):
    assert reserve(store, "a", 0.5, 10, usd_limit=1.0, token_limit=100).granted
    assert reserve(store, "b", 0.5, 10, usd_limit=1.0, token_limit=100).granted
    refused = reserve(store, "c", 0.000000001, 10, usd_limit=1.0, token_limit=100)
    assert (refused.granted, refused.account.reserved.usd) == (False, 1.0)
    assert not reserve(store, "d", 0.0, 81, usd_limit=1.0, token_limit=100).granted
    assert reserve(store, "e", 0.0, 80, usd_limit=1.0, token_limit=100).granted


def test_amounts_are_exact(store):
    for number in range(10):
        reserve(store, f"{number}", 0.1, usd_limit=1.0)
        store.settle("user 1d", "ann", f"{number}", Amount(0.1))
    (account,) = store.accounts()
    assert (account.spent.usd, account.usd_left) == (1.0, 0.0)
    assert not reserve(store, "x", 0.000000001, usd_limit=1.0).granted


def test_a_call_counts_once_however_often_it_is_reserved_and_settled(store):
    for _ in range(3):
        assert reserve(store, "a", 0.6, usd_limit=1.0).granted
    assert store.settle("user 1d", "ann", "a", Amount(0.5))
    assert not store.settle("user 1d", "ann", "a", Amount(0.5))
    assert reserve(store, "a", 0.6, usd_limit=0.1).granted  # it was made
    assert not store.settle("user 1d", "ann", "a", Amount(0.5))
    (account,) = store.accounts()
    assert (account.spent.usd, account.reserved.usd, account.calls) == (0.5, 0.0, 1)


def test_two_limits_of_one_account_count_a_call_once_and_the_lower_one_decides(store):
    assert reserve(store, "a", 0.6, usd_limit=1.0).granted
    assert not reserve(store, "a", 0.6, usd_limit=0.5).granted
    assert store.accounts()[0].reserved.usd == 0.6


def test_a_call_of_unknown_usage_counts_with_what_was_reserved_and_one_that_was_not_made_not_at_all(store):
    reserve(store, "a", 0.4, 10)
    reserve(store, "b", 0.4, 10)
    store.settle("user 1d", "ann", "a", None)
    store.settle("user 1d", "ann", "b", Amount(), made=False)
    (account,) = store.accounts()
    assert (account.spent, account.calls) == (Amount(0.4, 10), 1)


def test_more_than_was_reserved_counts_in_full_and_nothing_further_is_granted(store):
    reserve(store, "a", 0.4, usd_limit=0.5)
    store.settle("user 1d", "ann", "a", Amount(0.9))
    assert not reserve(store, "b", 0.01, usd_limit=0.5).granted
    assert store.accounts()[0].usd_left == 0.0


def test_others_have_accounts_of_their_own(store):
    assert reserve(store, "a", 1.0, usd_limit=1.0).granted
    assert reserve(store, "a", 1.0, usd_limit=1.0, subject="ben").granted
    assert reserve(store, "a", 1.0, usd_limit=1.0, account="agent 1d").granted


def test_a_new_window_has_all_its_room_and_a_call_counts_where_it_began(store, clock):
    assert reserve(store, "a", 1.0, usd_limit=1.0).granted
    clock.now += DAY / 2 - 1
    assert not reserve(store, "b", 0.1, usd_limit=1.0).granted
    clock.now += 1
    assert reserve(store, "b", 0.1, usd_limit=1.0).granted
    assert store.settle("user 1d", "ann", "a", Amount(0.9))
    (account,) = store.accounts()
    assert (account.reserved.usd, account.spent.usd) == (0.1, 0.0)
    clock.now -= 1
    assert store.accounts()[-1].spent.usd == 0.9


def test_a_changed_limit_counts_from_the_next_call_on(store):
    assert reserve(store, "a", 0.9, usd_limit=1.0).granted
    assert not reserve(store, "b", 0.9, usd_limit=1.0).granted
    assert store.accounts()[0].usd_limit == 1.0
    assert reserve(store, "b", 0.9, usd_limit=2.0).granted
    assert store.accounts()[0].usd_limit == 2.0


def test_a_reset_lets_one_subject_spend_again(store):
    for subject in ("ann", "ben"):
        reserve(store, "a", 0.5, usd_limit=1.0, subject=subject)
        store.settle("user 1d", subject, "a", Amount(0.5))
        reserve(store, "b", 0.5, usd_limit=1.0, subject=subject)
    assert [account.spent.usd for account in store.reset("ann")] == [0.5]
    assert {each.subject: each.usd_left for each in store.accounts()} == {"ann": 1.0, "ben": 0.0}
    assert not store.settle("user 1d", "ann", "b", Amount(0.5))
    assert store.accounts("ann")[0].usd_left == 1.0
    assert store.reset("ben", "agent 1d") == []


def test_what_was_spent_survives_a_restart(store, tmp_path, clock):
    reserve(store, "a", 0.9, usd_limit=1.0)
    store.close()
    again = SpendingStore(tmp_path / "spending.db", clock=clock)
    assert not reserve(again, "b", 0.2, usd_limit=1.0).granted
    assert again.settle("user 1d", "ann", "a", Amount(0.1))
    assert reserve(again, "b", 0.2, usd_limit=1.0).granted
    again.close()


def test_accounts_are_listed_with_the_least_left_first(store):
    for subject, usd, tokens in (("ann", 0.2, 0), ("ben", 0.0, 90), ("cid", 0.5, 10)):
        reserve(store, "a", usd, tokens, subject=subject, usd_limit=1.0, token_limit=100)
    assert [account.subject for account in store.accounts()] == ["ben", "cid", "ann"]
    assert [account.subject for account in store.accounts(limit=1)] == ["ben"]
    assert [account.share for account in store.accounts()] == [0.9, 0.5, 0.2]


def test_windows_that_ended_long_ago_are_deleted(tmp_path, clock):
    with_calls = SpendingStore(tmp_path / "spending.db", clock=clock)
    reserve(with_calls, "a", 0.5)
    with_calls.close()
    clock.now += KEEP_SECONDS + 2 * DAY
    store = SpendingStore(tmp_path / "spending.db", clock=clock)
    reserve(store, "b", 0.5)
    with store.db.transaction() as db:
        assert db.execute("SELECT count(*) FROM calls").fetchone()[0] == 1
        assert db.execute("SELECT count(*) FROM accounts").fetchone()[0] == 1
    assert not store.settle("user 1d", "ann", "a", Amount(0.5))
    store.close()


def test_without_a_clock_the_window_is_that_of_now(tmp_path):
    store = SpendingStore(tmp_path / "spending.db")
    reserve(store, "a", 0.5)
    (account,) = store.accounts()
    assert account.since <= time.time() + 5
    assert time.time() - 5 < account.until <= account.since + DAY
    store.close()


# Windows.


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("window", "zone", "now", "begin", "end"),
    [
        ("1h", "UTC", "2026-03-01 12:34", "2026-03-01 12:00", "2026-03-01 13:00"),
        ("1h", "Asia/Kolkata", "2026-03-01 12:34", "2026-03-01 12:00", "2026-03-01 13:00"),
        ("1d", "UTC", "2026-03-01 00:00", "2026-03-01 00:00", "2026-03-02 00:00"),
        ("1d", "Europe/Berlin", "2026-03-29 12:00", "2026-03-29 00:00", "2026-03-30 00:00"),  # 23 hours
        ("1d", "Europe/Berlin", "2026-10-25 23:59", "2026-10-25 00:00", "2026-10-26 00:00"),  # 25 hours
        ("1w", "UTC", "2026-03-01 12:00", "2026-02-23 00:00", "2026-03-02 00:00"),
        ("1mo", "UTC", "2026-12-31 12:00", "2026-12-01 00:00", "2027-01-01 00:00"),
        ("1mo", "America/New_York", "2026-02-01 00:00", "2026-02-01 00:00", "2026-03-01 00:00"),
    ],
)
def test_a_window_is_one_of_the_calendar(window, zone, now, begin, end):
    assert Calendar(window, zone).at(at(now, zone)) == (at(begin, zone), at(end, zone))


@settings(max_examples=examples(200))
@given(
    window=st.sampled_from(["1h", "1d", "1w", "1mo"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York", "Australia/Lord_Howe"]),
    now=st.floats(1.7e9, 2e9),
)
def test_each_moment_is_in_exactly_one_window(window, zone, now):
    calendar = Calendar(window, zone)
    begin, end = calendar.at(now)
    assert begin <= now < end
    assert calendar.at(begin)[0] == begin
    assert calendar.at(end)[0] == end


def test_an_unknown_window_or_time_zone_is_refused():
    with pytest.raises(RegistrationError, match=r"window must be one of 1h, 1d, 1w, 1mo, not '1y'"):
        Calendar("1y")
    with pytest.raises(RegistrationError, match="timezone must be a name such as UTC or Europe/Berlin, not 'Mars'"):
        Calendar("1d", "Mars")


# Interleavings.


class Spending(RuleBasedStateMachine):
    """Two connections reserve, settle and reset in any order. A call spends at most what was reserved for it."""

    calls = Bundle("calls")

    @initialize()
    def open(self):
        self.folder = TemporaryDirectory()
        self.clock = Clock()
        self.stores = [SpendingStore(Path(self.folder.name) / "spending.db", clock=self.clock) for _ in range(2)]
        self.spent, self.held, self.number = {}, {}, 0

    @rule(target=calls, store=st.integers(0, 1), usd=st.integers(0, 60), tokens=st.integers(0, 60))
    def reserve(self, store, usd, tokens):
        self.number += 1
        call, day = f"call {self.number}", DAILY.at(self.clock.now)[0]
        made = reserve(self.stores[store], call, usd / 100, tokens, usd_limit=1.0, token_limit=100)
        held = [amount for amount, since in self.held.values() if since == day]
        used = self.spent.get(day, (0, 0))
        fits = (
            used[0] + sum(each[0] for each in held) + usd <= 100
            and used[1] + sum(each[1] for each in held) + tokens <= 100
        )
        assert made.granted == fits
        if made.granted:
            self.held[call] = (usd, tokens), day
        return call

    @rule(store=st.integers(0, 1), call=consumes(calls), share=st.integers(0, 100), is_known=st.booleans())
    def settle(self, store, call, share, is_known):
        known = self.held.pop(call, None)
        (usd, tokens), day = known or ((0, 0), 0.0)
        amount = Amount(usd * share // 100 / 100, tokens * share // 100) if is_known else None
        assert self.stores[store].settle("user 1d", "ann", call, amount) == (known is not None)
        if known is not None:
            spent = self.spent.get(day, (0, 0))
            add = (usd * share // 100, tokens * share // 100) if is_known else (usd, tokens)
            self.spent[day] = spent[0] + add[0], spent[1] + add[1]

    @rule(hours=st.integers(1, 20))
    def wait(self, hours):
        self.clock.now += hours * 3600

    @rule(store=st.integers(0, 1))
    def reset(self, store):
        day = DAILY.at(self.clock.now)[0]
        self.stores[store].reset("ann")
        self.spent.pop(day, None)
        self.held = {call: held for call, held in self.held.items() if held[1] != day}

    @invariant()
    def what_is_spent_and_reserved_is_exact_and_within_the_limit(self):
        if not hasattr(self, "stores"):
            return
        day = DAILY.at(self.clock.now)[0]
        held = [amount for amount, since in self.held.values() if since == day]
        for account in self.stores[0].accounts():
            spent = self.spent.get(day, (0, 0))
            assert (round(account.spent.usd * 100), account.spent.tokens) == spent
            assert account.reserved.tokens == sum(each[1] for each in held)
            assert account.spent.usd + account.reserved.usd <= 1.0 + 1e-12
            assert account.spent.tokens + account.reserved.tokens <= 100

    def teardown(self):
        if hasattr(self, "stores"):
            for store in self.stores:
                store.close()
            self.folder.cleanup()


TestSpending = Spending.TestCase
TestSpending.settings = settings(max_examples=examples(40), stateful_step_count=30)


def test_threads_with_connections_of_their_own_never_get_more_than_the_limit(tmp_path):
    granted = []

    def spend(number):
        store = SpendingStore(tmp_path / "spending.db", clock=Clock())
        for call in range(20):
            if reserve(store, f"{number} {call}", 0.03, 7, usd_limit=1.0, token_limit=200).granted:
                granted.append(call)
                store.settle("user 1d", "ann", f"{number} {call}", Amount(0.03, 7))
        store.close()

    threads = [threading.Thread(target=spend, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 28  # 28 calls of 7 tokens fit into 200


PROCESS = """
    import sys
    from hookline.stores.spending import Amount, Calendar, SpendingStore

    place, name = sys.argv[1:]
    store, granted = SpendingStore(place, clock=lambda: 1772366400.0), 0
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(40):
        call = f"{name} {number}"
        made = store.reserve("user 1d", "ann", call, Amount(0.05, 9), calendar=Calendar("1d"), usd_limit=1.0)
        assert made.account.spent.usd + made.account.reserved.usd <= 1.0, made
        granted += made.granted
        if made.granted and number % 3:
            store.settle("user 1d", "ann", call, Amount(0.02, 3))
    print(granted, flush=True)
"""


def in_processes(place, count):
    command = [sys.executable, "-c", textwrap.dedent(PROCESS), place]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": with_source()}
    processes = [subprocess.Popen([*command, str(number)], **pipes) for number in range(count)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    granted = sum(int(process.communicate(timeout=60)[0]) for process in processes)
    assert [process.returncode for process in processes] == [0] * count
    return granted


def check_sum(store, granted):
    (account,) = store.accounts()
    assert granted > 20
    assert account.spent.usd + account.reserved.usd <= 1.0
    assert account.spent.usd + account.reserved.usd > 0.95  # no room was lost either
    assert round(account.spent.usd / 0.02) + round(account.reserved.usd / 0.05) == granted
    store.close()


def test_processes_that_share_a_database_never_get_more_than_the_limit(tmp_path):
    granted = in_processes(str(tmp_path / "spending.db"), 3)
    check_sum(SpendingStore(tmp_path / "spending.db", clock=Clock()), granted)


def test_servers_on_postgresql_never_get_more_than_the_limit_and_use_its_clock(postgres_url):
    first = SpendingStore(postgres_url)
    reserve(first, "a", 0.0, subject="ben")
    with first.db.transaction() as db:
        now = float(db.execute("SELECT CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)").fetchone()[0])
    (account,) = first.accounts()
    assert account.since <= now < account.until
    first.close()
    granted = in_processes(postgres_url, 3)
    store = SpendingStore(postgres_url, clock=Clock())
    found = {each.subject: each for each in store.accounts()}
    assert granted > 20
    assert 0.95 < found["ann"].spent.usd + found["ann"].reserved.usd <= 1.0
    store.close()


def test_what_a_killed_process_reserved_counts_until_its_window_ends(tmp_path, clock):
    program = textwrap.dedent("""
        import os, signal, sys
        from hookline.stores.spending import Amount, Calendar, SpendingStore

        store = SpendingStore(sys.argv[1], clock=lambda: 1772366400.0)
        store.reserve("user 1d", "ann", "a", Amount(0.6, 9), calendar=Calendar("1d"), usd_limit=1.0)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    command = [sys.executable, "-c", program, str(tmp_path / "spending.db")]
    subprocess.run(command, check=False, env=with_source(), timeout=60)
    store = SpendingStore(tmp_path / "spending.db", clock=clock)
    assert store.accounts()[0].reserved.usd == 0.6
    assert not reserve(store, "b", 0.5, usd_limit=1.0).granted
    clock.now += DAY
    assert reserve(store, "b", 0.5, usd_limit=1.0).granted
    store.close()


AGENTS = """
import asyncio, os, sys

from hookline import Agent
from hookline.hooks import SpendingLimit
from hookline.models import ModelResponse
from hookline.payloads import Usage

class Cent:
    name, provider = "cent", "test"

    async def complete(self, request):
        with open(sys.argv[2], "a") as calls:
            calls.write("x")
        if sys.argv[3] == "hangs":
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return ModelResponse("ok", usage=Usage(10, 20), cost=0.01)

    def price(self, usage):
        return 0.01

    def count_tokens(self, content):
        return 10

async def main():
    agent = Agent("a", llm=Cent(), hooks=[SpendingLimit(usd=0.3, window="1mo", store=sys.argv[1], max_reply_tokens=20)])
    runs = [agent.arun("Help.", metadata={"user": "ann"}) for _ in range(int(sys.argv[4]))]
    print(sum(run.status == "completed" for run in await asyncio.gather(*runs)))

asyncio.run(main())
"""


@pytest.mark.parametrize("place", ["file", "postgresql"])
def test_agents_of_several_processes_never_make_a_call_too_many_also_if_one_is_killed(tmp_path, place, request):
    where = str(tmp_path / "spending.db") if place == "file" else request.getfixturevalue("postgres_url")
    calls = tmp_path / "calls"

    def start(mode, runs):
        command = [sys.executable, "-c", AGENTS, where, str(calls), mode, str(runs)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=with_source())

    killed = start("hangs", 5)
    block_until(lambda: calls.exists() and calls.read_text() == "xxxxx")
    killed.kill()
    killed.communicate()
    completed = [int(process.communicate(timeout=60)[0]) for process in [start("answers", 20) for _ in range(2)]]
    assert sum(completed) == 25  # the five calls of the killed process count with what was reserved
    assert len(calls.read_text()) == 30
    store = SpendingStore(where)
    (account,) = store.accounts("ann")
    assert (account.spent.usd, account.reserved.usd, account.usd_left) == (0.25, 0.05, 0.0)
    store.close()
