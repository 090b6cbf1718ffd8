"""Questions of MCP servers to people, against real server processes of both protocol versions."""

import sys
from pathlib import Path

import pytest

from hookline import APPROVAL_REQUESTED, Agent, AgentContext, HookResult, ScriptedModel, call, hook, reply, tool
from hookline.errors import HooklineError
from hookline.hooks import ApprovalsHook, TapeHook
from hookline.stores import ApprovalPolicy, ApprovalStore, ApproverRights, CallPattern, DecisionRefusedError
from hookline.tape import areplay
from hookline.tools import mcp

from ..waiting import wait_until

SERVER = str(Path(__file__).with_name("asking_server.py"))


@pytest.fixture(scope="module", params=["modern", "legacy"])
def server(request):
    with mcp([sys.executable, SERVER, request.param], name="airline") as started:
        started.tools()
        yield started


class Person:
    """An approver that answers in order, and remembers what it was asked."""

    def __init__(self, *answers):
        self.asked, self._answers = [], list(answers)
        self.hook = hook(APPROVAL_REQUESTED)(self._decide)

    def _decide(self, ctx, request):
        self.asked.append(request)
        return self._answers.pop(0)


async def told(server, name, *hooks, **options):
    """What the model reads after it has called the tool."""
    model = ScriptedModel([call(name), reply("done")])
    await Agent("test", llm=model, tools=[server], hooks=list(hooks), **options).arun("go")
    return model.requests[1].messages[-1].content


async def test_a_person_fills_in_the_form_of_a_server_and_sees_which_server_asks(server):
    person = Person(HookResult.claim(edit={"seat": "1F", "meal": "fish"}, by="ann"))
    assert await told(server, "book", person.hook) == 'accept {"meal": "fish", "seat": "1F"}'
    (asked,) = person.asked
    assert (asked.call.name, asked.call.arguments) == ("book", {"seat": "12A", "meal": None})
    (question,) = asked.questions
    for words in ("The MCP server 'airline' asks: Which seat?", "seat (string, required): The seat", "fish, none"):
        assert words in question.text


async def test_a_denial_and_a_run_without_people_decline(server):
    assert await told(server, "book", Person(HookResult.deny("No.")).hook) == "decline null"
    assert await told(server, "book") == "decline null"
    assert await told(server, "sign") == "decline null"


async def test_values_that_do_not_fit_are_asked_for_again_and_nothing_is_filled_in(server):
    person = Person(HookResult.approve(), HookResult.claim(edit={"seat": 3, "meal": "fish"}), HookResult.approve())
    assert await told(server, "book", person.hook) == "decline null"
    assert len(person.asked) == 3
    assert "The last answer was not accepted: 'meal' is a required property." in person.asked[1].questions[0].text
    assert await told(server, "book", approve=lambda ctx, request: True) == "decline null"


async def test_an_address_is_shown_and_only_a_person_opens_it(server):
    person = Person(HookResult.approve(by="ann"))
    assert await told(server, "sign", person.hook) == "accept null"
    (asked,) = person.asked
    assert asked.call.arguments == {"url": "https://sign.example.com/1"}
    assert "'airline' asks you to open https://sign.example.com/1 in a browser yourself" in asked.questions[0].text


async def test_a_question_waits_in_the_approval_store_and_a_remembered_answer_covers_no_other(server, tmp_path):
    store = ApprovalStore(tmp_path / "approvals.db")
    for _ in range(2):
        model = ScriptedModel([call("sign"), reply("done")])
        run = Agent("test", llm=model, tools=[server], hooks=[ApprovalsHook(store)]).start("go")
        await wait_until(lambda: store.rows(status="pending"))
        (row,) = store.rows(status="pending")
        store.decide(row.id, decision="approve", digest=row.digest, by="ann", remember="always")
        await run.result()
        assert model.requests[1].messages[-1].content == "accept null"
    assert len(store.rows(status="approved")) == 2


