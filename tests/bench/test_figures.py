"""What the page of benchmarks says is what was measured."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

spec = spec_from_file_location("bench_figures", Path(__file__).parents[2] / "bench" / "figures.py")
figures = module_from_spec(spec)
spec.loader.exec_module(figures)


def test_a_slope_is_the_power_of_the_size_with_which_a_cost_grows():
    assert figures.slopes({"1": 5, "10": 5, "100": 5}) == pytest.approx([0, 0])
    assert figures.slopes({"10": 30, "100": 300, "1000": 30_000}) == pytest.approx([1, 2])
    assert figures.slopes({"100": 300, "10": 30}) == pytest.approx([1])


def test_a_spread_is_the_median_and_the_quartiles():
    assert figures.spread([5, 1, 3, 2, 4]) == {"median": 3, "q1": 2, "q3": 4, "n": 5}
    assert figures.spread([7]) == {"median": 7, "q1": 7, "q3": 7, "n": 1}


def test_a_figure_is_shown_with_its_spread_if_there_is_one():
    assert figures.shown(figures.spread([30.8, 31.91, 33.5]), "µs") == "31.9 µs (31.4\u201332.7)"
    assert figures.shown(figures.spread([0.0345]), "ms", 1e3) == "34.5 ms"
    assert figures.shown(figures.spread([14_724]), "µs") == "14,724 µs"
    assert figures.ratio(figures.spread([31.9]), figures.spread([7.9])) == "4.04x"
