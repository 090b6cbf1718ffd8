"""``hookline agent-hook`` in real coding agents, with a model of ours: ``make test-agents``."""

import json
import os
import sys
from typing import NamedTuple

import pytest

from hookline.adapters.coding_agents.codecs import codec_of
from tests.agents.agents import AGENTS, ROOT, Agent
from tests.agents.payloads import IS_RECORDING
from tests.agents.sessions import Outcome, record, session

NAMES = os.environ.get("TEST_AGENTS", "").split()
pytestmark = [
    pytest.mark.skipif(not NAMES, reason="real coding agents: make test-agents"),
    pytest.mark.slow,
    pytest.mark.timeout(400),
]
PARAMS = [pytest.param(AGENTS[name], id=name) for name in NAMES]


class Work(NamedTuple):
    """One session with all calls."""

    agent: Agent
    outcome: Outcome
    labels: list[str]

    def read(self, label: str) -> str:
        """Return what the model read of the result of a call."""
        return self.outcome.model.results["MAIN"][self.labels.index(label)]


@pytest.fixture(scope="module", params=PARAMS)
def work(request, tmp_path_factory):
    """One session for all tests of an agent, because it takes seconds to start one."""
    agent, folder = request.param, tmp_path_factory.mktemp(request.param.name)
    outside = folder / "outside.txt"
    calls = {name: agent.shell(f"touch {name}") for name in ("plain", "denied", "asked", "asked-approved", "original")}
    calls |= {
        "crash": agent.shell("touch crash"),
        "printed": agent.shell("printf SEC; echo RET-1; sleep 1"),  # Qwen Code may lose the output of a shorter one
        "lookup": agent.lookup("plain"),
        "lookup denied": agent.lookup("denied"),
        "inside": agent.write(str(folder / "project" / "inside.txt")),
        "outside": agent.write(str(outside)),
        **agent.others(outside),
    }
    calls |= {name: agent.shell(f"touch {name}") for name in ("hang", "after")}
    calls |= {f"subagent {number}": call for number, call in enumerate(agent.subagent("SUBTASK: do it"))}
    inner = [agent.shell("touch sub-plain"), agent.shell("touch sub-denied")]
    scripts = {"SUBTASK": inner, "MAIN": list(calls.values())}
    outcome = session(agent, folder, "MAIN: do it", scripts)
    if IS_RECORDING:
        record(agent, folder)
    return Work(agent, outcome, list(calls))


def test_the_session_makes_all_calls(work):
    assert len(work.outcome.model.results["MAIN"]) == len(work.labels), work.outcome.output
    assert {"plain", "after", "inside.txt"} <= work.outcome.made


def test_a_denied_call_does_not_run_and_the_model_reads_the_reason(work):
    assert "denied" not in work.outcome.made
    assert "The rule of the heron forbids it." in work.read("denied")


def test_a_question_without_an_approver_is_a_denial(work):
    assert "asked" not in work.outcome.made
    assert "May the heron do it?" in work.read("asked")


def test_a_call_that_a_hook_approves_runs(work):
    assert "asked-approved" in work.outcome.made


def test_a_changed_call_runs_changed_or_not_at_all(work):
    assert "original" not in work.outcome.made
    assert ("copy" in work.outcome.made) == (work.agent.name != "qwen")
    if work.agent.name == "qwen":
        assert "does not apply the change" in work.read("original")


def test_a_rule_that_crashes_denies_and_tells_no_secret(work):
    assert "crash" not in work.outcome.made
    assert "hook 'judge' failed" in work.read("crash")
    assert "hunter2" not in json.dumps(work.outcome.model.bodies)


def test_a_rule_that_hangs_denies_before_the_agent_stops_waiting(work):
    assert "hang" not in work.outcome.made
    assert "did not answer" in work.read("hang")


def test_the_model_gets_no_redacted_text(work):
    assert "[hidden]-1" in work.read("printed")
    assert "PLAIN-[hidden]" in work.read("lookup")
    sent = json.dumps(work.outcome.model.bodies)
    assert "SECRET-1" not in sent
    assert "PLAIN-SECRET" not in sent


def test_a_tool_of_an_mcp_server_is_judged(work):
    assert work.outcome.words == ["plain"]
    assert "The rule of the heron forbids it." in work.read("lookup denied")


