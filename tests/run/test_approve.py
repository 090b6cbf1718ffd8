"""The option ``approve``: one function asks and decides about calls."""

import pytest

from hookline import (
    Agent,
    AgentContext,
    ApprovalRequest,
    HookRegistry,
    HookResult,
    RegistrationError,
    ScriptedModel,
    call,
    guard,
    tool,
)


class Bank:
    """An agent with a tool that pays, one that reads, and what ran."""

    def __init__(self, approve, *, turns=None, **options):
        self.paid = []

        @tool
        def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return f"paid {amount}"

        @tool(effects=["read"])
        def balance() -> int:
            """Read the balance."""
            return 7

        model = ScriptedModel(turns or [call("pay", amount=5), "Done."])
        self.agent = Agent("bank", llm=model, tools=[pay, balance], approve=approve, **options)

    def answer(self, task="Pay."):
        return next(message for message in self.agent.run(task).messages if message.role == "tool")


def test_agents_that_share_a_registry_and_a_function_ask_once():
    asked = []

    def approve(ctx, request):
        asked.append([each.text for each in request.questions])
        return True

    hooks = HookRegistry()
    first, second = Bank(approve, hooks=hooks), Bank(approve, hooks=hooks)
    assert [first.answer().content, second.answer().content] == ["paid 5", "paid 5"]
    assert asked == [["May pay run?"]] * 2


async def later(ctx, request):
    return True


@pytest.mark.parametrize(
    "approve", [lambda ctx, request: True, later, lambda ctx, request: HookResult.approve(by="ann")]
)
def test_a_call_runs_if_the_function_approves_it(approve):
    bank = Bank(approve)
    assert bank.answer().content == "paid 5"
    assert bank.paid == [5]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (False, "Tool 'pay' was denied by hook 'approve'."),
        ("Ask Ann first.", "Ask Ann first."),
        (None, "Nobody approved this call. It needs an approval: pay may do more than read."),
        (7, "The approval failed."),
    ],
)
def test_a_call_does_not_run_unless_the_function_approves_it(answer, says):
    bank = Bank(lambda ctx, request: answer)
    assert bank.answer().content == says
    assert bank.paid == []


def test_a_function_that_fails_lets_no_call_run():
    def approve(ctx, request):
        raise OSError("no terminal")

    bank = Bank(approve)
    assert bank.answer().content == "The approval failed."
    assert bank.paid == []


def test_other_arguments_are_judged_by_the_guards():
    @guard("before_tool", tools="pay")
    def at_most_100(ctx, request):
        return HookResult.block("Too much.") if request.arguments["amount"] > 100 else None

    for amount, paid in ((3, [3]), (300, [])):
        bank = Bank(lambda ctx, request, amount=amount: {"amount": amount}, hooks=[at_most_100])
        bank.answer()
        assert bank.paid == paid


def test_it_is_asked_about_calls_that_may_do_harm_and_those_that_a_hook_asks_about():
    asked = []

    def approve(ctx: AgentContext, request: ApprovalRequest) -> bool:
        asked.append((request.call.name, [question.text for question in request.questions]))
        return True

    @guard("before_tool", tools="balance")
    def curious(ctx, request):
        return HookResult.ask("Really?") if ctx.state.metadata.get("careful") else None

    turns = [call("balance"), call("pay", amount=5), call("nothing"), "Done."]
    bank = Bank(approve, turns=turns, hooks=[curious])
    bank.agent.run("Pay.")
    assert asked == [("pay", ["May pay run?"])]
    bank = Bank(approve, turns=[call("balance"), "Done."], hooks=[curious])
    bank.agent.run("Look.", metadata={"careful": True})
    assert asked[1:] == [("balance", ["Really?"])]


def test_the_decision_names_the_function_and_calls_of_subagents_are_asked_about_too():
    asked = []

    def approve(ctx, request):
        asked.append((ctx.agent_name, request.call.name))
        return True

    inner = Bank(None)

    @tool(effects=[])
    async def ask_the_bank() -> str:
        """Ask the bank."""
        return (await inner.agent.arun("Pay.")).reply

    decided = []
    outer = Agent("boss", llm=ScriptedModel([call("ask_the_bank"), "Done."]), tools=[ask_the_bank], approve=approve)
    outer.hooks.on("approval_decided", lambda ctx, decision: decided.append((decision.decision, decision.by)))
    assert outer.run("Pay.").reply == "Done."
    assert asked == [("bank", "pay")]
    assert decided == [("approved", "approve")]


def test_it_must_be_a_function():
    with pytest.raises(RegistrationError, match=r"approve= takes a function of \(ctx, request\), not 'yes'"):
        Bank("yes")
