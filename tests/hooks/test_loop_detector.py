"""LoopDetectorHook: repeated tool calls."""

import pytest

from hookline import (
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    HookResult,
    RegistrationError,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.hooks import LoopDetectorHook
from hookline.payloads import ToolCall
from hookline.testing import scripted_agent


class Weather:
    def __init__(self, *fails):
        self.fails, self.calls = list(fails), []

    def tool(self):
        @tool
        def weather(city: str) -> dict:
            """Look up the weather."""
            self.calls.append(city)
            if self.fails and self.fails.pop(0):
                raise TimeoutError("busy")
            return {"city": city, "degrees": 14 + len(self.calls)}

        return weather


PARIS = call("weather", city="Paris")


def run(turns, service=None, hooks=None, **options):
    service = service or Weather()
    hooks = [LoopDetectorHook()] if hooks is None else hooks
    return scripted_agent(turns, tools=[service.tool()], hooks=hooks, **options).run("How is it in Paris?"), service


def test_the_second_call_gets_a_hint_with_the_first_result_and_does_not_run():
    result, service = run([PARIS, PARIS, reply("15 degrees")])
    hint = result.messages[4]
    assert service.calls == ["Paris"]
    assert result.steps[1].outcomes == ("blocked",)
    assert "already called weather" in hint.content
    assert '"degrees":15' in hint.content
    assert (result.status, result.reply) == ("completed", "15 degrees")


def test_the_third_call_ends_the_run_with_the_last_successful_result():
    result, service = run([PARIS, PARIS, PARIS, reply("never asked")])
    assert service.calls == ["Paris"]
    assert (result.status, result.reply) == ("ended", "City: Paris, degrees: 15.")
    assert result.hook_ended == "loop: weather was called 3 times with the same arguments"


def test_with_answer_the_first_repeat_ends_the_run():
    result, service = run([PARIS, PARIS, reply("never asked")], hooks=[LoopDetectorHook(answer=True)])
    assert service.calls == ["Paris"]
    assert (result.status, result.reply) == ("ended", "City: Paris, degrees: 15.")


def test_other_arguments_are_no_repeat_and_order_does_not_matter():
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    turns = [call("add", a=1, b=2), call("add", a=2, b=1), ToolCall("x", "add", {"b": 2, "a": 1}), reply("3")]
    result = scripted_agent(turns, tools=[add], hooks=[LoopDetectorHook()]).run("x")
    assert [step.outcomes for step in result.steps] == [("ok",), ("ok",), ("blocked",), ()]


def test_order_inside_an_argument_does_not_matter():
    @tool
    def find(where: dict[str, int]) -> str:
        """Find."""
        return "found"

    turns = [call("find", where={"x": 1, "y": 2}), call("find", where={"y": 2, "x": 1}), reply("found")]
    result = scripted_agent(turns, tools=[find], hooks=[LoopDetectorHook()]).run("x")
    assert [step.outcomes for step in result.steps] == [("ok",), ("blocked",), ()]


def test_a_call_that_failed_may_be_made_again():
    result, service = run([PARIS, PARIS, reply("16")], Weather(True))
    assert service.calls == ["Paris", "Paris"]
    assert [step.outcomes for step in result.steps] == [("error",), ("ok",), ()]


def test_a_call_that_always_fails_ends_the_run_too():
    result, service = run([PARIS] * 4, Weather(True, True, True, True))
    assert service.calls == ["Paris", "Paris"]
    assert result.status == "ended"
    assert "without making progress" in result.reply


def test_calls_with_invalid_arguments_end_the_run():
    wrong = call("weather", town="Paris")
    result, service = run([wrong] * 5)
    assert service.calls == []
    assert (result.status, len(result.steps)) == ("ended", 3)


def test_of_equal_calls_in_one_reply_the_first_runs():
    result, service = run([[PARIS, PARIS, PARIS], reply("15")])
    assert service.calls == ["Paris"]
    assert result.steps[0].outcomes == ("ok", "blocked", "blocked")
    assert (result.status, result.reply) == ("completed", "15")
    result, service = run([[PARIS, PARIS, PARIS], reply("15")], hooks=[LoopDetectorHook(2, 2)])
    assert service.calls == ["Paris", "Paris"]


def test_an_empty_result_still_gives_a_reply():
    @tool
    def touch() -> str:
        """Touch."""
        return ""

    result = scripted_agent([call("touch")] * 3, tools=[touch], hooks=[LoopDetectorHook(answer=True)]).run("x")
    assert "repeatedly" in result.reply


def test_runs_and_detectors_share_no_state():
    service = Weather()
    first, second = LoopDetectorHook(), LoopDetectorHook(2, 3)
    agent = scripted_agent([PARIS, reply("a"), PARIS, reply("b")], tools=[service.tool()], hooks=[first, second])
    assert agent.run("x").status == agent.run("x").status == "completed"
    assert service.calls == ["Paris", "Paris"]


def test_the_limits_can_be_changed():
    result, service = run([PARIS] * 5, hooks=[LoopDetectorHook(hint_after=2, break_after=4)])
    assert [step.outcomes for step in result.steps] == [("ok",), ("ok",), ("blocked",), ("blocked",), ("cancelled",)]


def test_a_call_that_was_approved_with_other_arguments_counts_once_for_them():
    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("?")

    @hook(APPROVAL_REQUESTED)
    def lyon(ctx, asked):
        return HookResult.edit({"city": "Lyon"})

    result, service = run([PARIS, call("weather", city="Lyon"), reply("x")], hooks=[LoopDetectorHook(), ask, lyon])
    assert service.calls == ["Lyon"]
    assert result.steps[1].outcomes == ("blocked",)


def test_an_edited_call_does_not_count_with_its_old_arguments():
    towns = iter(["Lyon", "Nice", "Metz"])

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("?")

    @hook(APPROVAL_REQUESTED)
    def another(ctx, asked):
        return HookResult.edit({"city": next(towns)})

    result, service = run([PARIS, PARIS, PARIS, reply("x")], hooks=[LoopDetectorHook(), ask, another])
    assert service.calls == ["Lyon", "Nice", "Metz"]
    assert result.status == "completed"


def test_a_retry_of_the_same_call_is_no_repeat():
    @hook(AFTER_TOOL)
    def once_more(ctx, result):
        return HookResult.retry() if result.attempt == 1 else None

    result, service = run([PARIS, reply("x")], hooks=[LoopDetectorHook(), once_more])
    assert (service.calls, result.status) == (["Paris", "Paris"], "completed")


def test_a_huge_result_does_not_become_a_huge_hint_or_reply():
    @tool
    def dump() -> str:
        """Dump."""
        return "x" * 1_000_000

    result = scripted_agent([call("dump")] * 3, tools=[dump], hooks=[LoopDetectorHook()]).run("x")
    assert len(result.messages[4].content) < 3000
    assert len(result.reply) <= 501


@pytest.mark.parametrize(
    "options", [{"hint_after": 0}, {"break_after": 1.5}, {"hint_after": True}, {"hint_after": "1"}]
)
def test_invalid_arguments_are_rejected(options):
    with pytest.raises(RegistrationError, match="must be a whole number, 1 or more"):
        LoopDetectorHook(**options)


def test_the_break_cannot_come_before_the_hint():
    with pytest.raises(RegistrationError, match="must not be less"):
        LoopDetectorHook(3, 2)
