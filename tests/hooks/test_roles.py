"""RoleBasedAccessHook: tools for users with a role."""

import pytest

from hookline import BEFORE_TOOL, HookRegistry, HookResult, RegistrationError, call, hook, reply, tool
from hookline.hooks import RoleBasedAccessHook
from hookline.testing import scripted_agent


@tool
def deploy() -> str:
    """Deploy."""
    return "deployed"


@tool
def status() -> str:
    """Tell the status."""
    return "fine"


async def result_text(rules, metadata, name="deploy", **options):
    agent = scripted_agent(
        [call(name), reply("x")], tools=[deploy, status], hooks=[RoleBasedAccessHook(rules, **options)]
    )
    return (await agent.arun("x", metadata=metadata)).messages[2].content


REFUSED = 'Tool "deploy" requires admin privileges.'


@pytest.mark.parametrize(
    ("role", "answer"),
    [
        ("admin", "deployed"),
        (["guest", "admin"], "deployed"),
        ("guest", REFUSED),
        ("", REFUSED),
        ("Admin", REFUSED),
        ("administrator", REFUSED),
        (None, REFUSED),
        (True, REFUSED),
        ({"admin": True}, REFUSED),
        ([["admin"]], REFUSED),
        ([], REFUSED),
    ],
)
async def test_a_list_of_tools_is_for_admins_only(role, answer):
    assert await result_text(["deploy", "rollback"], {"user_role": role}) == answer


async def test_without_a_role_the_tool_is_refused():
    assert await result_text(["deploy"], {}) == REFUSED


async def test_other_tools_are_allowed_for_everyone():
    assert await result_text(["deploy"], {}, "status") == "fine"


@pytest.mark.parametrize(("role", "answer"), [("ops", "deployed"), ("lead", "deployed"), ("guest", None)])
async def test_one_of_several_roles_is_enough(role, answer):
    refused = 'Tool "deploy" requires ops or lead privileges.'
    assert await result_text({"dep*": ("ops", "lead")}, {"user_role": role}) == (answer or refused)


@pytest.mark.parametrize(
    ("role", "answer"),
    [
        (["ops", "staff"], "deployed"),
        ("ops", 'Tool "deploy" requires staff privileges.'),
        ("staff", 'Tool "deploy" requires ops privileges.'),
    ],
)
async def test_if_several_globs_match_all_must_be_satisfied(role, answer):
    assert await result_text({"*": "staff", "deploy": "ops"}, {"user_role": role}) == answer


async def test_the_role_can_be_under_another_key():
    assert await result_text(["deploy"], {"role": "admin", "user_role": "guest"}, key="role") == "deployed"


async def test_a_call_that_a_rewrite_renamed_is_judged_by_its_new_name():
    rename = hook(BEFORE_TOOL)(lambda ctx, p: HookResult.replace({"name": "deploy"}))
    guarded = RoleBasedAccessHook(["deploy"])
    agent = scripted_agent([call("status"), reply("x")], tools=[deploy, status], hooks=[rename, guarded])
    assert (await agent.arun("x")).messages[2].content == REFUSED


def test_it_is_a_guard_at_100():
    ((entry,),) = HookRegistry([RoleBasedAccessHook(["deploy"])]).stack.layers
    assert (str(entry.point), entry.phase, entry.priority) == ("before_tool", "guard", 100)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("deploy", r"rules must be a list: \['deploy'\]"),
        ([], "at least one"),
        ({}, "at least one"),
        (None, "at least one"),
        ([""], "list of names"),
        ({"deploy": []}, "the value for 'deploy' must be"),
        ({"deploy": None}, "the value for 'deploy' must be"),
        ({"deploy": [1]}, "the value for 'deploy' must be"),
        ({"deploy": ""}, "the value for 'deploy' must be"),
        ({1: "admin"}, "list of names"),
    ],
)
def test_invalid_arguments_are_rejected(rules, problem):
    with pytest.raises(RegistrationError, match=problem):
        RoleBasedAccessHook(rules)


@pytest.mark.parametrize("key", ["", None, 3])
def test_the_key_must_be_a_name(key):
    with pytest.raises(RegistrationError, match="key must be a metadata key"):
        RoleBasedAccessHook(["deploy"], key=key)
