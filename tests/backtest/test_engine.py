"""What rules would have decided: kinds of differences, how sure they are, and recorded hooks that keep their place."""

import asyncio

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_START,
    Agent,
    HookResult,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
)
from hookline._kernel import points as points_module
from hookline.backtest import BacktestError, backtest
from hookline.payloads import Ids, ToolCallRequest
from hookline.points import ON_STOP, Point
from hookline.records import RecordHook
from hookline.records import format as fmt
from hookline.teams import Team
from tests.backtest.recording import Writer, commands, kinds, record, shell


@guard(BEFORE_TOOL, tools="shell")
def no_sudo(ctx, request):
    return HookResult.block("No sudo.", reason="rule 1") if "sudo" in request.arguments["command"] else None


def rule(decide, name="no_sudo", **options):
    """A guard of the shell."""
    return guard(BEFORE_TOOL, tools="shell", name=name, **options)(
        lambda ctx, request: decide(request.arguments["command"])
    )


# Kinds.


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (None, HookResult.block("No."), "newly_blocked"),
        (HookResult.block("No."), None, "no_longer_blocked"),
        (None, HookResult.ask("May I?"), "newly_asked"),
        (HookResult.ask("May I?"), None, "no_longer_asked"),
        (HookResult.ask("May I?"), HookResult.block("No."), "newly_blocked"),
        (None, HookResult.end("Stop."), "newly_ended"),
        (None, HookResult.stop("Stop."), "newly_ended"),
        (None, HookResult.answer("42"), "newly_answered"),
        (HookResult.answer("42"), None, "no_longer_answered"),
        (None, HookResult.replace({"arguments": {"command": "ls"}}), "newly_changed"),
        (HookResult.replace({"arguments": {"command": "ls"}}), None, "no_longer_changed"),
        (
            HookResult.replace({"arguments": {"command": "ls"}}),
            HookResult.replace({"arguments": {"command": "pwd"}}),
            "changed_differently",
        ),
        (HookResult.block("No."), HookResult.block("Never."), "worded_differently"),
        (HookResult.block("No.", reason="a"), HookResult.block("No.", reason="b"), None),
        (HookResult.ask("May I?"), HookResult.ask("Shall I?"), "worded_differently"),
        (HookResult.ask("May I?"), HookResult.ask("May I?"), None),
        (HookResult.answer({"a": [1]}), HookResult.answer({"a": [1]}), None),
        (HookResult.block("No."), HookResult.block("No."), None),
        (None, None, None),
        (None, object(), "raised"),
    ],
)
def test_a_difference_has_a_kind(tmp_path, old, new, kind):
    approve = hook(APPROVAL_REQUESTED)(lambda ctx, asked: HookResult.approve(by="ann"))
    record(tmp_path, commands("go"), hooks=[hook(BEFORE_TOOL, tools="shell", name="rule")(lambda c, r: old), approve])
    report = backtest([hook(BEFORE_TOOL, tools="shell", name="rule")(lambda c, r: new)], tmp_path)
    assert kinds(report) == ({kind: (1, 0, 0)} if kind else {})
    assert report.different_runs == (1 if kind else 0)


def test_every_point_can_be_tested(tmp_path):
    def failing(request):
        raise RuntimeError("down")

    hooks = [hook(ON_ERROR)(lambda ctx, failure: HookResult.retry()), RecordHook(tmp_path)]
    Agent("a", llm=ScriptedModel([failing, call("shell", command="ls"), reply("x")]), tools=[shell], hooks=hooks).run(
        "t"
    )
    for point, result, kind in [
        (ON_RUN_START, {"task": "other"}, "newly_changed"),
        (BEFORE_LLM, HookResult.answer("cached"), "newly_answered"),
        (AFTER_LLM, HookResult.retry("Again."), "newly_retried"),
        (AFTER_TOOL, {"result": "short"}, "newly_changed"),
        (ON_STOP, HookResult.keep_going("Go on."), "newly_resumed"),
    ]:
        report = backtest([hook(point, name="new")(lambda ctx, payload, result=result: result)], tmp_path)
        assert report.total(kind).exact == 1, point
    report = backtest([hook(ON_ERROR, name="other")(lambda ctx, failure: HookResult.answer("sorry"))], tmp_path)
    assert report.total("newly_answered").total == 0  # the recorded hook answers first, with a retry


# How sure the answer is.


