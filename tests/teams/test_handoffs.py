"""Handoffs: a tool call ends the run, and another member continues the conversation."""

import pytest

from hookline import (
    Agent,
    AgentContext,
    Attachment,
    HookResult,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.channels.protocol import Answerer
from hookline.hooks import AuditLogHook, InjectionGuard, PersistSessionHook, PlanModeHook
from hookline.plugins import Plugin
from hookline.stores import JsonSessionStore
from hookline.teams import Team


def script(*turns, **options):
    return ScriptedModel(list(turns), **options)


def pass_on(to="writer", message="Write it."):
    return call("handoff", to=to, message=message)


def pair(desk_turns, writer_turns=("a poem",), *, hooks=(), writer_hooks=(), **options):
    team = Team(**options)
    desk = Agent("desk", "sorts", llm=script(*desk_turns), tools=[team], hooks=hooks)
    writer = Agent("writer", "writes", llm=script(*writer_turns), tools=[team], hooks=writer_hooks)
    team.add(desk)
    team.add(writer)
    return team, desk, writer


def test_the_other_agent_continues_the_same_conversation():
    team, desk, writer = pair([pass_on()], ["a poem", "another"])
    session = Session("s")
    result = team.run("A poem, please.", session=session)
    assert (result.reply, result.status, result.ids.agent) == ("a poem", "completed", "writer")
    assert session.personality_id == "writer"
    said = [(m.role, m.content) for m in session.messages]
    assert said[0] == ("user", "A poem, please.")
    assert said[2] == ("tool", "writer takes over this conversation.")
    assert said[3] == ("user", "You take over this conversation from desk. Write it.")
    assert [m.content for m in writer.model.requests[0].messages][:1] == ["A poem, please."]
    assert team.run("One more.", session=session).reply == "another"
    assert len(desk.model.requests) == 1


async def test_attachments_of_the_task_are_in_the_conversation_once():
    team, _, writer = pair([pass_on()])
    photo = Attachment.of(b"\x89PNG\r\n\x1a\npixels")
    await team.arun("A poem about this.", attachments=[photo])
    assert [len(message.attachments) for message in writer.model.requests[0].messages] == [1, 0, 0, 0]


async def test_the_run_that_hands_over_completes_and_records_the_handoff():
    team, desk, _ = pair([pass_on()])
    session = Session()
    result = await desk.arun("x", session=session)
    assert (result.status, result.stop.kind, result.stop.message) == (
        "completed",
        "finish_reason",
        "writer takes over.",
    )
    assert team.follow_up(session, result) == "You take over this conversation from desk. Write it."
    assert team.follow_up(session, result) is None


async def test_a_channel_can_use_start_and_follow_up():
    team, _, _ = pair([pass_on()])
    answerer: Answerer = team
    session = Session()
    result = await answerer.start("x", session=session).result()
    task = team.follow_up(session, result)
    result = await answerer.start(task, session=session).result()
    assert (result.reply, team.follow_up(session, result)) == ("a poem", None)
    assert answerer.hooks is team.members["desk"].hooks


def blocked(desk, writer, team, **options):
    result = team.run("x", **options)
    assert (result.ids.agent, result.reply) == ("desk", "then I will")
    assert writer.model.requests == []


def test_a_guard_can_block_a_handoff():
    @guard("before_tool", tools="handoff")
    def stay(ctx, payload):
        return HookResult.block("stay here")

    team, desk, writer = pair([pass_on(), "then I will"], hooks=[stay])
    session = Session()
    blocked(desk, writer, team, session=session)
    assert session.personality_id == "desk"


def test_an_answer_by_a_hook_does_not_hand_over():
    @guard("before_tool", tools="handoff")
    def serve(ctx, payload):
        return HookResult.answer("nobody is there")

    team, desk, writer = pair([pass_on(), "then I will"], hooks=[serve])
    blocked(desk, writer, team)


def test_a_hook_that_turns_the_result_into_an_error_cancels_the_handoff():
    @hook("after_tool", tools="handoff")
    def withhold(ctx, payload):
        return payload.replace(result=None, error="no")

    team, desk, writer = pair([pass_on(), "then I will"], hooks=[withhold])
    blocked(desk, writer, team)


@pytest.mark.parametrize(("answer", "who"), [(True, "writer"), (False, "desk")])
def test_a_handoff_waits_for_approval(answer, who):
    team, _, _ = pair([pass_on(), "then I will"], hooks=[PlanModeHook(["handoff"], lambda request: answer)])
    assert team.run("x").ids.agent == who


def test_an_approver_can_change_the_target_of_a_handoff():
    team, _, _ = pair(
        [pass_on(message="bad")],
        hooks=[PlanModeHook(["handoff"], lambda r: HookResult.edit({"to": "judge", "message": "good"}))],
    )
    judge = Agent("judge", llm=script("guilty"))
    team.add(judge)
    assert team.run("x").reply == "guilty"
    assert judge.model.requests[0].messages[-1].content.endswith("desk. good")


def test_a_hook_can_continue_a_run_in_spite_of_a_handoff():
    @hook("on_stop")
    def wait(ctx, payload):
        return HookResult.keep_going("not yet") if payload.signals[0].kind == "finish_reason" else None

    team, desk, writer = pair([pass_on(), "then I will"], hooks=[wait])
    blocked(desk, writer, team)


def test_handoffs_back_and_forth_are_limited_per_turn():
    team, desk, writer = pair(
        [pass_on("writer"), pass_on("writer"), "enough", pass_on("writer"), "x"],
        [pass_on("desk"), "no"] * 2,
        max_handoffs=2,
    )
    session = Session()
    result = team.run("x", session=session)
    assert (result.reply, result.ids.agent) == ("enough", "desk")
    assert "too often" in desk.model.requests[-1].messages[-1].content
    assert team.run("y", session=session).status == "completed"
    assert [m.content for m in session.messages].count("writer takes over this conversation.") == 2


def test_only_one_handoff_of_a_batch_succeeds():
    team, desk, _ = pair([[pass_on("writer"), pass_on("judge")]])
    team.add(Agent("judge", llm=script("guilty")))
    session = Session()
    assert team.run("x", session=session).ids.agent == "writer"
    assert [m.is_error for m in session.messages if m.role == "tool"] == [False, True]
    assert "writer already takes over" in next(m.content for m in session.messages if m.is_error)


def test_a_failed_run_does_not_hand_over():
    @observer("after_step", on_failure="closed")
    def broken(ctx, step):
        raise ValueError("oh")

    team, desk, writer = pair([pass_on()], hooks=[broken])
    session = Session()
    with pytest.raises(Exception, match="broken"):
        team.run("x", session=session)
    assert session.personality_id == "desk"
    assert writer.model.requests == []


def test_a_hook_at_personality_switched_can_redirect_or_reject_a_handoff():
    seen = []

    @hook("personality_switched")
    def redirect(ctx, payload):
        seen.append((payload.from_, payload.to))
        return {"personality": "judge"}

    team, _, _ = pair([pass_on()], hooks=[redirect])
    team.add(Agent("judge", llm=script("guilty")))
    assert team.run("x").reply == "guilty"
    assert seen == [("desk", "writer")]

    @hook("personality_switched")
    def broken(ctx, payload):
        raise ValueError("oh")

    team, desk, writer = pair([pass_on(), "then I will"], hooks=[broken])
    blocked(desk, writer, team)
    assert "writer cannot take over" in desk.model.requests[-1].messages[-1].content


def test_without_the_hook_of_the_team_the_error_says_what_is_missing():
    team, _, _ = pair([])
    bare = Agent("bare", llm=script(pass_on(), "then I will"), tools=list(team.tools()))
    assert bare.run("x").reply == "then I will"
    assert "Agent(..., tools=[team])" in bare.model.requests[-1].messages[-1].content


def test_a_session_of_a_removed_member_continues_with_the_first(caplog):
    team, _, _ = pair(["hello"])
    assert team.run("x", session=Session(personality_id="ghost")).ids.agent == "desk"
    assert "no longer a member" in caplog.text


def test_the_first_member_can_be_chosen():
    team = Team([Agent(name, llm=script(name)) for name in "abc"], first="b")
    assert team.run("x").reply == "b"
    with pytest.raises(Exception, match="no members"):
        Team().run("x")


def test_the_session_of_a_given_context_is_used():
    team, _, _ = pair([pass_on()], ["a poem", "another"])
    ctx = AgentContext()
    assert [team.run("x", ctx=ctx).reply, team.run("y", ctx=ctx).reply] == ["a poem", "another"]
    assert ctx.session.personality_id == "writer"


def test_a_subagent_can_hand_its_task_over():
    team = Team(max_depth=1)
    chief = Agent("chief", llm=script(call("delegate", to="desk", task="a poem"), "done"), tools=[team])
    desk = Agent("desk", llm=script(pass_on()), tools=[team])
    writer = Agent("writer", llm=script("roses"))
    ended = []

    @observer("subagent_spawned", "subagent_ended")
    def see(point, ctx, payload):
        ended.append((str(point), payload.child.agent, payload.reply))

    for agent in (chief, desk, writer):
        team.add(agent)
    session = Session()
    result = team.run("x", session=session, hooks=[see])
    assert next(m.content for m in result.messages if m.role == "tool") == "roses"
    assert ended == [("subagent_spawned", "desk", ""), ("subagent_ended", "desk", "roses")]
    assert session.personality_id == "chief"


def test_the_member_that_took_over_is_saved_with_the_session(tmp_path):
    save = PersistSessionHook(JsonSessionStore(tmp_path))
    team, desk, _ = pair([pass_on()], hooks=[save])
    desk.run("x", session=Session("s"))
    assert JsonSessionStore(tmp_path).load("s").personality_id == "writer"


# The guards of the run that handed over.


@pytest.fixture
def canary(tmp_path):
    """A file, and a tool that deletes it."""
    file = tmp_path / "canary"
    file.write_text("alive")

    @tool
    def wipe() -> str:
        """Delete the file."""
        file.unlink()
        return "wiped"

    return file, wipe


@guard("before_tool", tools="wipe")
def no_wiping(ctx, request):
    """Block the tool."""
    return HookResult.block("No wiping.")


def relay(*members, **options):
    """A team of agents that were given as ``(name, turns, tools, hooks)``."""
    team = Team(**options)
    for name, turns, tools, hooks in members:
        team.add(Agent(name, name, llm=script(*turns), tools=[team, *tools], hooks=hooks))
    return team


def refusals(session):
    return [message.content for message in session.messages if message.name == "wipe"]


def test_the_guards_of_the_run_that_handed_over_judge_the_next_run_and_all_later_ones(canary):
    file, wipe = canary
    session = Session("s")
    team = relay(
        ("desk", [pass_on()], [], [no_wiping]), ("writer", [call("wipe"), "no", call("wipe"), "no"], [wipe], [])
    )
    team.run("x", session=session)
    team.run("and now?", session=session)
    assert refusals(session) == ["No wiping."] * 2
    assert file.exists()


def test_the_guards_of_all_agents_that_handed_over_apply(canary):
    file, wipe = canary

    @guard("before_tool", tools="look")
    def no_looking(ctx, request):
        return HookResult.block("No looking.")

    look = tool(name="look")(lambda: "seen")
    session = Session("s")
    team = relay(
        ("a", [pass_on("b")], [], [no_wiping]),
        ("b", [pass_on("c")], [], [no_looking]),
        ("c", [[call("wipe"), call("look")], "ok"], [wipe, look], []),
    )
    result = team.run("x", session=session)
    assert result.steps[0].outcomes == ("blocked", "blocked")
    assert session.handed_over_by == ("a", "b")


@pytest.mark.parametrize("store", [True, False])
def test_the_guards_apply_to_a_session_that_was_stored_and_loaded_by_another_process(canary, tmp_path, store):
    file, wipe = canary

    def team_of(*writer_turns):
        return relay(("desk", [pass_on()], [], [no_wiping]), ("writer", writer_turns, [wipe], []))

    session = Session("s")
    team_of("hello").run("x", session=session)
    if store:
        JsonSessionStore(tmp_path).save(session)
        session = JsonSessionStore(tmp_path).load("s")
    else:
        session = Session("s", session.messages, personality_id="writer", handed_over_by=session.handed_over_by)
    team_of(call("wipe"), "no").run("go on", session=session)
    assert refusals(session) == ["No wiping."]


def test_the_guards_follow_the_session_into_a_run_that_the_team_does_not_start(canary):
    file, wipe = canary
    session = Session("s")
    team = relay(("desk", [pass_on()], [], [no_wiping]), ("writer", ["hello", call("wipe"), "no"], [wipe], []))
    team.run("x", session=session)
    team.members["writer"].run("go on", session=session)
    assert refusals(session) == ["No wiping."]


def test_a_guard_given_to_the_run_or_the_context_that_handed_over_is_kept(canary):
    file, wipe = canary
    for options in ({"hooks": [no_wiping]}, {"ctx": AgentContext(hooks=[no_wiping], session=Session("s"))}):
        team = relay(("desk", [pass_on()], [], []), ("writer", [call("wipe"), "no"], [wipe], []))
        session = options["ctx"].session if "ctx" in options else Session("s")
        result = team.start("x", session=session, **options).wait()
        team.start(team.follow_up(session, result), session=session).wait()
        assert refusals(session) == ["No wiping."]


def test_a_plugins_guard_applies_though_the_next_agent_uses_no_plugins(canary):
    file, wipe = canary
    team = Team()
    team.add(Agent("desk", llm=script(pass_on()), tools=[team], plugins=[Plugin("strict", [no_wiping])]))
    team.add(Agent("writer", llm=script(*[call("wipe"), "ok"] * 2), tools=[team, wipe], allowed_plugins=[]))
    session = Session("s")
    team.run("x", session=session)
    assert refusals(session) == ["No wiping."]
    team.members["desk"].unplug("strict")
    team.run("again", session=session)
    assert refusals(session) == ["No wiping.", "wiped"]  # the plugin is gone


def test_hooks_that_do_not_guard_and_hooks_for_one_agent_are_not_kept(tmp_path):
    seen = []

    @observer("before_tool", name="watch")
    def watch(ctx, request):
        seen.append(("watch", ctx.agent_name))

    class Private:
        points = ("before_tool",)
        phase = "guard"
        inherit = False

        def __call__(self, point, ctx, request):
            seen.append(("private", ctx.agent_name))

    audit = AuditLogHook(tmp_path / "audit.jsonl", on_failure="closed")
    look = tool(name="look", effects=[])(lambda: "seen")
    team = relay(
        ("desk", [call("look"), pass_on()], [look], [watch, Private(), audit]),
        ("writer", [call("look"), "ok"], [look], []),
    )
    team.run("x")
    assert {who for _, who in seen} == {"desk"}
    assert '"writer"' in (tmp_path / "audit.jsonl").read_text()  # it fails closed, so it is kept


def test_a_guard_of_both_agents_is_called_once():
    seen = []

    @guard("before_tool", tools="look")
    def count(ctx, request):
        seen.append(ctx.agent_name)

    look = tool(name="look", effects=[])(lambda: "seen")
    team = relay(("desk", [pass_on()], [], [count]), ("writer", [call("look"), "ok"], [look], [count]))
    team.run("x")
    assert seen == ["writer"]


def test_a_subagent_that_takes_over_keeps_the_guards_of_the_subagent_before_it(canary):
    file, wipe = canary
    team = relay(
        ("chief", [call("delegate", to="desk", task="go"), "done"], [], []),
        ("desk", [pass_on()], [], [no_wiping]),
        ("writer", [call("wipe"), "no"], [wipe], []),
    )
    assert team.run("x").reply == "done"
    assert file.exists()


def test_untrusted_text_that_was_read_before_a_handoff_still_needs_approvals_after_it(canary):
    file, wipe = canary
    fetch = tool(name="fetch", effects=["network"], dangerous=False)(lambda: "Sunny.")
    session = Session("s")
    team = relay(
        ("desk", [call("fetch"), pass_on()], [fetch], [InjectionGuard()]),
        ("writer", [call("wipe"), "no"], [wipe], []),
    )
    assert team.run("x", session=session).steps[0].outcomes == ("blocked",)
    assert file.exists()


def test_many_handoffs_keep_one_source_of_guards_for_each_agent():
    team = relay(
        ("desk", [pass_on("writer")] * 20, [], [no_wiping]),
        ("writer", [pass_on("desk")] * 19 + ["ok"], [], []),
        max_handoffs=100,
    )
    session = Session("s")
    team.run("x", session=session)
    assert session.handed_over_by == ("desk", "writer")
    assert len(session._guards) == 2


def test_a_warning_says_that_the_guards_of_a_removed_agent_no_longer_apply(caplog):
    team = relay(("writer", ["hello"], [], []))
    team.run("x", session=Session("s", personality_id="writer", handed_over_by=["desk"]))
    assert "handed over by the agent 'desk', which no longer exists" in caplog.text
