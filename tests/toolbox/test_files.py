"""File tools: their results, and that nothing outside the folder is touched."""

import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Agent, RegistrationError, ScriptedModel, call, observer, reply
from hookline._base.files import open_folder_inside
from hookline._toolbox import files
from hookline.hooks import AuditLogHook, PathGuard
from hookline.stores import ApprovalStore, JsonSessionStore, NotesFile, RunStore, SkillStore
from hookline.tape import TapeHook
from hookline.tools import file_tools
from tests.cases import each_case

SECRET = "the secret outside"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A folder to write in, shared by generated examples."""
    return make_place(tmp_path_factory.mktemp("scratch"))


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path)


def make_place(top):
    """A folder with various files, and a secret outside it."""
    (top / "secret.txt").write_text(SECRET)
    (top / "inside-not").mkdir()
    (top / "inside-not" / "secret.txt").write_text(SECRET)
    (top / "beside").write_text("")
    folder = top / "inside"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "notes.txt").write_text("one\ntwo\nthree\n")
    (folder / "sub" / "deep" / "more.txt").write_text("Two again\r\nlast")
    (folder / "blob.bin").write_bytes(b"two\0\1\2")
    (folder / "out").symlink_to(top)
    (folder / "out.txt").symlink_to(top / "secret.txt")
    (folder / "in.txt").symlink_to("notes.txt")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    return folder


def tools_of(folder, write=True):
    return {made.name: made for made in file_tools(folder, write)}


def test_writing_is_offered_only_when_allowed(tmp_path):
    assert list(tools_of(tmp_path, write=False)) == ["list_files", "read_file", "find_text"]
    assert list(tools_of(tmp_path)) == [
        "list_files",
        "read_file",
        "find_text",
        "write_file",
        "edit_file",
    ]


def test_a_tiny_model_can_read_the_descriptions(tmp_path):
    for made in file_tools(tmp_path, write=True):
        assert 3 < len(made.spec.description.split()) <= 12
        for about in made.spec.parameters["properties"].values():
            assert 1 < len(about["description"].split()) <= 12


@pytest.mark.parametrize("folder", ["missing", "notes.txt"])
def test_the_folder_must_exist(place, folder):
    with pytest.raises(RegistrationError, match="does not exist"):
        file_tools(place / folder)


def test_a_folder_is_listed(place):
    listed = tools_of(place)["list_files"]
    assert listed().split("\n") == ["blob.bin", "in.txt", "loop", "notes.txt", "out", "out.txt", "pipe", "sub/"]
    assert listed("sub") == "sub/deep/"
    assert listed("sub/deep/../deep") == "sub/deep/more.txt"


def test_an_empty_folder_and_file_say_so(tmp_path):
    tools = tools_of(tmp_path)
    assert tools["list_files"]() == "The folder is empty."
    (tmp_path / "a").write_text("")
    assert tools["read_file"]("a") == "The file is empty."
    assert tools["find_text"]("x") == "No line contains 'x'."


def test_names_that_do_not_print_are_quoted(tmp_path):
    (tmp_path / "a\nb").write_text("")
    assert tools_of(tmp_path)["list_files"]() == r"'a\nb'"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one\ntwo\nthree"),
        ({"start_line": 2}, "two\nthree\n[lines 2 to 3 of 3]"),
        ({"max_lines": 1}, "one\n[lines 1 to 1 of 3; continue with start_line=2]"),
        ({"start_line": 2, "max_lines": 1}, "two\n[lines 2 to 2 of 3; continue with start_line=3]"),
        ({"start_line": -5, "max_lines": -1}, "one\n[lines 1 to 1 of 3; continue with start_line=2]"),
    ],
)
def test_a_part_of_a_file_names_its_lines(place, options, text):
    assert tools_of(place)["read_file"]("notes.txt", **options) == text


def test_a_line_past_the_end_is_an_error(place):
    with pytest.raises(ValueError, match="'notes.txt' has only 3 lines"):
        tools_of(place)["read_file"]("notes.txt", start_line=4)


def test_a_link_inside_the_folder_is_read(place):
    assert tools_of(place)["read_file"]("in.txt") == "one\ntwo\nthree"


def test_a_full_path_inside_the_folder_works(place):
    assert tools_of(place)["read_file"](str(place / "notes.txt")) == "one\ntwo\nthree"


def test_text_is_found_in_any_case(place):
    find = tools_of(place)["find_text"]
    assert find("TWO").split("\n") == ["notes.txt:2: two", "sub/deep/more.txt:1: Two again"]
    assert find("two", "sub").split("\n") == ["sub/deep/more.txt:1: Two again"]
    assert find("one", "notes.txt") == "notes.txt:1: one"
    assert find("secret") == "No line contains 'secret'."
    with pytest.raises(ValueError, match="text is empty"):
        find(" ")


def test_long_outputs_are_cut_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 60_000)
    tools = tools_of(tmp_path)
    (tmp_path / "long").write_text("x" * 50_000)
    (tmp_path / "many").write_text("a line\n" * 5000)
    (tmp_path / "huge").write_text("a\n" * 50_000)
    for n in range(300):
        (tmp_path / f"{n:03}").write_text("")
    texts = {
        "line 1 is cut]": tools["read_file"]("long"),
        "[lines 1 to 2285 of 5000; continue with start_line=2286]": tools["read_file"]("many", max_lines=9999),
        "the file is longer than 60000 bytes, and the rest cannot be read]": tools["read_file"]("huge"),
        "[103 more]": tools["list_files"](),
        "[there are more than 200 matches]": tools["find_text"]("a"),
    }
    for note, text in texts.items():
        assert text.endswith(note), text[-200:]
        assert len(text) < files.MAX_TEXT + 200


def test_a_search_has_a_limit_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_SEARCH", 10_000)
    for n in range(9):
        (tmp_path / f"{n}.txt").write_text("x" * 2000)
    assert tools_of(tmp_path)["find_text"]("x").endswith("[not all files were searched; give a path]")


def test_files_are_written_with_their_folders(tmp_path):
    write = tools_of(tmp_path)["write_file"]
    assert write("new/deep/a.txt", "hé\ud800\n") == "Wrote 4 characters to new/deep/a.txt."
    assert (tmp_path / "new/deep/a.txt").read_text() == "hé?\n"
    assert write("new/../new/deep/a.txt", "again") == "Wrote 5 characters to new/deep/a.txt."
    assert (tmp_path / "new/deep/a.txt").read_text() == "again"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.txt"]


def test_a_file_that_is_written_again_keeps_its_mode(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o700)
    tools_of(tmp_path)["write_file"]("run.sh", "new")
    assert stat.S_IMODE(script.stat().st_mode) == 0o700


@pytest.mark.parametrize("path", ["in.txt", "pipe", "sub", "loop", "notes.txt/x", "n" * 300])
def test_only_regular_files_are_written(place, path):
    with pytest.raises((OSError, ValueError)) as caught:
        tools_of(place)["write_file"](path, "x")
    assert path in str(caught.value)
    assert str(place) not in str(caught.value)
    assert (place / "notes.txt").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("path", ["missing", "blob.bin", "pipe", "loop", "sub", "notes.txt/x", "n" * 300, "/dev/zero"])
def test_an_unreadable_file_gives_a_short_error(place, path):
    with pytest.raises((OSError, ValueError)) as caught:
        tools_of(place)["read_file"](path)
    assert path in str(caught.value)
    assert str(place) not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "old", "new", "edited", "line"),
    [
        (b"one\ntwo\nthree\n", "two", "2", b"one\n2\nthree\n", 2),
        (b"one\ntwo\ntwo\n", "one\ntwo", "", b"\ntwo\n", 1),
        (b"one\r\ntwo\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\n", 1),
        (b"\xef\xbb\xbfone", "one", "\xe9", b"\xef\xbb\xbf\xc3\xa9", 1),
    ],
)
def test_a_text_in_a_file_is_replaced_and_the_rest_stays(place, text, old, new, edited, line):
    (place / "notes.txt").write_bytes(text)
    (place / "notes.txt").chmod(0o750)
    tools = tools_of(place)
    assert tools["edit_file"](path="notes.txt", old_string=old, new_string=new) == f"Edited line {line} of notes.txt."
    assert (place / "notes.txt").read_bytes() == edited
    assert stat.S_IMODE((place / "notes.txt").stat().st_mode) == 0o750


@pytest.mark.parametrize(
    ("path", "old", "problem"),
    [
        ("notes.txt", "four", "does not contain old_string"),
        ("notes.txt", "", "does not contain old_string"),
        ("notes.txt", "e", "contains old_string more than once; give more lines"),
        ("new.txt", "one", "does not exist; list_files shows the files, write_file makes new ones"),
        ("blob.bin", "two", "is not a text file"),
        ("latin.txt", "caf", "is not UTF-8 text"),
        ("overlap.txt", "aa", "more than once"),
        ("sub", "x", "is not a regular file"),
        ("in.txt", "one", "is not a regular file"),
        ("pipe", "x", "is not a regular file"),
        ("id_rsa", "x", "contains secrets and may not be used"),
    ],
)
def test_an_edit_that_is_not_clear_changes_nothing(place, path, old, problem):
    (place / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (place / "overlap.txt").write_text("aaa")
    (place / "id_rsa").write_text("x")
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    with pytest.raises((ValueError, OSError), match=problem):
        tools_of(place)["edit_file"](path=path, old_string=old, new_string="y")
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before


def test_a_file_too_long_to_read_is_not_edited(place, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="is longer than 10 bytes and cannot be edited"):
        tools_of(place)["edit_file"](path="notes.txt", old_string="one", new_string="1")


OUTSIDE = [
    "..",
    "../secret.txt",
    "sub/../../secret.txt",
    "out/secret.txt",
    "out.txt",
    "out/inside-not/secret.txt",
    "../inside-not/secret.txt",
    "/etc/passwd",
    "/",
    "\0",
    "notes.txt\0",
    "out/new.txt",
    "../new.txt",
    "out/../secret.txt",
    "out/inside/../secret.txt",
    "./.././secret.txt",
]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("name", ["list_files", "read_file", "find_text", "write_file", "edit_file"])
def test_a_path_out_of_the_folder_is_rejected(place, name, path):
    before = sorted(place.parent.rglob("*"))
    arguments = {
        "find_text": {"text": "secret"},
        "write_file": {"content": "x"},
        "edit_file": {"old_string": "secret", "new_string": "x"},
    }.get(name, {})
    with pytest.raises(PermissionError, match="is outside the folder; use a path relative to it"):
        tools_of(place)[name](path=path, **arguments)
    assert sorted(place.parent.rglob("*")) == before
    assert (place.parent / "secret.txt").read_text() == SECRET


parts = st.sampled_from(
    [
        "..",
        ".",
        "",
        "sub",
        "deep",
        "out",
        "out.txt",
        "in.txt",
        "loop",
        "inside",
        "inside-not",
        "secret.txt",
        "notes.txt",
        "~",
        "a\0b",
        "\\..\\",
        "new",
    ]
)
paths = st.lists(parts, max_size=7).map("/".join) | st.text(max_size=20)


@given(paths, st.booleans())
def test_no_path_reaches_what_is_outside(scratch, path, full):
    path = f"{scratch}/{path}" if full else path
    tools = tools_of(scratch)
    beside = sorted(p for p in scratch.parent.rglob("*") if not p.is_relative_to(scratch))
    for use in (lambda: tools["read_file"](path), lambda: tools["find_text"]("secret", path)):
        try:
            assert SECRET not in use()
        except (OSError, ValueError):
            pass
    try:
        listed = tools["list_files"](path)
    except (OSError, ValueError):
        listed = ""
    assert "beside" not in listed
    try:
        tools["write_file"](path, "one\ntwo\nthree\n")
    except (OSError, ValueError):
        pass
    assert sorted(p for p in scratch.parent.rglob("*") if not p.is_relative_to(scratch)) == beside
    assert (scratch.parent / "secret.txt").read_text() == SECRET
    assert (scratch.parent / "inside-not" / "secret.txt").read_text() == SECRET


def test_a_run_reads_files_and_gets_errors(place):
    calls = [call("read_file", path="notes.txt"), call("read_file", path="../secret.txt"), call("list_files")]
    result = Agent("a", llm=ScriptedModel([calls, reply("ok")]), tools=file_tools(place)).run("go")
    assert result.steps[0].outcomes == ("ok", "error", "ok")
    assert result.messages[3].content.startswith("PermissionError: '../secret.txt' is outside the folder")


def test_hooks_see_the_folder_of_relative_paths(place):
    seen = []

    @observer("tool_end_with_path")
    def note(ctx, path):
        seen.append((path.file_path, path.working_dir))

    llm = ScriptedModel([call("read_file", path="notes.txt"), reply("ok")])
    Agent("a", llm=llm, tools=file_tools(place), hooks=[note]).run("go")
    assert seen == [("notes.txt", str(place))]


def test_a_relative_folder_is_resolved_once(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("here")
    monkeypatch.chdir(tmp_path)
    tools = tools_of(Path("a"))
    monkeypatch.chdir("/")
    assert tools["read_file"]("x") == "here"
    assert tools["read_file"].folder == str(tmp_path / "a")


@pytest.fixture
def swapped(place, monkeypatch):
    """Replace ``sub`` with a link to the outside right after the path was checked."""
    (place / "sub" / "secret.txt").write_text("harmless")
    honest, done = files.below, []

    def and_then_swap(root, path):
        found = honest(root, path)
        if not done:
            (place / "sub").rename(place / "old")
            (place / "sub").symlink_to(place.parent)
            done.append(True)
        return found

    def arm():
        monkeypatch.setattr(files, "below", and_then_swap)

    return arm


@pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="the system cannot open a file in an open folder")
@pytest.mark.parametrize("name", ["list_files", "read_file", "find_text", "write_file", "edit_file"])
def test_a_link_created_during_an_operation_is_not_followed(place, swapped, name):
    arguments = {
        "list_files": {"path": "sub"},
        "read_file": {"path": "sub/secret.txt"},
        "write_file": {"path": "sub/new.txt", "content": "x"},
        "find_text": {"path": "sub", "text": "secret outside"},
        "edit_file": {"path": "sub/secret.txt", "old_string": "secret outside", "new_string": "x"},
    }
    tools = tools_of(place)
    swapped()
    before = sorted(path.name for path in place.parent.iterdir())
    try:
        output = tools[name](**arguments[name])
    except OSError as error:
        output = str(error)
    assert SECRET not in output
    assert "beside" not in output
    assert sorted(path.name for path in place.parent.iterdir()) == before
    assert (place / "sub").is_symlink()


@pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="the system cannot open a file in an open folder")
def test_a_file_that_becomes_a_link_or_a_pipe_is_not_read(place, monkeypatch):
    tools, honest = tools_of(place), Path.is_file

    def and_then_swap(path):
        found = honest(path)
        path.unlink()
        path.symlink_to(place.parent / "secret.txt") if swap == "link" else os.mkfifo(path)
        return found

    for swap in ("link", "pipe"):
        (place / "a.txt").unlink(missing_ok=True)
        (place / "a.txt").write_text("a")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "is_file", and_then_swap)
            with pytest.raises((OSError, ValueError)):
                tools["read_file"]("a.txt")


def test_no_folder_stays_open(place):
    def open_inside():
        """Return the open files in the folder; other tests may leave files for the garbage collector."""
        found = []
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{number}"))
        return [path for path in found if path.startswith(str(place))]

    if os.path.isdir("/proc/self/fd"):
        tools = tools_of(place)
        for name, arguments in {
            "read_file": {"path": "sub/deep/more.txt"},
            "find_text": {"text": "x"},
            "list_files": {"path": "sub"},
        }.items():
            tools[name](**arguments)
        tools["write_file"]("sub/new/x.txt", "x")
        with pytest.raises(NotADirectoryError), open_folder_inside(place, place / "notes.txt"):
            pass
        assert open_inside() == []


def test_hidden_files_are_not_listed_read_searched_or_written(place):
    (place / ".env").write_text("KEY=abc")
    (place / "sub" / "x.pem").write_text("KEY=abc")
    (place / "link").symlink_to(".env")
    tools = {made.name: made for made in file_tools(place, True, hide=[".env", "*.pem"])}
    assert ".env" not in tools["list_files"]()
    note = "[2 files or folders that may contain secrets were not searched]"
    assert tools["find_text"]("KEY") == f"No line contains 'KEY'.\n{note}"
    for path in (".env", "link", "sub/x.pem", "sub/../.env"):
        with pytest.raises(PermissionError, match="contains secrets"):
            tools["read_file"](path)
    with pytest.raises(PermissionError, match="contains secrets"):
        tools["write_file"]("sub/new.pem", "x")
    with pytest.raises(PermissionError, match="contains secrets"):
        tools["find_text"]("KEY", ".env")
    for wrong in ("x", [1]):
        with pytest.raises(RegistrationError):
            file_tools(place, hide=wrong)


SECRET_PLACES = (".env", "prod.env", "deep/.ENV", ".ssh/config", "credentials.json", "deep/id_rsa", ".aws/cli/x.json")


@pytest.fixture
def secrets(tmp_path):
    """A project with secrets, and one harmless file that has the same text."""
    for name in (*SECRET_PLACES, "src/shop.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"COUPON = {name}\n")
    return tmp_path


@pytest.mark.parametrize("guards", [[], ["PathGuard"]])
def test_files_with_secrets_are_hidden_by_default(secrets, guards):
    calls = [call("find_text", text="COUPON"), call("list_files"), call("list_files", path="deep")]
    calls += [call("find_text", text="COUPON", path=path) for path in ("deep", ".ssh", ".ssh/config")]
    calls += [call(name, path=path) for path in SECRET_PLACES for name in ("read_file", "list_files")]
    hooks = [PathGuard(secrets, write=True) for _ in guards]
    result = Agent("a", llm=ScriptedModel([calls, reply("ok")]), tools=file_tools(secrets, True), hooks=hooks).run("go")
    texts = [message.content for message in result.messages if message.role == "tool"]
    assert texts[0] == (
        "src/shop.py:1: COUPON = src/shop.py\n[7 files or folders that may contain secrets were not searched]"
    )
    assert texts[1] == "deep/\nsrc/\n[5 files or folders that may contain secrets were not listed]"
    assert texts[2] == "[2 files or folders that may contain secrets were not listed]"
    assert not any(f"COUPON = {name}" in text for name in SECRET_PLACES for text in texts)


def test_a_program_can_say_that_no_file_is_hidden(secrets):
    tools = {made.name: made for made in file_tools(secrets, hide=())}
    assert tools["find_text"]("COUPON").count("COUPON") == 8
    assert tools["read_file"](".env") == "COUPON = .env"


GIT_FILES = [
    ".git/config", ".git/hooks/pre-commit", ".git", ".GIT/config", ".Git/hooks/x", "sub/.git/config", "sub/.git",
    ".git./config", "sub/../.git/config", "there/hooks/post-commit", ".g\u200cit/config", "git~1/config",
    ".gitconfig", ".config/git/config", "bare/HEAD", "bare/head", "old.git/config", "old.git/hooks/update",
    "fixture/config", "fixture/objects/x", "fixture/refs/x", ".githooks/pre-commit", "web/.husky/pre-push",
]  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A folder with a repository, a bare one, a link to its files, and a folder that looks like one in part."""
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "init", "-q", "--bare", "old.git"], cwd=folder, check=True)
    (folder / "there").symlink_to(".git")
    (folder / "fixture").mkdir()
    (folder / "fixture" / "HEAD").write_text("ref: refs/heads/main\n")
    return folder