def test_an_answer_is_exact_up_to_the_first_difference_and_conditional_after_it(tmp_path):
    record(tmp_path, commands("ls", "curl a", "curl b", "ls"))
    report = backtest([rule(lambda c: HookResult.block("No.") if "curl" in c else None)], tmp_path)
    assert kinds(report) == {"newly_blocked": (1, 1, 0)}
    example = report.cells[0].examples[0]
    assert (example.subject, example.now, example.certainty) == ("curl a", "blocked by no_sudo: No.", "exact")
    assert report.certainty.total == report.moments
    assert report.certainty.exact == example.n + 1
    assert report.exact_share == pytest.approx((example.n + 1) / report.moments)
    silent = report.total("same")
    assert (silent.exact, silent.conditional) == (1, 1)


def test_a_difference_in_a_nested_run_makes_the_whole_tree_conditional(tmp_path):
    recorder = RecordHook(tmp_path)
    team = Team()
    inner = Agent("inner", llm=ScriptedModel([*commands("sudo a"), reply("me")]), tools=[shell], hooks=[recorder])
    turns = [call("delegate", to="inner", task="Who?"), *commands("sudo b"), reply("end")]
    outer = Agent("outer", llm=ScriptedModel(turns), tools=[shell, team], hooks=[recorder])
    team.add(outer)
    team.add(inner)
    outer.run("Go")
    report = backtest([no_sudo], tmp_path)
    assert (report.runs, report.nested, report.different_runs) == (1, 1, 1)
    assert kinds(report) == {"newly_blocked": (1, 1, 0)}
    report = backtest([no_sudo], tmp_path, where=["agent=outer"])
    assert kinds(report) == {"newly_blocked": (1, 0, 0)}


def test_a_backtest_counts_what_a_loose_replay_loses(tmp_path):
    """A replay does not start the subagent of a blocked call, so it never sees the calls of that subagent."""
    from hookline.tape import TapeHook, replay

    team = Team()
    inner = Agent("inner", llm=ScriptedModel([*commands("sudo a", "sudo b"), reply("me")]), tools=[shell])
    turns = [call("delegate", to="inner", task="Who?"), *commands("sudo c"), reply("end")]
    outer = Agent("outer", llm=ScriptedModel(turns), tools=[shell, team], hooks=[TapeHook(tmp_path / "a.tape")])
    team.add(outer)
    team.add(inner)
    outer.run("Go")

    @guard(BEFORE_TOOL)
    def strict(ctx, request):
        is_bad = request.name == "delegate" or "sudo" in request.arguments["command"]
        return HookResult.block("No.") if is_bad else None

    replayed = replay(tmp_path / "a.tape", [strict], strict=False)
    assert sum("strict" in str(decision) for decision in replayed.replayed) == 2
    assert kinds(backtest([strict], tmp_path / "a.tape")) == {"newly_blocked": (1, 3, 0)}


@pytest.mark.parametrize("file", ["records", "tape"])
def test_a_guard_knows_in_a_backtest_that_a_tool_had_a_sandbox(tmp_path, file):
    from hookline.hooks import TerminalGuard
    from hookline.tape import TapeHook
    from hookline.tools import shell_tool

    (tmp_path / "work").mkdir()
    path = tmp_path / "kept" if file == "records" else tmp_path / "a.tape"
    recorder = RecordHook(path) if file == "records" else TapeHook(path)
    turns = [*commands("nproc", "git push"), reply("end")]
    tools, hooks = [shell_tool(tmp_path / "work")], [TerminalGuard(), recorder]
    Agent("a", llm=ScriptedModel(turns), tools=tools, hooks=hooks).run("Go")
    assert kinds(backtest([TerminalGuard()], path)) == {}
    assert "newly_blocked" in kinds(backtest([TerminalGuard(profile="strict")], path))


# Recorded hooks.


def test_recorded_hooks_keep_their_decisions(tmp_path):
    fix = hook(BEFORE_TOOL, tools="shell", name="fix")(
        lambda ctx, request: (
            request.replace(arguments={"command": "safe"}) if "old" in request.arguments["command"] else None
        )
    )
    record(tmp_path, commands("old", "sudo x", "ls"), hooks=[no_sudo, fix])
    seen = []
    report = backtest([guard(BEFORE_TOOL, name="watch")(lambda c, r: seen.append(r.arguments["command"]))], tmp_path)
    assert seen == ["safe", "ls"]  # the payload after the recorded rewriter; nothing after the recorded block
    assert kinds(report) == {}
    assert report.total("same", hook="no_sudo").exact == 1


