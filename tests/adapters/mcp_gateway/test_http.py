"""Several servers behind one endpoint: ``hookline mcp-gateway --servers``, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys

import pytest

pytest.importorskip("mcp")
pytest.importorskip("starlette")
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from hookline.stores import KeyStore

from .test_stdio import FLOOD, Home, text

GOOD = """
import os
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

class Name(BaseModel):
    name: str

s = MCPServer(os.environ["NAME"], instructions="I am " + os.environ["NAME"] + ".")

@s.tool()
def echo(text: str) -> str:
    return os.environ["NAME"] + " " + text

@s.tool()
async def greet(ctx: Context) -> str:
    await ctx.report_progress(1, 2)
    answer = await ctx.elicit("Who are you?", Name)
    return f"Hello {answer.data.name if answer.action == 'accept' else 'stranger'}"

@s.resource("notes://" + os.environ["NAME"] + "/one")
def note() -> str:
    return "note of " + os.environ["NAME"]

@s.prompt()
def poem(topic: str) -> str:
    return os.environ["NAME"] + " sings of " + topic

s.run("stdio")
"""
RULES = """
from hookline import BEFORE_TOOL, HookResult, guard

@guard(BEFORE_TOOL, tools="one__echo")
def no_env(ctx, request):
    return HookResult.block("No .env files.") if ".env" in request.arguments["text"] else None

@guard(BEFORE_TOOL, tools="two__echo")
def ask_first(ctx, request):
    return HookResult.ask("Really?") if request.arguments["text"] == "ask" else None
