"""The verbs of a hook, from its declaration or its code."""

import pytest

from hookline import HookResult, guard, hook
from hookline._kernel.hook_code import code_of, verbs_of
from hookline.points import AFTER_LLM, APPROVAL_REQUESTED, BEFORE_TOOL, POINTS


@guard(BEFORE_TOOL)
def blocks_or_asks(ctx, request):
    if request.arguments:
        return HookResult.block("No.")
    return HookResult.ask("May it run?")


@hook(APPROVAL_REQUESTED)
def approves(ctx, asked):
    return HookResult.approve()


def refuse():
    return HookResult.block("No.")


@guard(BEFORE_TOOL)
def calls_a_function(ctx, request):
    return refuse()


class Both:
    points = (BEFORE_TOOL, AFTER_LLM)

    def __call__(self, point, ctx, payload):
        return self.judge(point)

    def judge(self, point):
        return HookResult.block("No.") if point == BEFORE_TOOL else HookResult.retry("Again.")


class Inherits(Both):
    pass


@pytest.mark.parametrize(
    ("given", "point", "verbs"),
    [
        (blocks_or_asks, BEFORE_TOOL, {"block", "ask"}),
        (approves, APPROVAL_REQUESTED, {"claim"}),
        (calls_a_function, BEFORE_TOOL, {"block"}),
        (Both(), BEFORE_TOOL, {"block"}),
        (Both(), AFTER_LLM, {"retry"}),
        (Inherits(), AFTER_LLM, {"retry"}),
        (hook(BEFORE_TOOL)(lambda ctx, request: HookResult.answer(1)), BEFORE_TOOL, {"answer"}),
        (hook(BEFORE_TOOL)(lambda ctx, request: None), BEFORE_TOOL, set()),
    ],
)
def test_the_code_of_a_hook_shows_its_verbs(given, point, verbs):
    assert verbs_of(given, point) == verbs


@pytest.mark.parametrize("declared", [("retry",), ["retry"], {"retry"}, {AFTER_LLM: ("retry",), BEFORE_TOOL: ("ask",)}])
def test_a_hook_may_declare_its_verbs(declared):
    both = Both()
    both.verbs = declared
    assert verbs_of(both, AFTER_LLM) == {"retry"}


def test_a_point_without_a_declaration_has_no_verbs_if_another_has_one():
    both = Both()
    both.verbs = {AFTER_LLM: ("retry",)}
    assert verbs_of(both, BEFORE_TOOL) == set()


def test_a_hook_that_is_not_written_in_python_shows_nothing():
    assert code_of(max) is None
    assert verbs_of(max, POINTS["before_tool"]) == set()
