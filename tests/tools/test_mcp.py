"""Tools of MCP servers, against real server processes."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hookline import Agent, HookResult, RegistrationError, ScriptedModel, call, guard, hook, observer, reply, tool
from hookline.errors import NotInstalledError
from hookline.events import ToolProgressed
from hookline.hooks import PathGuard
from hookline.tools import McpError, ToolRegistry, mcp, mcp_connection
from hookline.tools._mcp import McpTool
from hookline.tools._tool import CheckedArguments

from ..waiting import block_until

pytestmark = pytest.mark.slow


SERVER = str(Path(__file__).with_name("mcp_server.py"))


class Started:
    """A server for tests, and the file in which it notes its calls."""

    def __init__(self, notes, *args, **options):
        self.path = notes
        self.path.touch()
        self.server = mcp([sys.executable, SERVER, str(notes), *args], **options)

    @property
    def notes(self):
        return self.path.read_text().splitlines()

    @property
    def pids(self):
        return [int(line.split()[1]) for line in self.notes if line.startswith("started")]


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and ") Z " in Path(f"/proc/{pid}/stat").read_text()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server shared by tests that do not break it."""
    started = Started(tmp_path_factory.mktemp("mcp") / "notes")
    with started.server:
        started.server.tools()
        yield started


@pytest.fixture(scope="module")
def trusted(tmp_path_factory):
    """A trusted server."""
    started = Started(tmp_path_factory.mktemp("trusted") / "notes", trusted=True)
    with started.server:
        started.server.tools()
        yield started


@pytest.fixture(scope="module")
def special(tmp_path_factory):
    """A server with every option."""
    folder = tmp_path_factory.mktemp("special")
    options = {"tools": ["a*", "*file*", "env", "sleep"], "prefix": "my_", "env": {"COLOUR": "red"}, "cwd": folder}
    started = Started(folder / "notes", call_timeout=0.3, **options)
    with pytest.MonkeyPatch.context() as patch, started.server:
        patch.setenv("HOOKLINE_SECRET", "secret")
        started.server.tools()
        yield started


@pytest.fixture
def fresh(tmp_path):
    """A server for one test."""
    started = Started(tmp_path / "notes", name="a server of its own")
    with started.server:
        yield started


def run(server, *steps, hooks=(), **options):
    """Run an agent with these steps and return the results of its calls."""
    agent = Agent("a", llm=ScriptedModel([*steps, reply("ok")]), tools=[server], hooks=hooks)
    result = agent.run("go", **options)
    assert result.status == "completed"
    return [message for message in result.messages if message.role == "tool"]


def texts(messages):
    return [message.content for message in messages]


# Listing.


@pytest.mark.slow
def test_tools_of_a_server_are_listed_with_their_schemas(shared):
    specs = {spec.name: spec for spec in ToolRegistry([shared.server]).specs}
    assert specs["add"].description == "About add."
    assert specs["add"].parameters["required"] == ["a", "b"]
    assert list(specs["tree"].parameters["properties"]) == ["root", "kind", "either", "ctx", "self"]
    assert specs["bare"].parameters == {"type": "object", "properties": {}}


def test_the_tools_of_a_server_are_undeclared_whatever_it_says_about_them(shared):
    for made in shared.server.tools():
        assert (made.effects, made.dangerous, made.untrusted) == (None, True, True)


@pytest.mark.parametrize(
    ("name", "effects", "dangerous", "untrusted"),
    [
        ("count", {"read", "write", "delete", "network"}, True, True),  # it says nothing: the defaults of MCP
        ("fail", {"read", "write", "delete", "network"}, True, True),
        ("add", {"read", "network"}, False, True),
        ("put", {"read", "write"}, True, False),
        ("peek", {"read"}, False, False),
        ("post", {"read", "write", "network"}, True, True),
    ],
)
def test_a_trusted_server_declares_the_effects_of_its_tools(trusted, name, effects, dangerous, untrusted):
    made = ToolRegistry([trusted.server]).get(name)
    assert (made.effects, made.dangerous, made.untrusted) == (effects, dangerous, untrusted)


def test_trusted_is_true_or_false():
    with pytest.raises(RegistrationError, match="trusted must be True or False"):
        mcp("python server.py", trusted="yes")


