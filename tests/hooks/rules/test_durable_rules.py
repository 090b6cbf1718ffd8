"""Rules in durable runs that another process continues, from each of their entries."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hookline import APPROVAL_REQUESTED, Agent, HookResult, hook, tool
from hookline.hooks import load_rules
from hookline.payloads import AgentResult, ToolCall
from hookline.stores import CallStore
from tests.durable_scene import World
from tests.run.test_durable import EACH_ENTRY, CountingModel, Crashes, recover_everywhere

pytest.importorskip("cel_expr_python", reason="rules need: pip install 'hookline[rules]'")

RULES = """
[[rules]]
name = "thousand-a-day"
tools = "note"
when = "count('note', duration('24h')) >= 1000"
then = "block"
message = "A thousand a day."

[[rules]]
name = "two"
tools = "note"
when = "count('note') >= 2"
then = "block"
message = "Two in a run."

[[rules]]
name = "after-two"
tools = "note"
when = "call.arguments.n == 2"
then = "ask"
message = "Note 2?"

[[rules]]
name = "never-after-approval"
tools = "send"
when = "history.exists(c, c.tool == 'note' && c.approved) || 'odd' in labels"
then = "block"
message = "Not after an approved note."

[[rules]]
name = "odd"
point = "after_tool"
tools = "note"
when = "result.text == 'noted 1'"
then = "label"
label = "odd"
"""


@pytest.fixture
def crashes(tmp_path: Path) -> Crashes:
    (tmp_path / "world").mkdir()
    return Crashes(World(tmp_path / "world"))


def noter(world: World, store: CallStore) -> Agent:
    """Return an agent that notes 1, 2 and 3, and sends something before and after."""

    @tool(effects=[])
    def note(n: int) -> str:
        """Note a number."""
        world.note("ran", n)
        return f"noted {n}"

    @tool(effects=[])
    def send() -> str:
        """Send."""
        return "sent"

    @hook(APPROVAL_REQUESTED)
    def approve(ctx: Any, request: Any) -> HookResult:
        return HookResult.approve()

    (world.folder / "rules.toml").write_text(RULES)
    rules = load_rules(world.folder / "rules.toml", store=store)
    replies: list[Any] = [
        ToolCall("s", "send", {}),
        ToolCall("c", "note", {"n": 1}),
        ToolCall("d", "note", {"n": 2}),
        ToolCall("e", "note", {"n": 3}),
        ToolCall("t", "send", {}),
        "done",
    ]
    return Agent("a", llm=CountingModel(replies, world), tools=[note, send], hooks=[*rules, approve])


@EACH_ENTRY
def test_a_recovered_run_decides_the_same_and_counts_each_call_once(crashes: Crashes, step: int) -> None:
    counts = [0]
    with closing(CallStore(crashes.world.folder.parent / "calls.db")) as store:

        def check(result: AgentResult[Any], world: World) -> None:
            assert (result.status, result.reply) == ("completed", "done"), result.errors
            found = [message.content for message in result.messages if message.role == "tool"]
            assert found == ["sent", "noted 1", "noted 2", "Two in a run.", "Not after an approved note."]
            counts.append(store.count("", [("note", 3600.0)])[0])

        recover_everywhere(crashes, lambda world: noter(world, store), check, step)
    added = [after - before for before, after in pairwise(counts)]
    again = [each for each in added[1:] if each]  # these ended before the first call was counted
    assert added[0] == 2
    assert len(again) < len(added) / 2
