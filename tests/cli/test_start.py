"""How the program starts: quickly, and with a word about what it lacks."""

import subprocess
import sys
from pathlib import Path

import pytest

from hookline import __version__
from hookline.cli.app import COMMANDS, make_app, run_app
from hookline.config.settings import KEYS

ROOT = Path(__file__).parents[2]


def python(code):
    env = {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)


def test_help_and_version_need_neither_rich_nor_pydantic():
    done = python(
        "import sys\nfrom hookline.cli.app import COMMANDS, make_app, run_app\n"
        "run_app(['--help'])\nrun_app(['--version'])\n"
        "print({'rich', 'pydantic', 'openai', 'mcp', 'httpx'} & set(sys.modules))\n"
    )
    assert done.stdout.splitlines()[-1] == "set()", done.stderr
    assert f"hookline {__version__}" in done.stdout
    for words in ("Run an agent on one task.", "Exit codes:", "130  cancelled"):
        assert words in done.stdout


def test_a_run_imports_only_what_it_uses(tmp_path):
    (tmp_path / "script.json").write_text('["hello"]')
    done = python(
        "import os, sys\nfrom hookline.cli.app import run_app\n"
        f"os.environ['HOME'] = {str(tmp_path)!r}\nos.chdir({str(tmp_path)!r})\n"
        "run_app(['run', '--model', 'scripted:script.json', 'hi'])\n"
        "print({'markdown_it', 'pygments', 'hookline.tape.recording', 'starlette'} & set(sys.modules))\n"
    )
    assert done.stdout.splitlines() == ["hello", "set()"], done.stderr


def test_a_server_without_a_terminal_does_not_import_what_draws_on_one():
    done = python("import sys, hookline.cli.serve\nprint({'rich', 'prompt_toolkit'} & set(sys.modules))")
    assert done.stdout == "set()\n", done.stderr


def test_garbage_is_looked_for_as_usual_once_a_run_begins(tmp_path):
    (tmp_path / "script.json").write_text('["hello"]')
    done = python(
        "import atexit, gc, os, sys\nfrom hookline.cli.main import main\nusual = gc.get_threshold()\n"
        "atexit.register(lambda: print(gc.get_threshold() == usual, gc.get_freeze_count() > 1000))\n"
        f"os.environ['HOME'] = {str(tmp_path)!r}\nos.chdir({str(tmp_path)!r})\n"
        "sys.argv = ['hookline', 'run', '--model', 'scripted:script.json', 'hi']\nmain()\n"
    )
    assert done.stdout.splitlines() == ["hello", "True True"], done.stderr


def test_a_server_imports_the_sdk_of_a2a_when_it_is_called(tmp_path):
    done = python(
        "import asyncio, sys\nfrom hookline import Agent, ScriptedModel\n"
        "from hookline.config.settings import Settings\n"
        "from hookline.server.build import build_server\nimport httpx\n"
        "async def main():\n"
        f"    settings = Settings(runs={str(tmp_path / 'runs.db')!r}, server={{'port': 0}})\n"
        "    server = build_server(settings, Agent('helper', llm=ScriptedModel(['hello'])))\n"
        "    await server.start()\n"
        "    print('a2a.types' in sys.modules)\n"
        "    async with httpx.AsyncClient(timeout=60) as http:\n"
        "        card = (await http.get(server.url + '/.well-known/agent-card.json')).json()\n"
        "    print(card['name'], 'a2a.types' in sys.modules)\n"
        "    await server.stop()\n"
        "asyncio.run(main())\n"
    )
    assert done.stdout.splitlines() == ["False", "helper True"], done.stderr


def test_the_help_of_a_command_groups_its_options(capsys):
    assert run_app(["run", "--help"]) == 0
    out = capsys.readouterr().out
    headings = [
        line for line in out.splitlines() if line in ("Model", "Tools and hooks", "Limits", "Control", "Options")
    ]
    assert headings == ["Model", "Tools and hooks", "Limits", "Control", "Options"]
    assert all(key.about.flag.partition("/")[0] in out for key in KEYS.values())


def test_the_help_page_shows_the_commands_in_groups(capsys):
    assert run_app(["--help"]) == 0
    groups = [part.splitlines() for part in capsys.readouterr().out.split("\n\n")]
    evidence = next(lines for lines in groups if lines[0] == "Test rules on recorded runs")
    assert [line.split()[0] for line in evidence[1:]] == ["backtest", "coverage", "suggest", "replay", "import"]


@pytest.mark.parametrize("name", ["tickets", "plugins", "skills", "models", "audit"])
def test_a_group_alone_shows_its_commands(capsys, name):
    assert run_app([name]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "Commands" in shown.out


@pytest.mark.parametrize(
    "name", ["run", "chat", "gateway", "tickets", "plugins", "skills", "config", "stats", "audit", "new"]
)
def test_help_fits_80_columns(monkeypatch, capsys, name):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_app([name, "--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_the_help_page_has_the_summary_of_every_command():
    program = make_app()
    assert {name: program.commands[name].get_short_help_str(200) for name in program.commands} == COMMANDS


def test_the_list_of_commands_says_all_that_new_can_write(capsys):
    assert run_app(["--help"]) == 0
    assert "Write an agent, hook, tool, plugin or personality" in " ".join(capsys.readouterr().out.split())


def test_without_typer_the_error_says_what_to_install():
    done = python("import sys\nsys.modules['typer'] = None\nfrom hookline.cli.main import main\nmain()\n")
    assert done.returncode == 2
    where = "." if Path.cwd() == ROOT else ROOT
    assert done.stderr == f"error: the command line needs typer and rich: pip install -e '{where}[cli]'\n"


def test_completion_knows_commands_and_points():
    done = python(
        "import os, sys\nfrom hookline.cli.app import COMMANDS, make_app, run_app\n"
        "os.environ.update(_HOOKLINE_COMPLETE='complete_bash', COMP_WORDS='hookline points before_t', COMP_CWORD='2')\n"
        "run_app([])\n"
    )
    assert set(done.stdout.split()) == {"before_tool", "before_ticket_complete"}, done.stderr
