"""A small MCP server with one tool, ``lookup``. It writes the words that it is asked for into a file."""

import json
import sys
from pathlib import Path

TOOL = {
    "name": "lookup",
    "description": "Look a word up.",
    "inputSchema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}


def result_of(request: dict) -> dict:
    """Return the result of a request."""
    match request["method"]:
        case "initialize":
            info = {"name": "words", "version": "1"}
            version = request["params"]["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            word = request["params"]["arguments"]["word"]
            with Path(sys.argv[1]).open("a") as file:
                file.write(f"{word}\n")
            return {"content": [{"type": "text", "text": f"{word}: {word.upper()}-SECRET"}]}
        case _:
            return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result_of(request)}), flush=True)
