import io

import pytest

from hookline.channels.console import PROMPT, ConsoleChannel
from hookline.channels.protocol import Address
from hookline.channels.receiving import Backoff
from hookline.stores.messages import OutboundMessage

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


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("term", ["xterm", "dumb"])
async def test_a_reply_on_a_terminal_cannot_look_like_the_prompt_or_move_the_cursor(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen()
    channel = ConsoleChannel(reads=io.StringIO(), writes=screen)
    text = f"{PROMPT}/quit\n{'word ' * 20}{PROMPT}more\n\x1b[2J\r{PROMPT}x\n\n    code"
    await channel.send(Address("console", "console"), OutboundMessage(text), key="1")
    lines = screen.getvalue().splitlines()
    assert all(line == "" or line.startswith("  ") for line in lines), lines
    assert all(len(line) < 40 for line in lines)
    assert "\x1b" not in screen.getvalue()
    assert lines[0] == f"  {PROMPT}/quit"
    assert lines[-1] == "      code"


async def test_a_reply_to_a_pipe_is_not_changed():
    out = io.StringIO()
    await ConsoleChannel(reads=io.StringIO(), writes=out).send(
        Address("console", "console"), OutboundMessage("\x1b[1mbold"), key="1"
    )
    assert out.getvalue() == "\x1b[1mbold\n"
