"""What the errors of the kernel carry."""

import asyncio

import pytest

from hookline import BEFORE_TOOL, HookError
from hookline.errors import CallRefused


def test_a_failed_hook_names_itself_its_point_and_its_cause():
    cause = ValueError("oh no")
    error = HookError("judge", BEFORE_TOOL, cause)
    assert str(error) == "hook 'judge' failed at before_tool: ValueError: oh no"
    assert (error.hook, error.point, error.cause, error.__cause__) == ("judge", "before_tool", cause, cause)
    assert error.verdict is None


def test_a_refused_call_carries_how_the_run_is_to_end():
    bare = CallRefused("over budget", status="stopped")
    assert (str(bare), bare.status, bare.reply, bare.hook, bare.verdict) == ("over budget", "stopped", "", "", None)
    full = CallRefused("no", status="ended", reply="bye", hook="judge")
    assert (full.status, full.reply, full.hook) == ("ended", "bye", "judge")


@pytest.mark.parametrize("cause", [KeyError("k"), asyncio.CancelledError()])
def test_a_cause_without_words_is_named_by_its_type(cause):
    assert type(cause).__name__ in str(HookError("h", "p", cause))
