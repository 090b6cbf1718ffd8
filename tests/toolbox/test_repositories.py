"""Commands in a sandbox cannot make git run programs outside, and ordinary work with git goes on."""

import asyncio
import os
import shlex
import shutil
import subprocess
import threading

import pytest

from hookline._toolbox.sandbox import level_state
from hookline.tools import shell_tool

from ..ordinary_user import run_as_an_ordinary_user
from ..waiting import block_until

AUTHOR = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
SANDBOXED = pytest.mark.skipif(bool(level_state("bubblewrap").problem), reason="bubblewrap does not work here")
pytestmark = SANDBOXED


class Place:
    """A folder with a repository, and a program that notes when it runs outside the sandbox."""

    def __init__(self, tmp_path):
        self.folder, self.canary = tmp_path / "work", tmp_path / "canary"
        self.folder.mkdir()
        (self.folder / "a.txt").write_text("a\n")
        plant = self.folder / "plant.sh"
        plant.write_text(f"#!/bin/sh\necho x > {shlex.quote(str(self.canary))}\n")
        plant.chmod(0o755)

    def git(self, *words, folder=None):
        command = ["git", "-C", str(folder or self.folder), *AUTHOR, "-c", "protocol.file.allow=always", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def init(self):
        self.git("init", "-q", "-b", "main")
        self.git("add", "a.txt")
        self.git("commit", "-qm", "first")

    def shell(self, command, level="bubblewrap"):
        return asyncio.run(shell_tool(self.folder, sandbox=level)(command))

    def use_git(self):
        """Use git outside, as a prompt or an editor does, in all folders with a repository."""
        folders = [folder for folder, names, files in os.walk(self.folder) if ".git" in (*names, *files)]
        for folder in dict.fromkeys([str(self.folder), *folders]):
            self.git("status", folder=folder)
            self.git("diff", folder=folder)
            self.git("st", folder=folder)
            self.git("commit", "-q", "--allow-empty", "-m", "m", folder=folder)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


EVIL = "git config -f {config} core.fsmonitor $PWD/plant.sh; "
BARE = "git init -q --bare evil; git config -f evil/config core.bare false; " + EVIL.format(config="evil/config")


def bare_instead(place):
    place.init()
    return (
        f"rm -f .git/HEAD; mv .git old; {BARE}git config -f evil/config core.worktree $PWD; cp -r evil/* .; rm -rf evil"
    )


def commondir(place):
    place.init()
    return BARE + "cp -r .git/refs .git/objects evil/; echo ../evil > .git/commondir"


def worktree_settings(place):
    place.init()
    place.git("config", "extensions.worktreeConfig", "true")
    return EVIL.format(config=".git/config.worktree")


def linked_worktree(place):
    place.init()
    place.git("worktree", "add", "-q", "linked")
    return BARE + "rm linked/.git; mv linked/.git x; echo gitdir: $PWD/evil > linked/.git"


def submodule(place):
    place.init()
    part = place.folder.parent / "part"
    part.mkdir()
    place.git("init", "-q", folder=part)
    place.git("commit", "-q", "--allow-empty", "-m", "m", folder=part)
    place.git("submodule", "add", "-q", str(part), "part")
    assert (place.folder / "part" / ".git").is_file()
    return BARE + "rm part/.git; echo gitdir: $PWD/evil > part/.git"


def hooks_link(place):
    place.init()
    shutil.rmtree(place.folder / ".git" / "hooks")
    (place.folder / "my-hooks").mkdir()
    (place.folder / ".git" / "hooks").symlink_to("../my-hooks")
    return "cp plant.sh my-hooks/pre-commit; rm .git/hooks; mkdir .git/hooks; cp plant.sh .git/hooks/pre-commit"


def hooks_path(place):
    place.init()
    place.git("config", "core.hooksPath", ".husky/_")
    return "mkdir -p .husky/_; cp plant.sh .husky/_/pre-commit"


def included(place):
    place.init()
    place.git("config", "include.path", "../shared.gitconfig")
    return EVIL.format(config="shared.gitconfig")


def commondir_of_worktree(place):
    place.init()
    place.git("worktree", "add", "-q", "linked")
    return BARE + "echo $PWD/evil > .git/worktrees/linked/commondir"


def late_repository(place):
    place.shell("true")
    place.init()
    return "git config core.fsmonitor $PWD/plant.sh; cp plant.sh .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit"


def linked_folder(place):
    place.git("init", "-q", "-b", "main", "--separate-git-dir", str(place.folder / "real"))
    (place.folder / ".git").unlink()
    (place.folder / ".git").symlink_to("real")
    return f"rm .git; git init -q; {EVIL.format(config='.git/config')} {EVIL.format(config='real/config')}"


def new_repository(place):
    return f"git init -q; {EVIL.format(config='.git/config')} git init -q part; cp plant.sh part/.git/hooks/pre-commit"


def filter_program(place):
    place.init()
    tool = place.folder / "clean.sh"
    tool.write_text("#!/bin/sh\ncat\n")
    tool.chmod(0o755)
    place.git("config", "filter.x.clean", "./clean.sh")
    (place.folder / ".git" / "info" / "attributes").write_text("*.txt filter=x\n")
    return "cp plant.sh clean.sh; rm -f clean.sh; cp plant.sh clean.sh; echo b >> a.txt"


def linked_hook(place):
    place.init()
    (place.folder / "scripts").mkdir()
    (place.folder / "scripts" / "check").write_text("#!/bin/sh\n")
    (place.folder / "scripts" / "check").chmod(0o755)
    (place.folder / ".git" / "hooks" / "pre-commit").symlink_to("../../scripts/check")
    return "cp plant.sh scripts/check; mv scripts old; mkdir scripts; cp plant.sh scripts/check"


def husky(place):
    place.init()
    own = place.folder / ".husky" / "_"
    own.mkdir(parents=True)
    (own / "pre-commit").write_text('#!/bin/sh\nuser="$(dirname "$0")/../pre-commit"\n[ ! -f "$user" ] || sh "$user"\n')
    (own / "pre-commit").chmod(0o755)
    place.git("config", "core.hooksPath", ".husky/_")
    return "cp plant.sh .husky/pre-commit; mv .husky old; mkdir -p .husky/_; cp plant.sh .husky/_/pre-commit"


def alias(place):
    place.init()
    (place.folder / "tool.sh").write_text("#!/bin/sh\n")
    (place.folder / "tool.sh").chmod(0o755)
    place.git("config", "alias.st", "!./tool.sh")
    return "cp plant.sh tool.sh; rm -f tool.sh; cp plant.sh tool.sh"


def interpreted(place):
    place.init()
    (place.folder / "tool.sh").write_text("cat $1\n")
    place.git("config", "diff.x.textconv", "sh -c 'sh tool.sh \"$1\"' x")
    (place.folder / ".git" / "info" / "attributes").write_text("*.txt diff=x\n")
    return "cp plant.sh tool.sh; rm -f tool.sh; cp plant.sh tool.sh; echo b >> a.txt"


def missing_program(place):
    place.init()
    place.git("config", "core.fsmonitor", "./monitor.sh")
    return "cp plant.sh monitor.sh"


def named_in_a_missing_folder(place):
    place.init()
    place.git("config", "alias.st", "!./tools/run.sh")
    return "mkdir tools; cp plant.sh tools/run.sh"


def named_behind_a_link_to_a_folder(place):
    place.init()
    place.git("config", "alias.st", "!./tools/run.sh")
    return "mkdir other; cp plant.sh other/run.sh; ln -s other tools"


def included_from_a_missing_folder(place):
    place.init()
    place.git("config", "include.path", "../team/settings/git")
    return "mkdir -p team/settings; " + EVIL.format(config="team/settings/git")


def link_to_a_program(place):
    place.init()
    script(place.folder / "scripts" / "run.sh")
    (place.folder / "bin").mkdir()
    (place.folder / "bin" / "run.sh").symlink_to("../scripts/run.sh")
    place.git("config", "alias.st", "!./bin/run.sh")
    return "rm bin/run.sh; cp plant.sh bin/run.sh; mv bin old; mkdir bin; cp plant.sh bin/run.sh"


def script(path):
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


AFTERWARDS = [
    named_in_a_missing_folder,
    named_behind_a_link_to_a_folder,
    included_from_a_missing_folder,
    link_to_a_program,
]
COMMON = "top=$PWD; git init -q part; cd part; mkdir -p c/d; cp -r .git/objects .git/refs c/; cp -r c/* c/d/; "
SHARED = "git config -f {config} core.fsmonitor $top/plant.sh; "


def new_with_commondir(place):
    return COMMON + SHARED.format(config="c/config") + "echo ../c > .git/commondir"


def new_with_hooks_in_commondir(place):
    return COMMON + "mkdir c/hooks; cp $top/plant.sh c/hooks/pre-commit; echo ../c > .git/commondir"


def new_with_commondir_behind_a_link(place):
    return COMMON + SHARED.format(config="c/d/config") + "ln -s c/d l; printf $PWD/l > .git/commondir"


def new_with_include_in_commondir(place):
    include = "git config -f c/config include.path other; "
    return COMMON + include + SHARED.format(config="c/other") + "echo ../c > .git/commondir"


def new_with_gitdir_and_commondir(place):
    place_of_git = "mkdir g; mv .git/HEAD g/; rm -rf .git; echo ../c > g/commondir; echo gitdir: g > .git"
    return COMMON + SHARED.format(config="c/config") + place_of_git


def new_with_blanks_and_zeros_in_paths(place):
    place_of_git = "mv .git 'g '; echo ../c > 'g /commondir'; printf 'gitdir: g \\0x\\n' > .git"
    return COMMON + SHARED.format(config="c/config") + place_of_git


def new_with_a_head_that_leads_nowhere(place):
    return COMMON + "git config core.fsmonitor $top/plant.sh; mv .git g; ln -sf refs/heads/x g/HEAD; ln -s g .git"


def new_that_shares_an_existing_one(place):
    (place.folder / "other").mkdir()
    place.git("init", "-q", folder=place.folder / "other")
    place.git("config", "core.hooksPath", ".hooks", folder=place.folder / "other")
    hooks = "mkdir part/.hooks; cp plant.sh part/.hooks/pre-commit; "
    return "mkdir part; " + hooks + "echo gitdir: ../other/.git > part/.git"


HIDDEN = (
    "mkdir -p part/x/.git; cd part; git init -q --bare x/.git/g; git config -f x/.git/g/config core.bare false; "
    "git config -f x/.git/g/config core.worktree $PWD; git config -f x/.git/g/config core.fsmonitor $PWD/../plant.sh; "
)


def new_behind_a_link_of_the_process(place):
    return HIDDEN + "ln -s /proc/self/cwd/x/.git/g .git"


def new_behind_a_file_and_a_link_of_the_process(place):
    return HIDDEN + "ln -s /proc/self/cwd l; echo gitdir: l/x/.git/g > .git"


def new_with_hooks_behind_a_link_of_the_process(place):
    command = "git init -q part; mkdir part/h; cp plant.sh part/h/pre-commit; cd part; "
    return command + "rm -r .git/hooks; ln -s /proc/self/cwd/h .git/hooks"


NEW = [
    *(new_behind_a_link_of_the_process, new_behind_a_file_and_a_link_of_the_process),
    new_with_hooks_behind_a_link_of_the_process,
    *(linked_folder, new_repository, new_with_commondir, new_with_hooks_in_commondir),
    *(new_with_commondir_behind_a_link, new_with_include_in_commondir, new_with_gitdir_and_commondir),
    *(new_with_blanks_and_zeros_in_paths, new_with_a_head_that_leads_nowhere, new_that_shares_an_existing_one),
]
VARIANTS = [
    *NEW,
    *AFTERWARDS,
    *(bare_instead, commondir, worktree_settings, linked_worktree, submodule, hooks_link, hooks_path, included),
    *(commondir_of_worktree, late_repository, filter_program),
    *(linked_hook, husky, alias, interpreted, missing_program),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_no_program_is_planted_for_git(place, variant):
    command = variant(place)
    place.shell(command)
    place.use_git()
    assert not place.canary.exists()


@pytest.mark.parametrize(
    "variant",
    [each for each in VARIANTS if each not in (*NEW, *AFTERWARDS)],
    ids=lambda each: each.__name__,
)
@pytest.mark.slow
def test_also_while_the_command_runs_git_runs_nothing(place, variant):
    command = f"{variant(place)}\necho > ready; while ! test -e done; do sleep 0.05; done"
    running = threading.Thread(target=place.shell, args=(command,))
    running.start()
    block_until((place.folder / "ready").exists)
    place.use_git()
    (place.folder / "done").write_text("")
    running.join()
    assert not place.canary.exists()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_without_a_sandbox_the_program_runs(place, variant):
    subprocess.run(["/bin/sh", "-c", variant(place)], cwd=place.folder, check=False, capture_output=True)
    place.use_git()
    assert place.canary.exists()


def test_ordinary_work_with_git_arrives_outside(place):
    place.init()
    for command, said in {
        "git switch -qc topic && echo b > b.txt && git add . && git commit -qm second && git log --format=%s": "second",
        "echo c >> a.txt; git stash -q && git stash pop -q && git diff --stat": "a.txt",
        "git commit -qam third && git switch -q main && git merge -q --no-edit topic && git tag v1": "",
        "git branch -d topic && git rm -q b.txt && git mv a.txt c.txt && git status --short": "R  a.txt -> c.txt",
    }.items():
        result = place.shell(command)
        assert result.endswith("[exit code 0]"), result
        assert said in result
    assert place.git("status", "--short").stdout.split("\n")[:2] == ["D  b.txt", "R  a.txt -> c.txt"]
    assert place.git("log", "--format=%s").stdout.split() == ["third", "second", "first"]
    assert place.git("tag").stdout == "v1\n"
    assert place.git("branch", "--show-current").stdout == "main\n"
    assert place.git("fsck", "--strict").returncode == 0


def test_a_conflict_is_solved_by_several_commands_of_one_tool(place):
    place.init()
    shell = shell_tool(place.folder, sandbox="bubblewrap")
    run = lambda command: asyncio.run(shell(command))  # noqa: E731
    run(
        "git switch -qc topic; echo b > a.txt; git commit -qam b; git switch -q main; echo c > a.txt; git commit -qam c"
    )
    assert "CONFLICT" in run("git rebase topic")
    assert run("echo d > a.txt; git add a.txt; GIT_EDITOR=true git rebase --continue").endswith("[exit code 0]")
    assert place.git("log", "--format=%s").stdout.split() == ["c", "b", "first"]
    assert place.git("status", "--short", "-uno").stdout == ""


def test_what_a_person_does_meanwhile_is_kept(place):
    place.init()
    (place.folder / "b.txt").write_text("b\n")
    command = "echo x > x.txt; git add x.txt; echo > ready; while ! test -e done; do sleep 0.05; done"
    results = []
    running = threading.Thread(target=lambda: results.append(place.shell(command)))
    running.start()
    block_until((place.folder / "ready").exists)
    place.git("add", "b.txt")
    (place.folder / "done").write_text("")
    running.join()
    assert "index was changed outside while a command changed it too: yours was kept" in results[0]
    assert place.git("status", "--short", "b.txt", "x.txt").stdout == "A  b.txt\n?? x.txt\n"


def test_a_repository_that_a_command_creates_may_be_used_changed_and_removed(place):
    shell = shell_tool(place.folder, sandbox="bubblewrap")
    run = lambda command: asyncio.run(shell(command))  # noqa: E731
    assert run("git init -q part && git -C part commit -q --allow-empty -m m").endswith("[exit code 0]")
    assert run("git clone -q part copy && git -C copy remote add other /x").endswith("[exit code 0]")
    assert place.git("log", "--format=%s", folder=place.folder / "copy").stdout == "m\n"
    assert run("rm -rf part copy").endswith("[exit code 0]")


def test_a_repository_with_programs_is_held_back_and_the_model_and_the_log_say_so(place, caplog):
    result = place.shell(new_repository(place))
    assert "with the setting core.fsmonitor" in result
    assert "with the hook pre-commit" in result
    assert "got the ending .held" in caplog.text
    assert (place.folder / ".git" / "config.held").exists()
    assert (place.folder / "part" / ".git" / "hooks.held" / "pre-commit").exists()


def test_a_repository_that_forbids_changes_is_held_back_too(place):
    result = place.shell(new_repository(place) + "; chmod 500 .git part/.git")
    assert result.count("got the ending .held") == 2
    place.use_git()
    assert not place.canary.exists()


def test_a_repository_that_shares_an_existing_one_is_held_back_and_the_existing_one_stays(place):
    settings = place.folder / "other" / ".git" / "config"
    result = place.shell(new_that_shares_an_existing_one(place))
    assert "lead git to the repository" in result
    assert (place.folder / "part" / ".git.held").is_file()
    assert settings.exists()


def test_a_shared_folder_of_settings_that_a_later_command_adds_is_found(place):
    shell = shell_tool(place.folder, sandbox="bubblewrap")
    run = lambda command: asyncio.run(shell(command))  # noqa: E731
    assert "held" not in run(COMMON)
    assert "core.fsmonitor" in run("top=$PWD; cd part; echo ../c > .git/commondir; " + SHARED.format(config="c/config"))
    place.use_git()
    assert not place.canary.exists()


def test_a_pipe_in_the_place_of_a_repository_does_not_stop_the_search(place):
    assert "held" in place.shell("mkdir pipe; mkfifo pipe/.git; " + new_repository(place))


@pytest.mark.parametrize(
    "alias",
    [
        '!"$(git rev-parse --show-toplevel)"/tools/run.sh',
        "!`git rev-parse --show-toplevel`/tools/run.sh",
        "!$GIT_DIR/../tools/run.sh",
        "!cd tools && ./run.sh",
        "!cd tools; sh run.sh",
        "!T=tools; sh $T/run.sh",
        "!PATH=tools:$PATH run.sh",
        r"!sh tools\/run.sh",
        "!sh -c 'sh tools/run.sh'",
        "!ssh -Ftools/run.sh host",
        "-c core.fsmonitor=tools/run.sh status",
        "submodule foreach ../tools/run.sh",
    ],
)
@pytest.mark.parametrize("name", ["run.sh", "my run.sh"])
def test_the_program_of_an_alias_is_found_however_it_is_written(place, alias, name):
    place.init()
    script(place.folder / "tools" / name)
    if " " in name:
        alias = f"!sh -c 'sh \"{place.folder}/tools/my run.sh\"'" if "sh -c" in alias else r"!sh tools/my\ run.sh"
    place.git("config", "alias.st", alias)
    place.shell("cp plant.sh tools/*run.sh; mv tools old; mkdir tools; cp plant.sh 'tools/" + name + "'")
    assert (place.folder / "tools" / name).read_text() == "#!/bin/sh\n"


def test_what_a_repository_above_the_folder_names_is_read_only(place):
    place.init()
    own = place.folder / "part" / ".husky" / "_"
    own.mkdir(parents=True)
    (own / "pre-commit").write_text("#!/bin/sh\nsh part/.husky/pre-commit\n")
    (own / "pre-commit").chmod(0o755)
    place.git("config", "core.hooksPath", "part/.husky/_")
    place.git("config", "include.path", "../part/settings")
    place.git("config", "alias.st", "!sh part/tool.sh")
    shutil.copy(place.folder / "plant.sh", place.folder / "part")
    shell = shell_tool(place.folder / "part", sandbox="bubblewrap")
    command = "cp plant.sh .husky/pre-commit; cp plant.sh .husky/_/pre-commit; cp plant.sh tool.sh; "
    result = asyncio.run(shell(command + EVIL.format(config="settings") + "echo b > b.txt"))
    place.use_git()
    assert not place.canary.exists()
    assert (place.folder / "part" / "b.txt").exists()
    assert "is not what it was" not in result


def test_what_a_bare_repository_above_the_folder_names_is_read_only(place):
    place.git("init", "-q", "--bare", ".")
    (place.folder / "part").mkdir()
    script(place.folder / "part" / "tool.sh")
    place.git("config", "alias.st", "!sh part/tool.sh")
    shell = shell_tool(place.folder / "part", sandbox="bubblewrap")
    assert "Read-only" in asyncio.run(shell("echo x > tool.sh"))


def test_a_folder_of_templates_for_new_repositories_is_read_only(place, tmp_path, monkeypatch):
    place.init()
    (place.folder / "template" / "hooks").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    place.git("config", "--global", "init.templateDir", str(place.folder / "template"))
    assert "Read-only" in place.shell("cp plant.sh template/hooks/pre-commit")


def test_words_in_aliases_do_not_stop_ordinary_work(place):
    place.init()
    (place.folder / "tests").mkdir()
    (place.folder / "hooks.d").mkdir()
    for name, value in {
        "t": "!pytest tests",
        "build": "!cd src && make build",
        "up": "rebase origin/main",
        "lg": "!git log --graph origin/main..HEAD",
        "all": "!for f in hooks.d/*; do sh $f; done",
        "web": "!open https://example.com/a/b",
    }.items():
        place.git("config", f"alias.{name}", value)
    result = place.shell("mkdir src build origin; echo a > tests/a; echo b > src/b; git status --short; ls hooks.d")
    assert result == "?? plant.sh\n?? src/\n?? tests/\n[exit code 0]"


def test_what_is_created_where_git_would_look_is_set_aside_and_the_model_is_told(place):
    result = place.shell(named_in_a_missing_folder(place) + "; echo x > tools/other")
    assert "tools/run.sh, which a setting of git names. It is now" in result
    assert sorted(os.listdir(place.folder / "tools")) == ["other", "run.sh.held"]


def test_a_link_to_a_program_that_a_command_replaces_is_that_link_again(place):
    result = place.shell(link_to_a_program(place))
    assert "It is that link again" in result
    assert os.readlink(place.folder / "bin" / "run.sh") == "../scripts/run.sh"


def test_what_git_cannot_have_left_is_not_brought_back(place):
    place.init()
    head = (place.folder / ".git" / "HEAD").read_text()
    for command in ("echo x > .git/HEAD", "rm .git/HEAD", "rm .git/HEAD; ln -s ../a.txt .git/HEAD"):
        assert "HEAD was kept" in place.shell(command)
        assert (place.folder / ".git" / "HEAD").read_text() == head


INDEX = """
import hashlib, struct, subprocess
def ask(*words): return subprocess.check_output(["git", *words], text=True).strip()
entries, before = b"", b""
hook, a = ask("hash-object", "-w", "plant.sh"), ask("rev-parse", ":a.txt")
files = [(b"{planted}", hook, 0o100755), (b"a.txt", a, 0o100644)]
for name, blob, mode in sorted(files):
    entry = struct.pack(">10I", *[0] * 6, mode, 0, 0, 0) + bytes.fromhex(blob) + struct.pack(">H", len(name))
    same = len([1 for a, b in zip(name, before) if a == b]) if {version} == 4 else 0
    same = min(same, 0 if name[:1] != before[:1] else same)
    entry += bytes([len(before) - same]) + name[same:] + b"\\0" if {version} == 4 else name
    entries += entry if {version} == 4 else entry + bytes(8 - len(entry) % 8)
    before = name
data = b"DIRC" + struct.pack(">II", {version}, 2) + entries
open("{folder}/index", "wb").write(data + hashlib.sha1(data).digest())
"""


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("planted", [".git/hooks/post-checkout", "sub/.GIT/hooks/post-checkout", "b/../.git/hooks/x"])
def test_an_index_that_names_a_hook_is_not_brought_back(place, planted, version):
    place.init()
    script = INDEX.format(planted=planted, version=version, folder=".git")
    (place.folder / "make.py").write_text(script)
    assert "index was kept" in place.shell("python3 make.py; git ls-files")
    place.git("checkout", "--", ".")
    place.git("checkout", "-q", "-b", "other")
    assert not place.canary.exists()
    assert place.git("ls-files").stdout == "a.txt\n"


def test_a_wrong_length_in_an_index_hides_no_name(place):
    """Git finds the next name by the length of the one before."""
    place.init()
    (place.folder / "make.py").write_text(
        INDEX.format(planted=".git/hooks/x", version=2, folder=".git").replace("len(name))", "len(name) + 8)", 1)
    )
    assert "index was kept" in place.shell("python3 make.py")


def test_an_index_whose_entries_are_also_elsewhere_is_not_brought_back(place):
    place.init()
    place.git("config", "index.threads", "4")
    read = "data = bytearray(open('.git/index', 'rb').read()); at = data.index(b'IEOT')"
    change = f"{read}; data[at + 15] += 8; open('.git/index', 'wb').write(data)"
    assert "index was kept" in place.shell(f'touch b; git add b; python3 -c "{change}"')


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_index_of_git_is_brought_back(place, version, threads):
    place.init()
    place.git("config", "index.version", str(version))
    place.git("config", "index.threads", str(threads))
    names = "mkdir -p d/e; touch d/e/f.git d/.gitignore d/e/é 'd/e/x y' d/later; "
    result = place.shell(
        f"{names}git add -N d/later; git add d/e d/.gitignore; git update-index --index-version {version}"
    )
    assert result == "[exit code 0]"
    assert place.git("ls-files", "-z", "d").stdout.split("\0")[:-1] == sorted(
        ["d/.gitignore", "d/e/f.git", "d/e/é", "d/e/x y", "d/later"]
    )


def test_a_new_repository_whose_index_names_a_hook_is_held_back(place):
    place.init()
    (place.folder / "make.py").write_text(INDEX.format(planted=".git/hooks/x", version=2, folder="part/.git"))
    result = place.shell("git init -q part; python3 make.py")
    assert "so config and hooks and index got the ending .held" in result


def test_what_commands_put_in_the_place_of_the_state_of_git_is_not_followed(place):
    place.init()
    secret = place.folder.parent / "secret"
    secret.write_text("secret")
    place.shell(f"ln -sf {secret} .git/COMMIT_EDITMSG; ln -sf {secret} .git/ORIG_HEAD; mkfifo .git/MERGE_MSG")
    found = [path.read_text() for path in (place.folder / ".git").glob("*_*") if path.is_file()]
    assert "secret" not in found
    assert "secret" not in place.shell("cat .git/*_*")


def test_a_repository_that_a_running_command_creates_is_not_copied(place, caplog):
    """The command could put a link to another folder in its place at any moment."""
    shell = shell_tool(place.folder, sandbox="bubblewrap")
    create = "git init -q part; echo > ready; while ! test -e done; do sleep 0.05; done"
    running = threading.Thread(target=lambda: asyncio.run(shell(create)))
    running.start()
    block_until((place.folder / "ready").exists)
    asyncio.run(shell("cp plant.sh part/.git/hooks/pre-commit; echo x > part/.git/other; touch done"))
    running.join()
    assert "with the hook pre-commit" in caplog.text
    assert (place.folder / "part" / ".git" / "other").exists()
    place.use_git()
    assert not place.canary.exists()


def test_folders_nested_deeper_than_python_calls_do_not_stop_the_search(place):
    deep = "import os\nos.chdir('part/.git/hooks')\nfor _ in range(1200): os.mkdir('a'); os.chdir('a')"
    command = f'git init -q part; cp plant.sh part/.git/hooks/pre-commit; python3 -c "{deep}"'
    assert "the hook pre-commit" in place.shell(command)
    subprocess.run(["rm", "-rf", str(place.folder / "part")], check=True)  # pytest could not


def test_many_new_folders_do_not_hide_a_repository(place, monkeypatch):
    (place.folder / "b").mkdir()
    place.git("init", "-q", folder=place.folder / "b")
    shell = shell_tool(place.folder, sandbox="bubblewrap")
    monkeypatch.setattr("hookline._toolbox.repositories._MOST_FOLDERS", 20)
    asyncio.run(shell("for i in $(seq 50); do mkdir a$i c$i; done"))
    assert "Read-only" in asyncio.run(shell("cp plant.sh b/.git/hooks/pre-commit"))


# --- Folders that a command closes. This binds only ordinary users, so as root the tests run as one too. ---


def in_a_closed_folder(mode):
    return lambda place: f"git init -q part; {EVIL.format(config='part/.git/config')} chmod {mode} part"


def below_a_closed_folder(mode):
    evil = EVIL.format(config="d/part/.git/config")
    return lambda place: f"mkdir d; git init -q d/part; {evil} chmod {mode} d"


def a_named_file_in_a_closed_folder(mode):
    def prepare(place):
        command = named_in_a_missing_folder(place)
        return f"{command}; chmod {mode} tools"

    return prepare


CLOSING = (in_a_closed_folder, below_a_closed_folder, a_named_file_in_a_closed_folder)


@pytest.mark.parametrize("mode", ["000", "111", "333", "400"])
@pytest.mark.parametrize("variant", CLOSING, ids=lambda variant: variant.__name__)
def test_nothing_is_hidden_in_a_folder_that_a_command_closes(place, variant, mode):
    place.shell(variant(mode)(place))
    for path in (place.folder / "part", place.folder / "d" / "part"):
        place.git("status", folder=path)
    place.use_git()
    place.shell("chmod 755 part d tools; true")
    place.use_git()
    assert not place.canary.exists()


def test_a_file_that_cannot_be_created_beforehand_is_set_aside(place):
    (place.folder / "tools").mkdir()
    shell = shell_tool(place.folder, sandbox="bubblewrap")
    asyncio.run(shell("chmod 500 tools"))
    place.init()
    place.git("config", "alias.st", "!./tools/run.sh")
    asyncio.run(shell("chmod 755 tools; cp plant.sh tools/run.sh; true"))
    place.use_git()
    assert not place.canary.exists()


def test_folders_that_the_user_closed_stay_closed(place):
    place.init()
    (place.folder / "mine").mkdir(mode=0o300)
    place.shell("mkdir other; chmod 300 other")
    modes = {name: (place.folder / name).stat().st_mode & 0o777 for name in ("mine", "other")}
    assert modes == {"mine": 0o300, "other": 0o300 if os.getuid() == 0 else 0o700}


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="the tests above run as an ordinary user already")
def test_folders_are_opened_for_ordinary_users_too():
    done = run_as_an_ordinary_user(__file__, "closed or beforehand or may_not_read")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[100%]" in done.stdout


def test_a_file_of_git_that_this_user_may_not_read_does_not_stop_commands(place):
    place.init()
    (place.folder / ".git" / "index").chmod(0)
    result = place.shell("cat a.txt; git status")
    (place.folder / ".git" / "index").chmod(0o600)
    assert result.startswith("a\n")
    assert "index" not in result or "Permission denied" in result
    assert place.git("ls-files").stdout == "a.txt\n"


# --- Hard links ---------------------------------------------------------------------------------------------------


LINKED = {
    "settings": (
        "git init -q part; ln part/.git/config other",
        lambda place: None,
        'printf "[core]\n\tfsmonitor = $PWD/plant.sh\n" >> other',
    ),
    "an included file": (
        "touch shared; ln shared other",
        lambda place: place.git("config", "include.path", "../shared"),
        'printf "[core]\n\tfsmonitor = $PWD/plant.sh\n" >> other',
    ),
    "a program": (
        "printf '#!/bin/sh\n' > tool.sh; chmod +x tool.sh; ln tool.sh other",
        lambda place: place.git("config", "alias.st", "!./tool.sh"),
        "cat plant.sh > other",
    ),
    "a hook": (
        "mkdir hooks; printf '#!/bin/sh\n' > hooks/pre-commit; chmod +x hooks/pre-commit; ln hooks/pre-commit other",
        lambda place: place.git("config", "core.hooksPath", "hooks"),
        "cat plant.sh > other",
    ),
    "the state": (
        "git init -q part; rm part/.git/HEAD; echo ref: refs/heads/x > part/.git/HEAD; ln part/.git/HEAD other",
        lambda place: None,
        "echo broken > other; git -C part status",
    ),
}


@pytest.mark.parametrize("kind", LINKED)
def test_a_second_name_of_a_file_that_git_uses_changes_nothing(place, kind):
    place.init()
    first, name_it, second = LINKED[kind]
    place.shell(first)
    name_it(place)
    result = place.shell(second)  # of another tool, for which the repository is one that exists
    place.use_git()
    assert not place.canary.exists()
    assert "is not what it was" not in result
    if kind == "the state":
        assert (place.folder / "part" / ".git" / "HEAD").read_text() == "ref: refs/heads/x\n"


def test_empty_files_that_stand_for_missing_ones_do_not_stay(place):
    command = included(place)
    place.shell(command)
    assert not (place.folder / "shared.gitconfig").exists()


@pytest.mark.skipif(bool(level_state("landlock").problem), reason="Landlock does not work here")
def test_with_landlock_changes_are_reported(place):
    place.init()
    result = place.shell("git config core.fsmonitor $PWD/plant.sh", "landlock")
    assert "is not what it was before the command" in result