@pytest.mark.parametrize(
    ("phase", "priority", "seen"),
    [
        ("rewrite", 10, "a"),
        ("rewrite", 0, "a first"),
        ("rewrite", -10, "a first second"),
        ("guard", 99, "a first second"),
    ],
)
def test_a_rule_is_called_at_its_place_in_the_order(tmp_path, phase, priority, seen):
    def append(word, at):
        return hook(BEFORE_TOOL, name=word, priority=at)(
            lambda ctx, request: request.replace(arguments={"command": f"{request.arguments['command']} {word}"})
        )

    record(tmp_path, commands("a"), hooks=[append("first", 5), append("second", -5)])
    found = []
    watch = hook(BEFORE_TOOL, name="watch", phase=phase, priority=priority)
    backtest([watch(lambda ctx, request: found.append(request.arguments["command"]))], tmp_path)
    assert found == [seen]


def test_a_rule_with_the_name_of_a_recorded_hook_replaces_it(tmp_path):
    record(tmp_path, commands("sudo x"), hooks=[no_sudo])
    assert kinds(backtest([rule(lambda c: None)], tmp_path)) == {"no_longer_blocked": (1, 0, 0)}
    assert kinds(backtest([rule(lambda c: None, name="other")], tmp_path)) == {}


def test_a_recorded_hook_can_be_dropped(tmp_path):
    record(tmp_path, commands("sudo x"), hooks=[no_sudo])
    other = rule(lambda c: None, name="other")
    assert kinds(backtest([other], tmp_path, without=["no_sudo"])) == {"no_longer_blocked": (1, 0, 0)}


def test_hooks_that_were_not_called_then_make_the_answer_a_guess(tmp_path):
    later = rule(lambda c: HookResult.block("Later."), name="later", priority=-5)
    record(tmp_path, commands("sudo x"), hooks=[rule(lambda c: HookResult.block("No.")), later])
    report = backtest([rule(lambda c: None)], tmp_path)
    assert kinds(report) == {"no_longer_blocked": (0, 0, 1)}
    assert [guess.hook for guess in report.guesses] == ["later"]


def test_guards_judge_validated_arguments(tmp_path):
    record(tmp_path, [call("add", a="1")])
    seen = []
    backtest([guard(BEFORE_TOOL, name="watch")(lambda ctx, request: seen.append(dict(request.arguments)))], tmp_path)
    rewriter = hook(BEFORE_TOOL, name="early")(lambda ctx, request: seen.append(dict(request.arguments)))
    backtest([rewriter], tmp_path)
    assert seen == [{"a": 1, "b": 5}, {"a": "1"}]


def test_guards_do_not_judge_invalid_calls(tmp_path):
    record(tmp_path, [call("add", a="x"), call("no_such_tool")])
    seen = []
    report = backtest([guard(BEFORE_TOOL, name="watch")(lambda ctx, request: seen.append(request.name))], tmp_path)
    assert (seen, kinds(report)) == ([], {})


def test_calls_that_a_person_edited_are_judged_again_without_rewriters(tmp_path):
    ask = rule(lambda c: HookResult.ask("May I?"), name="ask")
    edit = hook(APPROVAL_REQUESTED)(lambda ctx, asked: HookResult.edit({"command": "safe"}, by="ann"))
    record(tmp_path, commands("risky"), hooks=[ask, edit])
    early = []
    rewriter = hook(BEFORE_TOOL, name="early")(lambda ctx, request: early.append(request.arguments["command"]))
    assert kinds(backtest([rewriter, ask], tmp_path)) == {}
    assert early == ["risky"]


def test_rules_are_compared_with_a_baseline(tmp_path):
    record(tmp_path, commands("sudo x", "curl y"), hooks=[no_sudo])
    old = rule(lambda c: HookResult.block("No curl.") if "curl" in c else None)
    new = rule(lambda c: HookResult.block("No.") if "sudo" in c else None)
    report = backtest([new], tmp_path, baseline=[old])
    assert report.baseline == ("no_sudo",)
    assert kinds(report) == {"newly_blocked": (1, 0, 0), "no_longer_blocked": (0, 1, 0)}
    assert kinds(backtest([new], tmp_path, baseline=[new])) == {}