def test_no_file_outside_of_the_folder_is_written(work):
    assert not (work.outcome.project.parent / "outside.txt").exists()
    assert "is not allowed" in work.read("outside") or "not in workspace" in work.read("outside")
    if "patch" in work.labels:
        assert "is not allowed" in work.read("patch")


def test_a_shell_whose_input_no_hook_sees_is_denied(work):
    if not codec_of(work.agent.name).hides_input:
        pytest.skip("nothing can be typed into a running command")
    assert "reads commands that are typed later" in work.read("interactive")


def test_the_calls_of_a_subagent_are_judged(work):
    assert "sub-plain" in work.outcome.made
    assert "sub-denied" not in work.outcome.made
    assert "The rule of the heron forbids it." in work.outcome.model.results["SUBTASK"][1]


def test_the_model_reads_what_hooks_add_to_a_prompt(work):
    if work.agent.name == "opencode":
        pytest.skip("its plugin adds no text to a prompt")
    assert "The office is closed today." in json.dumps(work.outcome.model.bodies)


def test_a_run_is_kept_going(work):
    if work.agent.name == "opencode":
        pytest.skip("its plugin cannot keep a run going")
    assert "Say it again." in json.dumps(work.outcome.model.bodies[-1])


def test_the_session_is_in_the_list_of_runs_and_its_denials_in_the_statistics(work):
    runs = work.outcome.hookline("runs")
    assert codec_of(work.agent.name).platform in runs
    assert "completed" in runs or work.agent.name == "opencode"  # which may exit before its plugin says so
    statistics = work.outcome.hookline("stats")
    assert "The rule of the heron forbids it." in statistics
    assert "lookup" in statistics


@pytest.mark.parametrize("agent", PARAMS)
def test_a_blocked_prompt_is_not_answered(agent, tmp_path):
    outcome = session(agent, tmp_path, "MAIN: do my homework", {"MAIN": [agent.shell("touch canary")]})
    assert outcome.made == set()
    assert outcome.model.results["MAIN"] == []
    assert outcome.model.bodies == []


@pytest.mark.parametrize("agent", PARAMS)
def test_broken_rules_let_nothing_run(agent, tmp_path):
    outcome = session(agent, tmp_path, "MAIN: do it", {"MAIN": [agent.shell("touch canary")]}, rules="broken (")
    assert outcome.made == set()
    read = " ".join(outcome.model.results["MAIN"])
    assert not outcome.model.bodies or "the rules cannot be loaded" in read


GATEWAY_RULES = """
from hookline import AFTER_TOOL, BEFORE_TOOL, HookResult, guard, hook

@guard(BEFORE_TOOL, tools="lookup")
def judge(ctx, request):
    return HookResult.block("The rule of the heron forbids it.") if "denied" in request.arguments["word"] else None

@hook(AFTER_TOOL)
def redact(ctx, result):
    return result.with_text(result.text.replace("SECRET", "[hidden]")) if "SECRET" in result.text else None
"""
NO_RULES = """
from hookline import BEFORE_TOOL, guard

@guard(BEFORE_TOOL)
def nothing(ctx, request):
    return None
"""


@pytest.mark.parametrize("agent", PARAMS)
def test_mcp_gateway_guards_the_mcp_server_of_an_agent(agent, tmp_path):
    rules = tmp_path / "gateway.py"
    rules.write_text(GATEWAY_RULES)
    gateway = ["env", f"PYTHONPATH={ROOT / 'src'}"]  # Codex does not pass it on
    gateway += [sys.executable, "-P", "-m", "hookline", "mcp-gateway", "--rules", str(rules)]
    gateway += ["--name", "words", "--runs", str(tmp_path / "project" / "runs.db"), "--"]
    scripts = {"MAIN": [agent.lookup("plain"), agent.lookup("denied")]}
    outcome = session(agent, tmp_path, "MAIN: do it", scripts, NO_RULES, gateway)
    results = outcome.model.results["MAIN"]
    assert len(results) == 2, outcome.output
    plain, denied = results
    assert "PLAIN-[hidden]" in plain
    assert "The rule of the heron forbids it." in denied
    assert outcome.words == ["plain"]
    assert "mcp-gateway" in outcome.hookline("runs")
