"""An MCP server for the tests: ``mcp_server.py NOTES [PORT [legacy]]``; over stdio if there is no port."""

import asyncio
import os
import sys
import threading

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

NOTES = sys.argv[1]


def note(text):
    with open(NOTES, "a") as file:
        file.write(f"{text}\n")


def schema(*required, **properties):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


NUMBER = {"type": "integer"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": NUMBER}, "required": ["n"]}
TREE = {
    "$defs": {"node": NODE},
    "type": "object",
    "properties": {
        "root": {"$ref": "#/$defs/node"},
        "kind": {"enum": ["a", "b"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "ctx": {"type": "string"},
        "self": {"type": "string"},
    },
    "required": ["root"],
}
TOOLS = {
    "add": schema("a", "b", a=NUMBER, b=NUMBER),
    "fail": schema(),
    "broken": schema(),
    "count": schema("n", n=NUMBER),
    "sleep": schema(),
    "pause": schema(),
    "die": schema(),
    "leave": schema(),
    "structured": schema(how={"type": "string"}),
    "unfit": schema(),
    "mixed": schema(how={"type": "string"}),
    "tree": TREE,
    "read file/v2!": schema("filePath", filePath={"type": "string"}),
    "odd schema": {"type": "object", "properties": {"a": {"type": "no such type"}}},
    "far schema": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/nowhere"}}},
    "bare": {"type": "object"},
    "put": schema("spot", "words", spot={"type": "string", "format": "path"}, words={"type": "string"}),
    "peek": schema("spot", spot={"$ref": "#/$defs/spot"})
    | {"$defs": {"spot": {"type": "string", "format": "file-path"}}},
    "post": schema("words", words={"type": "string"}),
    "env": schema(),
}
HINTS = {
    "add": types.ToolAnnotations(read_only_hint=True),
    "fail": types.ToolAnnotations(read_only_hint=False),
    "put": types.ToolAnnotations(destructive_hint=False, open_world_hint=False),
    "peek": types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
    "post": types.ToolAnnotations(destructive_hint=False, open_world_hint=True),
}
OUTPUT = {"unfit": schema("n", n=NUMBER), "structured": {"type": "object"}}


async def list_tools(ctx, params):
    """Return two pages, to test paging."""
    tools = [
        types.Tool(
            name=name,
            description=f"About {name}.",
            input_schema=given,
            output_schema=OUTPUT.get(name),
            annotations=HINTS.get(name),
        )
        for name, given in TOOLS.items()
    ]
    if params is None or params.cursor is None:
        return types.ListToolsResult(tools=tools[:10], next_cursor="rest")
    return types.ListToolsResult(tools=tools[10:])


def text(value):
    return types.TextContent(text=str(value))


async def call_tool(ctx, params):
    given, content, more = params.arguments or {}, [], {}
    match params.name:
        case "add":
            content = [text(given["a"] + given["b"])]
        case "put":
            with open(given["spot"], "w") as file:
                file.write(given["words"])
            content = [text("written")]
        case "peek":
            with open(given["spot"]) as file:
                content = [text(file.read())]
        case "fail":
            content, more = [text("out of paper")], {"is_error": True}
        case "broken":
            raise ValueError("a bug")
        case "count":
            for n in range(given["n"]):
                await ctx.session.report_progress(n + 1, given["n"], f"step {n + 1}")
            await ctx.session.report_progress(7, None, None)
            await ctx.session.report_progress(7, 2, "too far")
            content = [text("counted")]
        case "sleep":
            note("asleep")
            try:
                await anyio.sleep(60)
            except BaseException:
                note("cancelled")
                raise
        case "pause":
            await anyio.sleep(1)
            content = [text("rested")]
        case "die":
            print("goodbye, cruel world", file=sys.stderr, flush=True)
            os._exit(3)
        case "leave":
            content = [text("in a moment")]
            threading.Timer(0.05, os._exit, [0]).start()
        case "structured" if given.get("how") == "with text":
            content, more = [text("in words")], {"structured_content": {"n": 1}}
        case "structured" if given.get("how") == "with image":
            content = [types.ImageContent(data="aGVsbG8=", mime_type="image/png")]
            more = {"structured_content": {"n": 1}}
        case "structured":
            more = {"structured_content": {"n": 1}}
        case "unfit":
            more = {"structured_content": {"n": "one"}}
        case "mixed" if given.get("how") == "files":
            png, wav = "iVBORw0KGgpwaXhlbHM=", "UklGRiQAAABXQVZFZm10IA=="
            blob = types.BlobResourceContents(
                uri="file:///tmp/report.pdf", blob="JVBERi0x", mime_type="application/pdf"
            )
            content = [
                text("Look:"),
                types.ImageContent(data=png, mime_type="image/png"),
                types.AudioContent(data=wav, mime_type="audio/wav"),
                types.EmbeddedResource(resource=blob),
            ]
        case "mixed":
            blob = types.BlobResourceContents(uri="file:///b", blob="aGVsbG8h", mime_type="application/zip")
            content = [
                text("first"),
                types.ImageContent(data="aGVsbG8=", mime_type="image/png"),
                types.AudioContent(data="aGk=", mime_type="audio/wav"),
                types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///t", text="inner")),
                types.EmbeddedResource(resource=blob),
                types.ResourceLink(name="more", uri="file:///more"),
            ]
        case "env":
            content = [text(f"{os.getcwd()} {os.environ.get('COLOUR')} {os.environ.get('HOOKLINE_SECRET')}")]
        case _:
            content = [text(sorted(given.items()))]
    note(f"did {params.name}")
    return types.CallToolResult(content=content, **more)


server = Server("tests", on_list_tools=list_tools, on_call_tool=call_tool)


async def over_stdio():
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def without_discovery(app):
    """Behave like an older server, with a handshake and sessions."""

    async def older(scope, receive, send):
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-protocol-version", b"") >= b"2026":
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"what?"})
        else:
            await app(scope, receive, send)

    return older


def over_http(port, legacy):
    import uvicorn

    app = server.streamable_http_app()
    uvicorn.run(without_discovery(app) if legacy else app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    note(f"started {os.getpid()}")
    if len(sys.argv) > 2:
        over_http(int(sys.argv[2]), "legacy" in sys.argv)
    else:
        asyncio.run(over_stdio())
