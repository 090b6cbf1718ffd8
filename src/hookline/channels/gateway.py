"""The gateway: what comes in through channels is answered by an agent, in order, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from .._base.frozen import EMPTY
from .._base.tasks import StillRunningError, with_timeout
from .._base.text import describe, did_you_mean, error_text
from .._run.context import AgentContext
from .._run.session import Session
from .._web.http_server import HttpServer
from .._web.starting import Starting
from ..config.errors import ConfigError
from ..stores.approvals import ApprovalStore
from ..stores.errors import StoreError
from ..stores.mailbox import Mailbox, PendingItems
from ..stores.sessions import SessionStore
from .access import Access
from .approvals import Approving
from .conversations import Conversations, address_of
from .inbox import Arrival, Reception
from .options import GatewayOptions
from .outbox import Postman, Tally
from .protocol import Answerer, Channel, ChannelError, Health
from .queues import Lanes
from .runner import Answering

log = logging.getLogger("hookline")

LOOK_EVERY = 1.0
"""Seconds between two looks at what other programs left."""

SEND_GRACE = 5.0
"""Seconds to send what is left when the gateway stops, at least."""

CLEAN_UP = 6.0
"""Seconds for runs that are cancelled then: their hooks have five."""

STOP_SECONDS = 15.0
"""Seconds for a channel to stop; then it is left alone."""


class Host(Protocol):
    """Something that is started before the channels and stopped after them, such as a web server."""

    async def start(self) -> None:
        """Begin."""
        ...

    async def stop(self) -> None:
        """End."""
        ...


class Status(msgspec.Struct, frozen=True):
    """What a gateway is doing: its channels' health, and numbers since it was started.

    When it has been stopped, ``waiting`` is what is left for the next.
    """

    channels: Mapping[str, Health]
    conversations: int
    running: int
    waiting: int
    unsent: int
    received: int
    duplicates: int
    refused: int
    sent: int
    retried: int
    failed: int


class Gateway:
    """Stands between channels and whoever answers.

    A message is kept before its channel is told that it arrived; its reply is kept before it is sent. So a message
    gets its answer also if the program ends in between: from the next one, or from another on the same mailbox.

    Args:
        answerer: an agent, or a roster of personalities.
        channels: the ways in and out; each has its own name.
        mailbox: where messages are kept.
        sessions: where conversations are kept.
        options: how it works.
        access: who may talk, by the name of the channel; everybody where there is none.
        context: makes the context of a run, for its limits.
        metadata: for ``ctx.state.metadata`` of every run, beside where the message came from.
        hosts: what is to be started with the channels; if left out, one web server at ``options.host`` and
            ``options.port`` for the channels that have routes.
        approvals: where calls that need approval wait, to be decided in their conversation by those whom ``access``
            lets, or elsewhere; without it, such calls are denied unless a hook decides.

    Raises:
        ConfigError: there is no channel, or two have the same name.
    """

    def __init__(
        self, answerer: Answerer, channels: Sequence[Channel], *, mailbox: Mailbox, sessions: SessionStore,
        options: GatewayOptions | None = None, access: Mapping[str, Access] | None = None,
        context: Callable[[Session], AgentContext] | None = None, metadata: Mapping[str, Any] = EMPTY,
        hosts: Sequence[Host] | None = None, approvals: ApprovalStore | None = None,
    ) -> None:  # fmt: skip
        self.channels: dict[str, Channel] = {}
        for channel in channels:
            if channel.name in self.channels:
                raise ConfigError(f"two channels are called {channel.name!r}: give one of them another name")
            self.channels[channel.name] = channel
        if not self.channels:
            raise ConfigError("a gateway needs at least one channel")
        self.options = options or GatewayOptions()
        self._access = dict(access or {})
        for name in self._access:
            if name not in self.channels:
                raise ConfigError(f"access: there is no channel {name!r}.{did_you_mean(name, self.channels)}")
        self._mailbox = mailbox
        self.hosts: tuple[Host, ...] = self._web_server() if hosts is None else tuple(hosts)
        self._tally = Tally()
        self._conversations = Conversations(answerer, mailbox, sessions)
        self._postman = Postman(mailbox, self._conversations, self.channels, self.options, self._tally)
        self._approving = Approving(approvals, self._postman, self.channels, self._access, self.options)
        self._answering = Answering(
            answerer, self._conversations, mailbox, self._postman, self._approving, self.channels, self.options,
            context, metadata,
        )  # fmt: skip
        self._reception = Reception(
            answerer, self._conversations, self._postman, self._answering, self._approving, self.options, self._tally
        )
        self._arrival = Arrival(mailbox, self._access, self._tally, self._take_up)
        self._started: list[Host | Channel] = []
        self._starting = Starting()
        self._removed: dict[str, Health] = {}
        self._changing = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._stopping, self._left = False, 0
        self._over, self._hurry = asyncio.Event(), asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._lanes = (self._reception.lanes, self._answering.lanes, self._postman.lanes)

    def _web_server(self) -> tuple[Host, ...]:
        """The one web server of the channels that need one."""
        served: list[Any] = [channel for channel in self.channels.values() if hasattr(channel, "routes")]
        options = self.options
        return (HttpServer(served, options.host, options.port, hosts=options.hosts),) if served else ()

    @property
    def urls(self) -> list[str]:
        """Where its web servers can be reached from this machine."""
        return [url for host in self.hosts if (url := getattr(host, "url", None)) is not None]

    async def start(self) -> None:
        """Open the mailbox, take up what was left there, and begin to receive.

        If it is stopped before or meanwhile, it does not.

        Raises:
            ChannelError: a channel can never work as it is set up.
            StoreError: the mailbox cannot be used.
            WebError: a web server cannot be started, or the gateway was started before.
        """
        await self._starting.go(self._begin, lambda: self.stop(grace=0))

    async def _begin(self) -> None:
        await self._mailbox.open()
        self._take_up(await self._mailbox.poll(self.channels))
        await self._tell_what_is_left_over()
        for name, channel in self.channels.items():
            await channel.start(partial(self._arrival.deliver, name))
            self._started.append(channel)
        for host in self.hosts:
            await host.start()
            self._started.append(host)
        self._looking = asyncio.create_task(self._look_around())

    async def add(self, channel: Channel, access: Access | None = None) -> None:
        """Have one more channel, while it runs; what waits for it in the mailbox is taken up.

        Args:
            channel: the channel.
            access: who may talk there; everybody if left out.

        Raises:
            ConfigError: there is one of that name.
            ChannelError: it cannot work as it is set up, or the gateway does not run.
            StoreError: the mailbox cannot be used.
        """
        async with self._changing:
            name = channel.name
            if name in self.channels:
                raise ConfigError(f"two channels are called {name!r}: give one of them another name")
            if self._stopping or self._looking is None:
                raise ChannelError(f"the channel {name!r} is not added: the gateway does not run")
            host = self._host_of(channel)
            if host is None and hasattr(channel, "routes"):
                log.warning("the gateway has no web server, which the channel %s needs: start the gateway anew", name)
            if access is not None:
                self._access[name] = access
            self.channels[name] = channel  # before it is started: what it delivers then is taken up
            try:
                await channel.start(partial(self._arrival.deliver, name))
                self._started.append(channel)
                if host is not None:
                    host.add(channel)
                self._take_up(await self._mailbox.poll(self.channels))
            except BaseException:
                await self._take_out(name)
                raise
            self._removed.pop(name, None)

    async def remove(self, name: str, why: str = "switched off") -> None:
        """Have a channel no longer: it is stopped, and what is not answered or not sent there stays in the mailbox.

        Args:
            name: of the channel.
            why: what :meth:`status` says about it.

        Raises:
            ConfigError: there is no such channel.
            StoreError: the mailbox cannot be used.
        """
        async with self._changing:
            if name not in self.channels:
                raise ConfigError(f"there is no channel {name!r}.{did_you_mean(name, self.channels)}")
            if not self._stopping:
                self._removed[name] = Health(False, why)
                await self._take_out(name)

    async def _take_out(self, name: str) -> None:
        channel = self.channels.pop(name)
        for part in (self._reception.lanes, self._answering, self._postman):
            await part.let_go(self._keys_of(name), CLEAN_UP)
        host = self._host_of(channel)
        if channel in self._started:
            self._started.remove(channel)
            await _stopped(channel)
        if host is not None:
            host.remove(channel)
        await self._mailbox.release_channel(name)
        self._access.pop(name, None)
        for key in self._conversations.keys:
            if address_of(key).channel == name:
                self._conversations.forget(key)

    def _keys_of(self, name: str) -> list[str]:
        return [key for lanes in self._lanes for key in lanes.keys if address_of(key).channel == name]

    def _host_of(self, channel: Channel) -> Any:
        """The web server for a channel; ``None`` if it needs none, or there is none."""
        needed = hasattr(channel, "routes")
        return next((host for host in self.hosts if needed and hasattr(host, "add")), None)

    async def _tell_what_is_left_over(self) -> None:
        for channel, (letters, parcels) in (await self._mailbox.unclaimed(self.channels)).items():
            kinds = [(letters, "message", "messages"), (parcels, "reply", "replies")]
            what = " and ".join(f"{count} {one if count == 1 else more}" for count, one, more in kinds if count)
            log.warning(
                "there is no channel %r now, but %s of it: kept, until there is one of that name again", channel, what
            )

    async def stop(self, *, grace: float | None = None) -> None:
        """Stop: what is running gets ``grace`` seconds; what is not answered then stays in the mailbox.

        Where it is being stopped already, ``grace=0`` ends the wait.
        """
        grace = self.options.grace if grace is None else grace
        if grace <= 0:
            self._hurry.set()
        if self._stopping:
            await self._over.wait()
            return
        self._stopping = True
        try:
            await self._wind_up(grace)
        finally:  # also if who stops it does not wait for the end: others must not wait for ever
            self._over.set()

    async def _wind_up(self, grace: float) -> None:
        await self._starting.break_off()
        self._reception.lanes.pause()
        self._answering.wind_down()
        await self._within(grace, _settled(self._reception.lanes, self._answering.lanes))
        with suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_UP):
                await self._answering.close()
        await self._within(max(grace, SEND_GRACE), self._postman.lanes.settled())
        for lanes in self._lanes:
            await lanes.stop()
        await self._approving.close()
        for part in reversed(self._started):
            await _stopped(part)
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        try:
            self._left = await self._mailbox.close()
        except StoreError as error:
            log.error("%s", error_text(error))

    async def _within(self, seconds: float, wait: Coroutine[Any, Any, None]) -> None:
        """Wait so long at most, and not at all when there is no time."""
        tasks = [asyncio.ensure_future(wait), asyncio.ensure_future(self._hurry.wait())]
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def serve(self) -> None:
        """Start, and go on until it is stopped, or until all channels have ended and all is answered."""
        await self.start()
        await self.wait()

    async def wait(self) -> None:
        """Go on as :meth:`serve` does, once it was started. Cancelling this stops it."""
        try:
            await self._over.wait()
        finally:
            await self.stop()

    async def settled(self) -> None:
        """Wait until all that came in is answered, and all answers have left."""
        await _settled(*self._lanes)

    def status(self) -> Status:
        """What it is doing."""
        tally = self._tally
        return Status(
            {name: _health(channel) for name, channel in self.channels.items()} | self._removed,
            len(self._conversations.keys), self._answering.lanes.running,
            self._left or self._answering.lanes.waiting + self._reception.lanes.waiting,
            self._postman.lanes.waiting + self._postman.lanes.running,
            tally.received, tally.duplicates, tally.refused, tally.sent, tally.retried, tally.failed,
        )  # fmt: skip

    def _take_up(self, found: PendingItems) -> None:
        if self._stopping:
            return  # the next program finds it in the mailbox
        for letter in found.inbox:
            if letter.channel in self.channels:
                self._reception.lanes.put(letter.key, letter)
        self._postman.take(found.outbox)

    async def _look_around(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                self._take_up(await self._mailbox.poll(self.channels))
                await self._let_go(self._idle())
                if not self._stopping and self._has_ended():
                    self._ending = asyncio.create_task(self.stop())
            except StoreError as error:
                log.error("%s", error_text(error))
            except Exception:
                log.exception("while looking for what others left")

    async def _let_go(self, keys: Iterable[str]) -> None:
        """Others may take part in the conversations in which nothing happens."""
        for key in await self._mailbox.release(keys):
            if not self._is_busy(key):
                self._conversations.forget(key)

    def _idle(self) -> list[str]:
        return [key for key in self._conversations.keys if not self._is_busy(key)]

    def _is_busy(self, key: str) -> bool:
        return any(key in lanes for lanes in self._lanes)

    def _has_ended(self) -> bool:
        channels: list[Any] = list(self.channels.values())
        if self._removed or not all(getattr(channel, "ended", False) for channel in channels):
            return False
        return not any(lanes.count for lanes in self._lanes)


async def _settled(*lanes: Lanes[Any]) -> None:
    for each in lanes:
        await each.settled()


async def _stopped(part: Host | Channel) -> None:
    """Stop something, whatever it does: the others go on."""
    name = getattr(part, "name", part)
    try:
        await with_timeout(STOP_SECONDS, part.stop())
    except StillRunningError:
        log.error("%s did not stop in %g s, and is left alone", name, STOP_SECONDS)
    except Exception as error:  # noqa: BLE001 - it is left alone then
        log.error("%s did not stop: %s", name, describe(error))


def _health(channel: Channel) -> Health:
    """How a channel is, whatever it says."""
    try:
        found: Any = channel.health()
    except Exception as error:  # noqa: BLE001 - that it cannot tell is how it is
        return Health(False, describe(error))
    return found if isinstance(found, Health) else Health(False, f"its health is {found!r:.60}, which is no Health")
