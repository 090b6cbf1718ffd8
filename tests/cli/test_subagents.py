"""Views of runs with subagents."""

import asyncio
import io
import json

import pytest
from rich.console import Console

from hookline import Agent, AgentContext, ScriptedModel, call, guard, tool
from hookline.cli.live_view import LiveView
from hookline.cli.runner import combine, run_once, run_with_handovers
from hookline.cli.text import run_summary
from hookline.cli.views import PlainView
from hookline.events import RunFinished, SubagentEvent
from hookline.models.scripted import reply
from hookline.teams import Team
from tests.shown import without_duration


@tool
def copy(path: str, ctx) -> str:
    """Copy a file."""
    ctx.progress(0.5, "halfway")
    return "copied"


def ask(to, task):
    return call("delegate", to=to, task=task)


def team_of(*members):
    """A team of ``(name, turns)``, all with tools of their own."""
    team = Team()
    for name, turns in members:
        team.add(Agent(name, name, llm=ScriptedModel(turns, name=name), tools=[team, copy]))
    return team


def lines_of(team):
    out = io.StringIO()
    run_once(team, "go", AgentContext(), [PlainView(out)])
    return out.getvalue().splitlines()


def untimed(line):
    return without_duration(line.partition(" · ")[0])


DEEP = (
    ("chief", [ask("writer", "a poem"), "done"]),
    ("writer", [call("copy", path="a"), ask("judge", "rate it"), "roses"]),
    ("judge", [reply("nine", cost=0.5)]),
)


def test_events_of_subagents_are_shown_below_the_call_at_any_depth():
    assert [untimed(line) for line in lines_of(team_of(*DEEP))] == [
        "step 1",
        '  calls delegate {"to":"writer","task":"a poem"}',
        "    writer: task: a poem",
        '    writer: calls copy {"path":"a"}',
        "    writer: tool copy: halfway (50%)",
        "    writer: ─■─○─  tool copy ok: copied",
        '    writer: calls delegate {"to":"judge","task":"rate it"}',
        "      judge: task: rate it",
        "      judge: completed",
        "    writer: ─■─○─  tool delegate ok: nine",
        "    writer: completed",
        "  ─■─○─  tool delegate ok: roses",
        "step 2",
    ]


def test_a_team_says_nothing_where_nothing_is_handed_over():
    assert not [line for line in lines_of(team_of(*DEEP)) if "team" in line]


def test_the_summary_includes_subagents_and_their_tokens_and_cost():
    seen = []
    outcome = run_once(team_of(*DEEP), "go", AgentContext(), [seen.append])
    inside = [event.event for event in seen if isinstance(event, SubagentEvent)]
    assert len([event for event in inside if isinstance(event, RunFinished)]) == 2
    said = run_summary(outcome.result, outcome.failed_hooks, outcome.subagents)
    assert said.startswith("completed · 2 steps · 1 tool call · 2 subagents (4 steps, 2 tool calls) · ")
    assert "cost $0.5000" in said
    line = next(line for line in lines_of(team_of(*DEEP)) if "writer: completed" in line)
    assert "3 steps · 2 tool calls · 1 subagent (1 step, 0 tool calls)" in line


def test_the_summary_of_a_run_without_subagents_does_not_mention_them():
    outcome = run_once(team_of(("chief", ["hi"])), "go", AgentContext(), [])
    assert "subagent" not in run_summary(outcome.result, outcome.failed_hooks, outcome.subagents)


def test_several_of_one_name_at_once_are_kept_apart_and_one_after_another_are_not():
    both = asyncio.Event()
    arrived = []

    @tool
    async def meet() -> str:
        """Wait for the other."""
        arrived.append(1)
        if len(arrived) == 2:
            both.set()
        await both.wait()
        return "met"

    team = Team()
    turns = [[ask("writer", "one"), ask("writer", "two")], ask("writer", "three"), "done"]
    team.add(Agent("chief", llm=ScriptedModel(turns), tools=[team]))
    team.add(Agent("writer", llm=ScriptedModel([call("meet"), call("meet"), "x", "y", "z"]), tools=[meet]))
    told = [line.strip().split(": task: ") for line in lines_of(team) if "task: " in line]
    assert told[2] == ["writer", "three"]
    assert {name for name, _ in told[:2]} == {"writer", "writer 2"}


