"""Servers that others wrote, behind the gateway: ``make test-mcp`` installs them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

pytest.importorskip("mcp")
from mcp_types import CreateMessageResult, ElicitResult, TextContent

from .install import FOLDER, MODULES
from .test_stdio import Home, text

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (FOLDER / ".done").exists(), reason="make test-mcp installs these servers"
)

RULES = """
from hookline import AFTER_TOOL, BEFORE_TOOL, HookResult, guard, hook

@guard(BEFORE_TOOL, tools="write_file")
def no_env(ctx, request):
    return HookResult.block("No .env files.") if request.arguments["path"].endswith(".env") else None

@hook(BEFORE_TOOL, tools="write_file")
def stamp(ctx, request):
    content = request.arguments["content"].replace("AAA", "BBB")
    return request.replace(arguments={**request.arguments, "content": content})

@guard(BEFORE_TOOL, tools=["create_directory", "git_commit"])
def ask(ctx, request):
    return HookResult.ask("Really?")

@hook(AFTER_TOOL)
def redact(ctx, result):
    return result.with_text(result.text.replace("4711", "[pin]")) if "4711" in result.text else None
"""


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    (tmp_path / "rules.py").write_text(RULES)
    return home


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_server_filesystem(home, mode):
    folder = home.folder / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("code 4711")
    asked = []

    async def answer(ctx, params):
        asked.append(params.message)
        return ElicitResult(action="accept", content={"run": True})

    server = ["node", str(MODULES / "server-filesystem/dist/index.js"), str(folder)]
    async with home.client(server=server, mode=mode, elicitation_callback=answer) as client:
        assert len((await client.list_tools()).tools) > 10
        read = await client.call_tool("read_text_file", {"path": f"{folder}/a.txt"})
        assert (text(read), "4711" in str(read.structured_content)) == ("code [pin]", False)
        assert text(await client.call_tool("write_file", {"path": f"{folder}/.env", "content": ""})) == "No .env files."
        await client.call_tool("write_file", {"path": f"{folder}/b.txt", "content": "AAA"})
        await client.call_tool("create_directory", {"path": f"{folder}/made"})
    assert (folder / "b.txt").read_text() == "BBB"
    assert (folder / "made").is_dir()
    assert not (folder / ".env").exists()
    assert len(asked) == 1


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_server_everything(home, mode):
    async def sample(ctx, params):
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="sampled"), model="m")

    async def answer(ctx, params):
        return ElicitResult(action="decline")

    progress = []

    async def note(done, total, message):
        progress.append(done)

    server = ["node", str(MODULES / "server-everything/dist/index.js"), "stdio"]
    async with home.client(server=server, mode=mode, sampling_callback=sample, elicitation_callback=answer) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert text(await client.call_tool("echo", {"message": "code 4711"})) == "Echo: code [pin]"
        assert "get-tiny-image" in tools
        image = await client.call_tool("get-tiny-image", {})
        assert any(block.type == "image" for block in image.content)
        structured = await client.call_tool("get-structured-content", {"location": "New York"})
        assert structured.structured_content is not None
        long = {"duration": 0.3, "steps": 3}
        await client.call_tool("trigger-long-running-operation", long, progress_callback=note)
        assert progress
        if "trigger-sampling-request" in tools:
            assert "sampled" in str(await client.call_tool("trigger-sampling-request", {"prompt": "hi"}))
        if "trigger-elicitation-request" in tools:
            assert "decline" in str(await client.call_tool("trigger-elicitation-request", {}))
        resources = (await client.list_resources()).resources
        assert (await client.read_resource(str(resources[0].uri))).contents
        prompts = (await client.list_prompts()).prompts
        assert (await client.get_prompt(prompts[0].name, {})).messages


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_servers_of_pypi(home, mode):
    repository = home.folder / "repository"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "a.txt").write_text("code 4711")
    async with home.client(server=[str(FOLDER / "python/bin/mcp-server-git")], mode=mode) as client:
        await client.call_tool("git_add", {"repo_path": str(repository), "files": ["a.txt"]})
        status = await client.call_tool("git_diff_staged", {"repo_path": str(repository)})
        assert "code [pin]" in text(status)
        denied = await client.call_tool("git_commit", {"repo_path": str(repository), "message": "all"})
        assert denied.is_error
        assert "Nobody approved this call" in text(denied)
    async with home.client(server=[str(FOLDER / "python/bin/mcp-server-time")], mode=mode) as client:
        assert "timezone" in text(await client.call_tool("get_current_time", {"timezone": "Europe/Berlin"}))
