"""Programs that combine runs, hooks, threads and cancellation keep every promise (DESIGN 4.5, 4.8, 6.6 and 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings

from hookline import AgentResult
from hookline.events import RunFinished, RunStarted, ToolEnded, ToolSettled, ToolStarted
from hookline.payloads import Usage
from tests.properties import examples

from .programs import REPLY, Ledger, Program, World, declared_point, execute, programs, run_program
from .strategies import STATUSES


@pytest.fixture(scope="module", autouse=True)
def _point() -> Iterator[None]:
    with declared_point():
        yield


def check_guarded(ledger: Ledger) -> None:
    """Check that no tool function ran with arguments that the outermost guard had not accepted."""
    assert ledger.violations == []


def check_ends(ledger: Ledger) -> None:
    """Check that each run ended once, with one status, and that each call and each attempt has one end."""
    assert set(ledger.ends.values()) <= {1}
    finished = {}
    for run_id, events in ledger.events.items():
        kinds = Counter(type(event) for event in events)
        assert kinds[RunStarted] == kinds[RunFinished] == ledger.ends[run_id] == 1, (run_id, kinds)
        assert isinstance(events[-1], RunFinished)
        finished[run_id] = events[-1].result
        check_calls(finished[run_id], events)
    for result in ledger.results:
        assert result.status in STATUSES
        if result.ids.run_id in finished:
            assert finished[result.ids.run_id].status == result.status
    seqs = [event.seq for event in ledger.stream]
    assert seqs == list(range(1, len(seqs) + 1))


def check_calls(result: AgentResult[Any], events: list[Any]) -> None:
    """Check that each call has one settled event and one result, and each attempt that started one end."""
    called = [call.id for message in result.messages for call in message.tool_calls]
    assert called == [message.call_id for message in result.messages if message.role == "tool"]
    assert Counter(event.call_id for event in events if isinstance(event, ToolSettled)) == Counter(called)
    ends = Counter((event.call_id, event.attempt) for event in events if isinstance(event, ToolEnded))
    starts = Counter((event.call_id, event.attempt) for event in events if isinstance(event, ToolStarted))
    assert set(ends.values()) <= {1}
    assert set(starts.values()) <= {1}
    assert starts.keys() <= ends.keys()
    assert {call_id for call_id, _ in ends} == set(called)


def used(replies: int) -> Usage:
    return Usage(REPLY.input_tokens * replies, REPLY.output_tokens * replies)


@settings(max_examples=examples(400), deadline=None)
@given(programs())
def test_a_program_keeps_every_promise(program: Program) -> None:
    ledger = Ledger()
    world = World(program, ledger)

    async def play() -> AgentResult[Any] | None:
        result = await execute(world, world.root(), world.options())
        await world.settle()
        return result

    result = run_program(program, play)
    check_guarded(ledger)
    check_ends(ledger)
    assert world.budget.usage == used(ledger.replies[True])
    if result is not None:
        assert result.status in STATUSES
