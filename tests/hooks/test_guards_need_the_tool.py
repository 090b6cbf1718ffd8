"""Guards that judge calls by their tool, outside of a run."""

import pytest

from hookline import BEFORE_TOOL, HookError, tool
from hookline.hooks import EgressGuard, PathGuard
from hookline.testing import fire_hook, make_context


@tool
def fetch_into(url: str, path: str) -> str:
    """Fetch a page into a file."""
    return "done"


GUARDS = (PathGuard("."), EgressGuard(["example.com"], resolve=False))
BAD = {"url": "https://evil.test/x", "path": "/etc/passwd"}


@pytest.mark.parametrize("guard", GUARDS, ids=["paths", "hosts"])
def test_a_guard_can_be_tested_alone_with_its_tool(guard):
    verdict = fire_hook(guard, BEFORE_TOOL, name="fetch_into", arguments=BAD, ctx=make_context(tools=[fetch_into]))
    assert verdict.action == "block"


@pytest.mark.parametrize("guard", GUARDS, ids=["paths", "hosts"])
@pytest.mark.parametrize("ctx", [None, make_context()], ids=["no tools", "other tools"])
def test_without_the_tool_it_fails_closed_with_advice(guard, ctx):
    with pytest.raises(HookError, match=r"in a test, give ctx=hookline.testing.make_context"):
        fire_hook(guard, BEFORE_TOOL, name="fetch_into", arguments=BAD, ctx=ctx)
