"""The protocol of the chat component. The web channel and the console speak it.

A page reads one stream of server-sent events, ``GET stream``. The data of each event is an object with the parts that
have changed, by name; an empty text removes a part::

    ready             Ready: the first part
    message:NUMBER    Message: shown in the order of ``seq``
    draft             Draft: a reply that is being written
    work              Work: what is being answered, and how many messages wait
    asked             Asked: the calls that the person may decide about
    chats             Chats: the conversations, if the server keeps the list
    typing            True: a reply is being written

The page posts :class:`NewMessage` to ``messages``, :class:`NewDecision` to ``decisions`` and :class:`NewStop` to
``stop``. Every request names its conversation in the header ``X-Chat``, as a percent-encoded text. A status from 200 to
299 means that the server has stored the request. After 401, 429 and 5xx the page sends a message again, under the same
id; any other status is final, and the page shows the message of the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote

import msgspec

if TYPE_CHECKING:
    from starlette.requests import Request

BEAT_SECONDS = 1.0
"""Maximum number of silent seconds in a stream. After 2.5 silent seconds, a page says that the connection is lost."""
BEAT = b":\n\n"
EVENT_STREAM = "text/event-stream"
MAX_FILES = 20
"""Maximum number of files of one message."""


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a conversation that changes as a whole."""


class Ready(Part, frozen=True):
    """The connection is open. ``reset`` asks the page to forget the messages that it has."""

    reset: bool = False


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision of a hook or a person about a call, in words. ``gate`` is the sign of the hook line."""

    word: str
    tone: str
    gate: str
    hook: str = ""
    reason: str = ""


class StepCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call: what it does, how it ended, and the verdicts about it. ``arguments`` are shown on request."""

    tool: str
    state: str
    tone: str
    text: str = ""
    arguments: str = ""
    verdicts: tuple[Verdict, ...] = ()


class Message(Part, frozen=True):
    """A message of a person (``in``) or an agent (``out``).

    ``id`` is the one that the page chose, ``to`` the id of the message that this one answers, and ``key`` that of the
    call that it shows. ``steps`` are shown below the reply instead of a text. ``rev`` increases with every change.
    ``problem`` says why there is no reply; ``note`` is a remark on how it ended.
    """

    seq: int
    side: Literal["in", "out"]
    at: float
    text: str = ""
    id: str = ""
    to: str = ""
    key: str = ""
    speaker: str = ""
    rev: int = 0
    link: str = ""
    problem: str = ""
    note: str = ""
    steps: tuple[StepCard, ...] | msgspec.Raw | None = None


class Draft(Part, frozen=True):
    """A reply that is being written. With ``more``, the text continues the last one. Without ``to`` there is none."""

    to: str = ""
    speaker: str = ""
    text: str = ""
    more: bool = False


class Work(Part, frozen=True):
    """The message that is being answered, and the number of messages that wait."""

    answering: str = ""
    waiting: int = 0


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that waits for a decision.

    ``digest`` is that of the call as it is shown; a decision returns it. ``remember`` says for how long an approval may
    hold: ``once``, ``session`` or ``always``; ``pattern`` are the arguments that may be written with ``*`` then. With
    an ``objection``, the person can deny the call only. ``exact`` calls cannot be edited.
    """

    key: str
    agent: str
    tool: str
    arguments: str
    digest: str
    expires: float
    questions: tuple[str, ...] = ()
    remember: tuple[str, ...] = ("once",)
    pattern: Mapping[str, str] | None = None
    objection: str = ""
    needed: str = ""
    exact: bool = False
    readonly: bool = False
    link: str = ""


class Asked(Part, frozen=True):
    """The calls that wait for a decision, the oldest first."""

    open: tuple[Prompt, ...] = ()


class Chat(msgspec.Struct, frozen=True):
    """A conversation in the list."""

    id: str
    title: str
    agent: str
    at: float


class Chats(Part, frozen=True):
    """The conversations, the newest first. ``problem`` says why they cannot be shown."""

    chats: tuple[Chat, ...] = ()
    problem: str = ""


class NewFile(msgspec.Struct, frozen=True):
    """A file of a new message: uploaded before under its id, or with its content as Base64."""

    id: str = ""
    name: str = ""
    data: str = ""


class NewMessage(msgspec.Struct, frozen=True):
    """A message with its files. Its id stays the same when the page sends it again."""

    id: str
    text: str
    files: Annotated[tuple[NewFile, ...], msgspec.Meta(max_length=MAX_FILES)] = ()


class NewDecision(msgspec.Struct, frozen=True):
    """A decision about the call with this key. ``arguments`` is a JSON object, for an edit."""

    id: str
    key: str
    decision: Literal["approve", "deny", "edit"]
    digest: Annotated[str, msgspec.Meta(min_length=1)]
    message: str = ""
    arguments: str = ""
    remember: str = "once"
    pattern: Mapping[str, str] | None = None


class NewStop(msgspec.Struct, frozen=True):
    """Stop what is being answered."""

    id: str


class Speaker(msgspec.Struct, frozen=True):
    """An agent or a personality that can be chosen for a conversation."""

    id: str
    name: str
    description: str = ""
    suggestions: tuple[str, ...] = ()


class Settings(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The parts of which a page is made.

    Args:
        title: the name of what answers, where no speaker is known.
        root: the address of the endpoints.
        renderer: the address of the script that renders Markdown.
        page: the address of the page; if given, the server keeps the list of conversations, and the page adds the
            agent and the conversation to it.
        owner: the person, if several may use the same browser: what is not sent yet is kept for each.
        chat: the id of the conversation; without one, the browser chooses.
        speakers: who can be chosen. In a conversation of the browser, a choice sends the command ``/personality``.
        speaker: the id of the speaker.
        suggestions: what a person could write first.
        about: one line on who answers, for the opening screen.
        max_text: the longest message, in characters.
        max_file: the largest file, in bytes; 0 for no files.
        parts: whether files are uploaded in parts before the message.
        commands: whether texts that begin with ``/`` are commands.
        new_text: the text of the reply to the command ``/new``.
        may_write: whether the person may send messages.
        parts_now: the parts of the conversation when the page was made.
    """

    title: str
    root: str
    renderer: str
    page: str = ""
    owner: str = ""
    chat: str = ""
    speakers: tuple[Speaker, ...] = ()
    speaker: str = ""
    suggestions: tuple[str, ...] = ()
    about: str = ""
    max_text: int = 32_000
    max_file: int = 0
    parts: bool = False
    commands: bool = False
    new_text: str = ""
    may_write: bool = True
    parts_now: Mapping[str, Any] | None = None


SUGGESTIONS = ("What can you do?", "Which tools do you have?")
"""Suggestions for an agent that has none of its own."""


def encode(parts: Mapping[str, Any]) -> bytes:
    """Return the event that sends these parts."""
    return b"data: " + msgspec.json.encode(parts) + b"\n\n"


def is_id(text: str) -> bool:
    """Whether a text is an id as the page generates them, long enough that it cannot be guessed."""
    return 20 <= len(text) <= 64 and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def chat_of(request: Request) -> str:
    """Return the conversation that a request names; empty if it names none."""
    return unquote(request.headers.get("x-chat", ""))