def test_a_failed_subagent_and_a_failed_hook_in_it_are_shown_and_counted():
    @guard("before_tool", tools="copy", on_failure="open")
    def broken(ctx, request):
        raise ValueError("oops")

    team = Team()
    team.add(Agent("chief", llm=ScriptedModel([ask("writer", "x"), "sorry"]), tools=[team], hooks=[broken]))
    team.add(Agent("writer", llm=ScriptedModel([call("copy", path="a")]), tools=[copy]))
    out = io.StringIO()
    outcome = run_once(team, "go", AgentContext(), [PlainView(out)])
    assert "1 hook failed" in run_summary(outcome.result, outcome.failed_hooks, outcome.subagents)
    shown = out.getvalue().splitlines()
    failed = "    writer: ✗ hook 'broken' failed at before_tool: ValueError: oops (test_subagents.py:"
    assert [line for line in shown if line.startswith(failed)]
    assert "    writer: model failed: the script has only 1 turn, but this is request 2" in shown
    assert any(line.startswith("    writer: failed · ") for line in shown)


def handing_over(middle=()):
    return team_of(
        ("chief", [*middle, call("handoff", to="judge", message="Yours."), "never"]), ("judge", ["mine now"])
    )


def test_a_handoff_shows_the_agent_that_takes_over():
    out = io.StringIO()
    team, ctx = handing_over(), AgentContext()
    outcome = combine(list(run_with_handovers(team, "go", ctx, [PlainView(out)])))
    assert outcome.result.reply == "mine now"
    assert out.getvalue().splitlines() == [
        "step 1",
        '  calls handoff {"to":"judge","message":"Yours."}',
        "  team stopped the run: judge takes over.",
        "  ─■─◆─  tool handoff ok: judge takes over this conversation.",
        "judge takes over",
        "step 1",
    ]


def test_two_runs_of_different_agents_are_not_a_handoff():
    out = io.StringIO()
    view = PlainView(out)
    for name in ("one", "two"):
        run_once(Agent(name, llm=ScriptedModel(["hi"])), "go", AgentContext(), [view])
    assert "takes over" not in out.getvalue()


def test_consecutive_runs_are_combined_with_their_subagents():
    team = handing_over([ask("judge", "look")])
    team.members["judge"].model.turns.insert(0, "seen")
    outcome = combine(list(run_with_handovers(team, "go", AgentContext(), [])))
    assert (outcome.subagents.runs, outcome.subagents.steps) == (1, 1)


@pytest.fixture
def screen():
    out = io.StringIO()
    return Console(file=out, force_terminal=True, width=90, color_system=None), out


def test_the_live_view_marks_lines_of_subagents_and_counts_the_tokens_and_cost_of_all(screen):
    console, out = screen
    with LiveView(console) as view:
        result = run_once(team_of(*DEEP), "go", AgentContext(), [view]).result
        assert view._usage == result.usage
        assert view._cost == result.cost == 0.5
    shown = [untimed(line.rstrip()) for line in out.getvalue().replace("\r", "\n").splitlines()]
    for line in ("  writer > task: a poem", "  writer ─■─○─ tool copy ok: copied", "    judge > task: rate it"):
        assert any(each.endswith(line) for each in shown), (line, shown)
    assert not any("writer ─ " in line for line in shown)


def test_the_live_view_shows_running_subagents_and_their_activity(screen):
    console, _ = screen
    view, seen = LiveView(console), []

    def look(event):
        view(event)
        with console.capture() as captured:
            console.print(view)
        seen.append([line.rstrip() for line in captured.get().splitlines()])

    run_once(team_of(*DEEP), "go", AgentContext(), [look])
    at_tool = next(lines for lines in seen if any("copy: halfway (50%)" in line for line in lines))
    assert "delegate: to=writer" in at_tool[0]
    assert at_tool[1][:3].strip()
    assert at_tool[1][4:].startswith("writer · step 1 · copy is running")
    assert at_tool[2].startswith("    ")
    assert "━━━" in at_tool[2]
    assert "1 subagent at work" in at_tool[3]
    deep = next(lines for lines in seen if any("judge · " in line for line in lines))
    assert "2 subagents at work" in deep[-1]
    later = [lines for lines in seen if " step 2 · " in lines[-1]]
    assert later
    assert all(len(lines) == 1 or "done" in lines[0] for lines in later)
    assert not any("at work" in lines[-1] for lines in later)


