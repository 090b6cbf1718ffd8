"""MemoryInjectionHook: memories in the system message."""

import asyncio
import sqlite3

import pytest

from hookline import (
    BEFORE_LLM,
    AgentContext,
    HookResult,
    Message,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    hook,
    reply,
    tool,
)
from hookline.events import Failed
from hookline.hooks import MemoryInjectionHook
from hookline.stores import MemoryStore
from hookline.testing import EventLog, fire_hook, scripted_agent

HOME = "What you know:\n- home: Rome"


@pytest.fixture
def memory():
    store = MemoryStore()
    store.add_fact("home", "Rome")
    return store


@tool
def ping() -> str:
    """Ping."""
    return "pong"


def systems(agent):
    return [[m.content for m in request.messages if m.role == "system"] for request in agent.model.requests]


def test_memories_follow_the_instructions(memory):
    agent = scripted_agent(["ok"], instructions="Be brief.", hooks=[MemoryInjectionHook(memory)])
    result = agent.run("go")
    assert systems(agent) == [[f"Be brief.\n\n{HOME}"]]
    assert [message.role for message in result.messages] == ["user", "assistant"]  # only the request is changed


def test_without_a_system_message_one_is_added(memory):
    agent = scripted_agent(["ok"], hooks=[MemoryInjectionHook(memory)])
    agent.run("go", session=Session("s", [Message("user", "before"), Message("assistant", "yes")]))
    assert [m.role for m in agent.model.requests[0].messages] == ["system", "user", "assistant", "user"]
    assert systems(agent) == [[HOME]]


def test_without_memories_the_request_is_unchanged():
    agent = scripted_agent(["ok"], hooks=[MemoryInjectionHook(MemoryStore())])
    agent.run("go")
    assert systems(agent) == [[]]


def test_the_memory_of_the_context_is_used_if_none_is_given(memory):
    agent = scripted_agent(["ok", "ok"], hooks=[MemoryInjectionHook()])
    agent.run("go", ctx=AgentContext(memory=memory))
    agent.run("go")
    assert systems(agent) == [[HOME], []]


def test_every_model_call_of_a_run_gets_the_same_text(memory):
    tried = []

    @hook("after_llm")
    def once_more(ctx, reply):
        tried.append(reply.attempt)
        return HookResult.retry("again") if len(tried) == 2 else None

    turns = [call("remember", key="pet", value="cat"), "rejected", "ok", "later"]
    agent = scripted_agent(turns, tools=[memory], hooks=[MemoryInjectionHook(memory), once_more])
    assert agent.run("go").status == "completed"
    assert tried == [1, 1, 2]
    assert systems(agent) == [[HOME]] * 3
    agent.run("next")
    assert systems(agent)[3] == [f"{HOME}\n- pet: cat"]


def test_two_such_hooks_add_the_text_once(memory):
    agent = scripted_agent(["ok"], hooks=[MemoryInjectionHook(memory), MemoryInjectionHook(memory)])
    agent.run("go", hooks=[MemoryInjectionHook(memory)])
    assert systems(agent) == [[HOME]]


def test_model_calls_of_hooks_are_not_changed(memory):
    @hook("on_run_start")
    async def judge(ctx, start):
        await ctx.llm.complete("Is this fine?", purpose="judge")

    agent = scripted_agent(["yes", "ok"], hooks=[MemoryInjectionHook(memory), judge])
    agent.run("go")
    assert systems(agent) == [[], [HOME]]


def test_limits_and_scope_are_passed_on(memory):
    for n in range(5):
        memory.add_fact(f"k{n}", n, scope="mine")
        memory.add_episode("e", f"s{n}", scope="mine")
    memory.add_fact("k5", 5, scope="hers")
    memory.set_preference("tone", "rude", scope="hers")
    memory.add_episode("e", "s5", scope="hers")
    agent = scripted_agent(["ok"], hooks=[MemoryInjectionHook(memory, max_facts=2, max_episodes=1, scope="mine")])
    agent.run("go")
    assert [line for line in systems(agent)[0][0].splitlines() if line.startswith("-")] == [
        "- k3: 3",
        "- k4: 4",
        "- e (ok): s4",
    ]


async def test_concurrent_runs_of_one_agent_get_their_own_text():
    hooks = [MemoryInjectionHook()]
    model = ScriptedModel([lambda request: reply(request.messages[0].content)], loop=True, delay=0.001)
    agent = scripted_agent([], hooks=hooks)
    agent.model = model
    stores = [MemoryStore() for _ in range(20)]
    for n, store in enumerate(stores):
        store.add_fact("n", n)
    results = await asyncio.gather(*(agent.arun("go", ctx=AgentContext(memory=store)) for store in stores))
    assert [result.reply for result in results] == [f"What you know:\n- n: {n}" for n in range(20)]


def broken(tmp_path):
    path = tmp_path / "memory.db"
    path.write_text("a letter to my aunt " * 99)
    return path


def test_a_memory_that_cannot_be_read_is_reported_once_and_the_run_goes_on(tmp_path):
    log = EventLog()
    hooks = [MemoryInjectionHook(broken(tmp_path))]
    agent = scripted_agent([call("ping"), "ok"], tools=[ping], hooks=hooks, sinks=[log], instructions="Be brief.")
    result = agent.run("go")
    assert (result.status, result.reply) == ("completed", "ok")
    assert systems(agent) == [["Be brief."]] * 2
    (error,) = result.errors
    assert (error.type, error.source, error.fatal) == ("StoreError", "MemoryInjectionHook", False)
    assert "move it away" in error.message
    assert len(log.of(Failed)) == 1


def test_a_locked_memory_does_not_stop_reading(tmp_path):
    memory = MemoryStore(tmp_path / "m.db")
    memory.add_fact("home", "Rome")
    holder = sqlite3.connect(memory.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    agent = scripted_agent(["ok"], hooks=[MemoryInjectionHook(memory)])
    assert agent.run("go").errors == ()
    assert systems(agent) == [[HOME]]
    holder.close()


def test_it_can_be_made_to_fail_closed(tmp_path):
    agent = scripted_agent(["ok"])
    agent.register_hook(MemoryInjectionHook(broken(tmp_path)), on_failure="closed")
    with pytest.raises(RunFailedError, match="move it away"):
        agent.run("go")


def test_it_adds_context_before_the_rest_of_the_rewriters():
    assert (MemoryInjectionHook.priority, MemoryInjectionHook.phase, MemoryInjectionHook.on_failure) == (
        80,
        "rewrite",
        "open",
    )


def test_a_single_fire_with_an_empty_history_works(memory):
    verdict = fire_hook(MemoryInjectionHook(memory), BEFORE_LLM, messages=())
    assert [message.content for message in verdict.payload.messages] == [HOME]


def test_an_empty_system_message_is_filled(memory):
    verdict = fire_hook(MemoryInjectionHook(memory), BEFORE_LLM, messages=(Message("system"), Message("user", "x")))
    assert [message.content for message in verdict.payload.messages] == [HOME, "x"]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (3, {}),
        (MemoryStore, {}),
        (None, {"max_facts": -1}),
        (None, {"max_facts": True}),
        (None, {"max_facts": 1.5}),
        (None, {"max_episodes": "3"}),
        (None, {"max_episodes": float("nan")}),
        (None, {"scope": 3}),
    ],
)
def test_invalid_arguments_are_rejected(given, options):
    with pytest.raises(RegistrationError):
        MemoryInjectionHook(given, **options)