def test_a_tool_that_writes_is_stopped_by_a_read_only_path_guard_whatever_its_name(shared, trusted, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("alive")
    put, peek = call("put", spot=str(canary), words="dead"), call("peek", spot=str(canary))
    for server in (shared.server, trusted.server):
        assert run(server, put, hooks=[PathGuard(tmp_path)])[0].is_error
        assert canary.read_text() == "alive"
    assert run(shared.server, peek, hooks=[PathGuard(tmp_path)])[0].is_error  # it could write as well
    assert texts(run(trusted.server, peek, hooks=[PathGuard(tmp_path)])) == ["alive"]
    (tmp_path / "other").mkdir()
    assert run(trusted.server, peek, hooks=[PathGuard(tmp_path / "other", write=True)])[0].is_error
    assert texts(run(shared.server, put, hooks=[PathGuard(tmp_path, write=True)])) == ["written"]
    assert canary.read_text() == "dead"


def test_all_pages_of_the_list_are_read(shared):
    assert [made.name for made in shared.server.tools()][-1] == "env"
    assert len(shared.server.tools()) == 20


def test_names_that_models_may_not_use_are_mapped(shared):
    assert {"read_file_v2_", "odd_schema"} <= {made.name for made in shared.server.tools()}
    assert texts(run(shared.server, call("read_file_v2_", filePath="x"))) == ["[('filePath', 'x')]"]


def test_the_tools_are_listed_once_and_stay_the_same(shared):
    assert list(shared.server.tools()) == list(shared.server.tools())
    assert len(shared.pids) == 1


def test_tools_can_be_selected_and_prefixed(special):
    assert [made.name for made in special.server.tools()] == ["my_add", "my_sleep", "my_read_file_v2_", "my_env"]
    assert texts(run(special.server, call("my_add", a=1, b=2))) == ["3"]


def test_a_glob_that_matches_nothing_is_an_error(shared):
    other = mcp("unused", tools="ad")
    other._connection = shared.server.tools() and shared.server._connection
    with pytest.raises(RegistrationError) as caught:
        Agent("a", llm=ScriptedModel([]), tools=[other])
    assert "matches 'ad'. Did you mean 'add'? It has: add, fail" in str(caught.value)


def test_a_duplicate_tool_name_is_an_error(shared):
    with pytest.raises(RegistrationError, match=r"two tools are named 'add'; .*prefix=.*default_tools = false"):
        Agent("a", llm=ScriptedModel([]), tools=[shared.server, tool(name="add")(lambda: 1)])


def test_anything_with_tools_is_a_toolset():
    def ping() -> str:
        return "pong"

    class Pair:
        def tools(self):
            return [ping, tool(name="other")(ping)]

    assert [made.name for made in ToolRegistry([Pair()])] == ["ping", "other"]


# Calling.


def test_a_run_calls_its_tools_beside_others(shared):
    @tool
    def here(x: int) -> int:
        return x

    agent = Agent(
        "a", llm=ScriptedModel([[call("add", a=1, b=2), call("here", x=5)], reply("ok")]), tools=[shared.server, here]
    )
    result = agent.run("go")
    assert [m.content for m in result.messages[2:4]] == ["3", "5"]


def test_two_agents_threads_and_loops_share_one_server(shared):
    results = []

    def work(n):
        results.append(texts(run(shared.server, [call("add", a=n, b=k) for k in range(3)])))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [[str(n + k) for k in range(3)] for n in range(6)]
    assert len(shared.pids) == 1


async def test_it_works_inside_a_running_loop(shared):
    agent = Agent("a", llm=ScriptedModel([call("add", a=1, b=2), reply("ok")]), tools=[shared.server])
    assert (await agent.arun("go")).messages[2].content == "3"
    assert await shared.server.call("add", {"a": 2, "b": 2}) == "4"
    assert await shared.server.tools()[0](a=2, b=3) == "5"


@pytest.mark.parametrize(
    ("how", "result"),
    [
        ({}, '{"n":1}'),
        ({"how": "with text"}, "in words"),
        ({"how": "with image"}, '{"n":1}\n[image: image/png, 5 bytes]'),
    ],
)
def test_structured_content_is_used_if_there_is_no_text(shared, how, result):
    assert texts(run(shared.server, call("structured", **how))) == [result]


def test_content_that_is_not_text_is_described(shared):
    assert texts(run(shared.server, call("mixed")))[0].split("\n") == [
        "first",
        "[image: image/png, 5 bytes]",
        "[audio: audio/wav, 2 bytes]",
        "inner",
        "[file file:///b: application/zip, 6 bytes]",
        "[link to more: file:///more]",
    ]


def test_pictures_audio_and_files_are_attached(shared):
    (message,) = run(shared.server, call("mixed", how="files"))
    assert [(each.media_type, each.name) for each in message.attachments] == [
        ("image/png", ""),
        ("audio/wav", ""),
        ("application/pdf", "report.pdf"),
    ]
    assert message.attachments[0].data == b"\x89PNG\r\n\x1a\npixels"
    assert message.content.startswith("Look:\nAttached: an attachment (image/png, 14 bytes), ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fail", "McpError: out of paper"),
        ("broken", "McpError: Internal server error"),
        ("unfit", "McpError: the answer is invalid: Invalid structured content"),
    ],
)
def test_a_tool_that_fails_gives_an_error_result(shared, name, text):
    (result,) = run(shared.server, call(name))
    assert result.is_error
    assert result.content.startswith(text)


