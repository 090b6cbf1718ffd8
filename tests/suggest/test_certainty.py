"""Shares with intervals: what is known of a share from the calls of some runs."""

import pytest

from hookline.suggest.certainty import Share, percent, share_of, simple_share


def test_the_interval_of_independent_attacks_is_wilsons():
    found = simple_share(5, 10)
    assert (found.low, found.high) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))


def test_calls_of_a_run_say_less_than_calls_of_many_runs():
    alone = share_of(dict.fromkeys(range(10), 1), dict.fromkeys(range(100), 1))
    together = share_of({0: 10}, dict.fromkeys(range(10), 10))
    assert alone.value == together.value == 0.1
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_without_a_hit_a_run_counts_as_one_call():
    many = share_of({}, dict.fromkeys(range(30), 1))
    same = share_of({}, dict.fromkeys(range(30), 20))
    assert (many.low, same.low) == (0.0, 0.0)
    assert many.high == pytest.approx(same.high)
    assert many.high == pytest.approx(1.96**2 / (30 + 1.96**2))


def test_a_share_of_nothing_is_not_known():
    assert (share_of({}, {}).value, str(Share())) == (None, "no calls")


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.0004, "0.04 %"), (0.004, "0.4 %"), (0.123, "12 %"), (1, "100 %")]
)
def test_percentages_have_two_digits(share, text):
    assert percent(share) == text