async def test_a_question_is_answered_by_people_who_may_approve_calls_of_its_tool(server, tmp_path):
    people = {"ann": ApproverRights(can_approve=(CallPattern(tool="sign"),))}
    store = ApprovalStore(tmp_path / "approvals.db", policy=ApprovalPolicy(people=people))
    for asked_by, status in (("ben", "pending"), ("ann", "denied")):  # nobody else may approve what ann asks for
        model = ScriptedModel([call("sign"), reply("done")])
        hooks = [ApprovalsHook(store, asked_by=asked_by)]
        run = Agent("test", llm=model, tools=[server], hooks=hooks).start("go")
        await wait_until(lambda status=status: store.rows(status=status))
        (row,) = store.rows(status=status)
        if status == "pending":
            for by in ("ben", "carl"):
                with pytest.raises(DecisionRefusedError):
                    store.decide(row.id, decision="approve", digest=row.digest, by=by)
            store.decide(row.id, decision="approve", digest=row.digest, by="ann")
        await run.result()
        assert model.requests[1].messages[-1].content == ("accept null" if status == "pending" else "decline null")


async def test_a_question_to_an_unknown_run_is_declined(server):
    assert await server.call("book", {}) == "decline null"


async def test_a_result_without_its_type_counts_as_complete():
    with mcp([sys.executable, SERVER, "modern", "bare"], name="airline") as server:
        person = Person(HookResult.approve())
        assert await told(server, "sign", person.hook) == "accept null"


async def test_a_tape_with_a_question_replays_without_differences(server, tmp_path):
    person = Person(HookResult.claim(edit={"seat": "1F", "meal": "fish"}, by="ann"))
    path = tmp_path / "a.tape"
    await told(server, "book", person.hook, TapeHook(path))
    agent = Agent("test", llm=ScriptedModel([]), tools=[server], hooks=[Person().hook])
    replayed = await areplay(path, agent)
    assert (replayed.same, replayed.first_difference) == (True, "")


async def test_any_tool_can_ask_and_only_with_the_context_of_its_call():
    @tool
    async def book(seat: str, ctx) -> str:
        """Book a seat."""
        answer = await ctx.ask("It costs 12 EUR more. Book it?", {"seat": seat})
        return "booked" if answer.approve else f"not booked: {answer.deny}"

    person = Person(HookResult.approve())
    model = ScriptedModel([call("book", seat="1F"), reply("done")])
    events = []
    run = Agent("test", llm=model, tools=[book], hooks=[person.hook]).start("go")
    async for event in run.events():
        events.append(event)
    assert model.requests[1].messages[-1].content == "booked"
    kinds = [event.__struct_config__.tag for event in events]
    assert kinds.index("tool_started") < kinds.index("approval_asked") < kinds.index("approval_decided")
    with pytest.raises(HooklineError, match="only with the context of a tool call"):
        await AgentContext().ask("May I?")


@pytest.mark.parametrize("version", ["modern", "legacy"])
async def test_a_server_that_keeps_asking_ends_its_call_and_people_are_asked_no_more_than_twenty_times(version):
    asked = []

    def decline(ctx, request):
        asked.append(request)
        return HookResult.deny("No.")

    with mcp([sys.executable, SERVER, version], name="airline") as server:
        text = await told(server, "flood", hook(APPROVAL_REQUESTED)(decline))
    assert "the MCP server 'airline' asked more than 20 questions in this call, which ended it" in text
    assert 0 < len(asked) <= 20


@pytest.mark.parametrize("name", ["script", "other"])
async def test_an_address_that_is_no_plain_page_of_the_web_is_declined_and_nobody_is_asked(server, name):
    person = Person(HookResult.approve())
    assert await told(server, name, person.hook) == "decline null"
    assert not person.asked


async def test_an_error_that_wants_addresses_to_be_opened_names_only_those_of_the_web():
    with mcp([sys.executable, SERVER, "legacy"], name="airline") as server:
        text = await told(server, "open")
    assert text.endswith("Sign in. Open first: https://sign.example.com/1")


async def test_invisible_and_endless_text_in_a_question_is_written_out_and_cut(server):
    person = Person(HookResult.deny("No."))
    assert await told(server, "fake", person.hook) == "decline null"
    ((question,),) = [request.questions for request in person.asked]
    assert question.text.isprintable()
    assert r"Seat?\x1b[2J\u202egnp" in question.text
    assert len(question.text) < 2000
