"""MetricsHook: metrics of runs in Prometheus' text format."""

import asyncio
import logging
import os
import re
import signal
import sys
import threading
from math import inf, nan
from pathlib import Path

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from hookline import (
    AFTER_LLM,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    Agent,
    AgentContext,
    HookResult,
    ModelReply,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.errors import NotInstalledError
from hookline.events import ApprovalAsked, ToolEnded
from hookline.hooks import MetricsHook
from hookline.models import ModelResponse, OverloadedError
from hookline.payloads import Usage
from hookline.testing import EventLog, scripted_agent
from tests.properties import examples

NAME, LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\+Inf|-Inf|NaN|-?\d+(?:\.\d+)?(?:e[+-]\d+)?)")
HEAD = re.compile(rf"# (HELP|TYPE) ({NAME}) ([^\n]*)")


def parsed(text):
    """The samples of a text by name and labels, after a strict check of every line."""
    assert text.endswith("\n")
    assert "\r" not in text
    text.encode()
    family, kind, helped, seen, lines = "", "", "", set(), set()
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            what, name, rest = HEAD.fullmatch(line).groups()
            if what == "HELP":
                assert name not in seen
                seen.add(name)
                helped = name
            else:
                assert name == helped
                assert rest in ("counter", "gauge", "histogram")
                family, kind = name, rest
            continue
        name, labels, _ = SAMPLE.fullmatch(line).groups()
        assert name in (
            [f"{family}{end}" for end in ("_bucket", "_sum", "_count")] if kind == "histogram" else [family]
        )
        assert (kind == "counter") == name.endswith("_total")
        assert (name, labels) not in lines
        lines.add((name, labels))
    found = {}
    for each in text_string_to_metric_families(text):
        for sample in each.samples:
            found[sample.name, *sorted(sample.labels.items())] = sample.value
    assert len(found) == len(lines)
    check_histograms(found)
    return found


def check_histograms(found):
    for (name, *labels), count in found.items():
        if name.endswith("_count"):
            family = name.removesuffix("_count")
            rest = [
                (float(dict(key[1:])["le"]), value)
                for key, value in found.items()
                if key[0] == f"{family}_bucket" and [label for label in key[1:] if label[0] != "le"] == labels
            ]
            assert rest == sorted(rest)
            assert [value for _, value in rest] == sorted(value for _, value in rest)
            assert rest[-1] == (inf, count)
            assert (f"{family}_sum", *labels) in found


def value(metrics, name, **labels):
    return parsed(metrics.text()).get((name, *sorted(labels.items())), 0)


def samples(metrics, name):
    return {key[1:]: number for key, number in parsed(metrics.text()).items() if key[0] == name}


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_a_run_is_counted_with_its_steps_calls_and_tokens():
    metrics = MetricsHook()
    turns = [
        ModelResponse("", (call("add", a=1, b=2),), Usage(10, 2, 4), "tool_calls", 0.25, "m", "p"),
        ModelResponse("x", (), Usage(20, 3), "length", 0.5, "m", "p"),
    ]
    result = scripted_agent(turns, tools=[add], hooks=[metrics], name="helper").run("x")
    assert value(metrics, "hookline_runs_started_total", agent="helper") == 1
    assert value(metrics, "hookline_runs_total", agent="helper", status="completed") == 1
    assert value(metrics, "hookline_runs_running", agent="helper") == 0
    assert value(metrics, "hookline_run_seconds_count", agent="helper") == 1
    assert value(metrics, "hookline_run_seconds_sum", agent="helper") == pytest.approx(result.elapsed)
    assert value(metrics, "hookline_steps_total") == 2
    which = {"model": "m", "provider": "p"}
    assert value(metrics, "hookline_model_calls_total", finish_reason="tool_calls", **which) == 1
    assert value(metrics, "hookline_model_calls_total", finish_reason="length", **which) == 1
    assert value(metrics, "hookline_model_seconds_count", model="m") == 2
    tokens = [value(metrics, "hookline_tokens_total", kind=kind, **which) for kind in ("input", "output", "cached")]
    assert tokens == [30, 5, 4]
    assert value(metrics, "hookline_cost_usd_total", **which) == 0.75
    assert samples(metrics, "hookline_model_calls_unpriced_total") == {}
    assert value(metrics, "hookline_tool_calls_total", tool="add", outcome="ok") == 1
    assert value(metrics, "hookline_tool_seconds_count", tool="add") == 1


