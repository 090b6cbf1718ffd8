"""Section: what the hooks for small models change for the embedded model."""

from typing import Any

from lab import Lab
from section import Section
from slm import report
from slm.run import SETUPS, few
from slm.run import measure as run_one
from slm.tasks import TASKS

from hookline import ScriptedModel, get_model


def measure(lab: Lab) -> dict[str, Any]:
    model: Any = ScriptedModel(["It is done."], loop=True) if lab.quick else get_model("local")
    rows: report.Rows = {setup: [] for setup in SETUPS}
    jobs = [(task, setup) for task in few(TASKS, lab.pick(None, 1)) for setup in SETUPS]
    for task, setup in lab.turns(jobs, 1, lambda job: f"{job[1]}: {job[0].text[:40]}"):
        rows[setup].append(run_one(task, SETUPS[setup](), model))
    return report.summaries(rows, model.name)


def render(data: Any) -> str:
    return report.words(data)


def draw(data: Any) -> dict[str, str]:
    return {"small-models.svg": report.chart(data)}


SECTION = Section("small_models", "Small models: what the hooks for them do", measure, render, draw, ("xllamacpp",))
