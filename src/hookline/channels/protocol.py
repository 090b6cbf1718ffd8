"""What a channel is: the way to and from one platform. No inheritance is needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from .._base.frozen import Frozen
from .._kernel.errors import HooklineError
from ..stores.messages import InboundMessage, OutboundMessage

Deliver = Callable[[InboundMessage], Awaitable[bool]]
"""Hands a message to the gateway.

It returns once the message is stored: then the platform may be told that it arrived. False: it was known already.
Every message needs a ``message_id`` that is the same when the platform delivers it again.
"""


class Address(Frozen, frozen=True):
    """Where a conversation takes place. ``channel`` is the name of the channel, ``bot`` who we are there."""

    channel: str
    chat_id: str
    thread_id: str = ""
    bot: str = ""


class Capabilities(Frozen, frozen=True):
    """What a platform can do.

    ``max_length`` counts as the platform does: by ``length``, characters if left out. ``idempotent``: of two sends
    with the same key, people see one.
    """

    max_length: int | None = None
    length: Callable[[str], int] = len
    edit: bool = False
    typing: bool = False
    idempotent: bool = False


class Health(Frozen, frozen=True):
    """Whether a channel works now, and if not, why, in words for people."""

    ok: bool
    detail: str = ""


class ChannelError(HooklineError):
    """A message could not be sent; the gateway tries again, after ``retry_after`` seconds if that is given."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UndeliverableError(ChannelError):
    """A message will never arrive, however often it is sent: the chat is gone, or the platform refuses it."""


@runtime_checkable
class Channel(Protocol):
    """The way to and from one platform.

    A channel may also have ``async edit(address, message_id, message)`` and ``async typing(address)``, if its
    capabilities say so; ``at_work(address, message_id, waiting)``, which is told whenever that changes in a
    conversation: which message is being answered (none: ``""``), and how many wait;
    ``asked(address, questions)``, which is told all the :class:`Asked` of a conversation whenever they change;
    ``routes()``: Starlette routes, which the gateway serves, all channels' on one port; and ``ended``, true once
    nothing more can come: a gateway all of whose channels have ended stops.
    """

    name: str
    capabilities: Capabilities

    async def start(self, deliver: Deliver) -> None:
        """Begin to receive, and keep at it: a lost connection is made again. It returns as soon as that is under way.

        Raises:
            ChannelError: it can never work as it is set up.
        """
        ...

    async def stop(self) -> None:
        """Stop receiving; what is being delivered is delivered first. Sending still works until this returns."""
        ...

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Send, and give the platform's id of the message; ``key`` is the same when it is sent again.

        Raises:
            ChannelError: not now; ``UndeliverableError``: never.
        """
        ...

    def health(self) -> Health:
        """How it is now. It does not wait."""
        ...


class Asked(Frozen, frozen=True):
    """A call that waits for approval, about which people in the conversation may decide.

    They do so with ``/approve CODE`` or ``/deny CODE``. ``key`` is that of the last message which shows it.
    """

    code: str
    key: str


class Answerer(Protocol):
    """Who answers what comes in: an ``Agent``, or a roster of personalities.

    It may also have ``hooks_for(session)``, the hooks that are asked in a conversation, and ``plugins_for(session)``,
    the plugins whose hooks take part in it (``None`` for all): else ``hooks`` and ``allowed_plugins`` count. Further
    ``speaker_for(session)``, who speaks there, as people are shown it (``""`` if there is nobody else it could be);
    ``commands``, a mapping of a word after the slash to a :class:`Command`; and ``follow_up(session, result)``, the
    task of a further run that is to follow this one at once (after a handoff), or ``None``.
    """

    @property
    def hooks(self) -> Any:
        """The hooks that are asked at the points outside of a run."""
        ...

    @property
    def start(self) -> Callable[..., Any]:
        """Starts a run, as ``Agent.start`` does."""
        ...


class Command(Frozen, frozen=True):
    """A slash command of a conversation: ``call(session, argument)`` gives the answer.

    ``looks``: without an argument it changes nothing, so that it need not wait for what is running.
    """

    help: str
    call: Callable[[Any, str], Awaitable[str]]
    looks: bool = False
