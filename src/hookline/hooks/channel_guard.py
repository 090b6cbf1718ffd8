"""ChannelGuard: who may write to an agent, how often and what, loops between bots, and secrets in replies.

The limits are counted here and not with a library, because libraries count requests, and a loop between bots is
recognised by its texts.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, ClassVar

import msgspec

from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelRequest
from .._kernel.points import BEFORE_LLM
from .._kernel.results import HookResult
from .._kernel.validation import check_bool, check_integer, check_names, check_positive
from .._kernel.values import Message
from .._net.egress import Egress, EgressError
from .._sensitive.redactor import Redactor
from ..stores.channel_points import BEFORE_DISPATCH, INBOUND_CLAIM, MESSAGE_RECEIVED, MESSAGE_SENDING, Inbound, Outbound
from ..stores.messages import InboundMessage
from ..tools.arguments import urls_in_text
from ._injection.control_tokens import neutralise
from ._support.words import WordList, WordPattern, normalize_text

log = logging.getLogger("hookline")

Senders = Iterable[str | Mapping[str, str]]
"""Globs of sender ids, or mappings with globs for ``channel``, ``sender`` and ``group``."""

MINUTE = 60.0

TOO_MANY = "You are sending messages faster than I may answer them. Please wait a minute."
TOO_MANY_HERE = "There are more messages here than I may answer. Please wait a minute."
TOO_LONG = "Your message was not read, because it has more than {limit:,} characters."
NO_ATTACHMENTS = "Your message was not read, because attachments are not accepted here."
NO_LINK = "Your message was not read, because it contains a link that is not accepted here."
NO_WORDS = "Your message was not read, because it contains something that is not accepted here."
WITHHELD = "This message was withheld, because it contains sensitive data ({kinds})."

_COMMAND = re.compile(r"/[^\W_]")
_BARE_LINK = re.compile(
    r"(?<![\w@.:/-])(?:www\.[\w.-]*\w|(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,63}(?::\d{1,5})?(?=/))", re.I
)
_MAX_TRACKED = 10_000
_MAX_RECENT = 8
_MAX_COMPARED = 200
_LONG = 20  # characters; people repeat shorter texts, such as "yes" and "next"


class ChannelGuard:
    """Checks the messages of channels: senders, rates, content, loops between bots, and secrets in replies.

    A message is claimed, so that the agent does not run, if its sender is not allowed, if there are too many messages,
    if its content is not accepted, or if the conversation is a loop between bots. The sender gets a notice about each
    message whose content is not accepted, and one about too many messages, until a quiet minute. Senders who are not
    allowed and bots get none.
    Control tokens in messages are disarmed before a model reads them. Everything that is sent to a channel (replies,
    notices, progress) is redacted.

    Example::

        ChannelGuard(deny=["spam*", {"channel": "telegram", "group": "*"}], per_sender=10, links=["example.com"])

    Args:
        allow: the senders who may write: globs of their ids, or mappings with globs for ``channel``, ``sender`` and
            ``group`` (the id of a group chat; such an entry matches no direct messages). ``None`` for everyone.
        deny: the senders who may not write, even if ``allow`` matches.
        channels: globs of the channels to which this guard applies.
        bots: further senders that are programs. Channels mark some of them themselves.
        per_sender: maximum number of messages of one sender in any 60 seconds; ``None`` for no limit. Commands are
            counted separately.
        per_conversation: maximum number of messages in one conversation in any 60 seconds; ``None`` for no limit.
        max_length: maximum number of characters in a message; ``None`` for no limit.
        links: the hosts to which links are accepted, such as ``"*.example.com"``; ``None`` for all.
        attachments: whether messages with attachments are accepted.
        blocklist: words, phrases and compiled expressions that are not accepted.
        loop_turns: the number of messages from programs in a row, without a person in between, that are answered
            within ``loop_window``; ``None`` for no limit. A message that repeats itself or echoes a reply counts too.
        loop_window: the time that a loop is remembered, in seconds.
        redact: the kinds of values to redact in everything that is sent, or a :class:`Redactor`. Empty for none.

    Raises:
        RegistrationError: an argument is invalid.
        NotInstalledError: a library for a kind of numbers is missing.
    """

    points = frozenset({MESSAGE_RECEIVED, INBOUND_CLAIM, MESSAGE_SENDING, BEFORE_DISPATCH, BEFORE_LLM})
    priority = 100
    on_failure: ClassVar[Mapping[str, str]] = {MESSAGE_RECEIVED: "closed"}

    def __init__(
        self,
        allow: Senders | None = None,
        deny: Senders = (),
        *,
        channels: Iterable[str] = ("*",),
        bots: Senders = (),
        per_sender: int | None = 20,
        per_conversation: int | None = 60,
        max_length: int | None = 20_000,
        links: Iterable[str] | None = None,
        attachments: bool = True,
        blocklist: Iterable[WordPattern] = (),
        loop_turns: int | None = 10,
        loop_window: float = 600.0,
        redact: Iterable[str] | Redactor = ("secret",),
    ) -> None:
        self._allow = None if allow is None else _senders(allow, "allow")
        self._deny, self._bots = _senders(deny, "deny"), _senders(bots, "bots")
        self.channels = check_names(channels, "channels")
        self._per_sender = _window(per_sender, "per_sender", MINUTE)
        self._per_conversation = _window(per_conversation, "per_conversation", MINUTE)
        self.max_length = None if max_length is None else check_integer(max_length, "max_length")
        self._links = None if links is None else Egress(check_names(links, "links", 0), schemes=("https", "http"))
        self.attachments = check_bool(attachments, "attachments")
        self._blocklist = WordList(blocklist, "blocklist")
        loop_window = check_positive(loop_window, "loop_window")
        self._bot_turns = _window(loop_turns, "loop_turns", loop_window)
        self._recent = _RecentTexts(loop_window)
        self._redactor = _redactor(redact)
        self._redacted: deque[int] = deque(maxlen=1000)  # hashes of the latest redacted texts
        self._lock = threading.Lock()

    def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
        """Count or judge a message, redact a reply, or clean a request to the model."""
        if point == BEFORE_LLM:
            channel = ctx.state.metadata.get("channel")
            return self._clean(ctx, payload) if isinstance(channel, str) and self._applies_to(channel) else None
        if not self._applies_to(payload.channel):
            return None
        now = ctx.clock.monotonic()
        with self._lock:
            if point == MESSAGE_RECEIVED:
                self._count(payload, now)
                return None
            if point == INBOUND_CLAIM:
                return self._judge(payload, now)
            return self._redact(payload) if point == MESSAGE_SENDING else self._check_sent(payload, now)

    def _applies_to(self, channel: str) -> bool:
        return any(fnmatchcase(channel, glob) for glob in self.channels)

    # Received messages. All of them are counted, also those that another hook claims first.

    def _count(self, inbound: Inbound, now: float) -> None:
        if not self._may_write(inbound):
            return
        message, conversation = inbound.message, _conversation_of(inbound)
        # A message that is processed again counts once. Platforms number the messages of each chat.
        id: Hashable = (message.chat_id, message.message_id) if message.message_id else object()
        if self._per_sender is not None:
            sender = _sender_of(inbound)
            self._per_sender.add(sender, id, now)
            if self._per_sender.is_above(sender, now):
                return  # the others in the conversation may go on
        if self._per_conversation is not None:
            self._per_conversation.add(conversation, id, now)
        if self._bot_turns is None or self._is_command_of_person(inbound):
            return
        if self._recent.looks_automatic(conversation, message, now) or self._is_bot(inbound):
            self._bot_turns.add(conversation, id, now)
        else:
            self._bot_turns.forget(conversation)

    def _judge(self, inbound: Inbound, now: float) -> HookResult | None:
        message, conversation = inbound.message, _conversation_of(inbound)
        if not self._may_write(inbound):
            return HookResult.claim(reason="the sender is not allowed")
        is_command = self._is_command_of_person(inbound)
        if not is_command and self._bot_turns is not None and self._bot_turns.is_above(conversation, now):
            if self._bot_turns.is_first_notice(conversation):
                log.warning(
                    "%s, chat %r: no more answers, because this looks like a loop between bots: more than %d messages "
                    "of programs without a person in between. A message of a person ends this",
                    inbound.channel,
                    message.chat_id[:80],
                    self._bot_turns.limit,
                )
            return HookResult.claim(reason="loop between bots")
        sender = _sender_of(inbound)
        if self._per_sender is not None and self._per_sender.is_above(sender, now):
            notice = TOO_MANY if self._per_sender.is_first_notice(sender) else ""
            return HookResult.claim(reply=notice, reason="too many messages of this sender")
        conversation_limit = None if is_command else self._per_conversation
        if conversation_limit is not None and conversation_limit.is_above(conversation, now):
            notice = TOO_MANY_HERE if conversation_limit.is_first_notice(conversation) else ""
            return HookResult.claim(reply=notice, reason="too many messages in this conversation")
        return self._judge_content(message)

    def _judge_content(self, message: InboundMessage) -> HookResult | None:
        if self.max_length is not None and len(message.text) > self.max_length:
            return HookResult.claim(reply=TOO_LONG.format(limit=self.max_length), reason="too long")
        if message.attachments and not self.attachments:
            return HookResult.claim(reply=NO_ATTACHMENTS, reason=f"attachment: {', '.join(message.attachments)}")
        if self._links is not None:
            for link in _links_in(message.text):
                try:
                    self._links.judge(link, bare=True)
                except EgressError as error:
                    return HookResult.claim(reply=NO_LINK, reason=f"link: {error}")
        blocked = self._blocklist.find(message.text)
        return None if blocked is None else HookResult.claim(reply=NO_WORDS, reason=f"blocklist: {blocked}")

    def _may_write(self, inbound: Inbound) -> bool:
        if any(entry.matches(inbound) for entry in self._deny):
            return False
        return self._allow is None or any(entry.matches(inbound) for entry in self._allow)

    def _is_command_of_person(self, inbound: Inbound) -> bool:
        """Whether a person wrote a command. Commands such as ``/stop`` must work in a loop and above a limit."""
        return _is_command(inbound.message) and not self._is_bot(inbound)

    def _is_bot(self, inbound: Inbound) -> bool:
        return inbound.message.automated or any(entry.matches(inbound) for entry in self._bots)

    # Messages to send.

    def _redact(self, outbound: Outbound) -> HookResult | None:
        text, kinds = outbound.message.text, frozenset[str]()
        if self._redactor is not None:
            text, kinds = self._redactor.clean(text)
            if refused := self._redactor.blocked(kinds):
                text = WITHHELD.format(kinds=", ".join(refused))
        if not kinds:
            return None
        self._redacted.append(hash(text))
        return HookResult.merge(
            message=outbound.message.replace(text=text), reason=f"found: {', '.join(sorted(kinds))}"
        )

    def _check_sent(self, outbound: Outbound, now: float) -> HookResult | None:
        """Suppress a message in which another hook of ``message_sending`` put sensitive values, and remember others."""
        text = outbound.message.text
        # A replacement may look like a value itself, so a text that was just redacted is not checked again.
        if self._redactor is not None and hash(text) not in self._redacted:
            cleaned, kinds = self._redactor.clean(text)
            if cleaned != text:
                found = ", ".join(sorted(kinds))
                log.error(
                    "%s, chat %r: a message is not sent, because another hook replaced its redacted text and it "
                    "contains sensitive data (%s): give that hook a priority below %d",
                    outbound.channel,
                    outbound.chat_id[:80],
                    found,
                    self.priority,
                )
                return HookResult.claim(reason=f"found: {found}")
        self._recent.add_sent(_conversation_of(outbound), text, now)
        return None

    # Requests to a model. The transcript keeps the text as it was written: the gateway compares it with the messages.

    def _clean(self, ctx: Any, request: ModelRequest) -> HookResult | None:
        known: dict[int, tuple[Message, Message]] = ctx.own_state(self, dict)
        messages = []
        for message in request.messages:
            if message.role != "user":
                messages.append(message)
                continue
            given, cleaned = known.get(id(message), (None, message))
            if given is not message:
                text = neutralise(message.content).text
                cleaned = message if text == message.content else msgspec.structs.replace(message, content=text)
                known[id(message)] = message, cleaned
            messages.append(cleaned)
        if all(new is old for new, old in zip(messages, request.messages, strict=True)):
            return None
        return HookResult.replace({"messages": tuple(messages)}, reason="control tokens")


class _SenderPattern(msgspec.Struct, frozen=True):
    """An entry of a list of senders. Without ``group``, it matches direct messages and all groups."""

    channel: str = "*"
    sender: str = "*"
    group: str | None = None

    def matches(self, inbound: Inbound) -> bool:
        message = inbound.message
        in_group = self.group is None or (not message.direct and fnmatchcase(message.chat_id, self.group))
        return in_group and fnmatchcase(inbound.channel, self.channel) and fnmatchcase(message.sender, self.sender)


class _Messages(msgspec.Struct):
    """The latest messages of a sender or in a conversation: times by id, oldest first."""

    times: dict[Hashable, float]
    latest: float
    noticed: bool = False


class _Window:
    """Counts messages by key, to decide whether there were more than ``limit`` in the last ``seconds``."""

    def __init__(self, limit: int, seconds: float) -> None:
        self.limit = limit
        self._seconds = seconds
        self._found: OrderedDict[Hashable, _Messages] = OrderedDict()  # by latest message, oldest first

    def add(self, key: Hashable, id: Hashable, now: float) -> None:
        found = self._found
        while found and next(iter(found.values())).latest <= now - self._seconds:
            found.popitem(last=False)
        messages = found.setdefault(key, _Messages({}, now))
        messages.latest = now
        found.move_to_end(key)
        messages.times.setdefault(id, now)
        if len(messages.times) > self.limit + 1:
            del messages.times[next(iter(messages.times))]
        if len(found) > _MAX_TRACKED:
            found.popitem(last=False)

    def is_above(self, key: Hashable, now: float) -> bool:
        messages = self._found.get(key)
        if messages is None or len(messages.times) <= self.limit:
            return False
        return next(iter(messages.times.values())) > now - self._seconds

    def is_first_notice(self, key: Hashable) -> bool:
        """Whether this is the first call for the key since its last quiet window."""
        messages = self._found[key]
        first, messages.noticed = not messages.noticed, True
        return first

    def forget(self, key: Hashable) -> None:
        self._found.pop(key, None)


class _Text(msgspec.Struct, frozen=True):
    """A text of a conversation: when it came, from whom, the id of its message, and its normalised start."""

    at: float
    sender: str
    id: str
    start: str

    @property
    def is_long(self) -> bool:
        return len(self.start) >= _LONG


class _RecentTexts:
    """The latest texts of each conversation, to recognise programs: they repeat their own texts, or our replies."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._received: OrderedDict[Hashable, deque[_Text]] = OrderedDict()
        self._sent: OrderedDict[Hashable, deque[_Text]] = OrderedDict()

    def add_sent(self, conversation: Hashable, text: str, now: float) -> None:
        self._latest(self._sent, conversation, now).append(_Text(now, "", "", normalize_text(text)[:_MAX_COMPARED]))

    def looks_automatic(self, conversation: Hashable, message: InboundMessage, now: float) -> bool:
        """Remember a received message, and return whether it repeats an earlier one of its sender, or a reply.

        A short text counts only if our last reply was a repetition too: people also write "yes" or "next" repeatedly.
        """
        whole = normalize_text(message.text)
        text = _Text(now, message.sender, message.message_id, whole[:_MAX_COMPARED])
        received = self._latest(self._received, conversation, now)
        before = [one for one in received if not one.id or one.id != text.id]  # it may be processed again
        sent = self._latest(self._sent, conversation, now)
        repeats = any((one.sender, one.start) == (text.sender, text.start) for one in before)
        echoes = any(one.start == text.start or (one.is_long and one.start in whole) for one in sent)
        if len(before) == len(received):
            received.append(text)
        we_repeat = bool(sent) and any(one.start == sent[-1].start for one in list(sent)[:-1])
        return (repeats or echoes) and (text.is_long or we_repeat)

    def _latest(self, texts: OrderedDict[Hashable, deque[_Text]], conversation: Hashable, now: float) -> deque[_Text]:
        """Return the texts of a conversation, without those that are too old."""
        found = texts.setdefault(conversation, deque(maxlen=_MAX_RECENT))
        texts.move_to_end(conversation)
        expired = now - self._seconds
        while found and found[0].at <= expired:
            found.popleft()
        for key, others in list(islice(texts.items(), 2)):  # removes more than are added
            if key != conversation and (len(texts) > _MAX_TRACKED or not others or others[-1].at <= expired):
                del texts[key]
        return found


