"""PlanModeHook: approval before certain tools run."""

import asyncio
import functools
import threading

import pytest

from hookline import (
    AFTER_TOOL,
    BEFORE_TOOL,
    HookRegistry,
    HookResult,
    RegistrationError,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.events import ApprovalDecided, Failed
from hookline.hooks import PlanModeHook
from hookline.testing import EventLog, scripted_agent


def agent_of(turns, *hooks, ran, **options):
    @tool
    def deploy(env: str = "test") -> str:
        """Deploy."""
        ran.append(env)
        return f"deployed to {env}"

    @tool
    def status() -> str:
        """Tell the status."""
        return "fine"

    return scripted_agent(turns, tools=[deploy, status], hooks=hooks, **options)


async def outcome(approver, *others, plan=None):
    """Return the calls that ran, the tool message, the decision, and the errors."""
    ran, log = [], EventLog()
    plan = plan or PlanModeHook(["deploy"], approver)
    result = await agent_of([call("deploy"), reply("x")], plan, *others, ran=ran, sinks=[log]).arun("x")
    (decided,) = log.of(ApprovalDecided)
    failed = [e.error.message for e in log.of(Failed) if e.error.type != "Blocked"]
    return ran, result.messages[2].content, decided.decision, failed


DENIED = "Tool 'deploy' was denied by hook 'PlanModeHook'."


async def test_true_approves_the_call():
    assert await outcome(lambda request: True) == (["test"], "deployed to test", "approved", [])


async def test_false_denies_the_call():
    assert await outcome(lambda request: False) == ([], DENIED, "denied", [])


async def test_a_message_denies_the_call_and_reaches_the_model():
    assert await outcome(lambda request: "Not on a Friday.") == ([], "Not on a Friday.", "denied", [])
    assert (await outcome(lambda request: ""))[1] == DENIED


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (HookResult.approve(by="ada"), (["test"], "deployed to test", "approved", [])),
        (HookResult.deny("no", by="ada"), ([], "no", "denied", [])),
        (HookResult.edit({"env": "stage"}), (["stage"], "deployed to stage", "edited", [])),
    ],
)
async def test_an_approver_may_return_a_hook_result(value, expected):
    assert await outcome(lambda request: value) == expected


async def test_an_approver_sees_the_call_and_the_question():
    seen = []
    plan = PlanModeHook(["dep*"], lambda request: seen.append(request) or True, question="Really {tool}? {x}")
    await outcome(None, plan=plan)
    (request,) = seen
    assert (request.call.name, request.call.arguments) == ("deploy", {"env": "test"})
    assert [(q.text, q.hook) for q in request.questions] == [("Really deploy? {x}", "PlanModeHook")]


async def test_an_approver_may_be_async_and_take_the_context():
    async def approver(ctx, request):
        await asyncio.sleep(0)
        return ctx.agent_name == "test"

    class Approver:
        async def __call__(self, ctx, request):
            return bool(ctx.run_id)

    async def with_more(more, request):
        return more == "more"

    for one in (approver, Approver(), lambda ctx, request: bool(ctx.run_id), functools.partial(with_more, "more")):
        assert (await outcome(one))[2] == "approved"


async def test_a_sync_approver_runs_in_a_thread_and_does_not_block_the_loop():
    answered = threading.Event()

    def wait(request):
        return answered.wait(20) and threading.current_thread() is not threading.main_thread()

    async def other():
        await asyncio.sleep(0)
        answered.set()

    found, _ = await asyncio.gather(outcome(wait), other())
    assert found[2] == "approved"


@pytest.mark.parametrize(
    "value",
    [None, 1, 0, b"yes", [], HookResult.cont(), HookResult.block("no"), HookResult.claim(), object()],
)
async def test_an_unexpected_value_denies_the_call_and_is_reported(value):
    ran, message, decision, failed = await outcome(lambda request: value)
    assert (ran, message, decision) == ([], "The approval failed.", "denied")
    assert "the approver returned" in failed[0]


async def test_two_decisions_at_once_are_invalid():
    both = HookResult.claim(approve=True, edit={"env": "prod"})
    assert (await outcome(lambda request: both))[:3] == ([], "The approval failed.", "denied")


async def test_an_approver_that_raises_denies_the_call_and_is_reported():
    def approver(request):
        raise OSError("the line is dead")

    ran, _, decision, failed = await outcome(approver)
    assert (ran, decision) == ([], "denied")
    assert "the line is dead" in failed[0]


async def test_without_any_approver_the_call_is_denied():
    assert await outcome(None) == ([], "Nobody approved this call. It needs an approval: plan mode.", "denied", [])


async def test_without_an_approver_another_hook_decides():
    someone = hook("approval_requested")(lambda ctx, p: HookResult.approve())
    assert (await outcome(None, someone))[2] == "approved"


async def test_other_tools_are_not_asked_about():
    asked = []
    plan = PlanModeHook(["deploy"], lambda request: asked.append(1) or False)
    result = await agent_of([call("status"), reply("x")], plan, ran=[]).arun("x")
    assert (result.messages[2].content, asked) == ("fine", [])


# Questions of other hooks.


async def test_it_does_not_answer_the_questions_of_other_hooks():
    asked = []
    asker = guard(BEFORE_TOOL, name="other")(lambda ctx, p: HookResult.ask("and the budget?"))
    plan = PlanModeHook(["status"], lambda request: asked.append(1) or True)
    assert (await outcome(None, asker, plan=plan))[1:3] == ("Nobody approved this call.", "denied")
    assert asked == []


