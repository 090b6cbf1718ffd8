"""A server whose callers ask about moments of their own runs, without a network."""

import asyncio
from contextlib import asynccontextmanager
from itertools import count

import httpx

from hookline import Agent, HookResult, ScriptedModel, guard, hook, reply
from hookline.config.settings import Settings
from hookline.points import BEFORE_TOOL
from hookline.server import Caller, asgi

RIGHTS = {"ann": ("read", "run", "approve"), "ben": ("read", "run", "approve"), "root": ("read", "run", "admin")}
LIMITS = {"rate": 1e9, "burst": 1_000_000}


@guard(BEFORE_TOOL, tools="send_*")
def colleagues_only(ctx, request):
    if request.arguments.get("to") != "ann@example.com":
        return HookResult.block("Mail goes to colleagues only.")
    return None


@guard(BEFORE_TOOL, tools="pay")
def ask_to_pay(ctx, request):
    return HookResult.ask(f"Pay {request.arguments.get('amount')}?")


@hook(BEFORE_TOOL, tools="convert")
def in_metres(ctx, request):
    return request.replace(arguments={**request.arguments, "unit": "m"})


HOOKS = (colleagues_only, ask_to_pay, in_metres)


def agent_of(*hooks, name="clerk", **options):
    """An agent whose model is never called."""
    return Agent(name, llm=ScriptedModel([reply("never")]), hooks=hooks or HOOKS, **options)


class Asking:
    """A caller with one session."""

    def __init__(self, client, name, session):
        self.client, self.session, self._ids = client, session, count(1)
        self.headers = {"x-caller": name}

    async def post(self, path="/decide", **body):
        return await self.client.post(path, json=body, headers=self.headers)

    async def get(self, path):
        answer = await self.client.get(path, headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ask(self, point, **payload):
        """The answer to a question; ``wait``, ``run`` and ``agent`` are fields of the question."""
        own = {name: payload.pop(name) for name in ("wait", "run", "agent") if name in payload}
        answer = await self.post(point=point, session=self.session, payload=payload, **own)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def call(self, name, *, id="", wait=0.0, **arguments):
        """The answer to a question about a tool call."""
        return await self.ask(
            "before_tool", id=id or f"call_{next(self._ids)}", name=name, arguments=arguments, wait=wait
        )

    async def result(self, id, name, value=None, **fields):
        """The answer to a question about a result."""
        return await self.ask("after_tool", id=id, name=name, result=value, **fields)

    async def run(self, id):
        return await self.get(f"/runs/{id}")

    async def decide(self, answer, decision="approve", **fields):
        """Decide about the call that an answer ``ask`` names."""
        approval = answer["approval"]
        body = {"decision": decision, "digest": approval["digest"], **fields}
        done = await self.client.post(f"/approvals/{approval['id']}", json=body, headers=self.headers)
        assert done.status_code == 200, done.text

    async def again(self, answer, wait=30):
        """The answer to an earlier question."""
        return await self.get(f"/decide/{answer['decision']}?wait={wait}")


class Deciding:
    """The server, and its callers."""

    def __init__(self, app, client):
        self.app, self.client = app, client

    def caller(self, name="ann", session="chat"):
        return Asking(self.client, name, session)

    @property
    def service(self):
        return self.app.server.service


def _authenticate(request):
    name = request.headers["x-caller"]
    return Caller(name, scopes=RIGHTS.get(name, ()))


@asynccontextmanager
async def deciding(folder, *agents, settings=None, **options):
    """Serve agents; options are those of the table ``server``."""
    given = Settings(
        **{
            "runs": str(folder / "runs.db"),
            "sessions": str(folder / "sessions.db"),
            "approval_file": str(folder / "approvals.db"),
            "server": LIMITS | {"grace": 0.0} | options,
        }
        | (settings or {})
    )
    app = asgi(list(agents) or [agent_of()], authenticate=_authenticate, settings=given, home=folder)
    transport = httpx.ASGITransport(app)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8420", timeout=60) as client:
        yield Deciding(app, client)


async def gather(*work):
    return await asyncio.gather(*work)