# The context of a recorded run.


def test_hooks_keep_state_for_each_run(tmp_path):
    class Third:
        points = (BEFORE_TOOL,)
        phase = "guard"
        name = "third"

        def __call__(self, point, ctx, request):
            count = ctx.hook_state[id(self)] = ctx.hook_state.get(id(self), 0) + 1
            return HookResult.block("Enough.") if count == 3 else None

    for _ in range(2):
        record(tmp_path, commands("a", "b", "c", "d"))
    assert kinds(backtest([Third()], tmp_path)) == {"newly_blocked": (2, 0, 0)}


def test_hooks_see_the_ids_the_time_and_the_messages_of_the_run(tmp_path):
    seen = {}
    live = {}

    def look(into):
        def look_at(ctx, request):
            into[request.id] = (
                ctx.run_id,
                ctx.agent_name,
                ctx.task_id,
                request.ids,
                [(m.role, m.content, m.tool_calls) for m in ctx.state.messages],
                dict(ctx.state.metadata),
                ctx.state.system_prompt,
                round(ctx.clock.time(), 0),
            )

        return guard(BEFORE_TOOL, name="look")(look_at)

    record(tmp_path, commands("a", "b", "c"), hooks=[look(live)], instructions="Be brief.")
    report = backtest([look(seen)], tmp_path)
    for request, value in live.items():
        assert seen[request][:-1] == value[:-1]
        assert abs(seen[request][-1] - value[-1]) <= 1
    assert report.guesses == ()


def test_a_reply_comes_with_its_request(tmp_path):
    live, seen = [], []

    def look(into):
        def look_at(ctx, answer):
            request = answer.request
            into.append(
                (request.model, [m.content for m in request.messages], [t.name for t in request.tools], request.hop)
            )

        return hook(AFTER_LLM, name="look")(look_at)

    hint = hook(BEFORE_LLM, name="hint")(lambda ctx, request: request.replace(params={"seed": 1}))
    record(tmp_path, commands("a", "b"), hooks=[hint, look(live)])
    report = backtest([look(seen)], tmp_path)
    assert seen == live
    assert kinds(report) == {}


def test_async_hooks_are_judged_with_and_without_waiting(tmp_path):
    record(tmp_path, commands("sudo a"))

    async def quick(ctx, request):
        return HookResult.block("quick")

    async def waits(ctx, request):
        await asyncio.sleep(0.001)
        return HookResult.block("waits")

    def returns_awaitable(ctx, request):
        return waits(ctx, request)

    for function in (quick, waits, returns_awaitable):
        report = backtest([guard(BEFORE_TOOL, tools="shell", name="rule")(function)], tmp_path)
        assert kinds(report) == {"newly_blocked": (1, 0, 0)}, function


def test_inside_an_event_loop_async_hooks_that_wait_need_a_thread(tmp_path):
    record(tmp_path, commands("a"))

    @guard(BEFORE_TOOL)
    async def waits(ctx, request):
        await asyncio.sleep(0)

    async def main():
        with pytest.raises(BacktestError, match="to_thread"):
            backtest([waits], tmp_path)
        return await asyncio.to_thread(backtest, [waits], tmp_path)

    assert asyncio.run(main()).judged == 1


def test_observers_are_called_with_the_verdict(tmp_path):
    record(tmp_path, commands("sudo a", "b"))
    seen = []

    @observer(BEFORE_TOOL)
    def watch(ctx, request, verdict):
        seen.append((str(verdict.action), verdict.hook))

    report = backtest([no_sudo, watch], tmp_path)
    assert seen == [("block", "no_sudo"), ("cont", "")]
    assert kinds(report) == {"newly_blocked": (1, 0, 0)}


# Filters.


@pytest.mark.parametrize(
    ("where", "judged"),
    [
        (["tool=shell"], 3),
        (["tool=add"], 1),
        (["tool!=shell"], 1),
        (["tool=s*"], 3),
        (["point=after_tool"], 0),
        (["agent=bob"], 4),
        (["agent=ann"], 0),
        (["task~INVOICE"], 2),
        (["task~invoice and tool=shell"], 2),
        (["status=completed"], 4),
        (["status=failed"], 0),
        (["model=scripted"], 4),
    ],
)
def test_where_selects_moments(tmp_path, where, judged):
    record(tmp_path, commands("a", "b"), task="Send the invoice.")
    record(tmp_path, [*commands("a"), call("add", a=1)], task="Other.")
    seen = []
    report = backtest([guard(BEFORE_TOOL, name="watch")(lambda c, r: seen.append(r.name))], tmp_path, where=where)
    assert report.judged == judged
    assert sum(cell.count.total for cell in report.cells) == judged
    assert len(seen) == judged or "status" in where[0]  # the status is known only at the end of a run


