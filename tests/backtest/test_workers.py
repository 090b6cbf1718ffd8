"""Processes: the result does not depend on their number, and a rule that hangs, crashes or eats memory is stopped."""

import itertools
import os
import re
import signal
import time

import msgspec
import pytest

from hookline import BEFORE_TOOL, HookResult, guard
from hookline.backtest import backtest, sources
from hookline.backtest.report import Report
from tests.backtest.recording import Writer, kinds

BAD = ("ls", "bad", "pwd", "sudo x")


def block_sudo(request):
    return HookResult.block("No sudo.") if "sudo" in request.arguments["command"] else None


@guard(BEFORE_TOOL)
def no_sudo(ctx, request):
    return block_sudo(request)


@pytest.fixture
def records(tmp_path):
    """Three runs, the second of which has a call that makes rules misbehave."""
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", "ls", "sudo x")
    writer.run("r2", *BAD)
    writer.run("r3", "sudo x", "pwd")
    return writer.write()


def plain(report: Report):
    """Return a report without the time that it took."""
    return msgspec.structs.replace(report, seconds=0.0)


def test_the_result_does_not_depend_on_the_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "UNIT_BYTES", 3000)
    for file in "abc":
        writer = Writer(tmp_path / f"{file}.moments")
        for number in range(60):
            writer.run(f"{file}{number}", "ls", *(["sudo x"] * (number % 3)), "pwd")
            if number % 7 == 0:
                writer.lines.append(b"garbage")
        writer.write()
    reports = [plain(backtest([no_sudo], tmp_path, workers=workers)) for workers in (0, 1, 2, 3)]
    assert all(report == reports[0] for report in reports)
    assert (reports[0].runs, reports[0].moments) == (180, 3 * (60 * 2 + 60))
    assert reports[0].total("newly_blocked").total == 180
    monkeypatch.setattr(sources, "UNIT_BYTES", 1 << 20)
    assert plain(backtest([no_sudo], tmp_path, workers=2)) == reports[0]


def loop_in_python():
    while True:
        pass


def sleep_for_ever():
    time.sleep(3600)


def swallow_everything():
    while True:
        try:
            time.sleep(3600)
        except BaseException:  # noqa: BLE001, S112 - the rule under test
            continue


def search_for_ever():
    re.fullmatch(r"(a|aa)+b", "a" * 80)


def loop_in_c():
    sum(itertools.repeat(0))  # unlike a regular expression, it does not look for signals


@pytest.mark.parametrize("hang", [loop_in_python, sleep_for_ever, swallow_everything, search_for_ever, loop_in_c])
def test_a_rule_that_hangs_is_stopped_named_and_the_rest_goes_on(records, hang):
    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        if request.arguments["command"] == "bad":
            hang()
        return block_sudo(request)

    report = backtest([rule], records, workers=1, time_limit=0.2)
    (failure,) = report.failures
    assert (failure.hook, failure.problem, failure.count) == ("rule", "timed_out", 1)
    assert (failure.examples[0].run_id, failure.examples[0].n, failure.examples[0].subject) == ("r2", 1, "bad")
    assert kinds(report) == {"newly_blocked": (3, 0, 0)}
    assert sum(each.count for each in report.skipped) == 1
    assert report.judged == 7


def test_a_rule_that_always_hangs_is_given_up(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", *["x"] * 50)

    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        loop_in_python()

    report = backtest([rule, no_sudo], writer.write(), workers=1, time_limit=0.1)
    assert report.failed("timed_out") == 3
    assert "rule hung 3 times" in report.notes[0]
    assert report.total("same").exact == 47  # judged by the other rule


def test_a_rule_that_hangs_is_stopped_in_this_process_too(records):
    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        if request.arguments["command"] == "bad":
            loop_in_python()

    before = signal.getsignal(signal.SIGALRM)
    assert backtest([rule], records, workers=0, time_limit=0.2).failed("timed_out") == 1
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_rule_that_allocates_without_bound_is_stopped(records):
    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        if request.arguments["command"] == "bad":
            rows = []
            while True:
                rows.append(bytearray(1 << 24))
        return block_sudo(request)

    report = backtest([rule], records, workers=1, memory_limit=1 << 28, time_limit=30)
    assert [(each.hook, each.problem, each.count) for each in report.failures] == [("rule", "out_of_memory", 1)]
    assert report.total("newly_blocked").total == 3


def test_a_rule_that_keeps_what_it_allocates_is_given_up_and_the_rest_goes_on(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", *["x"] * 30, "sudo x")
    kept = []

    @guard(BEFORE_TOOL)
    def leak(ctx, request):
        kept.append(bytearray(1 << 25))

    report = backtest([leak, no_sudo], writer.write(), workers=1, memory_limit=1 << 28, time_limit=30)
    assert report.failed("out_of_memory") > 0
    assert report.moments == 31
    assert report.total("newly_blocked").total + report.total("raised").total > 0


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rule_that_crashes_its_process_is_named_and_the_rest_goes_on(records, signal_number):
    import ctypes

    libc = ctypes.CDLL(None)  # not os.kill, which is refused

    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        if request.arguments["command"] == "bad":
            libc.kill(os.getpid(), int(signal_number))
        return block_sudo(request)

    report = backtest([rule], records, workers=2)
    (failure,) = report.failures
    assert (failure.hook, failure.problem) == ("rule", "crashed")
    assert signal_number.name in failure.message
    assert report.total("newly_blocked").total == 3


def test_no_process_stays_behind(records):
    import multiprocessing

    backtest([no_sudo], records, workers=2)
    assert multiprocessing.active_children() == []


def test_progress_is_reported(records):
    seen = []
    backtest([no_sudo], records, workers=1, progress=lambda read, total, report: seen.append((read, total)))
    assert seen[-1][0] == seen[-1][1] == records.stat().st_size


def test_a_crash_is_reported_at_its_own_moment_in_every_file(tmp_path):
    for name, calls in (("a", 10), ("b", 20)):
        writer = Writer(tmp_path / f"{name}.moments")
        writer.run(f"run_{name}", *(f"{name}{number}" for number in range(calls)))
        os.utime(writer.write(), (len(name), calls))

    @guard(BEFORE_TOOL)
    def fragile(ctx, request):
        if request.arguments["command"] == "b3":
            os._exit(3)
        return HookResult.block("no") if request.arguments["command"] == "b13" else None

    report = backtest([fragile], tmp_path, workers=1)
    assert [(each.problem, [example.n for example in each.examples]) for each in report.failures] == [("crashed", [3])]
    assert kinds(report) == {"newly_blocked": (1, 0, 0)}


def test_a_part_that_does_not_fit_into_the_memory_is_skipped(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", "ls", "sudo " + "x" * 40_000_000)
    writer.write()
    other = Writer(tmp_path / "b.moments")
    other.run("r2", "sudo x")
    other.write()
    report = backtest([no_sudo], tmp_path, workers=1, memory_limit=50 << 20)
    assert {each.reason for each in report.skipped} == {
        "a part of it ended each process that judged it, perhaps because of the memory limit"
    }
    assert kinds(report) == {"newly_blocked": (1, 0, 0)}
