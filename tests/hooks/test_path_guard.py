"""PathGuard: the paths in tool calls.

Tables of cases keep several cases on a line (``fmt: skip``), so that they can be read as a whole.
"""

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Agent, RegistrationError, ScriptedModel, call, hook, reply, tool
from hookline.events import HookExecuted
from hookline.hooks import AuditLogHook, PathGuard
from hookline.stores import JsonSessionStore, RunStore
from hookline.testing import scripted_agent
from hookline.tools import Tool, file_tools, shell_tool
from tests.cases import each_case


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder, with ways out of it, that is the working folder too."""
    (tmp_path / "secret").write_text("s")
    folder = tmp_path / "inside"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to(tmp_path / "not" / "there")
    monkeypatch.chdir(folder)
    return folder


@tool(effects=["read"])
def open_file(path: str) -> str:
    """Open a file."""
    return f"opened {path}"


@tool(effects=["write"])
def write_it(path: str) -> str:
    """Write a file."""
    return f"wrote {path}"


def run(calls, guard, tools=(open_file, write_it), **options):
    agent = Agent("a", llm=ScriptedModel([calls, reply("ok")]), tools=tools, hooks=[guard], **options)
    result = agent.run("go")
    return result.steps[0].outcomes, [m.content for m in result.messages[2:-1]]


@each_case(
    "path",
    [
        "a.txt",
        "./sub/../a.txt",
        "sub/new.txt",
        "no/such/thing",
        ".",
        "sub",
        "~nobody0/x",
        "*.txt",
        "10:30.txt",
        "50%.txt",
        "a[1].txt",
        "sub/*.py",
        "n" * 300,
        "日本.txt",
        "o\u0308.txt",
        "env",
        "keys.md",
        ".gitignore",
        ".env.example",
    ],
)
def test_a_path_in_the_folder_passes(place, path):
    assert run([call("open_file", path=path)], PathGuard(place)) == (("ok",), [f"opened {path}"])
    assert run([call("open_file", path=str(place / path))], PathGuard(place))[0] == ("ok",)


@pytest.mark.parametrize(
    "path",
    [
        "..", "../secret", "sub/../../secret", "out", "out/secret", "out/inside/a.txt/../../../secret", "/etc/passwd",
        "/", "a\0b", "~\0", "~%00/../..", "loop", "~/x", "~root/x", "$HOME/x", "${HOME}",
        "file:///etc/passwd", "FILE:/etc/passwd",
        "file:///etc%2fpasswd", "../inside-not", " ../secret", "'/etc/passwd'", "..\\secret", "%2e%2e/secret",
        "C:\\x", "c:/x",
        "\\\\server\\share", "//./x", "ou?/secret", "o*", "*/secret", "[o]ut", "*/*/*/*", "file://localhost/etc/passwd",
        "~/../x", "new/../../secret", "dangling", "dangling/x", "out/new/deep", "a" * 5000 + "/../../../secret",
    ],
)  # fmt: skip
def test_a_path_outside_the_folder_is_blocked_with_advice(place, monkeypatch, path):
    monkeypatch.setenv("HOME", "/root")
    outcomes, (text,) = run([call("open_file", path=path)], PathGuard(place))
    assert outcomes == ("blocked",)
    assert "Use a path there" in text
    assert str(place) in text


def test_a_path_that_is_not_unicode_is_refused_before_any_guard(place):
    assert run([call("open_file", path="~\ud800/x")], PathGuard(place))[0] == ("error",)


def test_every_path_of_a_call_is_judged(place):
    @tool(effects=["read"])
    def copy(source_file: str, target_dir: str, edits: list[dict[str, str]]) -> str:
        return "copied"

    def outcome(*paths):
        source, target, inner = paths
        return run([call("copy", source_file=source, target_dir=target, edits=[{"path": inner}])], guard, [copy])[0]

    guard = PathGuard(place)
    assert outcome("a", "b", "c") == ("ok",)
    for outside in range(3):
        assert outcome(*("/etc" if n == outside else "a" for n in range(3))) == ("blocked",)


@pytest.mark.parametrize(
    "arguments",
    [
        {"src": "/etc/passwd"}, {"source": ["a.txt", "../secret"]}, {"uri": "file:///etc/passwd"}, {"cwd": "out"},
        {"anything": " File:///etc/passwd"}, {"path": {"/etc/passwd": 1}}, {"target": {"~root/x": 1}},
        {"uri": "x://../../../secret"}, {"text": "/etc/passwd"}, {"x": [{"y": "~root/.ssh"}]},
        {"q": "sub/../../secret"}, {"q": "a b/../../secret"},
    ],
)  # fmt: skip
def test_a_path_is_found_in_any_argument(place, arguments):
    @tool(effects=["read"])
    def do(**given: Any) -> str:
        return "did it"

    assert run([call("do", **arguments)], PathGuard(place), [do])[0] == ("blocked",)


@pytest.mark.parametrize(
    "arguments",
    [{"src": "sub/a", "dst": "b"}, {"source": "wikipedia"}, {"uri": "https://x.org/etc"}, {"text": "and/or"}],
)
def test_values_that_are_no_paths_or_inside_paths_pass(place, arguments):
    @tool(effects=["read"])
    def do(**given: Any) -> str:
        return "did it"

    assert run([call("do", **arguments)], PathGuard(place), [do])[0] == ("ok",)
    assert run([call("do", uri=f"file://{place}/a.txt")], PathGuard(place), [do])[0] == ("ok",)


def test_rewritten_arguments_are_judged(place):
    @hook("before_tool", priority=-1000)
    def elsewhere(ctx, request):
        return request.replace(arguments={"path": "/etc/passwd"})

    agent = Agent(
        "a",
        llm=ScriptedModel([call("open_file", path="a.txt"), reply("ok")]),
        tools=[open_file],
        hooks=[PathGuard(place), elsewhere],
    )
    assert agent.run("go").steps[0].outcomes == ("blocked",)


def test_relative_paths_start_where_the_tool_starts(place, monkeypatch):
    monkeypatch.chdir("/")
    assert run([call("open_file", path="etc/passwd")], PathGuard(place))[0] == ("blocked",)
    assert run([call("read_file", path="a.txt")], PathGuard(place), file_tools(place)) == (("ok",), ["a"])


def test_writing_is_blocked_unless_it_is_allowed(place):
    calls = [call("open_file", path="a.txt"), call("write_it", path="a.txt"), call("write_it", path="/etc/x")]
    outcomes, texts = run(calls, PathGuard(place))
    assert outcomes == ("ok", "blocked", "blocked")
    assert texts[1] == "write_it is not allowed: files may only be read. Go on without writing."
    assert run(calls, PathGuard(place, write=True))[0] == ("ok", "ok", "blocked")
    assert run(calls, PathGuard(place, write_tools=["open_*"]))[0] == ("blocked", "blocked", "blocked")


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        (["read"], "ok"),
        (["network"], "ok"),
        ([], "ok"),
        (["write"], "blocked"),
        (["read", "delete"], "blocked"),
        (["execute"], "blocked"),
        (None, "blocked"),
    ],
)
@pytest.mark.parametrize("spot", ["a.txt", "{place}/a.txt"])
def test_write_protection_follows_the_declared_effects(place, effects, expected, spot):
    @tool(name="mcp__fs__touch", effects=effects)
    def touch(path: str) -> str:
        (place / "changed").write_text(path)
        return "touched"

    calls = [call("mcp__fs__touch", path=spot.format(place=place))]
    outcomes, (text,) = run(calls, PathGuard(place), [touch])
    assert outcomes == (expected,)
    assert (place / "changed").exists() == (expected == "ok")
    assert ("does not declare that it only reads" in text) == (effects is None)
    assert run(calls, PathGuard(place, write=True), [touch])[0] == ("ok",)


@pytest.mark.parametrize("effects", [None, ["write"], ["delete"], ["read", "write", "network"]])
def test_a_call_without_a_path_is_not_about_files_whatever_the_tool_declares(place, effects):
    drop = tool(name="drop_table", effects=effects)(lambda name: "dropped")
    assert run([call("drop_table", name="orders")], PathGuard(place), [drop])[0] == ("ok",)
    assert run([call("drop_table", name=str(place / "a.txt"))], PathGuard(place), [drop])[0] == ("blocked",)


def test_a_tool_that_declares_to_run_code_is_blocked_unless_its_commands_are_judged(place):
    python = tool(name="python", effects=["execute"])(lambda code: "ran")
    assert run([call("python", code="1 + 1")], PathGuard(place), [python])[0] == ("blocked",)
    assert run([call("python", code="1 + 1")], PathGuard(place, commands="python"), [python])[0] == ("ok",)


def test_the_reason_says_how_to_allow_writing(place):
    seen = []
    run([call("write_it", path="a.txt")], PathGuard(place), sinks=[seen.append])
    (found,) = [event for event in seen if isinstance(event, HookExecuted)]
    assert "write=True" in found.reason
    assert "--write" in found.reason


@pytest.mark.parametrize("name", ["source", "src", "target", "dest", "root", "uri", "value"])
@pytest.mark.parametrize(
    "text",
    [".env", "id_rsa", " .env ", "prod.env", ".ENV", "server.pem", ".ssh", "./.env", "sub/id_rsa", "%2eenv", ".\\.env"],
)
def test_the_bare_name_of_a_secret_file_is_found_under_any_name_of_a_tool_that_declares_to_read(place, name, text):
    (place / ".env").write_text("SECRET=1")
    read = Tool(lambda **given: "read", name="load", effects=["read"], folder=place)
    assert run([call("load", **{name: text})], PathGuard(place), [read])[0] == ("blocked",)


@pytest.mark.parametrize("name", ["source", "src", "target", "dest", "root", "uri"])
def test_the_bare_name_of_a_secret_file_is_found_under_the_name_of_a_place_whatever_a_tool_declares(place, name):
    load = Tool(lambda **given: "read", name="load", folder=place)
    assert run([call("load", **{name: "id_rsa"})], PathGuard(place, write=True), [load])[0] == ("blocked",)
    assert run([call("load", **{name: "main"})], PathGuard(place), [load])[0] == ("ok",)
    assert run([call("load", query="id_rsa")], PathGuard(place), [load])[0] == ("ok",)  # it may be a word to look up


@pytest.mark.parametrize("effects", [["read"], ["write"], None])
@pytest.mark.parametrize("value", ["away", "away/file", "./away/file"])
def test_a_link_out_of_the_folder_is_found_under_any_name(place, effects, value):
    (place / "away").symlink_to(place.parent)
    use = Tool(lambda **given: "used", name="use", effects=effects, folder=place)
    assert run([call("use", thing=value)], PathGuard(place, write=True), [use])[0] == ("blocked",)
    assert run([call("use", message=value)], PathGuard(place, write=True), [use])[0] == ("ok",)


def test_a_word_that_is_no_secret_file_and_a_text_are_not_judged_by_their_name(place):
    read = Tool(lambda value="", pattern="": "read", name="load", effects=["read"], folder=place, texts=["pattern"])
    calls = [call("load", value="main"), call("load", pattern=".env"), call("load", value="what is in .env?")]
    assert run(calls, PathGuard(place), [read])[0] == ("ok", "ok", "ok")


def test_an_undeclared_tool_may_only_use_the_folders_that_may_be_written(place):
    undeclared = tool(name="guess")(lambda path: "guessed")
    guard = PathGuard(place, write=[place / "sub"], protect=["sub/kept"])
    calls = [call("guess", path=path) for path in ("a.txt", "sub/a.txt", str(place / "sub" / "kept"))]
    assert run(calls, guard, [undeclared])[0] == ("blocked", "ok", "blocked")


def test_a_name_that_says_write_counts_whatever_the_tool_declares(place):
    liar = tool(name="write_note", effects=["read"])(lambda path: "wrote")
    assert run([call("write_note", path="a.txt")], PathGuard(place), [liar])[0] == ("blocked",)


def test_a_command_tool_is_left_to_the_terminal_guard(place):
    runner = tool(name="shell", effects=["execute"])(lambda command: "ran")
    assert run([call("shell", command="ls")], PathGuard(place), [runner])[0] == ("ok",)
    assert run([call("shell", command="ls")], PathGuard(place, commands=[]), [runner])[0] == ("blocked",)
    undeclared = tool(name="shell")(lambda path: "ran")
    assert run([call("shell", path="a.txt")], PathGuard(place), [undeclared])[0] == ("blocked",)


def test_a_command_line_is_not_a_path(place):
    assert run([call("shell", command="/bin/echo hi")], PathGuard(place), [shell_tool(place, sandbox="off")])[0] == (
        "ok",
    )


def test_text_that_looks_like_a_path_is_allowed_where_the_tool_says_that_it_is_text(place):
    tools = file_tools(place, write=True)
    calls = [call("write_file", path="b.txt", content="/etc/hosts"), call("find_text", text="/etc")]
    assert run(calls, PathGuard(place, write=True), tools)[0] == ("ok", "ok")


def test_tools_without_paths_pass(place):
    @tool(effects=["read"])
    def add(a: int, b: int) -> int:
        return a + b

    assert run([call("add", a=1, b=2)], PathGuard(place), [add])[0] == ("ok",)


def test_it_is_a_guard_that_fails_closed():
    assert (PathGuard.priority, PathGuard.phase) == (100, "guard")


@pytest.mark.parametrize(
    "options",
    [{"folder": "missing"}, {"folder": ".", "write_tools": "write_*"}, {"folder": ".", "read": "sub"},
    {"folder": "a\0b"},
     {"folder": ".", "read": ["missing"]}, {"folder": ".", "write": ["missing"]}, {"folder": ".", "write": "sub"},
     {"folder": ".", "write": 1}, {"folder": ".", "secrets": ".env"}, {"folder": ".", "secrets": [1]}],
)  # fmt: skip
def test_invalid_arguments_are_rejected(place, options):
    with pytest.raises(RegistrationError):
        PathGuard(**options)


@given(st.lists(st.sampled_from(["..", ".", "sub", "out", "inside", "secret", "a.txt", "~", "/"]), max_size=6))
def test_every_path_that_passes_is_in_the_folder(tmp_path_factory, parts):
    top = tmp_path_factory.getbasetemp() / "guarded"
    inside = top / "inside"
    (inside / "sub").mkdir(parents=True, exist_ok=True)
    if not (inside / "out").is_symlink():
        (inside / "out").symlink_to(top)
    path = "/".join(parts)
    opened = tool(name="open_file", folder=inside)(lambda path: "opened")
    outcomes, _ = run([call("open_file", path=path)], PathGuard(inside), [opened])
    assert outcomes in (("ok",), ("blocked",))
    if outcomes == ("ok",) and path:
        assert (inside / path).resolve().is_relative_to(inside.resolve())


def test_kept_files_may_be_read_but_not_written_under_any_spelling(tmp_path):
    (tmp_path / "rules.py").write_text("mine")
    (tmp_path / "alias").symlink_to("rules.py")
    guard = PathGuard(tmp_path, write=True, protect=["hookline.toml", str(tmp_path / "rules.py")])
    paths = ["rules.py", "./sub/../rules.py", "alias", "HookLine.toml", "sub/hookline.toml"]
    turns = [*(call("write_file", path=path, content="theirs") for path in paths), call("read_file", path="rules.py")]
    agent = scripted_agent(
        [[*turns, call("write_file", path="free.txt", content="x")], "done"],
        tools=file_tools(tmp_path, write=True),
        hooks=[guard],
    )
    results = [message for message in agent.run("go").messages if message.role == "tool"]
    assert [message.is_error for message in results] == [True] * 5 + [False, False]
    assert all("may not be changed" in message.content for message in results[:5])
    assert (tmp_path / "rules.py").read_text() == "mine"
    assert not (tmp_path / "hookline.toml").exists()


def test_several_folders_may_be_read_and_others_written(tmp_path):
    for name in ("home", "docs", "out", "else"):
        (tmp_path / name).mkdir()
    guard = PathGuard(tmp_path / "home", write=[tmp_path / "out"], read=[tmp_path / "docs"])

    def outcomes(name):
        calls = [call(name, path=str(tmp_path / folder / "x")) for folder in ("home", "docs", "out", "else")]
        return run(calls, guard)[0]

    assert outcomes("open_file") == ("ok", "ok", "ok", "blocked")
    assert outcomes("write_it") == ("blocked", "blocked", "ok", "blocked")
    _, (text,) = run([call("write_it", path=str(tmp_path / "home" / "x"))], guard)
    assert f"only paths in {str(tmp_path / 'out')!r} are" in text


@pytest.mark.parametrize(
    "name",
    [
        *("writeFile", "create_directory", "append_note", "rename_x", "save_as", "remove_file", "mkdir"),
        *("mcp__fs__write_file", "mcp__my_fs__writeFile"),
    ],
)
def test_tools_that_write_are_recognised_by_name(place, name):
    writer = tool(name=name)(lambda what: "done")
    assert run([call(name, what="a.txt")], PathGuard(place), [writer])[0] == ("blocked",)


SECRETS = [
    ".env", "sub/.env", ".env.local", ".ENV", ".Env.Production", "./sub/../.env", "prod.env", ".ssh/config",
    ".ssh", ".aws/credentials",
    "id_rsa", "sub/id_ed25519", "server.pem", "tls.KEY", ".git/config", ".netrc", ".npmrc", "credentials.json",
    "alias", ".env ",
    ".env::$DATA", ".en?", ".e*", "sub/.e[n]v", "file:.env", "%2eenv", " .env", "'.env'", ".env.", "sub\\.env",
    ".kube/config",
    "file:.e\tnv", "file:.env#x", "file:.env?x=1", "FILE:\talias", "file:sub/%2eenv?",
    "terraform.tfstate", ".bash_history", "secrets.yaml", "deep/.gnupg/x/y", "hidden/inner",
]  # fmt: skip


@pytest.fixture
def place_with_secrets(place):
    (place / "sub" / ".env").write_text("KEY=1")
    (place / ".env").write_text("KEY=1")
    (place / "alias").symlink_to(".env")
    (place / ".ssh").mkdir()
    (place / "hidden").symlink_to(".ssh")
    return place


@each_case("path", SECRETS)
def test_secret_files_are_blocked_unless_disabled(place_with_secrets, path):
    place = place_with_secrets
    outcomes, (text,) = run([call("open_file", path=path)], PathGuard(place))
    assert outcomes == ("blocked",)
    assert "may contain secrets" in text
    assert run([call("open_file", path=path)], PathGuard(place, secrets=[]))[0] == ("ok",)


def test_the_folder_itself_is_not_secret(tmp_path):
    (tmp_path / ".aws").mkdir()
    calls = [call("open_file", path=str(tmp_path / ".aws" / name)) for name in ("notes.txt", "id_rsa")]
    assert run(calls, PathGuard(tmp_path / ".aws"))[0] == ("ok", "blocked")


def test_secrets_can_have_exceptions(place):
    guard = PathGuard(place, secrets=["*.txt", "!public.txt", "private/*", "x[!a-y]"])
    paths = ["a.txt", "public.txt", "private/x", "private", "sub/private/x/y", "a.md", "xz", "xa"]
    calls = [call("open_file", path=path) for path in paths]
    assert run(calls, guard)[0] == ("blocked", "ok", "blocked", "ok", "blocked", "ok", "blocked", "ok")


@given(
    st.text(max_size=30)
    | st.lists(st.sampled_from(list("./\\~$*?[]%:\0 \n\"'-eE\u0308\ud800") + ["..", "file:", ".env"])).map("".join)
)
def test_any_path_gets_a_verdict(tmp_path_factory, path):
    inside = tmp_path_factory.getbasetemp() / "fuzzed"
    inside.mkdir(exist_ok=True)
    opened = tool(name="open_file", folder=inside)(lambda path: "opened")
    expected = [("error",)] if "\ud800" in path else [("ok",), ("blocked",)]  # no guard is asked about invalid text
    assert run([call("open_file", path=path)], PathGuard(inside), [opened])[0] in expected


@pytest.mark.parametrize("piece", ["*", "[", "/", "../", "a/", "%25", "$", "~", "?/", ".env/"])
def test_a_very_long_path_gets_a_verdict(place, piece):
    assert run([call("open_file", path=piece * 20_000)], PathGuard(place))[0] in (("ok",), ("blocked",))


@pytest.fixture
def project(tmp_path):
    """A folder with secrets in several places, and one folder without."""
    for name in (".env", "conf/credentials.json", "conf/app.json", ".ssh/config", "src/shop.py", "id_rsa"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"COUPON = {name}\n")
    (tmp_path / "src" / "docs").mkdir()
    return tmp_path


def searching(name, folder, **options):
    """Make a tool that shows all files in a folder, as a foreign search does."""

    @tool(name=name, folder=folder, **options)
    def search(text: str, path: str = ".") -> str:
        return "\n".join(file.read_text() for file in (folder / path).rglob("*") if file.is_file())

    return search


@pytest.mark.parametrize("name", ["grep", "mcp__fs__grep_files", "searchCode", "find_text", "search_in_files"])
@pytest.mark.parametrize("effects", [["read"], None])
def test_a_search_that_would_show_a_secret_file_is_blocked_and_another_folder_is_not(project, name, effects):
    search = searching(name, project, effects=effects)
    calls = [call(name, text="x"), call(name, text="x", path="."), call(name, text="x", path="conf")]
    calls += [call(name, text="x", path="src"), call(name, text="x", path=str(project / "src"))]
    outcomes, texts = run(calls, PathGuard(project, write=effects is None), [search])
    assert outcomes == ("blocked", "blocked", "blocked", "ok", "ok")
    assert "it would read 'conf/credentials.json', which may contain secrets. Search a folder or files" in texts[2]
    assert not any("COUPON = ." in text for text in texts)


def test_a_search_of_a_website_is_not_one_of_files(project):
    search = tool(name="search_code", folder=project, effects=["network"])(lambda query: "found")
    guard = PathGuard(project, write=True)
    assert run([call("search_code", query="x")], guard, [search])[0] == ("ok",)


def test_a_glob_for_any_depth_does_not_match_a_secret_file(project):
    (project / "src" / "docs" / "deep").mkdir()
    (project / "src" / "docs" / "deep" / "credentials.json").touch()
    reader = tool(name="get", effects=["read"], folder=project)(lambda path: "read")
    calls = [call("get", path=path) for path in ("src/**", "**/*.json", "src/*/**/c*", "**/*.py", "src/**/*.md")]
    assert run(calls, PathGuard(project), [reader])[0] == ("blocked", "blocked", "blocked", "ok", "ok")


def test_a_search_by_another_name_is_named_in_search_tools(project):
    search = searching("lookup", project, effects=["read"])
    assert run([call("lookup", text="x")], PathGuard(project, search_tools=["look*"]), [search])[0] == ("blocked",)
    assert run([call("lookup", text="x")], PathGuard(project, secrets=(), search_tools=["look*"]), [search])[0] == (
        "ok",
    )


def test_a_link_to_a_secret_file_counts_in_a_search(project):
    (project / "src" / "docs" / "notes.txt").symlink_to("../../.env")
    search = searching("grep", project, effects=["read"])
    assert run([call("grep", text="x", path="src")], PathGuard(project), [search])[0] == ("blocked",)


def test_the_search_of_the_file_tools_skips_secret_files_instead(project):
    outcomes, (text,) = run([call("find_text", text="coupon")], PathGuard(project), file_tools(project))
    assert outcomes == ("ok",)
    assert [line.partition(":")[0] for line in text.splitlines()[:-1]] == ["conf/app.json", "src/shop.py"]
    assert text.endswith("[4 files or folders that may contain secrets were not searched]")


def test_files_that_only_the_guard_takes_for_secret_are_not_searched_either(project):
    calls = [call("find_text", text="coupon"), call("find_text", text="coupon", path="conf")]
    outcomes, (text, _) = run(calls, PathGuard(project, secrets=["*.py"]), file_tools(project))
    assert outcomes == ("blocked", "ok")
    assert "src/shop.py" in text


def test_a_search_in_too_many_files_to_check_is_blocked(project, monkeypatch):
    monkeypatch.setattr("hookline.hooks.path_guard._MAX_ENTRIES", 3)
    outcomes, (text,) = run(
        [call("grep", text="x")], PathGuard(project), [searching("grep", project, effects=["read"])]
    )
    assert outcomes == ("blocked",)
    assert "too many files to check. Search a smaller folder" in text


CONTROLLING = [
    ".git/config", ".git/hooks/pre-commit", ".GIT/hooks/x", "sub/.git", "sub/../.git/x", "there/hooks/x", "x/HEAD",
    "hookline.toml", "sub/HOOKLINE.toml", ".claude/settings.json", ".claude/settings.local.json", "x.tape",
    "runs.db", "RUNS.db", "runs.db-wal", "runs.db-journal", "data/../runs.db", "linked.db", "hard.db",
    "sessions/ann.json", "sessions", "sessions/new/x", "audit.jsonl", "audit-0001.jsonl", "audit.jsonl.head",
]  # fmt: skip


@each_case("path", CONTROLLING)
def test_files_of_git_and_of_hookline_are_not_written_whatever_protect_says(tmp_path, path):
    """A tool that opens the file itself: the guard alone must keep it from doing so."""
    (tmp_path / ".git").mkdir(exist_ok=True)
    stores = [RunStore(tmp_path / "runs.db"), JsonSessionStore(tmp_path / "sessions")]
    stores.append(AuditLogHook(tmp_path / "audit.jsonl"))
    (tmp_path / "runs.db").touch()
    for name, target in {"there": ".git", "linked.db": "runs.db"}.items():
        if not (tmp_path / name).is_symlink():
            (tmp_path / name).symlink_to(target)
    if not (tmp_path / "hard.db").exists():
        os.link(tmp_path / "runs.db", tmp_path / "hard.db")
    writer = tool(name="put", effects=["write"], folder=tmp_path)(lambda path: "wrote")
    undeclared = tool(name="put", folder=tmp_path)(lambda path: "wrote")
    for made in (writer, undeclared):
        guard = PathGuard(tmp_path, write=True, secrets=())
        outcomes, (text,) = run([call("put", path=path)], guard, [made])
        assert outcomes == ("blocked",)
        assert "may not be changed: it is" in text
    calls = [call("put", path=free) for free in ("a.txt", "run.db", "audit.txt", "session/ann.json", "my.git/x")]
    assert set(run(calls, PathGuard(tmp_path, write=True), [writer])[0]) == {"ok"}
    reader = tool(name="get", effects=["read"], folder=tmp_path)(lambda path: "read")
    assert run([call("get", path=path)], PathGuard(tmp_path, secrets=()), [reader])[0] == ("ok",)
    del stores


@pytest.mark.parametrize("name", ["delete_folder", "move_file", "rename_it"])
def test_a_folder_that_contains_such_files_is_not_removed(tmp_path, name):
    (tmp_path / "inner" / ".git").mkdir(parents=True)
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").touch()
    (tmp_path / "free").mkdir()
    store = RunStore(tmp_path / "data" / "runs.db")
    remover = tool(name=name, effects=["write"], folder=tmp_path)(lambda path: "removed")
    calls = [call(name, path=path) for path in ("data", "inner", ".", ".claude", "free")]
    assert run(calls, PathGuard(tmp_path, write=True), [remover])[0] == (*["blocked"] * 4, "ok")
    del store


PROTECTED = [
    ".git",
    "hookline.toml",
    ".husky",
    ".githooks",
    ".gitconfig",
    ".mcp.json",
    "opencode.json",
    ".copilot",
    ".copilot/hooks",
    ".opencode",
    ".claude",
    ".claude/settings.json",
]


@each_case("name", [*PROTECTED, "logs", "%2egit", "./.git", ".GIT"])
@pytest.mark.parametrize("called", ["move_file", "mcp__files__move_file", "mv"])
@pytest.mark.parametrize("effects", [None, ["read", "write"]])
def test_a_protected_name_is_neither_source_nor_destination_whether_it_exists_or_not(tmp_path, name, called, effects):
    """``source`` and ``destination`` are the names that the MCP server for files uses."""
    (tmp_path / "evil").mkdir(exist_ok=True)
    (tmp_path / "logs").mkdir(exist_ok=True)
    log = AuditLogHook(tmp_path / "logs" / "audit.jsonl")
    move = Tool(lambda source, destination: "moved", name=called, effects=effects, folder=tmp_path)
    guard = PathGuard(tmp_path, write=True, secrets=())
    calls = [call(called, source="evil", destination=name), call(called, source=name, destination="away")]
    assert run(calls, guard, [move])[0] == ("blocked", "blocked")
    assert run([call(called, source="evil", destination="good")], guard, [move])[0] == ("ok",)
    del log


@pytest.mark.parametrize("effects", [None, ["write"], ["delete"]])
def test_a_protected_file_that_exists_counts_under_any_name_of_a_parameter(tmp_path, effects):
    (tmp_path / ".git").mkdir()
    (tmp_path / "hookline.toml").touch()
    change = Tool(lambda thing: "changed", name="change", effects=effects, folder=tmp_path)
    guard = PathGuard(tmp_path, write=True, secrets=())
    calls = [call("change", thing=thing) for thing in (".git", ".git/new", "hookline.toml", "free.txt")]
    assert run(calls, guard, [change])[0] == ("blocked", "blocked", "blocked", "ok")


@pytest.mark.parametrize("effects", [None, ["read", "write"]])
def test_a_text_that_names_a_protected_file_is_no_file(tmp_path, effects):
    (tmp_path / ".git").mkdir()
    (tmp_path / "hookline.toml").touch()
    work = Tool(lambda query="", **given: "worked", name="work", effects=effects, folder=tmp_path, texts=["query"])
    guard = PathGuard(tmp_path, write=True, secrets=())
    texts = [
        {"query": "hookline.toml"},
        {"message": "Add .git to the ignored folders"},
        {"title": "Why is hookline.toml protected?"},
        {"target": "HEAD"},
        {"source": "main", "target": "feature/x"},
        {"source": "wikipedia"},
    ]
    assert run([call("work", **text) for text in texts], guard, [work])[0] == ("ok",) * len(texts)
    undeclared = Tool(lambda query: "found", name="search", folder=tmp_path)
    assert run([call("search", query="hookline.toml")], guard, [undeclared])[0] == ("ok",)
    assert run([call("search", query="hookline.toml")], PathGuard(tmp_path), [undeclared])[0] == ("ok",)


def test_a_repository_cannot_be_put_together_under_the_name_of_a_revision(tmp_path):
    (tmp_path / "objects").mkdir()
    move = Tool(lambda source, destination: "moved", name="move_file", folder=tmp_path)
    calls = [call("move_file", source="evil", destination="HEAD")]
    assert run(calls, PathGuard(tmp_path, write=True), [move])[0] == ("blocked",)


@pytest.mark.parametrize("inner", ["repo/.git", ".claude/settings.json", "hookline.toml", "run.tape", "bare/HEAD"])
def test_a_folder_that_contains_such_files_at_any_depth_is_neither_deleted_nor_moved(tmp_path, inner):
    path = tmp_path / "team" / "proj" / inner
    path.parent.mkdir(parents=True)
    path.touch()
    (path.parent / "refs").mkdir()
    delete = Tool(lambda path: "deleted", name="delete_path", effects=["delete"], folder=tmp_path)
    rename = Tool(lambda src, dst: "renamed", name="file_rename", folder=tmp_path)
    guard = PathGuard(tmp_path, write=True)
    outcomes, (text, _, _) = run(
        [call("delete_path", path="team"), call("delete_path", path="."), call("file_rename", src="team", dst="x")],
        guard,
        [delete, rename],
    )
    assert outcomes == ("blocked",) * 3
    assert f"a folder that contains 'proj/{inner}'" in text
    path.unlink()
    assert run([call("delete_path", path="team")], guard, [delete])[0] == ("ok",)


def test_a_folder_with_too_many_files_to_check_is_not_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline._base.own_files.MAX_ENTRIES", 3)
    for number in range(4):
        (tmp_path / "many" / str(number)).mkdir(parents=True)
    delete = Tool(lambda path: "deleted", name="delete_path", effects=["delete"], folder=tmp_path)
    outcomes, (text,) = run([call("delete_path", path="many")], PathGuard(tmp_path, write=True), [delete])
    assert outcomes == ("blocked",)
    assert "a folder with more than 3 files and folders, which takes too long to check" in text


@pytest.mark.parametrize("effects", [None, ["write"], ["delete"]])
@pytest.mark.parametrize("name", ["name", "to", "target", "thing"])
@pytest.mark.parametrize("value", ["a.txt", "sub", "sub/new.txt", "./new.txt", "sub\\new.txt", "a%2etxt"])
def test_a_value_that_is_a_file_is_a_path_whatever_its_parameter_is_called(place, effects, name, value):
    change = Tool(lambda **given: "changed", name="change", effects=effects, folder=place)
    assert run([call("change", **{name: value})], PathGuard(place), [change])[0] == ("blocked",)
    assert run([call("change", data=[{name: value}])], PathGuard(place), [change])[0] == ("blocked",)
    assert run([call("change", **{name: value})], PathGuard(place, write=True), [change])[0] == ("ok",)
    words = ("orders", "public.orders", *(("and/or", "owner/repo.js") if name != "target" else ()))
    calls = [call("change", **{name: word}) for word in words]
    assert run(calls, PathGuard(place), [change])[0] == ("ok",) * len(words)
    texts = [call("change", message=value), call("change", search_text=value)]
    assert run(texts, PathGuard(place), [change])[0] == ("ok", "ok")
