"""The Ethos HookRegistry reference on subagents, tickets and skills, kept by the real ones."""

import json

import pytest

from hookline import Agent, HookResult, ScriptedModel, Session, call, hook, observer, reply, tool
from hookline.hooks import SkillEvolverHook
from hookline.plugins import Plugin
from hookline.stores import TicketBoard, ticket_tools
from hookline.teams import Roster, Team

SUBAGENTS = ("subagent_spawning", "subagent_spawned", "subagent_ended")


@tool
def look(what: str = "") -> str:
    """Look at something."""
    return f"seen {what}"


def note(seen, *points):
    return observer(*points)(lambda point, ctx, p: seen.append((str(point), p)))


def tool_texts(result):
    return [message.content for message in result.messages if message.role == "tool"]


# Subagents


@pytest.fixture
def crew(tmp_path):
    """Personalities of which the lead delegates to the others; each says who it is and what it was asked."""
    texts = {
        "lead": 'delegates = ["*"]\nplugins = ["watch"]',
        "critic": 'instructions = "critic"\ntools = []',
        "poet": 'instructions = "poet"\ntools = []',
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(text)

    def make(hooks=(), plugins=(), to="critic"):
        lead = iter([call("delegate", to=to, task="Judge it."), reply("over")])

        def say(request):
            system, *_, last = [message.content for message in request.messages]
            return f"{system} heard {last}" if system in texts else next(lead)

        plugins = [Plugin("watch"), *plugins] if not any(p.name == "watch" for p in plugins) else plugins
        base = Agent("base", "", "base", llm=ScriptedModel([say], loop=True), hooks=hooks, plugins=plugins)
        return Roster(base, tmp_path, first="lead")

    return make


async def test_a_subagent_is_announced_before_it_starts_after_it_started_and_when_it_ended(crew):
    seen, sessions = [], []

    @observer("session_start")
    def start(ctx, payload):
        sessions.append(payload)

    session = Session("chat-1")
    await crew([note(seen, *SUBAGENTS), start]).arun("go", session=session)
    assert [point for point, _ in seen] == list(SUBAGENTS)
    spawning, spawned, ended = (payload for _, payload in seen)
    assert (spawning.parent.session_id, spawning.prompt, spawning.personality_id) == ("chat-1", "Judge it.", "critic")
    assert spawning.child.session_id == ""
    own = [payload.session_id for payload in sessions]
    assert own == ["chat-1", spawned.child.session_id]
    assert spawned.parent == ended.parent == spawning.parent
    assert spawned.child == ended.child
    assert (ended.status, ended.reply) == ("completed", "critic heard Judge it.")
    assert sessions[1].personality_id == "critic"


async def test_handlers_can_rewrite_the_prompt_and_pick_a_different_personality(crew):
    seen = []
    first = hook("subagent_spawning")(lambda ctx, p: {"prompt": f"{p.prompt} Briefly."})
    second = hook("subagent_spawning")(lambda ctx, p: {"prompt": "lost", "personality": "poet"})
    result = await crew([first, second, note(seen, "subagent_spawned")]).arun("go")
    assert tool_texts(result) == ["poet heard Judge it. Briefly."]
    ((_, spawned),) = seen
    assert (spawned.prompt, spawned.personality_id) == ("Judge it. Briefly.", "poet")


@pytest.mark.parametrize("way", ["refused", "broken"])
async def test_handlers_can_refuse_and_one_that_breaks_refuses_too(crew, way):
    @hook("subagent_spawning", name="gate")
    def gate(ctx, payload):
        if way == "broken":
            raise RuntimeError("the list is gone")
        return {"error": "not today"}

    seen = []
    result = await crew([gate, note(seen, *SUBAGENTS[1:])]).arun("go")
    (text,) = tool_texts(result)
    assert ("not today" if way == "refused" else "the list is gone") in text
    assert (seen, result.status) == ([], "completed")


async def test_only_plugins_of_the_personality_that_delegates_take_part(crew):
    seen = []
    watch, other = (
        Plugin(name, hooks=[observer(*SUBAGENTS)(lambda ctx, p, *, name=name: seen.append(name))])
        for name in ("watch", "other")
    )
    await crew(plugins=[watch, other]).arun("go")
    assert seen == ["watch"] * 3


async def test_a_team_of_plain_agents_fires_the_same_points():
    seen = []
    team = Team()
    team.add(Agent("writer", llm=ScriptedModel([reply("a poem")])))
    chief = [call("delegate", to="writer", task="Write."), reply("over")]
    boss = Agent("boss", llm=ScriptedModel(chief), tools=[team], hooks=[note(seen, *SUBAGENTS)])
    assert tool_texts(await boss.arun("go")) == ["a poem"]
    assert [(point, payload.personality_id) for point, payload in seen] == [(point, "writer") for point in SUBAGENTS]


# Tickets

START = call("ticket_start", id="T-1")


def complete(summary="all done", id="T-1"):
    return call("ticket_complete", id=id, summary=summary)


@pytest.fixture
def board(tmp_path):
    made = TicketBoard(tmp_path / "board.db")
    made.create("Write it", by="person:ann", criteria=["tests pass"], tier="review")
    yield made
    made.close()


async def work(board, *turns, hooks=(), plugins=(), **options):
    agent = Agent(
        "ada", llm=ScriptedModel([*turns, reply("over")]), tools=ticket_tools(board), hooks=hooks, plugins=plugins
    )
    return tool_texts(await agent.arun("go", **options))


async def test_a_verifier_is_asked_before_a_ticket_is_done_with_summary_criteria_and_tier(board):
    seen = []

    @hook("before_ticket_complete")
    def verify(ctx, ticket):
        seen.append((ticket.ticket_id, ticket.summary, ticket.criteria, ticket.tier, board.get("T-1").column))

    await work(board, START, complete(), hooks=[verify])
    assert seen == [("T-1", "all done", ("tests pass",), "review", "verifying")]


async def test_a_rejected_ticket_needs_revision_and_then_the_revision_is_announced(board):
    for id in ("T-2", "T-3"):
        board.create(f"Older {id}", by="person:ann")
    seen = []

    @hook("before_ticket_complete")
    def verify(ctx, ticket):
        done = ticket.ticket_id != "T-1" or "proof" in ticket.summary
        return {"handled": not done, "reason": f"unmet: {'; '.join(ticket.criteria)}"}

    @observer("after_ticket_revision")
    def revised(ctx, ticket):
        seen.append((ticket, board.get("T-1").column))

    older = [step for id in ("T-2", "T-3") for step in (call("ticket_start", id=id), complete(id=id))]
    texts = await work(board, *older, START, complete(), complete("proof: 12 passed"), hooks=[verify, revised])
    assert texts[5].startswith("T-1 is NOT done. It was rejected: unmet: tests pass")
    ((ticket, column),) = seen
    assert column == "needs_revision"
    assert (ticket.ticket_id, ticket.summary, ticket.criteria) == ("T-1", "all done", ("tests pass",))
    assert (ticket.reason, ticket.assignee, ticket.tier) == ("unmet: tests pass", "ada", "review")
    assert ticket.success_ratio == pytest.approx(2 / 3)
    assert board.get("T-1").column == "review"


async def test_without_a_verifier_the_completion_proceeds(board):
    board.create("Simple", by="person:ann")
    seen = []
    texts = await work(
        board, call("ticket_start", id="T-2"), complete(id="T-2"), hooks=[note(seen, "after_ticket_revision")]
    )
    assert texts[-1] == "T-2 is done."
    assert (board.get("T-2").column, seen) == ("done", [])


@pytest.mark.parametrize(("allowed", "column"), [(None, "needs_revision"), (["qa"], "needs_revision"), ([], "review")])
async def test_a_verifier_of_a_plugin_counts_where_its_plugin_is_allowed(board, allowed, column):
    strict = Plugin("qa", hooks=[hook("before_ticket_complete")(lambda ctx, p: HookResult.claim(reason="no"))])
    await work(board, START, complete(), plugins=[strict], allowed_plugins=allowed)
    assert board.get("T-1").column == column


async def test_a_verifier_that_breaks_completes_nothing(board):
    # A deliberate difference: claims fail open there.
    seen = []

    @hook("before_ticket_complete")
    def verify(ctx, ticket):
        raise RuntimeError("the tests cannot be run")

    texts = await work(board, START, complete(), hooks=[verify, note(seen, "after_ticket_revision")])
    assert "T-1 is not done: the check failed" in texts[1]
    assert (board.get("T-1").column, seen) == ("running", [])


# Skills


async def test_the_skill_evolver_queues_what_agent_done_tells_and_proposes_a_skill(tmp_path):
    found = {
        "reusable": True, "name": "tidy-notes", "description": "Tidy a folder of notes up.",
        "when": "The user wants notes in order.", "steps": ["List the notes with look.", "Read each with look."],
    }  # fmt: skip
    evolver = SkillEvolverHook(tmp_path / "skills", delay=0)
    calls = [call("look", what=name) for name in "abc"]
    model = ScriptedModel([*calls, reply("done"), reply(json.dumps(found))])
    agent = Agent("helper", llm=model, tools=[look])
    agent.register_hook(evolver)
    assert [str(point) for point in evolver.points] == ["on_run_end"]
    result = await agent.arun("Tidy my notes")
    assert evolver.wait(30)
    (skill,) = evolver.store.list("proposed")
    assert (skill.name, skill.source_task, skill.source_run) == ("tidy-notes", "Tidy my notes", result.ids.run_id)
