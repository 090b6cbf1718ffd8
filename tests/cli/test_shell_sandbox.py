"""``hookline run --shell`` in a usual project, with its configuration and hooks in the folder of the commands."""

import json

import pytest

from hookline._toolbox.sandbox import level_state

COMMAND = """
python -c "open('hook' + 'line.toml', 'a').write('x')"
cd hooks
for file in *; do echo x >> $file; done
echo x > planted.py
cd ..
mv hooks old
echo ok > made
"""
RULES = """
from helper import note
from hookline import observer


@observer("before_tool")
def watch(ctx, request):
    note(request)
"""
HELPER = "def note(request):\n    pass\n"


@pytest.fixture
def project(folder):
    (folder / "hooks").mkdir()
    (folder / "hooks" / "rules.py").write_text(RULES)
    (folder / "hooks" / "helper.py").write_text(HELPER)
    (folder / "turns.json").write_text(json.dumps([[{"tool": "shell", "arguments": {"command": COMMAND}}], "Done."]))
    (folder / "hookline.toml").write_text('shell = true\nshell_profile = "developer"\nhooks = ["hooks/rules.py"]\n')
    return folder


def need(level):
    if problem := level_state(level).problem:
        pytest.skip(f"{level}: {problem}")


@pytest.mark.parametrize("write", [True, False])
def test_commands_write_to_the_project_but_not_to_what_controls_the_agent(hookline, project, write):
    need("bubblewrap")
    before = (project / "hookline.toml").read_text()
    flags = ["--write"] if write else []
    done = hookline("run", "Go", "--model", "scripted:turns.json", "--trust", "--json", *flags)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])["result"]
    assert result["steps"][0]["outcomes"] == ["ok"]
    assert (project / "made").exists() == write
    assert (project / "hookline.toml").read_text() == before
    assert (project / "hooks" / "rules.py").read_text() == RULES
    assert (project / "hooks" / "helper.py").read_text() == HELPER
    assert not (project / "hooks" / "planted.py").exists()


def test_landlock_refuses_this_project_unless_commands_only_read(hookline, project):
    need("landlock")
    options = ("run", "Go", "--model", "scripted:turns.json", "--trust", "--sandbox", "level=landlock")
    assert hookline(*options).returncode == 0
    done = hookline(*options, "--write")
    assert done.returncode == 2
    assert "hookline.toml is the configuration file, and commands could change it" in done.stderr
