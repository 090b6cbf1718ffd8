"""A hook that exits the program has failed like any other (DESIGN 5.1)."""

import pytest

from hookline import AFTER_LLM, BEFORE_LLM, RunFailed, guard, hook, observer
from hookline.testing import scripted_agent


@pytest.mark.parametrize("code", [0, "forbidden"])
@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_hook_that_exits_fails_closed_and_is_named(code, timeout):
    @hook(BEFORE_LLM, timeout=timeout)
    def leaves(ctx, request):
        raise SystemExit(code)

    with pytest.raises(RunFailed, match="hook 'leaves' failed at before_llm: SystemExit"):
        scripted_agent(["never"], hooks=[leaves]).run("go")


def test_an_async_guard_that_exits_fails_closed_too():
    @guard(BEFORE_LLM)
    async def leaves(ctx, request):
        raise SystemExit

    with pytest.raises(RunFailed, match="hook 'leaves' failed at before_llm: SystemExit"):
        scripted_agent(["never"], hooks=[leaves]).run("go")


async def test_an_observer_that_exits_is_reported_and_the_run_goes_on():
    @observer(AFTER_LLM)
    async def leaves(ctx, reply):
        raise SystemExit

    @observer(AFTER_LLM)
    def leaves_at_once(ctx, reply):
        raise SystemExit

    result = await scripted_agent(["said"], hooks=[leaves, leaves_at_once]).arun("go")
    assert result.status == "completed"
    assert {error.source for error in result.errors} == {"leaves", "leaves_at_once"}
