"""The commands of the pages work as they are typed, in the order of the page, and write what the page shows."""

import re
import shutil

import pytest

from .blocks import PAGES, ROOT
from .console import bare, commands_in, hookline_calls, parse
from .masks import missing
from .scenes import SCENES, Scene, script
from .shell import READY, Shell, free_port

NOT_RUN = {
    "pip install": "it would change this environment",
    ".venv/bin/pip install": "it would change this environment",
    "make run": "it makes an environment first; tests/cli/test_tour.py does the rest of it",
    "make test": "it is what runs this",
    "hookline models pull": "it fetches 93 MB; tests/providers has it with a wheel at hand",
    "mosquitto_sub": "there is no broker at broker.example.org; tests/channels/test_mqtt.py has a real one",
    "mosquitto_pub": "there is no broker at broker.example.org; tests/channels/test_mqtt.py has a real one",
}
"""Commands that are looked at and not run, and why."""
PORTS = ("8420", "8765", "8080")
TOOLS = ("curl", "git", "jq", "openssl", "script")

WITH_COMMANDS = [page for page, blocks in PAGES.items() if any(block.kind in ("console", "sh") for block in blocks)]


def not_run(command):
    return next((why for start, why in NOT_RUN.items() if re.match(re.escape(start) + r"\b", command)), "")


def stays(command, scene):
    if re.search(r"(^|/)hookline (serve|gateway)( --.*)?$", bare(command)):
        return READY
    return next((ready for start, ready in scene.stays.items() if command.startswith(start)), None)


def best(table, command):
    """What a table says of commands that begin so; the longest beginning counts."""
    fitting = [start for start in table if command.startswith(start)]
    return table[max(fitting, key=len)] if fitting else None


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page_work_and_write_what_it_shows(page, tmp_path, programs):
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None and re.search(rf"\b{tool} ", (ROOT / page).read_text())]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} is not installed")
    scene = SCENES.get(page, Scene())
    ports = {port: str(free_port()) for port in PORTS}

    def real(text):
        return re.sub("|".join(PORTS), lambda found: ports[found[0]], text)

    (tmp_path / "turns.json").write_text(script(scene))
    env = {"HOOKLINE_MODEL": f"scripted:{tmp_path / 'turns.json'}"} | {k: real(v) for k, v in scene.env.items()}
    shell = Shell(tmp_path, programs, **env)
    try:
        if scene.checkout:
            shutil.copytree(ROOT / "examples", shell.folder / "examples", ignore=shutil.ignore_patterns("data", "__pycache__"))
            for file in (shell.folder / "examples").glob("*/*.toml"):
                file.write_text(real(file.read_text()))
            (shell.folder / ".venv").mkdir()
            (shell.folder / ".venv/bin").symlink_to(programs)
        for name, text in scene.files.items():
            (shell.folder / name).parent.mkdir(exist_ok=True)
            (shell.folder / name).write_text(real(text))
        before, wrote = dict(scene.before), ""
        for block in PAGES[page]:
            if block.kind == "text" and block.previous and block.previous.kind == "console":
                assert missing(block.text, wrote) == [], f"{block}:\n{wrote}"
            if block.file and block.kind != "console":
                (shell.folder / block.file).write_text(real(block.text))
            if block.kind == "py":
                (shell.folder / "block.py").write_text(real(block.text))
                ours = best(before, block.text)
                if ours:
                    assert shell.run(real(ours))[0] == 0
                status, wrote = shell.run("python block.py")
                assert status == 0, f"{block}:\n{wrote}"
            if block.kind not in ("console", "sh"):
                continue
            for command in commands_in(block):
                wrote = run(shell, scene, command, before, real)
    finally:
        shell.close()


def run(shell, scene, command, before, real):
    text = command.text
    if not_run(text):
        return ""
    ours = best(before, text)
    if ours:
        status, wrote = shell.run(real(ours))
        assert status == 0, f"{command.block}: before {text}: {ours}:\n{wrote}"
    for example, word in scene.names.items():
        text = text.replace(example, word)
    ready = stays(text, scene)
    if ready:
        wrote = shell.start(real(bare(text)), ready).read_text()
        wanted = 0
    else:
        status, wrote = shell.run(real(text), typed=best(scene.typed, text + " "))
        wanted = best(scene.exits, text) or 0
        assert status == wanted, f"{command.block}: {text}: exit status {status}:\n{wrote}"
    assert missing(real(command.output), wrote) == [], f"{command.block}: {text}:\n{wrote}"
    return wrote