def test_the_command_gets_only_its_folder_and_environment(special):
    folder = special.path.parent
    assert texts(run(special.server, call("my_env"))) == [f"{folder} red None"]
    assert {made.folder for made in special.server.tools()} == {str(folder)}


# Arguments.


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("add", {"a": 1}, "b: field required; you sent: a"),
        ("add", {}, "a: field required; b: field required; you sent: no arguments"),
        ("add", {"a": "x", "b": 1}, "a: 'x' is not of type 'integer'"),
        ("add", {"a": 1, "b": 2, "c": 3}, "unknown: c; expected: a, b"),
        ("fail", {"x": 1}, "unknown: x; expected: no arguments"),
        ("tree", {"root": {"n": 1, "next": {"n": 2, "next": {}}}}, "root.next.next.n: field required; you sent: root"),
        ("tree", {"root": {"n": 1}, "kind": "c"}, "kind: 'c' is not one of ['a', 'b']"),
        ("tree", {"root": {"n": 1}, "either": "c"}, "either: 'c' is not"),
        ("far_schema", {"a": 1}, "Unresolvable: http://127.0.0.1:9/nowhere"),
    ],
)
def test_invalid_arguments_are_explained_and_not_sent(shared, name, arguments, problem):
    before = shared.notes
    (result,) = run(shared.server, call(name, **arguments))
    assert result.content.startswith(f"Invalid arguments for {name}: ")
    assert problem in result.content
    assert len(result.content) < 400
    assert shared.notes == before


def test_arguments_may_have_any_name(shared):
    given = {"root": {"n": 1}, "ctx": "x", "self": "y"}
    assert texts(run(shared.server, call("tree", **given))) == ["[('ctx', 'x'), ('root', {'n': 1}), ('self', 'y')]"]


@pytest.mark.parametrize("value", ["y\ud800", float("inf"), [float("nan")], {"\ud800": 1}])
def test_arguments_that_json_cannot_express_are_not_sent(shared, value):
    before = shared.notes
    (result,) = run(shared.server, call("tree", root={"n": 1}, self=value))
    assert result.content.startswith("Invalid arguments for tree: self")
    assert shared.notes == before


def test_the_validated_arguments_are_sent(shared):
    made = ToolRegistry([shared.server]).get("tree")
    checked = made.validate({"root": {"n": 1}, "self": "y"})
    assert isinstance(checked, CheckedArguments)
    assert checked.values == checked.arguments == {"root": {"n": 1}, "self": "y"}


def test_an_invalid_schema_leaves_validation_to_the_server(shared):
    assert texts(run(shared.server, call("odd_schema", a=1))) == ["[('a', 1)]"]


def test_references_in_a_schema_are_not_downloaded():
    from mcp_types import Tool as Listed

    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = {"$ref": f"http://127.0.0.1:{listener.getsockname()[1]}/schema"}
        listed = Listed(name="x", input_schema={"type": "object", "properties": {"a": far}})
        made = McpTool(mcp("unused"), listed, "x", None, None)
        thread = threading.Thread(target=made.validate, args=({"a": 1},))
        thread.start()
        listener.settimeout(0.3)
        with pytest.raises(TimeoutError):
            listener.accept()
        thread.join()


