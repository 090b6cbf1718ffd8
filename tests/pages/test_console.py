"""The commands of the pages work as they are typed, in the order of the page, and write what the page shows."""

import json
import re
import shutil
import tomllib

import pytest

from hookline._toolbox.sandbox import LEVELS, level_state

from .blocks import PAGES, ROOT, blocks_in
from .console import bare, commands_in
from .masks import missing
from .scenes import SCENES, Scene
from .shell import READY, Shell, free_port

NO_CONTAINERS = "it needs PostgreSQL or containers: tests/examples/test_fleet_processes.py starts the same processes"
NOT_RUN = {
    "pip install": "it would change this environment",
    ".venv/bin/pip install": "it would change this environment",
    "make run": "it makes an environment first; tests/cli/test_tour.py does the rest of it",
    "make test": "it is what runs this",
    "make dist": "it installs four environments; tests/release/test_wheel.py builds and checks the packages",
    "hookline models pull": "it fetches 93 MB; tests/providers has it with a wheel at hand",
    "mosquitto_sub": "there is no broker at broker.example.org; tests/channels/test_mqtt.py has a real one",
    "mosquitto_pub": "there is no broker at broker.example.org; tests/channels/test_mqtt.py has a real one",
    "docker compose": NO_CONTAINERS,
    "cd examples/fleet": NO_CONTAINERS,
    "KEY=$(docker compose": NO_CONTAINERS,
    'echo "POSTGRES_PASSWORD': NO_CONTAINERS,
    "curl -s http://localhost:8080": NO_CONTAINERS,
    "curl -sN http://localhost:8080": NO_CONTAINERS,
    "RUN=$(curl -s http://localhost:8080": NO_CONTAINERS,
    "export HOOKLINE_DATABASE": NO_CONTAINERS,
    "hookline db init": NO_CONTAINERS,
    "hookline serve --durable --no-execute": NO_CONTAINERS,
    "hookline worker": NO_CONTAINERS,
    "hookline protect": "it changes settings of coding agents; tests/cli/test_protect.py and make test-agents run it",
    "uvicorn": "tests/server/test_fastapi.py starts the app of the guide",
}
"""Commands that are looked at and not run, and why."""
PORTS = ("8420", "8765", "8080")
TOOLS = ("curl", "git", "jq", "openssl", "script")

WITH_COMMANDS = [page for page, blocks in PAGES.items() if any(block.kind in ("console", "sh") for block in blocks)]


def not_run(command):
    """Why a command is not run."""
    return next((why for start, why in NOT_RUN.items() if re.match(re.escape(start) + r"\b", command)), "")


def best(table, command):
    """Return the entry of a table for a command; the longest matching prefix counts."""
    fitting = [start for start in table if command.startswith(start)]
    return table[max(fitting, key=len)] if fitting else None


def stays(command, scene):
    """Return the output that a long-running command prints when it is ready."""
    if re.search(r"(^|/)hookline (serve|gateway)( --.*)?$", bare(command)):
        return READY
    return best(scene.stays, command)


