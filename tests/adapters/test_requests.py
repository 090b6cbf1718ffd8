"""What hooks change in a request to the model, in every framework that is installed here."""

import pytest

from hookline import HookResult, Message, hook
from hookline.errors import RegistrationError
from hookline.models import reply
from hookline.points import AFTER_LLM, BEFORE_LLM, BEFORE_TOOL

from .behaviours import SHELL, Bench
from .loops import installed

DRIVERS = [driver for driver in installed() if driver.support is not None]


@hook(BEFORE_LLM)
def model(ctx, request):
    return request.replace(model="large")


@hook(BEFORE_LLM)
def response_format(ctx, request):
    return HookResult.replace({"response_format": {"type": "object"}})


@hook(BEFORE_LLM)
def tools(ctx, request):
    return {"tools": (*request.tools, request.tools[0].replace(name="other"))}


CHANGES = {"model": model, "response_format": response_format, "tools": tools}


def unseen(field):
    """Return a hook that makes the same change, but whose code does not show it."""

    @hook(BEFORE_LLM)
    def change(ctx, request):
        return CHANGES[field].__call__(ctx, request)

    return change


def refused(driver, field):
    """Return the alternative, if the framework cannot make a change."""
    return driver.support.missing.get(f"before_llm.{field}")


CASES = [(driver, field) for driver in DRIVERS for field in CHANGES]
REFUSED = [pytest.param(*case, id=f"{case[0].name}-{case[1]}") for case in CASES if refused(*case)]
ADDING = [pytest.param(driver, id=driver.name) for driver in DRIVERS if not refused(driver, "tools")]


@pytest.mark.parametrize(("driver", "field"), REFUSED)
async def test_a_change_that_a_framework_cannot_make_is_refused_when_the_hook_is_attached(driver, field, tmp_path):
    bench = Bench(driver, "async", tmp_path)
    with pytest.raises(RegistrationError) as error:
        await bench(SHELL, CHANGES[field])
    assert str(error.value).startswith(f"hook '{field}' at before_llm: in {driver.name} hooks cannot ")
    assert refused(driver, field) in str(error.value)
    assert bench.model.requests == []


@pytest.mark.parametrize(("driver", "field"), REFUSED)
async def test_a_change_that_no_code_shows_fails_at_the_call_with_the_same_words(driver, field, tmp_path):
    bench = Bench(driver, "async", tmp_path)
    outcome = await bench(SHELL, unseen(field))
    assert bench.model.requests == []
    assert outcome.status == "failed"
    assert f"in {driver.name} hooks cannot " in str(outcome.error)
    assert refused(driver, field) in str(outcome.error)


@hook(BEFORE_TOOL, tools="shell")
def redirect(ctx, request):
    return HookResult.replace({"name": "read", "arguments": {"path": "a"}})


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("driver", [pytest.param(driver, id=driver.name) for driver in DRIVERS])
async def test_a_call_that_a_hook_sends_to_another_tool_runs_that_tool(driver, mode, tmp_path):
    if mode not in driver.modes:
        pytest.skip(f"{driver.name} has no {mode} mode")
    bench = Bench(driver, mode, tmp_path)
    if "before_tool.name" in driver.support.missing:
        with pytest.raises(RegistrationError, match="hooks cannot change the name"):
            await bench(SHELL, redirect)
        assert bench.model.requests == []
    else:
        await bench(SHELL, redirect)
        assert bench.ran == ["read a"]
        assert bench.seen(1)[-1] == "mail ada@example.com"


@pytest.mark.parametrize("driver", ADDING)
async def test_a_tool_that_a_hook_adds_does_not_disturb_the_others(driver, tmp_path):
    bench = Bench(driver, "async", tmp_path)
    outcome = await bench(SHELL, tools)
    assert (outcome.error, outcome.reply) == (None, "Done.")
    assert bench.ran == ["ls"]


@pytest.mark.parametrize("driver", [pytest.param(driver, id=driver.name) for driver in DRIVERS])
async def test_a_hook_asks_the_model_of_the_framework_around_a_model_call(driver, tmp_path):
    bench = Bench(driver, "async", tmp_path)

    @hook(AFTER_LLM)
    async def second_opinion(ctx, answer):
        if answer.purpose == "step":
            other = await ctx.llm.complete([Message("user", "Is it right?")])
            return HookResult.replace({"content": f"{answer.content} {other.content}"})

    outcome = await bench([reply("It is blue."), reply("Yes.")], second_opinion)
    assert (outcome.error, outcome.reply) == (None, "It is blue. Yes.")
    assert bench.seen(1) == ["Is it right?"]