async def test_an_approval_leaves_the_question_of_another_hook_open():
    asker = guard(BEFORE_TOOL, name="other")(lambda ctx, p: HookResult.ask("and the budget?"))
    assert (await outcome(lambda request: True, asker))[:3] == (
        [],
        "Nobody approved this call. It needs an approval: plan mode.",
        "denied",
    )
    someone = hook("approval_requested")(lambda ctx, p: HookResult.approve())
    assert (await outcome(lambda request: True, asker, someone))[2] == "approved"
    assert (await outcome(lambda request: "Never.", asker, someone))[1:3] == ("Never.", "denied")


async def test_an_edit_cannot_answer_other_questions():
    asker = guard(BEFORE_TOOL, name="other")(lambda ctx, p: HookResult.ask("and the budget?"))
    someone = hook("approval_requested")(lambda ctx, p: HookResult.approve())
    ran, message, decision, _ = await outcome(lambda request: HookResult.edit({"env": "x"}), asker, someone)
    assert (ran, decision) == ([], "denied")
    assert "several approvals" in message


@pytest.mark.parametrize(("second", "decision"), [(True, "approved"), (False, "denied")])
async def test_two_plan_modes_must_both_approve(second, decision):
    other = PlanModeHook(["dep*"], lambda request: second)
    assert (await outcome(lambda request: True, other))[2] == decision


@pytest.mark.parametrize(
    ("declared", "asked"),
    [
        (None, True),
        (["write"], True),
        (["read", "delete"], True),
        (["execute"], True),
        ([], False),
        (["read"], False),
        (["network"], False),
    ],
)
def test_an_effect_selects_every_tool_that_may_have_it(declared, asked):
    work = tool(name="work", effects=declared)(lambda: "done")
    plan = PlanModeHook(effects=["write", "delete"])
    result = scripted_agent([call("work"), reply("x")], tools=[work], hooks=[plan]).run("x")
    assert result.steps[0].outcomes == ("blocked" if asked else "ok",)


def test_a_tool_is_asked_about_if_its_name_or_its_effects_say_so():
    plan = PlanModeHook(["look"], effects=["delete"])
    look = tool(name="look", effects=[])(lambda: "seen")
    drop = tool(name="drop", effects=["delete"])(lambda: "gone")
    result = scripted_agent([[call("look"), call("drop")], reply("x")], tools=[look, drop], hooks=[plan]).run("x")
    assert result.steps[0].outcomes == ("blocked", "blocked")


# Batches, retries, runs.


@pytest.mark.parametrize(("second", "runs", "outcome"), [(True, 2, "ok"), (False, 1, "blocked")])
async def test_a_retried_call_is_asked_about_again(second, runs, outcome):
    answers, ran = [True, second], []
    plan = PlanModeHook(["deploy"], lambda request: answers.pop(0))
    again = hook(AFTER_TOOL)(lambda ctx, p: HookResult.retry() if p.attempt == 1 else None)
    result = await agent_of([call("deploy"), reply("x")], plan, again, ran=ran).arun("x")
    assert (ran, result.steps[0].outcomes, answers) == (["test"] * runs, (outcome,), [])


async def test_each_call_of_a_batch_is_decided_separately():
    plan = PlanModeHook(["deploy"], lambda request: request.call.arguments["env"] != "prod")

    async def run():
        ran = []
        turns = [[call("deploy", env=env) for env in ("test", "prod", "stage")], reply("x")]
        result = await agent_of(turns, plan, ran=ran).arun("x")
        return sorted(ran), result.steps[0].outcomes

    assert await asyncio.gather(*(run() for _ in range(4))) == [(["stage", "test"], ("ok", "blocked", "ok"))] * 4


async def test_a_run_that_is_cancelled_does_not_wait_for_the_approver():
    called, never, ran = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def approver(request):
        loop.call_soon_threadsafe(called.set)
        return never.wait(60)

    run = agent_of([call("deploy"), reply("x")], PlanModeHook(["deploy"], approver), ran=ran).start("x")
    await called.wait()
    run.cancel("enough")
    result = await run.result()
    never.set()
    assert (result.status, ran) == ("cancelled", [])


async def test_an_approver_that_exceeds_the_timeout_denies_the_call():
    never, ran = threading.Event(), []
    agent = agent_of([call("deploy"), reply("x")], ran=ran)
    agent.register_hook(PlanModeHook(["deploy"], lambda request: never.wait(60)), timeout=0.05)
    result = await agent.arun("x")
    never.set()
    assert (ran, result.messages[2].content, result.status) == ([], "The approval failed.", "completed")


# Registration.


def test_it_is_a_guard_at_100_that_fails_closed():
    found = {
        str(e.point): (e.phase, e.priority, e.on_failure) for e in HookRegistry([PlanModeHook(["x"])]).stack.layers[0]
    }
    assert found["before_tool"] == ("guard", 100, "closed")
    assert found["approval_requested"][1:] == (100, "closed")


@pytest.mark.parametrize(
    ("args", "options", "problem"),
    [
        (("deploy",), {}, r"confirm must be a list: \['deploy'\]"),
        (([],), {}, "at least one"),
        ((), {}, "at least one tool .* or one effect"),
        ((), {"effects": "write"}, "effects must be a list such as"),
        ((), {"effects": ["writes"]}, "Did you mean 'write'"),
        (([3],), {}, "list of names"),
        ((["x"], "yes"), {}, "approver must be a function"),
        ((["x"], lambda: True), {}, r"must take \(request\) or \(ctx, request\)"),
        ((["x"], lambda a, b, c: True), {}, "must take"),
        ((["x"],), {"question": " "}, "question must be text"),
        ((["x"],), {"question": None}, "question must be text"),
    ],
)
def test_invalid_arguments_are_rejected(args, options, problem):
    with pytest.raises(RegistrationError, match=problem):
        PlanModeHook(*args, **options)
