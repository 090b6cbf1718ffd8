"""Rate limits, and bounds on the number of tracked callers."""

from hypothesis import given
from hypothesis import strategies as st

from hookline.server.rate_limits import MAX_WRONG_KEYS, WRONG_KEY_SECONDS, RateLimiter, WrongKeyLimiter


def test_a_burst_passes_and_then_the_rate_applies():
    now = [0.0]
    rates = RateLimiter(60, 3, clock=lambda: now[0])
    assert [rates.take("a") for _ in range(5)] == [0, 0, 0, 1, 1]
    now[0] = 0.5
    assert rates.take("a") == 0.5
    now[0] = 1.0
    assert [rates.take("a"), rates.take("a"), rates.take("b")] == [0, 1, 0]


@given(st.lists(st.floats(0, 100), max_size=60), st.floats(0.1, 600), st.integers(1, 20))
def test_at_most_burst_and_rate_pass_and_waiting_helps(pauses, rate, burst):
    now = [0.0]
    rates, passed = RateLimiter(rate, burst, clock=lambda: now[0]), 0
    for pause in pauses:
        now[0] += pause
        wait = rates.take("a")
        passed += not wait
        assert passed <= burst + now[0] * rate / 60 + 1e-6
        if wait:
            now[0] += wait * (1 + 1e-9) + 1e-6
            assert rates.take("a") == 0
            passed += 1


def test_a_bounded_number_of_callers_is_tracked():
    rates, wrong = RateLimiter(1, 1, max_tracked=3), WrongKeyLimiter(max_tracked=3)
    for who in "abcd":
        rates.take(who)
        wrong.add(who)
    rates.take("b")
    rates.take("e")
    assert (len(rates), len(wrong)) == (3, 3)
    assert list(rates._buckets) == ["d", "b", "e"]
    assert list(wrong._attempts) == ["b", "c", "d"]


def test_ten_wrong_keys_in_a_minute_make_an_address_wait():
    now = [0.0]
    wrong = WrongKeyLimiter(clock=lambda: now[0])
    for n in range(MAX_WRONG_KEYS):
        assert wrong.wait("a") == 0
        now[0] = float(n)
        wrong.add("a")
    assert (wrong.wait("a"), wrong.wait("b")) == (WRONG_KEY_SECONDS - 9, 0)
    now[0] = WRONG_KEY_SECONDS
    assert wrong.wait("a") == 0
    wrong.add("a")
    assert wrong.wait("a") == 1
