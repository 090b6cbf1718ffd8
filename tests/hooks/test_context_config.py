"""ApplyContextConfigHook: the system prompt and the response format."""

import pytest

from hookline import RegistrationError, Session, hook, reply
from hookline.hooks import ApplyContextConfigHook
from hookline.testing import scripted_agent

SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}}


async def request_of(config, **options):
    agent = scripted_agent([reply("{}")], hooks=[config], **options)
    await agent.arun("x")
    request = agent.model.requests[0]
    prompt = request.messages[0].content if request.messages[0].role == "system" else None
    return prompt, request.response_format


async def test_prompt_and_format_are_in_place_before_the_first_model_call():
    config = ApplyContextConfigHook("You analyse data.", SCHEMA)
    assert await request_of(config, instructions="old", response_format={"type": "array"}) == (
        "You analyse data.",
        SCHEMA,
    )


@pytest.mark.parametrize("empty", [None, {}])
async def test_empty_values_change_nothing(empty):
    config = ApplyContextConfigHook("", empty)
    assert await request_of(config, instructions="own", response_format=SCHEMA) == ("own", SCHEMA)
    assert await request_of(config) == (None, None)


async def test_one_value_can_be_set_without_the_other():
    own = {"instructions": "own", "response_format": {"type": "array"}}
    assert await request_of(ApplyContextConfigHook("new"), **own) == ("new", {"type": "array"})
    assert await request_of(ApplyContextConfigHook(response_format=SCHEMA), **own) == ("own", SCHEMA)


async def test_it_applies_to_each_run_of_a_session_and_keeps_the_metadata():
    agent = scripted_agent([reply("a"), reply("b")], hooks=[ApplyContextConfigHook("new")], instructions="old")
    session = Session("s", metadata={"user": "ada"})
    for _ in range(2):
        await agent.arun("x", session=session)
    assert [request.messages[0].content for request in agent.model.requests] == ["new", "new"]
    assert session.metadata == {"user": "ada"}


async def test_hooks_at_the_default_priority_see_it():
    seen = []
    look = hook("on_run_start")(lambda ctx, p: seen.append(ctx.state.system_prompt))
    await scripted_agent([reply("a")], hooks=[look, ApplyContextConfigHook("new")]).arun("x")
    assert seen == ["new"]


async def test_a_schema_that_is_changed_later_does_not_change_the_hook():
    schema = {"type": "object"}
    config = ApplyContextConfigHook(response_format=schema)
    schema["type"] = "array"
    assert (await request_of(config))[1] == {"type": "object"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"system_prompt": None}, "system_prompt must be text"),
        ({"response_format": "json"}, "response_format must be a JSON schema"),
        ({"response_format": {"type": object()}}, "is not JSON"),
        ({"response_format": {1: "x"}}, "is not JSON"),
    ],
)
def test_invalid_arguments_are_rejected(options, problem):
    with pytest.raises(RegistrationError, match=problem):
        ApplyContextConfigHook(**options)