def test_a_reply_of_unknown_cost_is_counted_separately():
    metrics = MetricsHook()
    for cost in (None, inf, nan, -1.0):
        metrics.model_replied(ModelReply("x", model="m", provider="p", cost=cost))
    assert value(metrics, "hookline_model_calls_unpriced_total", model="m", provider="p") == 1
    assert value(metrics, "hookline_cost_usd_total", model="m", provider="p") == 0


def test_an_answer_of_a_hook_is_not_counted_as_a_model_call():
    @hook(BEFORE_LLM)
    def cached(ctx, request):
        return HookResult.answer("known")

    metrics = MetricsHook()
    scripted_agent(["x"], hooks=[metrics, cached]).run("x")
    assert samples(metrics, "hookline_model_calls_total") == {}
    assert value(metrics, "hookline_verdicts_total", point="before_llm", hook="cached", verb="answer") == 1


def test_a_rejected_reply_is_counted_too():
    @hook(AFTER_LLM)
    def no_maybe(ctx, answer):
        return HookResult.retry("Be sure.") if answer.content == "maybe" else None

    metrics = MetricsHook()
    result = scripted_agent(["maybe", "yes"], hooks=[metrics, no_maybe]).run("x")
    assert sum(samples(metrics, "hookline_model_calls_total").values()) == 2
    assert sum(samples(metrics, "hookline_tokens_total").values()) == result.usage.total_tokens


def test_gauges_show_runs_in_progress_and_pending_approvals():
    metrics, seen = MetricsHook(), []

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("really?")

    @hook(APPROVAL_REQUESTED)
    def approver(ctx, request):
        seen.append((value(metrics, "hookline_runs_running", agent="a"), value(metrics, "hookline_approvals_pending")))
        return HookResult.approve() if request.call.arguments["a"] == 1 else HookResult.deny("no")

    script = [call("add", a=1, b=2), call("add", a=2, b=2), "done"]
    scripted_agent(script, tools=[add], hooks=[metrics, ask, approver], name="a").run("x")
    assert seen == [(1, 1), (1, 1)]
    assert value(metrics, "hookline_runs_running", agent="a") == value(metrics, "hookline_approvals_pending") == 0
    assert value(metrics, "hookline_approvals_asked_total", tool="add") == 2
    assert value(metrics, "hookline_approvals_decided_total", decision="approved") == 1
    assert value(metrics, "hookline_approvals_decided_total", decision="denied") == 1
    assert value(metrics, "hookline_approval_seconds_count") == 2
    assert value(metrics, "hookline_tool_calls_total", tool="add", outcome="blocked") == 1


async def test_after_a_cancelled_run_no_run_is_in_progress_and_no_approval_pending():
    metrics, asked = MetricsHook(), asyncio.Event()

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("really?")

    @hook(APPROVAL_REQUESTED)
    async def approver(ctx, request):
        asked.set()
        await asyncio.Event().wait()

    agent = scripted_agent([call("add", a=1, b=2)], tools=[add], hooks=[metrics, ask, approver], name="a")
    run = agent.start("x")
    await asked.wait()
    assert value(metrics, "hookline_approvals_pending") == 1
    run.cancel("enough")
    await run.result()
    assert value(metrics, "hookline_runs_running", agent="a") == value(metrics, "hookline_approvals_pending") == 0
    assert value(metrics, "hookline_approvals_decided_total", decision="cancelled") == 1
    assert value(metrics, "hookline_runs_total", agent="a", status="cancelled") == 1


def test_failures_are_counted_by_where_and_type():
    @observer(BEFORE_TOOL)
    def broken(ctx, request):
        raise ValueError("secret")

    metrics = MetricsHook()
    agent = scripted_agent(
        [call("add", a=1, b=2), OverloadedError("busy")], tools=[add], hooks=[metrics, broken], name="a"
    )
    with pytest.raises(RunFailedError):
        agent.run("x")
    assert value(metrics, "hookline_hook_failures_total", point="before_tool", hook="broken") == 1
    assert value(metrics, "hookline_errors_total", where="hook", type="ValueError") == 1
    assert value(metrics, "hookline_errors_total", where="model", type="OverloadedError") == 1
    assert value(metrics, "hookline_runs_total", agent="a", status="failed") == 1
    assert samples(metrics, "hookline_verdicts_total") == {}
    assert "secret" not in metrics.text()


