"""``hookline new agent`` writes an agent that runs, whose tests pass, and whose types are complete."""

import subprocess
import sys

import pytest


@pytest.fixture
def desk(hookline, folder):
    told = hookline("new", "agent", "desk")
    assert told.returncode == 0, told.stderr
    assert "cd desk && pytest" in told.stdout
    return folder / "desk"


def test_the_agent_runs_with_the_deps_of_the_person_at_the_terminal_and_its_guard_decides(hookline, script, desk):
    def refund(order, amount):
        turns = script({"tool": "refund_order", "arguments": {"order": order, "amount": amount}}, "Ready.")
        return hookline("run", "Refund it.", "-m", turns.replace("turns", "../turns"), cwd=desk, HOOKLINE_TRUST="")

    assert "15.00 were refunded for order A17." in refund("A17", 15).stderr
    assert "blocked: A refund of 250.00 for order B20 is not allowed: at most 100.00." in refund("B20", 250).stderr
    assert "blocked: A refund of -5.00 for order A17 is not allowed: at most 40.00." in refund("A17", -5).stderr


def test_its_settings_name_models_that_exist(desk):
    settings = (desk / "hookline.toml").read_text()
    assert '"openai:gpt-5"' in settings
    assert "openai:desk" not in settings


def test_nothing_is_overwritten_and_the_name_must_be_an_id(hookline, desk):
    again = hookline("new", "agent", "desk")
    assert (again.returncode, again.stderr) == (2, "error: desk/agent.py already exists; nothing was written\n")
    assert "use letters, digits, - and _" in hookline("new", "agent", "my desk").stderr


def test_its_own_tests_pass(desk, env):
    done = subprocess.run(
        [sys.executable, "-m", "pytest"], cwd=desk, env=env, capture_output=True, text=True, check=False
    )
    assert "3 passed" in done.stdout, done.stdout
