"""Rules of a file: what they decide in runs."""

import asyncio
import threading
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from hookline import (
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    Agent,
    AgentContext,
    HookResult,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.hooks import RecordHook, Strict, TapeHook, load_rules
from hookline.stores import CallStore, RunStore
from hookline.tape import replay
from hookline.teams import Team
from hookline.testing import FakeClock, make_context

pytest.importorskip("cel_expr_python", reason="rules need: pip install 'hookline[rules]'")


@tool(effects=[])
def refund(order: str = "", amount: float = 0.0) -> str:
    """Refund."""
    return f"refunded {amount}"


@tool(effects=[])
def read_customer(id: str = "", note: str = "") -> str:
    """Read a customer."""
    return f"customer {id}"


@tool(effects=[])
def send_mail(to: str = "", text: str = "") -> str:
    """Send a mail."""
    return "sent"


@tool(untrusted=True)
def fetch(url: str = "") -> str:
    """Fetch a page."""
    return "a page"


TOOLS = [refund, read_customer, send_mail, fetch]


NUMBERS = count(1)
"""Each rule has a name of its own."""


def rule(when: str, then: str = "block", tools: str = "", **fields: object) -> str:
    """A rule as it is written in a file."""
    given = {"name": f"rule-{next(NUMBERS)}", "then": then, **fields}
    if then != "label":
        given.setdefault("message", "No.")
    if tools:
        given["tools"] = tools
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in given.items()
    ]
    return "\n".join(["[[rules]]", *lines, f'when = """{when}"""', ""])


@pytest.fixture
def store():
    with closing(CallStore(":memory:")) as made:
        yield made


@pytest.fixture
def rules(tmp_path, store):
    """Load rules from their texts."""

    def load(*texts: str, **options: object):
        file = tmp_path / "rules.toml"
        file.write_text("\n".join(texts))
        return load_rules(file, **{"store": store, **options})

    return load


def agent(turns, hooks, tools=TOOLS, **options):
    return Agent("clerk", llm=ScriptedModel([*turns, reply("done")], loop=True), tools=tools, hooks=hooks, **options)


def results(turns, hooks, **options):
    """The results of the tools of one run, as the model reads them."""
    result = agent(turns, hooks).run("Work.", **options)
    return [message.content for message in result.messages if message.role == "tool"]


# What they may do.


def test_a_rule_blocks_a_call_and_the_model_reads_its_message(rules):
    hooks = rules(rule("call.arguments.amount > 100", tools="refund", message="At most 100.", name="limit"))
    turns = [call("refund", amount=100), call("refund", amount=101), call("send_mail")]
    result = agent(turns, hooks).run("Work.")
    assert [m.content for m in result.messages if m.role == "tool"] == ["refunded 100.0", "At most 100.", "sent"]
    assert [(error.source, error.message) for error in result.errors] == [("limit", "At most 100.")]


def test_a_rule_asks_a_person_about_the_exact_arguments(rules):
    asked = []

    @hook(APPROVAL_REQUESTED)
    def approver(ctx, request):
        asked.append((dict(request.call.arguments), [(q.text, q.hook, q.reason) for q in request.questions]))
        return HookResult.approve()

    ask = rule("call.arguments.amount > 100", "ask", "refund", name="big", message="Pay?", reason="Policy 4")
    assert results([call("refund", order="A", amount=250)], [*rules(ask), approver]) == ["refunded 250.0"]
    assert asked == [({"order": "A", "amount": 250.0}, [("Pay?", "big", "Policy 4")])]


def test_rules_at_other_points_end_stop_retry_and_withhold(rules):
    end = rule("task.contains('secret')", "end", point="on_run_start", message="I may not.")
    result = agent([], rules(end)).run("The secret?")
    assert (result.status, result.reply) == ("ended", "I may not.")

    stop = rule("request.tools.size() > 3", "stop", point="before_llm")
    assert agent([], rules(stop)).run("x").status == "stopped"

    retry = rule("reply.text.contains('bad')", "retry", point="after_llm", message="Be kind.")
    model = ScriptedModel([reply("bad"), reply("good")])
    assert Agent("a", llm=model, hooks=rules(retry)).run("x").reply == "good"

    withhold = rule("result.text.contains('7')", "withhold", "read_customer", point="after_tool", message="Withheld.")
    assert results([call("read_customer", id="7")], rules(withhold)) == ["Withheld."]


