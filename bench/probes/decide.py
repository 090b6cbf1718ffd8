"""Measure questions to ``POST /decide``, over HTTP and over a Unix socket, beside a plain route of Starlette.

The server is built as ``hookline serve`` builds it, with an audit log and three guards. The client is another process.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, guard, reply
from hookline._web.http_server import HttpServer
from hookline.config.settings import Settings
from hookline.hooks import AuditLogHook, PathGuard, SensitiveDataHook
from hookline.server.build import build_server

CLIENT = Path(__file__).with_name("decide_client.py")


@guard(BEFORE_TOOL, tools="send_*")
def colleagues_only(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Block mail to strangers."""
    return None if request.arguments["to"] in ("ann", "ben") else HookResult.block("Colleagues only.")


class Plain:
    """A route that reads JSON and answers JSON, and decides nothing."""

    def routes(self) -> list[Route]:
        """Return it."""

        async def allow(request: Request) -> Response:
            given = msgspec.json.decode(await request.body())
            answer = {"action": "allow", "payload": given["payload"]}
            return Response(msgspec.json.encode(answer), media_type="application/json")

        return [Route("/decide", allow, methods=["POST"])]


@asynccontextmanager
async def serving(kind: str, folder: str) -> Any:
    """Start a server and yield its address."""
    if kind == "starlette":
        plain = HttpServer([Plain()], port=0)
        await plain.start()
        yield plain.url
        await plain.stop()
        return
    audit = AuditLogHook(f"{folder}/audit.jsonl")
    hooks: list[Any] = [colleagues_only, PathGuard(folder), SensitiveDataHook(), audit]
    agent = Agent("clerk", llm=ScriptedModel([reply("never")]), hooks=hooks)
    address = f"{folder}/run/hookline.sock"
    settings = Settings(
        server={"port": 0, "socket": address, "decide_rate": 1e9, "decide_burst": 1_000_000},
        runs=f"{folder}/runs.db", sessions=f"{folder}/sessions.db", approval_file=f"{folder}/approvals.db",
        audit=f"{folder}/audit.jsonl",
    )  # fmt: skip
    server = build_server(settings, agent, home=Path(folder))
    await server.start()
    yield address if kind == "socket" else server.url
    await server.stop(grace=0)


async def _measure(kind: str, sessions: int, questions: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="hl") as folder:
        async with serving(kind, folder) as address:
            cpu = time.process_time()
            client = await asyncio.create_subprocess_exec(
                sys.executable, str(CLIENT), kind, address, str(sessions), str(questions),
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, _ = await client.communicate()
            cpu = time.process_time() - cpu
            assert client.returncode == 0, "the client failed"
    found = json.loads(out)
    cuts = statistics.quantiles(found["each"], n=100)
    count = sessions * questions
    return {"p50": cuts[49], "p95": cuts[94], "per_second": count / found["took"], "cpu": cpu / count}


def decide(kind: str, sessions: int, questions: int) -> dict[str, Any]:
    """Ask this many questions in each of this many sessions at once."""
    return asyncio.run(_measure(kind, sessions, questions))
