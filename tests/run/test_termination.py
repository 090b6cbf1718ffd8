"""The causes for the end of a run, and which one determines its status (DESIGN 5.4, 5.5)."""

import asyncio
from itertools import combinations

import pytest

from hookline import AgentResult, HookError, RunFailedError
from hookline._run.termination import RunEndedError, RunStoppedError, signal_rank, status_of, stronger_cause
from hookline.errors import CallRefusedError
from hookline.hooks import Verdict
from hookline.payloads import ErrorInfo, StopSignal

ENDED = RunEndedError(Verdict(None, value="over", hook="h", reason="r"))
WEAKEST_FIRST = [
    (RunStoppedError(), "stopped"),
    (ENDED, "ended"),
    (asyncio.CancelledError(), "cancelled"),
    (HookError("h", "before_tool", ValueError("no")), "failed"),
]


def test_every_cause_gives_its_status():
    assert status_of(None) == "stopped"
    for cause, status in WEAKEST_FIRST:
        assert status_of(cause) == status
    assert status_of(ValueError("anything else")) == "failed"
    for status in ("stopped", "ended", "cancelled", "failed", "completed"):
        assert status_of(CallRefusedError("no", status=status)) == status
    assert status_of(CallRefusedError("no", status="nonsense")) == "failed"


@pytest.mark.parametrize(("weak", "strong"), list(combinations([c for c, _ in WEAKEST_FIRST], 2)))
def test_the_stronger_cause_counts_in_any_order(weak, strong):
    assert stronger_cause(weak, strong) is strong
    assert stronger_cause(strong, weak) is strong


@pytest.mark.parametrize("cause", [cause for cause, _ in WEAKEST_FIRST])
def test_of_equals_the_first_counts(cause):
    other = CallRefusedError("no", status=status_of(cause))
    assert stronger_cause(cause, other) is cause
    assert stronger_cause(other, cause) is other
    assert stronger_cause(None, cause) is cause


def test_an_end_contains_the_reply_hook_and_reason():
    ended = RunEndedError(Verdict(None, value="over", hook="h", reason="r"))
    assert (ended.reply, ended.hook, ended.reason, str(ended)) == ("over", "h", "r", "over")


def test_the_error_of_a_failed_run_contains_cause_and_result():
    errors = (ErrorInfo("hook", "A", "first"), ErrorInfo("hook", "B", "last"))
    result, cause = AgentResult(status="failed", errors=errors), ValueError("the cause")
    failed = RunFailedError(result, cause)
    assert (str(failed), failed.result, failed.__cause__) == ("the cause", result, cause)
    assert str(RunFailedError(result)) == "last"
    assert RunFailedError(result).__cause__ is None
    assert str(RunFailedError(AgentResult(status="failed"))) == "unknown failure"


def test_the_strongest_signal_is_the_first_of_the_list():
    assert [signal_rank(StopSignal(kind)) for kind in ("error", "stop_requested", "completed", "unknown")] == [
        0,
        2,
        11,
        12,
    ]
