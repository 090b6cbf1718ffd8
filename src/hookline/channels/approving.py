"""Calls that wait for approval, put to people in the conversation that they belong to, and their answers."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from .._base.text import describe, error_text
from .._base.workers import in_thread
from ..hooks.approvals import ApprovalsHook
from ..stores.approvals import ApprovalRow, ApprovalStore, DecisionRefusedError, matches
from ..stores.errors import StoreError
from ..stores.mailbox import InboxItem, LeaseLostError
from . import wording
from .access import Access
from .lanes import address_of, place
from .options import GatewayOptions
from .postman import Postman
from .protocol import Asked, Channel
from .questions import SHORTEST, Open, code_of, listed, plain, short_code, shown

log = logging.getLogger("hookline")

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
            return wording.MAY_NOT_APPROVE
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
            return wording.which(decision, [question.code for question in seen])
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
                        return wording.out_of_date(code[: 2 * SHORTEST], waiting)
        return wording.which(name, waiting, unknown=bool(code))

    async def _decide(self, letter: InboxItem, question: Open, name: str, rest: str) -> str:
        assert self.store is not None
        choice: dict[str, Any]
        match name:
            case "approve":
                if not question.whole or not await self._postman.arrived(question.parcels, ARRIVAL):
                    return wording.not_seen(question.code)
                choice = _remembered(rest)
                if choice.get("remember") == "always" and not self._may(letter, always=True):
                    return wording.not_always(question.code)
                if choice.get("pattern") and not matches(choice["pattern"], question.row.arguments):
                    return wording.NOT_COVERED
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
            return f"{question.code}: {error}" if error.code == "bad" else wording.out_of_date(question.code, [])
        except StoreError as error:
            question.answered = False
            log.error("%s: a decision could not be kept: %s", place(letter.key), error_text(error))
            return wording.NOT_DECIDED
        self.closed(question)  # now, not when its run has heard of it: a further yes is not about this one
        return f"{question.code}: {wording.decided(plain(row.tool), row.status, row.remember)}"

    def _listed(self, letter: InboxItem) -> str:
        waiting = self._open.get(letter.key, {}).values()
        if not waiting:
            return wording.NOTHING_WAITS
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
            texts = [wording.asked_anew(earlier), *texts]
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
            text = wording.ASKED_AGAIN if again and row.status == "cancelled" else outcome(row)
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
    return wording.outcome(plain(row.tool), row.status, plain(row.by), plain(row.message))


def _remembered(rest: str) -> dict[str, Any]:
    """What ``/approve CODE ...`` says beyond the code."""
    try:
        given = shlex.split(rest)
    except ValueError:
        return {"problem": wording.APPROVE_USAGE}
    scope = given.pop(0).lower() if given else "once"
    pattern = {key: value for key, _, value in (item.partition("=") for item in given)}
    if scope not in _SCOPES or not all(pattern) or not all("=" in item for item in given):
        return {"problem": wording.APPROVE_USAGE}
    if pattern and scope == "once":
        return {"problem": wording.APPROVE_USAGE}
    return {"remember": scope, "pattern": pattern or None}


def _edited(rest: str) -> dict[str, Any]:
    try:
        return {"arguments": msgspec.json.decode(rest, type=dict[str, Any])}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {"problem": wording.EDIT_USAGE}
