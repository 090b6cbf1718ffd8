"""default_slm_hooks: their combined effect, with scripts and the embedded model."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hookline import Agent, Limits, ScriptedModel, call, get_model, reply, tool
from hookline.hooks import EchoedPayloadHook, default_slm_hooks
from hookline.testing import scripted_agent

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[2]


@tool
def weather(city: str) -> dict:
    """Look up the weather in a city."""
    return {"degrees": 14, "sky": "rain"}


PARIS = call("weather", city="Paris")


def test_a_loop_an_echo_and_an_empty_phrase_all_become_the_result():
    for turns in ([PARIS] * 5, [PARIS, reply('{"degrees": 14}')], [PARIS, reply("It is done.")]):
        result = scripted_agent(turns, tools=[weather], hooks=default_slm_hooks()).run("How is it in Paris?")
        assert "14" in result.reply
        assert "{" not in result.reply


def test_each_call_returns_new_hooks():
    first, second = default_slm_hooks(), default_slm_hooks()
    assert not {id(hook) for hook in first} & {id(hook) for hook in second}


def test_a_good_reply_is_not_changed():
    turns = [PARIS, reply("14 degrees and rain in Paris.")]
    result = scripted_agent(turns, tools=[weather], hooks=default_slm_hooks()).run("How is it in Paris?")
    assert result.reply == "14 degrees and rain in Paris."


def test_the_embedded_model_reports_the_tool_result():
    agent = Agent("small", llm=get_model("local"), tools=[weather], hooks=default_slm_hooks(), limits=Limits(steps=4))
    result = agent.run("What is the weather in Paris?")
    assert result.status in ("completed", "ended")
    assert result.successful_tool_calls >= 1
    assert "14" in result.reply


def test_each_task_of_the_ablation_is_solved_by_the_calls_that_it_names(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the program adds its folder
    ablation = runpy.run_path(str(ROOT / "bench/slm/run.py"))
    files = ("tasks", "tune", "choose", "held_out", "fresh")
    tasks = [task for name in files for task in runpy.run_path(str(ROOT / f"bench/slm/{name}.py"))["TASKS"]]
    assert {task.kind for task in tasks} == set(ablation["KINDS"])
    for task in tasks:
        open_to_the_model = {made.name: dict.fromkeys(made.spec.parameters["required"], "x") for made in task.tools()}
        calls = [call(name, **open_to_the_model[name] | dict(arguments)) for name, arguments in task.calls]
        twice = [made for made in calls for _ in range(2)]  # a tool may fail once
        wrong = [call(task.tools()[0].name)] if task.kind == "small talk" else []  # any reply will do, but no call
        for turns, solved in (([*twice, reply(task.value or "Hi.")], True), ([*wrong, reply("No.")], False)):
            assert ablation["measure"](task, [], ScriptedModel(turns))["solved"] is solved, task.text


TASKS = """
from slm.tasks import Task, weather_in

TASKS = [Task("one call", "Weather in Paris?", lambda: [weather_in], "14", (("weather_in", {"city": "Paris"}),))]
"""


def test_the_ablation_runs(tmp_path):
    """On one task with one tool: the model has less to read than in its own tasks."""
    (tmp_path / "tasks.py").write_text(TASKS)
    command = [
        sys.executable,
        "bench/slm/run.py",
        "--tasks",
        tmp_path / "tasks.py",
        "--setups",
        "no hooks; all, grounded",
    ]
    command += ["--only", "1", "--kind", "one call"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 tasks" in done.stdout


def test_hooks_that_only_help_never_make_a_run_fail():
    def broken(value):
        raise KeyError("price")

    hooks = [*default_slm_hooks()[:1], EchoedPayloadHook(broken)]
    result = scripted_agent([PARIS, reply('{"degrees": 14}')], tools=[weather], hooks=hooks).run("How is it in Paris?")
    assert (result.status, result.reply) == ("completed", '{"degrees": 14}')
    assert result.errors[0].source == "EchoedPayloadHook"
    assert {getattr(hook, "on_failure", "closed") for hook in default_slm_hooks()} == {"open"}