"""


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    (tmp_path / "rules.py").write_text(RULES)
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "flood.py").write_text(FLOOD)
    servers = {
        name: {"command": sys.executable, "args": [str(tmp_path / "good.py")], "env": {"NAME": name}}
        for name in ("one", "two")
    }
    servers["flood"] = {"command": sys.executable, "args": [str(tmp_path / "flood.py")]}
    servers["missing"] = {"command": "no-such-program"}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return home


@contextlib.asynccontextmanager
async def serving(home, *options):
    """Run the gateway over HTTP, and give its address."""
    words = home.command("mcp-gateway", "--rules", "rules.py", "--servers", "mcp.json", "--http", "0", *options)
    process = await asyncio.create_subprocess_exec(
        *words, env=home.env, cwd=home.folder, stderr=asyncio.subprocess.PIPE
    )
    try:
        seen = b""
        while not (found := re.search(rb"behind (\S+):", seen)):
            line = await process.stderr.readline()
            assert line, seen.decode()
            seen += line
        draining = asyncio.create_task(process.stderr.read())
        yield found[1].decode()
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 30)
    await draining


@contextlib.asynccontextmanager
async def over_http(home, options=(), **client):
    async with (
        serving(home, *options) as url,
        httpx2.AsyncClient() as http,
        Client(streamable_http_client(url, http_client=http), **client) as session,
    ):
        yield session


@contextlib.asynccontextmanager
async def over_stdio(home, options=(), **client):
    words = home.command("mcp-gateway", "--rules", "rules.py", "--servers", "mcp.json", *options)
    given = StdioServerParameters(command=words[0], args=words[1:], env=home.env, cwd=home.folder)
    with open(home.folder / "stderr.txt", "w") as errors:
        async with Client(stdio_client(given, errors), **client) as session:
            yield session


async def all_tools(client, number):
    """Return the names of the tools, once there are so many: a server that starts slowly comes later."""
    while True:
        listed = await client.session.list_tools()
        if len(listed.tools) >= number:
            return [tool.name for tool in listed.tools]
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("connect", [over_http, over_stdio])
async def test_several_servers_are_one_for_the_client_of_mcp(home, connect, mode):
    asked, progress = [], []

    async def answer(ctx, params):
        asked.append(params.message)
        content = {"run": True} if "run" in params.requested_schema["properties"] else {"name": "Ann"}
        return ElicitResult(action="accept", content=content)

    async def note(done, total, message):
        progress.append((done, total))

    options = ("--max-message", "1")
    async with connect(home, options, mode=mode, elicitation_callback=answer) as client:
        assert await all_tools(client, 5) == ["one__echo", "one__greet", "two__echo", "two__greet", "flood__flood"]
        assert text(await client.call_tool("one__echo", {"text": "hi"})) == "one hi"
        blocked = await client.call_tool("one__echo", {"text": ".env"})
        assert (blocked.is_error, text(blocked)) == (True, "No .env files.")
        assert text(await client.call_tool("two__echo", {"text": ".env"})) == "two .env"
        assert text(await client.call_tool("two__echo", {"text": "ask"})) == "two ask"
        assert asked[0].startswith("Really?")
        greeting = await client.call_tool("one__greet", {}, progress_callback=note)
        assert text(greeting) == "Hello Ann"
        assert asked[1] == "The MCP server 'one' asks: Who are you?"
        assert [str(each.uri) for each in (await client.list_resources()).resources] == [
            "notes://one/one",
            "notes://two/one",
        ]
        assert (await client.read_resource("notes://two/one")).contents[0].text == "note of two"
        prompt = await client.get_prompt("two__poem", {"topic": "hooks"})
        assert prompt.messages[0].content.text == "two sings of hooks"
        assert (await client.call_tool("flood__flood", {})).is_error
        missing = await client.call_tool("missing__x", {})
        assert (missing.is_error, text(missing)) == (True, "Not run: the MCP server missing is not running.")
        assert text(await client.call_tool("two__echo", {"text": "still there"})) == "two still there"
        many = await asyncio.gather(*(client.call_tool("one__echo", {"text": str(n)}) for n in range(50)))
        assert [text(each) for each in many] == [f"one {n}" for n in range(50)]


async def test_a_server_that_hangs_keeps_nobody_from_the_others(home):
    (home.folder / "hang.py").write_text("import time\ntime.sleep(1000)\n")
    servers = json.loads((home.folder / "mcp.json").read_text())
    servers["mcpServers"] = {
        "hang": {"command": sys.executable, "args": [str(home.folder / "hang.py")]},
        "one": servers["mcpServers"]["one"],
    }
    (home.folder / "mcp.json").write_text(json.dumps(servers))
    async with over_stdio(home, mode="legacy") as client:
        assert await all_tools(client, 2) == ["one__echo", "one__greet"]
        assert text(await client.call_tool("one__echo", {"text": "hi"})) == "one hi"
        assert "not running" in text(await client.call_tool("hang__x", {}))


def body(method, ident=1, **params):
    return {"jsonrpc": "2.0", "id": ident, "method": method, "params": params}


META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}


async def test_the_endpoint_keeps_strangers_out(home):
    async with serving(home) as url, httpx2.AsyncClient(timeout=30) as http:
        opened = body("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "t"})
        first = await http.post(url, json=opened)
        session = {"mcp-session-id": first.headers["mcp-session-id"]}
        assert first.json()["result"]["protocolVersion"] == "2025-11-25"
        assert "one: I am one." in first.json()["result"]["instructions"]
        assert (await http.post(url, json=body("ping"), headers=session)).json()["result"] == {}
        assert (await http.post(url, json=body("ping"))).status_code == 400
        assert (await http.post(url, json=body("ping"), headers={"mcp-session-id": "x"})).status_code == 404
        assert (await http.post(url, json=opened, headers={"origin": "https://evil.example"})).status_code == 403
        assert (await http.post(url, json=opened, headers={"host": "evil.example"})).status_code == 421
        assert (await http.post(url, content=b'[{"jsonrpc":"2.0"}]', headers=session)).status_code == 400
        assert (await http.delete(url, headers=session)).status_code == 204
        assert (await http.post(url, json=body("ping"), headers=session)).status_code == 404


async def test_headers_say_what_the_body_says(home):
    async with serving(home) as url, httpx2.AsyncClient(timeout=30) as http:
        call = body("tools/call", name="one__echo", arguments={"text": "hi"}, _meta=META)
        named = {**HEADERS, "mcp-method": "tools/call", "mcp-name": "one__echo"}
        good = await http.post(url, json=call, headers=named)
        assert good.json()["result"]["content"][0]["text"] == "one hi"
        assert good.json()["result"]["resultType"] == "complete"
        for wrong in ({"mcp-name": "two__echo"}, {"mcp-method": "tools/list"}, {"mcp-protocol-version": "2025-11-25"}):
            assert (await http.post(url, json=call, headers={**named, **wrong})).status_code == 400
        twice = [*named.items(), ("mcp-name", "two__echo")]
        assert (await http.post(url, json=call, headers=twice)).status_code == 400


async def test_callers_need_a_key_as_soon_as_there_is_one(home):
    with contextlib.closing(KeyStore(home.folder / "keys.db")) as keys:
        _, key = keys.add("ci", ["run"])
        _, reader = keys.add("reader", ["read"])
    async with serving(home, "--keys", str(home.folder / "keys.db")) as url, httpx2.AsyncClient(timeout=30) as http:
        opened = body("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "t"})
        assert (await http.post(url, json=opened)).status_code == 401
        for wrong in ("hl_x_y", reader):
            assert (await http.post(url, json=opened, headers={"authorization": f"Bearer {wrong}"})).status_code == 401
        assert (await http.post(url, json=opened, headers={"authorization": f"Bearer {key}"})).status_code == 200


def test_other_machines_are_served_with_keys_only(home):
    words = ("mcp-gateway", "--rules", "rules.py", "--servers", "mcp.json", "--http", "0.0.0.0:0")
    done = home.run(*words)
    assert done.returncode != 0
    assert "need API keys" in done.stderr


@pytest.mark.parametrize(
    "servers",
    ["", "{}", '{"mcpServers": {}}', '{"mcpServers": {"a b": {"command": "x"}}}', '{"mcpServers": {"a": {}}}'],
)
def test_a_file_that_names_no_servers_is_an_error(home, servers):
    (home.folder / "mcp.json").write_text(servers)
    done = home.run("mcp-gateway", "--rules", "rules.py", "--servers", "mcp.json")
    assert (done.returncode, "mcp.json" in done.stderr) == (2, True)
