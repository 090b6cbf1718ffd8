"""The interface of channels and of the agents behind a gateway. Both are protocols: no inheritance is needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from .._base.frozen import Frozen
from .._kernel.errors import HooklineError
from .._web.chat.protocol import Speaker
from ..stores.messages import InboundMessage, OutboundMessage

Deliver = Callable[[InboundMessage], Awaitable[bool]]
"""Passes a received message to the gateway.

It returns once the message is stored, so that the channel can acknowledge it to the platform. It returns false if the
gateway already has the message. Every message needs a ``message_id`` that stays the same on redelivery.
"""


class Address(Frozen, frozen=True):
    """Identifies a conversation. ``channel`` is the name of the channel, ``bot`` our own account on the platform."""

    channel: str
    chat_id: str
    thread_id: str = ""
    bot: str = ""


class Capabilities(Frozen, frozen=True):
    """Features and limits of a platform.

    Longer texts than ``max_length`` are split; ``length`` measures a text as the platform does (by default in
    characters). ``edit`` and ``typing`` say that the channel has these methods. ``idempotent`` says that people see
    only one message if the same key is sent twice. ``buttons`` says that people decide about calls with buttons, so
    that requests do not have to explain the commands; ``cards`` says that the channel also shows until when people can
    decide and what became of the call, so that requests contain only the call. ``threads`` says that ``thread_id`` is a
    thread below one message: replies in a thread that the agent has a conversation in need no mention.
    """

    max_length: int | None = None
    length: Callable[[str], int] = len
    edit: bool = False
    typing: bool = False
    idempotent: bool = False
    buttons: bool = False
    cards: bool = False
    threads: bool = False


class Health(Frozen, frozen=True):
    """Whether a channel works at the moment, with an explanation for people."""

    ok: bool
    detail: str = ""


class ChannelError(HooklineError):
    """A message could not be sent. The gateway tries again, after ``retry_after`` seconds if given."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UndeliverableError(ChannelError):
    """A message can never be delivered: the chat no longer exists, or the platform rejects the message."""


class ApprovalPrompt(Frozen, frozen=True):
    """A call that people in a conversation can approve or deny, with ``/approve CODE`` or ``/deny CODE``.

    ``key`` is the key of the last message that shows the call. ``digest`` is the digest of the call: a channel with
    buttons returns it in ``InboundMessage.digest``, so that a button approves exactly the call above it. ``expires`` is
    the Unix time until which people can decide. ``arguments`` is JSON in which every character is visible, and
    ``questions`` are what hooks ask. A call that several people must approve (``needed`` says so) is not ``single``: it
    can be approved once, and not edited.
    """

    code: str
    key: str
    digest: str = ""
    expires: float = 0.0
    agent: str = ""
    tool: str = ""
    arguments: str = ""
    questions: tuple[str, ...] = ()
    needed: str = ""
    single: bool = True


class ApprovalOutcome(Frozen, frozen=True):
    """The end of a call that waited for approval, as a sentence. ``key`` is the key of the last message that shows it.

    ``by`` names who decided, such as ``slack:U123``; it is empty if nobody did.
    """

    key: str
    text: str
    by: str = ""


class StepVerdict(Frozen, frozen=True):
    """What a hook decided about a call, such as ``block``; or a decision of a person, such as ``denied``."""

    verb: str
    hook: str = ""
    reason: str = ""


class Step(Frozen, frozen=True):
    """A tool call of a run, for people.

    ``text`` is what the tool says that it does. ``state`` is ``waiting`` (for approval), ``running``, ``ok``,
    ``error``, ``blocked``, ``answered`` (by a hook) or ``cancelled``.
    """

    id: str
    tool: str
    text: str = ""
    state: str = "running"
    verdicts: tuple[StepVerdict, ...] = ()


class Draft(Frozen, frozen=True):
    """A reply that is being written: ``text`` is all of it so far."""

    reply_to: str
    speaker: str = ""
    text: str = ""


