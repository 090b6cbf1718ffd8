"""The calculator and the clock."""

import math
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Agent, ScriptedModel, call, reply
from hookline.tools import calculator, clock
from tests.cases import each_case


@each_case(
    ("expression", "result"),
    [
        ("2 + 2", "4"),
        ("2 * (3 + 4)", "14"),
        ("7 / 2", "3.5"),
        ("7 // 2", "3"),
        ("7 % 4", "3"),
        ("2 ** 10", "1024"),
        ("-3 + +5", "2"),
        ("0.1 + 0.2", "0.3"),
        ("sqrt(16)", "4"),
        ("round(2.567, 2)", "2.57"),
        ("round(2.6)", "3"),
        ("max(1, 5, 3) - min(4, 2)", "3"),
        ("abs(-5)", "5"),
        ("2 * pi", "6.28318530717959"),
        ("factorial(5)", "120"),
        ("3 × 4 ÷ 2 − 1 =", "5"),
        ("1e3", "1000"),
        ("log(100, 10)", "2"),
        ("pow(2, 0.5)", "1.4142135623731"),
        ("2 ** -1", "0.5"),
        (" 1\t+ 1 ", "2"),
        ("hypot(3, 4)", "5"),
        ("1_000 * 2", "2000"),
    ],
)
def test_the_calculator_calculates(expression, result):
    assert calculator(expression)[:12] == result[:12]


@each_case(
    ("expression", "problem"),
    [
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("9.0 ** 9999", "too large"),
        ("1e308 * 10", "too large"),
        ("factorial(99999999)", "too large"),
        ("(2 ** 9999) * (2 ** 9999)", "too large"),
        ("-1e999", "too large"),
        ("round(1, -999999999)", "too many digits"),
        ("2 ^ 3", r"write \*\* for powers"),
        ("(-8) ** 0.5", "not a real number"),
        ("sqrt(-1)", "."),
        ("1,000 + 1", "commas"),
        ("sqr(4)", "unknown name 'sqr'. Did you mean 'sqrt'"),
        ("x + 1", "unknown name 'x'"),
        ("", "not an arithmetic"),
        ("2 +", "not an arithmetic"),
        ("'a' * 9", "not an arithmetic"),
        ("True", "not an arithmetic"),
        ("1j", "not an arithmetic"),
        ("[1] * 9", "not an arithmetic"),
        ("().__class__", "not an arithmetic"),
        ("min", "unknown name 'min'"),
        ("min(1)", "."),
        ("min()", "."),
        ("sqrt(1, 2)", "."),
        ("__import__('os')", "unknown name '__import__'"),
        ("(lambda: 1)()", "not an arithmetic"),
        ("max(*[1])", "."),
        ("round(1, ndigits=2)", "."),
        ("1 if 1 else 2", "not an arithmetic"),
        ("1 << 9999", "not an arithmetic"),
        ("1 < 2", "not an arithmetic"),
        ("(" * 250 + "1" + ")" * 249, "not an arithmetic"),
        ("1" * 501, "too long"),
        ("a\0b", "."),
        ("1\ud800", "."),
        ("log(0)", "."),
        ("factorial(0.5)", "."),
        ("round(1, 0.5)", "."),
        ("round(1e400)", "."),
        ("floor(1e999)", "."),
    ],
)
def test_an_invalid_expression_is_explained(expression, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        result = calculator(expression)
        pytest.fail(f"it gave {result}")
    assert len(str(caught.value)) < 400


numbers = st.integers(0, 10**6).map(str) | st.floats(0, 1e6, allow_subnormal=False).map(repr)
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), inner).map(
            lambda t: f"({' '.join(t)})"
        ),
        st.tuples(st.sampled_from(["-", "+"]), inner).map(lambda t: f"({''.join(t)})"),
        st.tuples(st.sampled_from(["sqrt", "abs", "round", "floor"]), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    ),
    max_leaves=6,
)


@given(expressions)
def test_the_calculator_agrees_with_python(expression):
    try:
        ours = calculator(expression)
    except ValueError as error:
        if "too large" in str(error):
            return  # Python might calculate forever
        ours = None
    if ours is None:
        with pytest.raises((ValueError, ZeroDivisionError, OverflowError, TypeError)):
            assert not isinstance(python(expression), complex), "no real result"
            raise TypeError("complex")
        return
    theirs = python(expression)
    if isinstance(theirs, int):
        assert ours == str(theirs)
    else:
        assert math.isclose(float(ours), theirs, rel_tol=1e-13, abs_tol=1e-300)


def python(expression):
    names = {"sqrt": math.sqrt, "abs": abs, "round": round, "floor": math.floor, "min": min, "max": max}
    return eval(expression, {"__builtins__": {}}, names)


@given(st.text(alphabet="0123456789.+-*/%()e,^ =pisqrtax_[]'", max_size=60) | st.text(max_size=40))
def test_any_expression_gives_a_text_or_a_value_error(expression):
    try:
        assert isinstance(calculator(expression), str)
    except ValueError:
        pass


NOON = datetime(2024, 2, 29, 12, 0, 5, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("UTC", "Thursday, 2024-02-29 12:00:05, UTC (UTC+00:00)"),
        ("Europe/Rome", "Thursday, 2024-02-29 13:00:05, Europe/Rome (UTC+01:00)"),
        ("europe/rome", "Thursday, 2024-02-29 13:00:05, Europe/Rome (UTC+01:00)"),
        ("New York", "Thursday, 2024-02-29 07:00:05, America/New_York (UTC-05:00)"),
        ("Asia/Kathmandu", "Thursday, 2024-02-29 17:45:05, Asia/Kathmandu (UTC+05:45)"),
    ],
)
def test_the_clock_shows_date_time_weekday_and_zone(zone, text):
    assert clock(zone, ctx=SimpleNamespace(clock=SimpleNamespace(time=lambda: NOON))) == text


def test_the_local_time_is_the_default():
    before = time.time()
    shown = clock()
    assert any(f"{datetime.fromtimestamp(before + late):%A, %Y-%m-%d %H:%M:%S}" in shown for late in range(3))
    assert clock("Local")[:20] == clock("")[:20]


@pytest.mark.parametrize("zone", ["Mars/Olympus", "Europe", "../../etc/passwd", "/etc/passwd", "a\0b", "x" * 5000])
def test_an_unknown_zone_is_explained(zone):
    with pytest.raises(ValueError, match="unknown time zone") as caught:
        clock(zone)
    assert len(str(caught.value)) < 250


def test_the_clock_tool_uses_the_clock_of_the_run():
    import types

    from hookline import AgentContext

    ctx = AgentContext(clock=types.SimpleNamespace(time=lambda: NOON, monotonic=time.monotonic))
    calls = [call("now", timezone="UTC"), call("calculate", expression="6 * 7"), call("calculate", expression="1/0")]
    result = Agent("a", llm=ScriptedModel([calls, reply("ok")]), tools=[clock, calculator]).run("go", ctx=ctx)
    assert [m.content for m in result.messages[2:5]] == [
        "Thursday, 2024-02-29 12:00:05, UTC (UTC+00:00)",
        "42",
        "ValueError: division by zero",
    ]
