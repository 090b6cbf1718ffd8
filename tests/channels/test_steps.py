"""Tool calls and replies in progress, as channels show them to people."""

import asyncio

import pytest

from hookline import (
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_END,
    Agent,
    HookResult,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.channels.gateway import Gateway
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.protocol import Step, StepVerdict
from hookline.channels.steps import MAX_STEPS, StepCollector
from hookline.events import ApprovalAsked, ApprovalDecided, HookExecuted, ToolEnded, ToolProgressed, ToolStarted
from hookline.stores import SqliteSessionStore
from hookline.stores.mailbox import Mailbox


def steps_of(*events):
    collector = StepCollector()
    for event in events:
        collector.take(event)
    return collector.steps


def test_a_call_is_shown_with_what_it_does_and_how_it_ended():
    started = ToolStarted(call_id="a", tool="read", message="reading")
    assert steps_of(started) == (Step("a", "read", "reading"),)
    progressed = ToolProgressed(call_id="a", tool="read", message="half", fraction=0.5)
    assert steps_of(started, progressed) == (Step("a", "read", "half (50%)"),)
    ended = ToolEnded(call_id="a", tool="read", outcome="error", message="for the model")
    assert steps_of(started, ended) == (Step("a", "read", "reading", "error"),)


def test_a_blocked_call_is_shown_with_the_reason_for_people():
    blocked = HookExecuted(point="before_tool", hook="careful", verb="block", reason="no", call_id="a")
    passed = HookExecuted(point="before_tool", hook="other", verb="cont", call_id="a")
    ended = ToolEnded(call_id="a", tool="read", outcome="blocked")
    expected = Step("a", "read", "", "blocked", (StepVerdict("block", "careful", "no"),))
    assert steps_of(passed, blocked, ended) == (expected,)


def test_a_call_waits_until_a_person_has_decided():
    asked, decided = ApprovalAsked(call_id="a", tool="read"), ApprovalDecided(call_id="a", decision="denied", by="ann")
    assert steps_of(asked) == (Step("a", "read", state="waiting"),)
    (step,) = steps_of(asked, decided, ToolEnded(call_id="a", tool="read", outcome="blocked"))
    assert (step.state, step.verdicts) == ("blocked", (StepVerdict("denied", reason="by ann"),))


def test_a_hook_that_failed_is_shown_as_failed_and_text_hooks_are_not():
    failed = HookExecuted(point="after_tool", hook="bad", verb="", error="boom: secret", call_id="a")
    token = HookExecuted(point="on_token", hook="mask", verb="replace")
    (step,) = steps_of(ToolStarted(call_id="a", tool="read"), failed, token)
    assert step.verdicts == (StepVerdict("failed", "bad"),)


def test_the_latest_calls_are_kept():
    found = steps_of(*(ToolStarted(call_id=str(n), tool="t") for n in range(MAX_STEPS + 5)))
    assert [step.id for step in found] == [str(n) for n in range(5, MAX_STEPS + 5)]


class LiveChannel(MemoryChannel):
    """A channel that shows steps and drafts."""

    def __init__(self):
        super().__init__()
        self.steps, self.drafts = {}, []

    async def show_steps(self, address, key, reply_to, speaker, steps):
        self.steps[key] = list(steps)

    def draft_changed(self, address, draft):
        self.drafts.append(draft.text)


@tool
def look(where: str) -> str:
    """Look."""
    return "token=SECRET for the model"


async def answered(folder, *hooks, turns=None, stream="safe"):
    """The channel after one message to an agent with these hooks."""
    channel = LiveChannel()
    model = ScriptedModel(turns or [call("look", where="here"), "Two words."])
    gateway = Gateway(
        Agent("bot", llm=model, tools=[look], hooks=hooks, stream=stream),
        [channel],
        mailbox=Mailbox(folder / "m.db"),
        sessions=SqliteSessionStore(folder / "s.db"),
    )
    await gateway.start()
    try:
        await channel.say("hi")
        await gateway.wait_until_idle()
    finally:
        await gateway.stop()
    return channel


async def test_a_channel_that_shows_steps_gets_no_progress_message_and_the_end_of_each_call(tmp_path):
    channel = await answered(tmp_path)
    ((step,),) = channel.steps.values()
    assert (step.tool, step.state) == ("look", "ok")
    assert channel.texts() == ["Two words."]
    assert "SECRET" not in str(channel.steps)


async def test_how_the_last_call_ended_is_shown_also_if_the_run_ends_meanwhile(tmp_path, monkeypatch):
    begun, ended, show = asyncio.Event(), asyncio.Event(), LiveChannel.show_steps

    @hook(BEFORE_LLM)
    async def after_the_call(ctx, request):
        if request.messages[-1].role == "tool":
            await begun.wait()

    @observer(ON_RUN_END)
    def ends(ctx, end):
        ended.set()

    async def show_slowly(self, address, key, reply_to, speaker, steps):
        if steps[-1].state == "ok":
            begun.set()
            await ended.wait()
            await asyncio.sleep(0.1)
        await show(self, address, key, reply_to, speaker, steps)

    monkeypatch.setattr("hookline.channels.activity.STEPS_INTERVAL", 0)
    monkeypatch.setattr(LiveChannel, "show_steps", show_slowly)
    channel = await answered(tmp_path, after_the_call, ends)
    ((step,),) = channel.steps.values()
    assert (step.tool, step.state) == ("look", "ok")


async def test_a_reply_is_shown_as_it_is_written(tmp_path):
    channel = await answered(tmp_path, turns=["One two three."])
    assert channel.drafts[-1] == "One two three."
    assert all("One two three.".startswith(each) for each in channel.drafts)


async def test_a_text_beside_tool_calls_is_taken_back(tmp_path):
    turns = [lambda request: ["Let me see", call("look", where="here")], "Done."]
    channel = await answered(tmp_path, turns=turns)
    assert "" in channel.drafts[1:]
    assert channel.drafts[-1] == "Done."


@hook("message_sending")
def redact(ctx, outbound):
    return {"message": outbound.message.replace(text=outbound.message.text.replace("SECRET", "***"))}


@hook("before_dispatch")
def nothing_leaves(ctx, outbound):
    return {"handled": "SECRET" in outbound.message.text}


@hook("after_llm")
def rail(ctx, payload):
    return HookResult.retry("no secrets", reason="secret") if "SECRET" in payload.content else None


@pytest.mark.parametrize("stream", ["safe", "live"])
@pytest.mark.parametrize("judge", [redact, nothing_leaves, rail], ids=lambda judge: judge.__name__)
async def test_a_reply_is_held_back_when_a_hook_must_judge_it_first(tmp_path, judge, stream):
    channel = await answered(tmp_path, judge, turns=["The SECRET is out.", "Nothing to say."], stream=stream)
    assert "SECRET" not in "".join(channel.drafts)


async def test_the_texts_of_steps_pass_the_hooks(tmp_path):
    @guard(BEFORE_TOOL)
    def careful(ctx, payload):
        return HookResult.block("no", reason="it has SECRET")

    channel = await answered(tmp_path, redact, careful)
    ((step,),) = channel.steps.values()
    assert step.verdicts == (StepVerdict("block", "careful", "it has ***"),)


async def test_no_steps_are_shown_if_a_hook_keeps_a_text_back(tmp_path):
    @guard(BEFORE_TOOL)
    def careful(ctx, payload):
        return HookResult.block("no", reason="it has SECRET")

    channel = await answered(tmp_path, nothing_leaves, careful)
    assert channel.steps == {}
