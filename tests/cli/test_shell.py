"""``hookline run --shell``: ordinary work runs in the sandbox, other steps are put to the person."""

import pytest


def use(command):
    return {"tool": "shell", "arguments": {"command": command}}


def test_commands_that_only_read_run_at_once(hookline, script, folder):
    (folder / "notes.txt").write_text("milk\nbread\n")
    done = hookline("run", "look", "--shell", "-m", script(use("grep -c . notes.txt"), "Two."))
    assert (done.returncode, done.stdout) == (0, "Two.\n")
    assert "tool shell ok: 2" in done.stderr


def test_there_is_no_shell_by_default(hookline, script):
    done = hookline("run", "look", "-m", script(use("ls"), "Done."))
    assert "Unknown tool 'shell'" in done.stderr


@pytest.mark.parametrize(("flags", "made"), [(["--yes"], True), (["--deny"], False), ([], False)])
def test_in_the_strict_profile_commands_that_do_more_than_read_need_approval(hookline, script, folder, flags, made):
    given = [*flags, "--shell", "--shell-profile", "strict", "--write"]
    hookline("run", "make it", *given, "-m", script(use("mkdir made"), "Done."))
    assert (folder / "made").is_dir() == made


@pytest.mark.parametrize(
    ("commands", "flags"),
    [
        (["cat ../home/x", "echo x > made", "bash -c 'mkdir made'", "mkdir $(echo made)"], []),
        (["echo x > hookline.toml", "echo x > ../made", "cat .env"], ["--write"]),
    ],
    ids=["reading", "writing"],
)
@pytest.mark.parametrize("profile", ["strict", ""], ids=["strict", "default"])
def test_forbidden_commands_have_no_effect_even_with_yes(hookline, script, folder, commands, flags, profile):
    (folder / "hookline.toml").write_text("max_steps = 9\n")
    (folder / ".env").write_text("KEY=hush\n")
    given = ["--shell", "--yes", *flags, *(["--shell-profile", profile] if profile else [])]
    done = hookline("run", "do", *given, "-m", script(*map(use, commands), "Done."))
    if profile:
        assert done.stderr.count("tool shell blocked") == len(commands)
    assert not (folder / "made").exists()
    assert not (folder.parent / "made").exists()
    assert (folder / "hookline.toml").read_text() == "max_steps = 9\n"
    assert "hush" not in done.stderr


def test_with_write_the_shell_may_write_in_the_folder(hookline, script, folder):
    hookline("run", "write", "--shell", "--write", "-m", script(use("echo hi > made.txt"), "Done."))
    assert (folder / "made.txt").read_text() == "hi\n"


@pytest.mark.parametrize("setting", ["flag", "file", "default"])
def test_with_the_developer_profile_ordinary_work_runs_and_other_steps_need_approval(hookline, script, folder, setting):
    (folder / "work").mkdir()
    (folder / "hookline.toml").write_text('shell_profile = "developer"\n' if setting == "file" else "")
    commands = ["for x in 1 2; do mkdir made$x; done", "git push", "sudo ls", "python3 -c 'print(40 + 2)'"]
    flags = ["--trust", "--shell", "--write", "--folder", "work"]
    flags += ["--shell-profile", "developer"] if setting == "flag" else []
    done = hookline("run", "do", *flags, "-m", script(*map(use, commands), "Done."))
    assert done.returncode == 0, done.stderr
    assert (folder / "work" / "made1").is_dir()
    assert (folder / "work" / "made2").is_dir()
    assert "tool shell ok: 42" in done.stderr
    assert "sends commits to another machine" in done.stderr
    assert "sudo is not allowed" in done.stderr


def test_an_unknown_profile_is_an_error(hookline, script):
    done = hookline("run", "do", "--shell", "--shell-profile", "admin", "-m", script("Done."))
    assert done.returncode != 0
    assert "auto, strict, developer" in done.stderr
