"""The parts of a run have the same names on tapes and in journals: lanes (DESIGN 6.11)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline import Agent, AgentContext, HookResult, ScriptedModel, call, hook, observer, tool
from hookline._run.lanes import LANE, ancestors_of, is_part_of, parent_of, run_of
from hookline.models import ModelResponse
from hookline.payloads import ToolCall
from hookline.stores import RunStore
from hookline.tape import Tape, TapeHook, areplay
from hookline.tape.format import ModelRequestEntry, RunEntry, ToolCallEntry


@tool
def add(a: int) -> int:
    """Add."""
    return a


def lanes_of(folder: Path, agent: Agent) -> tuple[list[str], list[str]]:
    """Run an agent. Return the lanes of its model and tool calls in its journal and on its tape, in order."""
    path = folder / "run.tape"
    with closing(RunStore(folder / "runs.db")) as store:
        agent.run("go", durable=store, run_id="r", hooks=[TapeHook(path)])
        rows = store.db.execute("SELECT data FROM journal ORDER BY seq")
        entries = [entry for (data,) in rows for entry in msgspec.json.decode(data)]
    journal = [lane for lane, kind, key, _ in entries if kind == "asked" and key.startswith(("model", "tool"))]
    calls = (each for each in Tape.load(path).entries if isinstance(each, (ModelRequestEntry, ToolCallEntry)))
    return journal, [f"1{entry.lane}" for entry in calls if not entry.inside]


def test_a_call_has_a_lane_of_its_own_and_the_run_goes_on_in_its_own(tmp_path: Path) -> None:
    batch = ModelResponse("", (ToolCall("x", "add", {"a": 1}), ToolCall("y", "add", {"a": 2})))
    journal, tape = lanes_of(tmp_path, Agent("a", llm=ScriptedModel([call("add", a=0), batch, "done"]), tools=[add]))
    assert journal == tape == ["1", "1/0.0.1", "1", "1/1.0.1", "1/1.1.1", "1"]


def test_each_attempt_at_a_call_has_a_lane(tmp_path: Path) -> None:
    @hook("after_tool")
    def again(ctx: Any, result: Any) -> HookResult | None:
        return HookResult.retry("again") if result.attempt == 1 else None

    agent = Agent("a", llm=ScriptedModel([call("add", a=0), "done"]), tools=[add], hooks=[again])
    journal, tape = lanes_of(tmp_path, agent)
    assert journal == tape == ["1", "1/0.0.1", "1/0.0.2", "1"]


def test_a_nested_run_has_the_lane_of_the_part_that_started_it(tmp_path: Path) -> None:
    helper = Agent("helper", llm=ScriptedModel(["helped"], loop=True))

    @hook("before_llm")
    async def asks(ctx: Any, request: Any) -> None:
        await helper.arun("help")

    journal, tape = lanes_of(
        tmp_path, Agent("a", llm=ScriptedModel([call("add", a=0), "done"]), tools=[add], hooks=[asks])
    )
    assert journal == tape == ["1/run.1", "1", "1/0.0.1", "1/run.2", "1"]


async def test_runs_in_threads_without_the_context_have_the_lane_of_the_given_context(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"

    def agent() -> Agent:
        helper = Agent("helper", llm=ScriptedModel(["helped"], loop=True))

        @hook("before_llm")
        def asks(ctx: Any, request: Any) -> None:
            if ctx.ids.agent == "a":
                thread = threading.Thread(target=helper.run, args=("help",), kwargs={"ctx": ctx})
                thread.start()
                thread.join()

        return Agent("a", llm=ScriptedModel([call("add", a=0), "done"]), tools=[add], hooks=[asks])

    await asyncio.to_thread(agent().run, "go", hooks=[TapeHook(path)])
    runs = [entry.lane for entry in Tape.load(path).entries if isinstance(entry, RunEntry)]
    assert runs == ["", "/run.1", "/run.2"]
    assert (await areplay(path, agent())).same


async def test_the_runs_of_a_tool_do_not_count_among_those_of_the_hooks_of_its_call(tmp_path: Path) -> None:
    """A replay calls the hooks and not the tool."""
    path = tmp_path / "run.tape"

    def agent() -> Agent:
        helper = Agent("helper", llm=ScriptedModel(["helped"], loop=True))

        @tool
        async def ask() -> str:
            """Ask the helper."""
            return (await helper.arun("help")).reply

        @observer("on_progress")
        async def asks(ctx: Any, progress: Any) -> None:
            await helper.arun(progress.phase)

        return Agent("a", llm=ScriptedModel([call("ask"), "done"]), tools=[ask], hooks=[asks])

    await agent().arun("go", hooks=[TapeHook(path)])
    runs = [(entry.lane, entry.inside) for entry in Tape.load(path).entries if isinstance(entry, RunEntry)]
    assert runs == [("", ""), ("/0.0.1/run.1", ""), ("/0.0.1/tool/run.1", "/0.0.1"), ("/0.0.1/run.2", "")]
    assert (await areplay(path, agent())).same


async def test_the_tape_of_a_nested_run_begins_with_that_run(tmp_path: Path) -> None:
    """Its lanes are those of a replay, which knows nothing of the outer run."""
    outer, inner = tmp_path / "outer.tape", tmp_path / "inner.tape"

    def helper() -> Agent:
        return Agent("helper", llm=ScriptedModel([call("add", a=0), "helped"]), tools=[add])

    @tool
    async def ask() -> str:
        """Ask the helper."""
        return (await helper().arun("help", hooks=[TapeHook(inner)])).reply

    await Agent("a", llm=ScriptedModel([call("ask"), "done"]), tools=[ask]).arun("go", hooks=[TapeHook(outer)])
    calls = [entry for entry in Tape.load(inner).entries if isinstance(entry, ToolCallEntry)]
    assert [(entry.lane, entry.inside) for entry in calls] == [("/0.0.1", "")]
    inside = [entry.lane for entry in Tape.load(outer).entries if isinstance(entry, ToolCallEntry) and entry.inside]
    assert inside == ["/0.0.1/tool/run.1/0.0.1"]
    assert (await areplay(inner, helper())).same


async def test_a_recorded_run_leaves_no_lane_behind(tmp_path: Path) -> None:
    seen: list[Any] = []

    @observer("on_run_end")
    def look(ctx: Any, result: Any) -> None:
        seen.append(LANE.get())

    agent = Agent("a", llm=ScriptedModel([call("add", a=0), "done"]), tools=[add], hooks=[look])
    await agent.arun("go", hooks=[TapeHook(tmp_path / "run.tape")], ctx=AgentContext())
    assert [lane.path for lane in seen] == [""]
    assert LANE.get() is None


@pytest.mark.parametrize(
    ("lane", "parent", "run"),
    [
        ("", None, ""),
        ("1", None, "1"),
        ("1/0.2.1", "1", "1"),
        ("/0.2.1?", "", ""),
        ("/0.2.1!", "/0.2.1", ""),
        ("1/0.2.1/run.12", "1/0.2.1", "1/0.2.1/run.12"),
        ("1/0.2.1/tool/run.3", "1/0.2.1/tool", "1/0.2.1/tool/run.3"),
        ("1/0.2.1/run.12~3", "1/0.2.1/run.12", "1/0.2.1/run.12"),
        ("1&1/2-1.0.1", "1&1", "1&1"),
    ],
)
def test_the_name_of_a_lane_says_what_started_it(lane: str, parent: str | None, run: str) -> None:
    assert parent_of(lane) == parent
    assert run_of(lane) == run
    assert all(is_part_of(lane, each) for each in (lane, run, *ancestors_of(lane)))
    assert not is_part_of("1/run.12", "1/run.1")
