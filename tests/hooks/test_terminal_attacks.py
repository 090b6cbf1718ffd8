"""Attacks on an agent that is locked down as the guide shows, with a real shell without a sandbox.

Each command once ran a program, changed a file or printed a secret under these guards. Now it is blocked: the canary
files are as they were, and no canary text reaches the model.
"""

import gzip
import io
import os
import re
import subprocess
import tarfile
from functools import partial
from pathlib import Path

import pytest

from hookline import ScriptedModel, call, reply
from hookline.hooks import TerminalGuard
from hookline.testing import scripted_agent
from hookline.tools import shell_tool

PAGE = (Path(__file__).parents[2] / "docs/guides/lock-down.md").read_text()
RECIPE = compile(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], "lock-down.md", "exec")
CANARY = "canary-7f3a"
unconfined_shell = partial(shell_tool, sandbox="off")


def git(folder, *words):
    identity = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    identity |= {f"GIT_{who}_{part}": "x@x" for who in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=folder, env={**os.environ, **identity}, check=True, capture_output=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with canaries, in which the agent's folder ``work`` has a repository ``own`` of its own."""
    tmp_path = tmp_path_factory.mktemp("attacks")
    top = tmp_path / "top"
    work = top / "work"
    (work / "src").mkdir(parents=True)
    for name, text in {"above.txt": CANARY, "work/a.txt": "tea\n", "work/b.txt": "tea\n"}.items():
        (top / name).write_text(text)
    git(top, "init", "-q", "--template=")
    git(top, "add", ".")
    git(top, "commit", "-qm", "first")
    (top / "above.txt").write_text(f"{CANARY} changed\n")
    for name, files in GLOBS.items():
        (work / name).mkdir()
        for file in files:
            (work / name / file).write_text("1\n1\n")
    (work / "left").mkdir()
    (work / "right").mkdir()
    (work / "left" / "above.txt").symlink_to("../../above.txt")
    (work / "right" / "above.txt").write_text("tea\n")
    (work / "above.txt").write_text("tea\n")
    (tmp_path / "outside.gz").write_bytes(gzip.compress(CANARY.encode()))
    (work / "note.gz").symlink_to(tmp_path / "outside.gz")
    (work / "sums").write_text(f"{'0' * 32}  ../above.txt\n")
    with tarfile.open(work / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("x"), io.BytesIO())
    own = work / "own"
    own.mkdir()
    git(own, "init", "-q")
    (own / ".env").write_text(f"KEY={CANARY}\n")
    (own / "kept.txt").write_text("tea\n")
    git(own, "add", "-f", ".")
    git(own, "commit", "-qm", "first")
    (own / ".env").write_text(f"KEY={CANARY}-2\n")
    git(own, "remote", "add", "origin", f"https://me:{CANARY}@git.example/x")
    git(own, "config", "http.extraHeader", f"Authorization: {CANARY}")
    (own / "untracked.txt").write_text("tea\n")
    return work


GLOBS = {
    "g-timeout": ["1", "touch"],
    "g-awk": ["a=1", 'BEGIN{system("touch made")}'],
    "g-uniq": ["1", "a.txt", "kept.txt"],
    "g-nice": ["1", "touch"],
    "g-sed": ["1w made", "a.txt"],
    "g-jq": ["2", "env"],
    "g-find": ["a", "b"],
}

ATTACKS = {
    # option clusters without a dash
    "tar cluster": """tar If "sh -c 'touch made'" a.tar -t""",
    "tar cluster 2": "tar fI a.tar 'touch made' -t",
    "tar cluster list": "tar tfI a.tar 'touch made'",
    "tar cluster script": "tar tfF a.tar 'touch made'",
    "ar cluster": "ar q made a.txt",
    "ar print": "ar p made",
    "ps cluster": "ps axe",
    "ps environment": "ps e",
    # globs that become other words
    "glob timeout": "cd g-timeout && timeout * made",
    "glob nice": "cd g-nice && nice -n * made",
    "glob awk": "cd g-awk && awk -v * a.txt",
    "glob uniq": "cd g-uniq && uniq -f *",
    "glob uniq long": "cd g-uniq && uniq --skip-fields *",
    "glob sed": "cd g-sed && sed -e *",
    "glob jq": "cd g-jq && jq -n --indent *",
    "glob find": "cd g-find && find . -name *",
    "glob head": "head -n * a.txt",
    "glob sort": "sort -k * a.txt",
    "glob in an option": "grep --include=* x a.txt",
    "glob pattern": "grep * a.txt",
    "glob option": "ls -* a.txt",
    "glob program": "l* a.txt",
    "glob git": "cd own && git log -n *",
    # git reads above the folder
    "git show above": "git show HEAD:above.txt",
    "git show commit": "git show HEAD",
    "git show tree": "git show HEAD:",
    "git diff": "git diff",
    "git diff commit": "git diff HEAD",
    "git diff top": "git diff HEAD -- :/",
    "git diff stat": "git diff --stat",
    "git log -p": "git log -p",
    "git log -u": "git log -u",
    "git log patch": "git log --patch-with-stat",
    "git log lines": "git log -L 1,1:above.txt",
    "git log names": "git log --name-only",
    "git log": "git log",
    "git status": "git status",
    "git grep": "git grep canary HEAD -- :/",
    "git grep above": "git grep canary HEAD:",
    "git blame": "git blame HEAD -- :/above.txt",
    "git cat-file": "git cat-file -p HEAD:above.txt",
    "git cat-file batch": "printf 'HEAD:above.txt' | git cat-file --batch",
    "git archive": "git archive HEAD:",
    "git ls-files": "git ls-files :/",
    "git ls-tree": "git ls-tree -r --full-tree HEAD",
    "git whatchanged": "git whatchanged -p",
    "git reflog": "git reflog show -p",
    "git shortlog": "git shortlog HEAD",
    "git rev-list": "git rev-list --objects HEAD",
    "git -C": "git -C . show HEAD:above.txt",
    # git shows secret files of its own repository
    "git show secret": "cd own && git show HEAD:.env",
    "git show dot secret": "cd own && git show HEAD:./.env",
    "git show index": "cd own && git show :.env",
    "git show all": "cd own && git show HEAD",
    "git show tree secret": "git -C own show HEAD:",
    "git diff secret": "cd own && git diff",
    "git diff all": "git -C own diff",
    "git log secret": "cd own && git log -p",
    "git log search": "cd own && git log -G canary -p --all",
    "git log format": "cd own && git log --format=%H --patch",
    "git grep secret": "cd own && git grep canary HEAD",
    "git grep here": "cd own && git grep canary",
    "git blame secret": "cd own && git blame .e?v",
    "git stash show": "cd own && git stash show -p",
    # git changes files
    "git stash untracked": "cd own && git stash -u -- list .",
    "git stash include": "cd own && git stash --include-untracked -- list .",
    "git stash list": "cd own && git stash -- list",
    "git branch": "cd own && git branch made",
    "git reflog expire": "cd own && git reflog -- expire --all",
    "git worktree": "cd own && git worktree -- add ../made",
    # git settings with secrets
    "git config": "cd own && git config --list",
    "git config -l": "cd own && git config -l",
    "git config local": "cd own && git config --local --list",
    "git config url": "cd own && git config --get remote.origin.url",
    "git config get": "cd own && git config get remote.origin.url",
    "git config regexp": "cd own && git config --get-regexp 'remote.*'",
    "git remote": "cd own && git remote -v",
    "git remote url": "cd own && git remote get-url origin",
    "git remote show": "cd own && git remote show -n origin",
    "git branch remote": "cd own && git for-each-ref --format='%(upstream:remotename)'",
    "git ls-remote": "cd own && git ls-remote --get-url origin",
    "git var": "cd own && git var -l",
    # links that a program follows by itself
    "diff folder and file": "diff left above.txt",
    "diff file and folder": "diff above.txt left",
    "diff folders": "diff left right",
    "diff recursive": "diff -r left right",
    "diff new": "diff -N left right",
    "zcat": "zcat note",
    "zgrep": "zgrep canary note",
    "sums": "md5sum -c sums",
    "sums long": "md5sum --check sums",
    "grep links": "grep -R canary left",
    "ls links": "ls -L left",
    "du links": "du -L left",
    "find links": "find -L left -name 'above*'",
    "find links late": "find left -follow -name 'above*'",
    "rg links": "rg -L canary left",
    "tree links": "tree -l left",
    "test outside": "test -f ../above.txt",
    "brackets outside": "[ -f ../above.txt ]",
    "date file": "date -f ../above.txt",
    "date zone": """date -d 'TZ="../above.txt" now'""",
    # nesting
    "time": "time " * 15_000 + "touch made",
    "nice": "nice " * 15_000 + "touch made",
    "timeout": "timeout 5 " * 9_000 + "touch made",
    "brackets": "(" * 50_000 + "touch made",
    "substitution": "echo " + "$(" * 40_000 + "touch made",
    "negation": "! " * 40_000 + "touch made",
    "braces": "{ " * 40_000 + "touch made",
}


def snapshot(folder):
    """The text and the kind of each file, apart from caches of git."""
    return {
        str(path): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if path.name != "index" and path.name != "audit.jsonl"
    }


def locked_down(model, folder, monkeypatch):
    monkeypatch.chdir(folder.parent.parent)
    names = {}
    exec(RECIPE, names)  # the recipe of the guide itself
    names["shell_tool"] = unconfined_shell
    return names["locked_down"](model, folder, ["docs.python.org"])


@pytest.fixture(scope="module")
def untouched(repository):
    return snapshot(repository.parent)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_on_the_locked_down_agent_is_blocked(repository, untouched, monkeypatch, name):
    model = ScriptedModel([call("shell", command=ATTACKS[name]), reply("Done.")])
    result = locked_down(model, repository, monkeypatch).run("Look around")
    assert snapshot(repository.parent) == untouched
    seen = "".join(message.content or "" for message in result.messages if message.role == "tool")
    assert CANARY not in seen
    assert result.steps[0].outcomes == ("blocked",), seen[:200]


@pytest.mark.parametrize("command", ["cat ~/note.txt", "cd && cat note.txt", "cd ~; cat note.txt", "ls ~", "head ~/*"])
def test_a_home_folder_that_only_the_tool_knows_is_not_read(tmp_path, monkeypatch, command):
    for name in ("work", "home"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note.txt").write_text(CANARY if name == "home" else "tea\n")
    monkeypatch.setenv("HOME", str(tmp_path / "work"))
    shell = unconfined_shell(tmp_path / "work", env={"HOME": str(tmp_path / "home")})
    turns = [call("shell", command=command), reply("Done.")]
    result = scripted_agent(turns, tools=[shell], hooks=[TerminalGuard(tmp_path / "work")]).run("x")
    assert result.steps[0].outcomes == ("blocked",)
    assert CANARY not in result.messages[-2].content


def test_settings_of_git_in_a_home_folder_that_the_agent_can_write_are_not_used(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "a.txt").write_text("tea\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "a.txt").write_text("tee\n")
    (tmp_path / "run").write_text("#!/bin/sh\ntouch made\n")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / ".gitattributes").write_text("* filter=x\n")
    settings = f'[filter "x"]\nclean = {tmp_path}/run\n[diff]\nexternal = {tmp_path}/run\n'
    (tmp_path / ".gitconfig").write_text(settings)
    shell = unconfined_shell(tmp_path, env={"HOME": str(tmp_path)})
    commands = ["git log", "git diff", "git status", "git show"]
    turns = [[call("shell", command=command) for command in commands], reply("Done.")]
    result = scripted_agent(turns, tools=[shell], hooks=[TerminalGuard(tmp_path)]).run("x")
    assert result.steps[0].outcomes == ("ok", "blocked", "ok", "blocked")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "command", ["rm kep?", "rm k[e]pt", "rm *", "rm -v k*", "rm ./kept", "rm -- kep''t", "rm sub/../kept", "rm -f kept"]
)
def test_a_denied_command_is_blocked_when_a_glob_hides_its_words(tmp_path, command):
    (tmp_path / "kept").write_text("tea\n")
    (tmp_path / "sub").mkdir()
    guard = TerminalGuard(tmp_path, allow=["rm *"], deny=["rm kept", "rm */kept"])
    turns = [call("shell", command=command), reply("Done.")]
    result = scripted_agent(turns, tools=[unconfined_shell(tmp_path)], hooks=[guard]).run("x")
    assert result.steps[0].outcomes == ("blocked",)
    assert (tmp_path / "kept").exists()
