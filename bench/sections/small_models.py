"""Section: what grounding and the hooks for small models change for the embedded model."""

from typing import Any

from lab import Lab
from section import Section
from slm import report
from slm.fresh import TASKS
from slm.run import REPORTED, SETUPS, few, models
from slm.run import measure as run_one

from hookline import ScriptedModel


def measure(lab: Lab) -> dict[str, Any]:
    scripted: Any = ScriptedModel(["It is done."], loop=True)
    model_for = (lambda setup: scripted) if lab.quick else models("local")
    rows: report.Rows = {setup: [] for setup in REPORTED}
    jobs = [(task, setup) for task in few(TASKS, lab.pick(None, 1)) for setup in REPORTED]
    for task, setup in lab.turns(jobs, 1, lambda job: f"{job[1]}: {job[0].text[:40]}"):
        rows[setup].append(run_one(task, SETUPS[setup](), model_for(setup)))
    return report.summaries(rows, model_for(REPORTED[0]).name)


def render(data: Any) -> str:
    return report.words(data)


def draw(data: Any) -> dict[str, str]:
    return {"small-models.svg": report.chart(data)}


SECTION = Section("small_models", "Small models: what helps them", measure, render, draw, ("xllamacpp",))