def test_a_withheld_result_is_judged_after_all_hooks_that_change_results(rules):
    @hook(AFTER_TOOL, priority=-999)
    def late(ctx, result):
        return result.replace(result="a secret")

    withhold = rule("result.text == 'a secret'", "withhold", point="after_tool", message="Withheld.", priority=1000)
    assert results([call("send_mail")], [*rules(withhold), late]) == ["Withheld."]


def test_rules_know_the_agent_the_caller_the_platform_and_the_time(rules):
    hooks = rules(
        rule("caller == 'ann' && platform == 'slack' && metadata.role == 'guest'", tools="refund", agents="cl*"),
        rule("now.getHours() == 3", tools="send_mail"),
        rule("true", tools="refund", agents="other", name="other"),
    )
    clock = FakeClock(1_700_000_000 // 86400 * 86400 + 3 * 3600)
    ctx = AgentContext(session=Session("s", platform="slack"), clock=clock)
    turns = [[call("refund"), call("send_mail")]]
    assert results(turns, hooks, ctx=ctx, metadata={"user": "ann", "role": "guest"}) == ["No.", "No."]
    assert results(turns, hooks, metadata={"user": "bob", "role": "guest"})[0] == "refunded 0.0"


def test_a_rule_in_shadow_mode_only_reports(rules):
    hooks = rules(rule("true", tools="refund", shadow=True, name="trial"))
    assert results([call("refund")], hooks) == ["refunded 0.0"]
    assert [decision.would for decision in hooks[0].decisions] == ["would block: No."]


# What it does when a condition has no answer.


def test_a_condition_without_an_answer_blocks_the_call_and_the_log_says_where(rules, caplog):
    hooks = rules(rule("call.arguments.missing > 1", tools="send_*", name="broken"))
    (text,) = results([call("send_mail", to="x")], hooks)
    assert text == "Blocked: the hook 'broken' failed."
    assert "rules.toml:1: rule 'broken' has no answer: Key not found in map" in caplog.text


def test_at_other_points_the_run_fails(rules):
    hooks = rules(rule("metadata.role == 'x'", "end", point="on_run_start", name="broken"))
    with pytest.raises(RunFailedError, match=r"rule 'broken' has no answer"):
        agent([], hooks).run("x")


def test_what_cannot_be_judged_gets_the_label(rules):
    label = rule("result.value.secret == true", "label", "read_customer", point="after_tool", label="secret")
    hooks = rules(label, rule("'secret' in labels", tools="send_mail"))
    assert results([call("read_customer"), call("send_mail")], hooks)[1] == "No."


STRANGE = {
    "a text that ends for C": ("call.arguments.to.contains('evil')", "ok\0evil"),
    "half of a surrogate pair": ("call.arguments.to.contains('evil')", "\ud800evil"),
    "a long text": ("call.arguments.to.endsWith('evil')", "a" * 2_000_000 + "evil"),
    "a pattern that takes others ages": ("call.arguments.to.matches('(a+)+$')", "a" * 50_000),
}


@pytest.mark.parametrize(("when", "text"), STRANGE.values(), ids=STRANGE)
def test_a_condition_sees_the_whole_text(rules, when, text):
    (found,) = rules(rule(when, tools="send_mail"))
    request = make_request("send_mail", to=text)
    assert found(BEFORE_TOOL, make_context(), request) is not None


def make_request(name, **arguments):
    from hookline.payloads import ToolCallRequest

    return ToolCallRequest("call_1", name, arguments)


def test_numbers_beyond_64_bits_are_not_compared_with_numbers_and_do_not_spoil_the_history(rules):
    from hookline.hooks._rules.conditions import EvaluationError

    (found,) = rules(rule("call.arguments.amount > 100", tools="pay"))
    with pytest.raises(EvaluationError, match="no matching overload|No matching overload"):
        found(BEFORE_TOOL, make_context(), make_request("pay", amount=10**30))
    assert found(BEFORE_TOOL, make_context(), make_request("pay", amount=101, other=10**30)) is not None

    shown = rule("!history.exists(c, c.tool == 'pay' && c.arguments.to == call.arguments.to)", tools="send_mail")
    turns = [call("pay", to="1", amount=10**30), call("send_mail", to="1"), call("send_mail", to="2")]
    result = agent(turns, rules(shown), tools=[*TOOLS, pay]).run("x")
    assert [m.content for m in result.messages if m.role == "tool"] == ["paid", "sent", "No."]


@tool(effects=[])
def pay(to: str, amount: int) -> str:
    """Pay."""
    return "paid"


def test_conditions_are_asked_in_many_threads_and_event_loops_at_once(rules):
    hooks = rules(
        rule("call.arguments.to != string(count('read_customer'))", tools="send_mail"),
        rule("history.exists(c, c.tool == 'nothing')", tools="send_mail"),
    )
    wrong = []

    def work(reads):
        turns = [[call("read_customer") for _ in range(reads)], call("send_mail", to=str(reads))]
        for _ in range(5):
            found = results(turns, hooks)
            if found[-1] != "sent":
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# The history.

AFTER_READING = rule("called('read_*')", tools="send_mail", name="no-mail", message="No mail now.")


def test_a_rule_asks_whether_a_tool_was_called_before(rules):
    turns = [call("send_mail"), call("read_customer"), call("send_mail")]
    assert results(turns, rules(AFTER_READING)) == ["sent", "customer ", "No mail now."]


def test_calls_of_one_reply_count_from_the_moment_that_they_are_judged(rules):
    turns = [[call("send_mail"), call("read_customer"), call("send_mail")]]
    assert results(turns, rules(AFTER_READING)) == ["sent", "customer ", "No mail now."]
    limit = rule("count('refund') >= 2", tools="refund")
    assert results([[call("refund")] * 4], rules(limit)) == ["refunded 0.0"] * 2 + ["No."] * 2


def test_a_call_that_any_hook_blocks_or_answers_does_not_count(rules):
    @guard(BEFORE_TOOL, tools="read_customer", priority=-5)
    def refuse(ctx, request):
        if request.arguments["id"] == "1":
            return HookResult.block("Not that one.")
        return HookResult.answer("cached") if request.arguments["id"] == "2" else None

    turns = [[call("read_customer", id="1"), call("send_mail")], call("read_customer", id="2"), call("send_mail")]
    found = results([*turns, call("read_customer", id="3"), call("send_mail")], [*rules(AFTER_READING), refuse])
    assert found == ["Not that one.", "sent", "cached", "sent", "customer 3", "No mail now."]


def test_a_call_that_no_tool_could_run_does_not_count(rules):
    hooks = rules(rule("called('*')", tools="send_mail"))
    found = results([call("nothing"), call("refund", amount="many"), call("send_mail")], hooks)
    assert found[-1] == "sent"


def test_a_denied_call_does_not_count_and_an_approved_one_is_marked(rules):
    @hook(APPROVAL_REQUESTED)
    def approver(ctx, request):
        return HookResult.approve() if request.call.arguments["id"] == "yes" else HookResult.deny("no")

    hooks = rules(
        rule("true", "ask", "read_customer"),
        rule("!history.exists(c, c.tool == 'read_customer' && c.approved && c.outcome == 'ok')", tools="send_mail"),
        rule("called('read_customer')", tools="refund"),
    )
    turns = [call("read_customer", id="no"), [call("send_mail"), call("refund")]]
    assert results(turns, [*hooks, approver])[1:] == ["No.", "refunded 0.0"]
    turns = [call("read_customer", id="yes"), [call("send_mail"), call("refund")]]
    assert results(turns, [*hooks, approver])[1:] == ["sent", "No."]


def test_an_edited_call_is_judged_and_remembered_with_its_new_arguments(rules):
    @hook(APPROVAL_REQUESTED)
    def approver(ctx, request):
        return HookResult.edit({"order": "B", "amount": 5})

    hooks = rules(
        rule("call.arguments.amount > 100", "ask", "refund"),
        rule("history.exists(c, c.arguments.order == 'B' && c.approved)", tools="send_mail"),
        rule("history.exists(c, c.tool == 'refund' && c.arguments.order == 'A')", tools="fetch"),
    )
    turns = [call("refund", order="A", amount=500), [call("send_mail"), call("fetch")]]
    assert results(turns, [*hooks, approver]) == ["refunded 5.0", "No.", "a page"]


def test_a_retried_call_counts_once(rules):
    @hook(AFTER_TOOL, tools="read_customer")
    def again(ctx, result):
        return HookResult.retry("again") if result.attempt == 1 else None

    hooks = rules(rule("count('read_customer') > 1", tools="send_mail"))
    assert results([call("read_customer"), call("send_mail")], [*hooks, again])[-1] == "sent"


def test_labels_come_from_rules_and_from_untrusted_text(rules):
    hooks = rules(
        rule("call.arguments.id == '7'", "label", "read_customer", point="after_tool", label="vip"),
        rule("'vip' in labels", tools="send_mail"),
        rule("'untrusted' in labels", tools="refund"),
        rule("history.exists(c, 'vip' in c.labels && c.tool == 'read_customer')", tools="fetch"),
    )
    calls = [call("send_mail"), call("refund"), call("fetch")]
    assert results([call("read_customer", id="1"), calls], hooks)[1:] == ["sent", "refunded 0.0", "a page"]
    assert results([call("read_customer", id="7"), calls], hooks)[1:] == ["No.", "refunded 0.0", "No."]
    assert results([call("fetch"), calls], hooks)[1:] == ["sent", "No.", "a page"]


def test_later_runs_of_a_conversation_know_the_calls_of_earlier_ones(rules):
    def talk(hooks, *turns):
        ctx = AgentContext(session=Session("s"))
        found = []
        for turn in turns:
            result = agent([turn], hooks).run("x", ctx=ctx)
            found.append([m.content for m in result.messages if m.role == "tool"][-1])
        return found

    blocked = rule("call.arguments.id == '1'", tools="read_customer", message="Not that one.")
    hooks = rules(AFTER_READING, blocked)
    assert talk(hooks, call("read_customer", id="1"), call("send_mail")) == ["Not that one.", "sent"]
    assert talk(hooks, call("read_customer", id="2"), call("send_mail")) == ["customer 2", "No mail now."]


def test_subagents_share_the_history_of_the_outer_run(rules):
    team, seen = Team(), []

    @hook(AFTER_TOOL, tools=["read_customer", "send_mail"])
    def see(ctx, result):
        seen.append((ctx.agent_name, result.text))

    turns = [call("delegate", to=name, task="go") for name in ("reader", "mailer")]
    hooks = [*rules(AFTER_READING), see]
    team.add(Agent("boss", llm=ScriptedModel([*turns, "done"]), tools=[team, send_mail], hooks=hooks))
    for name, called in (("reader", "read_customer"), ("mailer", "send_mail")):
        team.add(Agent(name, llm=ScriptedModel([call(called), "ok"]), tools=[read_customer, send_mail]))
    team.run("x")
    assert seen == [("reader", "customer "), ("mailer", "No mail now.")]


# Calls of a caller in all runs.

TWO_A_DAY = rule("count('refund', duration('24h')) >= 2", tools="refund", name="two", message="Two a day.")


def test_calls_of_a_caller_count_in_all_runs(rules):
    hooks = rules(TWO_A_DAY)
    ann, bob = {"user": "ann"}, {"user": "bob"}
    assert results([[call("refund")] * 2], hooks, metadata=ann) == ["refunded 0.0"] * 2
    assert results([call("refund")], hooks, metadata=ann) == ["Two a day."]
    assert results([call("refund")], hooks, metadata=bob) == ["refunded 0.0"]
    assert results([call("refund")], hooks, metadata=ann) == ["Two a day."]


def test_a_blocked_call_is_not_counted(rules, store):
    hooks = rules(TWO_A_DAY, rule("call.arguments.amount > 9", tools="refund", name="big"))
    assert results([[call("refund", amount=10)] * 5 + [call("refund")] * 3], hooks)[5:] == [
        "refunded 0.0",
        "refunded 0.0",
        "Two a day.",
    ]
    assert store.count("", [("refund", 60.0)]) == [2]


def test_calls_leave_the_window(tmp_path):
    now = [1000.0]
    with closing(CallStore(tmp_path / "calls.db", clock=lambda: now[0])) as store:
        (tmp_path / "rules.toml").write_text(TWO_A_DAY)
        hooks = load_rules(tmp_path / "rules.toml", store=store)
        assert results([[call("refund")] * 3], hooks)[2] == "Two a day."
        now[0] += 86_399
        assert results([call("refund")], hooks) == ["Two a day."]
        now[0] += 2
        assert results([call("refund")], hooks) == ["refunded 0.0"]


def test_other_tools_do_not_touch_the_store(tmp_path):
    class Broken(CallStore):
        def add(self, *given):
            raise RuntimeError("no database")

        count = add

    (tmp_path / "rules.toml").write_text(TWO_A_DAY + rule("count('refund', duration('1h')) > 0", tools="send_mail"))
    with closing(Broken(":memory:")) as store:
        hooks = load_rules(tmp_path / "rules.toml", store=store)
        found = results([[call("read_customer"), call("refund"), call("send_mail")]], hooks)
    assert found[0] == "customer "
    assert found[1] == found[2] == "Blocked: the hook 'history of rules.toml' failed."


def test_a_rule_may_count_other_tools_than_its_own(rules):
    hooks = rules(rule("count('refund', duration('24h')) >= 1", tools="send_mail"))
    assert results([call("send_mail"), call("refund"), call("send_mail")], hooks) == ["sent", "refunded 0.0", "No."]


# Recorded runs.


def test_a_backtest_judges_by_the_history_and_counts_calls_of_recorded_callers(rules, tmp_path):
    from hookline.backtest import backtest

    for number in range(3):
        turns = [call("refund", order=str(number)), call("read_customer", id="7"), call("send_mail")]
        agent(turns, [RecordHook(tmp_path / "records")]).run("x", metadata={"user": "ann"})
    report = backtest(rules(AFTER_READING, TWO_A_DAY), [tmp_path / "records"])
    assert not report.failures
    found = {cell.hook: cell.count.total for cell in report.cells if cell.kind == "newly_blocked"}
    assert found == {"no-mail": 3, "two": 1}


def test_coverage_knows_what_a_condition_reads(rules, tmp_path):
    from hookline.backtest import coverage

    agent([call("refund", order="A", amount=1), call("read_customer")], [RecordHook(tmp_path / "records")]).run("x")
    found = coverage(
        rules(rule("call.arguments.amount > 1 && called('*')", tools="refund", name="r")), [tmp_path / "records"]
    )
    by_name = {each.tool: each for each in found.tools}
    assert [each.name for each in by_name["refund"].unread] == ["order"]
    assert (by_name["refund"].guards, by_name["read_customer"].guards) == (("r",), ())


def test_a_replay_of_a_tape_decides_the_same(rules, tmp_path):
    hooks = rules(AFTER_READING, TWO_A_DAY)
    turns = [[call("refund")] * 3, call("read_customer"), call("send_mail")]
    made = agent(turns, [*hooks, TapeHook(tmp_path / "run.tape")])
    made.run("x")
    again = agent(turns, [*hooks, TapeHook(tmp_path / "again.tape")])
    report = replay(tmp_path / "run.tape", again)
    assert report.same


# Beside other hooks.


def test_strict_counts_rules_that_name_their_tools(rules):
    hooks = rules(rule("false", tools="send_mail"), rule("false", name="any"))
    found = results([call("send_mail"), call("refund")], [*hooks, Strict(allow=["fetch", "read_customer", "refund"])])
    assert found == ["sent", "refunded 0.0"]
    with pytest.raises(RegistrationError, match="'refund'"):
        agent([], [*hooks, Strict(allow=["fetch", "read_customer"])])


def test_many_guards_of_other_tools_are_not_called(rules):
    called = []

    def make(number):
        @guard(BEFORE_TOOL, tools="refund" if number % 2 else "send_*", name=f"g{number}")
        def each(ctx, request):
            called.append(number)

        return each

    hooks = [make(number) for number in range(20)]
    results([call("refund"), call("send_mail"), call("fetch"), call("refund")], hooks)
    odd, even = list(range(1, 20, 2)), list(range(0, 20, 2))
    assert called == odd + even + odd


def test_an_agent_checks_the_arguments_in_conditions_against_its_tools(rules, caplog):
    hooks = rules(rule("call.arguments.amuont > 1", tools="refund", name="typo"))
    with pytest.raises(
        RegistrationError, match=r"rules.toml:1: rule 'typo': the tool has no argument 'amuont'. Did you"
    ):
        agent([], hooks).run("x")
    with pytest.raises(RegistrationError, match="no argument 'amuont'"):
        load_rules(Path(hooks.path), tools=[refund])
    globbed = rules(rule("has(call.arguments.amuont)", tools="ref*", name="typo"))
    assert results([call("refund")], globbed) == ["refunded 0.0"]
    assert "the tool has no argument 'amuont'" in caplog.text


def test_an_agent_that_runs_many_runs_at_once_keeps_their_histories_apart(rules):
    hooks = rules(AFTER_READING)

    async def main():
        turns = [[call("read_customer"), call("send_mail")], [call("send_mail"), call("send_mail")]] * 2
        return await asyncio.gather(*(agent(each, hooks).arun("x") for each in turns))

    texts = [[m.content for m in result.messages if m.role == "tool"] for result in asyncio.run(main())]
    assert texts[0] == texts[2] == ["customer ", "No mail now."]
    assert texts[1] == texts[3] == ["sent", "sent"]


def test_a_run_with_the_id_of_one_that_was_deleted_counts_again(rules, tmp_path):
    hooks, runs, found = rules(TWO_A_DAY), RunStore(tmp_path / "runs.db"), []
    for _ in range(3):
        found += results([call("refund")], hooks, durable=runs, run_id="nightly")
        runs.delete("nightly")
    assert found == ["refunded 0.0", "refunded 0.0", "Two a day."]
