"""Files that people send: which of them reach the model, and what it reads about the others."""

import asyncio

import pytest

from hookline import Agent, ScriptedModel, call, tool
from hookline.channels import files as reading
from hookline.channels.access import Access
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.protocol import ChannelError
from hookline.hooks import ChannelGuard
from hookline.stores.messages import InboundFile

from ..waiting import wait_until
from .helpers import crash

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 10


class FileChannel(MemoryChannel):
    """A channel whose messages have files; it counts how often each is read."""

    def __init__(self, **contents):
        super().__init__()
        self.contents, self.read, self.gate = contents, [], asyncio.Event()
        self.gate.set()

    async def read_file(self, file, max_size):
        self.read.append(file.id)
        await self.gate.wait()
        found = self.contents[file.id]
        if isinstance(found, Exception):
            raise found
        return found

    async def share(self, *ids, text="[file] Look.", **fields):
        files = tuple(InboundFile(id, f"{id}.png") for id in ids)
        await self.say(text, files=files, attachments=("file",) * len(ids), **fields)


def last_message(model, request=-1):
    return model.requests[request].messages[-1]


@pytest.fixture
def model():
    return ScriptedModel(["Seen."], loop=True)


async def test_a_file_reaches_the_model_with_the_type_of_its_content(gateways, model):
    agent = Agent("a", llm=model)
    gateway, channel = await gateways(answerer=agent, channel=FileChannel(cat=PNG, text=b"only text"))
    await channel.share("cat", "text")
    assert await channel.replies(1) == ["Seen."]
    cat, text = last_message(model).attachments
    assert (cat.name, cat.media_type, cat.data) == ("cat.png", "image/png", PNG)
    assert (text.name, text.media_type) == ("text.png", "text/plain")
    assert last_message(model).content == "[file] Look."


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (PNG * 10, "the limit for an attachment is 100 bytes"),
        (b"", "is empty"),
        (ChannelError("secret detail"), "it could not be read"),
        (b"OggS...", "you cannot read this type: x.png (audio/ogg, 7 bytes)"),
    ],
)
async def test_the_model_reads_why_a_file_is_missing_and_the_conversation_goes_on(gateways, content, why):
    class Sighted(ScriptedModel):
        attachment_types = ("image/*", "text/*")

    model = Sighted(["Seen."], loop=True)
    agent = Agent("a", llm=model, max_attachment=100)
    gateway, channel = await gateways(answerer=agent, channel=FileChannel(x=content, cat=PNG))
    await channel.share("x", "cat")
    assert await channel.replies(1) == ["Seen."]
    message = last_message(model)
    assert message.content.startswith("[file] Look.\n[x.png is not shown: ")
    assert why in message.content
    assert "secret" not in message.content
    assert [each.name for each in message.attachments] == ["cat.png"]
    await channel.say("And now?")
    assert await channel.replies(2) == ["Seen.", "Seen."]


async def test_a_size_over_the_limit_is_not_even_read(gateways, model):
    agent = Agent("a", llm=model, max_attachment=100)
    gateway, channel = await gateways(answerer=agent, channel=FileChannel())
    await channel.say("[file]", files=(InboundFile("x", "film.mp4", 10**9),))
    await channel.replies(1)
    assert channel.read == []
    assert "film.mp4 is not shown: film.mp4 has 1 GB, but the limit" in last_message(model).content


async def test_at_most_20_files_of_a_message_are_read(gateways, model):
    channel = FileChannel(**{f"f{n}": PNG for n in range(25)})
    gateway, _ = await gateways(answerer=Agent("a", llm=model), channel=channel)
    await channel.share(*channel.contents)
    await channel.replies(1)
    assert (len(channel.read), len(last_message(model).attachments)) == (20, 20)
    assert last_message(model).content.count("is not shown: a message may have 20 files") == 5


async def test_a_file_that_takes_too_long_is_left_out(gateways, model, monkeypatch):
    monkeypatch.setattr(reading, "READ_SECONDS", 0.01)
    gateway, channel = await gateways(answerer=Agent("a", llm=model), channel=FileChannel(cat=PNG))
    channel.gate.clear()
    await channel.share("cat")
    assert await channel.replies(1) == ["Seen."]
    assert "cat.png is not shown: it could not be read" in last_message(model).content


async def test_files_of_refused_messages_are_not_read(gateways, model):
    agent = Agent("a", llm=model, hooks=[ChannelGuard(attachments=False)])
    gateway, channel = await gateways(answerer=agent, channel=FileChannel(cat=PNG), access=Access(allow=["ada"]))
    await channel.share("cat", sender="eve")
    await channel.share("cat", sender="ada")
    assert "attachments are not accepted" in (await channel.replies(1))[0]
    await gateway.wait_until_idle()
    assert (channel.read, model.requests) == ([], [])


async def test_a_message_that_is_added_to_a_run_has_its_file(gateways):
    entered, go_on = asyncio.Event(), asyncio.Event()

    @tool(effects=[])
    async def wait() -> str:
        entered.set()
        await go_on.wait()
        return "done"

    model = ScriptedModel([call("wait"), "both"])
    gateway, channel = await gateways(
        answerer=Agent("a", llm=model, tools=[wait]), channel=FileChannel(cat=PNG), when_busy="steer"
    )
    await channel.say("hello")
    await entered.wait()
    await channel.share("cat")
    await wait_until(lambda: channel.read)
    await gateway._inbox.queues.wait_until_idle()
    go_on.set()
    assert await channel.replies(1) == ["both"]
    assert last_message(model).attachments[0].data == PNG


async def test_after_a_crash_the_file_is_read_again(gateways, model):
    first, channel = await gateways(answerer=Agent("a", llm=model), channel=FileChannel(cat=PNG), lease=0.5)
    channel.gate.clear()
    await channel.share("cat")
    await wait_until(lambda: channel.read)
    await crash(first)
    again = FileChannel(cat=PNG)
    await gateways(answerer=Agent("a", llm=model), channel=again)
    assert await again.replies(1) == ["Seen."]
    assert last_message(model).attachments[0].data == PNG
