"""AGENT-HOOKS-0.1: its conformance kit with Hookline as the host, and its interceptors in Hookline's loop."""

import asyncio
import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

if importlib.util.find_spec("agent_hooks") is None:
    pytest.skip("agent-hooks-sdk is not installed: make test-adapters ONLY=agent_hooks", allow_module_level=True)

from agent_hooks import CompositionConfig, Decision, InterceptionEmitter, Transform, Verdict
from agent_hooks.ctk import load_vectors, run_vector

from hookline import BEFORE_TOOL, Agent, HookResult, guard, hook, observer, tool
from hookline.adapters.agent_hooks import AgentHooks
from hookline.agents import Session
from hookline.errors import RegistrationError
from hookline.events import Discarded, TextDelta
from hookline.models import ScriptedModel
from hookline.points import ON_TOKEN
from hookline.testing import call, reply

from .agent_hooks_harness import HooklineHarness

VECTORS = load_vectors()


def test_the_kit_has_the_vectors_that_the_page_counts():
    assert len(VECTORS) == (73 if version("agent-hooks-sdk") == "0.1.0b2" else 75)


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["id"] for vector in VECTORS])
async def test_hookline_passes_the_kit_as_a_host(vector):
    harness = HooklineHarness(vector)
    result = await run_vector(harness, vector)
    assert (result.status, result.failures) == ("pass", [])
    # The kit for Python does not compare these two yet, and says that a host must.
    expected = vector["expect"]
    assert harness.released == expected.get("released_output", harness.released)
    assert [text for text in expected.get("persisted_must_not_contain", ()) if text in harness.persisted] == []


class Rule:
    """An interceptor that answers at one point, and allows everything else."""

    def __init__(self, point, verdict):
        self.point, self.verdict = point, verdict
        self.seen = []

    def intercept(self, context):
        """Return the verdict for a moment."""
        self.seen.append(context["interception_point"])
        if context["interception_point"] != self.point:
            return Verdict.allow()
        return self.verdict(context) if callable(self.verdict) else self.verdict


@pytest.fixture
def canary(tmp_path):
    """A file that a tool would write."""
    return tmp_path / "canary"


@pytest.fixture
def write(canary):
    """A tool that writes the file."""

    @tool
    def write(text: str) -> str:
        canary.write_text(text)
        return f"wrote {text}"

    return write


def agent(tool_, hooks, *turns):
    """An agent whose model calls the tool, then says what it read."""
    model = ScriptedModel([call(tool_.name, text="hello"), *(turns or ("Done.",))])
    return Agent("bob", llm=model, tools=[tool_], hooks=hooks), model


def test_a_denied_call_does_not_run_and_the_model_reads_why(write, canary):
    bob, model = agent(write, [AgentHooks(Rule("pre_tool_call", Verdict.deny(reason="org:no-writes")))])
    assert bob.run("Write.").status == "completed"
    assert not canary.exists()
    assert "org:no-writes" in model.requests[-1].messages[-1].content


def test_changed_arguments_reach_the_tool_and_guards_judge_them(write, canary):
    seen = []

    @guard(BEFORE_TOOL)
    def note(ctx, request):
        seen.append(request.arguments["text"])

    transform = Verdict(Decision.TRANSFORM, transform=Transform("$target.text", "bye"))
    bob, _ = agent(write, [AgentHooks(Rule("pre_tool_call", transform)), note])
    bob.run("Write.")
    assert canary.read_text() == "bye"
    assert seen == ["bye"]


def test_interceptors_see_what_other_hooks_made_of_a_call(write, canary):
    @hook(BEFORE_TOOL)
    def shout(ctx, request):
        return request.replace(arguments={"text": request.arguments["text"].upper()})

    def no_shouting(context):
        return Verdict.deny(reason="org:loud") if context["target"]["text"].isupper() else Verdict.allow()

    bob, _ = agent(write, [AgentHooks(Rule("pre_tool_call", no_shouting)), shout])
    bob.run("Write.")
    assert not canary.exists()


def test_a_denied_result_does_not_reach_the_model(write, canary):
    bob, model = agent(write, [AgentHooks(Rule("post_tool_call", Verdict.deny(reason="org:secret")))])
    bob.run("Write.")
    assert canary.exists()
    assert "wrote hello" not in str(model.requests[-1].messages)


@pytest.mark.parametrize("point", ["agent_startup", "input", "pre_model_call", "post_model_call", "output"])
def test_a_denial_elsewhere_ends_the_run_with_the_reason(write, canary, point):
    rule = Rule(point, Verdict.deny(reason="org:closed"))
    result = agent(write, [AgentHooks(rule)])[0].run("Write.")
    assert result.status == "ended"
    assert result.reply == f"Denied at {point}: org:closed"
    assert canary.exists() == (point == "output")
    assert rule.seen[-1] == "agent_shutdown"


def test_an_interceptor_that_fails_denies(write, canary):
    def broken(context):
        raise RuntimeError("broken")

    bob, _ = agent(write, [AgentHooks(Rule("pre_tool_call", broken))])
    bob.run("Write.")
    assert not canary.exists()


def test_a_call_that_another_guard_blocked_has_no_result_to_judge(write, canary):
    @guard(BEFORE_TOOL)
    def no(ctx, request):
        return HookResult.block("No.")

    rule = Rule("", Verdict.allow())
    agent(write, [AgentHooks(rule), no])[0].run("Write.")
    assert not canary.exists()
    assert "post_tool_call" not in rule.seen


