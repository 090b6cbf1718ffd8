"""A run in which every kind of thing happens: the example of the tests of explain."""

from pathlib import Path

from hookline import Agent, HookResult, Message, ScriptedModel, call, guard, hook, observer, reply, tool
from hookline.payloads import Usage
from hookline.points import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_START,
)
from hookline.records.hook import RecordHook
from hookline.records.reading import read_runs
from hookline.teams import Team

LEDGER = """Ledger 2026, third quarter.
Account holder: Jane Roe, card 4111-1111-1111-1111.
Revenue 1,204,500; costs 977,310; margin 227,190.
"""
TASK = "  Check the ledger of the third quarter, clean up the folder, and mail the margin to the partner's CFO, pls."


@tool
def shell(command: str) -> str:
    """Run a command."""
    return "total 12\n-rw-r--r-- 1 ann staff 2210 ledger.md\n-rw-r--r-- 1 ann staff  840 minutes.md"


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return LEDGER + "Notes: " + "two disputed invoices are not included; " * 8


@tool
def rates(currency: str) -> str:
    """Look up a rate."""
    raise ConnectionError("rates.example.com does not answer")


@tool
def send_mail(to: str, subject: str, body: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


@hook(ON_RUN_START)
def tidy(ctx, start):
    return HookResult.replace(start.replace(task=start.task.replace("pls", "please").strip()), reason="plain English")


@hook(BEFORE_LLM, priority=40)
def today(ctx, request):
    if request.hop == 0 and request.ids.agent == "office":
        return request.replace(messages=[Message("system", "Today is Monday."), *request.messages])
    return None


@hook(AFTER_TOOL)
def hide_cards(ctx, result):
    if "4111" not in result.text:
        return None
    hidden = result.text.replace("4111-1111-1111-1111", "[card number]")
    return HookResult.replace(result.with_text(hidden), reason="1 card number")


@hook(AFTER_TOOL, on_failure="open")
def shaky(ctx, result):
    if result.name == "rates":
        raise KeyError("eur")


@guard(BEFORE_TOOL, tools="shell", priority=5)
def no_deleting(ctx, request):
    if "rm " not in request.arguments["command"]:
        return None
    message = "Deleting files is not allowed. Move them to trash/ instead."
    return HookResult.block(message, reason="rule 3: nothing is deleted")


@guard(BEFORE_TOOL, tools=("shell", "http_*"))
def no_network(ctx, request):
    return None


@guard(AFTER_LLM)
def no_promises(ctx, reply):
    if "guarantee" in reply.content:
        return HookResult.retry("Do not guarantee anything.", reason="a promise")
    return None


@hook(BEFORE_TOOL, tools="send_*")
def sign(ctx, request):
    body = f"{request.arguments['body']}\n\nSent by an assistant."
    signed = request.replace(arguments={**request.arguments, "body": body})
    return HookResult.replace(signed, reason="every mail says who wrote it")


@guard(BEFORE_TOOL, tools="send_*")
def ask_for_outside(ctx, request):
    if request.arguments["to"].endswith("@house.example"):
        return None
    return HookResult.ask(f"A mail to {request.arguments['to']}, who is not one of us. Send it?", reason="outside")


@hook(APPROVAL_REQUESTED)
def ann(ctx, request):
    return HookResult.approve(by="ann")


@observer(BEFORE_TOOL)
def audit(ctx, request):
    pass


HOOKS = (tidy, today, hide_cards, shaky, no_deleting, no_network, no_promises, sign, ask_for_outside, ann, audit)


def turns():
    used = Usage(420, 35)
    return [
        reply("", tool_calls=(call("shell", command="ls -la reports"),), usage=used, cost=0.0012),
        reply("", tool_calls=(call("read_file", path="reports/ledger.md"),), usage=used, cost=0.0012),
        [call("rates", currency="EUR"), call("delegate", to="researcher", task="Which invoices are disputed?")],
        call("shell", command="rm -rf reports/old"),
        reply("I guarantee that the margin is 227,190.", usage=used, cost=0.0012),
        call(
            "send_mail",
            to="cfo@partner.example",
            subject="Third quarter",
            body="The margin is 227,190, without the two disputed invoices.",
        ),
        reply("The margin is 227,190. I mailed it to the CFO of the partner; nothing was deleted."),
    ]


def agent(folder: Path, *, script=None, hooks=HOOKS):
    team = Team()
    researcher = Agent(
        "researcher",
        llm=ScriptedModel([call("shell", command="rm invoices.md"), reply("Invoices 17 and 23 are disputed.")]),
        tools=[shell],
    )
    office = Agent(
        "office",
        llm=ScriptedModel(turns() if script is None else script),
        tools=[shell, read_file, rates, send_mail, team],
        hooks=[*hooks, RecordHook(folder, redact=False)],
    )
    team.add(office)
    team.add(researcher)
    return office


def recorded(folder: Path, **options):
    """Run the agent once and return its record."""
    agent(folder, **options).run(TASK)
    return list(read_runs([folder]))[-1]
