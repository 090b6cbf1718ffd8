"""Sessions: conversations across runs."""

import threading

import pytest

from hookline import Agent, AgentContext, HookResult, Message, Session, call, hook, observer, reply
from hookline._base.frozen import History
from hookline._run.session import added_messages
from hookline.testing import ScriptedModel

HI, HELLO = Message("user", "hi"), Message("assistant", "hello")


def texts(messages):
    return [m.content for m in messages]


def test_a_session_starts_with_what_it_is_given():
    session = Session("s1", [HI], {"lang": ["it"]}, key="k", platform="web", personality_id="p")
    assert (session.id, list(session.messages), session.metadata) == ("s1", [HI], {"lang": ["it"]})
    assert (session.key, session.platform, session.personality_id) == ("k", "web", "p")


def test_its_metadata_is_a_frozen_copy():
    data = {"a": [1]}
    session = Session(metadata=data)
    data["a"].append(2)
    assert session.metadata == {"a": [1]}
    with pytest.raises(TypeError):
        session.metadata["b"] = 1


def test_first_run_is_true_once_even_with_many_threads():
    session = Session()
    reported = []
    threads = [threading.Thread(target=lambda: reported.append(session.first_run())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reported) == [False] * 19 + [True]


def test_a_session_with_messages_has_had_its_first_run():
    assert not Session(messages=[HI]).first_run()


def test_a_run_saves_its_transcript():
    session = Session()
    base = session.messages
    grown = History([HI, HELLO])
    session.save(base, grown, [HI, HELLO], {"a": 1})
    assert session.messages is grown
    assert session.metadata == {"a": 1}


def test_if_another_run_saved_in_the_meantime_only_the_new_messages_are_added():
    session = Session(messages=[HI])
    base = session.messages
    one, two = Message("user", "one"), Message("user", "two")
    session.save(base, History([*base, one]), [one], {})
    session.save(base, History([*base, two]), [two], {})
    assert texts(session.messages) == ["hi", "one", "two"]


async def test_runs_on_one_session_share_a_transcript(scripted_agent):
    agent = scripted_agent(["one", "two"])
    session = Session()
    await agent.arun("first", session=session)
    assert session.id
    await agent.arun("second", session=session)
    assert texts(session.messages) == ["first", "one", "second", "two"]
    assert texts(agent.model.requests[1].messages) == ["first", "one", "second"]


async def test_runs_without_a_session_share_nothing(scripted_agent):
    agent = scripted_agent(["one", "two"])
    await agent.arun("first")
    await agent.arun("second")
    assert texts(agent.model.requests[1].messages) == ["second"]


async def test_a_contexts_session_is_used_unless_another_is_given(scripted_agent):
    agent = scripted_agent(["one", "two"])
    ctx = AgentContext(session=Session("mine"))
    other = Session("other")
    await agent.arun("first", ctx=ctx)
    await agent.arun("second", ctx=ctx, session=other)
    assert texts(ctx.session.messages) == ["first", "one"]
    assert texts(other.messages) == ["second", "two"]


async def test_session_start_fires_for_the_first_run_only(scripted_agent):
    seen = []

    @observer("session_start")
    def began(ctx, start):
        seen.append((start.session_id, start.session_key, start.platform, start.personality_id))

    agent = scripted_agent(["one", "two", "three"], hooks=[began])
    session = Session("s", key="k", platform="web", personality_id="p")
    await agent.arun("first", session=session)
    await agent.arun("second", session=session)
    await agent.arun("third", session=Session("old", [HI]))
    assert seen == [("s", "k", "web", "p")]


async def test_metadata_is_carried_from_run_to_run(scripted_agent):
    seen = []

    @observer("on_run_start")
    def note(ctx, start):
        seen.append(dict(ctx.state.metadata))

    agent = scripted_agent(["one", "two"], hooks=[note])
    session = Session(metadata={"lang": "it"})
    await agent.arun("first", session=session, metadata={"n": 1})
    await agent.arun("second", session=session)
    assert seen == [{"lang": "it", "n": 1}, {"lang": "it", "n": 1}]


async def test_tool_calls_and_results_are_part_of_the_transcript(scripted_agent):
    def ping() -> str:
        return "pong"

    session = Session()
    await scripted_agent([call("ping"), "done"], tools=[ping]).arun("go", session=session)
    assert [m.role for m in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert session.messages[1].tool_calls[0].id == session.messages[2].call_id


async def test_concurrent_runs_on_one_session_both_end_up_in_it():
    import asyncio

    from hookline import Agent

    agent = Agent("a", llm=ScriptedModel([lambda r: f"re {r.messages[-1].content}"] * 2, delay=0.01))
    session = Session("s")
    await asyncio.gather(agent.arun("x", session=session), agent.arun("y", session=session))
    said = texts(session.messages)
    assert sorted(said) == ["re x", "re y", "x", "y"]
    assert said[said.index("x") + 1] == "re x"
    assert said[said.index("y") + 1] == "re y"


def test_observers_at_the_end_find_changes_of_other_hooks_in_the_session():
    seen = []

    @hook("on_run_end")
    def sign(ctx, result):
        return HookResult.cont(state=ctx.state.with_messages(Message("user", "signed")).with_metadata(n=1))

    @observer("on_run_end")
    def look(ctx, result):
        seen.append(([message.content for message in ctx.session.messages], dict(ctx.session.metadata)))

    session = Session("s")
    result = Agent("a", llm=ScriptedModel([reply("ok")]), hooks=[look, sign]).run("go", session=session)
    assert seen == [(["go", "ok", "signed"], {"n": 1})]
    assert list(session.messages) == list(result.messages)


# For stores


def test_a_session_adopts_stored_messages_and_keeps_later_ones():
    session = Session("s", [HI])
    taken, _ = session.snapshot()
    session.adopt_stored("there", taken, taken)
    assert session.messages is taken
    other = Message("user", "from another program")
    session.adopt_stored("there", taken, (other, HI))
    assert texts(session.messages) == ["from another program", "hi"]
    taken, _ = session.snapshot()
    session.save(taken, History([*taken, HELLO]), [HELLO], {})
    session.adopt_stored("there", taken, (other, HI, Message("user", "late")))
    assert texts(session.messages) == ["from another program", "hi", "late", "hello"]
    assert texts(session._stored["there"][0]) == texts(session._stored["there"][1])


def test_a_renamed_session_is_a_copy_that_stores_recognise():
    session = Session("s", [HI], {"a": 1}, key="k", platform="web", personality_id="p", personality_changes={"id": "p"})
    copy = session.renamed("t")
    assert (copy.id, list(copy.messages), copy.metadata) == ("t", [HI], {"a": 1})
    assert (copy.key, copy.platform, copy.personality_id, copy.personality_changes) == ("k", "web", "p", {"id": "p"})
    assert copy.started
    copy.adopt_stored("there", (HI,), (HELLO, HI))
    assert session._stored["there"] == ((HI,), (HELLO, HI))
    assert list(session.messages) == list(copy.messages) == [HI]


def test_the_copy_of_a_started_session_is_started():
    session = Session("s")
    assert not session.renamed("t").started
    session.first_run()
    assert session.started
    assert session.renamed("t").started
    assert session.renamed("t").messages == ()


def test_added_messages_are_found_in_a_rewritten_transcript_with_repetitions():
    a, b = Message("user", "a"), Message("user", "b")
    assert list(added_messages([a, b], [a, b])) == []
    assert list(added_messages([a], [b, a])) == [b]
    assert list(added_messages([a], [a, a])) == [a]
    assert list(added_messages([a, a], [a, b])) == [b]
    assert list(added_messages([], [a, b])) == [a, b]


def test_the_repr_of_a_session_contains_id_and_size():
    assert repr(Session("s", [HI])) == "Session('s', 1 messages)"


def test_a_session_that_is_given_nothing_is_empty():
    session = Session()
    assert (session.id, session.key, session.platform, session.personality_id) == ("", "", "", "")
    assert (session.messages, session.metadata, session.personality_changes) == ((), {}, {})
