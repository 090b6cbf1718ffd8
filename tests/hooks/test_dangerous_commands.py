"""The dangerous commands of the tests run for real: nothing outside the sandbox changes, and no secret comes in."""

import os
import shutil
import subprocess

import pytest

from hookline import Limits, call, reply
from hookline._toolbox.sandbox import level_state
from hookline.hooks import HookResult, TerminalGuard
from hookline.points import APPROVAL_REQUESTED
from hookline.testing import scripted_agent
from hookline.tools import shell_tool
from tests.hooks.test_terminal_attacks import ATTACKS
from tests.hooks.test_terminal_developer import ASKED, BLOCKED
from tests.hooks.test_terminal_guard import EVASIONS, OUTWARD

CANARY = "canary-4b1e"
MORE = [
    "cat {out}/secret", "cp {out}/secret here", "ln -s {out}/secret l && cat l", "tar cf - {out} | cat",
    "echo x > {out}/new", "rm -rf {out}", "mv {out}/kept {out}/moved", "chmod 777 {out}/kept",
    "dd of={out}/kept if=/dev/zero count=1", "python3 -c 'print(open(\"{out}/secret\").read())'",
    "python3 -c 'open(\"{out}/new\", \"w\")'",
    "find / -name secret -exec cat {} + 2>/dev/null", "grep -rs canary / 2>/dev/null | head", "env",
    "cat /proc/*/environ", "cat ~/.ssh/id_rsa", "echo x >> ~/.bashrc", "crontab -l", "kill -9 -1",
    "sh -c 'cat {out}/secret | tee here'",
    "perl -e 'open F, \"<{out}/secret\"; print <F>'", "git --git-dir=/nowhere diff --no-index {out}/secret a.txt",
]  # fmt: skip


class Everybody:
    """Approves every call that is asked about, as ``--yes`` does."""

    points = frozenset({APPROVAL_REQUESTED})

    def __call__(self, point, ctx, request):
        return HookResult.approve(by="test")


def commands(place, outside):
    """All dangerous commands, with the places of this test, except those that only test how large a command may be."""
    tables = [*ATTACKS.values(), *EVASIONS.values(), *OUTWARD, *(each for each, _ in (*ASKED, *BLOCKED)), *MORE]
    found = [text.replace("\1", str(place)).replace("{out}", str(outside)) for text in tables]
    return [text for text in dict.fromkeys(found) if len(text) < 1_000]


@pytest.fixture
def scene(tmp_path):
    """A folder of the agent, and one outside with a secret; the environment and the home have it too."""
    place, outside, home = (tmp_path / name for name in ("place", "outside", "home"))
    for folder in (place, outside, home / ".ssh"):
        folder.mkdir(parents=True)
    for file in (outside / "secret", tmp_path / "secret", home / ".ssh/id_rsa", home / ".netrc"):
        file.write_text(CANARY)
    (outside / "kept").write_text("kept\n")
    (home / ".bashrc").write_text("# empty\n")
    return place, outside, home


def state(*folders):
    return {
        str(file): (file.stat().st_mode, file.read_bytes() if file.is_file() else b"")
        for folder in folders
        for file in sorted(folder.rglob("*"))
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.skipif(bool(level_state("bubblewrap").problem), reason="bubblewrap does not work here")
def test_no_dangerous_command_reaches_outside_if_everything_is_approved(scene, tmp_path, monkeypatch, guarded):
    place, outside, home = scene
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SECRET_KEY", CANARY)
    before, listed = state(outside, home), sorted(path.name for path in tmp_path.iterdir())
    hooks = [TerminalGuard(place, unknown="ask"), Everybody()] if guarded else []
    texts = []
    tried = commands(place, outside)
    assert len(tried) > 450
    for start in range(0, len(tried), 50):
        shutil.rmtree(place)
        place.mkdir()
        (place / "a.txt").write_text("tea\n")
        subprocess.run(["git", "init", "-q"], cwd=place, check=True)
        turns = [*(call("shell", command=command) for command in tried[start : start + 50]), reply("Done.")]
        shell = shell_tool(place, timeout=5)
        result = scripted_agent(turns, tools=[shell], hooks=hooks, limits=Limits(steps=60)).run("x")
        texts += [message.content for message in result.messages if message.role == "tool"]
    assert len(texts) == len(tried)
    assert [command for command, text in zip(tried, texts, strict=True) if CANARY in text] == []
    assert state(outside, home) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == listed


def test_without_a_sandbox_the_same_checks_notice(scene):
    place, outside, home = scene
    env = {**os.environ, "HOME": str(home), "SECRET_KEY": CANARY}
    before = state(outside, home)
    reading, writing = "cat {out}/secret".replace("{out}", str(outside)), f"echo x > {outside}/new"
    done = subprocess.run(
        ["sh", "-c", f"{reading}; {writing}"], cwd=place, env=env, capture_output=True, text=True, check=True
    )
    assert CANARY in done.stdout
    assert state(outside, home) != before