@each_case("path", GIT_FILES)
def test_the_file_tool_does_not_write_what_makes_git_run_code(repository, path):
    write = {made.name: made for made in file_tools(repository, write=True, hide=())}["write_file"]
    with pytest.raises(PermissionError, match="may not be changed: it is .*git"):
        write(path, "x")


def test_the_file_tool_writes_other_files_of_a_repository(repository):
    write = {made.name: made for made in file_tools(repository, write=True, hide=())}["write_file"]
    for path in (".gitignore", ".github/workflows/ci.yml", "git/config", "headers.txt", "fixture/notes.txt"):
        assert write(path, "x")


@pytest.mark.parametrize("base", [".git/", ""])
def test_written_files_do_not_make_git_run_code(tmp_path, base):
    worktree = "" if base else "\tworktree = .\n"
    config = f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n{worktree}\tfsmonitor = ./run.sh\n"
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\ntouch ran\n")
    script.chmod(0o755)
    files = {"HEAD": "ref: refs/heads/main\n", "config": config, "objects/x": "", "refs/x": ""}
    calls = [call("write_file", path=base + name, content=text) for name, text in files.items()]
    for turns in ([calls], calls):
        Agent("a", llm=ScriptedModel([*turns, reply("ok")]), tools=file_tools(tmp_path, True, hide=())).run("go")
        subprocess.run(["git", "status"], cwd=tmp_path, capture_output=True, check=False)
        assert not (tmp_path / "ran").exists()


