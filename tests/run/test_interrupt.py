"""The interrupt of a run, and the ids of runs."""

import re
import threading

from hookline._run.cancellation import Interrupt
from hookline._run.environment import make_id


def test_ids_are_made_of_their_prefix_and_96_random_bits():
    ids = {make_id("run") for _ in range(300)}
    assert len(ids) == 300
    assert all(re.fullmatch(r"run_[0-9a-f]{24}", each) for each in ids)
    assert make_id().startswith("id_")


def test_only_the_first_cancellation_counts_and_each_watcher_is_called_once():
    heard = []
    switch = Interrupt(heard.append)
    assert (switch.cancelled, switch.reason) == (False, "")
    switch.subscribe(lambda reason: heard.append(f"also {reason}"))
    switch.cancel("one")
    switch.cancel("two")
    assert (switch.cancelled, switch.reason) == (True, "one")
    assert heard == ["one", "also one"]


def test_a_cancellation_without_a_reason_says_cancelled():
    switch = Interrupt()
    switch.cancel()
    assert switch.reason == "cancelled"


def test_a_late_watcher_is_called_at_once():
    heard = []
    switch = Interrupt()
    switch.cancel("gone")
    switch.subscribe(heard.append)
    assert heard == ["gone"]


def test_an_unsubscribed_watcher_is_not_called():
    heard = []
    switch = Interrupt()
    leave = switch.subscribe(heard.append)
    switch.subscribe(lambda reason: heard.append(f"also {reason}"))
    leave()
    switch.cancel("x")
    assert heard == ["also x"]


def test_a_failing_watcher_is_logged_and_the_others_are_called(caplog):
    heard = []

    def fail(reason):
        raise ValueError("broken watcher")

    Interrupt(fail, heard.append).cancel("x")
    assert heard == ["x"]
    assert "broken watcher" in caplog.text


def test_sync_code_can_wait_for_an_earlier_or_later_cancellation():
    early = Interrupt()
    token = early.cancel_token
    waiter = threading.Thread(target=token.wait)
    waiter.start()
    early.cancel()
    waiter.join(60)
    assert not waiter.is_alive()
    assert early.cancel_token is token
    late = Interrupt()
    late.cancel()
    assert late.cancel_token.is_set()


def test_recorders_are_called_before_a_cancellation_takes_effect():
    switch, order = Interrupt(), []
    switch.subscribe(lambda reason: order.append("effect"))
    token = switch.cancel_token
    forget = switch.record(lambda reason: order.append("forgotten"))
    switch.record(lambda reason: order.append(f"recorded {reason}, token {token.is_set()}"))
    forget()
    switch.cancel("now")
    switch.record(lambda reason: order.append(f"late {reason}"))
    assert order == ["recorded now, token False", "effect", "late now"]
    assert token.is_set()
