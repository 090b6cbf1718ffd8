"""Events of a coding agent in any order, missing and repeated: no fact is lost or doubled, nothing blocked runs."""

import asyncio
import json
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import BEFORE_TOOL, HookResult, guard
from hookline._kernel.registry import HookRegistry
from hookline.adapters.coding_agents.codecs import codec_of
from hookline.adapters.coding_agents.judge import Judge
from hookline.adapters.coding_agents.rules import Rules
from hookline.events import RunFinished, RunStarted, ToolEnded, ToolStarted
from hookline.points import ON_RUN_END

VERDICTS = ("plain", "blocked", "asked", "broken")
CALLS = st.lists(st.sampled_from(VERDICTS), min_size=1, max_size=4)
"""The calls of a prompt, each with what the guard says about it."""
STEPS = st.lists(st.tuples(st.sampled_from(["before", "after"]), st.integers(0, 3)), max_size=14)
"""Events about these calls, in any order."""
ENDS = st.sampled_from(["stop", "next prompt", "session end", "stop twice"])
PROMPTS = st.lists(st.tuples(CALLS, STEPS, st.booleans(), ENDS), min_size=1, max_size=3)
"""Prompts: calls, events, whether the prompt itself is reported, and how it ends."""


@guard(BEFORE_TOOL)
def judge(ctx, request):
    verdict = str(request.arguments["query"]).split()[0]
    if verdict == "broken":
        raise RuntimeError("no idea")
    if verdict == "blocked":
        return HookResult.block("Not this one.")
    return HookResult.ask("May it run?") if verdict == "asked" else None


class Counting:
    """Counts the events of all runs."""

    points = frozenset({ON_RUN_END})
    phase = "observe"
    events = frozenset({ToolStarted, ToolEnded, RunStarted, RunFinished})

    def __init__(self):
        self.seen = []

    def __call__(self, point, ctx, result):
        """Do nothing."""

    def on_event(self, event):
        self.seen.append(event)

    def of(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]


class Program:
    """A session of Claude Code that sends these events, and what must follow from them."""

    def __init__(self):
        self.counting = Counting()
        registry = HookRegistry([judge, self.counting])
        self.judge = Judge(Rules(registry), codec_of("claude"))
        self.outcomes = Counter()
        self.in_flight = {}

    async def send(self, event, **fields):
        given = {"session_id": "s", "hook_event_name": event, "cwd": "/", "transcript_path": "/.claude/s.jsonl"}
        answer = await self.judge.answer("cli\0s\0", json.dumps(given | fields).encode())
        return answer.code, json.loads(answer.stdout or b"{}").get("hookSpecificOutput", {})

    async def play(self, number, calls, steps, has_prompt, end):
        prompt = {"prompt_id": f"p{number}"}
        if has_prompt:
            await self.send("UserPromptSubmit", prompt=f"Prompt {number}.", **prompt)
            self.give_up()
        settled = set()
        for kind, index in steps:
            if index >= len(calls):
                continue
            id, words = f"t{number}.{index}", f"{calls[index]} {number} {index}"
            call = {"tool_name": "WebSearch", "tool_input": {"query": words}, "tool_use_id": id, **prompt}
            if number and not has_prompt:
                self.give_up(f"t{number}.")
            if kind == "before":
                self.expect(calls[index], id, await self.send("PreToolUse", **call))
            else:
                await self.send("PostToolUse", tool_response=f"result of {words}", **call)
                is_again = id not in self.in_flight and id in settled
                self.in_flight.pop(id, None)
                if not is_again:
                    self.outcomes["ok"] += 1
                settled.add(id)
        if end.startswith("stop"):
            for _ in end.split():
                await self.send("Stop", last_assistant_message="Done.", **prompt)
            self.give_up()
        elif end == "session end":
            await self.send("SessionEnd", reason="exit")
            self.give_up()

    def expect(self, verdict, id, answer):
        code, decision = answer
        if verdict == "plain":
            assert decision == {}
        else:
            assert decision["permissionDecision"] == ("ask" if verdict == "asked" else "deny")
            assert code == (2 if verdict == "broken" else 0)
        if verdict in ("plain", "asked"):
            self.in_flight[id] = verdict
        else:
            self.outcomes["blocked" if verdict == "blocked" else "cancelled"] += 1

    def give_up(self, but=None):
        """The calls that are still in flight count as cancelled."""
        for id in [each for each in self.in_flight if but is None or not each.startswith(but)]:
            del self.in_flight[id]
            self.outcomes["cancelled"] += 1

    async def check(self):
        await self.send("SessionEnd", reason="exit")
        self.give_up()
        ended = self.counting.of(ToolEnded)
        assert Counter(event.outcome for event in ended) == self.outcomes
        keys = [(event.run_id, event.call_id) for event in ended]
        assert len(set(keys)) == len(keys)
        started = [(event.run_id, event.call_id) for event in self.counting.of(ToolStarted)]
        assert len(set(started)) == len(started)
        refused = {(event.run_id, event.call_id) for event in ended if event.outcome == "blocked"}
        assert refused.isdisjoint(started)
        runs = [event.run_id for event in self.counting.of(RunStarted)]
        assert runs == [event.run_id for event in self.counting.of(RunFinished)]


@settings(max_examples=60)
@given(PROMPTS)
def test_events_in_any_order_lose_and_double_no_fact(prompts):
    async def play():
        program = Program()
        for number, prompt in enumerate(prompts):
            await program.play(number, *prompt)
        await program.check()

    asyncio.run(play())
