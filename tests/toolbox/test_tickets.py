"""The ticket tools: their results, and completions under failures."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hookline import (
    ON_ERROR,
    Agent,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    hook,
    observer,
    reply,
    tool,
)
from hookline.payloads import Ticket
from hookline.points import AFTER_TICKET_REVISION, BEFORE_TICKET_COMPLETE
from hookline.stores import TicketBoard, TicketError, ticket_tools, tickets
from hookline.testing import inject_fault, scripted_agent

START, COMPLETE = call("ticket_start", id="T-1"), call("ticket_complete", id="T-1", summary="wrote it")


@pytest.fixture
def board(tmp_path):
    made = TicketBoard(tmp_path / "board.db")
    made.create("Write it", by="person:ann", criteria=["it is written"])
    yield made
    made.close()


def run(board, *turns, hooks=(), name="bob", tools=(), **options):
    """Run an agent and return the results of its calls."""
    agent = scripted_agent([*turns, reply("over")], name=name, tools=[*ticket_tools(board), *tools], hooks=hooks)
    result = agent.run("go", **options)
    assert result.status == "completed"
    return [message.content for message in result.messages if message.role == "tool"]


def what(board, id="T-1"):
    return [entry.what for entry in board.history(id)]


def rejecting(reason="no proof"):
    @hook(BEFORE_TICKET_COMPLETE)
    def strict(ctx, ticket):
        return HookResult.claim(reason=reason)

    return strict


# Results of the tools.


def test_an_agent_completes_a_ticket_without_a_verifier(board):
    shown, done = run(board, START, COMPLETE)
    assert shown.splitlines()[:3] == ["T-1 [running, bob] Write it", "Criteria:", "1. it is written"]
    assert shown.endswith("It is yours now. Complete it when everything is done.")
    assert done == "T-1 is done."
    ticket = board.get("T-1")
    assert (ticket.column, ticket.assignee, ticket.summary) == ("done", "bob", "wrote it")
    assert what(board) == ["created", "started", "completing", "accepted"]
    assert len({entry.run_id for entry in board.history("T-1")[1:]}) == 1


def test_agents_create_list_show_comment_and_release(board):
    make = call("ticket_create", title="Test it", criteria=["green"], description="all of it", assignee="eve")
    results = run(
        board,
        make,
        call("ticket_list"),
        call("ticket_list", mine=True),
        call("ticket_list", column="done"),
        call("ticket_list", search="test"),
        call("ticket_show", id="2"),
        START,
        call("ticket_comment", id="T-1", text="looks hard"),
        call("ticket_release", id="T-1", reason="too hard"),
        call("ticket_show", id="T-1"),
        call("ticket_list", column="todo"),
    )
    assert results[0] == "Created T-2 [todo, eve] Test it"
    assert results[1] == "T-1 [todo] Write it\nT-2 [todo, eve] Test it"
    assert results[2:4] == ["There are no open tickets of yours.", "There are no tickets in done."]
    assert results[4] == "T-2 [todo, eve] Test it"
    assert results[5] == "T-2 [todo, eve] Test it\nall of it\nCriteria:\n1. green"
    assert results[7:9] == ["Commented on T-1 [running, bob] Write it", "Released T-1 [todo] Write it"]
    assert results[9].endswith("History:\n- commented by bob: looks hard\n- released by bob: too hard")
    assert results[10].startswith("T-1 [todo] Write it")
    assert (board.get("T-2").created_by, board.get("T-2").tier) == ("bob", "auto")


def test_a_list_is_shown_page_by_page(board):
    for n in range(2, 46):
        board.create(f"job {n}", by="ann")
    first, third = run(board, call("ticket_list"), call("ticket_list", page=3))
    assert len(first.splitlines()) == 21
    assert first.endswith("(25 more: page=2)")
    assert third.splitlines()[-1] == "T-45 [todo] job 45"


@pytest.mark.parametrize("page", [0, -3])
def test_a_page_before_the_first_is_the_first(board, page):
    for number in range(44):
        board.create(f"More {number}", by="person:ann")
    first, odd = run(board, call("ticket_list"), call("ticket_list", page=page))
    assert odd == first


def test_the_end_of_a_long_history_is_shown(board):
    for n in range(30):
        board.comment("T-1", f"comment {n} " + "x" * 5000, by="ann")
    lines = run(board, call("ticket_show", id="T-1"))[0].splitlines()
    assert lines[3] == "History (the last 10 of 30):"
    assert (len(lines), lines[-1][:35]) == (14, "- commented by ann: comment 29 xxxx")
    assert max(map(len, lines)) < 600


def test_mistakes_are_errors_with_advice_and_change_nothing(board):
    board.create("x", by="ann", assignee="eve")
    results = run(
        board,
        COMPLETE,
        call("ticket_start", id="T-9"),
        call("ticket_start", id="x"),
        call("ticket_start", id="T-2"),
        call("ticket_complete", id="T-2", summary="done"),
        call("ticket_list", column="dune"),
        call("ticket_create", title=""),
    )
    for text, words in zip(
        results,
        (
            "T-1 is not started: start it first",
            "there is no ticket T-9",
            "ids look like T-1",
            "T-2 is assigned to eve",
            "T-2 is not started",
            "Invalid arguments",
            "the title is empty",
        ),
        strict=True,
    ):
        assert words in text
    assert results[1] == "there is no ticket T-9", "it may be shown to people: no path and no name of a class"
    assert (what(board), what(board, "T-2")) == (["created"], ["created"])


def test_the_actor_is_the_personality_if_there_is_one(board):
    run(board, START, session=Session("s", personality_id="critic"))
    assert board.get("T-1").assignee == "critic"


def test_tools_need_a_board_and_agents_cannot_choose_the_tier(board):
    with pytest.raises(RegistrationError, match=r'TicketBoard\("tickets.db"\)'):
        ticket_tools("tickets.db")
    with pytest.raises(RegistrationError, match="tier= must be one of auto, review, ask"):
        ticket_tools(board, tier="all")
    create = ticket_tools(board, tier="review")[0]
    assert "tier" not in create.spec.parameters["properties"]
    assert "ctx" not in create.spec.parameters["properties"]
    scripted_agent([call("ticket_create", title="y"), reply("x")], tools=ticket_tools(board, tier="review")).run("go")
    assert board.get("T-2").tier == "review"


# Rejection.


@pytest.mark.parametrize("claim", [HookResult.claim(reason="no proof"), {"handled": True, "reason": "no proof"}])
def test_a_claim_rejects_the_completion_and_fires_the_revision_point(board, claim):
    seen = []
    verdicts = [claim, None]

    @hook(BEFORE_TICKET_COMPLETE)
    def judge(ctx, ticket):
        seen.append(ticket)
        return verdicts.pop(0)

    @observer(AFTER_TICKET_REVISION)
    def revised(ctx, ticket):
        seen.append((ticket, board.get("T-1").column))

    results = run(board, START, COMPLETE, COMPLETE, hooks=[judge, revised])
    assert results[1].startswith("T-1 is NOT done. It was rejected: no proof\nDo what is missing, then call")
    assert results[2] == "T-1 is done."
    first = Ticket("T-1", "wrote it", ("it is written",), "auto", assignee="bob")
    assert seen == [first, (first.replace(reason="no proof", success_ratio=0.0), "needs_revision"), first]
    assert what(board) == ["created", "started", "completing", "rejected", "completing", "accepted"]
    assert board.history("T-1")[3].by == "hook:judge"


@pytest.mark.parametrize("reason", [None, "", "x" * 1_000_000, "\ud800\0"])
def test_a_rejection_stands_whatever_its_reason(board, reason):
    @hook(BEFORE_TICKET_COMPLETE, name="a long name " * 20)
    def judge(ctx, ticket):
        return {"handled": True, "reason": reason}

    results = run(board, START, COMPLETE, hooks=[judge])[1]
    assert results.startswith("T-1 is NOT done. It was rejected: " + ("" if reason else "no reason was given\n"))
    assert board.get("T-1").column == "needs_revision"


def test_a_ticket_of_the_tier_review_is_judged_and_then_waits_for_review(board):
    board.create("x", by="ann", tier="review")
    start, complete = call("ticket_start", id="T-2"), call("ticket_complete", id="T-2", summary="s")
    run(board, start, complete, hooks=[rejecting()])
    assert board.get("T-2").column == "needs_revision"
    results = run(board, complete, complete)
    assert results[0] == "T-2 is in review: you are finished."
    assert "T-2 is waiting for review" in results[1]
    assert board.get("T-2").column == "review"


def test_only_one_of_two_completions_in_a_batch_counts(board):
    results = run(board, START, [COMPLETE, COMPLETE])[1:]
    assert results.count("T-1 is done.") == 1
    assert what(board).count("accepted") == 1


def test_the_hooks_of_a_run_judge_completions_of_nested_runs(board):
    child = Agent("child", llm=ScriptedModel([START, COMPLETE, "ok"]), tools=ticket_tools(board))

    @tool
    async def delegate(ctx: AgentContext) -> str:
        """Delegate."""
        return (await child.arun("go", ctx=ctx)).reply

    run(board, call("delegate"), hooks=[rejecting()], tools=[delegate])
    assert (board.get("T-1").column, board.get("T-1").assignee) == ("needs_revision", "child")


# Failures during a completion.


@pytest.mark.parametrize("fault", ["raise", "hang", "nonsense"])
def test_a_judge_that_fails_closed_rejects_the_completion(board, fault):
    failures = []

    @hook(BEFORE_TICKET_COMPLETE, timeout=0.05)
    async def judge(ctx, ticket):
        """Judge."""

    @observer(ON_ERROR)
    def failed(ctx, failure):
        failures.append((failure.where, failure.fatal))

    turns = [START, COMPLETE, reply("over")]
    agent = scripted_agent(turns, name="bob", tools=ticket_tools(board), hooks=[judge, failed])
    with inject_fault(agent, "judge", fault) as calls:
        result = agent.run("go")
    assert (result.status, len(calls)) == ("completed", 1)
    results = [message.content for message in result.messages if message.role == "tool"][1]
    assert "T-1 is not done: the check failed, so the ticket is still running." in results
    assert board.get("T-1").column == "running"
    assert what(board) == ["created", "started", "completing", "not judged"]
    assert board.history("T-1")[-1].by == "hook:judge"
    assert board.success_ratio("bob") is None
    assert failures == [("hook", False), ("tool", False)]
    assert run(board, COMPLETE) == ["T-1 is done."]


def test_a_judge_that_may_fail_open_lets_the_completion_pass(board):
    @hook(BEFORE_TICKET_COMPLETE, on_failure="open")
    def judge(ctx, ticket):
        raise ValueError("broken")

    assert run(board, START, COMPLETE, hooks=[judge])[1] == "T-1 is done."


async def test_a_run_cancelled_during_the_check_releases_the_ticket(board):
    judging = asyncio.Event()

    @hook(BEFORE_TICKET_COMPLETE)
    async def slow(ctx, ticket):
        judging.set()
        await asyncio.Event().wait()

    agent = scripted_agent([START, COMPLETE], name="bob", tools=ticket_tools(board), hooks=[slow])
    started = agent.start("go")
    await judging.wait()
    assert board.get("T-1").column == "verifying"
    started.cancel("enough")
    assert (await started.result()).status == "cancelled"
    assert board.get("T-1").column == "running"
    assert (what(board)[-1], board.history("T-1")[-1].text) == ("not judged", "cancelled")


async def test_a_run_cancelled_while_it_takes_the_hold_leaves_no_hold(board, monkeypatch):
    holding, go_on, over = threading.Event(), threading.Event(), threading.Event()
    hold, get = board.hold, board.get

    def slowly(*args, **options):
        holding.set()
        go_on.wait(60)
        return hold(*args, **options)

    def watched(id):
        if go_on.is_set():
            over.set()  # the last step of the thread
        return get(id)

    agent = scripted_agent([COMPLETE], name="bob", tools=ticket_tools(board))
    board.start("T-1", by="bob")
    monkeypatch.setattr(board, "hold", slowly)
    monkeypatch.setattr(board, "get", watched)
    started = agent.start("go")
    await asyncio.to_thread(holding.wait, 60)
    started.cancel()
    assert (await started.result()).status == "cancelled"
    go_on.set()
    await asyncio.to_thread(over.wait, 60)
    assert get("T-1").column == "running"
    assert what(board) == ["created", "started", "completing", "not judged"]


def test_a_blocked_model_call_of_a_judge_releases_the_ticket(board):
    @hook(BEFORE_TICKET_COMPLETE)
    async def judge(ctx, ticket):
        await ctx.llm.complete("Is it so?", purpose="judge")

    agent = scripted_agent([START, COMPLETE, reply("over")], name="bob", tools=ticket_tools(board), hooks=[judge])
    result = agent.run("go", ctx=AgentContext(budget=Budget(Limits(tool_calls=2))))
    assert result.status == "stopped"
    assert board.get("T-1").column == "running"
    assert (what(board)[-1], board.history("T-1")[-1].by) == ("not judged", "bob")
    assert board.history("T-1")[-1].text not in ("", "cancelled")


def test_an_observer_of_revisions_that_fails_closed_fails_the_run_but_not_the_rejection(board):
    @observer(AFTER_TICKET_REVISION, on_failure="closed")
    def billing(ctx, ticket):
        raise ValueError("no ink")

    agent = scripted_agent([START, COMPLETE], name="bob", tools=ticket_tools(board), hooks=[rejecting(), billing])
    with pytest.raises(RunFailedError, match="no ink"):
        agent.run("go")
    assert board.get("T-1").column == "needs_revision"


def test_a_person_who_moves_the_ticket_during_the_check_wins(board):
    @hook(BEFORE_TICKET_COMPLETE)
    def judge(ctx, ticket):
        board.move("T-1", "cancelled", by="person:ann")

    results = run(board, START, COMPLETE, hooks=[judge])[1]
    assert "T-1 is cancelled now, so nothing was changed: moved by person:ann" in results
    assert board.get("T-1").column == "cancelled"


def test_a_board_that_cannot_be_written_is_an_error_and_not_a_done_ticket(board):
    board.start("T-1", by="bob")

    @hook(BEFORE_TICKET_COMPLETE)
    def spoil(ctx, ticket):
        with board._db.transaction(write=True) as db:
            db.execute("CREATE TRIGGER full BEFORE INSERT ON history BEGIN SELECT RAISE(ABORT, 'no room'); END")

    assert "no room" in run(board, COMPLETE, hooks=[spoil])[0]
    assert board.get("T-1").column == "verifying"  # the hold expires later


CRASH = """
import asyncio, sys
from hookline import Agent, ScriptedModel, call, hook
from hookline.points import BEFORE_TICKET_COMPLETE
from hookline.stores import TicketBoard, ticket_tools

@hook(BEFORE_TICKET_COMPLETE)
async def judge(ctx, ticket):
    print("judging", flush=True)
    await asyncio.sleep(600)

turns = [call("ticket_start", id="T-1"), call("ticket_complete", id="T-1", summary="s")]
Agent("bob", llm=ScriptedModel(turns), tools=ticket_tools(TicketBoard(sys.argv[1])), hooks=[judge]).run("go")
"""


def test_a_program_killed_during_the_check_loses_nothing(board, monkeypatch):
    env = {**os.environ, "PYTHONPATH": str(Path(tickets.__file__).parents[2])}
    process = subprocess.Popen([sys.executable, "-c", CRASH, board.path], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "judging\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert board.get("T-1").column == "verifying"
    with pytest.raises(TicketError, match="T-1 is being judged"):
        board.hold("T-1", "s", by="bob")
    with board._db.transaction(write=True) as db:
        db.execute("UPDATE tickets SET held_until = held_until - 601")
    assert board.get("T-1").column == "running"
    assert run(board, COMPLETE) == ["T-1 is done."]
    assert what(board) == ["created", "started", "completing", "not judged", "completing", "accepted"]
