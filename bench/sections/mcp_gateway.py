"""Section: what ``hookline mcp-gateway`` adds to a call, beside no gateway and a proxy of FastMCP."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from environments import HERE, Environment
from figures import prose, shown, spread, table
from lab import Lab
from section import Section

FASTMCP = Environment("fastmcp", ("fastmcp==4.1.2",))
RULES = """
from hookline import AFTER_TOOL, BEFORE_TOOL, HookResult, guard, hook

@guard(BEFORE_TOOL, tools="*read")
def no_env(ctx, request):
    return HookResult.block("No .env files.") if request.arguments["path"].endswith(".env") else None

@hook(AFTER_TOOL)
def redact(ctx, result):
    return result.with_text(result.text.replace("SECRET", "[redacted]")) if "SECRET" in result.text else None
"""
SERVER = """
import json, sys
BIG = "x" * 200_000
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
    elif message["method"] == "tools/list":
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        result = {"tools": [{"name": "read", "description": "Read.", "inputSchema": schema}]}
    else:
        text = BIG if message["params"]["arguments"]["path"] == "big" else "hello"
        result = {"content": [{"type": "text", "text": text}]}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\\n")
    sys.stdout.flush()
"""  # noqa: E501
PROXY = """
import sys
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from fastmcp.server import create_proxy
from fastmcp.server.middleware import Middleware

class Guard(Middleware):
    async def on_call_tool(self, context, call_next):
        if (context.message.arguments or {}).get("path", "").endswith(".env"):
            raise ToolError("No .env files.")
        return await call_next(context)

proxy = create_proxy(StdioTransport(command=sys.argv[1], args=sys.argv[2:]))
proxy.add_middleware(Guard())
proxy.run(transport="stdio", show_banner=False)
"""
CALLS = {"a small result": ("a.txt", 1), "200 kB": ("big", 1), "1,000 calls in flight, each": ("a.txt", 1000)}
OPENED = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class Client:
    """A client of a few lines, whose own work is small."""

    def __init__(self, command: list[str], env: dict[str, str], tool: str) -> None:
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.tool, self._number = tool, 0
        self.ask("initialize", OPENED)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        names = [each["name"] for each in self.ask("tools/list", {})["tools"]]
        assert tool in names, names

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while "id" not in (message := json.loads(self._process.stdout.readline())):
            pass
        return dict(message["result"])

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return its result."""
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        return self._receive()

    def time(self, path: str, calls: int) -> float:
        """Return the milliseconds of a call, when ``calls`` are sent at once."""
        params = {"name": self.tool, "arguments": {"path": path}}
        began = time.perf_counter()
        for _ in range(calls):
            self._number += 1
            self._send({"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params})
        results = [self._receive() for _ in range(calls)]
        took = 1000 * (time.perf_counter() - began) / calls
        assert not any(result.get("isError") for result in results)
        return took

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def measure(lab: Lab) -> dict[str, Any]:
    """Return the milliseconds of a call on each way, interleaved."""
    with tempfile.TemporaryDirectory(prefix="hl") as name:
        folder = Path(name)
        for file, text in (("rules.py", RULES), ("server.py", SERVER), ("proxy.py", PROXY)):
            (folder / file).write_text(text)
        server = [sys.executable, str(folder / "server.py")]
        several = {f"s{n}": {"command": server[0], "args": server[1:]} for n in range(lab.pick(20, 2))}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": several}))
        gateway = [sys.executable, "-P", "-m", "hookline", "mcp-gateway", "--rules", str(folder / "rules.py")]
        ways = {
            "no gateway": (server, "read"),
            "`hookline mcp-gateway`": ([*gateway, "--", *server], "read"),
            f"the same, with {len(several)} servers": ([*gateway, "--servers", str(folder / "mcp.json")], "s1__read"),
        }
        if not lab.quick and (FASTMCP.made or not FASTMCP.make()):
            ways["a proxy of FastMCP"] = [str(FASTMCP.python), str(folder / "proxy.py"), *server], "read"
        env = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "XDG_DATA_HOME": name}
        clients = {way: Client(command, env, tool) for way, (command, tool) in ways.items()}
        taken: dict[str, dict[str, list[float]]] = {way: {kind: [] for kind in CALLS} for way in clients}
        for kind, (path, calls) in CALLS.items():
            for way in lab.turns(clients, lab.pick(200 if calls == 1 else 15, 1)):
                taken[way][kind].append(clients[way].time(path, lab.pick(calls, min(calls, 10))))
        for client in clients.values():
            client.close()
    return {way: {kind: spread(times) for kind, times in kinds.items()} for way, kinds in taken.items()}


def render(data: Any) -> str:
    """Return the text and the table."""
    rows = [[way, *(shown(kinds[kind], "ms") for kind in CALLS)] for way, kinds in data.items()]
    return prose(
        "Wall time of a call of a stdio server that answers at once, from the request to its result, measured in "
        "turns. The gateway has one guard and one hook for results, checks the pins, and lists the run in a database."
    ) + table(["", *CALLS], rows)


SECTION = Section("mcp_gateway", "Guards in front of an MCP server", measure, render)
