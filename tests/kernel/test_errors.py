"""The attributes and messages of the kernel's errors."""

import asyncio

import pytest

from hookline import BEFORE_TOOL, HookError
from hookline.errors import CallRefusedError, OutputError


def test_a_failed_hook_names_itself_its_point_and_its_cause():
    cause = ValueError("oh no")
    error = HookError("judge", BEFORE_TOOL, cause)
    assert str(error) == "hook 'judge' failed at before_tool: ValueError: oh no"
    assert (error.hook, error.point, error.cause, error.__cause__) == ("judge", "before_tool", cause, cause)
    assert error.verdict is None


def test_a_refused_call_contains_the_status_of_the_run():
    bare = CallRefusedError("over budget", status="stopped")
    assert (str(bare), bare.status, bare.verdict) == ("over budget", "stopped", None)
    assert (bare.reply, bare.hook, bare.reason) == ("", "", "")
    full = CallRefusedError("no", status="ended", reply="bye", hook="judge", reason="too late")
    assert (full.status, full.reply, full.hook, full.reason) == ("ended", "bye", "judge", "too late")


def test_an_output_of_the_wrong_type_is_shown_with_its_problem():
    error = OutputError("Invoice", "no idea", "Expected `object`")
    assert str(error) == "the final reply does not match Invoice: Expected `object`. The reply was: 'no idea'"
    assert (error.reply, error.problem) == ("no idea", "Expected `object`")


def test_a_long_output_of_the_wrong_type_is_cut_in_the_message_and_kept_whole_in_the_error():
    error = OutputError("Invoice", "a" * 1000, "too long")
    assert str(error).endswith("The reply was: '" + "a" * 299)
    assert error.reply == "a" * 1000


@pytest.mark.parametrize("cause", [KeyError("k"), asyncio.CancelledError()])
def test_a_cause_without_a_message_is_named_by_its_type(cause):
    assert type(cause).__name__ in str(HookError("h", "p", cause))