def test_since_leaves_out_earlier_runs(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    writer.run("old", "a")
    writer.add("run", 0, fmt.RunInfo(time=2e9))
    writer.add("before_tool", "shell", 0, 0, 0.0, 0.0, {"id": "1", "name": "shell", "arguments": {"command": "b"}})
    report = backtest([no_sudo], writer.write(), since=1.5e9)
    assert (report.runs, report.moments, report.judged) == (1, 1, 1)
    assert report.total("same").exact == 1


@pytest.mark.parametrize("where", ["tool", "tol=shell", "point=nowhere", ""])
def test_an_invalid_filter_is_an_error(tmp_path, where):
    record(tmp_path, commands("a"))
    with pytest.raises(Exception, match=r"where|unknown point"):
        backtest([no_sudo], tmp_path, where=[where])


# Labels.


def test_approvals_of_people_are_labels(tmp_path):
    def approver(ctx, asked):
        command = asked.call.arguments["command"]
        return HookResult.deny("No.", by="ann") if "bad" in command else HookResult.approve(by="ann")

    ask = rule(lambda c: HookResult.ask("May I?"), name="ask")
    record(tmp_path, commands("bad 1", "bad 2", "good 1", "good 2"), hooks=[ask, hook(APPROVAL_REQUESTED)(approver)])
    report = backtest(
        [rule(lambda c: HookResult.block("No.") if c in ("bad 1", "good 1") else None, name="ask")], tmp_path
    )
    then, now = report.labels_then, report.labels
    assert (then.bad_stopped.total, then.good_stopped.total) == (2, 2)
    assert (now.bad_stopped.total, now.bad_passed.total, now.good_stopped.total, now.good_passed.total) == (1, 1, 1, 1)
    assert (now.precision, now.recall) == (0.5, 0.5)
    assert now.bad_stopped.exact == 1
    assert now.good_passed.conditional == 1


def test_labels_that_people_gave_afterwards_count(tmp_path):
    from hookline.records.labels import GivenLabel, add_label

    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", "sudo x", "ls", "ls 2")
    writer.write()
    add_label(tmp_path, GivenLabel("bad", call_id="r1_0", run_id="r1"))
    add_label(tmp_path, GivenLabel("good", run_id="r1", n=1))
    with (tmp_path / "labels.jsonl").open("a") as file:
        file.write("no label\n")
    report = backtest([no_sudo], tmp_path)
    assert (report.labels.bad_stopped.exact, report.labels.good_passed.total) == (1, 1)
    assert (report.labels.precision, report.labels.recall) == (1.0, 1.0)
    assert [(each.reason, each.first) for each in report.skipped] == [("the line is not a label", 3)]


def test_labels_of_calls_that_no_rule_judges_have_the_recorded_decision(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    block = ([["old", "guard", "block", "", "No."]], ["block", "old", ""])
    writer.run("r1", "sudo x", decisions={"sudo x": block})
    writer.lines.insert(-1, b'["label","shell",0,0,{"label":"bad","call_id":"r1_0"}]')
    report = backtest([guard(BEFORE_TOOL, tools="other", name="other")(lambda c, r: None)], writer.write())
    assert (report.labels.bad_stopped.exact, report.judged) == (1, 0)


# Records that are not exact.


@pytest.mark.parametrize("inexact", ["redacted", "cut", "partial"])
def test_a_decision_about_an_inexact_payload_is_a_guess(tmp_path, inexact):
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", "sudo x", decisions={"sudo x": (None, None, {"inexact": inexact})})
    report = backtest([no_sudo], writer.write())
    assert kinds(report) == {"newly_blocked": (0, 0, 1)}
    assert report.guesses[0].hook == "no_sudo"


def test_hooks_without_a_line_of_their_own_still_keep_their_decisions(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", "sudo x", decisions={"sudo x": ([["old", "guard", "block", "", "No."]], ["block", "old", ""])})
    assert kinds(backtest([no_sudo], writer.write())) == {}


def test_options_are_checked(tmp_path):
    record(tmp_path, commands("a"))
    for options, message in [
        ({"workers": -1}, "workers"),
        ({"time_limit": 0}, "time_limit"),
        ({"allow": ["everything"]}, "allow"),
        ({"allow": ["model"]}, "model="),
    ]:
        with pytest.raises(BacktestError, match=message):
            backtest([no_sudo], tmp_path, **options)
    with pytest.raises(BacktestError, match="no rules"):
        backtest([], tmp_path)
    with pytest.raises(BacktestError, match="no record"):
        backtest([no_sudo], [tmp_path / "empty"] if (tmp_path / "empty").mkdir() is None else [])


def test_the_answer_is_a_guess_if_the_record_does_not_list_the_hooks_that_come_next(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    decided = [fmt.Decision("no_sudo", "guard", "block", "", "no")], fmt.RecordedVerdict("block", "no_sudo")
    writer.run("r1", "sudo x", hooks="lost", decisions={"sudo x": decided})
    report = backtest([rule(lambda command: None)], writer.write())
    assert kinds(report) == {"no_longer_blocked": (0, 0, 1)}
    assert [(each.hook, each.read) for each in report.guesses] == [
        ("no_sudo", "the hooks after it, which are missing in the record")
    ]


def test_a_recorded_guard_that_would_see_another_payload_makes_the_answer_a_guess(tmp_path):
    record(tmp_path, commands("sudo x"), hooks=[no_sudo])

    @hook(BEFORE_TOOL, tools="shell")
    def soften(ctx, request):
        return request.replace(arguments={"command": "ls"})

    report = backtest([soften], tmp_path)
    assert report.certainty.guess == 1
    assert [(each.hook, each.read) for each in report.guesses] == [
        ("no_sudo", "nothing: its decision then was about another payload")
    ]


def test_a_recorded_guard_that_sees_the_same_payload_keeps_the_answer_exact(tmp_path):
    same = hook(BEFORE_TOOL, tools="shell")(lambda ctx, request: request.replace(arguments=dict(request.arguments)))
    record(tmp_path, [call("add", a="1"), *commands("sudo x")], hooks=[no_sudo])
    assert backtest([same], tmp_path).certainty.guess == 0


@pytest.mark.parametrize(
    "decision",
    [["h", "no phase", "block", "", "no"], ["h", "guard", "no verb"], ["h", "rewrite", "replace", "", None, {"x": 1}]],
)
def test_a_damaged_decision_is_skipped_or_fails_alone(tmp_path, decision):
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", "ls", "sudo x", decisions={"ls": ([decision], ["block", "h"])})
    report = backtest([no_sudo], writer.write())
    assert report.total("newly_blocked").total == 1
    assert report.skipped or report.failures


def test_a_damaged_change_of_a_request_is_skipped(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1")
    damaged = [["h", "rewrite", "replace", "", None, {"messages": {"kept": "x"}}]]
    writer.lines.insert(2, b"")
    writer.add("before_llm", "", 0, 0, 0.1, 0.1, {"messages": [], "model": "m"}, damaged, ["replace", "h"])
    report = backtest([hook(BEFORE_LLM)(lambda ctx, request: None)], writer.write())
    assert [each.reason for each in report.skipped] == ["the line has a recorded decision that is damaged"]


@pytest.mark.parametrize("name", ["go", "deploy", "deployed"])
def test_a_point_of_a_program_can_be_tested_whatever_the_length_of_its_name(tmp_path, monkeypatch, name):
    for table in ("TABLE", "NAMES"):
        monkeypatch.setattr(points_module, table, dict(getattr(points_module, table)))
    Point(name, ToolCallRequest, verbs=("block",), tool=True)
    file = Writer(tmp_path / "a.moments")
    file.add("run", 0, fmt.RunInfo(Ids("r1", agent="bob"), 1e9, "task"))
    for n, tool in enumerate(["xz", "xy", "xy", "z"]):
        file.add(name, tool, 0, n, 0.1 * n, 0.0, {"id": f"c{n}", "name": tool})
    file.write()
    report = backtest([hook(name, tools="xy", name="rule")(lambda ctx, request: HookResult.block("No."))], tmp_path)
    assert (report.moments, report.judged, kinds(report)) == (4, 2, {"newly_blocked": (1, 1, 0)})
