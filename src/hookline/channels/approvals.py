"""Calls that wait for approval, put to people in the conversation that they belong to, and their answers."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from .._base.text import describe, error_text
from .._base.workers import in_thread
from ..hooks.approvals import ApprovalsHook
from ..stores.approvals import ApprovalRow, ApprovalStore, DecisionRefusedError, matches
from ..stores.errors import StoreError
from ..stores.mailbox import InboxItem, LeaseLostError, OutboxItem
from . import notices
from .access import Access
from .conversations import address_of, place
from .options import GatewayOptions
from .outbox import Postman
from .protocol import Asked, Channel
from .splitting import joined

log = logging.getLogger("hookline")

SHORTEST = 4
"""Characters of a code, at least."""

MAX_SHOWN = 30_000
"""Characters of arguments that are shown in a conversation; a call with more is for an operator to look at."""

_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_LABEL = 40
_SHORT = 160

ARRIVAL = 5.0
"""Seconds that an answer waits for the question, if that is still on its way."""

RECENT = 15.0
"""Seconds in which a plain yes may still be meant for a call that stopped waiting behind the back of who says it."""

REMEMBERED = 500
"""How many calls of a channel are looked through for a code that no call has which waits."""

COMMANDS = {
    "approvals": "the calls that wait for approval here",
    "approve": "let a call run: /approve CODE, CODE session, CODE always path=notes/*",
    "deny": "do not let it run: /deny CODE why",
    "edit": 'let it run with other arguments: /edit CODE {"path": "notes/a.txt"}',
}

_PLAIN = {"yes": "approve", "y": "approve", "no": "deny", "n": "deny"}
_SCOPES = ("once", "session", "always")


class Open(msgspec.Struct):
    """A call that waits in a conversation.

    ``answerable``: somebody there may decide. ``parcels`` are the messages that show it; ``whole``: nothing of it was
    held back. ``answered``: it is being decided in this conversation, whose answer tells so.
    """

    key: str
    row: ApprovalRow
    code: str
    answerable: bool
    parcels: list[OutboxItem] = []
    whole: bool = False
    answered: bool = False


class Approving:
    """The calls that wait in conversations: who may decide about them, and what they say.

    Args:
        store: where calls wait; ``None`` if they do not: then there is nothing to decide here.
        postman: sends questions.
        channels: by their names.
        access: who may decide, by the name of the channel; nobody where there is none.
        options: of the gateway.
    """

    def __init__(
        self, store: ApprovalStore | None, postman: Postman, channels: Mapping[str, Channel],
        access: Mapping[str, Access], options: GatewayOptions,
    ) -> None:  # fmt: skip
        self.store, self._postman, self._channels, self._access = store, postman, channels, access
        self.seconds = options.approval_seconds
        self._open: dict[str, dict[str, Open]] = {}
        self._ended: dict[str, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.commands: Mapping[str, str] = COMMANDS if store is not None else {}

    def asker(self, letter: InboxItem, waiting: Callable[[bool], None], again: Callable[[], bool]) -> Asker | None:
        """Who puts the calls of one run to people; ``None`` if that is not wanted.

        Args:
            letter: what the run answers.
            waiting: is told when the run begins to wait for a decision, and when it does no longer.
            again: whether the run was broken off, and will be begun anew.
        """
        return None if self.store is None else Asker(self, self.store, letter, waiting, again)

    def waits(self, key: str) -> bool:
        """Whether a call of this conversation waits."""
        return bool(self._open.get(key))

    async def close(self) -> None:
        """Leave what is still to be told."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def obey(self, letter: InboxItem, name: str, argument: str) -> str:
        """Carry out one of the commands; the answer."""
        if name == "approvals":
            return self._listed(letter)
        if not self._may(letter):
            return notices.MAY_NOT_APPROVE
        code, _, rest = argument.partition(" ")
        question = self._find(letter.key, code)
        if question is None:
            return await self._unknown(letter, name, code)
        return await self._decide(letter, question, name, rest.strip())

    async def plain(self, letter: InboxItem, text: str) -> str | None:
        """The answer to a plain yes or no, if it is one to a question here; ``None`` if it is not."""
        decision = _PLAIN.get(text.strip().rstrip(".!").lower())
        if decision is None or letter.recovered or not self._may(letter):
            return None
        seen = [question for question in self._open.get(letter.key, {}).values() if question.parcels]
        if len(seen) > 1 or (seen and letter.key in self._just_ended()):
            return notices.which(decision, [question.code for question in seen])
        if not seen or not await self._postman.arrived(seen[0].parcels, ARRIVAL):
            return None
        return await self._decide(letter, seen[0], decision, "")

    def _may(self, letter: InboxItem, *, always: bool = False) -> bool:
        access = self._access.get(letter.channel)
        return access is not None and access.may_approve(letter.message.sender, always=always)

    def answerable(self, letter: InboxItem) -> bool:
        """Whether anybody in the conversation may decide."""
        access = self._access.get(letter.channel)
        if access is None or not access.approve:
            return False
        return not letter.message.direct or access.may_approve(letter.message.sender)

    def _find(self, key: str, code: str) -> Open | None:
        code = code.strip("`.:,").upper()
        found = [
            question for question in self._open.get(key, {}).values()
            if len(code) >= SHORTEST and code_of(key, question.row.id).startswith(code)
        ]  # fmt: skip
        return found[0] if len(found) == 1 else None

    async def _unknown(self, letter: InboxItem, name: str, code: str) -> str:
        waiting = [question.code for question in self._open.get(letter.key, {}).values()]
        code = code.strip("`.:,").upper()
        if len(code) >= SHORTEST and self.store is not None:
            with suppress(StoreError):
                rows = await in_thread(self.store.rows, owner=owner_of(letter.channel), limit=REMEMBERED)
                for row in rows:
                    if code_of(letter.key, row.id).startswith(code):
                        return notices.out_of_date(code[: 2 * SHORTEST], waiting)
        return notices.which(name, waiting, unknown=bool(code))

    async def _decide(self, letter: InboxItem, question: Open, name: str, rest: str) -> str:
        assert self.store is not None
        choice: dict[str, Any]
        match name:
            case "approve":
                if not question.whole or not await self._postman.arrived(question.parcels, ARRIVAL):
                    return notices.not_seen(question.code)
                choice = _remembered(rest)
                if choice.get("remember") == "always" and not self._may(letter, always=True):
                    return notices.not_always(question.code)
                if choice.get("pattern") and not matches(choice["pattern"], question.row.arguments):
                    return notices.NOT_COVERED
            case "deny":
                choice = {"message": rest}
            case _:
                choice = _edited(rest)
        if problem := choice.pop("problem", ""):
            return str(problem)
        question.answered = True
        try:
            row = await in_thread(
                self.store.decide, question.row.id, decision=name, digest=question.row.digest,
                by=f"{letter.channel}:{letter.message.sender}", owner=question.row.owner, **choice,
            )  # fmt: skip
        except DecisionRefusedError as error:
            question.answered = False
            if error.code == "gone" and error.row is not None:
                return f"{question.code}: {outcome(error.row)}"
            return f"{question.code}: {error}" if error.code == "bad" else notices.out_of_date(question.code, [])
        except StoreError as error:
            question.answered = False
            log.error("%s: a decision could not be kept: %s", place(letter.key), error_text(error))
            return notices.NOT_DECIDED
        self.closed(question)  # now, not when its run has heard of it: a further yes is not about this one
        return f"{question.code}: {notices.decided(plain(row.tool), row.status, row.remember)}"

    def _listed(self, letter: InboxItem) -> str:
        waiting = self._open.get(letter.key, {}).values()
        if not waiting:
            return notices.NOTHING_WAITS
        secret = not letter.message.direct and not self.answerable(letter)
        return "\n".join(listed(question, secret=secret) for question in waiting)

    def opened(self, letter: InboxItem, row: ApprovalRow) -> Open:
        """A call waits in a conversation from now on."""
        here = self._open.setdefault(letter.key, {})
        code = short_code(letter.key, row.id, here.values())
        here[row.id] = question = Open(letter.key, row, code, self.answerable(letter))
        return question

    def _just_ended(self) -> dict[str, float]:
        """The conversations in which a call stopped waiting a moment ago without being answered there."""
        since = time.monotonic() - RECENT
        self._ended = {key: at for key, at in self._ended.items() if at > since}
        return self._ended

    def closed(self, question: Open) -> None:
        """It waits no longer."""
        if not question.answered and question.row.id in self._open.get(question.key, ()):
            self._ended = {**self._just_ended(), question.key: time.monotonic()}
        here = self._open.get(question.key, {})
        here.pop(question.row.id, None)
        if not here:
            self._open.pop(question.key, None)
        self._postman.forget(question.parcels)
        self._changed(question.key)

    async def show(self, question: Open, letter: InboxItem) -> None:
        """Put a call to people."""
        can = self._channels[letter.channel].capabilities
        secret = not question.answerable and not letter.message.direct
        texts, whole = shown(question, secret=secret, limit=can.max_length, length=can.length)
        if earlier := await self._earlier(question, letter):
            texts = [notices.asked_anew(earlier), *texts]
        for text in texts:
            parcels = await self._postman.reply(letter.key, letter.channel, [], [text])
            self._postman.watch(parcels)  # at once: they are sent when this task waits for something
            question.parcels += parcels
            whole = whole and bool(parcels)
        question.whole = whole
        self._changed(letter.key)

    async def _earlier(self, question: Open, letter: InboxItem) -> list[str]:
        """The codes under which the calls of an earlier run for the same message waited."""
        if not letter.tries or self.store is None:
            return []
        row = question.row
        rows = await in_thread(self.store.rows, owner=row.owner, limit=REMEMBERED)
        return [
            code_of(letter.key, old.id)[:SHORTEST] for old in rows
            if (old.session_id, old.correlation_id) == (row.session_id, row.correlation_id)
            and old.root_id != row.root_id and old.status in ("pending", "cancelled")
        ]  # fmt: skip

    async def tell(self, question: Open, again: bool) -> None:
        """Say what became of a call, unless the answer to who decided says so."""
        if question.answered or not question.parcels or self.store is None:
            return
        try:
            row = await in_thread(self.store.find, question.row.id)
            if row.status == "pending":
                return
            text = notices.ASKED_AGAIN if again and row.status == "cancelled" else outcome(row)
            await self._postman.reply(question.key, address_of(question.key).channel, [], [f"{question.code}: {text}"])
        except LeaseLostError:
            pass
        except Exception as error:  # noqa: BLE001 - the run goes on without
            log.error("%s: what became of a call cannot be told: %s", place(question.key), describe(error))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something that goes on, whatever becomes of who wants it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _changed(self, key: str) -> None:
        """Tell the channel which calls wait, if it wants to know."""
        address = address_of(key)
        told: Any = getattr(self._channels.get(address.channel), "asked", None)
        if told is None:
            return
        asked = [
            Asked(question.code, question.parcels[-1].token) for question in self._open.get(key, {}).values()
            if question.answerable and question.whole
        ]  # fmt: skip
        try:
            told(address, asked)
        except Exception as error:  # noqa: BLE001 - the commands do without
            log.debug("%s: asked: %s", address.channel, describe(error))


