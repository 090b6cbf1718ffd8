"""A replica of a server, as a program of its own: ``python -m tests.server.replica URL OPTIONS``.

It prints its address. What its agent does is in the task of a run:

- ``wait FILE``: call a tool that returns when the file exists;
- ``ask FILE``: call a tool that needs approval and appends a line to the file;
- anything else: reply with the last message of the user.
"""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.server import control
from hookline.server.a2a import api as a2a
from hookline.server.a2a.api import A2aApi
from hookline.server.agents import Agents
from hookline.server.api import RunsApi
from hookline.server.app import Server
from hookline.server.approvals import ApprovalsApi
from hookline.server.options import ServerOptions
from hookline.server.routing import Gate
from hookline.server.runs import RunService
from hookline.stores import approvals, leases, runs
from hookline.stores.approvals import ApprovalStore
from hookline.stores.limits import BucketStore
from hookline.stores.runs import RunStore
from hookline.stores.sessions import SqliteSessionStore

ROOT = Path(__file__).parents[2]


@tool
async def wait(file: str) -> str:
    """Wait until a file exists."""
    while not Path(file).exists():
        await asyncio.sleep(0.01)
    return "it exists"


@tool
async def note(file: str) -> str:
    """Append a line to a file."""
    with open(file, "a", encoding="utf-8") as out:
        out.write("line\n")
    return "noted"


@guard(BEFORE_TOOL, tools="note")
async def ask_about_notes(ctx, event):
    return HookResult.ask("May it write?")


def turn(request):
    said = [message.content for message in request.messages if message.role == "user"]
    word, _, rest = said[-1].partition(" ")
    if request.messages[-1].role == "user" and word in ("wait", "ask"):
        return call("wait" if word == "wait" else "note", file=rest)
    return reply(said[-1])


def agent():
    return Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[wait, note], hooks=[ask_about_notes])


def server_at(url, **options):
    store = RunStore(url)
    waiting = ApprovalStore(url)
    service = RunService(
        Agents({"helper": agent()}),
        store,
        approvals=waiting,
        sessions=SqliteSessionStore(url),
        options=msgspec.convert(
            {"port": 0, "push_hosts": ["127.0.0.1"], "rate": 1e9, "burst": 1_000_000, **options}, ServerOptions
        ),
    )
    buckets = BucketStore(url, service.options.rate / 60, service.options.burst)
    gate = Gate(None, service.options, buckets=buckets)
    apis = [RunsApi(service), ApprovalsApi(service), A2aApi(service, store, gate)]
    closing = [each.close for each in (store, waiting, buckets)]
    return Server(service, apis, gate, service.options, closing=closing)


async def main(url, options):
    # Changes must be noticed because they are announced.
    a2a.TAKEOVER_SECONDS = 0.1
    leases.LEASE_SECONDS, leases.RENEW_SECONDS = 4.0, 0.2
    runs.WATCHED_POLL_SECONDS = approvals.WATCHED_POLL_SECONDS = control.POLL_SECONDS = 600.0
    server = server_at(url, **options)
    await server.start()
    print(server.url, flush=True)
    await server.wait()


@contextmanager
def replica(url, **options):
    """Start a replica as a process; yield the process, whose ``url`` is its address."""
    command = [sys.executable, "-m", "tests.server.replica", url, json.dumps(options)]
    paths = (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", ""))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)
    try:
        process.url = process.stdout.readline().strip()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