def test_paths_are_found_by_the_names_and_formats_of_properties(shared):
    assert ToolRegistry([shared.server]).get("put").paths({"spot": "a", "words": "x"}) == ["a"]
    assert ToolRegistry([shared.server]).get("peek").paths({"spot": "a"}) == ["a"]
    made = ToolRegistry([shared.server]).get("read_file_v2_")
    assert made.paths({"filePath": "/etc/passwd", "other": "x"}) == ["/etc/passwd"]


# Hooks.


def test_hooks_block_its_calls_and_rewrite_their_arguments(shared):
    @guard("before_tool", tools="fail")
    def never(ctx, request):
        return HookResult.block("Not that one.")

    @hook("before_tool", tools="add")
    def doubled(ctx, request):
        return request.replace(arguments={**request.arguments, "a": request.arguments["a"] * 2})

    before = shared.notes.count("did fail")
    results = run(shared.server, [call("fail"), call("add", a=2, b=1)], hooks=[never, doubled])
    assert texts(results) == ["Not that one.", "5"]
    assert shared.notes.count("did fail") == before


def test_progress_of_the_server_is_progress_of_the_call(shared):
    reported, events = [], []

    @observer("on_progress")
    def watch(ctx, progress):
        if progress.phase == "progress":
            reported.append((progress.tool, progress.fraction, progress.message))

    run(shared.server, call("count", n=2), hooks=[watch], sinks=[events.append])
    expected = [
        (0.5, "count: step 1 (50%)"),
        (1.0, "count: step 2 (100%)"),
        (None, "count is running"),
        (None, "count: too far"),
    ]
    assert reported == [("count", *step) for step in expected]
    assert [(e.fraction, e.message) for e in events if isinstance(e, ToolProgressed)] == expected


# Cancelling.


def check_cancelling(started):
    agent = Agent("a", llm=ScriptedModel([call("sleep"), reply("ok")]), tools=[started.server])
    going = agent.start("go")
    block_until(lambda: "asleep" in started.notes)
    going.cancel("enough")
    assert going.wait(10).status == "cancelled"
    block_until(lambda: "cancelled" in started.notes)
    assert texts(run(started.server, call("add", a=1, b=2))) == ["3"]
    assert len(started.pids) == 1


def test_cancelling_a_run_cancels_the_call_on_the_server_and_keeps_the_session(shared):
    check_cancelling(shared)


def test_a_call_that_takes_too_long_is_cancelled(special):
    assert texts(run(special.server, call("my_sleep"))) == ["TimeoutError: no result after 0.3 s"]
    block_until(lambda: "cancelled" in special.notes)
    assert texts(run(special.server, call("my_add", a=1, b=2))) == ["3"]


# Crashes.


@pytest.mark.slow
def test_a_server_that_dies_fails_the_call_and_is_restarted_after_each_answer(fresh):
    died, failed, again, added = run(fresh.server, call("die"), call("fail"), call("die"), call("add", a=1, b=2))
    for result in (died, again):
        assert result.is_error
        assert (
            "is gone: the server ended. Its error output: goodbye, cruel world. The next call restarts it."
            in result.content
        )
    assert (failed.content, added.content) == ("McpError: out of paper", "3")
    assert len(fresh.pids) == 3
    assert all(map(gone, fresh.pids[:2]))


@pytest.mark.slow
def test_a_server_that_dies_between_calls_is_restarted_silently(fresh):
    assert texts(run(fresh.server, call("leave"))) == ["in a moment"]
    block_until(lambda: not fresh.server._connection.usable)
    assert texts(run(fresh.server, call("add", a=1, b=2))) == ["3"]


@pytest.mark.slow
def test_a_server_that_dies_right_after_a_restart_stays_down(fresh):
    first, second, third, fourth = run(
        fresh.server, call("die"), call("die"), call("add", a=1, b=2), call("add", a=1, b=2)
    )
    assert "The next call restarts it." in first.content
    for result in (second, third, fourth):
        assert result.is_error
        assert "stays down: find out why, then create a new mcp(...)." in result.content
    assert len(fresh.pids) == 2


@pytest.mark.slow
def test_all_open_calls_fail_when_the_server_dies(fresh):
    results = run(fresh.server, [call("sleep"), call("sleep"), call("die")])
    assert all("is gone: the server ended" in result.content for result in results)