class Stage:
    """A page's folder, shell and scene."""

    def __init__(self, page, folder, programs):
        self.scene = SCENES.get(page, Scene())
        self._ports = {port: str(free_port()) for port in PORTS}
        (folder / "turns.json").write_text(json.dumps(self.scene.turns))
        env = {name: self.real(value) for name, value in self.scene.env.items()}
        self.shell = Shell(folder, programs, HOOKLINE_MODEL=f"scripted:{folder / 'turns.json'}", **env)
        if self.scene.checkout:
            examples = self.shell.folder / "examples"
            shutil.copytree(ROOT / "examples", examples, ignore=shutil.ignore_patterns("data", "__pycache__"))
            for file in examples.glob("*/*.toml"):
                file.write_text(self.real(file.read_text()))
            (self.shell.folder / ".venv").mkdir()
            (self.shell.folder / ".venv/bin").symlink_to(programs)
        for name, text in self.scene.files.items():
            self.write(name, text)

    def real(self, text):
        """A text with ports that are free here."""
        return re.sub("|".join(PORTS), lambda found: self._ports[found[0]], text)

    def write(self, name, text):
        """Put a file into the folder."""
        (self.shell.folder / name).parent.mkdir(exist_ok=True)
        (self.shell.folder / name).write_text(self.real(text))

    def prepare(self, text, where):
        """Do what the page takes for granted."""
        ours = best(self.scene.before, text)
        if ours:
            status, wrote = self.shell.run(self.real(ours))
            assert status == 0, f"{where}: before {text}: {ours}:\n{wrote}"

    def run(self, command):
        """Run a command of the page; what it wrote."""
        text = command.text
        if not_run(text):
            return ""
        self.prepare(text, command.block)
        for example, word in self.scene.names.items():
            text = text.replace(example, word)
        ready = stays(text, self.scene)
        if ready:
            wrote = self.shell.start(self.real(bare(text)), ready).read_text()
        else:
            status, wrote = self.shell.run(self.real(text), typed=best(self.scene.typed, text + " "))
            assert status == (best(self.scene.exits, text) or 0), (
                f"{command.block}: {text}: exits with {status}:\n{wrote}"
            )
        assert missing(self.real(command.output), wrote) == [], f"{command.block}: {text}:\n{wrote}"
        return wrote

    def run_python(self, block):
        """Run a program of the page that needs what its commands began."""
        self.prepare(block.text, block)
        self.write("block.py", block.text)
        status, wrote = self.shell.run("python block.py")
        assert status == 0, f"{block}:\n{wrote}"
        return wrote


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page_work_and_print_the_output_shown(page, tmp_path, programs):
    shown = "".join(block.text for block in PAGES[page])
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None and re.search(rf"\b{tool} ", shown)]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} is not installed")
    for problem in {level_state(level).problem for level in LEVELS if f"sandbox {level} " in shown}:
        if problem:
            pytest.skip(f"the sandbox: {problem}")
    stage, wrote = Stage(page, tmp_path, programs), ""
    try:
        for block in PAGES[page]:
            if block.output_of == "console":
                assert missing(block.text, wrote) == [], f"{block}:\n{wrote}"
            elif block.file:
                stage.write(block.file, block.text)
            elif block.kind == "py":
                wrote = stage.run_python(block)
            elif block.kind in ("console", "sh"):
                for command in commands_in(block):
                    wrote = stage.run(command)
    finally:
        stage.shell.close()


SHOWN = [
    command.text for page in WITH_COMMANDS for b in PAGES[page] if b.kind == "console" for command in commands_in(b)
]


def test_commands_that_are_not_run_are_on_a_page_and_valid():
    skipped = {command for command in SHOWN if not_run(command)}
    assert all(any(command.startswith(start) for command in skipped) for start in NOT_RUN)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in skipped:
        for wanted in re.findall(r"(?:hookline|\.)\[([\w,]+)\]", command):
            assert set(wanted.split(",")) <= extras.keys(), command
        for target in re.findall(r"^make (\w+)", command):
            assert target in targets, command


def test_scenes_belong_to_pages_with_commands_and_match_them():
    assert SCENES.keys() <= set(WITH_COMMANDS)
    for page, scene in SCENES.items():
        shown = [c.text for b in PAGES[page] if b.kind in ("console", "sh") for c in commands_in(b)]
        shown += [block.text for block in PAGES[page] if block.kind == "py"]
        for start in (*scene.before, *scene.typed, *scene.stays, *scene.exits):
            assert any((text + " ").startswith(start) for text in shown), f"{page}: {start}"


def test_a_command_that_fails_or_writes_something_else_is_noticed(tmp_path, programs):
    stage = Stage("", tmp_path, programs)
    try:
        (good,) = commands_in(blocks_in("```console\n$ hookline --version\nhookline 9.8.7\n```\n")[0])
        assert stage.run(good).startswith("hookline ")
        for wrong in ("hookline --version\nHookline\n", "hookline runn\n", "false\n"):
            (command,) = commands_in(blocks_in(f"```console\n$ {wrong}```\n")[0])
            with pytest.raises(AssertionError):
                stage.run(command)
    finally:
        stage.shell.close()