class Asker:
    """Puts the calls of one run to people, and tells what becomes of them. Its ``hook`` is for the run."""

    def __init__(
        self, approving: Approving, store: ApprovalStore, letter: InboxItem, waiting: Callable[[bool], None],
        again: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._approving, self._letter, self._waiting, self._again = approving, letter, waiting, again
        self._turn, self._count = asyncio.Lock(), 0
        self._telling: list[asyncio.Task[None]] = []
        owner = owner_of(letter.channel)
        self.hook = ApprovalsHook(store, seconds=approving.seconds, owner=owner, tell=self._ask)

    async def over(self) -> None:
        """Wait until all is told."""
        if self._telling:
            await asyncio.wait(self._telling)

    async def _ask(self, row: ApprovalRow) -> None:
        """Ask, and be there until this is cancelled, which means that it is decided."""
        question = self._approving.opened(self._letter, row)
        showing = self._approving.spawn(self._show(question))
        self._count += 1
        if self._count == 1:
            self._waiting(True)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._count -= 1
            if not self._count:
                self._waiting(False)
            self._telling.append(self._approving.spawn(self._end(question, showing)))

    async def _show(self, question: Open) -> None:
        try:
            async with self._turn:
                await self._approving.show(question, self._letter)
        except Exception as error:  # noqa: BLE001 - an operator can still decide
            where = place(self._letter.key)
            log.error("%s: a call waits for approval, which cannot be told there: %s", where, describe(error))

    async def _end(self, question: Open, showing: asyncio.Task[None]) -> None:
        await asyncio.wait([showing])
        self._approving.closed(question)
        await self._approving.tell(question, self._again())


def owner_of(channel: str) -> str:
    """Whose the calls of a channel are, and the permissions that are given there."""
    return f"channel:{channel}"


def outcome(row: ApprovalRow) -> str:
    """What became of a call, in words."""
    return notices.outcome(plain(row.tool), row.status, plain(row.by), plain(row.message))


def _remembered(rest: str) -> dict[str, Any]:
    """What ``/approve CODE ...`` says beyond the code."""
    try:
        given = shlex.split(rest)
    except ValueError:
        return {"problem": notices.APPROVE_USAGE}
    scope = given.pop(0).lower() if given else "once"
    pattern = {key: value for key, _, value in (item.partition("=") for item in given)}
    if scope not in _SCOPES or not all(pattern) or not all("=" in item for item in given):
        return {"problem": notices.APPROVE_USAGE}
    if pattern and scope == "once":
        return {"problem": notices.APPROVE_USAGE}
    return {"remember": scope, "pattern": pattern or None}


def _edited(rest: str) -> dict[str, Any]:
    try:
        return {"arguments": msgspec.json.decode(rest, type=dict[str, Any])}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {"problem": notices.EDIT_USAGE}


def code_of(key: str, id: str) -> str:
    """All of the code of a call in a conversation; people are given its beginning. Elsewhere it has another."""
    return "".join(_LETTERS[byte % 32] for byte in sha256(f"{key} {id}".encode()).digest())


def short_code(key: str, id: str, others: Iterable[Open]) -> str:
    """As much of the code as tells it from those that wait too."""
    code, size = code_of(key, id), SHORTEST
    while any(code_of(key, other.row.id).startswith(code[:size]) for other in others):
        size += 1
    return code[:size]


def shown(
    question: Open, *, secret: bool = False, limit: int | None = None, length: Callable[[str], int] = len
) -> tuple[list[str], bool]:
    """The messages that put a call to people, and whether all of its arguments are in them.

    A model has a say in most of it, so nothing can begin a line of its own or end the block that it stands in, and what
    cannot be seen is written as JSON does it. Arguments are never cut: what a message does not hold goes into the next.

    Args:
        question: the call.
        secret: leave the arguments out.
        limit: how long a message may be.
        length: how long a text is, as the platform counts.
    """
    row, code = question.row, question.code
    head = f"{code}: {plain(row.agent) or 'the agent'} wants to call `{plain(row.tool)}`"
    tail = "\n".join([*_reasons(row), *_how_to_answer(question)])
    arguments = exact(row.arguments)
    if secret:
        return [f"{head}.\n{tail}"], False
    if len(arguments) > MAX_SHOWN:
        told = f"Its arguments have {len(arguments):,} characters, too many to be shown here"
        return [f"{head}. {told}: an operator can look at them and decide (`hookline approvals`).\n{tail}"], False
    whole = f"{head} with\n```\n{arguments}\n```\n{tail}"
    if limit is None or length(whole) <= limit:
        return [whole], True
    parts = _pieces(arguments, max(_LABEL, limit - _LABEL), length)
    count = len(parts)
    middle = [f"{code}, {i} of {count}:\n```\n{part}\n```" for i, part in enumerate(parts, 1)]
    return [f"{head}, with arguments in {count} parts:", *middle, f"{code}, `{plain(row.tool)}`:\n{tail}"], True


def listed(question: Open, *, secret: bool) -> str:
    """One line about a call that waits."""
    row = question.row
    arguments = "" if secret else f" {exact(row.arguments, None)}"
    if len(arguments) > _SHORT:
        arguments = f"{arguments[:_SHORT]}… (cut: it is in the question, above)"
    return f"{question.code}: {plain(row.tool)}{arguments}, until {clock(row.expires)}"


def _reasons(row: ApprovalRow) -> list[str]:
    lines = []
    for question in row.questions:
        why = f" ({plain(question.reason)})" if question.reason else ""
        lines.append(f"{plain(question.hook) or 'A hook'} asks: {plain(question.text)}{why}")
    return lines


def _how_to_answer(question: Open) -> list[str]:
    code, until = question.code, clock(question.row.expires)
    if not question.answerable:
        return [f"An operator must approve it, until {until} (`hookline approvals`); else it does not run."]
    return [
        f"Answer until {until}: `/approve {code}`, or `/deny {code} why`. Without an answer it does not run.",
        f"If nothing else waits, yes or no will do. `/approve {code} session` allows it in all of this conversation.",
    ]


def exact(arguments: Mapping[str, Any], indent: int | None = 2) -> str:
    """Arguments as JSON, in which everything can be seen."""
    text = json.dumps(arguments, ensure_ascii=False)
    if indent is not None and len(text) > 80:
        text = json.dumps(arguments, ensure_ascii=False, indent=indent)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def plain(text: str) -> str:
    """A text as one line, in which everything can be seen, and which cannot end a quote."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).replace("`", "'")


def clock(at: float) -> str:
    """A time of day, with the date if it is not today, and the zone."""
    when = datetime.fromtimestamp(at).astimezone()
    today = when.date() == datetime.fromtimestamp(time.time()).date()
    return when.strftime("%H:%M %Z" if today else "%Y-%m-%d %H:%M %Z").strip()


def _pieces(text: str, room: int, length: Callable[[str], int]) -> Sequence[str]:
    """A text in pieces, cut between lines; at a cut inside a line a space cannot get lost, nor a block end."""
    pieces: list[str] = []
    piece = ""
    for line in text.split("\n"):
        longer = f"{piece}\n{line}" if piece else line
        if length(longer) <= room:
            piece = longer
            continue
        if piece:
            pieces.append(piece)
        *full, piece = _pieces_of_line(line, room, length)
        pieces += full
    return [*pieces, piece]


def _pieces_of_line(rest: str, room: int, length: Callable[[str], int]) -> Iterator[str]:
    while length(rest) > room:
        end = _cut(rest, room - 2 * len("\\u0020"), length)
        piece, rest = rest[:end], rest[end:]
        yield piece[:-1] + "\\u0020" if piece.endswith(" ") else piece
        rest = f"\\u{ord(rest[0]):04x}{rest[1:]}" if rest[0] in " `" else rest
    yield rest


def _cut(line: str, room: int, length: Callable[[str], int]) -> int:
    end = min(len(line) - 1, max(room, 1))
    while end > 1 and length(line[:end]) > room:
        end -= max(1, (length(line[:end]) - room) // 2)
    fits = max(1, end)
    while end > max(1, fits - 20) and (joined(line, end) or _in_escape(line, end)):
        end -= 1
    return end if not joined(line, end) else fits


def _in_escape(line: str, at: int) -> bool:
    """Whether what JSON writes with a backslash is cut there."""
    start = line.rfind("\\", max(0, at - 5), at)
    if start < 0:
        return False
    before = start
    while before > 0 and line[before - 1] == "\\":
        before -= 1
    if (start - before) % 2:  # the second of a pair: a backslash itself
        return False
    return at < start + (6 if line[start + 1 : start + 2] == "u" else 2)
