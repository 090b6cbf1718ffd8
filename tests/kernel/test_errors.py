"""The attributes and messages of the kernel's errors."""

import asyncio

import pytest

from hookline import BEFORE_TOOL, HookError, HookRegistry, guard
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


RULES = """
import json

def read(text):
    return json.loads(text)

def judge(ctx, request):
    return read("no JSON")
"""


def from_file(name, source):
    """Return the names that the code of a file defines."""
    names = {"__name__": name.removesuffix(".py")}
    exec(compile(source, f"/somewhere/{name}", "exec"), names)
    return names


async def raised_by(judge, **options):
    with pytest.raises(HookError) as failed:
        await HookRegistry([guard(BEFORE_TOOL, **options)(judge)]).fire(BEFORE_TOOL, {"id": "1", "name": "send"})
    return failed.value


@pytest.mark.parametrize("options", [{}, {"timeout": 5}])
async def test_the_location_of_a_failure_is_the_innermost_line_in_the_file_of_the_hook(options):
    error = await raised_by(from_file("rules.py", RULES)["judge"], **options)
    assert error.location == "rules.py:5"  # not that of the library which raised
    assert "rules.py" not in str(error)


async def test_the_location_of_an_async_hook_and_of_none():
    lines = "async def judge(ctx, request):\n    raise ValueError('no')\n"
    assert (await raised_by(from_file("rules.py", lines)["judge"])).location == "rules.py:2"
    assert (await raised_by(lambda ctx, request: 3)).location == ""  # its result is wrong: no line raised
    assert HookError("judge", BEFORE_TOOL, ValueError("oh no")).location == ""