class Opening(Frozen, frozen=True):
    """Settings that a channel can show before a conversation begins.

    ``about`` says in one line who answers, ``suggestions`` are what people could write first, and ``speakers`` the
    personalities that ``/personality ID`` switches to; the first of them begins.
    """

    about: str = ""
    suggestions: tuple[str, ...] = ()
    speakers: tuple[Speaker, ...] = ()


@runtime_checkable
class Channel(Protocol):
    """Connects the gateway to one platform.

    A channel may have these further members:

    - ``async edit(address, message_id, message)`` and ``async typing(address)``, if its capabilities say so.
    - ``activity_changed(address, message_id, waiting)``: called when a conversation starts or finishes work.
      ``message_id`` is the message that is being answered (or ``""``), ``waiting`` the number of waiting messages.
    - ``async show_steps(address, key, reply_to, speaker, steps)``: called with every :class:`Step` of a run when they
      change, instead of a message about its progress. ``key`` stays the same for the run.
    - ``draft_changed(address, draft)``: called with the :class:`Draft` of a reply while it is written, unless a hook
      must judge the reply before people see it.
    - ``approvals_changed(address, prompts)``: called with all :class:`ApprovalPrompt` of a conversation when they
      change.
    - ``approval_closed(address, outcome)``: called with an :class:`ApprovalOutcome` when a call that was shown no
      longer waits, to show the outcome where the call is shown.
    - ``async read_file(file, max_size)``: return the content of an :class:`InboundFile` of a received message. It
      raises :class:`AttachmentError` if the file has more than ``max_size`` bytes.
    - ``introduce(opening)``: called before ``start``. ``opening()`` returns the present :class:`Opening`.
    - ``clean_stored(clean)``: called before ``start``, if the channel stores messages itself. ``clean`` returns a text
      without what hooks of the agent replace in everything that is stored.
    - ``routes()``: Starlette routes. The gateway serves the routes of all channels on one port.
    - ``ended``: true once no more messages can arrive. A gateway stops when all of its channels have ended.

    A minimal channel that prints replies::

        class Printer:
            name = "printer"
            capabilities = Capabilities()

            async def start(self, deliver: Deliver) -> None:
                await deliver(InboundMessage("Hello", chat_id="1", sender="me", message_id="1"))

            async def stop(self) -> None: ...

            async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
                print(message.text)
                return key

            def health(self) -> Health:
                return Health(True)
    """

    name: str
    capabilities: Capabilities

    async def start(self, deliver: Deliver) -> None:
        """Start to receive messages in the background, and reconnect after a lost connection.

        Raises:
            ChannelError: the channel can never work with its settings.
        """
        ...

    async def stop(self) -> None:
        """Stop receiving, after messages that are being delivered. Sending must work until this returns."""
        ...

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Send a message and return the platform's id for it. ``key`` stays the same when the send is repeated.

        Raises:
            ChannelError: the message cannot be sent at the moment.
            UndeliverableError: the message can never be sent.
        """
        ...

    def health(self) -> Health:
        """Report the current state, without waiting."""
        ...


class Answerer(Protocol):
    """Answers the messages of a gateway: an ``Agent``, or a roster of personalities.

    An answerer may have these further members:

    - ``hooks_for(session)`` and ``plugins_for(session)``: the hooks of a conversation, and the plugins that take part
      in it (``None`` for all). Without them, ``hooks`` and ``allowed_plugins`` apply.
    - ``agent_for(session)``: the agent that answers there. Its ``max_attachment`` and its ``model`` decide which files
      of messages are read.
    - ``speaker_for(session)``: the display name of the agent that answers there, or ``""``.
    - ``commands``: maps the names of slash commands to :class:`Command`.
    - ``follow_up(session, result)``: the task of another run that follows immediately (after a handoff), or ``None``.
    """

    @property
    def hooks(self) -> Any:
        """Hooks for the points outside of a run."""
        ...

    @property
    def start(self) -> Callable[..., Any]:
        """Start a run, like ``Agent.start``."""
        ...


class Command(Frozen, frozen=True):
    """A slash command: ``call(session, argument)`` returns the reply.

    ``read_only`` says that the command changes nothing if it has no argument, so that it does not have to wait for the
    current run.
    """

    help: str
    call: Callable[[Any, str], Awaitable[str]]
    read_only: bool = False
