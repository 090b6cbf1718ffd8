"""An MCP server over stdio that asks people: ``asking_server.py modern``, ``modern bare`` or ``legacy``."""

import json
import sys

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

FORM = {
    "type": "object",
    "properties": {
        "seat": {"type": "string", "description": "The seat", "default": "12A"},
        "meal": {"type": "string", "enum": ["fish", "none"]},
    },
    "required": ["seat", "meal"],
}
HOSTILE = {
    "type": "object",
    "properties": {"x\u202e" * 200: {"type": "string", "description": "\u202ea", "enum": ["\x1b[1m" * 1000, "b"]}},
}
ASKED = {
    "book": {"mode": "form", "message": "Which seat?", "requestedSchema": FORM},
    "sign": {"mode": "url", "message": "Sign here.", "url": "https://sign.example.com/1", "elicitationId": "1"},
    "script": {"mode": "url", "message": "Sign here.", "url": "javascript:alert(1)", "elicitationId": "2"},
    "other": {"mode": "url", "message": "Sign.", "url": "https://bank.example@evil.example/", "elicitationId": "3"},
    "fake": {"mode": "form", "message": "Seat?\x1b[2J\u202egnp", "requestedSchema": HOSTILE},
    "open": {"elicitations": [{"url": "javascript:alert(1)"}, {"url": "https://sign.example.com/1"}]},
    "flood": {"mode": "form", "message": "Which seat?", "requestedSchema": FORM},
}
NOTHING = {"type": "object", "properties": {}}


def said(answer):
    """What the client answered, as the result of the tool."""
    return f"{answer['action']} {json.dumps(answer.get('content'), sort_keys=True)}"


# Version 2026-07-28, with the SDK.


async def list_tools(ctx, params):
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=NOTHING) for name in ASKED])


async def call_tool(ctx, params):
    if not params.input_responses:
        asked = types.ElicitRequest.model_validate({"params": ASKED[params.name]})
        return types.InputRequiredResult(input_requests={"q": asked}, request_state="s")
    if params.name == "flood":
        return await call_tool(ctx, params.model_copy(update={"input_responses": None}))
    answer = params.input_responses["q"].model_dump(by_alias=True, exclude_none=True)
    return types.CallToolResult(content=[types.TextContent(text=said(answer))])


class Bare:
    """A stream that leaves out ``resultType``, as servers of earlier versions do."""

    def __init__(self, stream):
        self._stream = stream

    async def __aenter__(self):
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc):
        await self._stream.__aexit__(*exc)

    async def send(self, item):
        result = getattr(item.message, "result", None)
        if isinstance(result, dict) and result.get("resultType") == "complete":
            del result["resultType"]
        await self._stream.send(item)

    def __getattr__(self, name):
        return getattr(self._stream, name)


async def modern(bare):
    server = Server("asking", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (incoming, outgoing):
        stream = Bare(outgoing) if bare else outgoing
        await server.run(incoming, stream, server.create_initialization_options())


# Version 2025-11-25: the server sends a request of its own, which names no call.


def legacy():
    open_calls = {}
    for line in sys.stdin:
        message = json.loads(line)
        id, method, params = message.get("id"), message.get("method"), message.get("params", {})
        if method == "initialize":
            assert "elicitation" in params["capabilities"]
            about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            send(id=id, result={**about, "serverInfo": {"name": "asking", "version": "1"}})
        elif method == "tools/list":
            send(id=id, result={"tools": [{"name": name, "inputSchema": NOTHING} for name in ASKED]})
        elif method == "tools/call":
            if params["name"] == "flood":  # never answers the call
                for number in range(1000):
                    send(id=f"{number} of {id}", method="elicitation/create", params=ASKED["flood"])
                continue
            if params["name"] == "open":
                send(id=id, error={"code": -32042, "message": "Sign in.", "data": ASKED["open"]})
                continue
            open_calls[f"q{id}"] = id
            send(id=f"q{id}", method="elicitation/create", params=ASKED[params["name"]])
        elif method is None and id in open_calls:
            text = said(message["result"]) if "result" in message else f"error {message['error']['message']}"
            send(id=open_calls.pop(id), result={"content": [{"type": "text", "text": text}]})
        elif id is not None:
            send(id=id, error={"code": -32601, "message": "unknown"})


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if "legacy" in sys.argv:
    legacy()
else:
    anyio.run(modern, "bare" in sys.argv)
