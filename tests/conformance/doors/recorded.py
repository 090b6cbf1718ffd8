"""Records of runs: their moments, backtests, and explanations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from hookline.backtest import backtest
from hookline.explain import RunView, explain
from hookline.explain.view import MomentView, ToolCallView
from hookline.records import RecordedMoment, RecordedRun, RecordHook, read_runs

from ..build import Scene
from ..vectors import CallTold, HookVerdict, PointVerdict, Story, Vector
from .base import Door, events_of


async def recorded(vector: Vector, folder: Path) -> RecordedRun:
    """Run a vector with a record of all points, and return the record."""
    record = RecordHook(folder / "records", points="all", redact=False)
    await events_of(Scene(vector, folder).agent(record))
    (run,) = read_runs([folder / "records"])
    return run


def moments_of(run: RecordedRun) -> list[RecordedMoment]:
    """Return the moments of a run and its nested runs, in the order in which they happened."""
    return sorted((moment for each in run.tree() for moment in each.moments), key=lambda moment: moment.position)


def points_of(run: RecordedRun, main: str = "main") -> tuple[PointVerdict, ...]:
    """Return the verdicts of the points."""
    return tuple(
        PointVerdict(moment.point, found.verb, found.hook, found.reason, _agent(moment, main))
        for moment in moments_of(run)
        if (found := moment.verdict) is not None
    )


def _agent(moment: RecordedMoment, main: str) -> str:
    """Return the agent of a moment as the vectors call it. ``main`` is the outermost agent in the record."""
    name = moment.run.info.ids.agent
    return "main" if name == main else name


class Records(Door):
    """A record: what each hook decided at each moment."""

    id = "records"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        return story_of_record(await recorded(vector, folder))


def story_of_record(run: RecordedRun, main: str = "main") -> Story:
    """Read a story from a record. ``main`` is the name of the outermost agent there."""
    assert run.end is not None
    verdicts = [
        HookVerdict(
            moment.point,
            decision.verb,
            decision.hook,
            decision.reason,
            moment.tool,
            False,
            decision.error or "",
            _agent(moment, main),
        )
        for moment in moments_of(run)
        for decision in moment.decisions
    ]
    return Story(run.end.status, run.end.stop, run.end.reply, verdicts=tuple(verdicts), points=points_of(run, main))


class Backtest(Door):
    """A backtest with the same hooks on the record: nothing would be decided differently."""

    id = "backtest"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        await recorded(vector, folder)
        scene = Scene(vector, folder)
        report = await asyncio.to_thread(backtest, scene.hooks, [folder / "records"])
        different = [(cell.hook, cell.point, cell.kind, cell.examples) for cell in report.cells if cell.kind != "same"]
        assert different == []
        assert scene.ran == []
        points = [
            PointVerdict(cell.point, "", cell.hook)
            for cell in report.cells
            if cell.hook
            for _ in range(cell.count.total)
        ]
        return Story(points=tuple(points))


class Explain(Door):
    """The explanation of a recorded run."""

    id = "explain"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        return story_of_view(explain(await recorded(vector, folder)))


def story_of_view(view: RunView) -> Story:
    """Read a story from the view of a run, which the terminal and the pages show."""
    moments = sorted(_moments(view), key=lambda pair: pair[1].n)
    verdicts = [
        HookVerdict(moment.point, each.verb, each.hook, each.reason, moment.tool, False, each.error, agent)
        for agent, moment in moments
        for each in moment.decisions
    ]
    points = [
        PointVerdict(moment.point, moment.verdict, moment.by, agent=agent)
        for agent, moment in moments
        if moment.verdict not in ("", "cont")
    ]
    calls = [CallTold(call.tool, call.outcome, call.result, agent=agent) for agent, call in _calls(view)]
    return Story(view.status, "", view.reply, verdicts=tuple(verdicts), points=tuple(points), calls=tuple(calls))


def _moments(view: RunView) -> Iterator[tuple[str, MomentView]]:
    for run, step, _ in view.all_steps():
        for moment in step.moments():
            yield run.agent, moment


def _calls(view: RunView) -> Iterator[tuple[str, ToolCallView]]:
    """Yield the calls, each after those of the runs that it started."""
    for step in view.steps:
        for item in step.items:
            if isinstance(item, ToolCallView):
                for run in item.runs:
                    yield from _calls(run)
                yield view.agent, item