def test_of_many_subagents_some_are_shown_and_the_others_counted(screen):
    from hookline.events import RunStarted
    from hookline.payloads import Ids

    console, _ = screen
    view = LiveView(console)
    for number in range(30):
        ids = Ids(f"r{number}", agent="evil\x1b[2J", parent_run_id="root")
        view(SubagentEvent(number, 0.0, "root", RunStarted(ids=ids), ids))
    with console.capture() as captured:
        console.print(view)
    shown = captured.get()
    assert len(shown.splitlines()) == 14
    assert "and 18 more" in shown
    assert "30 subagents at work" in shown
    assert "\x1b[2J" not in shown


def test_a_chat_streams_its_own_text_and_shows_events_of_subagents(screen):
    console, out = screen
    with LiveView(console, conversation=True) as view:
        result = run_once(team_of(*DEEP), "go", AgentContext(), [view]).result
        view.finish(result.reply)
    shown = [line.rstrip() for line in out.getvalue().replace("\r", "\n").splitlines()]
    assert any(line.endswith("  done") for line in shown)
    assert any("judge > task: rate it" in line for line in shown)
    assert not any(line.endswith("  roses") for line in shown)


def test_a_chat_shows_the_speaker_in_its_prompt(screen):
    console, out = screen
    view = LiveView(console, conversation=True, live=False)
    list(run_with_handovers(handing_over(), "go", AgentContext(), [view]))
    assert "» judge takes over" not in out.getvalue()


def test_an_interrupted_run_shows_the_unfinished_text_of_a_subagent(screen):
    @guard("on_token")
    def stop(ctx, delta):
        if "three" in delta.text and ctx.agent_name == "writer":
            raise ValueError("no more")

    console, out = screen
    team = Team()
    team.add(Agent("chief", llm=ScriptedModel([ask("writer", "x"), "sorry"]), tools=[team], hooks=[stop]))
    team.add(Agent("writer", llm=ScriptedModel(["one two three"])))
    with LiveView(console) as view:
        run_once(team, "go", AgentContext(), [view])
    assert any("writer “ unfinished reply: one two" in line for line in out.getvalue().replace("\r", "\n").splitlines())


@pytest.fixture
def people(folder):
    """A folder of personalities: ``people(name, turns, fields)`` adds one."""

    def add(name, turns, fields=""):
        (folder / f"{name}.json").write_text(json.dumps(turns))
        (folder / "people").mkdir(exist_ok=True)
        (folder / "people" / f"{name}.toml").write_text(f'model = "scripted:{folder / name}.json"\n{fields}\n')

    return add


def test_the_program_tells_of_subagents_in_lines_and_in_json(hookline, people, folder):
    people(
        "chief", [{"tool": "delegate", "arguments": {"to": "writer", "task": "a poem"}}, "done"], 'delegates = ["*"]'
    )
    people("writer", ["roses"])
    args = ("run", "go", "--personalities", "people", "--personality", "chief")
    done = hookline(*args)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "    writer: task: a poem" in done.stderr.splitlines()
    assert "hook" not in done.stderr
    assert "1 subagent (1 step, 0 tool calls)" in done.stderr.splitlines()[-1]
    events = [json.loads(line) for line in hookline(*args, "--json").stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    inside = [event for event in events if event["type"] == "subagent_event"]
    assert {event["ids"]["agent"] for event in inside} == {"writer"}
    assert {event["ids"]["parent_run_id"] for event in inside} == {events[0]["run_id"]}
    assert [event["event"]["type"] for event in inside][0 :: len(inside) - 1] == ["run_started", "run_finished"]
