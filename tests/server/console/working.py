"""An agent in whose runs everything happens that the page of a run shows, as slowly as a test wants."""

import asyncio

from hookline import AFTER_TOOL, BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, hook, reply, tool
from hookline.payloads import Usage
from hookline.teams import Team

SECRET = "4111-1111-1111-1111"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


class Work:
    """The agent, and what its slow tool waits for."""

    def __init__(self, turns=None, *, hooks=()):
        self.go_on = asyncio.Event()

        @tool
        async def slow(what: str) -> str:
            """Take long."""
            await self.go_on.wait()
            return f"{what} is done"

        helper = Agent(
            "helper",
            llm=ScriptedModel([call("read_card", name="Jane"), reply("Jane is fine.")], loop=True),
            tools=[read_card],
        )
        team = Team()
        self.agent = Agent(
            "worker",
            llm=ScriptedModel(turns or TURNS, loop=True),
            tools=[slow, delete, read_card, team],
            hooks=[no_deleting, hide_cards, tidy, *hooks],
        )
        team.add(self.agent)
        team.add(helper)


@tool
def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


@tool
def read_card(name: str) -> str:
    """Read a card."""
    return f"{name} has the card {SECRET}. {HOSTILE}"


@guard(BEFORE_TOOL, tools="delete")
def no_deleting(ctx, request):
    return HookResult.block("Nothing is deleted here.", reason=f"rule 3 {HOSTILE}")


@hook(AFTER_TOOL, tools="read_card")
def hide_cards(ctx, result):
    return HookResult.replace(result.with_text(result.text.replace(SECRET, "[card]")), reason="1 card number")


@hook(BEFORE_TOOL, tools="read_card")
def tidy(ctx, request):
    name = request.arguments["name"].strip()
    return request.replace(arguments={"name": name}) if name != request.arguments["name"] else None


TURNS = [
    reply(
        "", tool_calls=(call("delete", path="a.txt"), call("read_card", name=" Joe ")), usage=Usage(400, 30), cost=0.002
    ),
    call("delegate", to="helper", task="Look at Jane"),
    reply(f"All done. {HOSTILE}", usage=Usage(500, 9), cost=0.001),
]