STORES = {
    "runs.db": RunStore,
    "approvals.db": ApprovalStore,
    "sessions/ann.json": lambda path: JsonSessionStore(path.parent),
    "audit.jsonl": AuditLogHook,
    "notes.md": NotesFile,
    "one.tape": TapeHook,
    "tapes/a/b": lambda path: TapeHook(path.parents[1]),
    "skills/cook/SKILL.md": lambda path: SkillStore(path.parents[1]),
}


@pytest.mark.parametrize("name", STORES)
def test_the_file_tool_does_not_write_what_hookline_uses(tmp_path, name):
    file = tmp_path / name
    store = STORES[name](file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write = tools_of(tmp_path)["write_file"]
    for path in (name, name.upper(), str(file), f"sub/../{name}", *(f"{name}{end}" for end in ("-wal", "-journal"))):
        with pytest.raises(PermissionError, match="may not be changed: it is"):
            write(path, "x")
    write("free.txt", "x")
    del store


def test_a_hard_link_to_a_file_that_hookline_uses_is_not_written(tmp_path):
    store = NotesFile(tmp_path / "notes.md")
    store.path.write_text("mine")
    os.link(store.path, tmp_path / "copy.md")
    with pytest.raises(PermissionError, match="may not be changed: it is"):
        tools_of(tmp_path)["write_file"]("copy.md", "x")


PROGRAM = """
import sys
from hookline.tools import file_tools
import helper, package.used
(write,) = [tool for tool in file_tools(".", write=True) if tool.name == "write_file"]
for path in sys.argv[1:]:
    try:
        write(path, "x")
    except PermissionError as error:
        print("refused", path)
    else:
        print("wrote", path)
"""


@pytest.mark.slow  # another process
def test_a_program_cannot_be_made_to_load_what_its_agent_writes(tmp_path, tmp_path_factory):
    installed = tmp_path_factory.mktemp("installed")
    (installed / "Upper.py").touch()
    (installed / "spread").mkdir()  # a package without __init__.py
    (installed / "spread" / "part.py").touch()
    for name, text in {"agent.py": PROGRAM, "helper.py": "", "package/__init__.py": "", "package/used.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code = ["agent.py", "helper.py", "HELPER.py", "helper/__init__.py", "package/used.py", "package/later.py"]
    code += ["__pycache__/helper.cpython-311.pyc", "json.py", "json/__init__.py", "sitecustomize.py", "msgspec.py"]
    code += ["lib/json.py", "Upper/__init__.py", "spread/part.py", "spread/part/__init__.py"]
    free = ["shop.py", "tests/json.py", "shop/__init__.py", "helper.md", "json.txt", "spread/shop.py"]
    command = [sys.executable, "agent.py", *code, *free]
    folders = (Path(__file__).parents[2] / "src", tmp_path / "lib", installed)  # lib does not exist yet
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [*(f"refused {path}" for path in code), *(f"wrote {path}" for path in free)]