def test_verdicts_are_only_recorded_in_a_trial(write, canary):
    hooks = AgentHooks(Rule("pre_tool_call", Verdict.deny(reason="org:no-writes")), evaluate_only=True)
    agent(write, [hooks])[0].run("Write.")
    assert canary.exists()
    assert "deny" in [record.verdict.decision.value for record in hooks.emitter.results]


def test_the_moments_of_a_session_are_numbered_across_runs(write):
    hooks = AgentHooks(Rule("", Verdict.allow()))
    bob = Agent("bob", llm=ScriptedModel(["One.", "Two."]), hooks=[hooks])
    session = Session("s")
    for task in ("First", "Second"):
        bob.run(task, session=session)
    assert [record.sequence for record in hooks.emitter.results] == list(range(12))


async def test_runs_at_the_same_time_do_not_mix():
    hooks = AgentHooks(Rule("", Verdict.allow()))
    agents = [Agent(f"a{number}", llm=ScriptedModel([f"Reply {number}."]), hooks=[hooks]) for number in range(20)]
    results = await asyncio.gather(*(each.arun("Go.") for each in agents))
    assert [result.reply for result in results] == [f"Reply {number}." for number in range(20)]
    assert len(hooks.emitter.results) == 20 * 6


class InPieces(ScriptedModel):
    """Streams the text of each reply word by word."""

    async def stream(self, request):
        """Yield the words, then the whole reply."""
        response = await self.complete(request)
        for word in response.content.split(" "):
            if word:
                yield f"{word} "
        yield response


async def shown_by(run):
    """Return the text that a consumer of the stream shows in the end."""
    shown = ""
    async for event in run.events():
        if isinstance(event, TextDelta):
            shown += event.text
        elif isinstance(event, Discarded):
            shown = ""
    return shown


@pytest.mark.parametrize("incremental", [False, True])
async def test_text_is_shown_only_after_a_verdict(incremental):
    log = []

    def judge(context):
        log.append(("judged", context["target"]["content"]))
        return Verdict.allow()

    @observer(ON_TOKEN)
    def note(ctx, token):
        log.append(("shown", token.delta))

    hooks = AgentHooks(Rule("post_model_call", judge), incremental=incremental)
    run = Agent("bob", llm=InPieces(["one two three "]), hooks=[hooks, note]).start("Count.")
    assert await shown_by(run) == (await run.result()).reply == "one two three "
    pieces = [entry for entry in log if entry != ("shown", "")]
    assert pieces == (
        [
            ("judged", "one "),
            ("shown", "one "),
            ("judged", "one two "),
            ("shown", "two "),
            ("judged", "one two three "),
            ("shown", "three "),
        ]
        if incremental
        else [("judged", "one two three "), ("shown", "one two three ")]
    )


async def test_text_that_was_shown_cannot_be_changed_later():
    def late(context):
        if "three" in context["target"]["content"]:
            return Verdict(Decision.TRANSFORM, transform=Transform("$target.content", "something else"))
        return Verdict.allow()

    hooks = AgentHooks(Rule("post_model_call", late), incremental=True)
    run = Agent("bob", llm=InPieces(["one two three "]), hooks=[hooks]).start("Count.")
    assert await shown_by(run) == ""
    result = await run.result()
    assert (result.status, result.reply) == (
        "ended",
        "Denied: an interceptor changed text that has already been shown.",
    )


async def test_a_reply_with_text_and_calls_is_judged_as_a_whole_too(write, canary):
    kinds = []

    def judge(context):
        kinds.append((context["target"]["finish_reason"], len(context["target"]["tool_calls"])))
        return Verdict.allow()

    model = InPieces(
        [reply("I write now. ", tool_calls=(call("write", text="hello"),), finish_reason="tool_calls"), "Done. "]
    )
    bob = Agent("bob", llm=model, tools=[write], hooks=[AgentHooks(Rule("post_model_call", judge), incremental=True)])
    assert await shown_by(bob.start("Write.")) == "I write now. Done. "
    assert canary.exists()
    assert kinds == [("incremental", 0), ("incremental", 0), ("stop", 0), ("tool_calls", 1), ("stop", 0)]


async def test_a_change_of_the_whole_reply_reaches_the_stream_and_the_transcript():
    def longer(context):
        return Verdict(
            Decision.TRANSFORM, transform=Transform("$target.content", context["target"]["content"] + "four ")
        )

    hooks = AgentHooks(Rule("output", longer), incremental=True)
    run = Agent("bob", llm=InPieces(["one two three "]), hooks=[hooks]).start("Count.")
    assert await shown_by(run) == (await run.result()).reply == "one two three four "
    points = [record.interception_point.value for record in hooks.emitter.results]
    assert points[2:] == ["pre_model_call", *["post_model_call"] * 3, "output", "agent_shutdown"]


def test_the_program_of_the_page_prints_what_the_page_shows():
    page = (Path(__file__).parents[2] / "docs/guides/agent-hooks.md").read_text()
    code, shown = (part.partition("```")[0] for part in (page.split("```python")[1], page.split("```text")[1]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == shown.strip(), done.stderr


def test_an_emitter_has_its_own_settings():
    with pytest.raises(RegistrationError, match="Set them there"):
        AgentHooks(Rule("", Verdict.allow()), emitter=InterceptionEmitter())
    with pytest.raises(RegistrationError, match="Set them there"):
        AgentHooks(emitter=InterceptionEmitter(), composition=CompositionConfig.run_all())


def test_without_the_package_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['agent_hooks'] = None\n"
        "from hookline.adapters.agent_hooks import AgentHooks\n"
        "try: AgentHooks()\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "agent-hooks-sdk" in done.stdout
