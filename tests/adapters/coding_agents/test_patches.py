"""Files of ``apply_patch``, in the tool and inside of commands."""

import json

import pytest

from hookline._kernel.registry import HookRegistry
from hookline.adapters.coding_agents.codecs import codec_of
from hookline.adapters.coding_agents.judge import Judge
from hookline.adapters.coding_agents.patches import PatchError, files_of, patches_in
from hookline.adapters.coding_agents.rules import Rules
from hookline.adapters.coding_agents.typed_input import reads_typed_commands
from hookline.hooks import PathGuard
from tests.cases import each_case

PATCH = """*** Begin Patch
*** Add File: docs/new.md
+*** Delete File: /etc/shadow
+*** End Patch
+hello
*** Update File: src/a.py
*** Move to: src/b.py
@@ def f():
-    pass
+    return 1
*** End of File
*** Delete File: old.txt
*** End Patch"""


def test_all_files_of_a_patch_are_found():
    assert files_of(PATCH) == ["docs/new.md", "src/a.py", "src/b.py", "old.txt"]


@each_case(
    "text",
    [
        "*** Begin Patch\n*** End Patch",
        "*** Begin Patch\n+x\n*** End Patch",
        "*** Begin Patch\n*** Add File: a\n+x",
        "*** Begin Patch\n*** Rename File: a\n*** End Patch",
        "apply_patch < changes.diff",
        "git diff | apply_patch",
        "timeout 5 apply_patch changes.diff",
        "cd /tmp; applypatch 'x",
        "*** Begin Patch\n*** Add File: a\n*** Begin Patch\n*** End Patch",
        "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n*** Delete File: /etc/passwd",
    ],
)
def test_a_patch_that_cannot_be_read_is_an_error(text):
    with pytest.raises(PatchError):
        patches_in(text, is_command=not text.startswith("***"))


def test_commands_without_a_patch_have_none():
    for command in (
        "git status && ls",
        "grep -rn apply_patch src",
        "cat docs/apply_patch.md",
        "git log --grep applypatch",
    ):
        assert patches_in(command, is_command=True) == ()
    assert len(patches_in(f"cd src && apply_patch <<'EOF'\n{PATCH}\nEOF\n")) == 1


async def decide(agent, folder, tool, given):
    judge = Judge(Rules(HookRegistry([PathGuard(folder, write=True)])), codec_of(agent))
    event = {"session_id": "s", "turn_id": "t", "model": "m", "cwd": str(folder), "hook_event_name": "PreToolUse"}
    answer = await judge.answer("\0\0", json.dumps(event | {"tool_name": tool, "tool_input": given}).encode())
    return answer.code, answer.stderr.decode()


PLACES = ["/etc/passwd", "../outside.txt", ".git/hooks/pre-commit", ".env", "sub/../../x"]


@pytest.mark.parametrize("place", PLACES)
async def test_a_path_guard_sees_each_file_of_a_patch(place, tmp_path):
    for line in (
        f"*** Add File: {place}\n+x",
        f"*** Update File: a\n*** Move to: {place}",
        f"*** Delete File: {place}",
    ):
        patch = f"*** Begin Patch\n*** Add File: fine.txt\n+x\n{line}\n*** End Patch"
        assert (await decide("codex", tmp_path, "apply_patch", {"command": patch}))[0] == 2
        for command in (f"apply_patch <<'EOF'\n{patch}\nEOF", f"cd . && apply_patch '{patch}'"):
            assert (await decide("codex", tmp_path, "Bash", {"command": command}))[0] == 2
    lines = "*** Begin Patch\n*** Add File: x\n+x\n*** End Patch"
    for start in ("cd .. &&", "cd / &&", "cd $X &&", "cd sub && cd ../.. &&", "pushd .. &&"):
        assert (await decide("codex", tmp_path, "Bash", {"command": f"{start} apply_patch <<'EOF'\n{lines}\nEOF"}))[
            0
        ] == 2
    fine = "*** Begin Patch\n*** Add File: fine.txt\n+x\n*** End Patch"
    assert await decide("codex", tmp_path, "apply_patch", {"command": fine}) == (0, "")
    assert await decide("codex", tmp_path, "Bash", {"command": f"apply_patch <<'EOF'\n{fine}\nEOF"}) == (0, "")


@each_case(
    "command",
    [
        "bash",
        "sh -i",
        "bash -s",
        "cd src && bash",
        "timeout 60 bash",
        "env FOO=1 python3",
        "python3 -i script.py",
        "python3 -",
        "node",
        "cat | sh",
        "cat - | bash",
        "cat /dev/stdin | bash",
        "bash < /dev/tty",
        "(bash)",
        "psql shop",
        "sqlite3 shop.db",
        "ssh host",
        "vim notes.txt",
        "sudo -i",
        "docker run -it debian bash",
        "true; bash #",
        "echo $(bash)",
        "echo 'unclosed",
    ],
)
def test_programs_that_run_what_is_typed_later_are_found(command):
    assert reads_typed_commands(command)


@each_case(
    "command",
    [
        "ls -la",
        "bash build.sh",
        "bash -c 'make test'",
        "bash -lc 'make test'",
        "python3 -c 'print(1)'",
        "python3 -m pytest -q",
        "python3 script.py",
        "python3 - <<'EOF'\nprint(1)\nEOF",
        "bash <<'EOF'\nls\nEOF",
        "echo 'print(1)' | python3 -",
        "cat script.sh | bash",
        "psql shop -c 'select 1'",
        "sqlite3 shop.db 'select 1'",
        "ssh host uptime",
        "node --version",
        "node build.js",
        "git commit -m 'use bash'",
        "grep -rn python .",
        "sudo apt-get install jq",
    ],
)
def test_ordinary_commands_are_not(command):
    assert reads_typed_commands(command) == ""


async def test_codex_does_not_get_an_interactive_shell(tmp_path):
    code, reason = await decide("codex", tmp_path, "Bash", {"command": "bash"})
    assert code == 2
    assert "typed later" in reason
