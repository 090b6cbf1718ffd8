"""The gateway: receives messages from channels, lets an agent answer them in order, and never loses one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from .._base.frozen import EMPTY
from .._base.lifecycle import Lifecycle, stop_component
from .._base.tasks import wait_at_most, wake_from_thread
from .._base.text import describe, did_you_mean, error_text
from .._run.context import AgentContext
from .._run.deps import need_of_deps
from .._run.run_hooks import clean_for
from .._run.session import Session
from .._web.http_server import HttpServer
from ..config.errors import ConfigError
from ..stores.approvals import ApprovalStore
from ..stores.callers import DepsFactory
from ..stores.errors import StoreError
from ..stores.mailbox import Mailbox
from ..stores.runs import RunStore
from ..stores.sessions import SessionStore
from .access import Access
from .approvals import Approvals
from .conversations import Conversations, address_of, opening_of
from .durable import Journals
from .inbox import Inbox
from .options import GatewayOptions
from .outbox import Counters, Outbox
from .protocol import Answerer, Channel, ChannelError, Health
from .runner import Runner

log = logging.getLogger("hookline")

SEND_GRACE = 5.0
"""Minimum time in seconds to send the remaining replies when the gateway stops."""

CANCEL_GRACE = 6.0
"""Seconds for cancelled runs to finish. Their hooks get five of them."""

STOP_SECONDS = 15.0
"""Seconds for a channel to stop. Then it is abandoned."""


class Server(Protocol):
    """A server that starts after the channels and stops before them, such as a web server."""

    async def start(self) -> None:
        """Start to serve."""
        ...

    async def stop(self) -> None:
        """Stop serving."""
        ...


class Status(msgspec.Struct, frozen=True):
    """The state of a gateway: the health of its channels, and counts since it started.

    After the gateway has stopped, ``waiting`` is the number of messages that the next start will answer.
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
    """Connect channels to an agent.

    A message is stored before its channel acknowledges it, and a reply is stored before it is sent. So a message is
    answered even if the process ends in between: by the next process, or by another one that uses the same mailbox.

    Example::

        channel = MemoryChannel()
        gateway = Gateway(agent, [channel], mailbox=Mailbox("gateway.db"), sessions=SessionStore("sessions"))
        await gateway.start()
        await channel.say("Hello")
        print(await channel.replies(1))
        await gateway.stop()

    Args:
        answerer: an agent, or a roster of personalities.
        channels: the channels, each with its own name.
        mailbox: stores messages.
        sessions: stores conversations.
        options: settings of the gateway.
        access: the access rules by channel name. Channels without rules accept everyone.
        context: creates the context of a run, for its limits.
        metadata: added to ``ctx.state.metadata`` of every run, beside the origin of the message.
        servers: started with the channels. By default one web server at ``options.host`` and ``options.port``, if a
            channel has routes.
        approvals: stores calls that wait for approval. Senders whom ``access`` permits decide about them in their
            conversation; operators decide elsewhere. Without a store, such calls are denied unless a hook decides.
        durable: stores journals of the runs. Then a run survives the end of its process: this gateway continues it
            after a restart, or another one that shares the mailbox and the other stores. Its agent needs the same
            hooks, instructions and tools. A run that waits for approval is suspended until somebody decides.
        deps: ``deps(caller)`` returns the ``ctx.deps`` of a run. The id of the caller is that of the channel and the
            sender, such as ``telegram:12345``, and its metadata is that of the run. It may be a coroutine function; a
            plain function runs in a thread. A durable run that goes on creates its ``deps`` anew.

    Raises:
        ConfigError: there is no channel, two channels have the same name, one is called ``user``, durable runs have no
            store, or the agent needs ``deps``, which nothing creates.
    """

    def __init__(
        self,
        answerer: Answerer,
        channels: Sequence[Channel],
        *,
        mailbox: Mailbox,
        sessions: SessionStore,
        options: GatewayOptions | None = None,
        access: Mapping[str, Access] | None = None,
        context: Callable[[Session], AgentContext] | None = None,
        metadata: Mapping[str, Any] = EMPTY,
        servers: Sequence[Server] | None = None,
        approvals: ApprovalStore | None = None,
        durable: RunStore | None = None,
        deps: DepsFactory | None = None,
    ) -> None:
        self.channels: dict[str, Channel] = {}
        for channel in channels:
            self._check_name(channel.name)
            self.channels[channel.name] = channel
        if not self.channels:
            raise ConfigError("a gateway needs at least one channel")
        self.options = options = options or GatewayOptions()
        if deps is not None and not callable(deps):
            raise ConfigError(f"deps= must be a function of a caller, not {deps!r:.80}")
        if deps is None and context is None and (problem := need_of_deps(answerer)):
            raise ConfigError(
                f"{problem}: Gateway(..., deps=lambda caller: ...) creates them for the sender of a message"
            )
        if options.durable and durable is None:
            raise ConfigError("durable runs need a store: Gateway(..., durable=RunStore('runs.db'))")
        self._access = dict(access or {})
        for name in self._access:
            if name not in self.channels:
                raise ConfigError(f"access: there is no channel {name!r}.{did_you_mean(name, self.channels)}")
        self._answerer = answerer
        self._mailbox = mailbox
        self.servers: tuple[Server, ...] = self._web_server() if servers is None else tuple(servers)
        self._counters = Counters()
        self._conversations = Conversations(answerer, mailbox, sessions)
        self._outbox = Outbox(mailbox, self._conversations, self.channels, options, self._counters)
        self._journals = None if durable is None else Journals(durable, answerer, options.keep_days)
        sessions_of = None if durable is None else self._conversations
        self._approvals = Approvals(approvals, self._outbox, self.channels, self._access, options, sessions_of)
        self._runner = Runner(
            answerer,
            self._conversations,
            mailbox,
            self._outbox,
            self._approvals,
            self.channels,
            options,
            context,
            metadata,
            self._journals,
            deps,
        )
        self._inbox = Inbox(
            answerer,
            self.channels,
            self._access,
            mailbox,
            self._conversations,
            self._outbox,
            self._runner,
            self._approvals,
            options,
            self._counters,
        )
        self._queues = (self._inbox.queues, self._runner.queues, self._outbox.queues)
        self._lifecycle = Lifecycle(self._start, self._stop, grace=options.grace)
        self._started: list[Server | Channel] = []
        self._removed: dict[str, Health] = {}
        self._changing = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._unanswered = 0

    def _check_name(self, name: str) -> None:
        if name == "user":
            raise ConfigError(
                "a channel cannot be called 'user', because its senders would have the ids of people behind a proxy "
                "(user:NAME) in approval policies: choose another name"
            )
        if name in self.channels:
            raise ConfigError(f"two channels are called {name!r}: give one of them another name")

    def _web_server(self) -> tuple[Server, ...]:
        served: list[Any] = [channel for channel in self.channels.values() if hasattr(channel, "routes")]
        options = self.options
        return (HttpServer(served, options.host, options.port, hosts=options.hosts),) if served else ()

    @property
    def urls(self) -> list[str]:
        """URLs of the web servers, as seen from this machine."""
        return [url for server in self.servers if (url := getattr(server, "url", None)) is not None]

    async def start(self) -> None:
        """Open the mailbox, resume unfinished messages, and start to receive. Does nothing after :meth:`stop`.

        Raises:
            ChannelError: a channel can never work with its settings.
            StoreError: the mailbox cannot be used.
            WebError: a web server cannot be started.
            RuntimeError: the gateway was started before.
        """
        await self._lifecycle.start()

    async def _start(self) -> None:
        await self._mailbox.open()
        if self._journals is not None:
            await self._journals.open()
        if self._approvals.store is not None:
            self._approvals.store.clean = partial(clean_for, self._answerer)
        self._inbox.enqueue(await self._mailbox.poll(self.channels))
        await self._warn_about_missing_channels()
        for channel in self.channels.values():
            await self._start_channel(channel)
        for server in self.servers:
            await server.start()
            self._started.append(server)
        self._polling = asyncio.create_task(self._poll())

    async def _start_channel(self, channel: Channel) -> None:
        if (clean_stored := getattr(channel, "clean_stored", None)) is not None:
            clean_stored(partial(clean_for, self._answerer))
        if (introduce := getattr(channel, "introduce", None)) is not None:
            introduce(partial(opening_of, self._answerer))
        await channel.start(partial(self._inbox.deliver, channel.name))
        self._started.append(channel)

    async def _warn_about_missing_channels(self) -> None:
        for channel, (messages, replies) in (await self._mailbox.unclaimed(self.channels)).items():
            kinds = [(messages, "message", "messages"), (replies, "reply", "replies")]
            items = " and ".join(f"{count} {one if count == 1 else more}" for count, one, more in kinds if count)
            log.warning(
                "the mailbox has %s of the channel %r, which is not configured: kept for a channel of that name",
                items,
                channel,
            )

    async def stop(self, *, grace: float | None = None) -> None:
        """Stop the gateway. Messages that are not answered by then stay in the mailbox.

        Args:
            grace: how many seconds active runs may take to finish; ``options.grace`` if left out. Zero also ends the
                grace period of a stop in progress.
        """
        await self._lifecycle.stop(grace)

    async def _stop(self, grace: float) -> None:
        wait_within_grace = self._lifecycle.wait_within_grace
        self._inbox.close()
        self._runner.wind_down()
        await wait_within_grace(grace, self._wait_until_answered())
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_GRACE):
                await self._runner.close()
        await wait_within_grace(max(grace, SEND_GRACE), self._outbox.queues.wait_until_idle())
        for queues in self._queues:
            await queues.stop()
        await self._approvals.close()
        for part in reversed(self._started):
            await _stop_part(part)
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        if self._journals is not None:
            await self._journals.close()
        try:
            self._unanswered = await self._mailbox.close()
        except StoreError as error:
            log.error("%s", error_text(error))

    async def serve(self) -> None:
        """Start and run until the gateway is stopped, or all channels have ended and all messages are answered."""
        await self.start()
        await self.wait()

    async def wait(self) -> None:
        """Wait until a started gateway has stopped. Cancelling this call stops it."""
        await self._lifecycle.wait()

    async def wait_until_idle(self) -> None:
        """Wait until all received messages are answered and all replies are sent."""
        await self._wait_until_answered()
        await self._outbox.queues.wait_until_idle()

    async def _wait_until_answered(self) -> None:
        await self._inbox.queues.wait_until_idle()
        await self._runner.queues.wait_until_idle()

    async def add(self, channel: Channel, access: Access | None = None) -> None:
        """Add a channel to the running gateway and resume its unfinished messages.

        Args:
            channel: the channel.
            access: its access rules; everyone may talk if left out.

        Raises:
            ConfigError: the gateway has a channel of that name.
            ChannelError: the channel cannot work with its settings, or the gateway is not running.
            StoreError: the mailbox cannot be used.
        """
        async with self._changing:
            name = channel.name
            self._check_name(name)
            if self._lifecycle.is_stopping or self._polling is None:
                raise ChannelError(f"the channel {name!r} cannot be added: the gateway is not running")
            server = self._server_for(channel)
            if server is None and hasattr(channel, "routes"):
                log.warning("the channel %s needs a web server, which this gateway does not have: restart it", name)
            if access is not None:
                self._access[name] = access
            self.channels[name] = channel  # before its start, so that the messages it delivers are processed
            try:
                await self._start_channel(channel)
                if server is not None:
                    server.add(channel)
                self._inbox.enqueue(await self._mailbox.poll(self.channels))
            except BaseException:
                await self._remove(name)
                raise
            self._removed.pop(name, None)

    async def remove(self, name: str, reason: str = "switched off") -> None:
        """Stop and remove a channel. Its unanswered messages and unsent replies stay in the mailbox.

        Args:
            name: the name of the channel.
            reason: shown as the health of the channel in :meth:`status`.

        Raises:
            ConfigError: there is no such channel.
            StoreError: the mailbox cannot be used.
        """
        async with self._changing:
            if name not in self.channels:
                raise ConfigError(f"there is no channel {name!r}.{did_you_mean(name, self.channels)}")
            if not self._lifecycle.is_stopping:
                self._removed[name] = Health(False, reason)
                await self._remove(name)

    async def _remove(self, name: str) -> None:
        channel = self.channels.pop(name)
        for part in (self._inbox.queues, self._runner, self._outbox):
            keys = [key for queues in self._queues for key in queues.keys if address_of(key).channel == name]
            await part.cancel(keys, CANCEL_GRACE)
        server = self._server_for(channel)
        if channel in self._started:
            self._started.remove(channel)
            await _stop_part(channel)
        if server is not None:
            server.remove(channel)
        await self._mailbox.release_channel(name)
        self._access.pop(name, None)
        for key in self._conversations.keys:
            if address_of(key).channel == name:
                self._conversations.forget(key)

    def _server_for(self, channel: Channel) -> Any:
        """Return the web server for a channel; ``None`` if the channel needs none or there is none."""
        if not hasattr(channel, "routes"):
            return None
        return next((server for server in self.servers if hasattr(server, "add")), None)

    def status(self) -> Status:
        """Return the current state."""
        counters = self._counters
        outbox = self._outbox.queues
        return Status(
            channels={name: _health(channel) for name, channel in self.channels.items()} | self._removed,
            conversations=len(self._conversations.keys),
            running=self._runner.queues.running,
            waiting=self._unanswered or self._runner.queues.waiting + self._inbox.queues.waiting,
            unsent=outbox.waiting + outbox.running,
            received=counters.received,
            duplicates=counters.duplicates,
            refused=counters.refused,
            sent=counters.sent,
            retried=counters.retried,
            failed=counters.failed,
        )

    async def _poll(self) -> None:
        """Renew the lease, take over items of other processes, and release idle conversations, periodically."""
        left, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._mailbox.watch(partial(wake_from_thread, loop, left)):
            while True:
                await wait_at_most(left, self._mailbox.poll_seconds)
                left.clear()
                try:
                    self._inbox.enqueue(await self._mailbox.poll(self.channels))
                    await self._release_idle()
                    if self._journals is not None:
                        await self._journals.prune()
                    if not self._lifecycle.is_stopping and self._has_ended():
                        self._ending = asyncio.create_task(self.stop())
                except StoreError as error:
                    log.error("%s", error_text(error))
                except Exception:
                    log.exception("polling the mailbox failed")

    async def _release_idle(self) -> None:
        """Give idle conversations back to the mailbox, so that other processes can take them."""
        for key in await self._mailbox.release(self._idle_conversations()):
            if not self._is_busy(key):
                self._conversations.forget(key)

    def _idle_conversations(self) -> list[str]:
        return [key for key in self._conversations.keys if not self._is_busy(key)]

    def _is_busy(self, key: str) -> bool:
        return any(key in queues for queues in self._queues)

    def _has_ended(self) -> bool:
        channels: list[Any] = list(self.channels.values())
        if self._removed or not all(getattr(channel, "ended", False) for channel in channels):
            return False
        return not any(len(queues) for queues in self._queues)


async def _stop_part(part: Server | Channel) -> None:
    await stop_component(str(getattr(part, "name", part)), part.stop, timeout=STOP_SECONDS)


def _health(channel: Channel) -> Health:
    """Return the health of a channel, even if its ``health`` is broken."""
    try:
        health: Any = channel.health()
    except Exception as error:  # noqa: BLE001 - a broken health check means an unhealthy channel
        return Health(False, describe(error))
    return health if isinstance(health, Health) else Health(False, f"health() returned {health!r:.60}, not a Health")