def test_a_server_that_cannot_be_restarted_stays_down(tmp_path):
    script = tmp_path / "server.py"
    notes = str(tmp_path / "notes")
    script.write_text(
        f"import runpy, sys; sys.argv = ['x', {notes!r}]; runpy.run_path({SERVER!r}, run_name='__main__')"
    )
    with mcp([sys.executable, str(script)]) as server:
        server.tools()
        script.write_text("import sys; sys.exit('no more licence')")
        died, down, still = run(server, call("die"), call("add", a=1, b=2), call("add", a=1, b=2))
    assert "The next call restarts it" in died.content
    assert "no more licence" in down.content
    assert "stays down" in still.content


# HTTP.


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class http_server:
    """A server process over HTTP that can be restarted, and a client for it."""

    def __init__(self, notes, *args):
        self.path, self.args, self.port = notes, args, free_port()
        notes.touch()

    notes = Started.notes
    pids = Started.pids

    def start(self):
        self.process = subprocess.Popen([sys.executable, SERVER, str(self.path), str(self.port), *self.args])

        def listening():
            assert self.process.poll() is None
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        block_until(listening)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        self.start()
        self.server = mcp(f"http://127.0.0.1:{self.port}/mcp", timeout=10)
        return self

    def __exit__(self, *exc):
        self.server.close()
        self.stop()


def test_a_server_over_http_works_the_same(tmp_path):
    with http_server(tmp_path / "notes") as started:
        assert texts(run(started.server, [call("add", a=1, b=2), call("fail")])) == ["3", "McpError: out of paper"]
        check_cancelling(started)
        (died,) = run(started.server, call("die"))
        assert "is gone" in died.content
        started.process.wait()
        started.start()
        assert texts(run(started.server, call("add", a=1, b=2))) == ["3"]
        started.stop()
        first, second = run(started.server, call("add", a=1, b=2), call("add", a=1, b=2))
        assert "cannot be reached" in first.content
        assert "The next call restarts it" in first.content
        assert "cannot be reached" in second.content


def test_a_lost_http_session_counts_as_a_crash(tmp_path):
    with http_server(tmp_path / "notes", "legacy") as started:
        check_cancelling(started)
        started.stop()
        started.start()
        lost, again = run(started.server, call("add", a=1, b=2), call("add", a=1, b=2))
        assert "the server no longer knows the session. The next call restarts it." in lost.content
        assert again.content == "3"


def test_without_a_timeout_a_call_may_be_silent_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_connection, "SILENCE", 0.2)
    with http_server(tmp_path / "notes") as started:
        assert texts(run(started.server, call("pause"), call("add", a=1, b=2))) == ["rested", "3"]
        assert len(started.notes) == 3


async def test_a_server_that_is_silent_beyond_the_limit_counts_as_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_connection, "SILENCE", 0.4)
    with http_server(tmp_path / "notes") as started:
        server = mcp(f"http://127.0.0.1:{started.port}/mcp", call_timeout=0.1)
        with server, pytest.raises(McpError, match=r"is gone: the server sent nothing for 0\.4 s"):
            await server.call("sleep", {})


def test_headers_are_sent(tmp_path):
    seen = []

    def serve(listener):
        connection, _ = listener.accept()
        with connection:
            seen.append(connection.recv(9999).decode())
            connection.sendall(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(2):
            threading.Thread(target=serve, args=(listener,), daemon=True).start()
        port = listener.getsockname()[1]
        with pytest.raises(McpError, match=r"127.0.0.1:\d+/mcp' .* answered with HTTP status 401"):
            mcp(f"http://127.0.0.1:{port}/mcp?key=s3cret", headers={"Authorization": "Bearer t0ken"}, timeout=5).tools()
    assert "Bearer t0ken" in seen[0]


# Targets that are not servers.

GARBAGE = "print('hello'); print('{}'); import sys; sys.exit('I am no server')"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("no-such-program-here --x", "the server cannot be started (No such file or directory); check the command"),
        (["/etc/passwd"], "the server cannot be started (Permission denied)"),
        ([sys.executable, "-c", "pass"], "the answer is not that of an MCP server (Connection closed)"),
        ([sys.executable, "-c", GARBAGE], "is not that of an MCP server (Connection closed)"),
        ([sys.executable, "-c", "import sys; print('x'); sys.stdin.read()"], "no answer within 1 s; is it an MCP"),
        ("http://127.0.0.1:9/mcp", "the server cannot be reached"),
        ("http://host.invalid/mcp", "the server cannot be reached"),
    ],
)
def test_a_target_that_is_not_a_server_is_a_short_error_with_advice(target, problem):
    with pytest.raises(McpError) as caught:
        Agent("a", llm=ScriptedModel([]), tools=[mcp(target, timeout=1 if "no answer" in problem else 20)])
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_error_output_of_a_server_is_quoted():
    with pytest.raises(McpError, match="Its error output: I am no server"):
        mcp([sys.executable, "-c", GARBAGE]).tools()


