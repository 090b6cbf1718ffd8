"""A coding agent repairs a small repository inside the sandbox, with commands that the developer profile allows."""

import subprocess
from pathlib import Path

import pytest

from hookline import Agent, Limits, ScriptedModel, call, reply
from hookline._toolbox.sandbox import level_state
from hookline.hooks import TerminalGuard
from hookline.tools import Sandbox, shell_tool

SOURCES = Path(__file__).parents[2] / "src"
CODE = "def mean(values):\n    return sum(values) / len(values) + 1\n"
TEST = "from stats import mean\n\n\ndef test_mean():\n    assert mean([1, 2, 3]) == 2\n"

REPAIR = [
    "git status --short && ls -la && cat stats.py test_stats.py",
    "python -m pytest -q",
    "grep -n 'return' *.py | head -3; for file in *.py; do wc -l $file; done",
    "git checkout -q -b repair",
    "sed -i 's| / len(values) + 1| / len(values)|' stats.py && git diff",
    "cat > test_more.py <<'END'\nfrom stats import mean\n\n\ndef test_one():\n    assert mean([5]) == 5\nEND",
    "python -m pytest -q 2>&1 | tail -5",
    "git add -A && git commit -q -m 'The mean is the mean' && git log --oneline | wc -l",
]
ESCAPES = [
    "cat ../secret || true",
    "echo broken > ../secret || true",
    "python -c \"open('../secret', 'w')\" || true",
    "python -c \"import urllib.request as u; u.urlopen('http://127.0.0.1:9')\" || true",
]


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "stats.py").write_text(CODE)
    (folder / "test_stats.py").write_text(TEST)
    (folder / ".gitignore").write_text("__pycache__/\n.pytest_cache/\n")
    (tmp_path / "secret").write_text("sk-very-secret")
    git = ["git", "-C", str(folder), "-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Statistics"]):
        subprocess.run([*git, *words], check=True)
    return folder


@pytest.mark.parametrize("level", ["bubblewrap", pytest.param("landlock", marks=pytest.mark.slow)])
def test_a_coding_agent_repairs_a_failing_test_in_the_sandbox(repository, level):
    if problem := level_state(level).problem:
        pytest.skip(f"{level}: {problem}")
    # Hookline's own pytest plugin is installed here from its sources, which are outside the Python environment.
    sandbox = Sandbox(level, readable=[SOURCES])
    shell = shell_tool(repository, sandbox=sandbox, env={"PYTHONPATH": str(SOURCES)})
    turns = [call("shell", command=command) for command in (*REPAIR, *ESCAPES)]
    agent = Agent(
        "coder",
        llm=ScriptedModel([*turns, reply("The test passes.")]),
        tools=[shell],
        hooks=[TerminalGuard(repository, profile="developer")],
        limits=Limits(steps=20),
    )
    result = agent.run("Repair the failing test")
    outcomes = [step.outcomes for step in result.steps[: len(REPAIR)]]
    assert outcomes == [("ok",)] * len(REPAIR)
    said = [message.content for message in result.messages if message.role == "tool"]
    assert "1 failed" in said[1]
    assert "2 passed" in said[6]
    assert said[7] == "2\n[exit code 0]"
    assert "sk-very-secret" not in "".join(said)
    assert (repository.parent / "secret").read_text() == "sk-very-secret"
    assert (
        subprocess.run(
            ["python3", "-c", "import test_stats; test_stats.test_mean()"], cwd=repository, check=False
        ).returncode
        == 0
    )
    shown = subprocess.run(
        ["git", "-C", repository, "show", "--stat", "--format=%an %s"], capture_output=True, text=True, check=True
    )
    assert "The mean is the mean" in shown.stdout
    assert "stats.py" in shown.stdout
    assert "test_more.py" in shown.stdout