def test_hooks_are_timed_only_with_every_call(caplog):
    @guard(BEFORE_TOOL)
    def fine(ctx, request):
        pass

    def counts(metrics, sinks=()):
        agent = scripted_agent([call("add", a=1, b=2), "x"], tools=[add], hooks=[metrics, fine])
        agent.run("x", sinks=sinks)
        assert samples(metrics, "hookline_verdicts_total") == {}
        return samples(metrics, "hookline_hook_seconds_count")

    assert counts(MetricsHook()) == {}
    assert counts(MetricsHook(), sinks=[EventLog(every_call=True)]) == {}
    assert counts(MetricsHook(every_call=True))[("hook", "fine"), ("point", "before_tool")] == 1
    assert not caplog.records


def test_steps_and_tokens_of_runs_inside_a_run_count_once():
    metrics = MetricsHook()
    inner = Agent("inner", llm=ScriptedModel(["deep"]), hooks=[metrics])

    @tool
    async def ask_inner(ctx: AgentContext) -> str:
        """Ask."""
        return (await inner.arun("y", ctx=ctx)).reply

    outer = Agent("outer", llm=ScriptedModel([call("ask_inner"), "done"]), tools=[ask_inner], hooks=[metrics])
    result = outer.run("x")
    for agent in ("inner", "outer"):
        assert value(metrics, "hookline_runs_total", agent=agent, status="completed") == 1
        assert value(metrics, "hookline_runs_running", agent=agent) == 0
    assert value(metrics, "hookline_steps_total") == 3
    assert sum(samples(metrics, "hookline_model_calls_total").values()) == 3
    assert sum(samples(metrics, "hookline_tokens_total").values()) == result.usage.total_tokens


def test_only_tools_that_ran_are_timed():
    metrics = MetricsHook()
    for outcome, duration in (("ok", 0.0), ("error", 0.5), ("error", 0.0), ("blocked", 0.0), ("answered", 0.0)):
        metrics.on_event(ToolEnded(tool="t", outcome=outcome, duration=duration))
    assert value(metrics, "hookline_tool_seconds_count", tool="t") == 2


def test_label_sets_beyond_the_limit_are_counted_as_other():
    metrics = MetricsHook(limit=5)
    for number in range(50):
        outcome = "error" if number % 2 else "ok"
        metrics.on_event(ToolEnded(tool=f"tool {number}", outcome=outcome, duration=1.0))
        metrics.model_replied(ModelReply(model=f"m{number}", usage=Usage(1, 1), cost=1.0))
    metrics.on_event(ToolEnded(tool="tool 0", outcome="ok", duration=1.0))
    calls = samples(metrics, "hookline_tool_calls_total")
    assert len(calls) == 7
    assert sum(calls.values()) == 51
    assert value(metrics, "hookline_tool_calls_total", tool="tool 0", outcome="ok") == 2
    assert value(metrics, "hookline_tool_calls_total", tool="other", outcome="error") == 23
    assert value(metrics, "hookline_tool_seconds_count", tool="other") == 45
    assert value(metrics, "hookline_cost_usd_total", model="other", provider="other") == 45
    assert len(metrics.text()) < 30_000


TEXTS = st.text(st.characters() | st.sampled_from('"\\\n\r\x1b\x85\u2028\ud800{}=, #'))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS, st.floats(), st.integers(-5, 5)), max_size=8), st.integers(1, 4))
def test_any_label_value_gives_valid_text(rows, limit):
    metrics = MetricsHook(limit=limit)
    own = metrics.counter("own_total", 'a "help"\nwith \\ lines', ["x", "y"])
    metrics.gauge("own_gauge", "", lambda: {(one, two): number for one, two, number, _ in rows}, ["x", "y"])
    for one, two, number, tokens in rows:
        own.add(one, two)
        metrics.on_event(ToolEnded(tool=one, outcome="ok", duration=number))
        metrics.model_replied(ModelReply(model=one, provider=two, cost=number, usage=Usage(tokens), duration=number))
    found = parsed(metrics.text())
    assert sum(number for key, number in found.items() if key[0] == "own_total") == len(rows)
    assert sum(number for key, number in found.items() if key[0] == "hookline_tool_calls_total") == len(rows)


def test_control_characters_in_a_name_are_escaped():
    metrics = MetricsHook()
    metrics.on_event(ToolEnded(tool='a"b\\c\nd\x1b[31m', outcome="ok"))
    assert value(metrics, "hookline_tool_calls_total", tool='a"b\\c\\nd\\x1b[31m', outcome="ok") == 1
    assert "\x1b" not in metrics.text()


