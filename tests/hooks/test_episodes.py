"""EpisodeLoggerHook: tool calls as episodes of a memory."""

import sqlite3

import pytest

from hookline import AFTER_TOOL, AgentContext, HookResult, RegistrationError, Session, call, guard, hook, tool
from hookline.hooks import EpisodeLoggerHook
from hookline.stores import MemoryStore, sqlite
from hookline.testing import scripted_agent


@pytest.fixture
def memory():
    return MemoryStore()


@tool
def shout(text: str) -> str:
    """Shout."""
    if text == "no":
        raise ValueError("I will not")
    return text.upper()


def run(turns, memory, *hooks, **options):
    agent = scripted_agent([*turns, "ok"], tools=[shout], hooks=[EpisodeLoggerHook(memory, **options), *hooks])
    return agent.run("go", session=Session("talk"))


def test_each_call_is_one_episode_with_its_outcome(memory):
    @guard("before_tool", tools="shout")
    def judge(ctx, request):
        return {"block": HookResult.block("not allowed"), "cached": HookResult.answer("known")}.get(
            request.arguments["text"]
        )

    calls = [call("shout", text=text) for text in ("hi", "no", "block", "cached")]
    result = run([[*calls, call("nothing")]], memory, judge)
    found = memory.episodes()[::-1]
    assert [episode.outcome for episode in found] == ["ok", "error", "blocked", "answered", "error"]
    assert found[0].summary == 'shout({"text":"hi"}) → HI'
    assert found[0].data == {
        "tool": "shout",
        "arguments": {"text": "hi"},
        "text": "HI",
        "call_id": result.messages[1].tool_calls[0].id,
    }
    assert {(e.kind, e.run_id, e.session_id, e.agent) for e in found} == {("tool", result.ids.run_id, "talk", "test")}
    assert "I will not" in found[1].summary


def test_a_retried_call_is_one_episode(memory):
    @hook(AFTER_TOOL)
    def again(ctx, result):
        return HookResult.retry() if result.attempt == 1 else None

    run([call("shout", text="hi")], memory, again)
    assert len(memory.episodes()) == 1


def test_a_retry_that_is_not_honoured_loses_no_episode(memory):
    @hook(AFTER_TOOL)
    def always(ctx, result):
        return HookResult.retry()

    @guard("before_tool")
    def no(ctx, request):
        return HookResult.block("no") if request.arguments["text"] == "block" else None

    run([[call("shout", text="hi"), call("shout", text="block")]], memory, always, no)
    assert sorted(episode.outcome for episode in memory.episodes()) == ["blocked", "ok"]


def test_redacted_data_is_not_recorded(memory):
    @hook(AFTER_TOOL)
    def redact(ctx, result):
        return result.replace(result="***")

    run([call("shout", text="secret")], memory, redact)
    assert memory.episodes()[0].data["text"] == "***"


def test_long_arguments_and_results_are_shortened(memory):
    run([call("shout", text="x" * 1_000_000)], memory, max_chars=10)
    (episode,) = memory.episodes()
    assert episode.data["text"] == "X" * 10 + "…"
    assert episode.data["arguments"] == '{"text":"x…'
    assert len(episode.summary) < 50


def test_the_memory_of_the_context_is_used_if_none_is_given(memory):
    agent = scripted_agent([call("shout", text="a"), "ok"] * 2, tools=[shout], hooks=[EpisodeLoggerHook()])
    agent.run("go", ctx=AgentContext(memory=memory))
    agent.run("go")
    assert len(memory.episodes()) == 1


def test_a_memory_that_is_locked_is_reported_and_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    memory = MemoryStore(tmp_path / "m.db")
    memory.add_episode("x", "y")
    holder = sqlite3.connect(memory.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    result = run([call("shout", text="hi")], memory)
    holder.close()
    assert (result.status, result.messages[2].content) == ("completed", "HI")
    (error,) = result.errors
    assert (error.type, error.source) == ("LockedFileError", "EpisodeLoggerHook")
    assert "locked" in error.message


def test_wild_text_is_recorded(memory):
    run([call("shout", text="\ud800\0")], memory)
    assert len(memory.episodes()) == 1


def test_episodes_are_recorded_in_the_scope_that_is_given(memory):
    run([call("shout", text="a")], memory, scope="ann")
    assert [episode.scope for episode in memory.episodes()] == ["ann"]


@pytest.mark.parametrize(
    ("given", "options"),
    [(3, {}), (None, {"max_chars": 0}), (None, {"max_chars": True}), (None, {"scope": None}), (None, {"scope": 3})],
)
def test_invalid_arguments_are_rejected(given, options):
    with pytest.raises(RegistrationError):
        EpisodeLoggerHook(given, **options)