def _conversation_of(payload: Inbound | Outbound) -> tuple[str, ...]:
    chat = payload.message.chat_id if isinstance(payload, Inbound) else payload.chat_id
    return payload.channel, chat, payload.message.thread_id


def _sender_of(inbound: Inbound) -> tuple[Hashable, ...]:
    message = inbound.message
    return inbound.channel, message.sender or message.chat_id, _is_command(message)


def _is_command(message: InboundMessage) -> bool:
    return _COMMAND.match(message.text) is not None


def _links_in(text: str) -> Iterator[str]:
    """Yield the links in a text, up to their hosts, including those without a scheme (``www.example.com``)."""
    yield from urls_in_text(text)
    yield from (found[0] for found in _BARE_LINK.finditer(text))


def _window(limit: int | None, name: str, seconds: float) -> _Window | None:
    return None if limit is None else _Window(check_integer(limit, name), seconds)


def _redactor(redact: Any) -> Redactor | None:
    if isinstance(redact, Redactor):
        return redact
    kinds = check_names(redact, "redact", 0)
    return Redactor(kinds) if kinds else None


def _senders(given: Any, name: str) -> tuple[_SenderPattern, ...]:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise RegistrationError(f"{name} must be a list of senders: [{given!r:.80}]")
    return tuple(_sender_pattern(item, name) for item in given)


def _sender_pattern(item: Any, name: str) -> _SenderPattern:
    if isinstance(item, str) and item:
        return _SenderPattern(sender=item)
    if not isinstance(item, Mapping) or not item or not all(isinstance(value, str) for value in item.values()):
        raise RegistrationError(
            f'{name}: an entry must be the id of a sender, or a mapping such as {{"group": "*"}}, not {item!r:.80}'
        )
    fields = _SenderPattern.__struct_fields__
    for field in item:
        if field not in fields:
            raise RegistrationError(
                f"{name}: an entry has no {field!r:.40}.{did_you_mean(str(field), fields)} It has {', '.join(fields)}"
            )
    return _SenderPattern(**item)
