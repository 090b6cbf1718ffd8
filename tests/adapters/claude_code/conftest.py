"""A project with settings of Claude Code, and an agent with real tools that its hooks judge."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from hookline import Agent, ScriptedModel
from hookline.adapters.claude_code import ClaudeHooks
from hookline.tools import file_tools, shell_tool

SCRIPTS = Path(__file__).parent / "scripts"
INTERPRETERS = {".sh": "jq", ".js": "node", ".py": "python3"}


def needs(script):
    """Skip a test whose interpreter is not installed."""
    program = INTERPRETERS[Path(script).suffix]
    if shutil.which(program) is None or shutil.which("bash") is None:
        pytest.skip(f"{script} needs {program}: apt-get install {'nodejs' if program == 'node' else program}")


class Project:
    """A folder with ``.claude/settings.json``. Its hooks are real scripts, and its tools really run."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / ".claude" / "settings.json"
        self.file.parent.mkdir()
        (folder / ".claude" / "hooks").mkdir()
        self.settings = {"hooks": {}}
        self.model = None

    def add(self, event, script, matcher="", **handler):
        """Add a hook: a script of this folder, or a line for the shell."""
        command = script
        if script in os.listdir(SCRIPTS):
            needs(script)
            shutil.copy(SCRIPTS / script, self.folder / ".claude" / "hooks" / script)
            command = f'"$CLAUDE_PROJECT_DIR"/.claude/hooks/{script}'
        entry = {"type": "command", "command": command, **handler}
        self.settings["hooks"].setdefault(event, []).append({"matcher": matcher, "hooks": [entry]})
        return self

    def python(self, event, code, matcher="", **handler):
        """Add a hook that is a line of Python; ``data`` is its input."""
        script = self.folder / ".claude" / "hooks" / f"hook{len(list((self.folder / '.claude/hooks').iterdir()))}.py"
        script.write_text(f"import json, os, sys\ndata = json.load(sys.stdin)\n{code}\n")
        return self.add(event, f"{sys.executable} -S {script}", matcher, **handler)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def hooks(self, **options):
        self.file.write_text(json.dumps(self.settings))
        options.setdefault("folder", self.folder)
        return ClaudeHooks(options.pop("settings", self.file), **options)

    def agent(self, turns, *more, tools=None, names=None, agent=None, **options):
        """Make an agent with the hooks; ``names`` is the map of tools, ``agent`` are further arguments of the agent."""
        if tools is None:
            tools = [*file_tools(self.folder, write=True), shell_tool(self.folder, sandbox="off")]
        self.model = ScriptedModel(turns)
        hooks = [self.hooks(tools=names, **options), *more]
        return Agent("coder", llm=self.model, tools=tools, hooks=hooks, **(agent or {}))

    def run(self, turns, *more, task="Do it.", **options):
        return self.agent(turns, *more, **options).run(task)

    def log(self):
        """Return the inputs that ``log-event.py`` got."""
        path = self.folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "shop").mkdir()
    return Project(tmp_path / "shop")