def test_a_hanging_program_is_killed(tmp_path):
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(McpError, match="no answer within 1 s"):
        mcp([sys.executable, "-c", code], timeout=1).tools()
    assert gone(int(pid.read_text()))


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("", {}),
        ([], {}),
        ("it's", {}),
        ("x", {"timeout": 0}),
        ("x", {"call_timeout": -1}),
        ("x", {"headers": {}}),
        ("http://x", {"cwd": "/"}),
        ("http://x", {"env": {}}),
        ([1], {}),
    ],
)
def test_invalid_options_are_rejected_immediately(target, options):
    with pytest.raises(RegistrationError, match=r"mcp\("):
        mcp(target, **options)


def test_secrets_in_a_target_are_not_in_its_name():
    assert mcp("https://me:s3cret@host/mcp?key=s3cret").name == "https://host/mcp"
    assert mcp("npx x", name="files").name == "files"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/npx -y @x/server --token s3cret", "npx server"),
        ("uvx mcp-server-git s3cret", "uvx mcp-server-git"),
        ("npx --token s3cret x", "npx"),
        ("npx --no-install x s3cret", "npx"),
        ("npx https://s3cret@host", "npx"),
        ("python app -m s3cret", "python"),
        ("python -I -u -m pkg", "python pkg"),
        ("python -u /opt/server.py s3cret", "python server.py"),
        ("python3.11 -m pkg.server --key s3cret", "python3.11 pkg.server"),
        ("uv run python -m pkg", "uv pkg"),
        ("uv --directory /x run server.py", "uv server.py"),
        ("node --env-file s3cret.js build/index.js", "node index.js"),
        ("/opt/server --token s3cret", "server"),
        ("/opt/server s3cret", "server"),
        ("/opt/server -m s3cret", "server"),
        ("env API_TOKEN=s3cret server", "env"),
        ("env API_TOKEN=s3cret.py server.js", "env server.js"),
        ("API_TOKEN=s3cret/s3cret server", "API_TOKEN"),
        (["python", "-c", "s3cret()\n" * 99], "python"),
        (["run", "x" * 99 + ".py"], "run " + "x" * 36),
    ],
)
def test_the_default_name_is_the_program_without_options(command, name):
    assert mcp(command).name == name


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(NotInstalledError, match=r"pip install .*\[mcp\]"):
        mcp("x").tools()


# Closing.


@pytest.mark.slow
def test_closing_ends_the_process_and_later_calls_are_errors(fresh):
    agent = Agent("a", llm=ScriptedModel([call("add", a=1, b=2), reply("ok")]), tools=[fresh.server])
    fresh.server.close()
    assert gone(fresh.pids[0])
    assert not any(str(fresh.server.name) in thread.name for thread in threading.enumerate())
    assert "is closed; create a new mcp(...)" in agent.run("go").messages[2].content
    fresh.server.close()


@pytest.mark.slow
def test_closing_during_a_call_gives_an_error_result(fresh):
    going = Agent("a", llm=ScriptedModel([call("sleep"), reply("ok")]), tools=[fresh.server]).start("go")
    block_until(lambda: "asleep" in fresh.notes)
    fresh.server.close()
    assert "the connection was closed" in going.wait(10).messages[2].content


@pytest.mark.slow
def test_nothing_is_left_behind_when_the_program_ends(tmp_path):
    notes = tmp_path / "notes"
    code = f"from hookline.tools import mcp; print(len(mcp([{sys.executable!r}, {SERVER!r}, {str(notes)!r}]).tools()))"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert (done.stdout, done.stderr) == ("20\n", "")
    (pid,) = [int(line.split()[1]) for line in notes.read_text().splitlines()]
    assert gone(pid)
