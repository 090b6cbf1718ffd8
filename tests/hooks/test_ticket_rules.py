"""TicketRules: permissions for tickets, and approvals."""

import pytest

from hookline import APPROVAL_REQUESTED, Agent, HookResult, RegistrationError, ScriptedModel, call, hook, reply
from hookline._base.own_files import protection_of
from hookline.hooks import TicketRules
from hookline.stores import TicketBoard, ticket_tools
from hookline.testing import scripted_agent

START, COMPLETE = call("ticket_start", id="T-1"), call("ticket_complete", id="T-1", summary="did it")
CREATE, ASSIGN = call("ticket_create", title="x"), call("ticket_create", title="x", assignee="eve")


@pytest.fixture
def board(tmp_path):
    made = TicketBoard(tmp_path / "board.db")
    yield made
    made.close()


def run(board, *turns, hooks, name="bob", **options):
    agent = scripted_agent([*turns, reply("over")], name=name, tools=ticket_tools(board), hooks=hooks)
    result = agent.run("go", **options)
    assert result.status == "completed"
    results = [message.content for message in result.messages if message.role == "tool"]
    return [outcome for step in result.steps for outcome in step.outcomes], results


def approver(decision, asked):
    @hook(APPROVAL_REQUESTED)
    def approve(ctx, request):
        asked.extend(question.text for question in request.questions)
        return decision

    return approve


@pytest.mark.parametrize(
    ("may", "name", "role", "outcomes"),
    [
        ({}, "bob", None, ["ok", "ok"]),
        ({"create": ["lead"]}, "bob", None, ["blocked", "blocked"]),
        ({"create": "lead*"}, "lead-2", None, ["ok", "ok"]),
        ({"assign": ["lead"]}, "bob", None, ["ok", "blocked"]),
        ({"assign": ["lead"]}, "lead", None, ["ok", "ok"]),
        ({"create": ["role:admin"]}, "bob", "admin", ["ok", "ok"]),
        ({"create": ["role:a*"]}, "bob", ["user", "admin"], ["ok", "ok"]),
        ({"create": ["role:admin"]}, "bob", "user", ["blocked", "blocked"]),
        ({"create": ["role:admin"]}, "bob", [7, None], ["blocked", "blocked"]),
        ({"create": ["role:admin"]}, "role:admin", None, ["blocked", "blocked"]),
        ({"create": []}, "bob", "admin", ["blocked", "blocked"]),
    ],
)
def test_only_permitted_agents_create_and_assign(board, may, name, role, outcomes):
    found, results = run(
        board, CREATE, ASSIGN, hooks=[TicketRules(board, may)], name=name, metadata={"user_role": role}
    )
    assert found == outcomes
    assert board.count() == outcomes.count("ok")
    assert all(f"{name} may not" in text for text, outcome in zip(results, found, strict=True) if outcome == "blocked")


def test_starting_and_completing_have_their_own_rules(board):
    board.create("x", by="ann")
    rules = TicketRules(board, {"start": ["worker"], "complete": ["checker"]})
    assert run(board, START, hooks=[rules])[0] == ["blocked"]
    assert run(board, START, COMPLETE, hooks=[rules], name="worker")[0] == ["ok", "blocked"]
    outcomes, results = run(board, COMPLETE, hooks=[rules], name="checker")
    assert (outcomes, results) == (["blocked"], ["T-1 is worker's: only the assignee can complete it."])
    assert board.get("T-1").column == "running"


def test_the_tier_ask_needs_approval_to_start_and_to_complete(board):
    board.create("Deploy", by="ann", tier="ask")
    asked: list[str] = []
    rules = TicketRules(board)
    assert run(board, START, hooks=[rules])[0] == ["blocked"]  # there is no approver
    assert run(board, START, hooks=[rules, approver(HookResult.deny("no"), asked)])[0] == ["blocked"]
    assert board.get("T-1").column == "todo"
    outcomes, _ = run(board, START, COMPLETE, hooks=[rules, approver(HookResult.approve(), asked)])
    assert (outcomes, board.get("T-1").column) == (["ok", "ok"], "done")
    assert asked == [
        "May bob start T-1: Deploy?",
        "May bob start T-1: Deploy?",
        "May bob complete T-1: Deploy? (did it)",
    ]


def test_the_tier_ask_is_refused_without_rules(board, tmp_path):
    board.create("Deploy", by="ann", tier="ask")
    other = TicketRules(TicketBoard(tmp_path / "other.db"))
    for hooks in ([], [other]):
        outcomes, results = run(board, START, COMPLETE, hooks=hooks)
        assert outcomes == ["error", "error"]
        assert "T-1 needs approval, but no hook asks for it: add TicketRules(board)" in results[0]
    assert board.get("T-1").column == "todo"


def test_an_approver_may_edit_the_call_and_what_runs_is_judged_again(board):
    board.create("Deploy", by="ann", tier="ask")
    board.create("Test", by="ann", assignee="eve")
    edit = approver(HookResult.edit({"id": "T-2"}), [])
    outcomes, results = run(board, START, hooks=[TicketRules(board), edit])
    assert outcomes == ["error"]
    assert "T-2 is assigned to eve" in results[0]


def test_invalid_calls_are_reported_by_the_tool_and_other_tools_pass(board):
    calls = (call("ticket_start", id="T-9"), call("ticket_start", id=""), call("ticket_list"))
    outcomes, results = run(board, *calls, hooks=[TicketRules(board, {"start": ["*"]})])
    assert outcomes == ["error", "error", "ok"]
    assert "there is no ticket T-9" in results[0]
    assert TicketRules.tools == "ticket_*"


def test_a_board_that_cannot_be_read_fails_closed(board, tmp_path):
    (tmp_path / "bad.db").write_bytes(b"this is no database" * 100)
    board.create("x", by="ann")
    agent = scripted_agent([START], name="bob", tools=ticket_tools(board), hooks=[TicketRules(tmp_path / "bad.db")])
    with pytest.raises(Exception, match="is not a SQLite database"):
        agent.run("go")
    assert board.get("T-1").column == "todo"


def test_its_files_are_protected(board):
    rules = TicketRules(board.path)
    for path in (board.path, f"{board.path}-wal"):
        assert protection_of(path) is not None
    del rules


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((3,), "board must be a TicketBoard, or the path of its file"),
        (("",), "board must be a TicketBoard"),
        ((":memory:", ["create"]), "may must be a mapping"),
        ((":memory:", {"creat": ["x"]}), "Did you mean 'create'"),
        ((":memory:", {3: ["x"]}), "3 is not a ticket action"),
        ((":memory:", {"create": [3]}), r"may\['create'\] must be a list of names"),
        ((":memory:", {"create": None}), r"may\['create'\] must be a list of names"),
    ],
)
def test_invalid_arguments_are_rejected(args, problem):
    with pytest.raises(RegistrationError, match=problem):
        TicketRules(*args)


def test_the_key_must_be_a_name():
    with pytest.raises(RegistrationError, match="key must be a metadata key"):
        TicketRules(":memory:", key="")


def test_a_ticket_created_after_the_judgement_is_not_started_without_approval(board):
    asked = []
    tools = ticket_tools(board, tier="ask")
    agent = Agent(
        "bob",
        llm=ScriptedModel([[CREATE, START], START, "over"]),
        tools=tools,
        hooks=[TicketRules(board), approver(HookResult.deny("no"), asked)],
        max_parallel_tools=1,
    )
    results = [message.content for message in agent.run("go").messages if message.role == "tool"]
    assert board.get("T-1").column == "todo"
    assert "call again" in results[1]
    assert asked == ["May bob start T-1: x?"]
