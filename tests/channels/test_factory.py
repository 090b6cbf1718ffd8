import asyncio
import io
import os
import re

import pytest

from hookline import Agent, ScriptedModel
from hookline.channels.console import ConsoleChannel
from hookline.channels.factory import build_gateway, database_path, load_channel
from hookline.channels.gateway import Gateway
from hookline.channels.options import GatewayOptions
from hookline.channels.protocol import ChannelError
from hookline.config.errors import ConfigError
from hookline.config.settings import DeclaredChannel, Settings
from hookline.config.sources import load
from hookline.payloads import OutboundMessage
from hookline.plugins.errors import LoadError
from hookline.stores.mailbox import Mailbox
from hookline.stores.sessions import SqliteSessionStore

MODULE = """
from hookline.channels.in_memory import MemoryChannel

class Mine(MemoryChannel):
    def __init__(self, name="mine", *, token, store="", names=()):
        super().__init__(name)
        self.token, self.store, self.names = token, store, names

ready = MemoryChannel("ready")
number = 3
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / "ways.py").write_text(MODULE)
    return tmp_path


def test_a_channel_is_built_from_its_declaration_with_secrets_from_the_environment(home, monkeypatch):
    monkeypatch.setenv("TOKEN", "hush")
    args = {"token": {"env": "TOKEN"}, "store": "kept.db", "names": ["env:TOKEN", "plain"]}
    channel = load_channel(DeclaredChannel(f"{home}/ways.py:Mine", "other", args), home)
    assert (channel.name, channel.token, channel.names) == ("other", "hush", ["hush", "plain"])
    assert channel.store == str(home / "kept.db")
    assert load_channel(DeclaredChannel(f"{home}/ways.py:ready"), home).name == "ready"


@pytest.mark.parametrize(
    ("declared", "error", "says"),
    [
        (DeclaredChannel("weebhook"), LoadError, "there is no channel 'weebhook'. Did you mean 'webhook'?"),
        (DeclaredChannel("ways.py"), LoadError, "add the name of the class"),
        (DeclaredChannel("{home}/ways.py:Mien"), LoadError, "Did you mean 'Mine'?"),
        (DeclaredChannel("{home}/ways.py:number"), LoadError, "is a int, not a channel"),
        (DeclaredChannel("{home}/ways.py:Mine"), ConfigError, "channel .*Mine needs token: "),
        (
            DeclaredChannel("{home}/ways.py:Mine", "", {"tokn": 1, "token": "x"}),
            ConfigError,
            "has no argument 'tokn'. Did you mean 'token'? It takes ",
        ),
        (
            DeclaredChannel("telegram", "", {"tokn": "1"}),
            ConfigError,
            "channel telegram has no argument 'tokn'. Did you mean 'token'? It takes name, ",
        ),
        (DeclaredChannel("web", "", {"port": 1}), ConfigError, r"set port in \[gateway\]"),
        (DeclaredChannel("{home}/ways.py:ready", "", {"a": 1}), ConfigError, "takes no a"),
        (
            DeclaredChannel("{home}/ways.py:Mine", "", {"token": {"env": "NO_SUCH"}}),
            ConfigError,
            "variable NO_SUCH, which is not set",
        ),
        (DeclaredChannel("no.such:thing"), LoadError, "No module named"),
    ],
)
def test_an_invalid_channel_declaration_is_explained(home, declared, error, says):
    import msgspec

    declared = msgspec.structs.replace(declared, use=declared.use.format(home=home))
    with pytest.raises(error, match=says.replace("?", r"\?")):
        load_channel(declared, home)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"max_concurent": 2}, "Did you mean 'max_concurrent'"),
        ({"max_concurrent": 0}, r"gateway\.max_concurrent: .*>= 1"),
        (
            {"when_busy": "stear"},
            r"gateway\.when_busy: expected one of queue, steer; got 'stear'. Did you mean 'steer'\?",
        ),
        ({"channels": ["web"]}, r"'channels' is not an option of the gateway: move it above \[gateway\]"),
        ({"port": 70000}, r"gateway\.port"),
    ],
)
def test_an_invalid_gateway_setting_is_explained(table, says):
    with pytest.raises(ConfigError, match=says):
        GatewayOptions.of(table)


def test_a_gateway_from_a_configuration_file(home):
    (home / "hookline.toml").write_text(
        'channels = [{ use = "ways.py:Mine", args = { token = "x" }, allow = ["ada"] }]\n'
        'sessions = "s.db"\n[gateway]\ndatabase = "g.db"\nmax_concurrent = 3\n'
    )
    settings = load(file=str(home / "hookline.toml")).settings
    gateway = build_gateway(settings, Agent("bot", llm=ScriptedModel()), home=home)
    assert list(gateway.channels) == ["mine"]
    assert gateway.options.max_concurrent == 3
    assert gateway._mailbox.path == str(home / "g.db")
    assert gateway._access["mine"]._allow == {"ada"}
    assert database_path(Settings(), home).endswith("gateway.db")


@pytest.mark.parametrize(
    ("channels", "says"),
    [
        ('[{ use = "web", alow = ["x"] }]', "a channel has no 'alow'. Did you mean 'allow'"),
        ('[{ name = "web" }]', "a channel needs use"),
        ('[{ use = "web", pairing = "yes" }]', "pairing"),
    ],
)
def test_an_error_in_the_file_names_the_setting(home, channels, says):
    (home / "hookline.toml").write_text(f"channels = {channels}\n")
    with pytest.raises(ConfigError, match=says):
        load(file=str(home / "hookline.toml"))


def test_a_gateway_without_channels_is_an_error(home):
    with pytest.raises(ConfigError, match=r"no channels are configured: add some in bot\.toml, such as"):
        build_gateway(Settings(), Agent("bot", llm=ScriptedModel()), home=home, file="bot.toml")


@pytest.mark.usefixtures("polls_often")
async def test_the_gateway_ends_after_the_console_input(tmp_path):
    out = io.StringIO()
    channel = ConsoleChannel(reads=io.StringIO("one\n\ntwo"), writes=out)
    model = ScriptedModel([lambda request: f"echo {request.messages[-1].content}"], loop=True)
    gateway = Gateway(
        Agent("bot", llm=model),
        [channel],
        mailbox=Mailbox(tmp_path / "g.db"),
        sessions=SqliteSessionStore(tmp_path / "s.db"),
    )
    await gateway.serve()
    assert out.getvalue() == "echo one\necho two\n"
    assert not channel.health().ok
    out.close()
    with pytest.raises(ChannelError):
        await channel.send(None, OutboundMessage("x"), key="k")


@pytest.mark.usefixtures("polls_often")
async def test_the_console_shows_a_prompt_in_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    model = ScriptedModel([lambda request: f"echo {request.messages[-1].content}"], loop=True)
    with open(theirs, closefd=False) as reads, open(theirs, "w", closefd=False) as writes:
        channel = ConsoleChannel(reads=reads, writes=writes)
        gateway = Gateway(
            Agent("bot", llm=model),
            [channel],
            mailbox=Mailbox(tmp_path / "g.db"),
            sessions=SqliteSessionStore(tmp_path / "s.db"),
        )
        serving = asyncio.create_task(gateway.serve())
        seen, loop = "", asyncio.get_running_loop()

        def read():
            nonlocal seen
            seen += os.read(ours, 4096).decode()

        async def sees(*parts):
            while not re.search(".*?".join(map(re.escape, parts)), seen, re.DOTALL):
                await asyncio.sleep(0.01)

        loop.add_reader(ours, read)
        try:
            async with asyncio.timeout(30):
                await sees("❯ ")
                os.write(ours, b"one\n")
                await sees("❯ ", "one", "... ", "\r\x1b[K  echo one\r\n", "❯ ")
                with channel.aside():
                    writes.write("a line of the log\n")
                    writes.flush()
                await sees("echo one", "❯ ", "\r\x1b[Ka line of the log\r\n", "\r\x1b[K❯ ")
                seen = ""
                os.write(ours, b"\n")
                await sees("\r\x1b[K❯ ")
                os.write(ours, b"\x04")
                await serving
                await sees("\r\x1b[K❯ \r\x1b[K")
        finally:  # whatever is seen: the thread that reads must not hold up the rest
            os.write(ours, b"\n\x04\x04")
            await serving
        assert channel.ended
        loop.remove_reader(ours)
    for end in (ours, theirs):
        os.close(end)
