"""Real brokers, a local Bot API and a small gateway, for the tests of channels."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Inbox:
    """A ``deliver`` function that stores messages, recognizes duplicates, and can fail."""

    def __init__(self):
        self.messages, self.offered, self.failures = [], Counter(), []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, message):
        key = (message.bot, message.chat_id, message.message_id)
        if self.failures:
            raise self.failures.pop(0)
        self.offered[key] += 1
        new = self.offered[key] == 1
        if new:
            self.messages.append(message)
        await self.open.wait()  # stored, but the channel does not know it yet
        return new

    @property
    def texts(self):
        return [message.text for message in self.messages]


class Mosquitto:
    """A local broker that keeps its data on disk."""

    def __init__(self, folder: Path, extra: str = "", anonymous: bool = True):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.config = folder / "mosquitto.conf"
        self.config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous {str(anonymous).lower()}\nuser root\nlog_dest stderr\n"
            f"persistence true\npersistence_location {folder}/\nautosave_interval 1\nautosave_on_changes true\n"
            f"max_queued_messages 100000\n{extra}"
        )
        self.log = folder / "mosquitto.log"
        self.process = None

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([MOSQUITTO, "-c", str(self.config)], stderr=log, stdout=log)
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
                return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(self.log.read_text()) from None
                time.sleep(0.005)

    def stop(self, kill=False):
        if self.process is not None:
            (self.process.kill if kill else self.process.terminate)()
            self.process.wait()
            self.process = None

    @asynccontextmanager
    async def client(self, *topics, **options):
        """A device that subscribes to these topics."""
        options = {"timeout": 60, **options}
        async with aiomqtt.Client("127.0.0.1", self.port, **options) as client:
            for topic in topics:
                await client.subscribe(topic, qos=1)
            yield client
