import io

from hookline.channels.console import ConsoleChannel
from hookline.channels.receiving import Backoff

from ..waiting import wait_until


async def read_all(channel, deliver):
    await channel.start(deliver)
    await wait_until(lambda: channel.ended)
    await channel.stop()


async def test_an_undecodable_line_does_not_end_the_channel():
    heard_texts = []

    async def deliver(message):
        heard_texts.append(message.text)
        return True

    lines = io.TextIOWrapper(io.BytesIO("eins\r\nzwei \udcff\ndrei ü".encode(errors="surrogateescape")), "utf-8")
    await read_all(ConsoleChannel(reads=lines, writes=io.StringIO()), deliver)
    assert heard_texts == ["eins", "zwei �", "drei ü"]


async def test_delivery_of_a_line_is_retried(monkeypatch):
    monkeypatch.setattr(Backoff, "next", lambda self: 0.01)
    kept, full = [], [OSError("the disk is full"), OSError("still full")]
    healths = []

    async def deliver(message):
        if full:
            raise full.pop()
        healths.append(channel.health().ok)
        kept.append((message.text, message.message_id))
        return True

    channel = ConsoleChannel(reads=io.StringIO("one\ntwo\n"), writes=io.StringIO())
    await read_all(channel, deliver)
    assert [text for text, _ in kept] == ["one", "two"]
    assert len({id for _, id in kept}) == 2
    assert healths == [False, True]
