"""Answer commands without a model.

In a chat, "/hours" needs no model. A hook at `inbound_claim` answers such a message, so that no run starts; all other
messages go to the agent. A second hook signs every outgoing message, at `message_sending`. Both work with every channel
of a gateway; this example uses a channel in memory.
"""

import asyncio
import tempfile
from pathlib import Path

from hookline import Agent, AgentContext, HookResult, ScriptedModel, hook
from hookline.channels import Gateway, MemoryChannel
from hookline.payloads import Inbound, Outbound
from hookline.points import INBOUND_CLAIM, MESSAGE_SENDING
from hookline.stores import Mailbox, SqliteSessionStore

COMMANDS = {"/hours": "We are open from nine to five.", "/phone": "Call 555-0100."}


@hook(INBOUND_CLAIM)
def answer_commands(ctx: AgentContext, inbound: Inbound) -> HookResult | None:
    known = COMMANDS.get(inbound.message.text.strip().lower())
    return HookResult.claim(reply=known) if known else None


@hook(MESSAGE_SENDING)
def sign(ctx: AgentContext, outbound: Outbound) -> HookResult:
    return HookResult.merge(message=outbound.message.replace(text=f"{outbound.message.text} - the desk"))


async def main(folder: Path) -> None:
    channel = MemoryChannel()
    agent = Agent("desk", llm=ScriptedModel(["Good morning."]), hooks=[answer_commands, sign])
    mailbox, sessions = Mailbox(folder / "mail.db"), SqliteSessionStore(folder / "sessions.db")
    gateway = Gateway(agent, [channel], mailbox=mailbox, sessions=sessions)
    await gateway.start()
    for number, text in enumerate(("Hello.", "/hours"), 1):
        await channel.say(text)
        print((await channel.replies(number))[-1])
    await gateway.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))

# prints:
# Good morning. - the desk
# We are open from nine to five. - the desk
