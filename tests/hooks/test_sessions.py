"""PersistSessionHook: sessions are saved at the end of a run."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest

from hookline import (
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
from hookline.hooks import PersistSessionHook
from hookline.stores import JsonSessionStore, SqliteSessionStore
from hookline.testing import scripted_agent
from tests.waiting import wait_until


@pytest.fixture(params=["json", "sqlite"])
def store(request, tmp_path):
    return JsonSessionStore(tmp_path / "s") if request.param == "json" else SqliteSessionStore(tmp_path / "s.db")


@tool
def ping() -> str:
    """Ping."""
    return "pong"


def test_the_whole_conversation_is_saved_after_each_run(store):
    agent = scripted_agent([call("ping"), "one", "two"], tools=[ping], hooks=[PersistSessionHook(store)])
    session = Session("talk", [Message("user", "before"), Message("assistant", "yes")], key="k", platform="p")
    for task in ("first", "second"):
        agent.run(task, session=session, metadata={task: 1})
        back = store.load("talk")
        assert list(back.messages) == list(session.messages)
        assert (back.metadata, back.key, back.platform) == (session.metadata, "k", "p")
    assert len(back.messages) == 8


def test_it_is_saved_under_another_id_if_one_is_given(store):
    agent = scripted_agent(["one"], hooks=[PersistSessionHook(store, "mine")])
    session = Session("own", personality_id="clown")
    agent.run("go", session=session)
    assert store.load("own") is None
    back = store.load("mine")
    assert list(back.messages) == list(session.messages)
    assert (back.personality_id, back.first_run()) == ("clown", False)


def test_changes_of_other_hooks_at_the_end_are_saved(store):
    @hook("on_run_end")
    def sign(ctx, result):
        return HookResult.cont(state=ctx.state.with_messages(Message("user", "signed")).with_metadata(signed=True))

    agent = scripted_agent(["one"], hooks=[PersistSessionHook(store), sign])
    session = Session("talk")
    agent.run("go", session=session)
    back = store.load("talk")
    assert [message.content for message in back.messages] == ["go", "one", "signed"]
    assert list(back.messages) == list(session.messages)
    assert back.metadata == session.metadata == {"signed": True}


@pytest.mark.parametrize("how", ["fail", "end", "cancel"])
def test_it_is_saved_however_the_run_ended(store, how):
    @hook("before_llm")
    def leave(ctx, request):
        if how == "fail":
            raise RuntimeError("no")
        if how == "cancel":
            ctx.interrupt.cancel()
            return None
        return HookResult.end("bye")

    agent = scripted_agent(["one"], hooks=[PersistSessionHook(store), leave])
    session = Session("talk")
    with suppress(RunFailedError):
        agent.run("go", session=session)
    back = store.load("talk")
    assert back.messages[0].content == "go"
    assert list(back.messages) == list(session.messages)


async def test_concurrent_runs_of_one_session_lose_no_messages(store):
    agent = scripted_agent([], hooks=[PersistSessionHook(store), PersistSessionHook(store, "copy")])
    agent.model = ScriptedModel([reply("ok")], loop=True, delay=0.001)
    session = Session("talk")
    await asyncio.gather(*(agent.arun(str(n), session=session) for n in range(30)))
    for id in ("talk", "copy"):
        assert list(store.load(id).messages) == list(session.messages)
    assert len(session.messages) == 60


async def test_the_newest_conversation_is_saved_last_under_a_fixed_id():
    saved, saving = [], threading.Event()

    class Slow:
        def save(self, session):
            if len(session.messages) == 2:
                saving.set()
                time.sleep(0.1)
            saved.append(len(session.messages))

    agent = scripted_agent([], hooks=[PersistSessionHook(Slow(), "x")])
    session = Session("talk")
    agent.model = ScriptedModel([reply("ok")], loop=True)
    first = asyncio.create_task(agent.arun("1", session=session))
    await wait_until(saving.is_set)
    await agent.arun("2", session=session)
    await first
    assert saved == [2, 4]


def test_the_session_of_a_subagent_does_not_overwrite_the_conversation():
    saved = []

    class Store:
        def save(self, session):
            saved.append((session.id, [message.content for message in session.messages]))

    @tool
    async def delegate(ctx) -> str:
        """Delegate."""
        return (await scripted_agent(["inner"]).arun("sub", ctx=ctx)).reply

    hooks = [PersistSessionHook(Store(), "mine"), PersistSessionHook(Store())]
    agent = scripted_agent([call("delegate"), "outer"], tools=[delegate])
    agent.run("go", ctx=AgentContext(session=Session("talk"), hooks=hooks))
    whole = ["go", "", "inner", "outer"]
    assert saved == [("mine", whole), ("talk", whole)]


def test_an_empty_session_stays_started(store):
    leave = hook("on_run_start")(lambda ctx, start: HookResult.end("no"))
    scripted_agent([], hooks=[PersistSessionHook(store, "x"), leave]).run("go")
    assert store.load("x").messages == ()
    assert not store.load("x").first_run()


@pytest.mark.parametrize(("name", "kind"), [("s", JsonSessionStore), ("s.db", SqliteSessionStore)])
def test_a_path_is_accepted(tmp_path, name, kind):
    scripted_agent(["one"], hooks=[PersistSessionHook(tmp_path / name, "x")]).run("go")
    assert len(kind(tmp_path / name).load("x").messages) == 2


def test_a_session_that_cannot_be_saved_is_reported_and_the_result_stands(tmp_path):
    (tmp_path / "file").write_text("")
    agent = scripted_agent(["one"], hooks=[PersistSessionHook(tmp_path / "file", "x")])
    errors = []
    agent.register_hook(hook("on_error")(lambda ctx, failure: errors.extend(failure.errors)))
    result = agent.run("go")
    assert (result.status, result.reply) == ("completed", "one")
    assert [(error.type, error.source) for error in errors] == [("StoreError", "PersistSessionHook")]


def test_a_session_that_cannot_be_read_is_never_overwritten(tmp_path):
    store = JsonSessionStore(tmp_path)
    path = store._path("x")
    path.write_text("{")
    scripted_agent(["one"], hooks=[PersistSessionHook(store, "x")]).run("go")
    assert path.read_text() == "{"


@pytest.mark.parametrize("arguments", [(None,), (3,), (JsonSessionStore,), ("x", ""), ("x", 3)])
def test_invalid_arguments_are_rejected(arguments):
    with pytest.raises(RegistrationError):
        PersistSessionHook(*arguments)