def test_a_program_can_add_metrics_and_a_failing_gauge_is_logged_once(caplog):
    metrics, state = MetricsHook(), {"open": 3.5}
    requests = metrics.counter("app_requests_total", "Requests.", ["method", "status"])
    took = metrics.histogram("app_seconds", "Time.", ["route"], iter((0.1, 1)))
    metrics.gauge("app_open", "Open streams.", lambda: state["open"])
    metrics.gauge("app_rows", "Rows.", lambda: {"runs": 2, "events": 5}, ["table"])
    requests.add("GET", 200)
    requests.add("GET", "200", by=2)
    for seconds in (0.1, 0.5, 7, -3, nan):
        took.observe(seconds, "/runs")
    assert value(metrics, "app_requests_total", method="GET", status="200") == 3
    buckets = [value(metrics, "app_seconds_bucket", route="/runs", le=le) for le in ("0.1", "1.0", "+Inf")]
    assert buckets == [2, 3, 4]
    assert value(metrics, "app_open") == 3.5
    assert value(metrics, "app_rows", table="events") == 5
    with pytest.raises(ValueError, match="only grow"):
        requests.add("GET", "200", by=-1)
    with pytest.raises(TypeError, match="method, status"):
        requests.add("GET")
    state.clear()
    for _ in range(3):
        assert "app_open" not in samples(metrics, "app_open")
        assert value(metrics, "app_rows", table="runs") == 2
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "the gauge app_open cannot be read: KeyError: 'open'"
    ]


@pytest.mark.parametrize(
    ("kind", "arguments", "why"),
    [
        ("counter", ("app_requests", "x"), "must end with _total"),
        ("counter", ("hookline_runs_total", "x"), "already"),
        ("counter", ("a b_total", "x"), "letters, digits"),
        ("counter", ("a_total", "x", "method"), "list of names"),
        ("counter", ("a_total", "x", ["a-b"]), "letters, digits"),
        ("counter", ("a_total", "x", ["a", "a"]), "different names"),
        ("histogram", ("a", "x", ["le"]), "another name"),
        ("histogram", ("a", "x", [], (2, 1)), "ascending order"),
        ("histogram", ("a", "x", [], ("0.1", "1")), "finite numbers"),
        ("histogram", ("hookline_run_seconds", "x"), "already"),
        ("gauge", ("hookline_run_seconds_count", "x", float), "already"),
        ("gauge", ("a", "x", 3), "must be a function"),
    ],
)
def test_invalid_metrics_are_rejected(kind, arguments, why):
    with pytest.raises(RegistrationError, match=why):
        getattr(MetricsHook(), kind)(*arguments)


def test_counts_from_several_threads_add_up():
    metrics = MetricsHook()
    own = metrics.counter("own_total", "x")

    def work():
        for _ in range(2000):
            own.add()
            metrics.on_event(ToolEnded(tool="t", outcome="ok", duration=0.1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        parsed(metrics.text())
    assert value(metrics, "own_total") == value(metrics, "hookline_tool_seconds_count", tool="t") == 8000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of newer Pythons, for a fork beside threads
def test_a_fork_begins_at_zero_even_if_another_thread_held_the_lock():
    metrics, held, go_on = MetricsHook(), threading.Event(), threading.Event()
    metrics.on_event(ToolEnded(tool="t", outcome="ok"))
    metrics.on_event(ApprovalAsked(run_id="r", call_id="c", tool="t"))

    def hold():
        with metrics._metrics.lock:
            held.set()
            go_on.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends the child if it waits for the parent's lock
        try:
            metrics.on_event(ToolEnded(tool="u", outcome="ok"))
            counted = [key for key in parsed(metrics.text()) if key[0] == "hookline_tool_calls_total"]
            right = counted == [("hookline_tool_calls_total", ("outcome", "ok"), ("tool", "u"))]
            os._exit(0 if right and value(metrics, "hookline_approvals_pending") == 0 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    go_on.set()
    holder.join()
    assert value(metrics, "hookline_tool_calls_total", tool="t", outcome="ok") == 1


def test_without_prometheus_client_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(NotInstalledError, match=r"prometheus-client is not installed: pip install .*\[metrics\]"):
        MetricsHook()


def test_metrics_made_with_prometheus_client_are_exported_too():
    metrics = MetricsHook()
    prometheus_client.Counter("app_jobs", "Jobs.", registry=metrics.registry).inc()
    assert value(metrics, "app_jobs_total") == 1


def test_the_page_lists_every_metric():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "hooks" / "metrics.md").read_text()
    listed = re.findall(r"^\| `(hookline_\w+)`", page, re.MULTILINE)
    assert listed == re.findall(r"^# TYPE (\w+)", MetricsHook(every_call=True).text(), re.MULTILINE)
