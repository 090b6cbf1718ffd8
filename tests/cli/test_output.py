"""Typed output on the command line: stdout is its JSON, for the next program."""

import pytest

from hookline import Agent, AgentContext, ScriptedModel, call
from hookline.cli.app import run_app
from hookline.cli.runner import combine, run_with_handovers
from hookline.teams import Team


@pytest.mark.parametrize(
    ("output_type", "text", "shown"),
    [
        (dict[str, int], 'Sure: {"a": 1}', '{"a":1}\n'),
        (list[int], '{"value": [1, 2]}', "[1,2]\n"),
        (bool, "true", "true\n"),
        (None, "It is 3.", "It is 3.\n"),
    ],
)
def test_run_prints_the_json_of_the_output(monkeypatch, tmp_path, capsys, output_type, text, shown):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOKLINE_HOME", str(tmp_path))
    agent = Agent("a", llm=ScriptedModel([text]), output_type=output_type)
    monkeypatch.setattr("hookline.teams.build.build_answerer", lambda *_, **__: agent)
    assert run_app(["run", "x", "--quiet"]) == 0
    assert capsys.readouterr().out == shown


def test_replies_of_several_agents_in_one_turn_are_combined():
    team = Team()
    turn = ["Over to judge.", call("handoff", to="judge", message="Yours.")]
    team.add(Agent("chief", llm=ScriptedModel([turn]), tools=[team]))
    team.add(Agent("judge", llm=ScriptedModel(['{"value": [1]}']), tools=[team], output_type=list[int]))
    outcome = combine(list(run_with_handovers(team, "go", AgentContext(), [])))
    assert outcome.result.output_text == "Over to judge.\n\n[1]"
